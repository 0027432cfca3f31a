"""Write the map of modules into `docs/architecture.md`: `python docs/tools/architecture_map.py`.

The layers are those of import-linter in `pyproject.toml`, the modules those of the tree.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
WIDTH = 120


def drawing() -> str:
    """Every module, in its package and layer, bottom layer first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [
        one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers"
    ]
    layers = [
        "\n".join(line for name in layer.split(" | ") for line in rows(ROOT / "flbench" / name))
        for layer in reversed(contract["layers"])
    ]
    numbered = (f"{number:<3}{layer[3:]}" for number, layer in enumerate(layers, 1))
    return "\n\n".join(numbered) + "\n"


def rows(path: Path, indent: str = "    ") -> Iterator[str]:
    """The lines of a package and of the packages in it, or of one module."""
    if not path.is_dir():
        text = path.with_suffix(".py").read_text(encoding="utf-8")
        summary = str(ast.get_docstring(ast.parse(text))).split("\n")[0].rstrip(".")
        yield f"{f'{indent}{path.name}.py':<20}{summary}"
        return
    names = [one.stem for one in sorted(path.glob("*.py")) if one.stem != "__init__"]
    listed = f"{f'{indent}{path.name}/':<20}{'  '.join(names)}"
    yield from textwrap.wrap(listed, WIDTH, subsequent_indent=" " * 20, break_on_hyphens=False)
    for inner in sorted(one.parent for one in path.glob("*/__init__.py")):
        yield from rows(inner, f"{indent}  ")


def page() -> str:
    """The page with the map of now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition("```text\n")
    return f"{before}```text\n{drawing()}```{rest.partition('```')[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
