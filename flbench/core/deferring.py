"""Modules of libraries whose code runs when something of them is used, not when they are imported.

A `DeferringFinder` makes a stand-in of each module that its table names. A stand-in that is asked
for something it does not have runs the module's own code, and is that module from then on. This
module itself changes nothing: `engine/processes/own_process.py` says in which processes finders are
used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any


def run(module: ModuleType) -> ModuleType:
    """Run a module's own code, unless it was run already."""
    if type(module) is not ModuleType:
        module.__class__ = ModuleType
        spec = module.__spec__
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class DeferringLoader(Loader):
    """Makes a stand-in, an object of `kind`, of a module that `loader` would load."""

    loader: Loader
    kind: type[ModuleType]
    prepare: Callable[[ModuleType], None]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module without content."""
        return self.kind(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it without content; its code can be read and run from now on."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.prepare(module)


class LoadedLoader(Loader):
    """In place of the loader of a module that is loaded already: gives it as it is, once."""

    def __init__(self, module: ModuleType, loader: Loader) -> None:
        self._module, self._loader = module, loader

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the loader has
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing, and give the module its loader back."""
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader


@dataclass(frozen=True, eq=False)
class DeferringFinder(MetaPathFinder):
    """Finds the modules of a library that are deferred.

    Attributes:
        library: name of the distribution.
        major: how its version must begin; other versions are left alone, as they were not tested.
        kinds: the class of the stand-in of each module that is deferred.
        whole: packages whose own code is run before a module inside them is imported.
        prepare: is called with each stand-in when it is made.
    """

    library: str
    major: str
    kinds: Mapping[str, type[ModuleType]]
    whole: Sequence[str] = ()
    prepare: Callable[[ModuleType], None] = field(default=lambda module: None)

    @cached_property
    def _is_known(self) -> bool:
        try:
            return version(self.library).startswith(self.major)
        except PackageNotFoundError:
            return False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification with another loader; None for other modules."""
        if name in self.kinds:
            found = PathFinder.find_spec(name, path) if target is None and self._is_known else None
            if found is not None and found.loader is not None:
                found.loader = DeferringLoader(found.loader, self.kinds[name], self.prepare)
            return found
        package = next((one for one in self.whole if name.startswith(f"{one}.")), "")
        owner = sys.modules.get(package)
        if owner is not None and type(owner) is not ModuleType:
            run(owner)
            self._keep(sys.modules.get(name))
        return None

    def _keep(self, module: ModuleType | None) -> None:
        """See that Python, which looks for a module that is there by now, does not load it again.

        It takes the specification of the module that is there.
        """
        spec = None if module is None else module.__spec__
        if module is not None and spec is not None and spec.loader is not None:
            spec.loader = LoadedLoader(module, spec.loader)
