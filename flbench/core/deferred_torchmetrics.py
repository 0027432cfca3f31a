"""torchmetrics, whose packages run their own code when something of them is used.

Lightning imports torchmetrics to compare its version and to have the class `Metric`; importing it
imports torchvision, transformers, scipy.signal and matplotlib, which together take longer than
torch does (https://github.com/Lightning-AI/torchmetrics/issues/3457). Here `import torchmetrics`
and `import torchmetrics.functional` run nothing but what `Metric` needs. The first name that is
asked for and is no submodule runs the package's own code, so all of torchmetrics is there.

`FINDER` finds them (`engine/processes/own_process.py`). It does nothing if torchmetrics is imported
already, or is of a major version other than 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from flbench.core.deferring import DeferringFinder, run

LIBRARY = "torchmetrics"
FIRST = f"{LIBRARY}.utilities"
"""What the package imports before its classes, which import it in a circle."""
CLASSES = {"Metric": f"{LIBRARY}.metric", "MetricCollection": f"{LIBRARY}.collections"}
"""The names that lightning imports, and where they are."""
TYPES = "_AX_TYPE", "_PLOT_OUT_TYPE", "_CMAP_TYPE"
"""Names in the annotations of functions that draw."""


class DeferredTorchmetrics(ModuleType):
    """A package that runs its own code when it is asked for a name that it does not have."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the package has
        if name in CLASSES and self.__name__ == LIBRARY:
            return getattr(import_module(CLASSES[name]), name)
        if name != "__all__" and name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name.isidentifier() and find_spec(f"{self.__name__}.{name}") is not None:
            return import_module(f"{self.__name__}.{name}")
        return getattr(run(self), name)

    def __dir__(self) -> list[str]:
        return dir(run(self))


class DeferredFunctions(ModuleType):
    """The module of functions that draw; it runs its own code when one of them is called."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a function or a type
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return object if name in TYPES else self._later(name)

    def _later(self, name: str) -> Callable[..., Any]:
        def function(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as the function
            return getattr(run(self), name)(*arguments, **options)

        return function


def prepare(module: ModuleType) -> None:
    """Give the package what its other modules take of it while they are imported."""
    if module.__name__ == LIBRARY:
        vars(module).update(__version__=version(LIBRARY), _logger=logging.getLogger(LIBRARY))
        import_module(FIRST)


FINDER = DeferringFinder(
    LIBRARY,
    "1.",
    {
        LIBRARY: DeferredTorchmetrics,
        f"{LIBRARY}.functional": DeferredTorchmetrics,
        f"{LIBRARY}.utilities.plot": DeferredFunctions,
    },
    prepare=prepare,
)
