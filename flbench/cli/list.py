"""`flbench list`: what is installed, and what of it is broken."""

from __future__ import annotations

from typing import Annotated

import typer

from flbench.cli.main import app
from flbench.errors import UserError


@app.command("list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, suites, datasets, models, partitions, studies, papers, sinks"
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="machine-readable")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="methods or suites as a page of docs/")
    ] = False,
    load: Annotated[
        bool, typer.Option("--load", help="import each as well, in a process apart")
    ] = False,
) -> None:
    """List what is installed, and what of it is broken; nothing is imported unless asked for."""
    from flbench.catalogue import cards, listing, page, plain
    from flbench.errors import UnknownName
    from flbench.gazette import suites_page
    from flbench.registry import KINDS, entries

    if kind and kind not in KINDS:
        raise UnknownName("kind", kind, KINDS)
    kinds = [kind] if kind else KINDS
    tried = None
    if load:
        from flbench import trial

        tried = trial.tried([entry for one in kinds for entry in entries(one).values()])
    if markdown:
        pages = {"methods": lambda: page(cards()), "suites": suites_page}
        if kind not in pages:
            raise UserError("--markdown describes methods or suites: type flbench list methods")
        print(pages[kind](), end="")
    elif json:
        import json as text

        print(text.dumps({one: plain(one, tried) for one in kinds}, indent=2))
    else:
        for one in kinds:
            print("\n".join(listing(one, bool(kind), tried)))
