"""Paper cards: numbers, verdicts, and `flbench reproduce`."""

from __future__ import annotations

import codecs
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_results import made
from mentions import mention, mentions
from toy import Typed

from flbench.cli import reproduce
from flbench.errors import BadParameter, UnknownName, UserError
from flbench.metrics import Rule
from flbench.papers import page as paper_page
from flbench.papers.paper import (
    SCALES,
    Claim,
    Doubt,
    Paper,
    PaperTable,
    PublishedValue,
    load_paper,
    numbers,
    plugin_of,
)
from flbench.papers.reproduction import (
    UNSETTLED,
    Plan,
    ReproducedValue,
    cells,
    findings,
    margin,
    number_of,
    of_domain,
    planned,
    separated,
    verdict,
)
from flbench.plugin.registry import entries
from flbench.results.audits import Audit, content_digest, run_key
from flbench.results.files import read_result, save_result
from flbench.results.schema import Result
from flbench.suite import load_suite
from flbench.sweeps import sweep
from flbench.sweeps.launchers import Outcome
from flbench.sweeps.request import Cell, RunRequest
from flbench.sweeps.sweep import run_missing
from flbench.terminal.console import SweepProgress

ROOT = Path(__file__).parents[2]
PAPERS = sorted(entries("papers"))


# --- verdicts ---------------------------------------------------------------------------------


def column(**values: float) -> dict[str, PublishedValue]:
    return {name: PublishedValue("s", "d", name, value, None) for name, value in values.items()}


PAPER = column(a=0.90, b=0.60, c=0.58)


def by_number(ours: dict[str, list[float]]) -> dict[PublishedValue, list[float]]:
    return {PAPER[name]: values for name, values in ours.items()}


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({}, "not run"),
        ({"a": []}, "not run"),
        ({"a": [0.88]}, "equal"),
        ({"a": [0.80, 0.96]}, "equal"),  # their mean is .88
        ({"a": [0.86]}, "no order"),  # .04 away, and nobody to compare it with
        ({"a": [0.70], "b": [0.50]}, "same ordering"),
        ({"a": [0.70], "b": [0.75]}, "different"),
        ({"a": [0.70], "b": [0.50], "c": [0.71]}, "different"),  # below one of two
    ],
)
def test_a_verdict_by_hand(ours: dict[str, list[float]], expected: str) -> None:
    assert verdict(PAPER["a"], by_number(ours), 0.03) == expected


def test_what_the_paper_does_not_set_apart_has_no_order() -> None:
    """b and c are .02 apart, within the tolerance: which is above does not matter."""
    assert verdict(PAPER["b"], by_number({"b": [0.40], "c": [0.30]}), 0.03) == "no order"
    ours = {"b": [0.40], "c": [0.45], "a": [0.80]}
    assert verdict(PAPER["b"], by_number(ours), 0.03) == "same ordering"
    assert verdict(PAPER["b"], by_number({**ours, "a": [0.30]}), 0.03) == "different"


def test_numbers_of_domains_and_newcomers_have_their_own_deviations() -> None:
    card = load_paper("fedc2i")
    found = {n.method: n for n in numbers(card.table("1").of_domain("mnist-m"))}
    assert (found["fedc2i"].value, found["fedc2i"].std) == (0.836, 0.0094)
    # of the mean of three domains at most (.93 + .35 + .94) / 3 hundredths
    (mean,) = [n for n in numbers(card.table("1b")) if n.method == "fedc2i"]
    assert mean.std == pytest.approx((0.0093 + 0.0035 + 0.0094) / 3, abs=5e-5)
    late = {n.dataset: n for n in numbers(load_paper("flis").table("4")) if n.method == "fednova"}
    assert late["fashion-mnist"].std == 0.0281


@pytest.mark.parametrize(("std", "bound"), [(0.1, 0.03), (0.01, 0.01), (None, 0.03), (0.0, 0.0)])
def test_the_bound_is_the_papers_deviation_or_the_tolerance(
    std: float | None, bound: float
) -> None:
    """The smaller of the two: within a deviation of .1 nearly anything would agree."""
    one = PublishedValue("s", "d", "a", 0.9, std)
    assert margin(one, 0.03) == bound
    assert verdict(one, {one: [0.9 + bound]}, 0.03) == "equal", "at the bound, rounding aside"
    assert verdict(one, {one: [0.9 - bound - 0.001]}, 0.03) == "no order"


