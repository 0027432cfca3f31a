"""`flbench data`: list data sets and their status, check them, download their files."""

from __future__ import annotations

from typing import Annotated

import typer

from flbench.cli.options import Root
from flbench.terminal.lines import tell


def data(
    name: Annotated[str, typer.Argument(help="a data set; none = all of them")] = "",
    data_root: Root = None,
    check: Annotated[bool, typer.Option("--check", help="load it and compare it")] = False,
    fetch: Annotated[bool, typer.Option("--fetch", help="download its files first")] = False,
) -> None:
    """List data sets and their status; check them; download the files of one."""
    from flbench.datasets import data_root as locate
    from flbench.datasets.status import report

    tell(*report(locate(data_root), name, check, fetch))
