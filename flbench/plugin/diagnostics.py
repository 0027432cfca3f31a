"""Broken: what is wrong with an installed name, found without importing anybody's code.

Only what is certain is said: where a text leaves something open, nothing is claimed.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.plugin import source_inspection
from flbench.plugin.entry import named
from flbench.plugin.source_inspection import ModuleFiles, Undetermined

if TYPE_CHECKING:
    from flbench.plugin.entry import Entry


NAMES = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
"""Names that can be typed, and that can be part of a file's."""


def diagnose(entry: Entry) -> str:
    """Why a name cannot be used, in one line; "" where nothing is known to be wrong with it."""
    return next(_complaints(entry), "")


def _complaints(entry: Entry) -> Iterator[str]:
    """What is wrong with an entry, what is found first first."""
    if refusal := refused(entry):
        yield refusal
    module, colon, target = named(entry.value)
    if not module or not colon:
        yield f"its entry point is '{entry.value}', expected 'module:object'"
        return
    try:
        where = source_inspection.place(module)
        trees = [source_inspection.tree(path) for path in where.files]
    except ModuleNotFoundError as error:
        yield str(error)
        return
    except SyntaxError as error:
        yield _syntax(error)
        return
    except (OSError, Undetermined):
        return
    for found, path in zip(trees, where.files, strict=True):
        yield from lost_imports(found, path)
    if where.own is None:
        return
    yield from _text_of(entry, where)
    yield from _object_of(entry.kind, trees[-1], where.own, target.partition(".")[0])


def refused(entry: Entry) -> str:
    """Why a name is not even to be imported: nobody could tell whose code it is."""
    if not NAMES.fullmatch(entry.name):
        return f"its name is '{entry.name}', expected letters, digits and . _ -"
    if entry.rivals:
        packages = " and ".join((f"{entry.distribution} {entry.version}", *entry.rivals))
        return f"two packages offer it: {packages}; uninstall one"
    return untrue_version(entry)


def untrue_version(entry: Entry) -> str:
    """Why a package's version tells nothing: it is none, or the module says another."""
    from packaging.version import InvalidVersion, Version

    if entry.version == "?":  # it came with no package
        return ""
    try:
        version = Version(entry.version)
    except (InvalidVersion, TypeError):
        return f"its package's version is '{entry.version}', expected one such as 1.0"
    try:
        where = source_inspection.place(named(entry.value)[0] or ".")
        told = [
            (path, source_inspection.constant(source_inspection.tree(path), "__version__"))
            for path in where.files
        ]
    except (OSError, SyntaxError, ImportError, Undetermined):
        return ""
    for path, text in told:
        try:
            if text is not None and Version(text) != version:
                raise InvalidVersion
        except InvalidVersion:
            return (
                f"its package says version {entry.version}, {_short(path)} says '{text}': make them"
                " one and install it again"
            )
    return ""


def _short(path: Path) -> str:
    """A file as a person finds it: with its folder where it is a package's."""
    return f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name


def _syntax(error: SyntaxError) -> str:
    line = f", line {error.lineno}" if error.lineno else ""
    return f"{error.filename or 'its module'}{line}: {' '.join(str(error.msg).split())}"


def near(name: str, known: Iterable[str]) -> str:
    """A question after the nearest name, if one is near."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


# --- modules ----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def lost_imports(found: ast.Module, path: Path) -> tuple[str, ...]:
    """Imports of what is not installed, or of what this flbench does not offer, each in a line."""
    if any(_finds_modules(node) for node in ast.walk(found)):
        return ()
    complaints: list[str] = []
    for statement in source_inspection.imported(found):
        if isinstance(statement, ast.Import):
            modules = [alias.name for alias in statement.names]
        else:
            modules = [statement.module or ""] if statement.level == 0 else []
        for root in (module.partition(".")[0] for module in modules):
            try:
                if not source_inspection.is_there(root):
                    complaints.append(f"{_short(path)} imports {root}, which is not installed")
            except Undetermined:
                continue
        if modules == ["flbench"] and isinstance(statement, ast.ImportFrom):
            complaints += _not_offered([alias.name for alias in statement.names])
    return tuple(complaints)


def _finds_modules(node: ast.AST) -> bool:
    """Whether code touches `sys.path`, `sys.modules` or `sys.meta_path`."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("path", "modules", "meta_path")
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    )


def _not_offered(names: Iterable[str]) -> Iterator[str]:
    flbench = importlib.import_module("flbench")
    for name in names:
        inside = Path(str(flbench.__file__)).parent
        there = (inside / f"{name}.py").is_file() or (inside / name).is_dir()
        if name != "*" and name not in flbench.__all__ and not there:
            yield f"flbench {flbench.__version__} has no '{name}'{near(name, flbench.__all__)}"


def _text_of(entry: Entry, where: ModuleFiles) -> Iterator[str]:
    """What is wrong with the TOML beside the module, if the name stands for one."""
    assert where.own is not None
    path = where.own.with_name(f"{entry.name}.toml")
    if entry.kind in ("suites", "papers", "studies") and path.is_file():
        try:
            tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            yield f"{path.name}: {' '.join(str(error).split())}"