def test_a_wide_deviation_sets_nothing_apart() -> None:
    """a and b are .3 apart, one of them ± .35: which is above says nothing."""
    sure, unsure = (
        PublishedValue("s", "d", "a", 0.9, 0.01),
        PublishedValue("s", "d", "b", 0.6, 0.35),
    )
    assert not separated(sure, unsure, 0.03)
    assert verdict(sure, {sure: [0.5], unsure: [0.4]}, 0.03) == "no order"
    surer = replace(unsure, std=0.05)
    assert verdict(sure, {sure: [0.5], surer: [0.4]}, 0.03) == "same ordering"


def test_a_doubtful_number_has_no_verdict_and_no_part_in_others() -> None:
    doubted = {name: replace(one, doubt="smudged") for name, one in PAPER.items()}
    assert verdict(doubted["a"], {doubted["a"]: [0.9]}, 0.03) == "doubtful"
    assert verdict(doubted["a"], {doubted["a"]: []}, 0.03) == "not run"
    a, b = PAPER["a"], PAPER["b"]
    assert verdict(a, {a: [0.7], b: [0.75]}, 0.03) == "different"
    assert verdict(a, {a: [0.7], b: [0.5], doubted["c"]: [0.75]}, 0.03) == "same ordering"


def test_a_run_whose_accuracy_still_moves_gets_no_verdict_on_when_it_is_final() -> None:
    def plans_of(final: float) -> tuple[ReproducedValue, ...]:
        result = SimpleNamespace(
            seed=0,
            method=SimpleNamespace(plugins=[]),
            environment={},
            suite={"rounds": 50, "dataset": "d"},
            metrics=lambda: {"rounds_to_final": final, "seconds_to_final": 9.0},
        )
        cell: Any = SimpleNamespace(spec=SimpleNamespace(suite=SimpleNamespace(dataset="d")))
        plan = Plan(PublishedValue("s", "d", "a", 9.0, None), (cell,))
        table = PaperTable(
            caption="", suites=["s"], datasets=["d"], methods=["a"],
            column="seconds", ours="seconds_to_final",
        )  # fmt: skip
        ran: Any = {id(cell): SimpleNamespace(result=result, why="")}
        known: Any = SimpleNamespace(get=lambda one: ran[id(one)])
        return tuple(findings(table, [plan], known))

    ((settled,), (moving,)) = plans_of(40), plans_of(41)
    assert settled.verdict == "equal"
    assert (moving.verdict, moving.printed.doubt) == ("not final", ""), "the paper's is sure"
    assert cells(moving, "small")[-1] == f"not final: {UNSETTLED}"


def test_a_doubt_is_about_the_cells_that_it_names() -> None:
    doubt = Doubt(suites=["s"], methods=["a", "b"], why="smudged")
    assert doubt.about("s", "any", "b")
    assert not doubt.about("t", "any", "b")
    assert not doubt.about("s", "any", "c")
    assert Doubt(why="all of it").about("s", "any", "c")


def test_of_numbers_above_one_the_tolerance_is_a_share() -> None:
    rounds = PublishedValue("s", "d", "a", 200, None)
    assert verdict(rounds, {rounds: [185]}, 0.1) == "equal"
    assert verdict(rounds, {rounds: [179]}, 0.1) == "no order"


# --- cards ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPERS)
def test_every_card_can_be_read_and_its_names_are_installed(name: str) -> None:
    card = load_paper(name)
    known = {kind: set(entries(kind)) for kind in ("suites", "methods", "studies", "datasets")}
    assert card.tables
    assert card.anomalies
    for grid in card.tables.values():
        assert set(grid.suites) <= known["suites"]
        assert {plugin_of(method)[0] for method in grid.methods} <= known["methods"]
        assert set(grid.scale) <= set(SCALES)
        for scale in grid.scale.values():
            names = {dataset.partition("[")[0] for dataset in grid.datasets}
            assert set(scale.on) <= set(grid.datasets)
            assert names <= known["datasets"]
        found = list(numbers(grid))
        assert {one.method for one in found} == set(grid.methods), "each has a number"
        for doubt in grid.doubtful:
            about = [doubt.about(one.suite, one.dataset, one.method) for one in found]
            assert any(about), "it is about a number of the table"
            assert set(doubt.methods) <= {
                one.method for one, it in zip(found, about, strict=True) if it
            }
    for claim in card.claims:
        assert claim.study in {*known["studies"], ""}
        assert set(claim.suites) <= known["suites"]
        assert not (claim.study and claim.suites)
        assert claim.study or claim.suites or claim.leads


