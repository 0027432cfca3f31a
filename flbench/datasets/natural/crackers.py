"""Crackers: which of four brands a household bought, by prices and advertising.

A client is a household; its purchases are in the order of time, and the last quarter of each is
tested. Households differ in the brand that they are used to, which the features do not say. No true
groups are known. The table has no other columns than these. Equal rows are purchases at equal
prices, and stay: a household that buys the same again is what is to be predicted.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import TidyTable, built, last_share, whole
from flbench.datasets.natural.packaged import INSTALL, PackagedColumns, found_in, plain, read_csv

FILE = plain("Ecdat/Cracker", "bcbe5ef853f88a8980e3f2c082e988895be2e2f3c505363a8d9bf24eeecf0c53")
TESTED = 0.25
"""Share of a household's purchases, the last ones, that is tested."""
TITLES = {"crackers": "Crackers"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "crackers": DatasetInfo(
        source="Jain, Vilcassim, Chintagunta 1994; Paap, Franses 2000; table Cracker of Ecdat",
        licence="not said for the table; pydataset 0.2.0 is MIT",
        fetch=INSTALL,
    )
}
FOUND = {"crackers": partial(found_in, FILE)}


def crackers(root: Path) -> Dataset:
    """Which of four brands of crackers was bought: a client per household."""
    return built("crackers", rows_of(read_csv(FILE)))


def rows_of(table: PackagedColumns) -> TidyTable:
    """The samples of the table as it is."""
    features = {name: column for name, column in table.items() if name not in ("id", "choice")}
    client = whole(table["id"])
    return TidyTable(table["choice"], client, numbers=features, test=last_share(client, TESTED))
