"""Values as `--set key=value` reads them, and as a person has to type them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping


def parse(text: str) -> object:
    """Read the right side of `--set key=value`: a TOML value, `none`, or else the text itself."""
    if text.lower() in ("none", "null"):
        return None
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also numbers of too many digits, and lists too deep
        return {"True": True, "False": False}.get(text, text)
    return table["value"] if len(table) == 1 else text


def written(value: object) -> str:
    """A value as `--set` reads it.

    Example:
        >>> [written(value) for value in ("iid", "5", 5, None, [1e30, "iid", True])]
        ['iid', '"5"', '5', 'none', '[1e+30, "iid", true]']
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) and parse(value) == value else _toml(value)


def _toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(one)}' for key, one in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value) if isinstance(value, (str, bool)) else str(value)
