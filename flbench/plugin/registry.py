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
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import Any

from flbench.errors import PluginError, UnknownName, UserError, in_one_line
from flbench.plugin import source_inspection
from flbench.plugin.diagnostics import diagnose, refused
from flbench.plugin.entry import Entry, named, one_of
from flbench.plugin.isolation import IsolatedPlugin
from flbench.plugin.process_state import SHARED


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


def load_entry(entry: Entry) -> Any:  # noqa: ANN401 - whatever the entry point names
    """Import the object; only now does the plugin's code run, isolated.

    Raises:
        PluginError: the import fails, or it is not clear whose code it is.
    """
    if refusal := refused(entry):
        raise PluginError(f"{entry}: {refusal}")
    try:
        # Libraries draw from generators when they are first imported.
        with IsolatedPlugin(entry.name).acting(f"importing {entry.name}", quiet=SHARED):
            return EntryPoint(entry.name, entry.value, f"flbench.{entry.kind}").load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit as well
        why = in_one_line(error) if entry.module() else diagnose(entry)
        raise PluginError(
            f"{entry} cannot be imported from {entry.value}: {why};"
            f" upgrade or uninstall {entry.distribution}"
        ) from error


def source_file(entry: Entry) -> Path | None:
    """The file of an entry's module, found without importing it."""
    try:
        return source_inspection.place(entry.module() or ".").own
    except (ImportError, source_inspection.Undetermined):
        return None


def summary_of(entry: Entry) -> str:
    """A suite's summary, or the first line of a docstring, read without importing it."""
    try:
        return _summary(entry)
    except (OSError, ValueError, SyntaxError):
        return ""


def _summary(entry: Entry) -> str:
    path = source_file(entry)
    if path is None:
        return ""
    settings = path.with_name(f"{entry.name}.toml")
    if entry.kind in ("suites", "papers") or (entry.kind == "studies" and settings.is_file()):
        return str(tomllib.loads(settings.read_text(encoding="utf-8")).get("summary", ""))
    tree = source_inspection.tree(path)
    target = named(entry.value)[2]
    nodes = [n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
    found = next((node for node in nodes if node.name == target), None)
    text = (ast.get_docstring(found) if found else None) or ast.get_docstring(tree) or ""
    return text.partition("\n")[0]
