"""torch._dynamo, which runs its own code when something is compiled.

Lightning imports it to have the class `OptimizedModule`, and every optimiser of torch to mark
functions that must not be compiled; with sympy and the rest it takes a third of torch's memory and
longer than most of flbench (https://github.com/pytorch/pytorch/pull/162595 is the same complaint).
Here `import torch._dynamo` runs nothing. Until something is compiled, no object is an
`OptimizedModule`, and what marks code for the compiler does nothing. Any other name that is asked
for, and any module inside it, runs the package's own code, so all of torch._dynamo is there. The
same holds for torch's module of symbolic shapes, which imports sympy, and which every check within
`torch.func` imports to ask whether a bool is true; and for its module that counts operations, which
imports triton, and which lightning imports to have the class `FlopCounterMode`.

`FINDER` finds them (`engine/processes/own_process.py`). It does nothing if torch._dynamo is
imported already, or torch is of a major version other than 2.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from flbench.core.deferring import DeferringFinder, run

NAME = "torch._dynamo"
SHAPES = "torch.fx.experimental.symbolic_shapes"
COUNTER = "torch.utils.flop_counter"


class DeferredDynamo(ModuleType):
    """A module that runs its own code when it is asked for a name that it does not have."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        if name in STANDINS[self.__name__]:
            return STANDINS[self.__name__][name]
        if name != "__all__" and name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(run(self), name)

    def __dir__(self) -> list[str]:
        return dir(run(self))


def compiler() -> ModuleType | None:
    """The package, if its own code was run."""
    module = sys.modules.get(NAME)
    return module if type(module) is ModuleType else None


class _Compiled(type):
    """The class of `OptimizedModule`: an object is one if something was compiled."""

    def __instancecheck__(cls, one: object) -> bool:
        real = compiler()
        return real is not None and isinstance(one, real.OptimizedModule)


class OptimizedModule(metaclass=_Compiled):
    """Stands in for torch's class of compiled modules in `isinstance`."""


def disable(
    fn: Callable[..., Any] | None = None,
    recursive: bool = True,
    **options: Any,  # noqa: ANN401 - as torch's
) -> Callable[..., Any]:
    """As torch's: the compiler, once there is one, leaves the function alone."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, **options)
    marked: list[Callable[..., Any]] = []

    @functools.wraps(fn)
    def called(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - as the function
        if not marked and (real := compiler()) is not None:
            marked.append(real.disable(fn, recursive, **options))
        return (marked[0] if marked else fn)(*arguments, **keywords)

    return called


def graph_break(*_: object, **__: object) -> None:
    """As torch's where nothing is compiled: do nothing."""


class TraceRules:
    """Stands in for torch's module of rules, whose caches are cleared when processes connect."""

    def clear_lru_cache(self) -> None:
        """As torch's where no rule was looked up yet: do nothing."""
        if (real := compiler()) is not None:
            real.trace_rules.clear_lru_cache()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        return getattr(run(sys.modules[NAME]).trace_rules, name)


class CompiledAutograd:
    """Stands in for torch's module of compiled backward passes, which `torch.func` disables."""

    def _disable(self) -> AbstractContextManager[object]:
        """As torch's where no backward pass is compiled: do nothing."""
        real = compiler()
        return nullcontext() if real is None else real.compiled_autograd._disable()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        return getattr(run(sys.modules[NAME]).compiled_autograd, name)


class FlopCounterMode:
    """Stands in for torch's class that counts operations: may be called, and be a base class."""

    def _real(self) -> type:
        real: type = run(sys.modules[COUNTER]).FlopCounterMode
        return real

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401 - as the class
        """An object of torch's class."""
        return self._real()(*arguments, **keywords)

    def __mro_entries__(self, bases: object) -> tuple[type]:
        return (self._real(),)

    def __instancecheck__(self, one: object) -> bool:
        return isinstance(one, self._real())


def expect_true(a: object, skip: int = 0) -> bool:
    """As torch's; a check of `torch.func` asks it for every bool."""
    if type(a) is bool:
        return a
    found: bool = run(sys.modules[SHAPES]).expect_true(a, skip + 1)
    return found


STANDINS: dict[str, dict[str, object]] = {
    NAME: {
        "OptimizedModule": OptimizedModule, "disable": disable, "graph_break": graph_break,
        "trace_rules": TraceRules(), "compiled_autograd": CompiledAutograd(),
    },
    SHAPES: {"expect_true": expect_true},
    COUNTER: {"FlopCounterMode": FlopCounterMode()},
}  # fmt: skip
"""The modules that are deferred, and what they have without running their code."""


FINDER = DeferringFinder("torch", "2.", dict.fromkeys(STANDINS, DeferredDynamo), whole=[NAME])
