"""The digest of the core: it stays when modules move, and changes with what they compute."""

from __future__ import annotations

import ast
import io
import re
import shutil
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import flbench
from flbench.run import core_digest
from flbench.run.core_digest import (
    ASIDE,
    PARTS,
    UNKNOWN,
    core,
    core_parts,
    digests,
    essence,
    same,
    sources,
    whole,
)

ROOT = Path(flbench.__file__).parent
LANES = "engine.lanes.vectorised"


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def test_every_module_is_in_one_part_or_changes_no_number() -> None:
    """A new module fails here until somebody has said which part of the core it belongs to."""
    named = [name for modules in (*PARTS.values(), ASIDE) for name in modules.split()]
    found = [module_of(file) for name in named for file in sources(ROOT, name)]
    assert sorted(found) == sorted({*found}), "a module is in two parts"
    silent = [file for file in ROOT.rglob("*.py") if not essence(file.read_text(encoding="utf-8"))]
    every = {module_of(file) for file in ROOT.rglob("*.py")}
    assert every - {*found} <= set(map(module_of, silent))
    assert {*found} <= every


SOURCE = '''"""A module."""

from __future__ import annotations

from flbench.core.state import (
    Stage,  # noqa: F401
    State as Before,
)
from flbench.toolbox.aggregation import weighted_mean

RATE = 0.5  # of learning
"""A number."""


class Step:
    """A step."""

    def make(self, x: float) -> str:
        r"""Make it, \\\\ so."""
        text = "# no comment" if x else \'\'\'kept\'\'\'
        return text + (
            """
            kept
            """
        )
'''
ALIKE: dict[str, Callable[[str], str]] = {
    "a comment": lambda text: text.replace("RATE = 0.5", "RATE = 0.5  # a 'number\n#\n"),
    "no comment": lambda text: text.replace("  # of learning", ""),
    "a docstring": lambda text: text.replace("A step.", "A\n    # step, 'unlike'."),
    "no docstring": lambda text: text.replace('"""A number."""\n', ""),
    "blank lines": lambda text: text.replace("class", "\n \n\nclass").replace("0.5", "0.5  "),
    "a moved import": lambda text: text.replace("toolbox.aggregation", "toolbox.means.all"),
    "an import in parts": lambda text: text.replace(
        "from flbench.core.state import (\n    Stage,  # noqa: F401\n    State as Before,\n)",
        "from flbench.state import State as Before\nfrom flbench.stages import Stage",
    ),
}
UNLIKE: dict[str, Callable[[str], str]] = {
    "an operator": lambda text: text.replace("text + (", "text * ("),
    "a number": lambda text: text.replace("0.5", "0.25"),
    "a text with #": lambda text: text.replace("# no", "# a"),
    "a text of three quotes": lambda text: text.replace("'''kept", "'''lost"),
    "a text on lines of its own": lambda text: text.replace("    kept\n", "    lost\n"),
    "an alias": lambda text: text.replace("State as Before", "Stage as Before"),
    "an imported name": lambda text: text.replace("weighted_mean", "plain_mean"),
    "indentation": lambda text: text.replace("        return text", "            return text"),
    "another import": lambda text: text.replace("from __future__", "from future"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_computes_the_same_has_the_same_essence(name: str) -> None:
    changed = ALIKE[name](SOURCE)
    assert changed != SOURCE
    assert essence(changed) == essence(SOURCE)


@pytest.mark.parametrize("name", UNLIKE)
def test_what_computes_something_else_has_another_essence(name: str) -> None:
    assert essence(UNLIKE[name](SOURCE)) != essence(SOURCE)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, sources only."""
    root = tmp_path_factory.mktemp("sources") / "flbench"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__", "*.css", "*.js"))
    return root


def test_a_module_moves_without_a_trace(tree: Path, tmp_path: Path) -> None:
    """To a package below and with another name; everybody imports it from there."""
    root = tmp_path / "flbench"
    shutil.copytree(tree, root)
    place = root / "engine" / "lanes_room" / "many_at_once.py"
    place.parent.mkdir()
    (place.parent / "__init__.py").write_text('"""Lanes."""\n')
    (root / "engine" / "lanes" / "vectorised.py").rename(place)
    for file in root.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        moved = text.replace(
            "flbench.engine.lanes.vectorised", "flbench.engine.lanes_room.many_at_once"
        )
        if moved != text:
            file.write_text(moved, encoding="utf-8")
    parts = {**PARTS, "lanes": PARTS["lanes"].replace(LANES, "engine.lanes_room")}
    assert parts != PARTS
    assert digests(root, parts) == core_parts()


def test_one_operator_changes_its_part_and_no_other(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "flbench"
    shutil.copytree(tree, root)
    file = root / "toolbox" / "aggregation.py"
    text = file.read_text(encoding="utf-8")
    node = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.BinOp))
    old = ast.get_source_segment(text, node)
    assert old is not None
    other = ast.unparse(ast.BinOp(node.left, ast.FloorDiv(), node.right))
    file.write_text(text.replace(old, other, 1), encoding="utf-8")
    found = digests(root, PARTS)
    assert {name for name in PARTS if found[name] != core_parts()[name]} == {"aggregation"}
    assert whole(found) != core()


def test_the_version_is_not_part_of_it(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "flbench"
    shutil.copytree(tree, root)
    file = root / "__init__.py"
    changed = re.sub(r'__version__ = ".*"', '__version__ = "9.9"', file.read_text(encoding="utf-8"))
    file.write_text(changed, encoding="utf-8")
    assert whole(digests(root, PARTS)) == core()


def test_without_its_sources_a_core_equals_none(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "flbench"
    shutil.copytree(tree, root)
    (root / "run" / "rounds.py").rename(root / "run" / "rounds.pyc")
    assert whole(digests(root, PARTS)) == UNKNOWN
    assert not same(UNKNOWN, UNKNOWN)
    assert same(core(), core())
    assert re.fullmatch("[0-9a-f]{12}", core())


def test_it_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core()
    monkeypatch.setattr(core_digest, "PARTS", {})
    assert core_parts() == digests(ROOT, PARTS)


def by_the_parser(source: str) -> str:
    """The essence as Python's own parser and tokenizer see it."""
    lines, cut, names = source.split("\n"), set[int](), set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr | ast.ImportFrom):
            assert node.end_lineno is not None
            own = range(node.lineno - 1, node.end_lineno)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                cut.update(own if isinstance(node.value.value, str) else ())
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flbench"):
                cut.update(own)
                names |= {f"import {ast.unparse(alias)}" for alias in node.names}
    for place in comments(source):
        lines[place[0] - 1] = lines[place[0] - 1][: place[1]]
    kept = [line.rstrip() for at, line in enumerate(lines) if at not in cut]
    return "\n".join([*sorted(names), *filter(None, kept)])


def comments(source: str) -> Iterator[tuple[int, int]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start


@pytest.mark.slow
def test_of_real_modules_it_is_what_the_parser_says() -> None:
    for file in sources(ROOT, "engine") + sources(ROOT, "run") + sources(ROOT, "sweeps"):
        source = file.read_text(encoding="utf-8")
        assert essence(source) == by_the_parser(source), file
