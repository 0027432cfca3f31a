"""Entry: one installed name, as the metadata of packages describe it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint


def named(value: str) -> tuple[str, str, str]:
    """The module, ":" and the object that an entry point names; empty where it names none.

    Example:
        >>> named("acme.methods:Acme [gpu]"), named("acme/methods.py")
        (('acme.methods', ':', 'Acme'), ('', '', ''))
    """
    found = EntryPoint.pattern.fullmatch(value)
    if found is None:
        return "", "", ""
    return found["module"], ":" if found["attr"] else "", found["attr"] or ""


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

    def module(self) -> str:
        """The module the object is looked up in."""
        return named(self.value)[0]


def one_of(kind: str) -> str:
    """The singular of a kind.

    Example:
        >>> one_of("methods"), one_of("studies")
        ('method', 'study')
    """
    return "study" if kind == "studies" else kind.removesuffix("s")
