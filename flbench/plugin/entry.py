"""Entry: one installed name, as the metadata of packages describe it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

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

    def target(self) -> str:
        """The object within the module; "" where the value names none."""
        return self._part("attr")

    def packages(self) -> str:
        """All packages that offer the name."""
        return " and ".join((f"{self.distribution} {self.version}", *self.rivals))

    def _part(self, group: str) -> str:
        found = EntryPoint.pattern.fullmatch(self.value)
        return (found[group] or "") if found else ""


def one_of(kind: str) -> str:
    """The singular of a kind.

    Example:
        >>> one_of("methods"), one_of("studies")
        ('method', 'study')
    """
    return "study" if kind == "studies" else kind.removesuffix("s")
