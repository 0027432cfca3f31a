"""`flbench check METHOD`: judge installed methods by the laws of the conformance kit."""

from __future__ import annotations

from typing import Annotated

import typer

from flbench.errors import UserError

Methods = Annotated[list[str] | None, typer.Argument(help="methods (flbench list methods)")]


MANY = {"holds": "hold"}


def check(
    methods: Methods = None,
    law: Annotated[list[str] | None, typer.Option(help="only this law; repeatable")] = None,
    laws: Annotated[bool, typer.Option("--laws", help="say what the laws are")] = False,
) -> None:
    """Judge methods by the laws that must hold for all of them."""
    if not methods and not laws:
        raise UserError("check: name a method (flbench list methods), or type --laws")
    from flbench.plugin.registry import find

    known = [find("methods", name) for name in methods or []]
    from flbench.testing.check import NAMES
    from flbench.testing.kit import LAWS, verdicts

    if laws:
        for one in LAWS.values():
            print(f"{one.name:<{NAMES}}  {one.says}")
    bad = []
    for entry in known:
        counts: dict[str, int] = {}
        print(f"{entry.name} [{entry.distribution} {entry.version}]")
        for verdict in verdicts(entry.name, law or ()):
            print(f"  {verdict}", flush=True)
            counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
            bad += [] if verdict.good else [f"{entry.name}: {verdict.law}"]
        print("  " + ", ".join(f"{count} {MANY.get(o, o)}" for o, count in counts.items()))
    if bad:
        raise UserError(f"check: {len(bad)} of the laws do not hold: {', '.join(bad)}")