@pytest.mark.parametrize(
    ("paper", "table", "count", "suite", "dataset", "method", "value"),
    [
        ("pfedlia", "1", 45, "pathological-noniid", "cifar10", "pfedlia", 0.8608),
        ("pfedlia", "1", 45, "noisy-noniid", "cifar100", "cfl", 0.2509),
        ("flis", "1", 88, "label-skew-20", "cifar10", "flis-dc", 0.8947),
        ("flis", "1", 88, "label-skew-30", "fashion-mnist", "local-only", 0.9393),
        ("flis", "2", 33, "dirichlet-0.1", "cifar10", "scaffold", 0.1),
        ("flis", "3", 24, "label-skew-20", "fashion-mnist", "flis-hc", 12),
        ("flis", "3-costs", 24, "label-skew-30", "svhn", "flis-hc", 8.73),
        ("flis", "4", 40, "label-skew-20", "cifar100", "lg-fedavg", 0.1063),
        ("fedc2i", "1", 7, "digit-5", "digit-5", "fedc2i", 0.855),
        ("fedc2i", "2", 7, "office-10", "office-caltech", "local-only", 0.6032),
        ("fedc2i", "3", 8, "office-10", "office-caltech", "fedc2i-lambda", 0.6307),
        ("fedc2i", "4", 10, "digit-5", "digit-5", "fedc2i (gamma=2)", 0.8548),
        ("dc-pfl", "1", 15, "primary-secondary-high", "cifar10", "dc-pfl", 0.817),
        ("dc-pfl", "2", 15, "primary-secondary-low", "fashion-mnist", "clusterfl", 0.901),
    ],
)
def test_a_table_has_the_papers_numbers(
    paper: str, table: str, count: int, suite: str, dataset: str, method: str, value: float
) -> None:
    found = list(numbers(load_paper(paper).table(table)))
    assert len(found) == count
    (one,) = [n for n in found if (n.suite, n.dataset, n.method) == (suite, dataset, method)]
    assert one.value == value


@pytest.mark.parametrize("name", PAPERS)
def test_suites_and_cards_name_one_rule_for_a_papers_accuracies(name: str) -> None:
    card = load_paper(name)
    for grid in (one for one in card.tables.values() if one.column == "accuracy_mean"):
        assert {load_suite(suite).printed_judged for suite in grid.suites} == {grid.judged}


def test_flis_is_judged_by_own_models_under_its_thresholds() -> None:
    card, request = load_paper("flis"), RunRequest()
    assert {name for name, grid in card.tables.items() if grid.judged == "own"} == {
        "1", "1-validated", "2", "2-validated",
    }  # fmt: skip
    assert card.table("4").judged == "tuned", "newcomers after five epochs of their own"
    for scale, rounds in (("paper", 200), ("large", 100)):
        found = planned(card.table("1"), scale, request, 1, SweepProgress())
        specs = [cell.spec for plan in found for cell in plan.cells]
        assert all(spec.suite.own_models and spec.suite.rounds == rounds for spec in specs)
        used = {
            spec.suite.dataset: spec.method.described.params["beta"]
            for spec in specs
            if spec.method.described.name == "flis-dc"
        }
        assert used["fashion-mnist"] == 0.5
        assert used.get("cifar10", 0.3) == 0.3
    joining = planned(card.table("4"), "paper", request, 1, SweepProgress())
    assert not any(cell.spec.suite.own_models for plan in joining for cell in plan.cells), (
        "newcomers are judged after their own training anyway"
    )


@pytest.mark.parametrize(
    ("judged", "column", "expected"),
    [
        ("served", "accuracy_mean", "accuracy_mean"),
        ("own", "accuracy_mean", "accuracy_own_mean"),
        ("tuned", "accuracy_mean", "accuracy_fine_tuned"),
        ("own", "unseen_accuracy_tuned", "unseen_accuracy_tuned"),
        ("own", "rmse_mean", "rmse_own_mean"),
        ("tuned", "map_mean", "map_fine_tuned"),
        ("own", "mb_per_client", "mb_per_client"),
    ],
)
def test_the_rule_says_which_of_our_numbers_is_compared(
    judged: Rule, column: str, expected: str
) -> None:
    grid = load_paper("flis").table("1").model_copy(update={"column": column})
    assert grid.measured(judged) == expected


