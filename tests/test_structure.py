"""The house itself: who may import whom, what is public, what is written down, how long it is."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

import flbench
from flbench.core import hookspecs
from flbench.federation.build import divide
from flbench.federation.loading import load_dataset
from flbench.plugin.entry import KINDS
from flbench.plugin.hooks import HookCaller
from flbench.plugin.registry import entries, summary_of
from flbench.suite import load_suite

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def dotted(path: Path) -> str:
    """`flbench/engine/communication.py` -> `flbench.engine.communication`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in sources("flbench")}


def nodes_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but what stands under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from (other, *nodes_that_run(other))
            continue
        yield child
        yield from nodes_that_run(child)


def imported(path: Path, module: str) -> set[str]:
    """Modules that a file imports when it runs, also inside functions; full dotted names."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in nodes_that_run(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join([*up, node.module or ""]).strip(".") if node.level else node.module
            assert start is not None
            for alias in node.names:
                whole = f"{start}.{alias.name}"
                home = flbench._HOME_OF.get(alias.name) if start == "flbench" else None
                found.add(whole if whole in MODULES else f"flbench.{home}" if home else start)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0]
            if isinstance(first, ast.Constant):
                found.add(str(first.value))
    return found


def part_of(module: str) -> str:
    """`flbench.engine.communication` -> `engine`; the package itself -> ``."""
    return [*module.split("."), ""][1]


# --- who may import whom ----------------------------------------------------------------------


def test_the_core_names_no_method_suite_dataset_or_model() -> None:
    strangers = ("flbench_plugins", "flbench_benchmarks", "plugins", "benchmarks")
    folders = [ROOT / "flbench" / kind for kind in ("datasets", "models")]
    files = [path for folder in folders for path in folder.glob("*.py")]
    named = {dotted(path) for path in files if path.name != "__init__.py"}
    assert len(named) >= 4
    for module, path in MODULES.items():
        others = imported(path, module)
        assert not {name for name in others if name.split(".")[0] in strangers}, module
        if part_of(module) not in ("datasets", "models"):
            assert not others & named, module


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) not in ("cli", "__main__")])
def test_no_module_names_a_method_in_its_code(module: str) -> None:
    """Comments and docstrings may; a string that decides something may not."""
    tree = tree_of(MODULES[module])
    plain = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not plain & set(PROJECT["project"]["entry-points"]["flbench.methods"])


# --- plugins are strangers --------------------------------------------------------------------

PLUGINS = sorted((ROOT / "plugins").glob("*.py"))


def test_there_are_plugins_to_look_at() -> None:
    assert {"fedavg", "local_only", "oracle", "pfedlia"} <= {path.stem for path in PLUGINS}


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem)
def test_plugins_import_only_public_names_of_flbench(path: Path) -> None:
    """Third-party libraries are free; `import flbench as fl` may use `fl.<public name>` only."""
    tree, aliases = tree_of(path), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert not alias.name.startswith(("flbench.", "flbench_"))
                if alias.name == "flbench":
                    aliases.add(alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "no relative imports: a method stands alone"
            assert not str(node.module).startswith(("flbench.", "flbench_"))
            if node.module == "flbench":
                assert {alias.name for alias in node.names} <= set(flbench.__all__)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in aliases:
            assert node.attr in flbench.__all__


@pytest.mark.parametrize(
    "path", [p for p in PLUGINS if p.stem != "__init__"], ids=lambda path: path.stem
)
def test_a_method_cites_its_paper_on_top(path: Path) -> None:
    text = ast.get_docstring(tree_of(path)) or ""
    assert re.search(r"\b(19|20)\d\d\b|methods\.md", text), "a paper and its year"


def test_fedavg_implements_no_hook() -> None:
    code = tree_of(ROOT / "plugins" / "fedavg.py")
    assert "hookimpl" not in ast.unparse(code)
    assert [n.name for n in ast.walk(code) if isinstance(n, ast.FunctionDef)] == []
    from flbench_plugins.fedavg import FedAvg

    assert not any(hasattr(getattr(FedAvg, name), "flbench_impl") for name in dir(FedAvg))


# --- the public names -------------------------------------------------------------------------


def typed_names() -> set[str]:
    """What a type checker sees in `flbench/__init__.py`."""
    body = tree_of(ROOT / "flbench" / "__init__.py").body
    (block,) = [node for node in body if isinstance(node, ast.If)]
    return {
        a.asname or a.name for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names
    }


def test_the_package_itself_imports_nothing_until_a_name_is_asked_for() -> None:
    body = tree_of(MODULES["flbench"]).body
    eager = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    told = {alias.name for node in eager if isinstance(node, ast.Import) for alias in node.names}
    told |= {str(node.module) for node in eager if isinstance(node, ast.ImportFrom)}
    assert told == {"__future__", "importlib", "typing"}


def test_what_is_public_is_what_is_served_and_what_is_typed() -> None:
    assert len(set(flbench.__all__)) == len(flbench.__all__)
    assert list(flbench.__all__) == sorted(flbench.__all__) == dir(flbench)
    assert set(flbench.__all__) == typed_names() | {"__version__"}
    for name in ("Dispatched", "Hooks", "nonsense", "runner_"):
        with pytest.raises(AttributeError, match=f"module 'flbench' has no attribute '{name}'"):
            getattr(flbench, name)


@pytest.mark.parametrize("name", flbench.__all__)
def test_every_public_name_resolves_and_explains_itself(name: str) -> None:
    thing: Any = getattr(flbench, name)
    if name == "__version__":
        assert re.fullmatch(r"\d+\.\d+\.\d+\w*", thing)
    elif inspect.ismodule(thing):
        assert thing.__doc__
    elif inspect.isclass(thing):
        own = vars(thing).get("__doc__") or ""
        assert own
        assert not own.startswith(f"{name}("), "a dataclass's generated text explains nothing"
    elif inspect.isfunction(thing):
        assert thing.__doc__
    else:
        assert name in ("Kind", "Phase", "Presets", "Weighting", "hookimpl"), (
            "type aliases and pluggy's marker"
        )


@pytest.mark.slow
def test_importing_flbench_costs_nothing() -> None:
    code = "import sys, flbench; print([n for n in ('torch', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- hooks ------------------------------------------------------------------------------------

HOOKS = [
    name
    for name, function in vars(hookspecs).items()
    if inspect.isfunction(function) and hasattr(function, "flbench_spec")
]


def signature(hook: str) -> str:
    """`score(state, stage, phase, upload, ctx)`."""
    arguments = inspect.signature(getattr(hookspecs, hook)).parameters
    return f"{hook}({', '.join(arguments)})"


@functools.cache
def implemented_in_tests() -> set[str]:
    """Names of functions in tests/ that carry `@hookimpl`."""
    found = set()
    for path in sources("tests"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                found |= {node.name} if any("hookimpl" in mark for mark in marks) else set()
    return found


def test_there_are_as_many_hooks_as_the_design_names() -> None:
    listeners = ["run_started", "round_finished", "run_finished"]
    assert [hook for hook in HOOKS if hook not in listeners] == [
        "partition", "setup", "plan", "dispatch", "client_module", "local_term",
        "score", "cluster", "aggregate", "personalise",
    ]  # fmt: skip
    assert [hook for hook in HOOKS if hook in listeners] == listeners


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_exact_signature(hook: str) -> None:
    text = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    assert f"`{signature(hook)}`" in text or re.search(
        rf"^\s*(def )?{re.escape(signature(hook))}", text, re.MULTILINE
    )
    assert inspect.getdoc(getattr(hookspecs, hook))


@pytest.mark.parametrize("hook", HOOKS)
def test_the_lifecycle_drawing_shows_every_hook(hook: str) -> None:
    drawing = (hookspecs.__doc__ or "").partition("Order:")[0]
    assert re.search(rf"(?<!\w){hook}(?!\w)", drawing)


@pytest.mark.parametrize("hook", HOOKS)
def test_some_test_implements_every_hook(hook: str) -> None:
    assert hook in implemented_in_tests()


# --- suites and entry points ------------------------------------------------------------------

SUITES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.toml"))


def test_every_suite_file_is_an_entry_point_and_every_entry_point_a_file() -> None:
    offered = PROJECT["project"]["entry-points"]["flbench.suites"]
    assert sorted(offered) == SUITES
    assert len(SUITES) >= 2
    for name, target in offered.items():
        assert target == f"flbench_benchmarks:{re.sub(r'[^a-z0-9]', '_', name)}"


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_loads_and_its_partition_works_without_files(name: str, tmp_path: Path) -> None:
    suite = load_suite(name)
    suite = load_suite(name, suite.offline_dataset or None)
    assert suite.name == name
    assert str(suite.version) in suite.changes, "every version has a line in the changelog"
    assert suite.summary
    assert suite.paper
    data = load_dataset(suite.dataset, tmp_path)
    divided = divide(suite, HookCaller((suite.name, suite), []), data, seed=0)
    assert divided.clients == suite.clients
    owned = [divided.visible.sizes("train"), divided.visible.sizes("validation")]
    owned.append(divided.held_out.sizes("test"))
    assert all(int(sizes.min()) >= 1 for sizes in owned)
    overlaps = suite.test_set != "own" or suite.partition.name == "primary-secondary"
    assert overlaps or int(torch.stack(owned).sum()) <= len(data.y)
    if divided.groups is not None:
        assert divided.groups.shape == (suite.clients,)


@pytest.mark.parametrize("name", SUITES)
def test_every_section_of_a_suite_fits_its_dataset(name: str) -> None:
    table = tomllib.loads((ROOT / "benchmarks" / f"{name}.toml").read_text(encoding="utf-8"))
    for dataset in table.get("on", {}):
        assert dataset.partition(":")[0] in entries("datasets")
        assert load_suite(name, dataset).dataset == dataset


POINTS = [
    (group, name, target)
    for group, offered in PROJECT["project"]["entry-points"].items()
    for name, target in offered.items()
]


@pytest.mark.parametrize(("group", "name", "target"), POINTS, ids=lambda text: text)
def test_every_entry_point_resolves_and_is_installed(group: str, name: str, target: str) -> None:
    assert EntryPoint(name, target, group).load() is not None
    kind = group.removeprefix("flbench.")
    assert kind in KINDS
    assert entries(kind)[name].value == target, "install the project again: its metadata is old"
    assert summary_of(entries(kind)[name]), "one line for `flbench list`"


def test_every_package_is_shipped() -> None:
    shipped = set(PROJECT["tool"]["setuptools"]["packages"])
    packages = {dotted(path) for path in sources("flbench") if path.name == "__init__.py"}
    beside = {"flbench_plugins", "flbench_benchmarks"}
    beside |= {f"flbench_benchmarks.{part}" for part in ("papers", "speed", "studies")}
    assert packages | beside == shipped


def test_the_command_resolves() -> None:
    module, _, name = PROJECT["project"]["scripts"]["flbench"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


# --- what is written down ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "kind"), [("plugin", "methods"), ("suite", "suites")], ids=["--plugin", "--suite"]
)
def test_the_readme_names_only_what_exists(option: str, kind: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    short = {"plugin": "-p", "suite": "-s"}[option]
    values = re.findall(rf"(?:--{option}|(?<!\S){short})[ =]+`?([^\s`'\"\\)|]+)", text)
    names = {name for value in values for name in re.split(r"[+,]", value) if name}
    names = {n for n in names if not n.endswith(".toml") and not n.isupper() and n[0] not in "<{["}
    assert names, "the README shows how to run something"
    assert names <= set(entries(kind))


# --- how long things are ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["play", "play_round"])
def test_the_round_loop_fits_on_one_screen(name: str) -> None:
    tree = tree_of(ROOT / "flbench" / "orchestrator.py")
    (node,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    assert node.end_lineno is not None
    assert node.end_lineno - node.lineno + 1 <= 40
