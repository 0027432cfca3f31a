"""Registry: what is installed, read from package metadata. Listing imports no plugin.

Methods, suites, data sets, networks, partitions, metrics, studies, papers and sinks are entry
points of the groups `flbench.methods`, `flbench.suites`, `flbench.datasets`, `flbench.models`,
`flbench.partitions`, `flbench.metrics`, `flbench.studies`, `flbench.papers` and `flbench.sinks`.
The built-in ones are found in the same way as those of other packages.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flbench.errors import PluginError, UnknownName, UserError, in_one_line
from flbench.plugin import source_inspection
from flbench.plugin.isolation import SHARED, IsolatedPlugin

KINDS = (
    "methods", "suites", "datasets", "models", "partitions", "metrics", "studies", "papers",
    "sinks",
)  # fmt: skip
NAMES = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
"""Names that can be typed, and that can be part of a file's name."""


@dataclass(frozen=True)
class Entry:
    """One installed name, and the package that offers it.

    Attributes:
        kind: one of KINDS.
        value: "module:object".
        rivals: other packages that offer the same name, with their versions.

    Example:
        >>> entry = Entry("methods", "acme", "acme.methods:Acme [gpu]", "acme-fl", "1.0")
        >>> print(entry, entry.module(), entry.target())
        method 'acme' of acme-fl 1.0 acme.methods Acme
    """

    kind: str
    name: str
    value: str
    distribution: str
    version: str
    rivals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{one_of(self.kind)} '{self.name}' of {self.distribution} {self.version}"

    def module(self) -> str:
        """The module the object is looked up in; "" where the value names none."""
        return self._part("module")

    @property
    def is_core(self) -> bool:
        """Whether it is in the core, whose digest covers it (`run/core_digest.py`)."""
        return self.module().partition(".")[0] == "flbench"

    def target(self) -> str:
        """The object within the module; "" where the value names none."""
        return self._part("attr")

    def packages(self) -> str:
        """All packages that offer the name."""
        return " and ".join((f"{self.distribution} {self.version}", *self.rivals))

    def _part(self, group: str) -> str:
        found = EntryPoint.pattern.fullmatch(self.value)
        return (found[group] or "") if found else ""


OwnObjects = Mapping[tuple[str, str], tuple[Entry, object]]
"""Kind and name -> entry and object: what a person gives instead of an installed name."""
_OWN: ContextVar[OwnObjects] = ContextVar("own objects", default=MappingProxyType({}))


@contextmanager
def offering(own: OwnObjects) -> Iterator[None]:
    """A block in which objects of a person's own are found as installed ones are."""
    token = _OWN.set({**_OWN.get(), **own})
    try:
        yield
    finally:
        _OWN.reset(token)


def one_of(kind: str) -> str:
    """The singular of a kind.

    Example:
        >>> one_of("methods"), one_of("studies")
        ('method', 'study')
    """
    return "study" if kind == "studies" else kind.removesuffix("s")


def _stamp() -> tuple[tuple[str, int], ...]:
    """The folders of `sys.path`, and when each of them last changed."""
    places = (Path(place or ".") for place in sys.path)
    return tuple((str(p), p.stat().st_mtime_ns) for p in places if p.exists())


@lru_cache(maxsize=4)
def _points(stamp: object, installed: Callable[[], Iterable[Distribution]]) -> list[EntryPoint]:
    """The entry points of all packages for flbench; read again only when a folder has changed."""
    found, first = list[EntryPoint](), dict[str, Path]()
    for package in installed():
        points = [point for point in _offered(package) if point.group.startswith("flbench.")]
        if points:
            (name, _), place = _called(package), Path(str(package.locate_file("")))
            if first.setdefault(name, place) == place:
                found += points  # otherwise Python imports the one in the first folder
    return found


def _offered(package: Distribution) -> list[EntryPoint]:
    """A package's entry points; read line by line where one of them cannot be parsed."""
    try:
        return list(package.entry_points)
    except (TypeError, ValueError):
        return list(_by_line(package))


def _by_line(package: Distribution) -> Iterator[EntryPoint]:
    try:
        lines = (package.read_text("entry_points.txt") or "").splitlines()
    except ValueError:
        return  # it is not text
    section = ""
    for line in map(str.strip, lines):
        name, _, value = map(str.strip, line.partition("="))
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            point = EntryPoint(name, value, section)
            vars(point).update(dist=package)
            yield point


