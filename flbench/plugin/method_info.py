"""Method info: what the source of a method says, read without importing it.

A method's class may give its `paper`, `year` and `kind` (global, personalised or clustered) as
constants. Its hooks, parameters and docstrings are read as well; what departs from the paper is a
constant `departs`, or what follows "Departure:" or "Departures:" in a paragraph of the module's
docstring. `flbench list methods`, the leaderboard and the documentation are made from this.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flbench.plugin.registry import Entry, entries, source_file, summary_of
from flbench.plugin.source_inspection import imported_from, source_path, tree


@dataclass(frozen=True)
class WrittenParameter:
    """One parameter of a method: its type and default as written, and what it means."""

    name: str
    type: str
    default: str
    doc: str


@dataclass(frozen=True)
class MethodInfo:
    """What the source of a method says; "" and 0 where it says nothing.

    `across_networks`: whether it runs where clients have different networks. `departs`: in what it
    is not its paper's. `tasks`: those that it declares; () = it says nothing.
    """

    name: str
    summary: str
    paper: str
    year: int
    kind: str
    hooks: tuple[str, ...]
    parameters: tuple[WrittenParameter, ...]
    presets: Mapping[str, Mapping[str, object]]
    text: str
    package: str
    across_networks: bool = False
    departs: str = ""
    tasks: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The paper, with the year if the paper's text does not have it."""
        known = not self.year or str(self.year) in self.paper
        return self.paper if known else f"{self.paper} ({self.year})".strip()


def method_infos() -> list[MethodInfo]:
    """What the source says of all installed methods, by name."""
    return [method_info(entry) for entry in entries("methods").values()]


def method_info(entry: Entry) -> MethodInfo:
    """What the source says of one method; empty where its source cannot be read."""
    path = source_file(entry)
    try:
        changed = path.stat().st_mtime_ns if path else 0
    except OSError:
        changed = 0
    return _read(entry, path, changed)


@lru_cache(maxsize=256)
def _read(entry: Entry, path: Path | None, changed: int) -> MethodInfo:
    """What a file says of a method; `changed` is the time of its last change."""
    found = _tree(path)
    constants: dict[str, object] = {}
    parameters: dict[str, WrittenParameter] = {}
    hooks: dict[str, str] = {}
    classes = list(_lineage(path, entry.module(), entry.target()))
    for node in reversed(classes):  # the class itself last: it overrides
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                hooks[item.name] = _hook(item)
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                if "ClassVar" in ast.unparse(item.annotation):
                    constants[item.target.id] = _constant(item.value)
                else:
                    parameters[item.target.id] = _parameter(item.target.id, item)
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                constants[item.targets[0].id] = _constant(item.value)
    paper, year, kind, presets, departs = (
        constants.get(name) for name in ("paper", "year", "kind", "presets", "departs")
    )
    text = (ast.get_docstring(found) or "") if classes else ""
    return MethodInfo(
        name=entry.name,
        summary=summary_of(entry),
        paper=paper if isinstance(paper, str) else "",
        year=year if isinstance(year, int) else 0,
        kind=kind if isinstance(kind, str) else "",
        hooks=tuple(filter(None, hooks.values())),
        parameters=tuple(parameters.values()),
        presets=presets if isinstance(presets, dict) else {},
        text=text,
        package=f"{entry.distribution} {entry.version}",
        across_networks=constants.get("across_networks") is True,
        departs=departs if isinstance(departs, str) else departures(text),
        tasks=tasks if isinstance(tasks := constants.get("tasks"), tuple) else (),
    )


def departures(text: str) -> str:
    r"""What departs from the paper, as a documentation says it, on one line; "" = it says nothing.

    Example:
        >>> departures("An example.\n\nIt is fast. Departures: no mask;\none step.\n\nMore.")
        'no mask; one step.'
    """
    found = re.findall(r"\bDepartures?: (.+?)(?=\n\s*\n|\Z)", text, flags=re.DOTALL)
    return " ".join(" ".join(found).split())


def _tree(path: Path | None) -> ast.Module:
    """The source, parsed; an empty module where it cannot be read."""
    try:
        return tree(path) if path else ast.parse("")
    except (OSError, SyntaxError):
        return ast.parse("")


def _lineage(path: Path | None, module: str, name: str) -> Iterator[ast.ClassDef]:
    """A class and its ancestors in the modules of its package, nearest first."""
    todo, done = [(path, module, name)], set[tuple[str, str]]()
    while todo:
        path, module, name = todo.pop(0)
        found = _tree(path)
        known = {node.name: node for node in found.body if isinstance(node, ast.ClassDef)}
        if name in known and (module, name) not in done:
            done.add((module, name))
            yield known[name]
            bases = (_place(base, path, module, known) for base in known[name].bases)
            todo = [place for place in bases if place] + todo


def _place(
    base: ast.expr, path: Path | None, module: str, known: Collection[str]
) -> tuple[Path | None, str, str] | None:
    """The file, the module and the name of a base class; None = of another package."""
    start, _, rest = ast.unparse(base).partition(".")
    if start in known and not rest:
        return path, module, start
    root = module.partition(".")[0]
    for home, _, name in (one.rpartition(".") for one in _meanings(start, rest, path, module)):
        if home.partition(".")[0] == root:
            return source_path(home), home, name
    return None


def _meanings(start: str, rest: str, path: Path | None, module: str) -> Iterator[str]:
    """Full names that a name may have in a module, by its imports."""
    is_package = path is not None and path.name == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom):
            home = imported_from(node, package)
            names = {alias.asname or alias.name: alias.name for alias in node.names}
            if start in names:
                yield ".".join(filter(None, [home, names[start], rest]))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname == start:
                    yield f"{alias.name}.{rest}"
                elif not alias.asname and alias.name.partition(".")[0] == start:
                    yield f"{start}.{rest}"


def _hook(function: ast.FunctionDef) -> str:
    """The hook that a function of the class answers; "" = none."""
    for mark in function.decorator_list:
        if "hookimpl" in ast.unparse(mark):
            given = mark.keywords if isinstance(mark, ast.Call) else []
            other = [_constant(option.value) for option in given if option.arg == "specname"]
            return str(other[0]) if other and other[0] else function.name
    return ""


def _constant(value: ast.expr | None) -> object:
    try:
        return ast.literal_eval(value) if value is not None else None
    except ValueError:
        return None


def _parameter(name: str, item: ast.AnnAssign) -> WrittenParameter:
    """A dataclass field; of `Annotated[type, bounds, "doc"]` the type and the doc."""
    kind, doc = item.annotation, ""
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value).endswith("Annotated"):
        parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        notes = [_constant(part) for part in parts[1:]]
        doc = " ".join(note for note in notes if isinstance(note, str))
        kind = parts[0]
    default = ast.unparse(item.value) if item.value else ""
    return WrittenParameter(name, ast.unparse(kind), default, doc)
