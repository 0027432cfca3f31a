"""Submitting: what a file says of itself is recomputed, and nothing odd gets into the folder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_results import sealed
from mentions import mentioning, mentions
from toy import Play, Typed, player, toy_dataset, toy_suite

import flbench
from flbench.engine.options import EngineOptions
from flbench.errors import UserError
from flbench.results.audits import LOG, Audit, append_audit, content_digest, run_key
from flbench.results.files import read_result, read_skips, write_atomically
from flbench.results.schema import Change, Result, SourceChange, Tuning
from flbench.run.result import build_result
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare
from flbench.submission.admission import LARGEST_READ, Folder, gathered, problems, read
from flbench.submission.consistency import faults, job_of, recount

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "leaderboard" / "results"


def kept(result: Result, folder: Path) -> Path:
    """Write a result where its run would have."""
    path = job_of(result, folder).path
    write_atomically(path, result.canonical().encode())
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Results of a toy: two seeds of one method, one of another."""
    toy = player(tmp_path_factory.mktemp("runs"))
    return {
        "zero": toy("fedavg").result,
        "one": toy("fedavg", seed=1).result,
        "other": toy("pfedlia", settings={"warmup": 1}).result,
    }


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """An empty leaderboard."""
    folder = tmp_path / "leaderboard" / "results"
    folder.mkdir(parents=True)
    return folder


def asked(path: Path, board: Path, *others: Path, new_table: bool = True) -> list[str]:
    """The problems of a file, with others that come too."""
    return problems(path, gathered(board, [path, *others], new_table))


# --- what lies in the repository ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.long)])
def test_everything_in_the_repository_would_be_taken(step: int) -> None:
    """Every eighth suite of it, of that every eighth file; `tox -e long` looks at all."""
    suites = sorted(BOARD.iterdir())[::step]
    paths = [path for suite in suites for path in sorted(suite.rglob("seed-*.json"))]
    found = [read(path, BOARD) for path in paths]
    assert len(found) > 100
    folder = Folder(BOARD, {one.place: one for one in found}, new_table=False)
    assert {path: said for path in paths[::step] if (said := problems(path, folder))} == {}


def test_there_is_nothing_else_in_the_folder() -> None:
    files = [path for path in BOARD.rglob("*") if not path.is_dir() or path.is_symlink()]
    others = {path for path in files if not path.match("seed-*.json")}
    assert {path.name for path in others} == {"skipped.json"}
    assert len(list(read_skips(BOARD))) == len(others)


# --- what a file says of itself -----------------------------------------------------------------

