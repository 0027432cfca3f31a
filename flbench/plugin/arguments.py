"""Arguments of hooks: copies for plugins that only listen, and marks that find what others write.

Torch counts how often a tensor was written in place, and all views of a tensor have one count. So
a mark costs no copy. What it does not see is compared by the check `inputs-untouched` of the kit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

from flbench.core.model_bank import apart, writes

T = TypeVar("T")
ASIDE = frozenset({"names", "scopes", "slots"})
"""Fields without tensors that may be long."""
PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types without tensors: every hook of every round comes by here."""


def tensors(value: object, path: str) -> list[tuple[str, Tensor]]:
    """All tensors inside a hook's argument, each with its path, such as "state.memory['x']".

    Of objects, frozen dataclasses are looked into: others are no data, such as the services of a
    context.
    """
    found: list[tuple[str, Tensor]] = []
    _collect(value, path, found)
    return found


def _collect(value: object, path: str, found: list[tuple[str, Tensor]]) -> None:
    if isinstance(value, Tensor):
        found.append((path, value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if type(item) not in PLAIN:
                _collect(item, f"{path}['{key}']", found)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if type(item) not in PLAIN:
                _collect(item, f"{path}[{index}]", found)
    elif _is_frozen(value):
        for name, item in list(vars(value).items()):  # with masks that a layout has made so far
            if type(item) not in PLAIN and name not in ASIDE:
                _collect(item, f"{path}.{name}", found)


def _is_frozen(value: object) -> bool:
    """Whether it is an object of a frozen dataclass."""
    return getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)


def copied(value: T) -> T:
    """A copy of an argument that shares no memory with it."""
    return copy.deepcopy(value, {id(tensor): apart(tensor) for _, tensor in tensors(value, "")})


class Marks:
    """How often the tensors inside of arguments had been written when they were handed out.

    Args:
        given: the arguments by name; they are kept as long as the marks.
    """

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = given
        self._before = self._now()

    def _now(self) -> dict[str, tuple[Tensor, int]]:
        found = (pair for name, value in self._given.items() for pair in tensors(value, name))
        return {path: (tensor, writes(tensor)) for path, tensor in found}

    def written(self) -> str:
        """The path of a tensor that was written, replaced or added since; "" if none was."""
        now = self._now()
        for path, (tensor, count) in self._before.items():
            later = now.get(path)
            if later is None or later[0] is not tensor or later[1] != count:
                return path
        added = {path: count for path, (_, count) in now.items() if path not in self._before}
        # A mask that a layout made meanwhile is no write, unless it was written itself.
        return next((path for path, count in added.items() if count or path.endswith("]")), "")
