"""torchvision's operators: declared where its own library does not load, else left alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flbench.core import torchvision_compat
from flbench.core.torchvision_compat import declare_missing_operators


def stand_in(monkeypatch: pytest.MonkeyPatch, loads: bool) -> Any:
    """A torch without torchvision's operators, in place of the module's; files may bring them."""
    operators, declared = SimpleNamespace(), list[str]()

    def load_library(path: str) -> None:
        if not loads:
            raise OSError("undefined symbol")
        operators.nms = path

    torch = SimpleNamespace(
        ops=SimpleNamespace(torchvision=operators, load_library=load_library),
        library=SimpleNamespace(
            Library=lambda name, kind: SimpleNamespace(name=name, define=declared.append)
        ),
    )
    monkeypatch.setattr(torchvision_compat, "torch", torch)
    return SimpleNamespace(operators=operators, declared=declared)


@pytest.fixture
def compiled(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchvision whose folder has a compiled library."""
    (tmp_path / "_C.so").touch()
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)


@pytest.mark.usefixtures("compiled")
def test_a_library_that_loads_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = stand_in(monkeypatch, loads=True)
    assert declare_missing_operators() is None
    assert torch.operators.nms.endswith("_C.so")
    assert torch.declared == []


@pytest.mark.usefixtures("compiled")
def test_operators_of_a_library_that_does_not_load_are_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = stand_in(monkeypatch, loads=False)
    found: Any = declare_missing_operators()
    assert found.name == "torchvision"
    assert [schema.partition("(")[0] for schema in torch.declared] == ["nms", "qnms"]


def test_operators_that_are_there_are_not_declared_again() -> None:
    assert declare_missing_operators() is None
