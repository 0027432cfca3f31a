"""`flbench list`: what is installed, and which names cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from flbench.errors import UnknownName
from flbench.plugin.method_info import method_info
from flbench.plugin.registry import KINDS, Entry, diagnose, entries, summary_of, superseded_by
from flbench.terminal.lines import tell


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, suites, datasets, models, partitions, metrics, studies, papers, sinks"
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    load: Annotated[
        bool, typer.Option("--load", help="import each in a separate process as well")
    ] = False,
) -> None:
    """List what is installed, and why a name cannot be used; only --load imports it."""
    if kind in ("plugin", "plugins"):
        kind = "methods"  # as in `flbench run --plugin`
    if kind and kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    kinds = [kind] if kind else KINDS
    tried = None
    if load:
        from flbench.run import import_probe

        tried = import_probe.tried([entry for one in kinds for entry in entries(one).values()])
    if json:
        import json as text

        print(text.dumps({one: plain(one, tried) for one in kinds}, indent=2))
    else:
        for one in kinds:
            tell(*listing(one, bool(kind), tried))


Reasons = Mapping[tuple[str, str], str]
"""Kind and name -> why its import failed (`flbench.run.import_probe`)."""


def listing(kind: str, details: bool = False, tried: Reasons | None = None) -> list[str]:
    """Lines that list what is installed of one kind, with the reason where a name is broken.

    With `details`, methods have their kind, paper and hooks.
    """
    found = entries(kind)
    width = max((len(name) for name in found), default=0)
    lines = [f"{kind}:"]
    for name, entry in found.items():
        also = f", also offered by {', '.join(entry.rivals)}" if entry.rivals else ""
        package = f"[{entry.distribution} {entry.version}{also}]"
        lines.append(f"  {name:<{width}}  {summary_of(entry)}  {package}")
        if details and kind == "methods":
            about = method_info(entry)
            hooks = f"hooks: {', '.join(about.hooks) or 'none'}"
            about_it = "; ".join(filter(None, (about.kind, about.source, hooks)))
            lines.append(f"  {'':<{width}}  {about_it}")
        if newer := superseded_by(entry):
            lines.append(f"  {'':<{width}}  superseded by {newer}")
        if why := why_broken(entry, tried):
            lines.append(f"  {'':<{width}}  broken: {why}")
    return lines


def why_broken(entry: Entry, tried: Reasons | None = None) -> str:
    """Why a name cannot be used: by its metadata, or else by its import."""
    return diagnose(entry) or (tried or {}).get((entry.kind, entry.name), "")


def plain(kind: str, tried: Reasons | None = None) -> list[dict[str, object]]:
    """The same as rows of plain data; "broken" is empty where nothing is known to be wrong."""
    rows = []
    for entry in entries(kind).values():
        row: dict[str, object] = {
            "name": entry.name,
            "summary": summary_of(entry),
            "distribution": entry.distribution,
            "version": entry.version,
            "broken": why_broken(entry, tried),
        }
        if kind == "methods":
            about = method_info(entry)
            row |= {"paper": about.paper, "year": about.year, "kind": about.kind}
            row["hooks"] = list(about.hooks)
        if kind == "suites":
            row["superseded_by"] = superseded_by(entry)
        rows.append(row)
    return rows
