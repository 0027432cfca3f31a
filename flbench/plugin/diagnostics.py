"""Diagnostics: what the metadata of a package show to be wrong with an installed name.

Nothing is imported and no source is read. What only an import shows, `flbench list --load` says.
"""

from __future__ import annotations

import re

from flbench.plugin.entry import Entry

NAMES = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
"""Names that can be typed, and that can be part of a file's name."""


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