@lru_cache(maxsize=64)
def _called(package: Distribution | None) -> tuple[str, str]:
    """A package's name and version; "?" and "" where its metadata lack them."""
    if package is None:
        return "?", "?"
    try:
        about = package.metadata
    except (TypeError, ValueError):  # it has none, or they are not text
        return "?", ""
    (name, *_), (version, *_) = (about.get_all(key) or [""] for key in ("Name", "Version"))
    return name or "?", version


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of a group; unlike Python's function, it accepts broken metadata."""
    return [point for point in _points(_stamp(), distributions) if point.group == group]


def entries(kind: str) -> dict[str, Entry]:
    """Everything installed of one kind, by name, sorted; with what is `offering`."""
    found: dict[str, Entry] = {}
    for point in entry_points(group=f"flbench.{kind}"):
        entry = Entry(kind, point.name, point.value, *_called(point.dist))
        other = found.setdefault(point.name, entry)
        if other is not entry and entry != replace(other, rivals=()):
            rivals = dict.fromkeys((*other.rivals, f"{entry.distribution} {entry.version}"))
            found[point.name] = replace(other, rivals=tuple(rivals))
    found |= {name: entry for (of, name), (entry, _) in _OWN.get().items() if of == kind}
    return dict(sorted(found.items()))


def find(kind: str, name: str) -> Entry:
    """The entry of one name.

    Raises:
        UnknownName: no package offers it; the message lists what is installed.
        UserError: two packages offer it.
    """
    known = entries(kind)
    if name not in known:
        raise UnknownName(one_of(kind), name, known)
    entry = known[name]
    if entry.rivals:
        raise UserError(
            f"two packages offer the {one_of(kind)} '{name}': {entry.packages()}; uninstall one"
        )
    return entry


def diagnose(entry: Entry) -> str:
    """Why a name cannot be used, in one line; "" where its metadata are sound."""
    if not NAMES.fullmatch(entry.name):
        return f"its name is '{entry.name}', expected letters, digits and . _ -"
    if entry.rivals:
        return f"two packages offer it: {entry.packages()}; uninstall one"
    if not entry.module() or not entry.target():
        return f"its entry point is '{entry.value}', expected 'module:object'"
    if not _is_version(entry.version):
        return f"its package's version is '{entry.version}', expected one such as 1.0"
    return ""


def _is_version(text: str) -> bool:
    """Whether it is a version; "?" stands for an entry that came with no package."""
    from packaging.version import InvalidVersion, Version

    try:
        return text == "?" or bool(Version(text))
    except (InvalidVersion, TypeError):
        return False


def load_entry(entry: Entry) -> Any:  # noqa: ANN401 - whatever the entry point names
    """Import the object; this is the first time that the plugin's code runs.

    Raises:
        PluginError: the import fails, or the metadata are wrong.
    """
    if (own := _OWN.get().get((entry.kind, entry.name))) and own[0] == entry:
        return own[1]
    if reason := diagnose(entry):
        raise PluginError(f"{entry}: {reason}")
    try:
        # Libraries draw from generators when they are first imported.
        with IsolatedPlugin(entry.name).acting(f"importing {entry.name}", quiet=SHARED):
            return EntryPoint(entry.name, entry.value, f"flbench.{entry.kind}").load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit as well
        raise PluginError(
            f"{entry} cannot be imported from {entry.value}: {in_one_line(error)};"
            f" upgrade or uninstall {entry.distribution}"
        ) from error


def source_file(entry: Entry) -> Path | None:
    """The file of an entry's module, found without importing it."""
    return source_inspection.source_path(entry.module())


def summary_of(entry: Entry) -> str:
    """A suite's summary, or the first line of a docstring, read without importing it."""
    try:
        return _summary(entry)
    except (OSError, ValueError, SyntaxError):
        return ""


def superseded_by(entry: Entry) -> str:
    """The suite that takes the place of a suite; "" = none, or the entry is of another kind."""
    path = source_file(entry) if entry.kind == "suites" else None
    if path is None:
        return ""
    try:
        return str(_table(path.with_name(f"{entry.name}.toml")).get("superseded_by", ""))
    except (OSError, ValueError):
        return ""


def _table(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8-sig"))


def _summary(entry: Entry) -> str:
    path = source_file(entry)
    if path is None:
        return ""
    settings = path.with_name(f"{entry.name}.toml")
    if entry.kind in ("suites", "papers") or (entry.kind == "studies" and settings.is_file()):
        return str(_table(settings).get("summary", ""))
    tree = source_inspection.tree(path)
    nodes = [n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    found = next((node for node in nodes if node.name == entry.target()), None)
    text = (ast.get_docstring(found) if found else None) or ast.get_docstring(tree) or ""
    return text.partition("\n")[0]