KINDS: list[dict[str, Any]] = [
    {"method": "fedavg"},
    {"method": "fedavg", "target": 0.3, "ft_epochs": 1, "own_models": True},
    {"method": "pfedlia", "settings": {"warmup": 1}, "eval_every": 2, "rounds": 4},
    {"method": "ifca", "headline": "validation", "rounds": 5},
    {"method": "flis-dc", "server_samples": 6, "participation": 1.0},
    {"method": "local-only", "validation_fraction": 0.0},
    {"method": "fedavg+fedprox"},
    {"method": "fedavg", "clock": {"seconds_per_step": 0.5, "deadline": 2.0}, "target": 0.3},
    {"method": "fedavg", "clock": {"absent": 0.99}},  # nobody can be called
    {"method": "oracle", "metrics": ("auroc", "ece", "top-k:k=2"), "not_judged": (1, 4)},
    {
        "method": "ifca+fedavgm",
        "clients": 9,
        "unseen": 0.34,
        "unseen_epochs": 1,
        "dataset": toy_dataset(samples=108),
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["method"])
def test_what_a_run_leaves_follows_from_itself(kind: dict[str, Any], play_toy: Play) -> None:
    played = play_toy(**kind)
    result = played.result
    assert list(faults(result)) == []
    assert job_of(result, played.job.out).path == played.job.path
    left = {"ece", "kld", "selection_error", "selection_false_positives"}
    left |= {"selection_false_negatives"}
    assert result.summary.keys() - recount(result).keys() <= left


@pytest.mark.slow
def test_tuning_and_precision_are_part_of_the_fingerprint(play_toy: Play) -> None:
    played = play_toy("fedavg")
    tuned = Tuning(budget=3, tried=2, seeds=[1000], score="accuracy_validation")
    rough = EngineOptions(accelerator="cpu", precision="bf16-mixed")
    marks = {played.job.fingerprint}
    for job in (replace(played.job, tuning=tuned), replace(played.job, engine=rough)):
        run, state = prepare(job, toy_dataset())
        result = build_result(job, run, run_rounds(run, state))
        assert not [line for line in faults(result) if line.startswith("'fingerprint")]
        assert job_of(result, job.out).path == job.path
        marks.add(result.fingerprint.config)
    assert len(marks) == 3


def by_hand(result: Result) -> Result:
    """Six clients whose numbers can be computed by hand; two groups, of which one client moves."""
    test = [2, 4, 4, 4, 4, 2]
    clients = result.clients.model_copy(
        update={
            "test": test,
            "correct": [1, 1, 2, 3, 4, 2],
            "loss": [1.0, 2.0, 2.0, 2.0, 2.0, 1.0],
            "group": [0, 0, 0, 1, 1, 1],
            "bytes": [0, 0, 0, 0, 3_000_000, 3_000_000],
        }
    )
    curves: dict[str, list[Any]] = {
        "accuracy": [0.5, None, 0.708333],
        "accuracy_validation": [0.9, None, 0.8],
        "bytes_down": [1_000_000, 2_000_000, 5_000_000],
        "bytes_up": [0, 0, 1_000_000],
        "bytes_peer": [0, 0, 0],
        "slowest_down": [250_000, 0, 250_000],
    }
    changes = [
        Change(round=1, labels=[0, 0, 0, 0, 1, 1]),
        Change(round=3, labels=[1], clients=[3]),
    ]
    sent = {"down": {"model": 5_000_000}, "up": {"model": 1_000_000}, "peer": {}}
    update = {"clients": clients, "curves": curves, "membership": changes, "bytes": sent}
    summary = {**result.summary, "target": 0.7}
    return result.model_copy(update={**update, "summary": summary})


@pytest.mark.slow
def test_the_summary_by_hand(runs: dict[str, Result]) -> None:
    found = recount(by_hand(runs["zero"]))
    assert found["accuracy_mean"] == pytest.approx((1 / 2 + 1 / 4 + 2 / 4 + 3 / 4 + 1 + 1) / 6)
    assert found["accuracy_micro"] == 13 / 20
    assert found["accuracy_worst"] == 0.25
    assert found["loss_mean"] == 0.5
    assert (found["round"], found["accuracy_last"]) == (3, 0.708333)
    assert (found["accuracy_chosen"], found["accuracy_best_test"]) == (0.5, 0.708333)
    assert found["accuracy_last10"] == pytest.approx((0.5 + 0.708333) / 2)
    assert (found["groups"], found["noise"], found["ari"], found["purity"]) == (2, 0, 1.0, 1.0)
    assert found["churn"] == pytest.approx(1 / 6)
    assert found["mb_per_client"] == 1.0
    assert found["link_seconds"] == 2.0
    assert found["rounds_to_target"] == 3
    assert found["megabits_to_target"] == 8.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stated", "counted"), [(8.0, 8.0), (11.17, 8 * 62_006 / 44_426), (9.0, 8.0), (None, 8.0)]
)
def test_the_cost_as_flis_counts_it_follows_from_the_cost(
    runs: dict[str, Result], stated: float | None, counted: float
) -> None:
    """The network may be the LeNet-5 that FLIS counts as a larger one."""
    result = by_hand(runs["zero"])
    summary = {**result.summary, "megabits_to_target_flis": stated}
    found = recount(result.model_copy(update={"summary": summary}))
    assert found["megabits_to_target_flis"] == pytest.approx(counted)


@pytest.mark.slow
def test_the_reported_round_decides_which_groups_count(runs: dict[str, Result]) -> None:
    made = by_hand(runs["zero"])
    suite = {**made.suite, "headline": "validation"}
    found = recount(made.model_copy(update={"suite": suite, "summary": {"round": 1}}))
    assert found["round"] == 1, "validation was best then"
    assert found["purity"] == pytest.approx(5 / 6), "client 3 had not moved"


@pytest.mark.slow
def test_the_reported_round_s_accuracy_is_that_of_the_clients(play_toy: Play) -> None:
    result = play_toy("ifca", headline="validation", rounds=5, seed=1).result
    at = int(result.summary["round"] or 0)
    assert at < 5, "otherwise the last accuracy tells"
    curve = list(result.curves["accuracy"])
    curve[at - 1] = 0.123
    faked = result.model_copy(update={"curves": {**result.curves, "accuracy": curve}})
    summary = {**result.summary, "accuracy_chosen": 0.123}
    told = ("accuracy_best_test", "accuracy_last10", "rounds_to_final", "link_seconds_to_final")
    summary |= {name: recount(faked)[name] for name in told}
    (found,) = faults(faked.model_copy(update={"summary": summary}))
    assert found.startswith("'curves.accuracy': ")
    assert mentions(found, "summary.accuracy_mean", "got 0.123")


# --- what is refused ----------------------------------------------------------------------------

Edit = Callable[[dict[str, Any]], None]


def signed(table: dict[str, Any]) -> dict[str, Any]:
    """With the fingerprints of what it says now."""
    result = Result.model_validate(table)
    job = job_of(result, Path())
    table["fingerprint"] |= {"suite": job.suite.hash(), "config": job.fingerprint}
    return table


