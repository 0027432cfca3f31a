"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Plugins = Annotated[
    list[str],
    typer.Option(
        "--plugin", "-p", help="method, or methods joined by + ; repeat, or separate by commas"
    ),
]


Suites = Annotated[
    list[str],
    typer.Option("--suite", "-s", help="suite or TOML file; repeat, or separate by commas"),
]


Seed = Annotated[int | None, typer.Option(min=0, help="run this one seed [default: 0]")]


Seeds = Annotated[int | None, typer.Option(min=1, help="run seeds 0..N-1")]


Root = Annotated[
    Path | None,
    typer.Option(help="folder of the data sets [default: $FLBENCH_DATA, else ~/.cache/flbench]"),
]


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="a parameter of a method, suite or study"),
]


Preset = Annotated[
    str | None, typer.Option(help="a method's named parameters, such as its paper's")
]


Out = Annotated[Path, typer.Option(help="folder of the result files")]
