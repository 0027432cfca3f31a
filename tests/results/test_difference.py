"""`flbench diff`: what keeps two results out of one table, or makes them two rows or runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_results import made
from made_tasks import as_numbers
from mentions import mentions
from toy import Typed, player

from flbench.results.difference import (
    MEANINGS,
    differences,
    relative_distance,
    unlike,
    verdict,
)
from flbench.results.files import write_atomically
from flbench.results.schema import Result, Tuning


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return player(tmp_path_factory.mktemp("toy"))("fedprox").result


def other(result: Result, **changes: Any) -> Result:
    """The same but for some fields; a table is laid over the old one."""
    update = {}
    for name, value in changes.items():
        before = getattr(result, name)
        if isinstance(before, dict):
            update[name] = {**before, **value}
        elif isinstance(value, dict):
            update[name] = before.model_copy(update=value)
        else:
            update[name] = value
    return result.model_copy(update=update)


def test_a_result_does_not_differ_from_itself(result: Result) -> None:
    found = differences(result, result)
    assert found == []
    assert verdict(found) == "the same run"
    assert unlike(result, result, found) == ", with the same numbers"


@pytest.mark.parametrize(
    ("changes", "kind", "field"),
    [
        ({"dataset": "mnist"}, "table", "dataset"),
        ({"suite": {"rounds": 7}}, "table", "suite.rounds"),
        ({"suite": {"version": 9}}, "table", "suite.version"),
        ({"suite": {"local": {"lr": 0.5}}}, "table", "suite.local.lr"),
        ({"fingerprint": {"partition": "0"}}, "table", "fingerprint.partition"),
        ({"fingerprint": {"data": "0"}}, "table", "fingerprint.data"),
        ({"fingerprint": {"initial_weights": "0"}}, "table", "fingerprint.initial_weights"),
        ({"fingerprint": {"cohorts": "0"}}, "table", "fingerprint.cohorts"),
        ({"method": {"name": "fedavg"}}, "row", "method"),
        ({"method": {"params": {"mu": 1.0}}}, "row", "params.mu"),
        ({"tuning": Tuning(budget=4, tried=4, seeds=[1000], score="s")}, "row", "tuning.budget"),
        ({"environment": {"precision": "bf16-mixed"}}, "row", "precision"),
        ({"seed": 3}, "run", "seed"),
        ({"environment": {"python": "2.7"}}, "machine", "environment.python"),
    ],
)
def test_each_field_has_its_weight(
    result: Result, changes: dict[str, Any], kind: str, field: str
) -> None:
    for found in (differences(result, other(result, **changes)),):
        assert (kind, field) in [(one.kind, one.field) for one in found]
        assert verdict(found) == MEANINGS[kind]  # type: ignore[index]
    back = differences(other(result, **changes), result)
    assert [one.field for one in back] == [one.field for one in found]


def test_the_gravest_difference_counts(result: Result) -> None:
    found = differences(result, other(result, seed=3, suite={"rounds": 7}, environment={"os": "x"}))
    assert [one.kind for one in found] == ["table", "run", "machine"]
    assert verdict(found) == MEANINGS["table"]


def test_of_other_seeds_all_but_the_data_may_differ(result: Result) -> None:
    marks = {"partition": "0", "cohorts": "0", "initial_weights": "0"}
    found = differences(result, other(result, seed=1, fingerprint=marks))
    assert [one.field for one in found] == ["seed"]
    found = differences(result, other(result, seed=1, fingerprint={**marks, "data": "0"}))
    assert [one.field for one in found] == ["fingerprint.data", "seed"]


def test_the_paper_a_suite_names_is_told_not_set(result: Result) -> None:
    assert differences(result, other(result, suite={"paper": "another"})) == []


def test_the_version_of_a_plugin_makes_another_row(result: Result) -> None:
    (plugin,) = result.method.plugins
    newer = {"plugins": [plugin.model_copy(update={"version": "9.9"})]}
    (found,) = differences(result, other(result, method=newer))
    assert (found.kind, found.field) == ("row", "plugins.fedprox")
    assert str(found.other).endswith(" 9.9")


def test_the_same_run_with_other_numbers_is_told(result: Result) -> None:
    elsewhere = other(result, environment={"python": "2.7"}, summary={"accuracy_mean": 0.0})
    found = differences(result, elsewhere)
    assert unlike(result, elsewhere, found) == "; but these differ: summary"
    assert unlike(result, other(result, seed=1), differences(result, other(result, seed=1))) == ""


def put(path: Path, result: Result) -> Path:
    write_atomically(path, result.canonical().encode())
    return path


def test_the_command_says_what_differs_and_fails_where_no_table_holds_both(
    result: Result, tmp_path: Path, typed: Typed
) -> None:
    here = put(tmp_path / "a" / "seed-0.json", result)
    code, said, _ = typed("diff", str(here), str(tmp_path / "a"))
    assert code == 0
    assert mentions(said, "numbers")
    put(tmp_path / "b" / "seed-0.json", other(result, suite={"rounds": 7}))
    code, _, told = typed("diff", str(tmp_path), str(here))
    assert code == 1
    assert mentions(told, tmp_path, "one row", "2 rows", tmp_path / "a")
    code, said, _ = typed("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert code == 1
    assert "they cannot share a table\n  suite.rounds: " in said
    assert "accuracy_mean: " in said


def test_of_two_errors_the_lower_one_is_better(tmp_path: Path, typed: Typed) -> None:
    one, two, plain = as_numbers(made(0.25)), as_numbers(made(0.5, method="b")), made(0.75)
    for name, result in (("one", one), ("two", two), ("plain", plain)):
        put(tmp_path / name / "seed-0.json", result)
    code, said, _ = typed("diff", str(tmp_path / "one"), str(tmp_path / "two"))
    assert code == 0
    (line,) = [line for line in said.splitlines() if line.startswith("  rmse_mean: ")]
    assert line.startswith("  rmse_mean: 0.7500 | 0.5000 ")
    assert mentions(line, "B is better", "lower")
    code, said, _ = typed("diff", str(tmp_path / "one"), str(tmp_path / "plain"))
    assert code == 1
    assert "  task: numbers | classes" in said
    assert "  rmse_mean: 0.7500 | -" in said and "  accuracy_mean: - | 0.7500" in said


def test_folders_are_compared_by_a_seed_that_both_have(
    result: Result, tmp_path: Path, typed: Typed
) -> None:
    for folder, seeds in (("a", (0, 2)), ("b", (1, 2))):
        for seed in seeds:
            put(tmp_path / folder / f"seed-{seed}.json", other(result, seed=seed))
    _, said, _ = typed("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert said.count("seed-2.json") == 2
    for folder in ("a", "b"):
        put(tmp_path / folder / "seed-10.json", other(result, seed=10))
    _, said, _ = typed("diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert said.count("seed-2.json") == 2, "the lowest one"
    (tmp_path / "empty").mkdir()
    code, _, error = typed("diff", str(tmp_path / "a"), str(tmp_path / "empty"))
    assert code == 1
    assert error.count("\n") == 1
    assert mentions(error, "result file", "found none")


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        (0.25, 0.5, 0.25),  # numbers up to 1: their difference
        (-0.5, 0.5, 1.0),
        (90, 100, 0.1),
        (-100, 100, 2.0),
        (3, 3, 0.0),
        (None, None, 0.0),
        (0.0, None, float("inf")),
        (None, 1.0, float("inf")),
    ],
)
def test_how_far_two_numbers_are_apart(one: Any, other: Any, distance: float) -> None:
    assert relative_distance(one, other) == pytest.approx(distance)
