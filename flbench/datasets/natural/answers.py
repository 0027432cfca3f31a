"""Answers: whether a person says to be verbally aggressive, in each of 24 items.

A client is a person, who answered yes, perhaps or no 24 times, once an item; yes and perhaps are
`yes` here, as in the published analyses. Features: want to or do it, whether others or oneself is
to blame, and curse, scold or shout; of four situations two and two are alike in these, so every
item has another one with the same features. Left out: the situation itself, the person's score of
anger and gender, which are the same in all of a client's rows, and the answer itself. No true
groups are known. Items have no order: test samples are drawn at random, by the suite.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import TidyTable, built, whole
from flbench.datasets.natural.packaged import INSTALL, PackagedColumns, found_in, plain, read_csv

FILE = plain("lme4/VerbAgg", "7bd4403e46b7ea3f550d3825aee87d84340773197f960a1f906f05defdf3f434")
VALUES = {"mode": ("want", "do"), "situ": ("other", "self"), "btype": ("curse", "scold", "shout")}
TITLES = {"answers": "Answers about anger"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "answers": DatasetInfo(
        source="Vansteelandt 2000; De Boeck, Wilson 2004; table VerbAgg of lme4",
        licence="not said for the table; pydataset 0.2.0 is MIT",
        fetch=INSTALL,
    )
}
FOUND = {"answers": partial(found_in, FILE)}


def answers(root: Path) -> Dataset:
    """Yes or no to items on verbal aggression: a client per person."""
    return built("answers", rows_of(read_csv(FILE)))


def rows_of(table: PackagedColumns) -> TidyTable:
    """The samples of the table as it is."""
    return TidyTable(
        label=np.where(table["resp"] == "no", "no", "yes"),
        client=whole(table["id"]),
        categories={name: table[name] for name in VALUES},
        values=VALUES,
    )
