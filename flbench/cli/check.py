"""`flbench check METHOD`: run the checks of the conformance kit on installed methods."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from flbench.cli.options import SettingsOption, read_settings
from flbench.errors import UserError
from flbench.terminal.lines import tell

Methods = Annotated[list[str] | None, typer.Argument(help="methods (flbench list methods)")]


def check(
    methods: Methods = None,
    only: Annotated[list[str] | None, typer.Option(help="only this check; repeatable")] = None,
    settings: SettingsOption = None,
    list_checks: Annotated[bool, typer.Option("--list", help="list the checks")] = False,
) -> None:
    """Check that methods have the properties that every method must have."""
    if not methods and not list_checks:
        raise UserError("check: name a method (flbench list methods), or type --list")
    given = read_settings(settings)
    from flbench.engine.processes.fork_server import start_server
    from flbench.plugin.registry import find

    entries = [find("methods", name) for name in methods or []]
    if entries:  # it imports torch at the same time as this process
        start_server(["flbench.testing.small_run"])
    from flbench.testing.check import NAME_WIDTH
    from flbench.testing.kit import CHECKS, check_results

    if list_checks:
        for one in CHECKS.values():
            tell(f"{one.name:<{NAME_WIDTH}}  {one.description}")
    failed = []
    for entry in entries:
        counts = Counter[str]()
        tell(f"{entry.name} [{entry.distribution} {entry.version}]")
        for result in check_results(entry.name, only or (), given):
            tell(f"  {result}")
            counts[result.state] += 1
            failed += [] if result.ok else [f"{entry.name}: {result.check}"]
        tell("  " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    if failed:
        raise UserError(f"check: {len(failed)} failed: {', '.join(failed)}")
