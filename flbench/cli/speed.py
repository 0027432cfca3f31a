"""`flbench speed`: run the speed benchmarks, a program of their own."""

from __future__ import annotations

import subprocess
import sys

import typer

PROGRAM = "flbench_benchmarks.speed"
"""The module of the program, run with `python -m`."""
PASSES_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""How the command is registered: every argument is for the program."""


def speed(context: typer.Context) -> None:
    """Measure how fast flbench is; `flbench speed --help` lists the parts and the options."""
    try:
        process = subprocess.run([sys.executable, "-m", PROGRAM, *context.args])
    except KeyboardInterrupt:  # the program is interrupted too, and says so
        raise typer.Exit(130) from None
    raise typer.Exit(process.returncode)
