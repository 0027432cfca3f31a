"""What hooks learn of clients without a byte on the ledger: noted when they read it.

A field that is declared with `known_as` is read like any other. While a hook is at work (`noting`),
its name goes to the run, and from there to the result and the leaderboard.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
What = str | Callable[[Any], str]
"""What reading a field is called, or a function of the object that says it; "" = not noted."""
Guard = Callable[[Any, str], None]
"""Called before a field of an object, by its name, is read; it may refuse."""
SAMPLES = "numbers of samples"
"""What every method reads that averages by samples."""
_FOUND: ContextVar[set[str] | None] = ContextVar("found", default=None)


@contextmanager
def noting(found: set[str] | None) -> Iterator[None]:
    """Add what is read in the block to `found`; None = nobody notes it."""
    token = _FOUND.set(found)
    try:
        yield
    finally:
        _FOUND.reset(token)


def note(what: str) -> None:
    """Something was read; "" = nothing that says anything."""
    found = _FOUND.get()
    if found is not None and what:
        found.add(what)


class _Noted:
    """A field whose value is read with a note; `dataclasses.replace` hands it on and reads nothing.

    The value is in the object's dictionary under the field's own name.
    """

    def __init__(self, name: str, what: What, guard: Guard) -> None:
        self.name = name
        self.what = what
        self.guard = guard

    def __get__(self, instance: object, owner: type | None = None) -> Any:  # noqa: ANN401 - any field
        if instance is None:
            raise AttributeError(self.name)  # as of any field without a default
        if sys._getframe(1).f_globals is not vars(dataclasses):
            self.guard(instance, self.name)
            if _FOUND.get() is not None:
                note(self.what if isinstance(self.what, str) else self.what(instance))
        return vars(instance)[self.name]

    def __set__(self, instance: object, value: object) -> None:
        vars(instance)[self.name] = value


def known_as(
    guard: Guard = lambda instance, name: None, /, **fields: What
) -> Callable[[type[T]], type[T]]:
    """Decorate a dataclass: what reading each of some fields is called.

    Args:
        guard: is called with the object and the name of a field before it is read, and may refuse.
        **fields: what reading each is called.

    Example:
        >>> @known_as(loss="losses")
        ... @dataclasses.dataclass(frozen=True)
        ... class Upload:
        ...     loss: float
        >>> found = set()
        >>> with noting(found):
        ...     again = dataclasses.replace(Upload(2.0))
        >>> found, again.loss
        (set(), 2.0)
        >>> with noting(found):
        ...     half = again.loss / 2
        >>> found
        {'losses'}
    """

    def decorate(kind: type[T]) -> type[T]:
        for name, what in fields.items():
            setattr(kind, name, _Noted(name, what, guard))
        return kind

    return decorate
