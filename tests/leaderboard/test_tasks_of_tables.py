"""Tables of other tasks: whatever ranks or compares knows that a low error is the better one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_results import made, twice, write
from made_tasks import as_labels, as_numbers
from mentions import mentions

from flbench.errors import UserError
from flbench.leaderboard.across import PageTable, parts_of, tracks
from flbench.leaderboard.build import board
from flbench.leaderboard.changes import changes
from flbench.leaderboard.html import html
from flbench.leaderboard.markdown import section
from flbench.leaderboard.pages import HOW_TO_READ, OF_TASKS, how_to_read
from flbench.leaderboard.row_details import details
from flbench.leaderboard.separation import separations
from flbench.leaderboard.table import Table, TableRow, tables
from flbench.results.schema import Result

KINDS: dict[str, dict[str, Any]] = {
    "oracle": {"plugin": {"uses_true_groups": True}},
    "local": {"plugin": {"baseline": True}, "alone": True},
    "fedavg": {"plugin": {"baseline": True}},
}
"""What is special about some of the methods."""
ACCURACIES = {"oracle": 90, "b": 80, "a": 74, "c": 73, "fedavg": 60, "local": 50}
"""Per cent of each method's right answers."""
Turn = Callable[[Result], Result]


def as_it_is(result: Result) -> Result:
    return result


def varied(mark: str = "aaaaaaaa", suite: str = "s", **shifts: int) -> list[Result]:
    """Six methods, three seeds and eight clients with accuracies around those of `ACCURACIES`."""
    rng = np.random.default_rng(0)
    clients, seeds = rng.integers(-9, 10, 8), rng.integers(-1, 2, 3)
    found = []
    for name, level in ACCURACIES.items():
        for seed, shift in enumerate(seeds):
            noise = rng.integers(-2, 3, 8)
            correct = np.clip(level + shifts.get(name, 0) + clients + shift + noise, 0, 100)
            one = made(
                correct=correct.tolist(), test=[100] * 8, method=name, seed=seed, mark=mark,
                suite={"name": suite}, **KINDS.get(name, {}),
            )  # fmt: skip
            accuracy = one.summary["accuracy_mean"]
            seconds = {"total": 2.0, "train": 20.0 if name == "a" else 1.0}
            curve = [0.1, accuracy - 0.05, accuracy]
            worst = {"accuracy_worst_decile": float(np.percentile(correct / 100, 10))}
            told = {"summary": one.summary | worst, "curves": {"accuracy": curve}}
            found.append(one.model_copy(update={"seconds": seconds, **told}))
    return found


def table_of(folder: Path, found: Sequence[Result]) -> Table:
    (table,) = tables(write(folder, *found))
    return table


def by_name(table: Table) -> dict[str, TableRow]:
    return {row.name: row for row in table.rows}


def test_a_table_of_errors_ranks_as_that_of_what_is_right(tmp_path: Path) -> None:
    plain = table_of(tmp_path / "plain", varied())
    mirrored = table_of(tmp_path / "mirrored", [as_numbers(one) for one in varied()])
    assert {row.rank for row in plain.compared} > {1}, "it separates some rows"
    assert [row.name for row in mirrored.rows] == [row.name for row in plain.rows]
    for one, other in zip(plain.rows, mirrored.rows, strict=True):
        assert (one.rank, one.ties, one.uneven) == (other.rank, other.ties, other.uneven)
        assert other.mean == pytest.approx(1 - one.mean)
        assert other.interval == pytest.approx([1 - end for end in reversed(one.interval)])
        for ours, theirs in ((one.gain, other.gain), (one.to_oracle, other.to_oracle)):
            assert (ours is None) == (theirs is None)
            assert theirs == pytest.approx(ours) if ours is not None else True
        equal_work = other.at_equal_work()
        for seed, value in one.at_equal_work().items():
            assert equal_work[seed] == pytest.approx(1 - value)


def test_a_table_of_precisions_ranks_as_that_of_accuracies(tmp_path: Path) -> None:
    plain = table_of(tmp_path / "plain", varied())
    other = table_of(tmp_path / "labels", [as_labels(one) for one in varied()])
    for one, two in zip(plain.rows, other.rows, strict=True):
        assert (one.name, one.rank, one.ties, one.gain) == (two.name, two.rank, two.ties, two.gain)
        assert (one.mean, one.interval) == (two.mean, two.interval)