def test_the_accuracy_of_a_domain_is_that_of_its_clients() -> None:
    clients = SimpleNamespace(group=[0, 1, 1], correct=[9, 2, 0], test=[10, 4, 5])
    metrics = {"accuracy_mean": 0.4, "accuracy_b": 0.7}
    one: Any = SimpleNamespace(clients=clients, metrics=lambda: metrics)
    assert number_of(one, "accuracy_mean", ["a", "b"]) == 0.4
    assert number_of(one, "accuracy_a", ["a", "b"]) == 0.9
    assert number_of(one, "accuracy_b", ["a", "b"]) == 0.25
    assert number_of(one, "accuracy_b") == 0.7, "no domain of the table: a number of the summary"
    clients.group = None
    assert number_of(one, "accuracy_a", ["a"]) is None


@pytest.mark.parametrize(
    ("table", "domain", "method", "value"),
    [("1", "svhn", "fedc2i", 0.7278), ("1b", "mnist-m", "fedc2i", 0.836)],
)
def test_each_domain_of_fedc2is_table_is_compared(
    table: str, domain: str, method: str, value: float
) -> None:
    grid = load_paper("fedc2i").table(table)
    place = grid.suites[0], grid.datasets[0]
    clients = SimpleNamespace(
        group=list(range(len(grid.domains))),
        correct=[80] * len(grid.domains),
        test=[100] * len(grid.domains),
    )
    runs: Any = (SimpleNamespace(clients=clients, seed=0),)
    rows = [
        ReproducedValue(PublishedValue(*place, name, 0.5, None), runs, (0.5,), "equal")
        for name in grid.methods
    ]
    found = of_domain(grid, domain, rows)
    assert [one.printed.method for one in found] == grid.methods
    (one,) = [one for one in found if one.printed.method == method]
    assert (one.printed.value, one.values) == (value, (0.8,))
    assert one.verdict == verdict(one.printed, {o.printed: [0.8] for o in found}, 0.03)


def test_a_number_of_ours_may_have_another_name() -> None:
    grid = load_paper("dc-pfl").table("seconds")
    assert (grid.column, grid.measured("served")) == ("seconds", "seconds_to_final")
    found = [n.value for n in numbers(grid) if (n.suite, n.method) == ("own-shares-low", "dc-pfl")]
    assert found == [415, 265], "on CIFAR-10 and on Fashion-MNIST"


def test_a_number_may_be_the_difference_of_two() -> None:
    grid = load_paper("dc-pfl").table("compute")
    found = [n.value for n in numbers(grid) if (n.suite, n.method) == ("own-shares-low", "dc-pfl")]
    assert found == [415 - 107, 265 - 73]
    run: Any = SimpleNamespace(
        metrics=lambda: {"seconds_to_final": 9.0, "link_seconds_to_final": 2.5}
    )
    assert number_of(run, grid.measured("served")) == 6.5
    lacks: Any = SimpleNamespace(metrics=lambda: {"seconds_to_final": 9.0})
    assert number_of(lacks, grid.measured("served")) is None


def test_a_card_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(CARD.replace("summary =", "sumary ="))
    with pytest.raises(BadParameter, match=r"mine\.toml': '(summary|sumary)': "):
        load_paper(str(path))
    with pytest.raises(BadParameter, match="cannot read"):
        load_paper(str(tmp_path / "none.toml"))
    with pytest.raises(UnknownName, match="pfedlia"):
        load_paper("pfedlai")


# --- reproduce --------------------------------------------------------------------------------

