"""torchmetrics, whose packages run their own code when something of them is used.

Lightning imports torchmetrics to compare its version and to have the class `Metric`; importing it
imports torchvision, transformers, scipy.signal and matplotlib, which together take longer than
torch does (https://github.com/Lightning-AI/torchmetrics/issues/3457). Here `import torchmetrics`
and `import torchmetrics.functional` run nothing but what `Metric` needs. The first name that is
asked for and is no submodule runs the package's own code, so all of torchmetrics is there.

Import this module before lightning. It does nothing if torchmetrics is imported already, or is of
a major version other than 1.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

LIBRARY = "torchmetrics"
MAJOR = "1."
"""The versions that this was tested with."""
FIRST = f"{LIBRARY}.utilities"
"""What the package imports before its classes, which import it in a circle."""
CLASSES = {"Metric": f"{LIBRARY}.metric", "MetricCollection": f"{LIBRARY}.collections"}
"""The names that lightning imports, and where they are."""
TYPES = "_AX_TYPE", "_PLOT_OUT_TYPE", "_CMAP_TYPE"
"""Names in the annotations of functions that draw."""


class Deferred(ModuleType):
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


DEFERRED: dict[str, type[ModuleType]] = {
    LIBRARY: Deferred,
    f"{LIBRARY}.functional": Deferred,
    f"{LIBRARY}.utilities.plot": DeferredFunctions,
}


def run(module: ModuleType) -> ModuleType:
    """Run a module's own code, unless it was run already."""
    if type(module) is not ModuleType:
        module.__class__ = ModuleType
        spec = module.__spec__
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(module)
    return module


class DeferringLoader(Loader):
    """Makes a deferred module of one that `loader` would load."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module."""
        return DEFERRED[spec.name](spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty; its code can be read and run from now on."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        if module.__name__ == LIBRARY:
            vars(module).update(__version__=version(LIBRARY), _logger=logging.getLogger(LIBRARY))
            import_module(FIRST)


class DeferringFinder(MetaPathFinder):
    """Finds the packages that are deferred."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package's own specification with another loader; None for other packages."""
        found = PathFinder.find_spec(name, path) if name in DEFERRED else None
        if found is not None and found.loader is not None:
            found.loader = DeferringLoader(found.loader)
        return found


def defer() -> None:
    """Defer what is imported from now on."""
    if LIBRARY not in sys.modules and version(LIBRARY).startswith(MAJOR):
        sys.meta_path.insert(0, DeferringFinder())


defer()
