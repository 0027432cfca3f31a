"""Lecturers: whether a student of ETH Zurich gave a lecture a mark of four or five of five.

A client is a lecturer, whose lectures were rated by many students. Features: the department of the
lecture, whether it is for students of other departments, how long ago it was, and the student's
semester. Left out: who the student is. No true groups are known. Ratings have no order: test
samples are drawn at random, by the suite.

What is known of a lecture says next to nothing of its mark, but lecturers differ. So one model for
all, federated or of all data in one place, is about as good as to say `other` of every lecture, and
what can be gained is what a client knows of itself: the reference row to look at is `own-majority`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import TidyTable, built, whole
from flbench.datasets.natural.packaged import INSTALL, PackagedColumns, found_in, plain, read_csv

FILE = plain("lme4/InstEval", "106d163eaaee454f155bda351a5a21b0da9dd1a55051a643e0ee76eb0531a136")
CATEGORIES = ("studage", "lectage", "service", "dept")
GOOD = 4
"""The least mark that is good."""
TITLES = {"lecturers": "Marks of lecturers"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "lecturers": DatasetInfo(
        source="ETH Zurich, ratings of lectures; Mächler; table InstEval of lme4",
        licence="not said for the table; pydataset 0.2.0 is MIT",
        fetch=INSTALL,
    )
}
FOUND = {"lecturers": partial(found_in, FILE)}


def lecturers(root: Path) -> Dataset:
    """Whether a lecture gets a good mark from a student: a client per lecturer."""
    return built("lecturers", rows_of(read_csv(FILE)))


def rows_of(table: PackagedColumns) -> TidyTable:
    """The samples of the table as it is."""
    return TidyTable(
        label=np.where(table["y"] >= GOOD, "good", "other"),
        client=whole(table["d"]),
        categories={name: whole(table[name]) for name in CATEGORIES},
        labels=("other", "good"),
    )
