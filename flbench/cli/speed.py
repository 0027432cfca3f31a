"""`flbench speed`: run the speed benchmarks, a program of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

import typer

PASSES_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""How a command that is a program of its own is registered: every argument is for the program."""


def speed(context: typer.Context) -> None:
    """Measure how fast flbench is; `flbench speed --help` lists the parts and the options."""
    run_program("flbench_benchmarks.speed", context)


def run_program(module: str, context: typer.Context) -> None:
    """Run a module as `python -m` does, with the arguments of the command.

    Ctrl-C and SIGTERM reach the program and all processes that it has started, which end in order
    and say so; it is waited for.

    Raises:
        Exit: with the program's exit code.
    """
    process = subprocess.Popen([sys.executable, "-m", module, *context.args], process_group=0)

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.killpg(process.pid, number)

    before = {one: signal.signal(one, pass_on) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        raise typer.Exit(process.wait())
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
