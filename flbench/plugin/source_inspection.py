"""Source inspection: find, parse and hash the source of a module without importing it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

OWN = "own_source."
"""What names of modules begin with that are none, but end with the hash of some object's code."""


def source_path(module: str) -> Path | None:
    """The source file of a module; None where it has none, or where only an import would find it.

    Raises:
        OSError: a package that holds it cannot be read.
    """
    root, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError, AttributeError):
        return None
    for part in parts:
        if spec is None or (spec.origin and _finds_its_parts(Path(spec.origin))):
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations or ()))
    own = Path(spec.origin) if spec is not None and spec.origin else None
    return own if own is not None and own.suffix == ".py" and own.is_file() else None


def _finds_its_parts(package: Path) -> bool:
    """Whether a package may look for its submodules itself; of compiled ones nobody knows."""
    return not package.is_file() or b"__path__" in package.read_bytes()


def tree(path: Path) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        SyntaxError: it is not Python, or not text.
        OSError: it cannot be read.
    """
    return _tree(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _tree(path: Path, changed: int) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a compiler's, of its style
        try:
            return ast.parse(path.read_bytes(), path.name)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or type(error).__name__) from None


def source_hash(module: str) -> str:
    """A hash of a module's source files, 12 hex digits; "" where it has none.

    The files are its own, those of its packages, and those that these import of the same top-level
    package, or of another one of the same distribution.
    """
    roots, todo, done = _beside(module.partition(".")[0]), [module], set[str]()
    files = set[Path]()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        above = name.rpartition(".")[0]
        todo += [above] if above else []
        try:
            own = source_path(name)
            if own is not None:
                files.add(own)
                package = name if own.name == "__init__.py" else above
                names = _imports(own, own.stat().st_mtime_ns, package)
                todo += [one for one in names if one.split(".")[0] in roots]
        except (SyntaxError, OSError):
            continue
    digest = hashlib.sha256()
    for text in sorted(hashlib.sha256(path.read_bytes()).digest() for path in files):
        digest.update(text)
    return digest.hexdigest()[:12] if files else ""


@lru_cache(maxsize=256)
def _beside(root: str) -> frozenset[str]:
    """The top-level packages of the distributions that offer one of them.

    The core is none of them: its own digest is in every result.
    """
    if root in ("flbench", "flbench_plugins"):
        return frozenset({root})
    offered = packages_distributions()
    own = set(offered.get(root, ()))
    names = {name for name, by in offered.items() if own & set(by)}
    return frozenset({root, *names} - {"flbench"})


_LOADED: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()


def loaded_source(module: str) -> str:
    """The hash of a module as it was when this process first asked: of the code that runs.

    The files may change afterwards; what is imported does not.
    """
    if module.startswith(OWN):
        return module.removeprefix(OWN)
    loaded = sys.modules.get(module)
    if loaded is None:
        return source_hash(module)
    if loaded not in _LOADED:
        _LOADED[loaded] = source_hash(module)
    return _LOADED[loaded]


def class_flag(module: str, name: str, flag: str) -> bool | None:
    """What a class says of itself by a constant in its body, or in that of a base beside it.

    A field of a dataclass is a parameter, and says nothing of the class.

    Returns:
        False where no class says anything; None where it cannot be read.
    """
    path = source_path(module)
    try:
        found = tree(path).body if path is not None else []
    except (SyntaxError, OSError):
        return None
    classes = {node.name: node for node in found if isinstance(node, ast.ClassDef)}
    return _flag(classes, name, flag) if name in classes else None


def _flag(classes: Mapping[str, ast.ClassDef], name: str, flag: str) -> bool | None:
    """What a class of a module says, else the first of its bases that says something."""
    for node in classes[name].body:
        given: list[ast.expr] = []
        if isinstance(node, ast.AnnAssign):
            given = [node.target]
        elif isinstance(node, ast.Assign):
            given = node.targets
        own = {getattr(node, "name", None), *(getattr(one, "id", None) for one in given)}
        if flag not in own:
            continue
        is_field = isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.dump(node.annotation)
        value = getattr(node, "value", None)
        return bool(value.value) if isinstance(value, ast.Constant) and not is_field else None
    for base in classes[name].bases:
        above = getattr(base, "id", "")
        said = _flag(classes, above, flag) if above in classes else None
        if said is not False:
            return said
    return False


@lru_cache(maxsize=256)
def _imports(path: Path, changed: int, package: str) -> tuple[str, ...]:
    """Names that a module of a package imports, at any place; see `_needed`."""
    return tuple(dict.fromkeys(_needed(_tree(path, changed), package)))


def _needed(module: ast.Module, package: str) -> Iterator[str]:
    """Names that a module imports, at any place; some are objects rather than modules."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = imported_from(node, package)
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)


def imported_from(node: ast.ImportFrom, package: str) -> str:
    """The full name of the module that a statement of a package's module imports from.

    Example:
        >>> imported_from(ast.parse("from ..base import Base").body[0], "acme.methods")
        'acme.base'
    """
    names = package.split(".")
    up = names[: len(names) - max(0, node.level - 1)] if node.level else []
    return ".".join(filter(None, [*up, node.module or ""]))
