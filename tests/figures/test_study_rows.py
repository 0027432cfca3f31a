"""Figures of rows of studies: what is drawn of which rows, and that each is a whole figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_results import EVIL, desc

from flbench import figures
from flbench.figures.study_rows import as_matrix

ROWS: list[dict[str, Any]] = [
    {"suite": "one", "round": 1, "x": [0.5, 1.0, 2.0], "y": [0.1, 0.2, 0.4], "n": 3.0, "m": None},
    {"suite": "two", "round": 2, "x": [0.5, 1.0, 3.0], "y": [0.1, 0.3, 0.4], "n": 5.0, "m": 2},
]


def test_pairs_say_how_they_correlate() -> None:
    svg = figures.pairs(ROWS, ["x", "y"], EVIL)
    assert svg is not None
    both = np.array([[*ROWS[0][name], *ROWS[1][name]] for name in ("x", "y")])
    assert f"{np.corrcoef(*both)[0, 1]:.3f}" in desc(svg)


def test_all_pairs_of_clients_are_a_symmetric_matrix_of_the_first_six() -> None:
    matrix = as_matrix(list(range(1, 29)))  # eight clients
    assert matrix.shape == (6, 6)
    assert (matrix == matrix.T).all() and not matrix.diagonal().any()
    assert matrix[0].tolist() == [0, 1, 2, 3, 4, 5] and matrix[1, 2] == 8
    assert as_matrix([[0.25, 0.75], [1, 0]]).tolist() == [[0.25, 0.75], [1, 0]]


def test_matrices_have_a_panel_for_each_row_and_name() -> None:
    svg = figures.matrices(ROWS, ["x", "y"], EVIL)
    assert svg is not None
    words = desc(svg)
    assert words.count("round 1") == words.count("two") == 2
    assert svg.count(b"<image") == 4


def test_bars_leave_out_what_was_never_reached() -> None:
    svg = figures.bars(ROWS, ["n", "m"], EVIL)
    assert svg is not None
    words = desc(svg)
    assert "one, round 1: n 3.0, m None" in words and "m 2" in words


def test_lines_have_one_for_each_value_and_are_in_order() -> None:
    rows = [*ROWS, {"suite": "one", "round": 0, "n": 4.0}, {"suite": "one", "round": 5, "n": None}]
    svg = figures.lines(rows, ["round", "n", "suite"], EVIL)
    assert svg is not None
    assert desc(svg).endswith("suite one: 0 4.0000, 1 3.0000; suite two: 2 5.0000.")


def lines_by_suite(rows: Any, names: list[str], title: str) -> bytes | None:
    return figures.lines(rows, [*names, "suite"], title)


@pytest.mark.parametrize("draw", [figures.pairs, figures.matrices, figures.bars, lines_by_suite])
def test_without_such_numbers_there_is_no_figure(draw: Any) -> None:
    assert draw([], ["x", "y"], "t") is None
    assert draw([{"suite": "one"}], ["x", "y"], "t") is None
