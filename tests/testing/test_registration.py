"""A class may build on another module of its own package, and on no other plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
from mentions import mentions
from toy import install

from flbench.plugin.method_info import method_info
from flbench.plugin.registry import entries
from flbench.plugin.source_inspection import source_hash
from flbench.testing import CHECKS
from flbench.testing.check import MethodUnderTest

BASE = '''"""The base."""
from dataclasses import dataclass
from typing import Annotated, ClassVar
import flbench as fl

SEEN = []

@dataclass(frozen=True)
class Base:
    """The base."""
    paper: ClassVar[str] = "Base, 2020"
    step: Annotated[float, "how far"] = 0.5

    @fl.hookimpl
    def aggregate(self, state, upload, membership):
        SEEN.append(upload.ids.tolist())
        return fl.Models(fl.member_mean(state.models, upload, membership))
'''
DERIVED = '''"""What builds on it."""
from dataclasses import dataclass
import flbench as fl
{imports}

@dataclass(frozen=True)
class Derived({base}):
    """Derived."""
    other: int = 1

    @fl.hookimpl
    def setup(self, ctx): ...
'''
WAYS = {
    "from": ("from .parts.base import Base", "Base"),
    "as": ("from acme.parts.base import Base as B", "B"),
    "module": ("from .parts import base as low", "low.Base"),
    "import": ("import acme.parts.base", "acme.parts.base.Base"),
}


def acme(folder: Path, way: str) -> None:
    """A package with two methods, of which one builds on the other, in another module."""
    points = "[flbench.methods]\nderived = acme.derived:Derived\nbase = acme.parts.base:Base\n"
    install(folder, "acme", points)
    imports, base = WAYS[way]
    (folder / "acme" / "parts").mkdir(parents=True)
    for path, text in {
        "__init__": "", "parts/__init__": "", "parts/base": BASE,
        "derived": DERIVED.format(imports=imports, base=base),
    }.items():  # fmt: skip
        (folder / "acme" / f"{path}.py").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("way", WAYS)
def test_what_the_source_says_is_read_from_both_modules(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme(tmp_path, way)
    monkeypatch.syspath_prepend(tmp_path)
    told = method_info(entries("methods")["derived"])
    assert [one.name for one in told.parameters] == ["step", "other"]
    assert set(told.hooks) == {"aggregate", "setup"}
    assert (told.paper, told.summary) == ("Base, 2020", "Derived.")
    before = source_hash("acme.derived")
    (tmp_path / "acme/parts/base.py").write_text(BASE + "\n# other\n", encoding="utf-8")
    assert source_hash("acme.derived") != before


@pytest.mark.slow
def test_a_class_may_build_on_its_own_package_whose_memory_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme(tmp_path, "from")
    monkeypatch.syspath_prepend(tmp_path)
    tested = MethodUnderTest("derived")
    assert tested.run_check(CHECKS["discovered-alone"]).state == "passed"
    found = tested.run_check(CHECKS["steady-memory"])
    assert mentions(found.reason, "objects", "containers")
