"""Registry: what is installed, read from package metadata. Listing imports nobody's code.

Methods, suites, data sets, networks, partitions, studies, papers and sinks are entry points of the
groups `flbench.methods`, `flbench.suites`, `flbench.datasets`, `flbench.models`,
`flbench.partitions`, `flbench.studies`, `flbench.papers` and `flbench.sinks`; the built-in ones
come in through the same door as strangers'.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from flbench.errors import PluginError, UnknownName, UserError

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
        rivals: other packages that offer the same name.
    """

    kind: str
    name: str
    value: str
    distribution: str
    version: str
    rivals: tuple[str, ...] = ()

    def load(self) -> Any:  # noqa: ANN401 - whatever the entry point names
        """Import the object; only now does the plugin's code run.

        Raises:
            PluginError: the import fails.
        """
        try:
            return EntryPoint(self.name, self.value, f"flbench.{self.kind}").load()
        except Exception as error:
            raise PluginError(
                f"{one_of(self.kind)} '{self.name}' of {self.distribution} {self.version} cannot be"
                f" imported from {self.value}: {type(error).__name__}: {error}"
            ) from error

    def source(self) -> Path | None:
        """The file the object is defined in, found without importing it."""
        first, *rest = self.value.partition(":")[0].split(".")
        spec = importlib.util.find_spec(first)
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
        for candidate in (
            folder.joinpath(*rest).with_suffix(".py"),
            folder.joinpath(*rest, "__init__.py"),
        ):
            if rest and candidate.is_file():
                return candidate
        return Path(spec.origin) if not rest else None

    def summary(self) -> str:
        """The suite's summary, or the first line of the docstring, read without importing it."""
        try:
            return self._summary()
        except (OSError, SyntaxError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            return ""

    def _summary(self) -> str:
        path = self.source()
        if path is None:
            return ""
        settings = path.with_name(f"{self.name}.toml")
        if self.kind in ("suites", "papers") or (self.kind == "studies" and settings.is_file()):
            return str(tomllib.loads(settings.read_text(encoding="utf-8")).get("summary", ""))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        target = self.value.partition(":")[2]
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


@lru_cache(maxsize=16)
def _entries(
    kind: str, stamp: object, read: Callable[..., Iterable[EntryPoint]]
) -> dict[str, Entry]:
    """What is installed of one kind; all packages' metadata are read only when they change.

    Args:
        kind: one of KINDS.
        stamp: what `_stamp` says; another one means reading anew.
        read: gives the entry points of a group.
    """
    found: dict[str, Entry] = {}
    for point in read(group=f"flbench.{kind}"):
        dist = point.dist
        name, version = (dist.name, dist.version) if dist else ("?", "?")
        entry = Entry(kind, point.name, point.value, name, version)
        other = found.get(point.name)
        if other is None or other == entry:
            found[point.name] = entry
        else:
            found[point.name] = replace(other, rivals=(*other.rivals, name))
    return dict(sorted(found.items()))


def entries(kind: str) -> dict[str, Entry]:
    """Everything installed of one kind, by name, sorted."""
    return dict(_entries(kind, _stamp(), entry_points))


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
        others = ", ".join(entry.rivals)
        raise UserError(
            f"two packages offer the {one_of(kind)} '{name}': {entry.distribution} and {others};"
            " uninstall one"
        )
    return entry