# --- objects ----------------------------------------------------------------------------------


def _object_of(kind: str, found: ast.Module, path: Path, name: str) -> Iterator[str]:
    """What is wrong with the object itself."""
    try:
        known = source_inspection.names(found)
    except Undetermined:
        return
    inside = path.name == "__init__.py" and any(path.parent.glob(f"{name}*"))
    if name not in known and not inside and name not in ("__doc__", "__name__", "__file__"):
        yield f"{_short(path)} defines no '{name}'{near(name, known)}"
    if kind in ("methods", "sinks") and len(known.get(name, ())) == 1:
        yield from _misspelt(found, known[name][0])
    if kind == "methods" and len(known.get(name, ())) == 1 and _is_thawed(found, known[name][0]):
        yield f"{name} is no frozen dataclass: write @dataclass(frozen=True) above its class"


def lineage(found: ast.Module, name: str) -> Iterator[ast.ClassDef]:
    """A class and its ancestors within the module, nearest first."""
    known = {node.name: node for node in found.body if isinstance(node, ast.ClassDef)}
    todo = [name]
    while todo:
        node = known.pop(todo.pop(0), None)
        if node is not None:
            yield node
            todo = [base.id for base in node.bases if isinstance(base, ast.Name)] + todo


def _is_thawed(found: ast.Module, target: ast.stmt) -> bool:
    """Whether a method is certainly no frozen dataclass."""
    if isinstance(target, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return not target.decorator_list
    if not isinstance(target, ast.ClassDef) or target.keywords:
        return False
    if not target.decorator_list:
        return all(ast.unparse(base) == "object" for base in target.bases)
    (mark, *others) = target.decorator_list
    if others or not _is_of(found, mark, "dataclasses", "dataclass"):
        return False
    given = mark.keywords if isinstance(mark, ast.Call) else []
    frozen = [option.value for option in given if option.arg in ("frozen", None)]
    return not frozen or (isinstance(frozen[0], ast.Constant) and not frozen[0].value)


def _is_of(found: ast.Module, mark: ast.expr, module: str, name: str) -> bool:
    """Whether a decorator is certainly a name of a module: imported from it, or its attribute."""
    mark = mark.func if isinstance(mark, ast.Call) else mark
    for statement in source_inspection.imported(found):
        for alias in statement.names:
            called = alias.asname or alias.name
            if isinstance(statement, ast.ImportFrom):
                of_it = (statement.module, statement.level, alias.name) == (module, 0, name)
                same = isinstance(mark, ast.Name) and mark.id == called
            else:
                of_it = alias.name == module
                same = ast.unparse(mark) == f"{called}.{name}"
            if of_it and same:
                return True
    return False


# --- hooks ------------------------------------------------------------------------------------


@cache
def hooks() -> dict[str, tuple[str, ...]]:
    """Every hook with its arguments, read from the text of their specifications."""
    found = source_inspection.tree(Path(__file__).parents[1] / "core" / "hookspecs.py")
    return {
        node.name: tuple(argument.arg for argument in node.args.args)
        for node in found.body
        if isinstance(node, ast.FunctionDef)
        and any("hookspec" in ast.unparse(mark) for mark in node.decorator_list)
    }


def _misspelt(found: ast.Module, target: ast.stmt) -> Iterator[str]:
    """Methods marked as hooks that flbench does not have, or with arguments it does not give."""
    if not isinstance(target, ast.ClassDef):
        return
    for function in (node for node in found.body if isinstance(node, ast.FunctionDef)):
        first = [argument.arg for argument in function.args.args[:1]]
        if first == ["self"] and any(
            _is_of(found, m, "flbench", "hookimpl") for m in function.decorator_list
        ):
            yield f"the hook '{function.name}' stands outside the class {target.name}: indent it"
    functions: dict[str, ast.FunctionDef] = {}
    for node in reversed(list(lineage(found, target.name))):  # what the class itself says counts
        functions |= {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    for function in functions.values():
        marks = [m for m in function.decorator_list if _is_of(found, m, "flbench", "hookimpl")]
        if marks:
            yield from _unlike_its_hook(function, marks[0])


def _unlike_its_hook(function: ast.FunctionDef, mark: ast.expr) -> Iterator[str]:
    given = mark.keywords if isinstance(mark, ast.Call) else []
    options = {option.arg: getattr(option.value, "value", Undetermined) for option in given}
    hook = options.get("specname") or function.name
    if not isinstance(hook, str) or None in options or options.get("optionalhook"):
        return
    if hook not in hooks():
        yield f"there is no hook '{hook}'{near(hook, hooks())}"
        return
    static = any(ast.unparse(m) == "staticmethod" for m in function.decorator_list)
    arguments = [*function.args.posonlyargs, *function.args.args][0 if static else 1 :]
    needed = arguments[: len(arguments) - len(function.args.defaults)]
    for argument in needed:
        if argument.arg not in hooks()[hook]:
            known = ", ".join(hooks()[hook])
            close = near(argument.arg, hooks()[hook])
            yield f"{hook} takes '{argument.arg}'{close or f'; expected some of: {known}'}"
