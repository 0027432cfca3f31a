"""Assign `--set` values to the suite and to the plugins that declare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flbench.core.parameters import Parameter, declared
from flbench.errors import BadParameter, PluginError, UnknownName, in_one_line
from flbench.plugin.entry import Entry
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


def split_settings(
    settings: Mapping[str, object], declared: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    """The part of `--set` that is meant for the suite.

    Args:
        settings: all of `--set`.
        declared: plugin -> its parameters.

    Raises:
        UnknownName: a key that neither a plugin nor the suite declares.
        BadParameter: a bare key that both declare.
    """
    found: dict[str, object] = {}
    for key, value in settings.items():
        owners = [name for name, fields in declared.items() if names_field(key, name, fields)]
        field = suite_field(key)
        if field and owners and not key.startswith("suite."):
            raise BadParameter(
                f"--set {key}: both the suite and {owners[0]} have it;"
                f" write suite.{key} or {owners[0]}.{key}"
            )
        if field:
            found[field] = value
        elif not owners:
            known = [f"{name}.{field}" for name in declared for field in declared[name]]
            raise UnknownName("parameter", key, [*known, *suite_fields()], listed="declared")
    return found


def names_field(key: str, name: str, fields: Mapping[str, object]) -> bool:
    """Whether a `--set` key names one of the fields of a plugin: `field` or `plugin.field`."""
    owner, dot, field = key.partition(".")
    return key in fields or (bool(dot) and owner == name and field in fields)


def given_to(
    name: str, fields: Mapping[str, object], settings: Mapping[str, object]
) -> dict[str, object]:
    """The settings one plugin declares, whether written `field` or `plugin.field`."""
    bare = {key: value for key, value in settings.items() if key in fields}
    full = {
        key.partition(".")[2]: value
        for key, value in settings.items()
        if key not in fields and names_field(key, name, fields)
    }
    return {**bare, **full}
