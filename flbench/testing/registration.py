"""Checks of registration: how a plugin is found, and its parameters."""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, asdict, fields

from flbench.plugin.registry import KINDS, diagnose, entries, find, load_entry
from flbench.run.composition import compose
from flbench.testing.check import MethodUnderTest, check
from flbench.testing.subprocesses import ProcessFailed, in_fresh_process


@check()
def discovered_alone(method: MethodUnderTest) -> None:
    """It is found by its name, and loading it imports no other plugin."""
    entry = find("methods", method.name)
    if diagnose(entry):
        raise method.failure(diagnose(entry))
    try:
        other_plugins = in_fresh_process(imported_by, method.name)
    except ProcessFailed as error:
        raise method.failure(f"cannot be loaded in a fresh process: {error}") from None
    if other_plugins:
        raise method.failure(
            f"loading {entry.value} also imports {', '.join(other_plugins)}: build on `flbench`"
            " and on modules of your own package, not on other plugins"
        )


def imported_by(method: str) -> list[str]:
    """Modules of other plugins that are imported when a method is loaded, in this process.

    A class may build on other modules of its own package, whose sources are in its hash. Those of
    flbench itself are in one package, and built-in methods do not build on each other.
    """
    offered = [entry for kind in KINDS for entry in entries(kind).values()]
    entry = find("methods", method)
    load_entry(entry)
    own = entry.module()
    package = "" if entry.distribution == "flbench" else own.partition(".")[0]
    others = {
        one.module()
        for one in offered
        if one.module().partition(".")[0] not in ("flbench", package)
    }
    return sorted((others - {own, own.rpartition(".")[0]}) & sys.modules.keys())


@check(discovered_alone)
def plain_parameters(method: MethodUnderTest) -> None:
    """Its parameters have defaults, are immutable, and can be written as JSON."""
    missing = [
        one.name
        for one in fields(method.plugin_class)
        if one.init and one.default is MISSING and one.default_factory is MISSING
    ]
    if missing:
        raise method.failure(
            f"parameter '{missing[0]}' has no default: `flbench run` could not start"
        )
    ((_, plugin),) = compose(method.name).layers or ((method.name, method.plugin_class()),)
    for name, value in asdict(plugin).items():
        try:
            hash(getattr(plugin, name))
        except TypeError:
            kind = type(value).__name__
            raise method.failure(
                f"parameter '{name}' is a {kind}, which is mutable: use a tuple"
            ) from None
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise method.failure(
                f"parameter '{name}' = {value!r} is not JSON: use numbers, text, bool, None, tuples"
            ) from None
