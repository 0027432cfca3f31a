"""Sources: what the text of an installed module says, read without importing it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


class Undetermined(Exception):
    """The text does not tell; only an import would."""


class ModuleFiles(NamedTuple):
    """Files that run when a module is imported.

    Attributes:
        packages: those of the packages it lies in, outermost first.
        own: its own; None where it has none that can be read.
    """

    packages: tuple[Path, ...]
    own: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return self.packages if self.own is None else (*self.packages, self.own)


def is_there(root: str) -> bool:
    """Whether a top-level module can be found; nothing is imported.

    Raises:
        Unclear: whoever finds modules cannot say.
    """
    try:
        return importlib.util.find_spec(root) is not None
    except (ImportError, ValueError, AttributeError):
        raise Undetermined(root) from None


def place(module: str) -> ModuleFiles:
    """Where a module lies.

    Raises:
        ModuleNotFoundError: nowhere.
        Unclear: it has no text, or its packages decide when they are imported.
    """
    root, *rest = module.split(".")
    if not is_there(root):
        raise ModuleNotFoundError(f"there is no module '{root}'")
    spec = importlib.util.find_spec(root)
    assert spec is not None, "it is there"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    own = Path(spec.origin) if spec.origin else None
    if own is None and not folders:
        raise Undetermined(module)
    packages: tuple[Path, ...] = ()
    for depth, part in enumerate(rest, start=2):
        if own is not None:
            if not own.is_file() or "__path__" in _text(own):
                raise Undetermined(module)
            packages = (*packages, own)
        own, folders = _within(".".join([root, *rest][:depth]), part, folders)
    if own is not None and (own.suffix != ".py" or not own.is_file()):
        raise Undetermined(module)
    return ModuleFiles(packages, own)


def _within(module: str, part: str, folders: Iterable[Path]) -> tuple[Path | None, list[Path]]:
    """A module's own file, and where its parts are looked for."""
    namespace = []
    for folder in folders:
        if (folder / part / "__init__.py").is_file():
            return folder / part / "__init__.py", [folder / part]
        if (folder / f"{part}.py").is_file():
            return folder / f"{part}.py", []
        if any(folder.glob(f"{part}.*")) or any(folder.glob(f"{part}/__init__.*")):
            raise Undetermined(module)  # compiled
        if (folder / part).is_dir():
            namespace.append(folder / part)
    if not namespace:
        raise ModuleNotFoundError(f"there is no module '{module}'")
    return None, namespace


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def tree(path: Path) -> ast.Module:
    """A file's text, parsed as Python would.

    Raises:
        SyntaxError: it is no Python, or no text; says where.
        OSError: it cannot be read.
    """
    return _tree(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _tree(path: Path, changed: int) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a text could do better
        try:
            return ast.parse(path.read_bytes(), path.name)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or type(error).__name__) from None


def names(module: ast.Module) -> dict[str, list[ast.stmt]]:
    """What a module's statements bind when they run, and the statements that do.

    Raises:
        Unclear: some of it cannot be seen.
    """
    found = _names(module)
    if found is None:
        raise Undetermined("names")
    return found


UNSEEN = {"globals", "vars", "exec", "setattr"}
"""What may bind names that stand nowhere."""


@lru_cache(maxsize=256)
def _names(module: ast.Module) -> dict[str, list[ast.stmt]] | None:
    if any(isinstance(node, ast.Name) and node.id in UNSEEN for node in ast.walk(module)):
        return None
    found: dict[str, list[ast.stmt]] = {}
    for statement in _statements(module.body):
        for name in _bound(statement):
            found.setdefault(name, []).append(statement)
    return None if {"*", "__getattr__"} & {*found} else found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """All that run as part of the module: not those of functions and classes."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, field, ()))
            for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                yield from _statements(part.body)


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            whole = isinstance(statement, ast.ImportFrom)
            yield alias.asname or (alias.name if whole else alias.name.partition(".")[0])
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                yield node.name


def constant(module: ast.Module, name: str) -> str | None:
    """The text that a module assigns to a name once and for all; None where it does not say."""
    try:
        found = names(module).get(name, [])
    except Undetermined:
        return None
    if len(found) != 1 or not isinstance(found[0], (ast.Assign, ast.AnnAssign)):
        return None
    value = found[0].value
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def imported(module: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports that run whatever happens: those that nothing surrounds."""
    for statement in module.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement


def source_hash(module: str) -> str:
    """A hash of the files that a module is made of, 12 hex digits; "" where it has none.

    They are its own, those of its packages, and those of the same root that these import.
    """
    root, todo, done = module.partition(".")[0], [module], set[str]()
    files = set[Path]()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        above = name.rpartition(".")[0]
        todo += [above] if above else []
        try:
            own = place(name).own
            if own is not None:
                files.add(own)
                package = name if own.name == "__init__.py" else above
                todo += [one for one in _needed(tree(own), package) if one.split(".")[0] == root]
        except (Undetermined, ImportError, SyntaxError, OSError):
            continue
    digest = hashlib.sha256()
    for text in sorted(hashlib.sha256(path.read_bytes()).digest() for path in files):
        digest.update(text)
    return digest.hexdigest()[:12] if files else ""


def _needed(module: ast.Module, package: str) -> Iterator[str]:
    """Names of modules that a module may import, wherever; some are no modules but objects."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - max(0, node.level - 1)]
            start = ".".join(filter(None, [*(up if node.level else ()), node.module or ""]))
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)
