"""Metrics of clients on the leaderboard: columns, intervals, clients that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_results import made, page, write

from flbench.leaderboard.html import html
from flbench.leaderboard.statistics import compare, estimate, interval
from flbench.leaderboard.table import client_headlines, tables
from flbench.results.schema import Result

Values = list[float | None]


def asked(values: Mapping[str, Values], **changes: Any) -> Result:
    """A result of four clients with metrics, of which `ece` is better where it is lower."""
    table = made(**changes).model_dump()
    table["client_metrics"] = {
        label: {
            "name": label, "package": "flbench 1.0", "higher_is_better": label != "ece",
            "values": column,
        }
        for label, column in values.items()
    }  # fmt: skip
    return Result.model_validate(table)


def cells(text: str, method: str) -> dict[str, str]:
    """A row of the first table of a page, by heading."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    (found,) = [row for row in rows if method in row]
    return dict(zip(rows[0], found, strict=True))


def test_a_metric_has_its_columns_where_a_row_has_it(tmp_path: Path) -> None:
    f1: Values = [0.0, 0.5, 0.5, 1.0]
    text = page(
        write(
            tmp_path,
            asked({"f1": f1, "ece": [0.1, None, 0.3, 0.2]}, method="m"),
            asked({"f1": [1.0] * 4}, method="m", seed=1),
            made(0.4, method="n"),
        )
    )
    row, other = cells(text, "m"), cells(text, "n")
    assert row["f1"] == "0.7500 ± 0.3536", "mean of .5 and 1 over seeds"
    assert row["f1, worst decile"] == "0.5750", "mean of .15 and 1"
    low, high = interval({0: np.array(f1, dtype=float), 1: np.ones(4)}) or (0, 0)
    assert row["f1, 95 % interval"] == f"{low:.4f} to {high:.4f} (clients only)", "two seeds"
    assert row["ece"] == "0.2000 (1 of 2)"
    assert row["ece, worst decile"] == "0.2800 (1 of 2)", "the 90th percentile of .1, .2, .3"
    assert row["ece, 95 % interval"].endswith(" (clients only)")
    one_seed = {"ece": [0.1, 0.2, 0.3, 0.2]}
    nobody = {"ece": [None] * 4}
    write(tmp_path / "two", asked(one_seed, method="m"), asked(nobody, method="m", seed=1))
    assert cells(page(tmp_path / "two"), "m")["ece, 95 % interval"].endswith(" (clients only)")
    headings = [*row]
    assert headings.index("worst decile") < headings.index("ece") < headings.index("f1")
    for name in ("f1", "f1, 95 % interval", "ece", "ece, worst decile"):
        assert other[name] == "-"


def test_without_metrics_there_is_no_column(tmp_path: Path) -> None:
    text = page(write(tmp_path, made(method="m")))
    assert [name for name in cells(text, "m") if "95 %" in name] == ["95 % interval"]


def test_the_interval_is_that_of_accuracy_where_every_client_has_a_value() -> None:
    rows = {0: np.array([0.1, 0.5, 0.9]), 1: np.array([0.2, 0.4, 0.9])}
    assert interval(rows) == pytest.approx(tuple(compare([rows]).intervals[0]))


def test_clients_without_a_value_are_left_out() -> None:
    assert interval({0: np.array([0.5, np.nan, 0.5])}) == (0.5, 0.5)
    values = {0: np.array([0.2, np.nan, 0.4]), 1: np.array([np.nan, 0.5, np.nan])}
    known = [np.array([0.2, 0.4]), np.array([0.5])]
    # two seeds: of the clients alone; t of one degree of freedom, .1 * sqrt(2) * sqrt(3 / 8)
    assert interval(values) == tuple(estimate(known).within_seeds)
    assert interval(values) == pytest.approx(
        [0.4 - 12.7062 * 0.0866, 0.4 + 12.7062 * 0.0866], abs=1e-3
    )
    assert interval({**values, 2: np.full(3, np.nan)}) == interval(values), "a seed without any"
    assert interval({0: np.array([0.5, np.nan])}) is None, "one client says nothing"
    assert interval({0: np.array([np.nan, np.nan])}) is None
    assert interval({}) is None


def test_a_label_becomes_no_markup(tmp_path: Path) -> None:
    label = "<b>|x"
    folder = write(tmp_path, asked({label: [0.0] * 4}, method="m"))
    assert r"\<b\>\|x" in page(folder)
    assert label.encode() not in b"".join(html(tables(folder)).values())


def test_who_is_not_judged_stands_above_the_table(tmp_path: Path) -> None:
    table = made(0.5, method="m", correct=[50, 60, 70, 80]).model_dump()
    table["suite"]["not_judged"] = [0, 2]
    table["clients"]["test"] = [0, 100, 0, 100]
    table["clients"]["correct"] = [0, 60, 0, 80]
    table["summary"]["accuracy_mean"] = 0.7
    folder = write(tmp_path, Result.model_validate(table))
    (found,) = tables(folder)
    assert "Not judged: clients 0, 2." in page(folder)
    assert found.rows[0].mean == 0.7
    # mean .7 and standard error .1 of the two that are judged; t of one degree of freedom
    assert found.rows[0].interval == (0.0, 1.0)
    assert client_headlines(found.rows[0])[0].tolist() == [0.6, 0.8], "the two that are judged"
