"""The tables of the committed results, read once in a process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from flbench.leaderboard.table import Table, tables

RESULTS = Path(__file__).parents[2] / "leaderboard" / "results"


@cache
def committed_tables() -> tuple[Table, ...]:
    """What `tables` gives of `leaderboard/results`; of nearly five thousand files."""
    return tuple(tables(RESULTS))
