"""The tree itself: what the core may name, what is public, what is installed and shipped.

Which package imports which is held by the import-linter contracts in `pyproject.toml`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from mentions import mention

import flbench
from flbench.core import hookspecs
from flbench.plugin.registry import KINDS, entries, summary_of

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
POINTS = PROJECT["project"]["entry-points"]


@functools.cache
def modules(folder: str) -> dict[str, ast.Module]:
    """The syntax trees of the modules below a folder, by path."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in paths
    }


def imported(tree: ast.Module) -> set[str]:
    """Modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


# --- the core and its plugins -----------------------------------------------------------------


NAMED = {
    "flbench/datasets/": ["datasets"],
    "flbench/models/": ["models"],
    "flbench/testing/": ["models"],  # of the kit's small federations
}
"""Rooms of the core -> the kinds of what may be named there."""
WORDS = {"csv", "images", "text"}
"""Names of data sets that mean something else as well: a sink, and kinds of data."""


@pytest.mark.slow  # parses the whole core
def test_the_core_names_nothing_that_is_found_and_imports_no_plugin() -> None:
    """Comments and docstrings may name a method; a string that decides something may not."""
    outside = {"flbench_plugins", "flbench_benchmarks", "plugins", "benchmarks"}
    kinds = ("methods", "suites", "studies", "papers", "datasets", "models")
    found = {}
    for path, tree in modules("flbench").items():
        odd = {name for name in imported(tree) if name.split(".")[0] in outside}
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        own = [kind for room, some in NAMED.items() if path.startswith(room) for kind in some]
        here = WORDS.union(*(POINTS[f"flbench.{kind}"] for kind in ("partitions", *own)))
        odd |= {name for kind in kinds for name in texts & set(POINTS[f"flbench.{kind}"])} - here
        found[path] = odd
    assert len(found) > 50
    assert {path: odd for path, odd in found.items() if odd} == {}


def methods() -> dict[str, ast.Module]:
    """The modules of methods, without templates."""
    return {p: tree for p, tree in modules("plugins").items() if p.count("/") == 1}


@pytest.mark.slow
def test_methods_import_only_public_names_of_flbench() -> None:
    """Third-party libraries are free; `import flbench as fl` may use `fl.<public name>` only."""
    found = {}
    for path, tree in methods().items():
        names = {name for name in imported(tree) if re.match(r"flbench(_\w+)?(\.|$)", name)}
        names |= {
            f"flbench.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("fl", "flbench")
        }
        found[path] = names - {"flbench"} - {f"flbench.{name}" for name in flbench.__all__}
    assert len(found) > 20
    assert {path: odd for path, odd in found.items() if odd} == {}


def test_methods_cite_their_paper_on_top() -> None:
    silent = [
        path
        for path, tree in methods().items()
        if not re.search(r"\b(19|20)\d\d\b|methods\.md", ast.get_docstring(tree) or "")
    ]
    assert silent == ["plugins/__init__.py"]


def test_fedavg_implements_no_hook() -> None:
    code = methods()["plugins/fedavg.py"]
    assert "hookimpl" not in ast.unparse(code)
    assert [n.name for n in ast.walk(code) if isinstance(n, ast.FunctionDef)] == []
    from flbench_plugins.fedavg import FedAvg

    assert not any(hasattr(getattr(FedAvg, name), "flbench_impl") for name in dir(FedAvg))


# --- names --------------------------------------------------------------------------------------


def defined_types(tree: ast.Module) -> dict[str, str]:
    """Public classes of a module, and types that it names: what each is. Equal types are equal."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = f"class at line {node.lineno}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.unparse(node.value)
    return {name: what for name, what in found.items() if re.match("[A-Z][a-zA-Z]*[a-z]", name)}


@pytest.mark.slow  # parses the whole core
def test_the_name_of_a_type_has_one_meaning() -> None:
    """A class stands in one module; what two modules name alike is the same type."""
    places: dict[str, dict[str, str]] = {}
    for path, tree in modules("flbench").items():
        for name, what in defined_types(tree).items():
            key = path + what if what.startswith("class") else what
            places.setdefault(name, {})[key] = path
    assert len(places) > 300
    assert {name: [*kinds.values()] for name, kinds in places.items() if len(kinds) > 1} == {}


# --- the public names -------------------------------------------------------------------------


