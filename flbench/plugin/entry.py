"""Entry: one installed name, as the metadata of packages describe it."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from flbench.errors import PluginError, in_one_line
from flbench.plugin import source_inspection
from flbench.plugin.diagnostics import reason, refused
from flbench.plugin.isolation import Guest
from flbench.plugin.process_state import SHARED


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
            return source_inspection.place(self.module() or ".").own
        except (ImportError, source_inspection.Unclear):
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
        tree = source_inspection.tree(path)
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