SUITE = """
version = 1
summary = "two groups"
dataset = "digits"
clients = 8
participation = 0.5
rounds = 2
partition = "iid"
model = { name = "mlp", hidden = 4 }
local = { epochs = 1, batch_size = 32, lr = 0.1, optimizer = "adam" }

[printed.digits]
fedavg = { accuracy_mean = 0.5, accuracy_std = 0.5 }
local-only = { accuracy_mean = 0.999 }
scaffold = { accuracy_mean = 0.1 }

[printed.cifar10]
fedavg = { accuracy_mean = 0.2 }
"""
CARD = """
summary = "a paper of the tests"
title = "On <Tests>"
authors = "N. N."
venue = "here"
link = "https://example.org"
anomalies = ["it has no clusters"]

[tables.1]
caption = "Table 1"
suites = ["SUITE"]
datasets = ["digits", "cifar10"]
methods = ["fedavg", "local-only", "scaffold"]
tolerance = 0.5

[tables.1.scale.small]
seeds = 2
on = { digits = { rounds = 1, "local-only.schedule" = "full" } }

[tables.1.scale.paper]
needs = { "model.weights" = "a file" }
on = { digits = {}, cifar10 = {} }

[tables.2]
caption = "Table 2"
suites = ["SUITE"]
datasets = ["cifar10"]
methods = ["fedavg"]

[tables.2.scale.paper]
on = { cifar10 = {} }
"""


@pytest.fixture
def card(tmp_path: Path) -> str:
    suite = tmp_path / "two.toml"
    suite.write_text(SUITE)
    path = tmp_path / "mine.toml"
    path.write_text(CARD.replace("SUITE", str(suite)))
    return str(path)


@pytest.mark.slow
def test_reproduce_runs_what_is_missing_and_says_what_came_of_it(card: str, typed: Typed) -> None:
    code, said, told = typed("reproduce", card, "--table", "1")
    assert code == 0
    assert mentions(told, "6 cells", "none", "6 to run")
    rows = {line.split("│")[1].strip(): line for line in said.splitlines() if "│" in line}
    assert "0.5000 ± 0.5000" in rows["fedavg"]
    assert "agrees" in rows["fedavg"]
    assert "0, 1" in rows["local-only"]
    assert mentions(rows["scaffold"], "not run", "scaffold", "SCAFFOLD", "SGD")
    assert mentions(said, "cifar10", "not run")
    assert said.splitlines()[-1].startswith("4 numbers: 1 agrees")
    assert sorted(path.name for path in Path("flbench-results").rglob("seed-*.json")) == [
        "seed-0.json", "seed-0.json", "seed-1.json", "seed-1.json",
    ]  # fmt: skip

    code, again, told = typed("reproduce", card, "--table", "1")
    assert (code, "; 0 to run" in told) == (0, True)
    assert again.splitlines()[-1] == said.splitlines()[-1]


@pytest.mark.slow
def test_a_part_of_a_table_is_run(card: str, typed: Typed) -> None:
    part = ("reproduce", card, "--table", "1", "--seeds", "1", "--method", "fedavg")
    code, said, told = typed(*part, "--precision", "bf16-mixed")
    assert code == 0
    assert mentions(told, "1 cells", "1 to run")
    assert mentions(said, "fedavg (bf16-mixed)") and "local-only" not in said
    assert "fedavg (bf16-mixed)" in typed("reproduce", card, "--markdown")[1], "no other is there"
    code, said, _ = typed(*part)
    assert (code, "bf16" in said) == (0, False), "it is another run"
    for option, names in (("--method", ("fedav", "fedavg")), ("--suite", ("one", "two"))):
        code, _, told = typed("reproduce", card, "--table", "1", option, names[0])
        assert (code, mentions(told, *names)) == (1, True)


@pytest.mark.slow
def test_reproduce_trains_clients_as_it_is_told(card: str, typed: Typed) -> None:
    code, said, _ = typed("reproduce", card, "--table", "1", "--executor", "vectorised")
    assert code == 0
    assert said.splitlines()[-1].startswith("4 numbers: 1 agrees")
    paths = list(Path("flbench-results").rglob("seed-*.json"))
    assert {read_result(path).environment["executor"] for path in paths} == {"vectorised"}
    _, _, told = typed("reproduce", card, "--table", "1")
    assert "; 0 to run" in told, "the executor is no part of a setting"
    code, _, told = typed("reproduce", card, "--executor", "lanes", "--seeds", "3")
    assert code == 2
    assert mentions(told, "lanes", "auto", "sequential", "vectorised")


