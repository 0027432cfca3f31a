"""The tables of the committed results, read once in a process."""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path

from flbench.leaderboard.table import Table, tables

RESULTS = Path(__file__).parents[2] / "leaderboard" / "results"


@cache
def committed_tables() -> tuple[Table, ...]:
    """What `tables` gives of `leaderboard/results`; of more than five thousand files.

    They live as long as the process, so the collector of garbage looks at them no more: half a
    second each time, which would count as that of whichever test runs then.
    """
    found = tuple(tables(RESULTS))
    gc.freeze()
    return found
