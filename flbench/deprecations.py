"""What goes, when, and what to type instead (docs/stability.md). Nothing at the moment.

A public name is served with a warning until it goes; where another name took its place, the old
one leads there. What lies in a public module warns itself when it is called, with
`DEPRECATED["curves.old"].warning("curves.old")`. A hook is marked in `hookspecs` with what stands
here, so that pluggy warns whoever implements it, or asks for the argument:

    @hookspec(warn_on_impl=DEPRECATED["score()"].warning("score()"))
    @hookspec(warn_on_impl_args={"phase": DEPRECATED["score(phase)"].warning("score(phase)")})
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import flbench


@dataclass(frozen=True)
class Going:
    """A deprecation.

    Attributes:
        instead: what to type: the public name that took its place, or a few words.
        since: the version that warned first, "0.2".
        gone: the first version without it, at least one minor version later.
        home: the module it still lies in, where no other name took its place.

    Example:
        >>> print(Going("member_mean", "0.2", "0.4").warning("fedavg_mean"))
        flbench: fedavg_mean is deprecated since 0.2 and goes in 0.4; use member_mean
    """

    instead: str
    since: str
    gone: str
    home: str = ""

    def warning(self, name: str) -> DeprecationWarning:
        """What whoever still uses the name is told, in one line."""
        return DeprecationWarning(f"flbench: {name} is deprecated {self}")

    def __str__(self) -> str:
        return f"since {self.since} and goes in {self.gone}; use {self.instead}"


DEPRECATED: Mapping[str, Going] = {}
"""How each goes: a name "old" or "curves.old", a hook "score()", an argument "score(phase)"."""


def served(name: str) -> Any:  # noqa: ANN401 - any public name
    """What an old public name leads to, with a warning where it is used.

    Raises:
        AttributeError: there is no such name.
    """
    going = DEPRECATED.get(name)
    if going is None:
        raise AttributeError(f"module 'flbench' has no attribute '{name}'")
    warnings.warn(going.warning(name), stacklevel=3)
    if going.home:
        return getattr(importlib.import_module(going.home), name)
    return functools.reduce(getattr, going.instead.split("."), flbench)
