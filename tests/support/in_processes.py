"""What fresh processes are asked for in tests; they import it by this name."""

from __future__ import annotations

import os
from typing import Any

from typer.testing import CliRunner

from flbench.cli.main import app
from flbench.engine.options import EngineOptions
from flbench.testing.small_run import DEFAULTS, run_small, small_suite


def place() -> list[str]:
    """Where a process of a group is told to meet the others."""
    return [os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"]]


def dies() -> None:
    """End without an answer."""
    os._exit(7)


def raises() -> None:
    """Refuse."""
    raise ValueError("expected more")


def call(*args: str) -> None:
    """`flbench run` in this process."""
    done = CliRunner().invoke(app, ["run", *args], catch_exceptions=False)
    assert done.exit_code == 0


def clocked_end(clock: dict[str, Any], devices: int) -> dict[str, Any]:
    """The simulated times of a small run, and what was sent."""
    engine = EngineOptions(executor="sequential", accelerator="cpu", devices=devices)
    done = run_small(DEFAULTS, small_suite(clock=clock), engine=engine)
    seconds = done.run.history.curves["simulated_seconds"]
    return {"seconds": seconds, "exact": done.state.seconds, "bytes": done.run.ledger.totals}
