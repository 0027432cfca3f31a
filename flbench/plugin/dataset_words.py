"""Words for a data set, which its loader's module says in constants: read without importing it.

A module may have `TITLES`, name -> what a person calls the data set; `MEDIUM`, what its samples are
("tables", "text", "pictures", "digits"); and `NATURAL`, whether its domains are clients that nobody
drew. The title of a data set that is computed from another one, as `rotated:digits`, has `{}` where
that of the other stands; the rest is said of the other.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from flbench.plugin.registry import Entry, entries, source_file
from flbench.plugin.source_inspection import tree

CONSTANTS = ("TITLES", "MEDIUM", "NATURAL")
DEEPEST = 8
"""Data sets that may be computed from each other; a name is anybody's text."""


@dataclass(frozen=True)
class DatasetWords:
    """What is said of a data set.

    Attributes:
        title: what a person calls it; its name where nothing is said.
        medium: what its samples are; "" = not said.
        natural: whether its domains are clients that nobody drew.
    """

    title: str
    medium: str = ""
    natural: bool = False


def dataset_words(name: str) -> DatasetWords:
    """What the installed packages say of a data set; its name alone where they say nothing.

    Args:
        name: as in `--dataset`, with arguments: `rotated:digits`, `digit-5[mnist,usps]`.
    """
    return _words(name, DEEPEST)


def _words(name: str, depth: int) -> DatasetWords:
    head, _, argument = name.partition(":")
    entry = entries("datasets").get(head.partition("[")[0])
    said = _constants(entry) if entry else {}
    titles, medium = said.get("TITLES"), said.get("MEDIUM")
    title = titles.get(entry.name) if entry and isinstance(titles, dict) else None
    if isinstance(title, str) and "{}" in title and argument and depth:
        inner = _words(argument, depth - 1)
        return DatasetWords(title.replace("{}", inner.title), inner.medium)
    parts = re.search(r"\[(.*)\]$", head)
    if isinstance(title, str) and parts:
        title += f" ({parts[1].replace(',', ', ')})"
    known = isinstance(title, str) and not argument
    return DatasetWords(
        str(title) if known else name,
        medium if isinstance(medium, str) else "",
        said.get("NATURAL") is True,
    )


def _constants(entry: Entry) -> dict[str, Any]:
    """The constants of an entry's module; none where it cannot be read."""
    path = source_file(entry)
    try:
        body = tree(path).body if path else []
    except (OSError, SyntaxError):
        return {}
    found: dict[str, Any] = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in CONSTANTS:
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError:
                    continue
    return found
