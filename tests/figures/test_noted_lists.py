"""Which plot a noted list of numbers gets, by hand, and that each is drawn."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from drawn_results import EVIL, desc, full, root_of

from flbench import Result, figures
from flbench.figures.noted_lists import noted_lists
from flbench.sinks import wandb_tables


def noting(*values: Any, name: str = "mine.list") -> Result:
    """A result whose method noted a value in each of the first rounds."""
    notes = [{"round": at, "name": name, "value": value} for at, value in enumerate(values, 1)]
    return full("one").model_copy(update={"notes": notes})


@pytest.mark.parametrize(
    ("values", "plot"),
    [
        (([0.5], [], [0.25]), "line"),  # as dc-pfl.radius
        (([-0.5, -0.7], [-0.4, -0.9]), "line"),  # as dc-pfl.trial
        (([0.2, 0.3, 0.5], [0.1, 0.1, 0.8]), "heat map"),  # as fedc2i.influence_0
        (([0.2, -0.3, 0.5],), "bars"),  # as pfedlia.influence_0
        (([2, 2, 1, 3], [4, 4, 4, 4]), "histogram"),  # as flis-dc.sizes
        (([2, 2, 1, 3],), "histogram"),  # as pfedlia.selected
        (([0.2, 0.3, 0.5], [0.1, 0.9]), "histogram"),  # no place is one thing
        (([3.0, 1, 2], [1.0, 1.0, 1.0]), "heat map"),
    ],
)
def test_what_a_note_is_drawn_as(values: tuple[Any, ...], plot: str) -> None:
    result = noting(*values)
    (noted,) = noted_lists(result)
    assert noted.plot == plot
    ((name, svg),) = figures.notes(result, EVIL)
    assert name == "mine.list"
    every = [value for each in values for value in each]
    assert f"as {plot}" in desc(svg)
    assert f"{min(every):.4g} to {max(every):.4g}" in desc(svg)
    assert root_of(svg).tag.endswith("svg")
    ((_, again),) = figures.notes(result, EVIL)
    assert svg == again, "the same result gives the same bytes"


def test_only_lists_of_numbers_are_drawn_and_by_name() -> None:
    result = noting([1.0, 2.0, 3.0])
    others = (3, "x", [], ["a"], [True, False], [[1.0]], {"a": [1.0]}, None)
    more = [{"round": 1, "name": f"b.{at}", "value": value} for at, value in enumerate(others)]
    last = {"round": 2, "name": "a.list", "value": [5]}
    result = result.model_copy(update={"notes": [*result.notes, *more, last]})
    assert [one.name for one in noted_lists(result)] == ["a.list", "mine.list"]
    assert [one.rounds for one in noted_lists(result)] == [[2], [1]]
    assert list(figures.notes(full("one"), "no notes")) == []


def test_equal_values_and_large_ones_are_drawn() -> None:
    """No range to divide by, one bin, more bins than values."""
    for values in (([7, 7, 7],), ([7, 7, 7],) * 2, ([0.5] * 3,) * 3, ([1, 5000, 10**9],) * 2):
        for _, svg in figures.notes(noting(*values), ""):
            ElementTree.fromstring(svg)


@pytest.mark.slow
def test_wandb_gets_them_beside_the_other_figures() -> None:
    result = noting([0.2, 0.3, 0.5], [0.1, 0.1, 0.8])
    found = dict(wandb_tables.figures(result))
    assert {"curves", "clients", "mine.list"} <= set(found)
    assert "mine.list" not in dict(wandb_tables.figures(full("one")))
