"""Assign `--set` values to the suite and to the plugins that declare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flbench.core.parameters import Parameter, declared
from flbench.errors import BadParameter, PluginError, UnknownName, in_one_line
from flbench.plugin.entry import Entry
from flbench.plugin.registry import find, load_entry
from flbench.suite import suite_field, suite_fields


def fields_of(entry: Entry, kind: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters that a method declares.

    Raises:
        PluginError: its annotations name what is not there.
    """
    try:
        return declared(kind)
    except Exception as error:
        raise PluginError(f"{entry}: its fields cannot be read: {in_one_line(error)}") from error


def suite_overrides(settings: Mapping[str, object], texts: list[str]) -> dict[str, object]:
    """The part of `--set` that is meant for the suite.

    Args:
        settings: all of `--set`.
        texts: the methods of the command.

    Raises:
        UnknownName: a key that neither a method nor the suite declares.
        BadParameter: a bare key that both declare.
    """
    names = list(dict.fromkeys(name.strip() for text in texts for name in text.split("+")))
    entries = [find("methods", name) for name in names]
    offered = {entry.name: fields_of(entry, load_entry(entry)) for entry in entries}
    found: dict[str, object] = {}
    for key, value in settings.items():
        owners = [
            name for name in names if key in offered[name] or _owned(key, name, offered[name])
        ]
        field = suite_field(key)
        if field and owners and not key.startswith("suite."):
            raise BadParameter(
                f"--set {key}: both the suite and {owners[0]} have it;"
                f" write suite.{key} or {owners[0]}.{key}"
            )
        if field:
            found[field] = value
        elif not owners:
            known = [f"{name}.{field}" for name in names for field in offered[name]]
            raise UnknownName("parameter", key, [*known, *suite_fields()], listed="declared")
    return found


def _owned(key: str, name: str, fields: Mapping[str, object]) -> bool:
    owner, _, field = key.partition(".")
    return owner == name and field in fields


def _given(
    name: str, fields: Mapping[str, object], settings: Mapping[str, object]
) -> dict[str, object]:
    """The settings one plugin declares, whether written `field` or `plugin.field`."""
    bare = {key: value for key, value in settings.items() if key in fields}
    full = {
        key.partition(".")[2]: value for key, value in settings.items() if _owned(key, name, fields)
    }
    return {**bare, **full}
