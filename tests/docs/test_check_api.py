"""What breaks whoever uses the last release is found, and must be told."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("griffe")  # of the extra `test`

import check_api

OLD = """\
# The public names of flbench 0.2.0
class Stage:
    def __init__(self, kind, clients, epochs=None): ...
    epochs = None
    def at(self, round): ...
class clustering:
    def lloyd(points, centres, *, rounds=10): ...
class hookspecs:
    def plan(state, ctx): ...
"""


def changed(one: str, other: str) -> str:
    """The names with one text in place of another."""
    assert one in OLD
    return OLD.replace(one, other)


@pytest.mark.parametrize(
    "new",
    [
        changed("    epochs = None\n", "    epochs = None\n    steps = None\n"),
        changed("epochs=None)", "epochs=None, steps=None)"),
        changed("rounds=10)", "rounds=10, tries=1)"),
        changed("ctx): ...\n", "ctx): ...\n    def encode(stage, ctx): ...\n"),
        OLD.replace("def at", "def of(self): ...\n    def at"),
    ],
)
def test_what_is_added_breaks_nothing(new: str) -> None:
    assert check_api.broken(OLD, new) == []


BREAKS = {
    "a field is gone": (changed("    epochs = None\n", ""), "Stage.epochs"),
    "a method is gone": (changed("    def at(self, round): ...\n", ""), "Stage.at"),
    "a default is another": (changed("epochs=None)", "epochs=1)"), "Stage"),
    "a field is in front": (changed("clients, epochs", "steps, clients, epochs"), "Stage"),
    "an argument is required": (changed("rounds=10)", "rounds)"), "clustering.lloyd"),
    "an argument is gone": (changed("points, centres, ", "points, "), "clustering.lloyd"),
    "a function is gone": (changed("    def lloyd", "    def means"), "clustering.lloyd"),
    "a hook is gone": (changed("    def plan", "    def plans"), "plan"),
}


@pytest.mark.parametrize(("new", "name"), BREAKS.values(), ids=BREAKS)
def test_what_breaks_must_be_told(new: str, name: str) -> None:
    (line,) = check_api.judge(OLD, new, "0.2.0", "Another, `fl.Other.epochs` and `other`.")
    assert f"`{name}`" in line
    for told in (name, f"fl.{name}", name.rpartition(".")[2]):
        assert check_api.judge(OLD, new, "0.3.0", f"Use `more` and not `{told}`.") == []


def test_a_patch_breaks_nothing() -> None:
    new = changed("    epochs = None\n", "")
    (line,) = check_api.judge(OLD, new, "0.2.1", "`Stage.epochs` is gone.")
    assert "raise the minor version" in line
    assert check_api.judge(OLD, OLD, "0.2.1", "") == []


TREE = {
    "__init__.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from flbench.core import tools as tools
    from flbench.core.specs import hookimpl as hookimpl
    from flbench.core.types import Child as Child
__version__ = "1.2.3"
""",
    "testing/__init__.py": (
        "from flbench.core.types import Child\nfrom flbench.testing.play import play\n"
        "__all__ = ['Child', 'play']\n"
    ),
    "testing/play.py": "def play(): pass\n",
    "core/__init__.py": "",
    "core/tools.py": "import json\ndef mean(x: int, /, y=1, *rest, z, **more) -> int: return x\n",
    "core/specs.py": (
        "def hookimpl(): pass\ndef hookspec(f): return f\n"
        "class Methods:\n    @hookspec\n    def plan(state): pass\n"
        "@hookspec\ndef split(labels): pass\n"
    ),
    "core/types.py": (
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Base:\n    x: int\n    _hidden: int = 0\n    def up(self): pass\n"
        "@dataclass\nclass Child(Base):\n    y: int = 2\n"
    ),
}


def test_the_public_names_are_read_from_the_source(tmp_path: Path) -> None:
    """Annotations and private names are not promised; what is inherited is."""
    for name, text in TREE.items():
        file = tmp_path / "flbench" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    first, *lines = check_api.public_names(tmp_path).splitlines()
    assert "flbench 1.2.3;" in first
    child = ["    def __init__(self, x, _hidden=0, y=2): ...", "    def up(self): ..."]
    child += ["    x = ...", "    y = 2"]
    assert lines == [
        "class Child:", *child,
        "def hookimpl(): ...",
        "class testing:", "    class Child:", *(f"    {line}" for line in child),
        "    def play(): ...",
        "class tools:", "    def mean(x, /, y=1, *rest, z, **more): ...",
        "class hookspecs:", "    def plan(state): ...", "    def split(labels): ...",
    ]  # fmt: skip
