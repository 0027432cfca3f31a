"""Change one thing in a module and see whether a test fails: `python tests/mutations`.

    python tests/mutations [GROUP ...] [--sample 90] [--seed 0] [--results FILE] [--again]
                              [--report]

A mutation is one point of a module's code: a comparison, an operator, a number, a condition, a
returned value or a call that is left out. What is only said (messages, annotations, docstrings) is
not changed. The group `kept` replays mutations.jsonl: chosen by hand, found by pointing.py. Each
is tried in a process of its own, forked from one that has imported flbench and the tests: it
replaces the code of the changed function and runs the tests of the group, the module's own first,
until one fails. One that takes twice the CPU time of the group's tests, and 5 s, is killed.
Results are appended, so a run that was stopped goes on; `--again` tries survivors once more.
A run of all groups ends with report.md, with all survivors; equivalent.json says which change no
result. `--report` writes it at once, of what was tried.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import gc
import importlib
import importlib.util
import inspect
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pointing import mutated

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
CPU_SECONDS = 600
"""What the tests of a group need at most."""
SECONDS = 600.0
"""A test that waits for ever."""
KEPT = (
    "flbench.core.torchvision_compat",
    "flbench.core.deferred_torchmetrics",
    "flbench.core.deferred_dynamo",
    "flbench.core.deferring",
    "flbench.engine.processes.own_process",
)
"""What lightning needs is not imported again."""
PYTEST = [
    "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "--cpu-limit", "0",
]  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Modules of one kind and the tests that must notice a change in them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "aggregation": Group(
        ("toolbox/aggregation",),
        ("tests/toolbox/test_aggregation.py",),
    ),
    "clustering": Group(
        ("toolbox/clustering", "toolbox/elbow", "toolbox/similarity"),
        (
            "tests/toolbox/test_clustering.py", "tests/toolbox/test_elbow.py",
            "tests/toolbox/test_similarity.py",
        ),
    ),
    "ledger": Group(
        ("engine/ledger",),
        (
            "tests/engine/test_ledger.py", "tests/engine/test_encoding.py",
            "tests/run/test_rounds.py",
        ),
    ),
    "partitions": Group(
        (
            "partitions/by_domain", "partitions/dirichlet", "partitions/iid",
            "partitions/label_groups", "partitions/label_skew", "partitions/primary_secondary",
            "partitions/sharding",
        ),
        ("tests/partitions",),
    ),
    "metrics": Group(
        ("metrics", "client_metrics/classification", "engine/client_metrics"),
        ("tests/test_metrics.py", "tests/engine/test_client_metrics.py"),
    ),
    "checkpoint": Group(
        ("run/checkpoint", "run/checkpoint_file"),
        (
            "tests/run/test_checkpoint_file.py", "tests/run/test_checkpoint.py",
            "tests/run/test_runner.py",
        ),
    ),
    "results": Group(
        ("results/files", "results/schema", "results/score_encoding", "results/difference"),
        ("tests/results", "tests/submission/test_admission.py"),
    ),
}  # fmt: skip
ALSO = {
    "toolbox": ("tests/toolbox", "tests/plugins"),
    "engine": ("tests/engine", "tests/run", "tests/plugins"),
    "run": ("tests/run", "tests/core", "tests/plugins"),
    "core": ("tests/core", "tests/run", "tests/plugins"),
    "federation": ("tests/federation", "tests/run"),
    "partitions": ("tests/partitions",),
    "submission": ("tests/submission",),
    "figures": ("tests/figures",),
    "cli": ("tests/cli",),
    "errors.py": ("tests/cli",),
    "metrics.py": ("tests/test_metrics.py", "tests/run"),
    "plugins": ("tests/plugins",),
}
"""Package of a kept mutation -> the tests that may notice it."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.MatMult: ast.Add,
}  # fmt: skip
SAID = (ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.arg, ast.Import, ast.ImportFrom)
"""Parts of the code that are not changed; of an annotated assignment, only the value is."""


