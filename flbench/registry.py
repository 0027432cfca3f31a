"""Registry: what is installed, read from package metadata. Listing imports nobody's code.

Methods, suites, data sets, networks, partitions, studies, papers and sinks are entry points of the
groups `flbench.methods`, `flbench.suites`, `flbench.datasets`, `flbench.models`,
`flbench.partitions`, `flbench.studies`, `flbench.papers` and `flbench.sinks`; the built-in ones
come in through the same door as strangers'.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import Any

from flbench import sources
from flbench.broken import named, reason, refused
from flbench.errors import PluginError, UnknownName, UserError
from flbench.strangers import Guest, in_one_line
from flbench.world import SHARED

KINDS = ("methods", "suites", "datasets", "models", "partitions", "studies", "papers", "sinks")


@dataclass(frozen=True)
class Entry:
    """One installed name.

    Attributes:
        kind: one of KINDS.
        name: what a person types.
        value: "module:object".
        distribution: the package that offers it.
        version: that package's version.
        rivals: other packages that offer the same name, with their versions.
    """

    kind: str
    name: str
    value: str
    distribution: str
    version: str
    rivals: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{one_of(self.kind)} '{self.name}' of {self.distribution} {self.version}"

    def load(self) -> Any:  # noqa: ANN401 - whatever the entry point names
        """Import the object; only now does the plugin's code run, as a guest.

        Raises:
            PluginError: the import fails, or nobody could tell whose code it is.
        """
        mend = f"upgrade or uninstall {self.distribution}"
        if refusal := refused(self):
            raise PluginError(f"{self}: {refusal}")
        try:
            # Libraries draw from generators when they are first imported.
            with Guest(self.name).acting(f"importing {self.name}", quiet=SHARED):
                return EntryPoint(self.name, self.value, f"flbench.{self.kind}").load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well
            missing = not named(self.value)[0]
            raise PluginError(
                f"{self} cannot be imported"
                f" from {self.value}: {reason(self) if missing else in_one_line(error)}; {mend}"
            ) from error

    def broken(self) -> str:
        """Why it cannot be used, found without importing it; "" = nothing is known."""
        return reason(self)

    def module(self) -> str:
        """The module the object is looked up in."""
        return named(self.value)[0]

    def source(self) -> Path | None:
        """The file of that module, found without importing it."""
        try:
            return sources.place(self.module() or ".").own
        except (ImportError, sources.Unclear):
            return None

    def summary(self) -> str:
        """The suite's summary, or the first line of the docstring, read without importing it."""
        try:
            return self._summary()
        except (OSError, ValueError, SyntaxError):
            return ""

    def _summary(self) -> str:
        path = self.source()
        if path is None:
            return ""
        settings = path.with_name(f"{self.name}.toml")
        if self.kind in ("suites", "papers") or (self.kind == "studies" and settings.is_file()):
            return str(tomllib.loads(settings.read_text(encoding="utf-8")).get("summary", ""))
        tree = sources.tree(path)
        target = named(self.value)[2]
        nodes = [n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
        found = next((node for node in nodes if node.name == target), None)
        text = (ast.get_docstring(found) if found else None) or ast.get_docstring(tree) or ""
        return text.partition("\n")[0]


def one_of(kind: str) -> str:
    """The singular of a kind.

    Example:
        >>> one_of("methods"), one_of("studies")
        ('method', 'study')
    """
    return "study" if kind == "studies" else kind.removesuffix("s")


def _stamp() -> tuple[tuple[str, int], ...]:
    """Where packages lie, and when each place last changed."""
    places = (Path(place or ".") for place in sys.path)
    return tuple((str(p), p.stat().st_mtime_ns) for p in places if p.exists())


@lru_cache(maxsize=4)
def _points(stamp: object, installed: Callable[[], Iterable[Distribution]]) -> list[EntryPoint]:
    """What all packages offer to flbench; their metadata are read only when they change.

    Args:
        stamp: what `_stamp` says; another one means reading anew.
        installed: gives all distributions, those that Python would import from first.
    """
    found, first = list[EntryPoint](), dict[str, Path]()
    for package in installed():
        points = [point for point in _offered(package) if point.group.startswith("flbench.")]
        if points:
            (name, _), place = _called(package), Path(str(package.locate_file("")))
            if first.setdefault(name, place) == place:
                found += points  # otherwise Python imports what lies in the first place
    return found


def _offered(package: Distribution) -> list[EntryPoint]:
    """A package's entry points; read line by line where one of them is none."""
    try:
        return list(package.entry_points)
    except (TypeError, ValueError):
        return list(_by_line(package))


def _by_line(package: Distribution) -> Iterator[EntryPoint]:
    try:
        lines = (package.read_text("entry_points.txt") or "").splitlines()
    except ValueError:
        return  # it is no text
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
    """A package's name and version; "?" and "" where it does not say."""
    if package is None:
        return "?", "?"
    try:
        return package.name or "?", package.version or ""
    except (TypeError, ValueError, KeyError):  # it has no metadata, or they are no text
        return "?", ""


def entry_points(group: str) -> list[EntryPoint]:
    """What is offered in a group; unlike Python's own, it survives metadata that are broken."""
    return [point for point in _points(_stamp(), distributions) if point.group == group]


def entries(kind: str) -> dict[str, Entry]:
    """Everything installed of one kind, by name, sorted."""
    found: dict[str, Entry] = {}
    for point in entry_points(group=f"flbench.{kind}"):
        entry = Entry(kind, point.name, point.value, *_called(point.dist))
        other = found.setdefault(point.name, entry)
        if entry != replace(other, rivals=()):
            rivals = dict.fromkeys((*other.rivals, f"{entry.distribution} {entry.version}"))
            found[point.name] = replace(other, rivals=tuple(rivals))
    return dict(sorted(found.items()))


def find(kind: str, name: str) -> Entry:
    """The entry of one name.

    Raises:
        UnknownName: nobody offers it; the message lists what is installed.
        UserError: two packages offer it; whoever names neither is not disturbed.
    """
    known = entries(kind)
    if name not in known:
        raise UnknownName(one_of(kind), name, known)
    entry = known[name]
    if entry.rivals:
        packages = " and ".join((f"{entry.distribution} {entry.version}", *entry.rivals))
        raise UserError(
            f"two packages offer the {one_of(kind)} '{name}': {packages}; uninstall one"
        )
    return entry