@pytest.mark.slow
def test_results_of_other_versions_are_compared_where_this_one_has_none(
    card: str, typed: Typed
) -> None:
    typed("reproduce", card, "--table", "1")
    for path in Path("flbench-results").rglob("seed-*.json"):
        older = path.parent.with_name("01d00000") / path.name
        older.parent.mkdir(exist_ok=True)
        result = read_result(path)
        method = result.method.model_dump()
        method["plugins"][0]["version"] = "0.0.1"
        if result.method.name == "local-only":
            method["params"] = {"schedule": "participation"}  # another setting than the card's
        marks = result.fingerprint.model_copy(update={"config": "01d00000"})
        changed = {"method": type(result.method).model_validate(method), "fingerprint": marks}
        save_result(older, result.model_copy(update=changed))
        path.unlink()
    _, said, _ = typed("reproduce", card, "--table", "1", "--no-run")
    rows = {line.split("│")[1].strip(): line for line in said.splitlines() if "│" in line}
    assert "agrees" in rows["fedavg"]
    assert "no result yet" in rows["local-only"]
    _, _, told = typed("reproduce", card, "--table", "1", "--method", "fedavg")
    assert mentions(told, "2 of them", "another version", "01d00000/seed-0.json")
    _, _, told = typed("reproduce", card, "--table", "1", "--method", "fedavg")
    assert "another version" not in told


def test_reproduce_without_running_compares_what_is_there(card: str, typed: Typed) -> None:
    code, said, _ = typed("reproduce", card, "--no-run")
    assert code == 0
    assert not Path("flbench-results").exists()
    assert mentions(said, "two.toml", "digits", "not run")
    Path(card).write_text(
        Path(card).read_text().replace("seeds = 2\n", 'seeds = 2\nleft = "dull"\n')
    )
    _, said, _ = typed("reproduce", card, "--no-run")
    assert mentions(said, "not run: dull")
    for reading in ("--no-run", "--markdown"):
        code, _, cried = typed("reproduce", card, reading, "--out", "gone")
        assert code == 1
        assert mentions(cried, "--out gone", "folder of results")
    assert mentions(said, "not run", "small")
    assert said.splitlines()[-1] == "5 numbers: 5 not run"


@pytest.mark.slow
def test_what_only_the_person_can_give_is_asked_for(card: str, typed: Typed) -> None:
    _, said, _ = typed("reproduce", card, "--table", "1", "--scale", "paper", "--no-run")
    assert mentions(said, "not run", "--set", "model.weights=")
    given = ("--set", "model.weights=x", "--dataset", "digits")
    code, _, error = typed("reproduce", card, "--table", "1", "--scale", "paper", *given)
    assert code == 1
    assert mentions(error, "mlp", "weights")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nobody",), "unknown paper 'nobody'"),
        (("pfedlia", "--table", "7"), "unknown table of 'pfedlia' '7'"),
        (("pfedlia", "--scale", "huge"), "unknown scale 'huge'"),
        (("pfedlia", "--no-run", "--set", "foo=1"), "unknown parameter 'foo'"),
        (("pfedlia", "--dataset", "mnist"), "unknown data set of 'pfedlia' 'mnist'"),
    ],
)
def test_a_wrong_name_is_one_line(typed: Typed, words: tuple[str, ...], expected: str) -> None:
    code, _, error = typed("reproduce", *words)
    assert code == 1
    assert error.count("\n") == 1
    assert error.startswith(f"flbench: {expected}")


@pytest.mark.slow
def test_a_number_never_reached_is_not_reproduced(card: str, typed: Typed, tmp_path: Path) -> None:
    """It ran, and its summary has no such number."""
    path = Path(card)
    path.write_text(path.read_text().replace('methods = ["fedavg", "local-only", "scaffold"]',
        'methods = ["fedavg"]\ncolumn = "rounds_to_target"'))  # fmt: skip
    suite = tmp_path / "two.toml"
    suite.write_text(suite.read_text().replace("rounds = 2", "rounds = 2\ntarget = 1.0").replace(
        "accuracy_std = 0.5 }", "accuracy_std = 0.5, rounds_to_target = 12 }"))  # fmt: skip
    _, said, _ = typed("reproduce", card, "--table", "1")
    (row,) = [line for line in said.splitlines() if "│ fedavg" in line]
    assert [cell.strip() for cell in row.split("│")[2:-1]] == [
        "12.0", "never", "-", "0, 1", "differs",
    ]  # fmt: skip
    (first,) = Path("flbench-results").rglob("seed-0.json")
    reached = read_result(first)
    summary = {**reached.summary, "rounds_to_target": 12.0}
    save_result(first, reached.model_copy(update={"summary": summary}))
    _, said, _ = typed("reproduce", card, "--table", "1", "--no-run")
    (row,) = [line for line in said.splitlines() if "│ fedavg" in line]
    assert [cell.strip() for cell in row.split("│")[2:-1]] == [
        "12.0", "12.0 (1 of 2)", "+0.0", "0, 1", "differs",
    ], "the other seed never reached it"  # fmt: skip


