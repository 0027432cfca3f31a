"""Figures of other tasks: the lower error is the better one, and stands first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from drawn_results import desc, texts
from made_results import made
from made_tasks import as_labels, as_numbers
from mentions import mentions

from flbench import figures
from flbench.figures.client_accuracy import sorted_by_median
from flbench.figures.pareto import RowPoint, _step_boxes, named_rows, pareto_front, row_point
from flbench.results.schema import Result
from flbench.tasks import TASKS

Rows = Sequence[tuple[str, Sequence[Result]]]
NUMBERS = TASKS["numbers"]


def errors(**levels: tuple[float, float]) -> Rows:
    """A row for each name: the error that it ends with, and its megabytes per client."""
    return [
        (name, [as_numbers(made(1 - error, method=name, mb_per_client=mb))])
        for name, (error, mb) in levels.items()
    ]


def in_order(words: str, *names: str) -> bool:
    places = [words.index(name) for name in names]
    return places == sorted(places)


def test_the_row_that_ends_with_the_lowest_error_is_the_first_line() -> None:
    svg = figures.curves(errors(bad=(0.8, 1), good=(0.1, 1), middle=(0.4, 1)), "t")
    assert mentions(desc(svg), "RMSE", "good 0.100, middle 0.400, bad 0.800")
    assert "%" not in desc(svg)
    legend = [text for text in texts(svg) if text.split("  ")[0] in ("bad", "good", "middle")]
    assert legend == ["good  0.100", "middle  0.400", "bad  0.800"]
    assert any("RMSE" in text and "lower is better" in text for text in texts(svg))
    assert not any("accuracy" in text or "nats" in text for text in texts(svg))


def test_of_many_rows_those_of_the_highest_errors_have_no_name() -> None:
    svg = figures.curves(errors(**{f"row-{k}": (k / 20, 1) for k in range(1, 15)}), "t")
    named = {text.split("  ")[0] for text in texts(svg) if text.startswith("row-")}
    assert named == {f"row-{k}" for k in range(1, 9)}


@pytest.mark.slow
def test_precisions_are_in_per_cent_and_the_highest_first() -> None:
    rows = [(name, [as_labels(made(value))]) for name, value in (("bad", 0.2), ("good", 0.9))]
    for draw in (figures.curves, figures.clients, figures.pareto):
        svg = draw(rows, "t")
        assert mentions(desc(svg), "mAP", "good 90.0 %")
        assert "mAP" in " ".join(texts(svg)) and "accuracy" not in " ".join(texts(svg))
    assert in_order(desc(figures.curves(rows, "t")), "good", "bad")
    assert in_order(desc(figures.clients(rows, "t")), "good", "bad")


def test_the_front_is_of_low_errors() -> None:
    rows = errors(cheap=(0.8, 1), fair=(0.5, 2), dear=(0.2, 4), bad=(0.9, 3), worse=(0.6, 2))
    svg = figures.pareto(rows, "t")
    front = "Pareto front: cheap 0.800 at 1 MB, fair 0.500 at 2 MB, dear 0.200 at 4 MB"
    assert mentions(desc(svg), front, "Not on it: bad")
    assert "%" not in desc(svg)


@pytest.mark.parametrize("seed", range(3))
def test_the_front_of_errors_is_that_of_what_is_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, 10, (12, 2))
    plain = [made(right / 10, mb_per_client=float(mb)) for right, mb in pairs]
    found = [[row_point("a", [one]), row_point("a", [as_numbers(one)])] for one in plain]
    fronts = [pareto_front([one.point for one in side if one]) for side in zip(*found, strict=True)]
    assert fronts[0] == fronts[1]


def test_beside_the_front_the_lowest_errors_have_names() -> None:
    points = [RowPoint("", NUMBERS, k / 100, 100.0 + k, (0, 0), (0, 0)) for k in range(20)]
    assert named_rows(points, [0]) == list(range(12))
    assert named_rows(points, [0, 19]) == [0, 19, *range(1, 11)]


def test_the_line_of_the_front_may_go_down() -> None:
    right, down = _step_boxes((0.0, 9.0), (5.0, 2.0))
    assert right == (0.0, 8.0, 5.0, 10.0)
    assert down == (4.0, 2.0, 6.0, 9.0)


def test_clients_are_sorted_by_their_median_error() -> None:
    rows = [
        ("c", np.array([0.5, 0.5, 0.5])), ("b", np.array([0.5, 0.5, 0.5])),
        ("a", np.array([1.0, 0.4, 0.4])), ("d", np.array([0.7, 0.5, 0.0])),
    ]  # fmt: skip
    assert [name for name, _ in sorted_by_median(rows, NUMBERS)] == ["a", "d", "b", "c"]
    wide = [as_numbers(made(correct=[0, 30, 40, 50], method="x"))]
    svg = figures.clients([("x", wide), ("y", [as_numbers(made(0.9))])], "t")
    assert in_order(desc(svg), "y 0.100 (0.100)", "x 0.650 (0.910)"), "the 90th percentile"
    assert mentions(" ".join(texts(svg)), "90th percentile")


def test_errors_far_above_one_can_be_drawn() -> None:
    one = as_numbers(made(0.5))
    clients = one.clients.model_copy(update={"values": [0.5, 30.0, 40.0, 1.5]})
    told = {"summary": one.summary | {"rmse_mean": 18.0}, "curves": {"rmse": [900.0, 18.0]}}
    far = one.model_copy(update={"clients": clients, **told})
    drawn = {"curves": figures.curves, "clients": figures.clients, "pareto": figures.pareto}
    ends = {"curves": "far 18.000", "clients": "far 15.750 (37.000)", "pareto": "far 18.000 at 1"}
    for name, draw in drawn.items():
        assert mentions(desc(draw([("far", [far])], "t")), ends[name])
