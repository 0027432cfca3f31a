"""`flbench tune`: what is tried, on which seeds, how it is judged, and what its rows say."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from annotated_types import Ge, Le
from made_results import made
from made_tasks import as_numbers
from mentions import mentions
from toy import Play, Typed, toy_suite

from flbench.cli.sweep import conclude
from flbench.cli.tune import task_of
from flbench.core.effect import only_with
from flbench.core.parameters import declared
from flbench.errors import BadParameter, UnknownName, UserError
from flbench.leaderboard.grouping import rows_of, searched_for
from flbench.plugin.registry import entries, load_entry
from flbench.results.files import read_result
from flbench.results.hashed_fields import hashed
from flbench.results.schema import Result, Tuning, contradictions
from flbench.submission.consistency import faults
from flbench.sweeps.launchers import DONE, FAILED, Outcome
from flbench.sweeps.request import RunRequest, resolve
from flbench.sweeps.tuning import (
    FIRST_SEED,
    SCORE,
    Trial,
    grid_of,
    order,
    points,
    rates_of,
    score_of,
    with_effect,
)
from flbench.tasks import TASKS
from flbench.terminal.console import SweepProgress

QUICK = ("--rounds", "2", "--set", "clients=10")


def toy(
    rate: Annotated[float, Ge(0), Le(1)] = 0.4,
    count: Annotated[int, Ge(2)] = 4,
    small: int = 1,
    off: float = 0.0,
    unset: int | None = None,
    kind: Literal["one", "two"] = "one",
    flag: bool = True,
    epochs: int = 5,
) -> None:
    """Parameters of all sorts."""


def test_numbers_are_scaled_within_their_bounds_and_the_rest_is_left_alone() -> None:
    assert grid_of(declared(toy), ("epochs",), {}, {}) == {
        "rate": [0.4, 0.1, 0.2, 0.8],  # 1.6 is too much
        "count": [4, 2, 8, 16],  # 1 is too little
        "small": [1, 0, 2, 4],  # .25 and .5 are both 0
    }


def test_what_the_person_asks_for_is_tried_instead() -> None:
    tried: dict[str, list[Any]] = {"kind": ["two"], "rate": [0.3, 0.4], "epochs": [10]}
    grid = grid_of(declared(toy), ("epochs",), tried, {})
    assert (grid["kind"], grid["rate"], grid["epochs"]) == (["one", "two"], [0.4, 0.3], [5, 10])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UnknownName, match="'nothing'"):
        grid_of(declared(toy), (), {"nothing": [1]}, {})
    with pytest.raises(BadParameter, match="'kind' expects"):
        grid_of(declared(toy), (), {"kind": ["three"]}, {})


def conditional(
    way: Literal["hard", "soft"] = "hard",
    width: Annotated[float, only_with("way", "soft")] = 1.0,
    count: int = 4,
) -> None:
    """A width that has an effect one way only."""


def test_what_has_no_effect_is_not_searched_for() -> None:
    known = declared(conditional)
    assert set(grid_of(known, (), {}, {})) == {"count"}
    assert set(grid_of(known, (), {}, {"way": "soft"})) == {"width", "count"}
    assert set(grid_of(known, (), {"way": ["soft"]}, {})) == {"way", "width", "count"}
    with pytest.raises(BadParameter, match=r"--try width: .* only where way is soft"):
        grid_of(known, (), {"width": [2.0]}, {})
    assert set(grid_of(known, (), {"width": [2.0]}, {"way": "soft"})) == {"width", "count"}
    with pytest.raises(BadParameter, match="--try way and --set way"):
        grid_of(known, (), {"way": ["soft"]}, {"way": "soft"})


def test_points_without_effect_are_one() -> None:
    known, grid = declared(conditional), {"way": ["hard", "soft"], "width": [1.0, 2.0, 4.0]}
    found = points(grid, 50, "m/s", partial(with_effect, known, {}))
    assert found[0] == {}
    expected: list[dict[str, Any]] = [
        {}, {"way": "soft"}, {"way": "soft", "width": 2.0}, {"way": "soft", "width": 4.0},
    ]  # fmt: skip
    assert sorted(found, key=str) == sorted(expected, key=str), "and no more is drawn"
    assert with_effect(known, {"way": "soft"}, {"width": 2.0}) == {"width": 2.0}


def test_points_are_distinct_repeatable_and_begin_with_the_defaults() -> None:
    grid: dict[str, list[Any]] = {"a": [1, 2, 3], "b": [0.5, 0.25]}
    drawn = points(grid, 4, "m/s")
    assert drawn[0] == {}
    assert drawn == points(grid, 4, "m/s")
    assert len({tuple(point.items()) for point in drawn}) == 4
    assert drawn == points(grid, 6, "m/s")[:4], "a larger budget begins the same"
    assert points(grid, 4, "m/t") != drawn or points(grid, 4, "m/u") != drawn


def test_a_small_grid_is_used_up_and_no_more() -> None:
    grid: dict[str, list[Any]] = {"a": [1, 2, 3], "b": [0.5, 0.25]}
    drawn = points(grid, 50, "m/s")
    assert sorted((p.get("a", 1), p.get("b", 0.5)) for p in drawn) == [
        (a, b) for a in (1, 2, 3) for b in (0.25, 0.5)
    ]


def test_the_score_is_the_mean_of_the_last_ten_validation_accuracies(play_toy: Play) -> None:
    result = play_toy("fedavg").result

    def scored(*curves: list[float | None]) -> float | None:
        found = [{"curves": {"accuracy_validation": curve}} for curve in curves]
        return score_of([Outcome(DONE, result=result.model_copy(update=one)) for one in found])

    assert scored([0.0, *[0.5] * 10]) == 0.5
    assert scored([0.2, None, 0.4]) == pytest.approx(0.3)
    assert scored([0.2], [0.6]) == pytest.approx(0.4)
    with pytest.raises(UserError, match="raise validation_fraction"):
        scored([0.2], [None])


def test_the_set_of_the_lowest_validation_error_is_the_best() -> None:
    def scored(*curves: list[float | None]) -> float | None:
        told = [{"rmse_validation": curve, "rmse": [0.0, 0.0]} for curve in curves]
        found = [as_numbers(made(1.0), curves=curves) for curves in told]
        return score_of([Outcome(DONE, result=one) for one in found])

    assert scored([9.0, 0.5], [None, 1.25]) == pytest.approx((4.75 + 1.25) / 2)
    trials = [Trial({"a": n}, score) for n, score in enumerate((0.5, None, 0.2, 0.9, 0.2))]
    by = {
        task: [one.params["a"] for one in sorted(trials, key=partial(order, task=TASKS[task]))]
        for task in TASKS
    }
    assert by == {"numbers": [2, 4, 0, 3, 1], "classes": [3, 0, 2, 4, 1], "labels": [3, 0, 2, 4, 1]}
    outcomes = [Outcome(FAILED, code=1), Outcome(DONE, result=as_numbers(made(0.5)))]
    assert task_of(outcomes).named(SCORE) == "rmse_validation"
    assert task_of(outcomes[:1]).named(SCORE) == "accuracy_validation"


def test_every_effort_parameter_is_declared() -> None:
    for name, entry in entries("methods").items():
        kind = load_entry(entry)
        assert set(getattr(kind, "effort", ())) <= set(declared(kind)), name


@pytest.mark.slow
@pytest.mark.long
def test_a_tuned_row_says_so_and_stands_beside_the_defaults(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # names wrap where there is less place
    code, said, told = typed(
        "tune", "fedprox", "-s", "iid", "--budget", "3", "--try", "mu=0.5,5", *QUICK,
        "--tuning-seeds", "2", "--seeds", "2",
    )  # fmt: skip
    assert code == 0
    assert mentions(told, "3 sets", "2 tuning")
    assert "fedprox (tuned, budget 3)" in said

    trials = sorted(Path("flbench-tuning").rglob("seed-*.json"))
    assert {path.name for path in trials} == {f"seed-{FIRST_SEED + k}.json" for k in (0, 1)}
    assert len(trials) == 6
    report = json.loads(Path("flbench-tuning/iid/digits/fedprox.json").read_text())
    assert [set(one["params"]) for one in report["trials"]].count(set()) == 1
    scores = [one["score"] for one in report["trials"]]
    assert scores == sorted(scores, reverse=True)

    rows = [read_result(path) for path in sorted(Path("flbench-results").rglob("seed-*.json"))]
    assert sorted(one.seed for one in rows) == [0, 0, 1, 1]
    plain = [one for one in rows if one.tuning is None]
    tuned = [one for one in rows if one.tuning is not None]
    assert {one.method.params["mu"] for one in plain} == {0.01}
    assert {one.method.params["mu"] for one in tuned} == {
        {**{"mu": 0.01}, **report["trials"][0]["params"]}["mu"]
    }
    for one in tuned:
        assert one.tuning is not None
        assert one.tuning.model_dump() == {
            "budget": 3, "tried": 3, "seeds": [1000, 1001], "score": "accuracy_validation",
        }  # fmt: skip
        assert one.seed not in one.tuning.seeds
    assert len({one.fingerprint.config for one in rows}) == 2
    assert len({one.fingerprint.suite for one in rows}) == 1, "they share a table"


@pytest.mark.slow
def test_a_search_typed_again_runs_nothing_twice(typed: Typed) -> None:
    words = ("tune", "fedprox", "-s", "iid", "--budget", "2", "--tuning-seeds", "1", *QUICK)
    typed(*words)
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("seed-*.json")}
    code, _, told = typed(*words)
    assert (code, "; 0 to run" in told) == (0, True)
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("seed-*.json")} == before


@pytest.mark.slow
def test_trials_that_fail_are_kept_as_failed_and_never_win(typed: Typed) -> None:
    words = ("tune", "fedprox", "-s", "iid", "--budget", "2", "--try", "mu=1e30")
    code, _, told = typed(*words, "--tuning-seeds", "1", *QUICK)
    assert code == 0
    assert "failed  mu=1e+30" in told
    report = json.loads(Path("flbench-tuning/iid/digits/fedprox.json").read_text())
    assert report["trials"][-1] == {"params": {"mu": 1e30}, "score": None}
    assert report["trials"][0]["params"] == {}


def test_what_is_set_by_hand_is_not_searched(typed: Typed) -> None:
    fixed = ("--set", "fedprox.mu=0.3")
    code, _, error = typed("tune", "fedprox", "-s", "iid", "--budget", "2", *QUICK, *fixed)
    assert code == 1
    assert mentions(error, "fedprox", "--try KEY=V1,V2")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("fedavg", "-s", "iid", "--budget", "2"), "fedavg has no number to tune"),
        (("fedpox", "-s", "iid", "--budget", "2"), "unknown method 'fedpox'"),
        (("fedprox", "-s", "iid", "--budget", "2", "--try", "nu=1"), "unknown parameter to try"),
        (("fedprox", "-s", "iid", "--budget", "2", "--try", "mu=x"), "'mu' expects"),
        (("fedprox", "-s", "nowhere", "--budget", "2"), "unknown suite 'nowhere'"),
        (
            ("fedprox", "-s", "iid", "--budget", "2", "--set", "validation_fraction=0"),
            "tuning needs validation samples: raise validation_fraction",
        ),
        (("ifca+fedprox", "-s", "iid", "--budget", "2"), "takes one method, got 'ifca+fedprox'"),
    ],
)
def test_bad_input_is_one_line(typed: Typed, words: tuple[str, ...], expected: str) -> None:
    code, _, error = typed("tune", *words)
    assert code == 1
    assert error.count("\n") == 1
    assert expected in error


def test_a_parameter_is_tried_once(typed: Typed) -> None:
    twice = ("--try", "mu=0.1", "--try", "mu=0.2")
    code, _, error = typed("tune", "fedprox", "-s", "iid", "--budget", "2", *twice)
    assert code == 2
    assert mentions(" ".join(error.replace("│", "").split()), "--try mu", "--try mu=V1,V2")


@pytest.mark.parametrize("pair", ["mu", "=1", "mu=", " = "])
def test_values_to_try_have_a_name_and_numbers(typed: Typed, pair: str) -> None:
    code, _, error = typed("tune", "fedprox", "-s", "iid", "--budget", "2", "--try", pair)
    assert code == 2
    assert mentions(" ".join(error.replace("│", "").split()), "--try", "KEY=V1,V2", f"got '{pair}'")


@pytest.mark.parametrize(
    ("tuning", "line"),
    [
        (None, "failed: flbench run --plugin fedprox --suite iid --seed 0 --resume"),
        (
            Tuning(budget=2, tried=2, seeds=[1000], score=SCORE),
            "failed: fedprox on iid (digits), seed 0; type the same again",
        ),
    ],
)
def test_a_tuned_run_that_failed_has_no_command_of_its_own(
    tuning: Tuning | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = SweepProgress()
    asked = RunRequest(methods=("fedprox",), suites=("iid",), tuning=tuning, resume=True)
    (cell,) = resolve(asked, progress)
    with pytest.raises(typer.Exit):
        conclude({cell: Outcome(FAILED, code=1)}, progress)
    assert capsys.readouterr().err.splitlines()[-1].strip() == line


@pytest.mark.slow
def test_a_search_of_which_nothing_ends_scores_nothing(typed: Typed) -> None:
    words = ("tune", "fedprox", "-s", "iid", "--budget", "2", "--tuning-seeds", "1", *QUICK)
    code, _, told = typed(*words, "--set", "local.lr=1e30")
    assert code == 1
    assert mentions(told, "flbench-tuning", "trial")
    assert not Path("flbench-results").exists()


def test_learning_rates_are_multiples_of_the_suites() -> None:
    assert rates_of(0.02, [1 / 3, 1, 3]) == [0.02, 0.00667, 0.06]
    assert rates_of(0.1, [2.0, 2.0]) == [0.1, 0.2]


def test_a_learning_rate_that_was_found_computes_what_the_suites_own_would(play_toy: Play) -> None:
    """The result says the suite as it is, and the rate beside it, in a fingerprint of its own."""
    found = Tuning(budget=3, tried=3, seeds=[FIRST_SEED], score="s", lr=0.3)
    suite = toy_suite(rounds=2)
    raised = suite.model_copy(update={"local": replace(suite.local, lr=0.3)})
    usual, other = (play_toy("fedavg", suite=one).result for one in (suite, raised))
    tuned = play_toy("fedavg", suite=suite, tuning=found).result
    assert tuned.curves["loss"] == other.curves["loss"] != usual.curves["loss"]
    assert tuned.suite == usual.suite
    assert tuned.fingerprint.config not in (usual.fingerprint.config, other.fingerprint.config)
    assert tuned.fingerprint.suite == usual.fingerprint.suite != other.fingerprint.suite
    assert not list(faults(tuned))
    assert Result.model_validate_json(tuned.canonical()).tuning == found


def test_no_rate_is_in_no_hash_and_in_no_file(play_toy: Play) -> None:
    plain = Tuning(budget=3, tried=3, seeds=[FIRST_SEED], score="s")
    assert hashed(plain, plain.model_dump()) == {
        "budget": 3, "tried": 3, "seeds": [FIRST_SEED], "score": "s"
    }  # fmt: skip
    result = made(0.5).model_copy(update={"tuning": plain})
    assert '"lr"' not in result.canonical().partition('"tuning":')[2].partition("\n")[0]


@pytest.mark.parametrize("asked", ["0", "1", "x", "1/0", "-1,2", ","])
def test_factors_that_are_none(typed: Typed, asked: str) -> None:
    code, _, told = typed("tune", "fedavg", "-s", "iid", "--try-lr", asked)
    assert code == 2
    assert mentions(told, "--try-lr", "1/3,3")


def test_a_factor_that_rounds_away_is_no_other_rate() -> None:
    assert rates_of(0.01234, [1, 1.0001, 3]) == [0.01234, 0.037]
    with pytest.raises(BadParameter, match=r"--try-lr: every factor gives .* 0\.05, to three"):
        rates_of(0.05, [1.0001, 0.99999])


@pytest.mark.parametrize("more", [(), ("--try", "mu=1"), ("--try-lr", "3", "--try", "mu=1")])
def test_one_search_is_asked_for(typed: Typed, more: tuple[str, ...]) -> None:
    code, _, told = typed("tune", "fedprox", "-s", "iid", *more)
    assert code == 2
    assert mentions(told, "--budget", "--try-lr")


def test_no_seed_is_searched_on_and_scored(typed: Typed) -> None:
    code, _, told = typed("tune", "fedprox", "-s", "iid", "--budget", "2", "--seeds", "1001")
    assert code == 2
    assert mentions(told, "--seeds", 1000, 1001)


@pytest.mark.slow
def test_the_best_learning_rate_of_several_methods_in_one_command(typed: Typed) -> None:
    code, _, told = typed(
        "tune", "fedavg,local-only,fedavg", "-s", "iid", "--try-lr", "1/1000,1", *QUICK,
        "--tuning-seeds", "1", "--seeds", "2",
    )  # fmt: skip
    assert code == 0
    assert mentions(told, "fedavg", "2 learning rates") and mentions(told, "local-only", "2")
    assert told.count("of fedavg; 1 tuning seeds each") == 1, "once, though it is named twice"
    rows = [read_result(path) for path in sorted(Path("flbench-results").rglob("seed-*.json"))]
    usual = {one.fingerprint.suite for one in rows}
    assert len(usual) == 1, "they are rows of one table"
    tuned = [one for one in rows if one.tuning is not None]
    assert [(one.method.name, one.seed) for one in tuned] == [
        (name, seed) for name in ("fedavg", "local-only") for seed in (0, 1)
    ]
    for one in tuned:
        report = json.loads(
            Path(f"flbench-tuning/iid/digits/{one.method.name}-lr.json").read_text()
        )
        assert one.tuning is not None
        best = report["trials"][0]["params"].get("suite.local.lr", one.suite["local"]["lr"])
        assert (one.tuning.lr, one.tuning.tried) == (best, 2)
        assert report["seconds"] > 0
    names = {row.name for rows in rows_of(rows).values() for row in rows if row.tuning}
    assert names == {
        f"{one.method.name} (tuned, budget 2, lr={one.tuning.lr:g})" for one in tuned if one.tuning
    }


@pytest.mark.slow
def test_learning_rates_and_parameters_in_one_search(typed: Typed) -> None:
    """A method without parameters has the rates alone; with the suite's rate all is as it was."""
    code, _, told = typed(
        "tune", "fedavg,fedprox", "-s", "iid", "--try-lr", "1/1000,1/100", "--budget", "5",
        "--try", "mu=0.5", *QUICK, "--tuning-seeds", "1",
    )  # fmt: skip
    assert code == 1
    assert mentions(told, "unknown parameter to try", "mu")  # of fedavg
    code, _, _ = typed(
        "tune", "fedavg,fedprox", "-s", "iid", "--try-lr", "1/1000,1/100", "--budget", "5",
        *QUICK, "--tuning-seeds", "1",
    )  # fmt: skip
    assert code == 0
    rows = [read_result(path) for path in sorted(Path("flbench-results").rglob("seed-*.json"))]
    found = {one.method.name: one.tuning for one in rows if one.tuning is not None}
    assert {name: (one.budget, one.tried, one.lr, one.both) for name, one in found.items()} == {
        "fedavg": (5, 3, 0.05, True), "fedprox": (5, 5, 0.05, True),
    }  # fmt: skip
    trials = {
        name: json.loads(Path(f"flbench-tuning/iid/digits/{name}-both.json").read_text())["trials"]
        for name in found
    }
    rates = {one["params"].get("suite.local.lr", 0.05) for one in trials["fedavg"]}
    assert rates == {0.05, 0.0005, 5e-05}
    keys = [set(one["params"]) for one in trials["fedprox"]]
    assert set().union(*keys) == {"suite.local.lr", "mu"} and set() in keys
    groups = [row for rows in rows_of(rows).values() for row in rows if row.tuning]
    assert {row.search for row in groups} == {"tuned, budget 5, learning rate and parameters"}
    assert {searched_for(row) for row in groups} == {"learning rates with parameters"}


def test_a_search_for_both_found_a_rate(play_toy: Play) -> None:
    found = Tuning(budget=3, tried=3, seeds=[FIRST_SEED], score="s", lr=0.3, both=True)
    result = play_toy("fedavg", suite=toy_suite(rounds=1), tuning=found).result
    assert Result.model_validate_json(result.canonical()).tuning == found
    without = result.model_copy(update={"tuning": found.model_copy(update={"lr": None})})
    assert [field for field, _ in contradictions(without)] == ["tuning.lr"]
    rate = Tuning(budget=3, tried=3, seeds=[FIRST_SEED], score="s", lr=0.3)
    other = play_toy("fedavg", suite=toy_suite(rounds=1), tuning=rate).result
    assert other.fingerprint.config != result.fingerprint.config
