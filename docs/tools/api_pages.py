"""Sphinx extension: fill the reference pages with the public names that flbench has at build time.

A page of `docs/reference` holds one comment, which is replaced before the page is parsed:

    <!-- autodoc: names -->        every name of `flbench.__all__` that is no module
    <!-- autodoc: modules -->      every module of `flbench.__all__`, with what is in it
    <!-- autodoc: hooks -->        every hook, in the order of its module
    <!-- autodoc: testing -->      every name of `flbench.testing.__all__`
    <!-- autodoc: metrics -->      every row of `flbench.metrics.METRICS`

The comment is invisible on a code-hosting site.

Docstrings are written as plain text with Markdown's signs, and autodoc reads reStructuredText:
`as_restructured_text` makes the difference.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

import flbench
import flbench.testing
from flbench.metrics import METRICS

MARK = re.compile(r"^<!-- autodoc: (\w+) -->$", re.MULTILINE)
GROUPS = {"class": "Classes", "function": "Functions", "data": "Types and constants"}


def homes(package: ModuleType) -> dict[str, str]:
    """The module that each name is imported from, read from the package's import statements.

    A type alias or a constant does not know its module, and its docstring stands there.
    """
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def kind(value: object) -> str:
    """The autodoc directive for a value, without `auto`."""
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def directive(name: str, package: ModuleType, home: str) -> str:
    """One autodoc directive: classes and functions under their public name."""
    auto = kind(getattr(package, name))
    place = home if auto == "data" else package.__name__
    return f".. auto{auto}:: {place}.{name}\n"


def page(directives: Iterable[str]) -> str:
    """Markdown that holds directives of reStructuredText, which is what autodoc writes."""
    return "```{eval-rst}\n" + "\n".join(directives) + "```\n"


def names(package: ModuleType) -> str:
    """The names of `package.__all__` that are no modules, by kind."""
    home = homes(package)
    found = {n: getattr(package, n) for n in package.__all__ if not n.startswith("__")}
    grouped: dict[str, list[str]] = {title: [] for title in GROUPS.values()}
    for name, value in found.items():
        if not inspect.ismodule(value):
            group = GROUPS[kind(value).replace("exception", "class")]
            grouped[group].append(directive(name, package, home.get(name, package.__name__)))
    return "\n".join(f"## {title}\n\n{page(lines)}" for title, lines in grouped.items() if lines)


def modules() -> Iterator[str]:
    """The modules of `flbench.__all__`, each under a heading with its public name."""
    for name in flbench.__all__:
        value = getattr(flbench, name)
        if inspect.ismodule(value):
            yield f"## flbench.{name}\n\n{page([f'.. automodule:: {value.__name__}' + chr(10)])}"


def hooks() -> str:
    """The hooks, which stand where `hookimpl` is defined."""
    module = importlib.import_module(homes(flbench)["hookimpl"])
    found = [name for name, value in vars(module).items() if hasattr(value, "flbench_spec")]
    text = [f".. automodule:: {module.__name__}\n   :no-members:\n"]
    return page([*text, *(f".. autofunction:: {module.__name__}.{name}\n" for name in found)])


def metrics() -> str:
    """The table of metrics, as a Markdown table."""
    better = {True: "higher", False: "lower", None: "-"}
    lines = ["| key | column | better | what it is |", "|---|---|---|---|"]
    for metric in METRICS:
        cells = (f"`{metric.name}`", metric.heading, better[metric.higher_is_better], metric.doc)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def literal(line: str) -> str:
    """A line with Markdown's code as literals, without substitutions (`|x|`) or a list (`N.`)."""
    line = re.sub(r": (\w)\.$", r": \1\\.", line)
    parts = re.split(r"`+([^`]+)`+", line)  # text and code take turns
    return "".join(
        f"``{part}``" if is_code else part.replace("|", r"\|")
        for part, is_code in zip(parts, itertools.cycle((False, True)))
    )


def as_restructured_text(app: Sphinx, what: str, name: str, obj: object, *rest: Any) -> None:  # noqa: ANN401
    """Rewrite the lines of one docstring in place, before napoleon reads its sections."""
    lines: list[str] = rest[-1]
    out: list[str] = []
    verbatim, text = False, ""
    for before, line in itertools.pairwise(["", *lines]):
        begins = bool(line) and not before
        if begins:
            drawn = line.startswith("    ") and bool(text) and not text.startswith(" ")
            verbatim = line.lstrip().startswith(">>>") or drawn
            out += ["::", ""] if drawn and not line.lstrip().startswith(">>>") else []
        if line.lstrip().startswith(">>>"):
            verbatim = True
        out.append(line if verbatim else literal(line))
        text = line or text
    if what in ("attribute", "data", "property"):
        out[:0] = ["..", ""]  # else napoleon takes the words before the first colon for a type
    lines[:] = out


def fill(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the comment of a reference page."""
    pages: dict[str, Callable[[], str]] = {
        "names": lambda: names(flbench),
        "modules": lambda: "\n".join(modules()),
        "hooks": hooks,
        "testing": lambda: names(flbench.testing),
        "metrics": metrics,
    }
    if docname.startswith("docs/reference/"):
        source[0] = MARK.sub(lambda mark: pages[mark[1]](), source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)
    return {"parallel_read_safe": True}
