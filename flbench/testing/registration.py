"""Laws about what a plugin is: how it is found, what its parameters are, what its errors say."""

from __future__ import annotations

import json
import sys
from dataclasses import MISSING, asdict, fields

from flbench.plugin.diagnostics import diagnose
from flbench.plugin.entry import KINDS
from flbench.plugin.registry import entries, find, load_entry
from flbench.run.composition import compose
from flbench.testing.check import Case, law
from flbench.testing.subprocesses import Failed, apart


@law()
def discovered_alone(case: Case) -> None:
    """It is found by its name, and loading it imports no other plugin."""
    entry = find("methods", case.method)
    if diagnose(entry):
        raise case.breaks(diagnose(entry))
    try:
        strangers = apart(imported_by, case.method)
    except Failed as error:
        raise case.breaks(f"cannot be loaded in a fresh process: {error}") from None
    if strangers:
        raise case.breaks(
            f"loading {entry.value} also imports {', '.join(strangers)}: build on `flbench`, not on"
            " other plugins"
        )


def imported_by(method: str) -> list[str]:
    """Other plugins' modules that come along when a method is loaded, in this process."""
    points = [entry for kind in KINDS for entry in entries(kind).values()]
    entry = find("methods", method)
    load_entry(entry)
    own = entry.value.partition(":")[0]
    others = {point.value.partition(":")[0] for point in points if not _core(point.value)} - {own}
    parents = {own.rpartition(".")[0]}
    return sorted(name for name in (others - parents) & set(sys.modules))


def _core(value: str) -> bool:
    return value.startswith("flbench.")


@law(discovered_alone)
def plain_parameters(case: Case) -> None:
    """Its parameters have defaults, cannot be changed, and can be written as JSON."""
    missing = [
        one.name
        for one in fields(case.kind)
        if one.init and one.default is MISSING and one.default_factory is MISSING
    ]
    if missing:
        raise case.breaks(f"parameter '{missing[0]}' has no default: `flbench run` could not start")
    ((_, plugin),) = compose(case.method).layers or ((case.method, case.kind()),)
    for name, value in asdict(plugin).items():
        try:
            hash(getattr(plugin, name))
        except TypeError:
            kind = type(value).__name__
            raise case.breaks(
                f"parameter '{name}' is a {kind}, which can change: use a tuple"
            ) from None
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise case.breaks(
                f"parameter '{name}' = {value!r} is no JSON: use numbers, text, bool, None, tuples"
            ) from None