def points(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The nodes that can be changed, in order, and how each is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from points(ast.Expression(node.value))
            continue
        if isinstance(node, SAID):
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for part in node.body:
                yield from points(ast.Module([part], []))
            continue
        yield from ((node, kind) for kind in kinds(node))
        yield from points(node)


def kinds(node: ast.AST) -> list[str]:
    """How a node can be changed."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return ["comparison"]
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        text = isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant | ast.JoinedStr)
        return [] if text and not isinstance(getattr(node.left, "value", ""), int) else ["operator"]
    if isinstance(node, ast.BoolOp):
        return ["and/or"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return ["sign"]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return ["constant"]
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return ["condition"]
    if isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
        return ["returned value"]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ["call left out"]
    return []


def change(node: Any, kind: str) -> None:
    """Change a node in place."""
    if kind == "comparison":
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif kind == "operator":
        node.op = OPERATORS[type(node.op)]()
    elif kind == "and/or":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif kind == "sign":
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif kind == "constant":
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif kind == "condition":
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif kind == "returned value" or kind == "call left out":
        node.value = ast.Constant(None)


@dataclass(frozen=True)
class Mutation:
    """A changed module."""

    name: str
    """What identifies it in the results, whatever stands on other lines."""
    file: str
    line: int
    code: Callable[[], CodeType]
    tests: tuple[str, ...]


def generated(module: str, tests: tuple[str, ...]) -> list[Mutation]:
    """All mutations of a module, by its syntax tree."""
    file = f"flbench/{module}.py"
    source = (ROOT / file).read_text(encoding="utf-8")
    found, seen = [], dict[str, int]()
    for number, (node, kind) in enumerate(points(ast.parse(source))):
        changed = copy.deepcopy(node)
        change(changed, kind)
        before, after = (" ".join(ast.unparse(one).split())[:70] for one in (node, changed))
        name = f"{module}: {kind}: {before} -> {after}"
        seen[name] = seen.get(name, 0) + 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        code = functools.partial(changed_point, file, number)
        found.append(Mutation(name, file, getattr(node, "lineno", 0), code, tests))
    return found


def changed_point(file: str, number: int) -> CodeType:
    """A module with one of its points changed."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    change(*list(points(tree))[number])
    return compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec")


def kept() -> list[Mutation]:
    """The mutations of mutations.jsonl: a piece of a symbol and what takes its place."""
    text = (HERE / "mutations.jsonl").read_text(encoding="utf-8")
    found, lost = [], []
    for row in map(json.loads, text.splitlines()):
        try:
            found.append(one_kept(**row))
        except LookupError as error:
            lost.append(f"{row['id']}: {row['file']}: {error}")
    if lost:
        sys.exit("\n".join(lost))
    return found


def one_kept(id: str, file: str, **pointed: Any) -> Mutation:
    """A kept mutation.

    Raises:
        LookupError: Its file or its piece of code is not there.
    """
    if not (ROOT / file).is_file():
        files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "flbench").rglob("*.py")]
        raise LookupError(f"no such file; the nearest is {get_close_matches(file, files, 1, 0)[0]}")
    source, line = mutated((ROOT / file).read_text(encoding="utf-8"), **pointed)
    folder, package, *_ = parts = Path(file).parts
    own = f"tests/{'/'.join(parts[1:-1])}/test_{parts[-1]}".replace("//", "/")
    tests = [own] if (ROOT / own).is_file() else []
    code = functools.partial(compile, source, str(ROOT / file), "exec")
    also = ALSO[package if folder == "flbench" else folder]
    return Mutation(id, file, line, code, (*tests, *also))


def changed_functions(before: CodeType, after: CodeType) -> dict[tuple[str, int], CodeType]:
    """The functions of a module whose code differs, by name and first line."""
    old, new = dict(functions(before)), dict(functions(after))
    return {key: code for key, code in new.items() if old.get(key) != code}


