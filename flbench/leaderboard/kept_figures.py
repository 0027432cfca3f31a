"""Figures that need not be drawn again: what each was drawn from, in a file beside them.

A figure is a pure function of rows, texts and code. The note of a figure has a hash of these and
one of the file that was drawn. If both are as they were, the file is what drawing would give. The
notes are of one machine: they are no part of the leaderboard, and may be deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flbench.leaderboard.table_figures import Drawing
from flbench.plugin.source_inspection import source_hash
from flbench.results.audits import content_digest
from flbench.results.files import write_atomically
from flbench.results.schema import Result

NOTES = ".drawn.json"
"""Name of the notes, in the folder of the figures."""
LIBRARIES = ("matplotlib", "numpy", "scipy", "scikit-learn")
"""What figures are drawn and computed with, beside flbench."""


class KeptFigures:
    """The figures of a folder, with notes of what they were drawn from.

    Attributes:
        drawn: how many were drawn, as their notes did not fit.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notes = _read(folder / NOTES)
        self._code = ""
        self._digests: dict[int, str] = {}
        self.drawn = 0

    def picture(self, drawing: Drawing) -> bytes | None:
        """The SVG file of a drawing, None where nothing can be drawn: kept, or drawn now."""
        inputs = self._inputs(drawing)
        known = self._notes.get(drawing.name)
        if known is not None and known.get("inputs") == inputs:
            if not known.get("svg"):
                return None
            path = self._folder / drawing.name
            data = path.read_bytes() if path.is_file() else b""
            if _hash(data) == known["svg"]:
                return data
        found = drawing.draw()
        self.drawn += 1
        self._notes[drawing.name] = {"inputs": inputs, "svg": "" if found is None else _hash(found)}
        return found

    def save(self) -> None:
        """Write the notes; to be called when the figures are in place."""
        text = json.dumps(self._notes, indent=1, sort_keys=True)
        write_atomically(self._folder / NOTES, f"{text}\n".encode())

    def _inputs(self, drawing: Drawing) -> str:
        """A hash of all that a drawing depends on."""
        if not self._code:
            versions = [version(name) for name in LIBRARIES]
            self._code = " ".join([source_hash(Drawing.__module__), *versions])
        return _hash(json.dumps([self._code, self._plain(drawing.shows)]).encode())

    def _plain(self, value: object) -> Any:  # noqa: ANN401 - plain data
        """The same as plain data, with a digest in place of each result."""
        if isinstance(value, Result):
            if id(value) not in self._digests:
                self._digests[id(value)] = content_digest(value)
            return self._digests[id(value)]
        if isinstance(value, Mapping):
            return [[self._plain(key), self._plain(one)] for key, one in value.items()]
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._plain(one) for one in value]
        return value


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path) -> dict[str, dict[str, str]]:
    """The notes; none where they are not there or are damaged: then everything is drawn."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    fits = isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())
    return found if fits else {}
