"""The leaderboard: a pure function of a folder of result files. Imports no torch.

Rows of one table share the suite's fingerprint: same settings, same data set. `rows` groups
results, `stats` says what they can tell apart, `entry` and `table` hold everything as data, and
`pages`, `drawings` and `board` make files of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flbench.leaderboard.grouping import Row
    from flbench.leaderboard.pages import page
    from flbench.leaderboard.table import Entry, Table, tables

__all__ = ["Entry", "Row", "Table", "page", "tables"]
_HOME_OF = {
    "Entry": "table",
    "Row": "grouping",
    "Table": "table",
    "page": "pages",
    "tables": "table",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name not in _HOME_OF:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
