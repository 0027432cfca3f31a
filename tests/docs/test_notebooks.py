"""Notebooks are committed bare, and what their code names exists; `tox -e docs` runs them."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import notebooks
import pytest

import flbench
from flbench.plugin.registry import entries
from flbench.results.schema import Result
from flbench.sweeps.from_python import RunOptions
from flbench.sweeps.suite_results import SuiteResults

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
PACKAGE = FOLDER.parent / "tutorial-package"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CALLS = {"run_suite": (Result, {"seed"}), "run_suites": (SuiteResults, {"seeds"})}
FILE = "%%writefile "


def codes(text: str) -> Iterator[str]:
    """The code of each cell; lines for IPython alone are left out."""
    for cell in json.loads(text)["cells"]:
        lines = "".join(cell["source"]).splitlines()
        is_other_file = lines[0].startswith(FILE) and not lines[0].endswith(".py")
        if cell["cell_type"] == "code" and not is_other_file:
            yield "\n".join(line for line in lines if not line.startswith("%"))


def called(node: ast.AST) -> str:
    """`run_suite` or `run_suites` if that is called, else ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr if node.func.attr in CALLS else ""
    return ""


def asked(call: ast.Call) -> Iterator[str]:
    """What a call names that there is not: options, methods and suites."""
    options = {*RunOptions.__annotations__, *CALLS[called(call)][1]}
    yield from (one.arg for one in call.keywords if one.arg and one.arg not in options)
    for kind, given in zip(("methods", "suites"), call.args, strict=False):
        names = [one.value for one in ast.walk(given) if isinstance(one, ast.Constant)]
        keys = {
            key.value for one in ast.walk(given) if isinstance(one, ast.Dict) for key in one.keys
        }  # type: ignore[union-attr]
        numbers = (int, float)
        yield from (
            str(name)
            for name in names
            if name not in keys and not isinstance(name, numbers) and name not in entries(kind)
        )


def unknown(code: str, variables: dict[str, type]) -> Iterator[str]:
    """Names of flbench in a piece of code that there are not.

    Args:
        code: of one cell.
        variables: what earlier cells made of results; that of this one is added.
    """
    tree = ast.parse(code)
    aliases = {"flbench", "fl"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {one.asname or one.name for one in node.names if one.name == "flbench"}
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flbench"):
            module = __import__(node.module or "", fromlist=["_"])
            yield from (one.name for one in node.names if not hasattr(module, one.name))
        if isinstance(node, ast.Assign) and called(node.value):
            variables |= {one.id: CALLS[called(node.value)][0] for one in node.targets}  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if called(node):
            yield from asked(node)  # type: ignore[arg-type]
        if not isinstance(node, ast.Attribute):
            continue
        if isinstance(node.value, ast.Name):
            kind = variables.get(node.value.id)
            fields = {*dir(kind), *getattr(kind, "model_fields", ())}
            if kind is not None and node.attr not in fields:
                yield f"{node.value.id}.{node.attr}"
        place = ast.unparse(node.value)
        first, *rest = place.split(".")
        home: Any = getattr(flbench, rest[0], None) if rest else flbench
        if (
            len(rest) < 2
            and first in aliases
            and inspect.ismodule(home)
            and not hasattr(home, node.attr)
        ):
            yield f"{place}.{node.attr}"


def test_there_are_three() -> None:
    assert [one.stem for one in NOTEBOOKS] == ["first-comparison", "own-method", "own-table"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda one: one.stem)
def test_a_notebook_is_bare_and_names_what_there_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == notebooks.bare(json.loads(text)), "type: python docs/tools/notebooks.py --clean"
    assert '"outputs": []' in text
    variables: dict[str, type] = {}
    found = [name for code in codes(text) for name in unknown(code, variables)]
    assert found == []
    assert variables, "it runs no suite"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import flbench as fl\nfl.run_sweet('fedavg', 'iid')", "fl.run_sweet"),
        ("import flbench\nflbench.clustering.cuts(1)", "flbench.clustering.cuts"),
        ("from flbench.testing import check_all", "check_all"),
        ("r = fl.run_suite('fedagv', 'iid')", "fedagv"),
        ("r = fl.run_suites([('ditto', {'lam': 1})], ['idd'], seeds=2)", "idd"),
        ("r = fl.run_suites(['fedavg'], ['iid'], seed=2)", "seed"),
        ("r = fl.run_suites(['fedavg'], ['iid'])\nr.draw()", "r.draw"),
        ("r = fl.run_suite('fedavg', 'iid')\nr.accuracy", "r.accuracy"),
    ],
)
def test_what_there_is_not_is_found(code: str, name: str) -> None:
    assert [*unknown(code, {})] == [name]


def test_the_package_of_the_notebook_is_that_of_the_tutorial() -> None:
    text = (FOLDER / "own-method.ipynb").read_text(encoding="utf-8")
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
    files = [one.removeprefix(FILE).split("\n", 1) for one in cells if one.startswith(FILE)]
    assert len(files) == 2
    for name, content in files:
        assert f"{content}\n" == (PACKAGE / name).read_text(encoding="utf-8"), name


def output(kind: str, **more: Any) -> dict[str, Any]:
    return {"output_type": kind, **more}


def test_output_is_shown_under_its_code() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {
            "cell_type": "code",
            "source": "print(1)",
            "outputs": [
                output("stream", name="stderr", text="\x1b[1mhalf\x1b[0m "),
                output("stream", name="stdout", text=["done\n", "```\n"]),
                output("display_data", data={"image/svg+xml": "<svg/>", "text/plain": "no"}),
                output("execute_result", data={"text/plain": "3"}),
            ],
        },
    ]
    shown = notebooks.as_markdown({"cells": cells})
    assert shown.splitlines()[:9] == [
        "# Title", "text", "", "```python", "print(1)", "```", "", "````text", "half done",
    ]  # fmt: skip
    assert "base64,PHN2Zy8+" in shown and "\n3\n" in shown and "no" not in shown


KERNEL = """
import asyncio, flbench as fl
assert asyncio.get_running_loop() is not None
results = fl.run_suites(["fedavg", "local-only"], ["iid"], rounds=1, settings={"clients": 4})
print("table:", results.table())
"""


@pytest.mark.slow
@pytest.mark.long
def test_in_a_kernel_progress_is_lines_and_a_table_is_text(tmp_path: Path) -> None:
    """In a kernel a loop runs, FORCE_COLOR is set, and rich shows what it prints itself."""
    pytest.importorskip("nbclient", reason="the extra `docs` is not installed")
    made = notebooks.bare({"cells": [{"cell_type": "code", "source": KERNEL}]})
    found = notebooks.executed(made, tmp_path)
    said = "".join(notebooks.printed(found))
    assert "cell 1/2  fedavg on iid" in said and "cell 2/2  local-only on iid" in said
    table = said.partition("table:")[2]
    assert "fedavg" in table and "accuracy" in table
    assert {one["output_type"] for one in found["cells"][0]["outputs"]} == {"stream"}
    assert list(tmp_path.iterdir()) == []