@pytest.mark.slow
def test_a_part_of_the_data_is_not_compared(
    card: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_part(*given: Any) -> dict[Cell, Outcome]:
        found = run_missing(*given)
        for path in Path("flbench-results").rglob("seed-*.json"):
            path.unlink()
        parts = {}
        for cell, outcome in found.items():
            if (result := outcome.result) is not None:
                suite = {**result.suite, "dataset": "digits[0,1]"}
                outcome = replace(outcome, result=result.model_copy(update={"suite": suite}))
            parts[cell] = outcome
        return parts

    monkeypatch.setattr(sweep, "run_missing", on_a_part)
    _, said, _ = typed("reproduce", card, "--table", "1", "--dataset", "digits", "--seeds", "1")
    assert mentions(said, "digits", "not run", "digits[0,1]", "scaffold")
    assert said.splitlines()[-1] == "3 numbers: 3 not run"


@pytest.mark.slow
def test_the_page_has_tables_reasons_and_oddities(card: str, typed: Typed) -> None:
    typed("reproduce", card, "--table", "1")
    code, page, _ = typed("reproduce", card, "--markdown")
    assert code == 0
    assert page.startswith("# On <Tests>\n\nFor readers of the paper")
    assert "Generated by `flbench reproduce mine --markdown --out" in " ".join(page.split())
    assert ") | small | served | 1 | 0 | 0 | 1 | 0 | 0 | 2 | - |" in page, "± .5: no order"
    nothing = ") | paper | served | 0 | 0 | 0 | 0 | 0 | 0 | 4 | - |"
    assert nothing in page, "nothing was run at this scale"
    assert "(rounds = 1, local-only.schedule = full)" in " ".join(page.split())
    text = " ".join(page.split())
    assert mentions(text, "Not run", "cifar10")
    assert mentions(text, "Not run", "--set", "model.weights=")
    assert page.endswith("## Inconsistencies in the paper\n\n- it has no clusters\n")
    assert typed("reproduce", card, "--markdown")[1] == page
    (row,) = [line for line in page.splitlines() if line.startswith("| rounds | not given | - | 1")]
    assert row.count("|") == 6, "a column for each of the two scales"
    given = typed("reproduce", card, "--markdown", "--set", "model.weights=x")
    assert (given[0], mentions(given[2], "mlp", "weights")) == (1, True)
    for words in (
        ("--table", "1"),
        ("--scale", "paper"),
        ("--seeds", "1"),
        ("--dataset", "digits"),
    ):
        code, out, err = typed("reproduce", card, "--markdown", *words)
        assert (code, out) == (1, "")
        assert mentions(err, "--markdown", "writes")


@pytest.mark.slow
def test_a_table_is_compared_under_the_papers_rule(card: str, typed: Typed) -> None:
    """What methods serve stands on the leaderboard, to which the page has a link."""
    typed("reproduce", card, "--table", "1")
    path = Path(card)
    path.write_text(path.read_text().replace('"Table 1"', '"Table 1"\njudged = "own"'))
    before = typed("reproduce", card, "--markdown")[1]
    assert not [line for line in before.splitlines() if line.startswith("| fedavg |")]
    assert mentions(" ".join(before.split()), "What the methods", "../../leaderboard/")
    _, said, _ = typed("reproduce", card, "--table", "1")
    assert "accuracy_own_mean" in said
    after = typed("reproduce", card, "--markdown")[1]
    (own,) = [line for line in after.splitlines() if line.startswith("| fedavg |")]
    files = Path("flbench-results").rglob("fedavg/*/seed-*.json")
    found = [one.summary for one in map(read_result, files) if one.own is not None]
    own_mean, mean = (
        sum(one[name] or 0 for one in found) / len(found)
        for name in ("accuracy_own_mean", "accuracy_mean")
    )
    assert f"{own_mean:.4f}" in own and f"{own_mean:.4f}" != f"{mean:.4f}"
    assert own.endswith(f"| {mean:.4f} |"), "what is served stands beside"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_pages_are_current(
    name: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    code, page, _ = typed("reproduce", name, "--markdown", "--out", "leaderboard/results")
    assert code == 0
    assert (ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8") == page


def test_cards_speak_for_themselves() -> None:
    for name in PAPERS:
        card: Paper = load_paper(name)
        assert card.name == name
        assert card.link.startswith("https://arxiv.org/abs/")
        assert all(one.endswith(".") for one in card.anomalies)


def test_a_studys_table_is_shown_as_it_is_or_refused_in_one_line(tmp_path: Path) -> None:
    about = {"summary": "s", "title": "t", "authors": "a", "venue": "v", "link": "l"}
    claim = Claim(where="Figure 1", says="so it is.", study="one")
    card = Paper(name="mine", claims=[claim], **about)
    file = tmp_path / "studies" / "one.json"
    file.parent.mkdir()
    rows = [{"a|b": "[x](y)", "n": 0.5, "n_std": 0.25, "home": [0, 1]}, {"n": None}]
    file.write_text(json.dumps({"rows": rows}))
    assert paper_page.page(card, RunRequest(out=tmp_path), SweepProgress()).endswith(
        "\n| a\\|b | n |\n|---|---:|\n| \\[x\\](y) | 0.50 ± 0.25 |\n| - | - |\n"
    )
    rows = [{"n": one} for one in range(13)]
    file.write_text(json.dumps({"rows": rows}))
    end = paper_page.page(card, RunRequest(out=tmp_path), SweepProgress()).splitlines()[-1]
    assert mentions(end, "one", 13, "leaderboard/studies/one.json") and "|" not in end
    for odd in ("{", "{}", '{"rows": []}', '{"rows": [1]}', '{"rows": {"a": 1}}', "[]"):
        file.write_text(odd)
        with pytest.raises(UserError, match=mention("one.json", "JSON")):
            paper_page.page(card, RunRequest(out=tmp_path), SweepProgress())


def test_reproduce_limits_the_libraries_where_cells_are_to_be_portable(
    card: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is too late for that, which every cell says."""
    limited: list[bool] = []
    monkeypatch.setattr(reproduce, "limit", lambda: limited.append(True))
    code, _, err = typed("reproduce", card, "--table", "1", "--workers", "1", "--portable")
    assert (code, limited) == (1, [True])
    assert "--portable: " in err


def test_a_paper_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    plain = Path("benchmarks/papers/flis.toml")
    marked = tmp_path / "flis.toml"
    marked.write_bytes(codecs.BOM_UTF8 + plain.read_bytes())
    assert load_paper(str(marked)) == load_paper("flis")


def test_a_table_says_which_of_its_results_came_out_otherwise() -> None:
    results = [made(0.5, seed=seed) for seed in range(4)]
    results[0] = results[0].model_copy(update={"environment": {"processor": "one"}})

    def audit(result: Result, outcome: str, **more: Any) -> Audit:
        told = {
            "file": "f", "run": run_key(result), "digest": content_digest(result),
            "outcome": outcome, "rounds": result.suite["rounds"], "whole": True,
            "tolerance": 0.01, "seconds": 1.0, "date": "2026-01-02", "flbench": "1",
            "torch": "2", "sources": {}, "processor": "other",
        }  # fmt: skip
        return Audit.model_validate(told | more)

    printed = PublishedValue("suite", "data", "fedavg", 0.5, None)
    rows = [ReproducedValue(printed, tuple(results), (0.5,) * 4, "equal")]
    assert paper_page._audited(rows, []) == []
    found = [
        audit(results[0], "differs"),
        audit(results[1], "agrees"),
        audit(results[2], "same bytes", rounds=1, whole=False),
    ]
    whole = "1 came out the same; 1 came out the same in the rounds that were run; 1 were not"
    where = ", each on another processor than the one that computed it"
    (_, text) = paper_page._audited(rows, found)
    told = f"Of 4 results, run again to check them: {whole}; not the same: fedavg (seed 0)"
    assert text == f"{told}{where}."
    found.append(audit(results[3], "differs"))  # whose file names no processor
    (_, text) = paper_page._audited(rows, found)
    assert text.endswith("not the same: fedavg (seed 0, 3).")