def edited(result: Result, edit: Edit) -> Result:
    table = json.loads(result.canonical())
    edit(table)
    return Result.model_validate(table)


def into(field: str, value: object) -> Edit:
    """Put a value at a dotted place."""

    def edit(table: dict[str, Any]) -> None:
        *way, last = field.split(".")
        for part in way:
            table = table[int(part)] if isinstance(table, list) else table[part]
        table[int(last) if isinstance(table, list) else last] = value

    return edit


ODD: list[tuple[Edit, str]] = [
    (into("fingerprint.config", "00000000"), "'fingerprint.config': "),
    (into("fingerprint.suite", "00000000"), "'fingerprint.suite': "),
    (into("suite.headline", "best"), "'suite.headline': input should be 'last' or 'validation'"),
    (into("suite.wings", 2), "'suite.wings': extra inputs are not permitted"),
    (into("suite.unseen", 0.0), "'suite': unseen 0.0, not None is expected of its settings"),
    (into("suite.clients", 7), "'clients': 7 expected in training, got 6"),
    (into("suite.rounds", 4), "'curves.accuracy': 4 rounds expected, got 3"),
    (into("method.name", "fedprox"), "'method.name': fedavg expected, its plugins, got fedprox"),
    (into("method.params", {"mu": 1}), "'fingerprint.config': "),
    (into("summary.accuracy_worst", 0.99), "'summary.accuracy_worst': "),
    (into("summary.accuracy_std_clients", 0.0), "'summary.accuracy_std_clients': "),
    (into("summary.ari", 1.0), "'summary.ari': 0 expected by its arrays, got 1"),
    (into("summary.ari", None), "'summary.ari': 0 expected by its arrays, got nothing"),
    (into("summary.mb_per_client", 0.0), "'summary.mb_per_client': "),
    (into("summary.loss_mean", 0.1), "'summary.loss_mean': "),
    (into("summary.round", 2), "'summary.round': 3 expected by its arrays, got 2"),
    (into("summary.churn", 0.5), "'summary.churn': 0 expected by its arrays, got 0.5"),
    (into("summary.accuracy_last10", 0.9), "'summary.accuracy_last10': "),
    (into("curves.accuracy", [0.1, 0.2, 0.9]), "'summary.accuracy_last': 0.9 expected"),
    (into("curves.accuracy", [0.1, 0.2, None]), "'curves.accuracy': a number expected in the last"),
    (into("curves.bytes_up", [1, 2, 3]), "'bytes.up': 3 expected, the last of 'curves.bytes_up'"),
    (into("curves.accuracy", [0.1, None, 0.2]), "'curves.accuracy.1': a number expected, eval"),
    (into("suite.eval_every", 2), "'curves.accuracy.0': null expected, eval_every=2"),
    (into("curves.accuracy_x", [1.5, 0, 0]), "'curves.accuracy_x.0': 0 to 1 expected, got 1.5"),
    (into("curves.ari", [0, 0, 5]), "'curves.ari.2': -1 to 1 expected, got 5"),
    (into("curves.bytes_up.0", -8), "'curves.bytes_up.0': 0 or more expected, got -8"),
    (into("curves.bytes_up.0", 10**9), "'curves.bytes_up.1': 1e+09 or more expected, got "),
    (into("curves.trained_epochs", [2, 1, 3]), "'curves.trained_epochs.1': 2 or more expected"),
    (into("method.plugins.0.uses_true_groups", True), "'method.plugins.uses_true_groups': fedavg"),
    (into("method.plugins.0.baseline", False), "'method.plugins.baseline': fedavg has baseline ="),
    (into("clients.bytes", [0] * 6), "'clients.bytes': "),
    (into("membership", []), "'membership': the groups of at least one round expected"),
    (into("status", "reproduced"), "'status': self-reported expected of what arrives"),
    (into("seed", 1000), "seed 1000 is for tuning"),
    (into("seed", 2), "its row lacks seeds 0, 1: run all with --seeds 3"),
    (into("environment.flbench", "0.1.0+dirty"), "version 0.1.0+dirty of flbench is no release"),
    (into("environment.flbench", "?"), "version ? of flbench is no release"),
    (into("environment.precision", "16-true"), "'fingerprint.config': "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("more", "taken"), [(0, True), (17, True), (18, False), (-2, False)])
def test_bytes_of_clients_are_rounded_up_one_by_one(
    more: int, taken: bool, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    """Six clients, three directions: less than a byte more for each than in the totals of items."""
    sizes = runs["zero"].clients.bytes
    one = edited(runs["zero"], into("clients.bytes", [sizes[0] + more, *sizes[1:]]))
    path = tmp_path / "seed-0.json"
    path.write_text(one.canonical(), encoding="utf-8")
    told = [line for line in asked(path, board) if line.startswith("'clients.bytes'")]
    assert (told == []) == taken


@pytest.mark.slow
@pytest.mark.parametrize(("edit", "told"), ODD, ids=[told for _, told in ODD])
def test_what_was_changed_is_found(
    edit: Edit, told: str, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    one = edited(runs["zero"], edit)
    path = tmp_path / f"seed-{one.seed}.json"
    path.write_text(one.canonical(), encoding="utf-8")
    found = asked(path, board)
    assert [line for line in found if line.startswith(told)], found
    assert not any("\n" in line for line in found)


def test_every_judged_client_and_newcomer_was_tested(
    runs: dict[str, Result], play_toy: Play
) -> None:
    told = "'clients.test': at least one test sample of each client expected"

    def untested(table: dict[str, Any]) -> None:
        table["clients"]["test"][2] = table["clients"]["correct"][2] = 0

    assert list(faults(edited(runs["zero"], untested))) == [told]

    def newcomer(table: dict[str, Any]) -> None:
        names = ("test", "correct", "correct_tuned")
        table["unseen"] |= {name: [0] * len(table["unseen"]["test"]) for name in names}

    toy = play_toy("fedavg", clients=9, unseen=0.34, dataset=toy_dataset(samples=108)).result
    assert list(faults(edited(toy, newcomer))) == [told]


def test_settings_that_are_no_suite_are_the_only_fault(runs: dict[str, Result]) -> None:
    (told,) = faults(edited(runs["zero"], into("suite.wings", 2)))
    assert told == mentioning("suite.wings", "permitted")


@pytest.mark.parametrize("curve", ["accuracy", "bytes_peer"])
def test_curves_that_others_follow_from_are_needed(curve: str, runs: dict[str, Result]) -> None:
    one = edited(runs["zero"], lambda table: table["curves"].pop(curve))
    assert list(faults(one)) == [f"'curves.{curve}': field required"]


def test_a_clock_and_its_curve_belong_together(play_toy: Play) -> None:
    timed = play_toy("fedavg", clock={"seconds_per_step": 0.5}).result
    one = edited(timed, lambda table: table["curves"].pop("simulated_seconds"))
    assert list(faults(one)) == ["'curves.simulated_seconds': field required"]
    one = edited(play_toy("fedavg").result, into("curves.simulated_seconds", [1, 2, 3]))
    told = "'curves.simulated_seconds': nothing expected, as the suite has no clock"
    assert list(faults(one)) == [told]
    one = edited(timed, into("summary.simulated_seconds", 0.5))
    assert [line.split(":")[0] for line in faults(one)] == ["'summary.simulated_seconds'"]


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.1.1.dev3", "version 0.1.1.dev3 of fedavg is no release: install one, and run again"),
        ("0.1.0+g12", "version 0.1.0+g12 of fedavg is no release: install one, and run again"),
        ("99.0", f"fedavg is of version 99.0, here is flbench {flbench.__version__}: upgrade it"),
    ],
)
def test_versions_nobody_else_can_install_are_refused(
    version: str, told: str, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    table = json.loads(runs["zero"].canonical())
    table["method"]["plugins"][0]["version"] = version
    path = kept(Result.model_validate(signed(table)), tmp_path / "out")
    assert asked(path, board) == [told]
    table["method"]["name"] = "fedmine"
    table["method"]["plugins"][0] |= {"name": "fedmine", "distribution": "theirs"}
    path = kept(Result.model_validate(signed(table)), tmp_path / "out")
    assert bool(asked(path, board)) == ("release" in told), "what is not installed can be newer"


@pytest.mark.slow
def test_a_good_file_has_no_problem_and_all_of_a_bad_one_are_told(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    path = kept(runs["zero"], tmp_path / "out")
    assert asked(path, board) == []
    bad = edited(runs["zero"], into("summary.ari", 1.0))
    bad = edited(bad, into("status", "reproduced"))
    bad = edited(bad, into("schema_version", 2))
    path.write_text(bad.canonical() + "\n", encoding="utf-8")
    first, second, third, fourth = asked(path, board)
    assert mentions(first, "bytes", "writes")
    assert second.startswith("'summary.ari'")
    assert third.startswith("'status'")
    assert fourth.startswith("it has no digest")


def test_what_is_no_result_is_told(board: Path, tmp_path: Path, runs: dict[str, Result]) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text("{}")
    assert asked(path, board) == [mentioning("suite", "required")]
    path.write_text(" " * (LARGEST_READ + 1))
    assert asked(path, board)[0].startswith("2,000,001 bytes, expected at most 2,000,000")
    (tmp_path / "seed-1.json").symlink_to(kept(runs["zero"], tmp_path / "out"))
    told = "expected a file seed-<n>.json, or a folder with some; no link"
    assert asked(tmp_path / "seed-1.json", board) == asked(tmp_path, board) == [told]


def test_a_file_of_more_clients_may_be_larger(
    board: Path, tmp_path: Path, runs: dict[str, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(runs["zero"], tmp_path / "out")
    size, clients = path.stat().st_size, len(runs["zero"].clients.train)
    assert asked(path, board) == []
    monkeypatch.setattr("flbench.submission.admission.LARGEST", 10)
    for bytes_a_client in (size // clients, size // clients + 1):
        monkeypatch.setattr("flbench.submission.admission.LARGEST_PER_CLIENT", bytes_a_client)
        small = bytes_a_client * clients < size
        most = f"{size:,} bytes, expected at most {bytes_a_client * clients:,}; let"
        assert [line.startswith(most) for line in asked(path, board)] == [True] * small


# --- where a file lies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suite.name", "../../up"),
        ("suite.name", "/etc"),
        ("suite.name", ".."),
        ("suite.name", "a/b"),
        ("suite.name", "-rf"),
        ("suite.name", "x.toml"),
        ("method.name", "../fedavg"),
        ("method.name", "fed avg"),
        ("dataset", "../.."),
        ("fingerprint.config", ".."),
    ],
)
def test_no_name_leads_out_of_the_folder(
    field: str, value: str, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        into(field, value)(table)
        if field == "dataset":
            table["suite"]["dataset"] = value
        if field == "method.name":
            table["method"]["plugins"][0]["name"] = value
        if field != "fingerprint.config":
            table["fingerprint"] = signed(table)["fingerprint"]

    path = tmp_path / "seed-0.json"
    table = json.loads(runs["zero"].canonical())
    with suppress(UserError):
        edit(table)
    path.write_text(sealed(table), encoding="utf-8")
    (found,) = asked(path, board)
    assert found.startswith(f"'{field}': ")


def test_a_data_set_with_an_odd_name_has_a_plain_folder(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["dataset"] = table["suite"]["dataset"] = "npz:../../x y"
        table["fingerprint"] = signed(table)["fingerprint"]

    one = edited(runs["zero"], edit)
    assert job_of(one, board).path.relative_to(board).parts[1] == "npz-..-..-x-y"
    assert asked(kept(one, tmp_path / "out"), board) == []


def test_a_folder_that_is_a_link_outwards_is_not_written_to(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (board / "toy").symlink_to(tmp_path / "outside")
    (found,) = asked(kept(runs["zero"], tmp_path / "out"), board)
    assert mentions(found, board, "behind")


def test_name_and_place_are_those_of_the_content(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    path = tmp_path / "seed-3.json"
    path.write_text(runs["zero"].canonical(), encoding="utf-8")
    assert asked(path, board) == [mentioning("seed-0.json", "expected")]
    lost = board / "toy" / "seed-0.json"
    write_atomically(lost, runs["zero"].canonical().encode())
    (found,) = asked(lost, board)
    assert mentions(found, "toy/toy/fedavg/", "content")


def test_what_is_there_is_never_replaced(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    there = kept(runs["zero"], board)
    path = kept(runs["zero"], tmp_path / "out")
    assert asked(path, board) == [], "the same bytes are nothing new"
    slow = runs["zero"].model_copy(update={"seconds": {"total": 99.0}})
    kept(slow, tmp_path / "out")
    told = f"{there} is the same run with the same numbers: there is nothing to submit"
    assert asked(path, board) == [told]
    loud = runs["zero"].model_copy(update={"warnings": ["x"]})
    kept(loud, tmp_path / "out")
    told = "with other warnings: flbench verify says which one can be had again"
    assert asked(path, board) == [f"{there} is the same run {told}"]
    there.write_text("{}")
    assert asked(path, board) == [mentioning(there, "result")]


def test_of_two_that_come_for_one_place_neither_hides_the_other(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    one = kept(runs["zero"], tmp_path / "one")
    two = kept(runs["zero"].model_copy(update={"warnings": ["x"]}), tmp_path / "two")
    assert asked(two, board, one) == [], "asked first, it has the place"
    folder = gathered(board, [one, two], new_table=True)
    assert problems(one, folder) == []
    assert mentions(problems(two, folder)[0], one, "warnings")


def test_reproduced_may_lie_there_but_not_arrive(runs: dict[str, Result], board: Path) -> None:
    path = kept(runs["zero"].model_copy(update={"status": "reproduced"}), board)
    assert asked(path, board, new_table=False) == []
    append_audit(board.parent / LOG, audit(path, NEW, "agrees", False))
    (found,) = asked(path, board, new_table=False)
    assert mentions(found, "'status': self-reported expected", LOG), "a part is not all of it"
    append_audit(board.parent / LOG, audit(path, NEW, "agrees", True))
    assert asked(path, board, new_table=False) == []


# --- rows and tables ----------------------------------------------------------------------------


def test_seeds_of_a_row_come_together_or_beside_what_is_there(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    zero, one = (kept(runs[name], tmp_path / "out") for name in ("zero", "one"))
    assert asked(one, board) == [mentioning("seed 0", "--seeds 2")]
    two = kept(edited(runs["one"], into("seed", 2)), tmp_path / "two")
    assert asked(two, board) == [mentioning("seeds 0, 1", "--seeds 3")]
    assert asked(one, board, zero) == []
    kept(runs["zero"], board)
    assert asked(one, board) == []


def test_seeds_of_a_row_share_an_environment(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    kept(runs["zero"], board)
    moved = {**runs["one"].environment, "torch": "1.0", "python": "4", "threads": "9"}
    one = kept(runs["one"].model_copy(update={"environment": moved}), tmp_path / "out")
    (found,) = asked(one, board)
    assert found.startswith("'environment.torch': ")
    assert mentions(found, "seed 0", "got 1.0")
    del moved["torch"], moved["core"]
    one = kept(runs["one"].model_copy(update={"environment": moved}), tmp_path / "out")
    found = asked(one, board)
    assert found[-1] == "'environment': core, torch required of what arrives, as runs write them"
    nothing = runs["zero"].model_copy(update={"environment": {}})
    (found,) = asked(kept(nothing, tmp_path / "none"), tmp_path / "empty")
    assert mentions(found, "'environment': flbench, core, torch", "precision required")


OLD, NEW, OTHER = "0" * 12, "1" * 12, "2" * 12
Lines = list[tuple[int, str, str, bool]]
"""Seed, core, outcome, and whether all rounds were played."""
ROWS: dict[str, tuple[str, str, Lines, bool]] = {
    "one core": (NEW, NEW, [], True),
    "two cores": (OLD, NEW, [], False),
    "two cores, and a replay by the new one": (OLD, NEW, [(0, NEW, "agrees", True)], True),
    "two cores, and a replay by the old one": (OLD, NEW, [(1, OLD, "same bytes", True)], True),
    "two cores, and a replay by a third one": (OLD, NEW, [(0, OTHER, "agrees", True)], False),
    "two cores, and replays of both by a third one": (
        OLD, NEW, [(0, OTHER, "agrees", True), (1, OTHER, "same bytes", True)], True
    ),
    "two cores, and a third one that agrees with one of them": (
        OLD, NEW, [(0, OTHER, "agrees", True), (1, OTHER, "differs", True)], False
    ),
    "an older file": ("", NEW, [], False),
    "an older file that was replayed": ("", NEW, [(0, NEW, "agrees", True)], True),
    "only its first rounds were": ("", NEW, [(0, NEW, "agrees", False)], False),
    "its replay differs": ("", NEW, [(0, NEW, "differs", True)], False),
    "its first rounds differ": ("", NEW, [(0, NEW, "differs", False)], False),
    "its replay agreed, and differs elsewhere": (
        "", NEW, [(0, NEW, "agrees", True), (0, NEW, "differs", True)], True,
    ),
    "an older file that comes late": (NEW, "", [], False),
    "an older file that comes late, replayed": (NEW, "", [(1, NEW, "agrees", True)], True),
    "two older files": ("", "", [], True),
    "nobody knows": ("unknown", "unknown", [], True),
    "one is not known": ("unknown", NEW, [], False),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_seeds_of_a_row_are_of_one_core_or_a_replay_agrees(
    name: str, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    *cores, lines, taken = ROWS[name]
    zero, one = (computed_by(runs[f], core) for f, core in zip(("zero", "one"), cores, strict=True))
    paths = [kept(zero, board), kept(one, tmp_path / "out")]
    for seed, core, outcome, whole in lines:
        append_audit(board.parent / LOG, audit(paths[seed], core, outcome, whole))
    found = asked(paths[1], board)
    assert (found == []) == taken
    assert all(line.startswith("'environment.core': ") for line in found)
    assert all("flbench verify FILE --log leaderboard/audits.jsonl" in line for line in found)


def test_a_replay_of_one_seed_speaks_for_its_row_unless_another_differs(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    zero, one = (computed_by(runs[name], "") for name in ("zero", "one"))
    two = computed_by(edited(runs["one"], into("seed", 2)), NEW)
    there = [kept(zero, board), kept(one, board)]
    path = kept(two, tmp_path / "out")
    append_audit(board.parent / LOG, audit(there[0], NEW, "agrees", True))
    assert asked(path, board) == []
    append_audit(board.parent / LOG, audit(there[1], NEW, "differs", True))
    assert [line[:20] for line in asked(path, board)] == ["'environment.core': "]
    placed = kept(two, board)
    assert asked(placed, board) == [], "what is there already stays"


def test_a_run_of_two_cores_is_of_none_that_its_row_could_share(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    change = SourceChange(round=1, plugin="core", before=OLD, after=NEW)
    mixed = computed_by(runs["one"], NEW).model_copy(update={"source_changes": [change]})
    kept(computed_by(runs["zero"], NEW), board)
    (line,) = asked(kept(mixed, tmp_path / "out"), board)
    assert mentions(line, "environment.core", NEW, "seed 0", "got none")


def test_older_files_of_a_row_share_their_version(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    kept(computed_by(runs["zero"], ""), board)
    one = computed_by(runs["one"], "")
    one = one.model_copy(update={"environment": {**one.environment, "flbench": "0.1.0"}})
    (found,) = asked(kept(one, tmp_path / "out"), board)
    assert mentions(found, "environment.flbench", "0.2.0 expected", "seed 0", "got 0.1.0")


def computed_by(result: Result, core: str) -> Result:
    """The result of a core; "" = of an older version, which does not name it."""
    environment = {name: one for name, one in result.environment.items() if name != "core"}
    more = {"core": core} if core else {"flbench": "0.2.0"}
    return result.model_copy(update={"environment": {**environment, **more}})


def audit(path: Path, core: str, outcome: Any, whole: bool) -> Audit:
    result = read_result(path)
    return Audit(
        file="f", run=run_key(result), digest=content_digest(result), outcome=outcome,
        rounds=result.suite["rounds"] if whole else 1, whole=whole, tolerance=0.01, seconds=1.0,
        date="2026-11-28", flbench="0.2.0", torch="2",
        sources={}, core=core,
    )  # fmt: skip


def test_seeds_of_a_row_share_their_method_s_source(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    def of(name: str, source: str) -> Result:
        """Of a version that is not installed here, so its source is not known."""
        table = json.loads(runs[name].canonical())
        table["method"]["plugins"][0] |= {"version": "0.0.1", "source": source}
        return Result.model_validate(signed(table))

    kept(of("zero", "aa"), board)
    (found,) = asked(kept(of("one", "bb"), tmp_path / "out"), board)
    assert mentions(found, "fedavg", "flbench 0.0.1", "seeds 0 and 1", "(aa, bb)")
    assert asked(kept(of("one", ""), tmp_path / "out"), board) == [], "older files do not say"


def test_fields_that_are_younger_than_a_file_change_no_byte_of_it(
    runs: dict[str, Result], tmp_path: Path
) -> None:
    path = kept(runs["zero"], tmp_path)
    assert read_result(path).canonical(as_read=True) == runs["zero"].canonical()
    table = json.loads(path.read_text()) | {"schema_version": 2}
    for name in ("tuning", "scores", "digest"):
        del table[name]
    del table["method"]["plugins"][0]["baseline"]
    path.write_text(json.dumps(table))
    lines = read_result(path).canonical(as_read=True).splitlines()
    assert [name for name in ("tuning", "scores", "baseline") if f'"{name}"' in str(lines)] == []
    assert len(lines) == len(table) + 2


def test_a_seed_that_was_searched_on_is_not_scored(
    runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["tuning"] = {"budget": 2, "tried": 2, "seeds": [0], "score": "accuracy"}
        table["fingerprint"] = signed(table)["fingerprint"]

    (found,) = asked(kept(edited(runs["zero"], edit), tmp_path / "out"), board)
    assert found.startswith("seed 0 is for tuning")


@pytest.mark.parametrize("mark", ["data", "partition", "initial_weights", "cohorts"])
def test_what_cannot_share_its_table_is_refused(
    mark: str, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    there = kept(runs["zero"], board)
    path = kept(edited(runs["other"], into(f"fingerprint.{mark}", "0")), tmp_path / "out")
    (found,) = asked(path, board)
    assert found.startswith(
        f"{path} and {there} differ in {mark.replace('_', ' ')}, so they cannot"
    )


def test_a_table_is_opened_on_purpose_only(
    runs: dict[str, Result], board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(runs["zero"], tmp_path / "out")
    (found,) = asked(path, board, new_table=False)
    assert found == mentioning("toy", "--new-table")
    other = kept(runs["other"], tmp_path / "out")
    assert asked(path, board, other, new_table=False) == [found], "they open it together"
    installed = {"toy": toy_suite()}
    monkeypatch.setattr("flbench.submission.admission.suite_of", lambda name, _: installed[name])
    assert asked(path, board, new_table=False) == []
    installed["toy"] = toy_suite(rounds=9)
    (found,) = asked(path, board, new_table=False)
    assert mentions(found, "toy", "3", "not 9")
    assert asked(path, board) == []
    kept(runs["other"], board)
    assert asked(path, board, new_table=False) == [], "its table is there"
    for version, told in ((2, "run it again"), (1, "")):
        installed["toy"] = toy_suite(version=version)
        found = " ".join(asked(path, board))
        assert found.endswith(told)
        assert bool(found) == (version == 2), "an older version is no new table"


# --- the command --------------------------------------------------------------------------------


def test_nothing_is_copied_where_something_is_wrong(
    typed: Typed, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    for result in runs.values():
        kept(result, tmp_path / "out")
    bad = kept(edited(runs["other"], into("summary.ari", 0.77)), tmp_path / "out")
    code, out, err = typed("submit", "out", "--new-table")
    assert code == 1
    ari = f"{runs['other'].summary['ari']:.6g} expected by its arrays, got 0.77"
    assert out.splitlines() == [f"{bad.relative_to(tmp_path)}: 'summary.ari': {ari}"]
    assert err == mentioning("1 of 3 files", "copied")
    assert list(board.iterdir()) == []


@pytest.mark.slow
def test_what_is_in_order_is_put_in_place(
    typed: Typed, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    paths = [kept(result, tmp_path / "out") for result in runs.values()]
    code, out, _ = typed("submit", "out", "--new-table", "--check")
    assert code == 0
    assert out.splitlines() == [
        mentioning("3 files", "3 of them"),
        mentioning("fedavg", "toy", "seeds 0, 1", "new table"),
        mentioning("pfedlia", "toy", "seed 0", "new table"),
    ]
    assert list(board.iterdir()) == []
    code, out, _ = typed("submit", "out", "--new-table")
    assert code == 0
    assert out.splitlines() == [
        mentioning("3 files", "place"),
        "    flbench leaderboard --suite=toy",
        "    flbench submit --diff HEAD",
        "    git add leaderboard",
        "    git commit -m 'Add results: fedavg on toy (toy), pfedlia on toy (toy)'",
    ]
    for path in paths:
        place = board / path.relative_to(tmp_path / "out")
        assert place.read_bytes() == path.read_bytes()
        assert read_result(place).status == "self-reported"
    code, out, _ = typed("submit", "out")
    assert (code, out) == (0, mentioning("already", "copied"))
    assert asked(place, board, new_table=False) == []


@pytest.mark.slow
def test_a_check_says_which_seeds_a_row_lacks(
    typed: Typed, runs: dict[str, Result], board: Path, tmp_path: Path
) -> None:
    for name in ("zero", "one"):
        kept(runs[name], board)
    kept(runs["other"], tmp_path / "out")
    code, out, _ = typed("submit", "out", "--check")
    assert code == 0
    row = "  pfedlia on toy (toy): seed 0; lacks seed 1, which other rows of its table have"
    assert out.splitlines()[1:] == [row]
    kept(runs["zero"], tmp_path / "again")
    code, out, _ = typed("submit", "again", "--check")
    assert out.splitlines()[1:] == [mentioning("fedavg", "toy", "seeds 0, 1", "lacks no seed")]
    code, out, _ = typed("submit", "again", "--check", "--results", "nowhere", "--new-table")
    assert out.splitlines()[1:] == [mentioning("fedavg", "toy", "seed 0", "nowhere")]


def test_another_folder_and_none(typed: Typed, runs: dict[str, Result], tmp_path: Path) -> None:
    kept(runs["zero"], tmp_path / "out")
    code, _, err = typed("submit", "out")
    assert code == 1
    assert mentions(err, "--results", "leaderboard's folder")
    (tmp_path / "my board" / "results").mkdir(parents=True)
    code, out, _ = typed("submit", "out", "--new-table", "--results", "my board/results")
    assert code == 0
    assert out.splitlines()[1:4] == [
        "    flbench leaderboard --suite=toy --results 'my board/results' --out 'my board'",
        "    flbench submit --diff HEAD --results 'my board/results'",
        "    git add 'my board'",
    ]


def test_no_name_of_a_file_moves_the_terminal(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "seed-\x1b[2J.json").write_text("{}")
    code, out, _ = typed("submit", str(tmp_path), "--check")
    assert code == 1
    assert out.rstrip("\n").isprintable()


@pytest.mark.slow
@pytest.mark.long
def test_checking_needs_no_torch(tmp_path: Path) -> None:
    shutil.copytree(BOARD / "iid", tmp_path / "iid")
    code = (
        "import sys; from pathlib import Path\n"
        "from flbench.submission.admission import gathered, problems\n"
        f"root = Path({str(tmp_path)!r}); folder = gathered(root, ())\n"
        "print([problems(path, folder) for path in root.rglob('seed-0.json')][:1],"
        " 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[]] False"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", ".github/pull_request_template.md"])
def test_what_contributors_read_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []
    commands = set(re.findall(r"`flbench (\w+)", text))
    assert (
        {"submit"}
        <= commands
        <= {"submit", "leaderboard", "tune", "verify", "check", "reproduce", "speed"}
    )