def test_the_method_of_the_lower_error_stands_first_with_rank_one(tmp_path: Path) -> None:
    low, high = made(0.9, method="low"), made(0.2, method="high")
    table = table_of(tmp_path, twice(as_numbers(high), as_numbers(low)))
    assert [(row.name, row.rank, row.ties) for row in table.rows] == [
        ("low", 1, "a"), ("high", 2, "b")
    ]  # fmt: skip
    assert table.task.heading == "RMSE"
    text = "\n".join(section(table, "R"))
    assert "| RMSE |" in text and "| accuracy |" not in text
    assert mentions(text, "numbers", "RMSE", "lower is better")
    assert text.index("0.1000") < text.index("0.8000")


def test_an_interval_of_errors_ends_at_zero_and_not_at_one(tmp_path: Path) -> None:
    found = [
        as_numbers(made(accuracy, method=name, seed=seed, correct=[0, 100]), **{})
        for name, accuracy in (("a", 0.5),)
        for seed in (0, 1)
    ]
    (row,) = table_of(tmp_path, found).rows
    assert row.interval[0] == 0, ".5 ± more"
    assert row.interval[1] > 1


def test_clients_whose_precision_is_undefined_are_in_no_mean(tmp_path: Path) -> None:
    def precise(method: str, *values: float | None, seed: int = 0) -> Result:
        one = as_labels(made(0.5, method=method, seed=seed))
        known = [value for value in values if value is not None]
        clients = one.clients.model_copy(update={"values": list(values)})
        summary = one.summary | {"map_mean": sum(known) / len(known)}
        return one.model_copy(update={"clients": clients, "summary": summary})

    rows = table_of(
        tmp_path / "both",
        [
            *(precise("a", 0.5, None, 0.75, 0.25, seed=seed) for seed in (0, 1)),
            *(precise("b", 0.25, None, 0.5, 0.0, seed=seed) for seed in (0, 1)),
        ],
    ).rows
    assert [(row.name, row.mean, row.rank) for row in rows] == [("a", 0.5, 1), ("b", 0.25, 2)]
    other = [precise("a", 0.5, None, 0.5, 0.5), precise("b", 0.5, 0.5, 0.5, None)]
    with pytest.raises(UserError, match="null"):
        tables(write(tmp_path / "unlike", *other))


def test_two_tasks_share_no_table(tmp_path: Path) -> None:
    found = [made(0.5, method="a"), as_numbers(made(0.5, method="b"))]
    with pytest.raises(UserError, match="task"):
        tables(write(tmp_path, *found))


# --- across tables --------------------------------------------------------------------------------

SUITES = {"s": {}, "t": {"a": 25, "c": -30}, "u": {"fedavg": 30, "b": -20}}
"""Suite -> what is added to the per cent of some methods."""


def boards(folder: Path, *turns: Turn) -> list[Table]:
    """A table for each suite, of the task that its turn gives."""
    for at, (suite, shifts) in enumerate(SUITES.items()):
        turn = turns[at % len(turns)]
        write(folder, *(turn(one) for one in varied(f"{suite * 8}", suite, **shifts)))
    return tables(folder)


def parts(found: Sequence[Table]) -> dict[str, PageTable]:
    return {part.title: part for part in parts_of(found)}


@pytest.mark.slow
@pytest.mark.parametrize("turns", [(as_numbers,), (as_it_is, as_numbers, as_labels)])
def test_methods_compare_across_tables_as_they_do_on_accuracies(
    tmp_path: Path, turns: Sequence[Turn]
) -> None:
    plain = parts(boards(tmp_path / "plain", as_it_is))
    other = parts(boards(tmp_path / "other", *turns))
    kept = [title for title in plain if not title.startswith("Every method against")]
    assert {"Tracks", "Who beats whom: 4 methods"} < {*kept}
    assert sum("methods on 3 tables" in title for title in kept) == 2, "at defaults, at equal work"
    for title in kept:
        assert other[title].headings == plain[title].headings
        assert other[title].lines == plain[title].lines, title


