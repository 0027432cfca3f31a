"""What fresh processes are asked for in tests; they import it by this name."""

from __future__ import annotations

import os

from typer.testing import CliRunner

from flbench.cli.main import app


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