def typed_names() -> dict[str, str]:
    """What a type checker sees in `flbench/__init__.py`: name -> module."""
    body = ast.parse((ROOT / "flbench" / "__init__.py").read_text(encoding="utf-8")).body
    (block,) = [node for node in body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {a.asname or a.name: str(node.module) for node in imports for a in node.names}


def test_what_is_public_is_what_is_served_and_what_is_typed() -> None:
    assert list(flbench.__all__) == sorted(set(flbench.__all__)) == dir(flbench)
    assert set(flbench.__all__) == {*typed_names(), "__version__"}
    for name, module in typed_names().items():
        home = importlib.import_module(module)
        expected = getattr(home, name, None) or importlib.import_module(f"{module}.{name}")
        assert getattr(flbench, name) is expected, name
    with pytest.raises(AttributeError, match=mention("nonsense", "attribute")):
        _ = flbench.nonsense


def test_every_public_name_resolves_and_is_documented() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\w*", flbench.__version__)
    things = {name: getattr(flbench, name) for name in flbench.__all__}
    silent = []
    for name, thing in things.items():
        own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
        generated = f"{name}("  # a dataclass without a docstring gets its signature
        if not own or own.startswith(generated):
            silent.append(name)
    types = {"BatchLoss", "Kind", "Phase", "PhaseRule", "Presets", "Reporter", "Weighting"}
    assert set(silent) <= types | {"__version__", "hookimpl"}


@pytest.mark.slow
def test_importing_flbench_imports_nothing_large() -> None:
    code = "import sys, flbench; print([n for n in ('torch', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- hooks ------------------------------------------------------------------------------------


def test_hooks_are_documented_and_drawn_in_order() -> None:
    hooks = [
        name
        for name, function in vars(hookspecs).items()
        if inspect.isfunction(function) and hasattr(function, "flbench_spec")
    ]
    assert hooks == [
        "partition", "needs", "setup", "plan", "dispatch", "client_module", "metrics", "local_term",
        "batch_loss", "phases", "report", "encode", "decode", "score", "cluster", "weights",
        "aggregate", "personalise", "join", "run_started", "round_finished", "run_finished",
    ]  # fmt: skip
    drawing = (hookspecs.__doc__ or "").partition("Order:")[0]
    assert [hook for hook in hooks if not re.search(rf"(?<!\w){hook}(?!\w)", drawing)] == []
    assert [hook for hook in hooks if not inspect.getdoc(getattr(hookspecs, hook))] == []


# --- what is installed and shipped --------------------------------------------------------------


def test_every_entry_point_resolves_and_is_installed() -> None:
    assert {group.removeprefix("flbench.") for group in POINTS} == set(KINDS)
    for group, offered in POINTS.items():
        known = entries(group.removeprefix("flbench."))
        for name, target in offered.items():
            assert EntryPoint(name, target, group).load() is not None
            assert known[name].value == target, "install the project again: its metadata is old"
            assert summary_of(known[name]), f"{name}: one line for `flbench list`"
    module, _, name = PROJECT["project"]["scripts"]["flbench"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_suite_file_is_an_entry_point_and_every_entry_point_a_file() -> None:
    files = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.toml"))
    functions = {name: f"flbench_benchmarks:{re.sub('[^a-z0-9]', '_', name)}" for name in files}
    assert POINTS["flbench.suites"] == functions


def test_every_package_is_shipped() -> None:
    found = (path.parent for path in (ROOT / "flbench").rglob("__init__.py"))
    packages = {".".join(path.relative_to(ROOT).parts) for path in found}
    packages |= {"flbench_plugins", "flbench_benchmarks"}
    packages |= {
        f"flbench_benchmarks.{part}"
        for part in ("compare", "compare.drivers", "networks", "papers", "speed", "studies")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


# --- the tests --------------------------------------------------------------------------------


def test_a_test_file_named_after_a_module_is_in_the_folder_of_its_package() -> None:
    folders: dict[str, set[Path]] = {}
    for top, above in (("flbench", ROOT / "flbench"), ("plugins", ROOT), ("benchmarks", ROOT)):
        for path in (ROOT / top).rglob("*.py"):
            package = path.parent.relative_to(above)
            if path.stem == "__init__":  # a package by its own name: in its folder, or beside it
                folders.setdefault(package.name, set()).update({package, package.parent})
            else:
                folders.setdefault(path.stem, set()).add(package)
    strays = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        here = path.parent.relative_to(ROOT / "tests")
        if here not in folders.get(path.stem.removeprefix("test_"), {here}):
            strays.append(path.name)
    assert strays == [], "move it, or name it after what it tests"