def test_gains_over_one_model_for_all_are_never_a_mean_of_two_tasks(tmp_path: Path) -> None:
    plain = parts(boards(tmp_path / "plain", as_it_is))["Every method against fedavg"]
    found = parts(boards(tmp_path / "mixed", as_it_is, as_numbers, as_labels))
    assert [title for title in found if "against" in title] == [
        "Every method against fedavg", "Every method against fedavg, RMSE",
        "Every method against fedavg, mAP",
    ]  # fmt: skip
    of_one = {line[0]: line for line in found["Every method against fedavg"].lines}
    errors = {line[0]: line for line in found["Every method against fedavg, RMSE"].lines}
    for name, tables_, _, wins, *gains in plain.lines:
        assert tables_ == "3"
        assert of_one[name][1] == errors[name][1] == "1"
        assert 0 <= float(errors[name][3]) <= float(wins) <= 3
        assert errors[name][4] == errors[name][5] == errors[name][6], "of one table"
        assert float(gains[1]) - 0.1 <= 100 * float(errors[name][4]) <= float(gains[2]) + 0.1
    assert float(errors["a"][4]) > 0, "suite t has fewer errors with it"
    assert errors["a"][3] == "1"


def test_no_error_is_taken_for_a_share_of_right_answers(tmp_path: Path) -> None:
    found = boards(tmp_path, as_numbers)
    (defaults, _) = tracks(found)
    for title, rows in defaults.scores.items():
        row = defaults.rows[title]["b"]
        assert rows["b"] == {seed: -value for seed, value in row.by_seed().items()}, title


def test_the_overview_says_of_each_number_what_it_is(tmp_path: Path) -> None:
    boards(tmp_path / "results", as_it_is, as_numbers)
    files = board(tmp_path / "results", tmp_path / "out", draw=False)
    text = files["overview.md"].decode()
    assert mentions(text, "t", "a", "RMSE 0.0500"), "who leads"
    assert mentions(text, "s", "b", "accuracy 0.7696")
    (headings,) = re.findall(r"^\| method \| (Toy.+)$", text, re.MULTILINE)
    assert [cell.strip() for cell in headings.strip(" |").split("|")] == [
        "Toy, s, 3 rounds, accuracy", "Toy, t, 3 rounds, RMSE", "Toy, u, 3 rounds, accuracy",
    ]  # fmt: skip
    assert how_to_read(tables(tmp_path / "results")) == HOW_TO_READ + OF_TASKS


# --- what shows one table -------------------------------------------------------------------------


def test_a_change_of_errors_says_which_way_is_better(tmp_path: Path) -> None:
    before = [as_numbers(one) for one in twice(made(0.5, method="a"), made(0.6, method="b"))]
    (old,) = tables(write(tmp_path / "old", *before))
    better = [as_numbers(one) for one in twice(made(0.9, method="a"), made(0.6, method="b"))]
    (new,) = tables(write(tmp_path / "new", *better))
    text = "\n".join(changes([old], [new]))
    assert mentions(text, "RMSE", "below 0 is better")
    (line,) = [line for line in text.splitlines() if line.startswith("| a ")]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[2].startswith("0.5000") and cells[3].startswith("0.1000")
    assert cells[4:7] == ["-0.4000", "1 of 2", "1"], "the lower error is the first place"
    assert mentions(text, "b (1 to 2)")


def test_the_web_page_names_the_headline_of_a_table(tmp_path: Path) -> None:
    table = table_of(tmp_path, [as_numbers(one) for one in varied()])
    page = {name: data.decode() for name, data in html([table]).items()}
    (rows,) = [text for name, text in page.items() if name.startswith("tables/s--")]
    assert '"headline":"RMSE"' in rows and '"seed","RMSE","worst decile"' in rows
    first = next(row for row in table.compared if row.rank is not None)
    assert first.name == "b"
    assert f"best ranked: b, RMSE {first.mean:.4f}" in page["index.html"]
    about = details(by_name(table)["b"], "R", {})
    assert about["runs"][0][1] == f"{by_name(table)['b'].headlines[0]:.4f}"
    worst = by_name(table)["b"].results[0].summary["rmse_worst_decile"]
    assert about["runs"][0][2] == f"{worst:.4f}"
    assert [round_ for round_, _ in about["curve"]] == [1, 2, 3]
    assert about["curve"][0][1] == 0.9


def test_two_rows_of_errors_are_separated_and_named_with_their_direction(tmp_path: Path) -> None:
    found = [as_numbers(one) for one in varied()]
    table = table_of(tmp_path, found)
    (one,) = separations([table], ("b", "fedavg"))
    assert one.difference == pytest.approx(by_name(table)["b"].mean - by_name(table)["fedavg"].mean)
    assert one.difference < 0
    assert one.separated
    assert mentions(one.lines(), "b less fedavg", "RMSE", "lower is better")
    assert mentions(one.lines(), "separated now")
