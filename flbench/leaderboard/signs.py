"""Signs beside the name of a row: what a reader should know of it before its number.

Each sign explains itself: on the web page as the text of the sign, on the pages by a legend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flbench.core.knowledge import SAMPLES
from flbench.leaderboard.links import departs_of
from flbench.leaderboard.table import TableRow

DEPARTS, READS, UNEVEN, OLD = "†", "‡", "§", "¶"
LEGEND: Mapping[str, str] = {
    DEPARTS: "departs from its paper",
    READS: "reads what no byte is counted for",
    UNEVEN: "its seeds disagree: some are far from the others",
    OLD: "no seed was computed or replayed by a core of the last audits: its own is older or newer",
}
"""Sign -> what it says, in their order."""


@dataclass(frozen=True)
class RowSign:
    """A sign, and what it says of one row."""

    sign: str
    text: str


def reads_uncounted(row: TableRow) -> str:
    """What it reads without a byte, beside what every mean by samples reads."""
    return ", ".join(what for what in row.reads if what != SAMPLES)


def signs_of(row: TableRow) -> list[RowSign]:
    """The signs of a row, in their order."""
    departs = " ".join(filter(None, (departs_of(p.name, p.distribution) for p in row.plugins)))
    found = []
    if departs:
        found.append(RowSign(DEPARTS, f"{LEGEND[DEPARTS]}: {departs}"))
    if reads := reads_uncounted(row):
        found.append(RowSign(READS, f"{LEGEND[READS]}: {reads}"))
    if row.uneven:
        found.append(RowSign(UNEVEN, LEGEND[UNEVEN]))
    if row.old_core:
        found.append(RowSign(OLD, LEGEND[OLD]))
    return found


def legend(rows: Iterable[TableRow]) -> str:
    """The signs that some rows have, each with what it says; "" = none."""
    used = {one.sign for row in rows for one in signs_of(row)}
    return "; ".join(f"{sign} {text}" for sign, text in LEGEND.items() if sign in used)
