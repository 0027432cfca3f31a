"""Python stays as it is where flbench is imported; a command's processes defer imports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_or_not import write_whether_own

import flbench
from flbench.engine.processes import own_process
from flbench.engine.processes.fork_server import fork, spawn

PACKAGE = Path(flbench.__file__).parent
PREPARED = "lightning", "torchmetrics", "torchvision", "transformers"
"""They import torchvision, which a CPU build of torch needs `torchvision_compat` for."""
LIBRARY = """
import gc, importlib, json, os, pkgutil, random, signal, sys, warnings
from types import ModuleType

import flbench

names, seed = json.loads(sys.argv[1]), int(sys.argv[2])
random.Random(seed).shuffle(names)

def load(name):
    home, _, attribute = name.partition(":")
    module = importlib.import_module(home)
    return getattr(module, attribute) if attribute else module

first = load(names[0])
import flbench.core.torchvision_compat, lightning, sklearn, torch, torchmetrics, torchvision
import transformers
before = dict(sys.modules)
state = lambda: {
    "environment": dict(os.environ), "finders": sys.meta_path[:], "hooks": sys.path_hooks[:],
    "path": sys.path[:], "warnings": warnings.filters[:], "excepthook": sys.excepthook,
    "unraisable": sys.unraisablehook, "folder": os.getcwd(), "random": random.getstate(),
    "signals": [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)],
    "torch": [torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(),
              torch.are_deterministic_algorithms_enabled(), torch.initial_seed()],
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()], "umask": os.umask(0o22),
    "limit": sys.getrecursionlimit(), "stdout": sys.stdout, "stderr": sys.stderr,
}
was = state()
for name in names[1:]:
    load(name)
now = state()
changed = {key: (was[key], now[key]) for key in was if was[key] != now[key]}
assert not changed, changed
assert not [name for name, one in before.items() if sys.modules.get(name) is not one]
ours = [name for name, one in sys.modules.items() if type(one).__module__.startswith("flbench")]
assert not ours, ours
assert not [one for one in sys.meta_path if type(one).__module__.startswith("flbench")]

import torch._dynamo, torch.fx.experimental.symbolic_shapes, torch.utils.flop_counter
from lightning.fabric.wrappers import OptimizedModule
assert issubclass(torch._dynamo.OptimizedModule, torch.nn.Module)
assert torch._dynamo.OptimizedModule is OptimizedModule
assert torch._dynamo.eval_frame.OptimizedModule is OptimizedModule
assert "MulticlassAccuracy" in vars(torchmetrics.classification)
assert "MeanMetric" in vars(torchmetrics) and "accuracy" in vars(torchmetrics.functional)
assert isinstance(torch.utils.flop_counter.FlopCounterMode, type)
compiled = torch.compile(torch.nn.Linear(2, 2), backend="eager")
assert isinstance(compiled, OptimizedModule)
print("whole")
"""
"""What a person does who uses flbench as a library: no module or public name leaves a trace."""


def python(code: str, *arguments: str) -> str:
    """What a new process prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def modules() -> Iterator[str]:
    """All modules of flbench; `__main__` is a command."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if "__pycache__" not in parts and parts != ("__main__",):
            yield ".".join(["flbench", *(one for one in parts if one != "__init__")])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_importing_flbench_leaves_python_as_it_was(seed: int) -> None:
    names = [*modules(), *(f"flbench:{name}" for name in flbench.__all__)]
    assert len(names) > 200
    assert python(LIBRARY, json.dumps(names), str(seed)) == "whole"


def heavy_imports(tree: ast.Module) -> list[ast.stmt]:
    """Imports that need `torchvision_compat`, also those inside functions; not those for types."""
    typing = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {id(one) for block in typing for one in ast.walk(block)}
    found: list[ast.stmt] = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        if id(node) not in typed and any(name.split(".")[0] in PREPARED for name in names):
            found.append(node)
    return found


def needing() -> Iterator[tuple[str, ast.Module, list[ast.stmt]]]:
    """Modules with such imports."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(name in text for name in PREPARED):
            tree = ast.parse(text)
            if found := heavy_imports(tree):
                yield path.relative_to(PACKAGE).as_posix(), tree, found


@pytest.mark.slow  # parses many modules
def test_a_module_prepares_itself_what_it_imports() -> None:
    """Or it would depend on what was imported before it, as two did."""
    late = {}
    for name, tree, imports in needing():
        places: list[ast.Module | ast.FunctionDef] = [tree]
        places += [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        prepared = {
            id(later)
            for place in places
            for node in place.body
            if isinstance(node, ast.ImportFrom)
            and node.module == "flbench.core"
            and "torchvision_compat" in [alias.name for alias in node.names]
            for later in ast.walk(place)
            if isinstance(later, ast.stmt) and later.lineno > node.lineno
        }
        if lines := [node.lineno for node in imports if id(node) not in prepared]:
            late[name] = lines
    assert len(list(needing())) > 5
    assert late == {}


@pytest.fixture
def finders(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """`sys.meta_path` without those of flbench, put back after the test."""
    others = [one for one in sys.meta_path if one not in own_process.FINDERS]
    monkeypatch.setattr(sys, "meta_path", others)
    return others


def test_a_process_becomes_flbenchs_own_once(finders: list[object]) -> None:
    before = list(finders)
    assert not own_process.is_own()
    assert own_process.inherited() == {}
    own_process.defer_imports()
    own_process.defer_imports()
    assert sys.meta_path == [*own_process.FINDERS, *before]
    assert own_process.is_own()
    assert own_process.inherited() == {own_process.MARK: "1"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("own", [True, False])
def test_a_process_that_one_starts_is_as_it_is_itself(
    own: bool, finders: list[object], tmp_path: Path
) -> None:
    if own:
        own_process.defer_imports()
    file = tmp_path / "own"
    process = spawn(write_whether_own, str(file), variables={})
    process.join()
    assert file.read_text() == f"{own} None"


@pytest.mark.slow
def test_so_is_one_that_is_forked(tmp_path: Path) -> None:
    """The server of the tests is that of an own process."""
    assert own_process.is_own()
    file = tmp_path / "own"
    process = fork(write_whether_own, str(file))
    process.join()
    assert file.read_text() == "True None"