def functions(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """The functions and methods that the code of a module or class defines."""
    for one in code.co_consts:
        if isinstance(one, CodeType) and one.co_flags & inspect.CO_OPTIMIZED:
            yield (one.co_qualname, one.co_firstlineno), one
        elif isinstance(one, CodeType):
            yield from functions(one)


class MutatedModule(MetaPathFinder):
    """Finds one module and gives it other code."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name, self.code = name, code

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module's specification with a loader that gives the other code."""
        if name != self.name:
            return None
        found = PathFinder.find_spec(name, path)
        assert found is not None and found.origin is not None
        loader, code = SourceFileLoader(name, found.origin), self.code
        setattr(loader, "get_code", lambda _: code)  # noqa: B010 - replaced for this object only
        return importlib.util.spec_from_file_location(name, found.origin, loader=loader)


def install(mutation: Mutation) -> None:
    """Replace the code of the changed function; if it is none, import flbench and tests anew."""
    file, code = ROOT / mutation.file, mutation.code()
    name = ".".join(Path(mutation.file).with_suffix("").parts)
    sys.meta_path.insert(0, MutatedModule(name, code))
    changed = changed_functions(compile(file.read_text(encoding="utf-8"), str(file), "exec"), code)
    if changed:
        gc.unfreeze()
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__module__ == name:
                key = one.__code__.co_qualname, one.__code__.co_firstlineno
                one.__code__ = changed.get(key, one.__code__)
        return
    for other, module in list(sys.modules.items()):
        own = str(getattr(module, "__file__", None) or "").startswith(f"{ROOT}{os.sep}")
        if own and other not in {*KEPT, "__main__"}:
            del sys.modules[other]


def survives(
    mutation: Mutation | None, tests: tuple[str, ...], cpu_seconds: int = CPU_SECONDS
) -> str:
    """Run the tests in a forked process; "survived", "killed" or "killed by time"."""
    child = os.fork()
    if not child:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        code: int = 1
        try:
            if mutation is not None:
                install(mutation)
            code = int(pytest.main([*PYTEST, "-x", *tests]))
        finally:
            os._exit(code)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if status == 0 else "killed"
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "killed by time"


def children_seconds() -> float:
    """CPU time of all processes that were run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Try mutations, and write the report."""
    parser = argparse.ArgumentParser(prog="python tests/mutations", description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}, kept; all if none")
    parser.add_argument("--sample", type=int, default=90, help="mutations of each group, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutations.jsonl")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    parser.add_argument("--report", action="store_true", help="write report.md of what was tried")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ.update(OMP_NUM_THREADS="1", WANDB_MODE="offline")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    chosen = {
        name: sample(name, options.sample, options.seed)
        for name in options.groups or [*GROUPS, "kept"]
    }
    if options.report:
        known = read(options.results)
        (HERE / "report.md").write_text(report(chosen, known, options), encoding="utf-8")
        return
    tests = {test for group in chosen.values() for one in group for test in one.tests}
    pytest.main([*PYTEST, "--collect-only", "-qq", *sorted(tests)])
    known = read(options.results)
    for group, mutations in chosen.items():
        waiting = [
            one for one in mutations
            if one.name not in known or (options.again and known[one.name] == "survived")
        ]  # fmt: skip
        needed = tuple(dict.fromkeys(test for one in waiting for test in one.tests))
        before = children_seconds()
        if waiting and survives(None, needed) != "survived":
            sys.exit(f"{group}: a test of {needed} fails without a mutation: mend it first")
        limit = 5 + int(2 * (children_seconds() - before))
        for mutation in waiting:
            began = time.monotonic()
            known[mutation.name] = outcome = survives(mutation, mutation.tests, limit)
            row = {"name": mutation.name, "outcome": outcome}
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{time.monotonic() - began:5.1f} s {outcome}: {mutation.name}", flush=True)
    if not options.groups:
        (HERE / "report.md").write_text(report(chosen, known, options), encoding="utf-8")


def sample(group: str, size: int, seed: int) -> list[Mutation]:
    """A random sample of a group's mutations; a larger one of the same seed holds a smaller one."""
    if group == "kept":
        return kept()
    modules, tests = GROUPS[group].modules, GROUPS[group].tests
    everything = [one for module in modules for one in generated(module, tests)]
    random.Random(f"{seed}/{group}").shuffle(everything)
    return everything[:size]


def read(file: Path) -> dict[str, str]:
    """The last outcome of each mutation."""
    if not file.is_file():
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: row["outcome"] for row in rows}


def report(
    chosen: dict[str, list[Mutation]], known: dict[str, str], options: argparse.Namespace
) -> str:
    """A table of the groups, then what survived."""
    reasons = json.loads((HERE / "equivalent.json").read_text(encoding="utf-8"))
    lines = [
        "# Mutations", "",
        "Written by `python tests/mutations`. At most"
        f" {options.sample} points of each group, drawn with seed {options.seed}; `kept` are the",
        "lines of mutations.jsonl. Killed: a fast test fails. Score: killed of all;",
        "without equivalent: those left out that change no result (equivalent.json says why).", "",
        "| group | tried | killed | equivalent | score | without equivalent |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    survivors = []
    chosen = {group: [one for one in rows if one.name in known] for group, rows in chosen.items()}
    generated_rows = [one for group, rows in chosen.items() if group != "kept" for one in rows]
    for group, rows in {**chosen, "all but kept": generated_rows}.items():
        left = [one for one in rows if known[one.name] == "survived"]
        same = sum(one.name in reasons for one in left)
        tried, killed = len(rows), len(rows) - len(left)
        parts = (100 * killed / max(1, count) for count in (tried, tried - same))
        scores = " | ".join(f"{part:.1f} %" for part in parts)
        lines.append(f"| {group} | {tried} | {killed} | {same} | {scores} |")
        if group != "all but kept":
            survivors += [(group, one) for one in left]
    lines += ["", "## Survivors", ""]
    for group, one in survivors:
        reason = reasons.get(one.name)
        verdict = f"equivalent: {reason}" if reason else "not killed"
        lines.append(f"- {group}, `{one.file}:{one.line}`: `{one.name}`: {verdict}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
