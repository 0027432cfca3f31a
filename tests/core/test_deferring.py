"""What is deferred is found, made and run once, and is the module itself from then on."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flbench.core import deferring
from flbench.core.deferring import DeferringFinder, run

NAME = "a_deferred_package"


class Standin(ModuleType):
    """Runs its code when it is asked for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(run(self), name)


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeferringFinder]:
    """Defers a package whose own code imports `part`, and which notes that it ran."""
    package = tmp_path / NAME
    package.mkdir()
    code = f"import builtins\nbuiltins.ran.append(__name__)\nfrom {NAME}.part import Thing\n"
    (package / "__init__.py").write_text(code, encoding="utf-8")
    part = "import builtins\nbuiltins.ran.append(__name__)\nclass Thing: pass\n"
    (package / "part.py").write_text(part, encoding="utf-8")
    (package / "other.py").write_text(part, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.ran", [], raising=False)
    monkeypatch.setattr(deferring, "version", lambda library: "2.1")
    found = DeferringFinder("a-library", "2.", {NAME: Standin}, whole=[NAME])
    monkeypatch.setattr(sys, "meta_path", [found, *sys.meta_path])
    yield found
    for name in [one for one in sys.modules if one.startswith(NAME)]:
        del sys.modules[name]


def ran() -> list[str]:
    """Names of the modules whose code was run, in this order."""
    import builtins

    return list(builtins.ran)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("finder")
def test_nothing_is_run_before_something_is_used() -> None:
    package = importlib.import_module(NAME)
    assert type(package) is Standin
    assert ran() == []
    assert package.Thing.__name__ == "Thing"
    assert type(package) is ModuleType
    assert ran() == [NAME, f"{NAME}.part"]


@pytest.mark.parametrize("first", ["part", "other"])
@pytest.mark.usefixtures("finder")
def test_a_module_inside_is_loaded_once(first: str) -> None:
    """It was loaded twice where the package imports it: there were two classes of one name."""
    inner = importlib.import_module(f"{NAME}.{first}")
    package = sys.modules[NAME]
    part = importlib.import_module(f"{NAME}.part")
    assert package.Thing is part.Thing is sys.modules[f"{NAME}.part"].Thing
    assert sorted(ran()) == sorted({NAME, f"{NAME}.part", f"{NAME}.{first}"})
    spec = inner.__spec__
    assert spec is not None
    assert type(spec.loader) is type(inner.__loader__) is type(package.__loader__)


@pytest.mark.usefixtures("finder")
def test_a_module_inside_is_looked_for_without_being_lost() -> None:
    spec = importlib.util.find_spec(f"{NAME}.part")
    assert spec is not None
    assert spec.loader is not None
    source = spec.loader.get_source(f"{NAME}.part")  # type: ignore[attr-defined]
    assert "class Thing" in source
    part = importlib.import_module(f"{NAME}.part")
    assert part.Thing is sys.modules[NAME].Thing
    assert ran().count(f"{NAME}.part") == 1


@pytest.mark.usefixtures("finder")
def test_it_is_loaded_again_by_whom_asks_for_that() -> None:
    package = importlib.import_module(NAME)
    importlib.reload(package)
    assert ran()[0] == NAME


@pytest.mark.parametrize("known", ["1.9", None])
@pytest.mark.usefixtures("finder")
def test_another_version_is_left_alone(known: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(library: str) -> str:
        if known is None:
            raise PackageNotFoundError(library)
        return known

    monkeypatch.setattr(deferring, "version", version)
    assert type(importlib.import_module(NAME)) is ModuleType
    assert ran() == [NAME, f"{NAME}.part"]


def test_other_modules_are_found_as_usual(finder: DeferringFinder) -> None:
    assert finder.find_spec("json", None) is None
    assert finder.find_spec("nowhere.part", None) is None
