"""W&B: what a run of it holds, live or resumed, and that nothing of it stops a run."""

from __future__ import annotations

import hashlib
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from listeners import (
    LIA,
    Offline,
    cut_and_resumed,
    fake_wandb,
    info,
    nobody_logged_in,
    record,
    write,
)
from made_results import made
from made_tasks import as_numbers
from mentions import mentioning, mentions
from toy import CLIENTS, Play, python

from flbench import Result
from flbench.results.schema import Change, Clients, ScoreMatrix, Unseen
from flbench.results.score_encoding import encode
from flbench.sinks import wandb as wandb_module
from flbench.sinks.rows import row_of, rows_of
from flbench.sinks.wandb import WandB, publish, replay, run_id
from flbench.sinks.wandb_tables import config_of, figures, tables


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with nobody_logged_in(tmp_path, monkeypatch) as folder:
        yield folder


# --- rounds and parts -------------------------------------------------------------------------


def test_rounds_by_hand(play_toy: Play) -> None:
    notes = [
        {"round": 2, "name": "a.k", "value": 3},
        {"round": 2, "name": "a.list", "value": [1]},
        {"round": 1, "name": "a.word", "value": "x"},
    ]
    curves = {"accuracy": [None, 0.5], "bytes_up": [7, 9]}
    result = play_toy("fedavg", rounds=2).result
    result = result.model_copy(update={"curves": curves, "notes": notes})
    assert rows_of(result) == [
        {"bytes_up": 7.0},
        {"accuracy": 0.5, "bytes_up": 9.0, "a.k": 3.0},
    ]


def test_a_round_is_rounded_as_curves_are() -> None:
    told = record(1, 2, 2 / 3, notes={"a": True, "b": [1], "c": "x", "d": 1 / 3})
    assert row_of(told) == {"accuracy": 0.666667, "a": 1.0, "d": 1 / 3}
    assert row_of(record(1, 2, None)) == {}


def by_hand(result: Result) -> Result:
    """A result of two clients, its arrays written by hand."""
    cells, low, high = encode(np.array([[0.0, np.nan, 2.54], [1.0, 0.5, 0.0]]))
    arrays = {"train": [5, 6], "validation": [1, 2], "test": [3, 4], "correct": [2, 4]}
    return result.model_copy(
        update={
            "clients": Clients(
                **arrays, loss=[0.5, 0.25], group=[1, 0], bytes=[7, 8],
                labels=[{3: 5}, {0: 2, 3: 4}],
            ),
            "membership": [
                Change(round=1, labels=[0, 0]), Change(round=4, clients=[1], labels=[2]),
            ],
            "scores": ScoreMatrix(
                round=4, columns="models", row_ids=[1, 0], column_ids=[0, 1, 5],
                low=low, high=high, cells=cells,
            ),
            "unseen": Unseen(
                epochs=5, train=[3], test=[2], correct=[1], correct_tuned=[2], group=None
            ),
        }
    )  # fmt: skip


def test_tables_by_hand(play_toy: Play) -> None:
    found = {
        name: (columns, rows) for name, columns, rows in tables(by_hand(play_toy("fedavg").result))
    }
    assert found["clients"] == (
        [
            *("client", "train", "validation", "test", "correct", "loss", "group", "bytes"),
            *("label 0", "label 3"),
        ],
        [[0, 5, 1, 3, 2, 0.5, 1, 7, 0, 5], [1, 6, 2, 4, 4, 0.25, 0, 8, 2, 4]],
    )
    assert found["membership"] == (
        ["client", "group", "round 1", "round 4"],
        [[0, 1, 0, 0], [1, 0, 0, 2]],
    )
    columns, rows = found["scores"]
    assert columns == ["client", "model 0", "model 1", "model 5"]
    assert rows[0] == [1, 0.0, None, pytest.approx(2.54)]
    assert rows[1] == [0, pytest.approx(1.0), pytest.approx(0.5), 0.0]
    assert found["unseen"] == (
        ["client", "train", "test", "correct", "correct_tuned"],
        [[0, 3, 2, 1, 2]],
    )


def test_another_task_has_its_values_and_figures() -> None:
    result = as_numbers(made(correct=[25, 75], test=[100, 100]))
    (_, columns, rows), *_ = tables(result)
    assert [row[columns.index("values")] for row in rows] == [0.75, 0.25]
    assert "correct" not in columns
    assert config_of(result)["task"] == "numbers"
    svg = dict(figures(result))["clients"].decode()
    assert mentions(svg, "RMSE", "fedavg 0.500 (0.700)")


def test_tables_leave_out_what_a_result_lacks(play_toy: Play) -> None:
    result = by_hand(play_toy("fedavg").result)
    bare = result.clients.model_copy(update={"group": None, "labels": None})
    result = result.model_copy(update={"clients": bare, "scores": None, "unseen": None})
    found = {name: columns for name, columns, _ in tables(result)}
    assert list(found) == ["clients", "membership"]
    assert not {"group", "label 0"} & set(found["clients"])
    assert found["membership"] == ["client", "round 1", "round 4"]


MEASURED = {"summary", "curves", "clients", "unseen", "membership", "scores"}
MEASURED |= {
    "client_metrics",
    "bytes",
    "energy",
    "notes",
    "own",
    "saved",
    "warnings",
    "seconds",
    "source_changes",
    "reads",
}


@pytest.mark.slow
def test_the_configuration_is_all_that_was_not_measured(play_toy: Play) -> None:
    result = play_toy("pfedlia", settings=LIA).result
    config = config_of(result)
    assert set(config) - {"params", "plugins"} == set(Result.model_fields) - MEASURED
    assert config["method"] == "pfedlia"
    assert config["params"]["warmup"] == 1
    assert config["suite"]["clients"] == CLIENTS
    assert config["fingerprint"] == result.fingerprint.model_dump()
    assert [plugin["name"] for plugin in config["plugins"]] == ["pfedlia"]


@pytest.mark.slow
@pytest.mark.long
def test_the_figures_are_those_there_are(play_toy: Play) -> None:
    result = play_toy("pfedlia", settings=LIA).result
    found = dict(figures(result))
    assert {"curves", "clients", "scores", "partition"} <= set(found)
    assert all(b"<svg" in svg for svg in found.values())
    assert "scores" not in dict(figures(result.model_copy(update={"scores": None})))


def test_every_part_of_what_a_run_is_changes_its_id() -> None:
    parts = ("suite", "data", "method", "0123abcd", 1)
    others = ("other", "other", "other", "0123abce", 2)
    ids = {run_id(*parts)}
    for at in range(5):
        ids.add(run_id(*parts[:at], others[at], *parts[at + 1 :]))  # type: ignore[arg-type]
    ids |= {run_id("a", "bc", *parts[2:]), run_id("ab", "c", *parts[2:])}  # type: ignore[arg-type]
    assert len(ids) == 8
    assert all(len(one) == 16 and int(one, 16) for one in ids)


# --- W&B, replaced ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_a_login_that_fails_means_offline(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_wandb(monkeypatch, "login")
    _, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert [given["mode"] for given in fake.begun] == ["offline"]
    assert not played.said


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["init", "log", "log_artifact", "finish"])
def test_a_wandb_that_fails_does_not_stop_the_run(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    fake = fake_wandb(monkeypatch, fails)
    result, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert played.job.path.is_file()
    assert result.clients == played.result.clients
    assert played.said, "and it is said"
    assert all(text.startswith("wandb.") for text in played.said)
    assert all(f"{fails}: no connection" in text for text in played.said)
    closed = 0 if fails == "finish" else 1
    assert [run.finished for run in fake.runs] == ([] if fails == "init" else [closed])


@pytest.mark.slow
def test_a_wandb_that_is_not_there_does_not_stop_the_run(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    result, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert result.summary["round"] == 3
    assert len(played.said) == 1, "once"
    assert played.said[0].startswith("wandb.run_started failed (")


@pytest.mark.slow
def test_a_run_that_never_began_takes_nothing_from_the_one_before(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run dies, the second cannot begin: the first hears nothing of the second."""
    fake, sink = fake_wandb(monkeypatch), WandB()
    sink.run_started(info())
    fake_wandb(monkeypatch, "init")
    _, played = write(play_toy, "fedavg", sinks=(("wandb", sink),))
    assert len(played.said) == 1
    (died,) = fake.runs
    assert (died.logged, died.finished, died.exit_code) == ([], 1, 1)


@pytest.mark.parametrize(
    ("mode", "logged_in", "expected"),
    [("", True, "online"), ("", False, "offline"), ("disabled", True, None)],
    ids=["logged in", "not logged in", "WANDB_MODE overrules"],
)
def test_online_when_logged_in_and_offline_otherwise(
    monkeypatch: pytest.MonkeyPatch, mode: str, logged_in: bool, expected: str | None
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    fake = fake_wandb(monkeypatch, logged_in=logged_in)
    WandB().run_started(info(params={"mu": 1}, settings={"clients": 6}))
    (begun,) = fake.begun
    assert begun["mode"] == expected
    assert (begun["project"], begun["resume"]) == ("flbench", "allow")
    assert begun["id"] == run_id("toy", "digits", "fedavg", "0123abcd", 4)
    assert (begun["name"], begun["group"]) == ("fedavg-seed4", "toy/digits")
    assert (begun["job_type"], begun["tags"]) == ("fedavg", ["0123abcd"])
    assert begun["config"] == {
        "method": "fedavg",
        "params": {"mu": 1},
        "suite": {"name": "toy", "clients": 6},
        "dataset": "digits",
        "seed": 4,
    }


def test_the_project_is_the_one_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    fake = fake_wandb(monkeypatch)
    WandB().run_started(info())
    assert fake.begun[0]["project"] == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pfedlia", "cfl", "centralised"])
def test_what_is_logged_live_is_what_is_replayed(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fake = fake_wandb(monkeypatch)
    result, _ = write(play_toy, method, eval_every=2, sinks=(("wandb", WandB()),))
    (live,) = fake.runs
    again = fake.init()
    replay(again, result)
    assert live.curves() == again.curves() == rows_of(result)
    assert [step for step, _ in again.logged] == [1, 2, 3]
    assert "accuracy" not in live.rows()[1], "a round that nobody judged"
    assert {"tables/clients", "tables/membership", "figures/curves"} <= set(live.rows()[3])
    marks = result.fingerprint
    assert live.tags == (marks.config, marks.suite)
    assert live.settled == config_of(result)
    assert (
        live.summary.items()
        >= {
            **{name: value for name, value in result.summary.items() if value is not None},
            "bytes": result.bytes,
        }.items()
    )
    assert live.finished == 1


@pytest.mark.slow
def test_the_artifact_is_the_result_file(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--seeds 2` plays two runs through one sink."""
    fake, sink = fake_wandb(monkeypatch), WandB()
    files = []
    for seed in (0, 1):
        _, played = write(play_toy, "ifca+fedprox", seed=seed, sinks=(("wandb", sink),))
        files.append(played.job.path)
    mark = played.job.fingerprint
    artifacts = [artifact for run in fake.runs for artifact in run.artifacts]
    assert [one.name for one in artifacts] == [
        f"toy-toy-ifca-fedprox-{mark}-seed0",
        f"toy-toy-ifca-fedprox-{mark}-seed1",
    ]
    assert [one.files for one in artifacts] == [[str(path)] for path in files]
    assert len({given["id"] for given in fake.begun}) == 2
    assert [run.finished for run in fake.runs] == [1, 1]


@pytest.mark.slow
def test_a_long_name_of_an_artifact_keeps_what_tells_it_apart(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, played = write(play_toy, "fedavg", sinks=())
    method = result.method.model_copy(update={"name": "+".join(["fedavg"] * 40)})
    run = fake_wandb(monkeypatch).init()
    publish(run, result.model_copy(update={"method": method}), played.job.path)
    (artifact,) = run.artifacts
    assert len(artifact.name) == 128
    assert artifact.name.endswith(f"-fedavg-{result.fingerprint.config}-seed0")


@pytest.mark.slow
def test_warnings_become_the_notes_of_the_run(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, played = write(play_toy, "fedavg", sinks=())
    run = fake_wandb(monkeypatch).init()
    publish(run, result.model_copy(update={"warnings": ["one", "two"]}), played.job.path)
    assert run.notes == "one\ntwo"


@pytest.mark.slow
def test_what_wandb_has_already_is_not_logged_again(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, played = write(play_toy, "fedavg", sinks=())
    fake = fake_wandb(monkeypatch)
    first, later, whole = fake.init(), fake.init(), fake.init()
    later.starting_step, whole.starting_step = 3, 4
    for run in (first, later, whole):
        replay(run, result)
        publish(run, result, played.job.path)
    assert list(first.rows()) == [1, 2, 3]
    assert list(later.rows()) == [3]
    assert whole.logged == []
    media = {name for name in first.rows()[3] if "/" in name}
    assert media == {name for name in whole.summary if "/" in name}, "replaced, not added"
    assert not media & set(first.summary), "W&B puts the last row there by itself"


@pytest.mark.slow
@pytest.mark.parametrize(("here", "step"), [(True, 0), (False, 3), (False, 2), (False, 0)])
def test_a_run_that_goes_on(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch, here: bool, step: int
) -> None:
    """It was cut after round 2, and goes on with round 2 from the checkpoint of round 1.

    W&B goes on with step 3, or with 2, or has none of the rounds.
    """
    _, played = write(play_toy, "fedavg", sinks=())
    fake = fake_wandb(monkeypatch, offline=here)
    real = fake.init
    steps = iter((0, step))  # W&B goes on after the last step it has

    def init(**given: Any) -> Any:
        run = real(**given)
        run.starting_step = next(steps)
        return run

    fake.init = init
    result = cut_and_resumed(played.job, "wandb", (WandB(), WandB()))
    before, after = fake.runs
    assert len({given["id"] for given in fake.begun}) == 1
    rows = rows_of(result)
    assert before.curves() == rows[:2]
    assert list(after.rows()) == [number for number in (1, 2, 3) if number >= step]
    assert after.curves() == rows[max(step - 1, 0) :]
    assert (before.finished, after.finished) == (0, 1)


@pytest.mark.slow
def test_sinks_and_sync_import_nothing_heavy() -> None:
    modules = "cli.sync, sinks.wandb, sinks.tensorboard, sinks.csv_log, figures"
    imports = ", ".join(f"flbench.{name.strip()}" for name in modules.split(","))
    heavy = "('torch', 'lightning', 'wandb', 'matplotlib')"
    code = f"import sys, {imports}; print([name for name in {heavy} if name in sys.modules])"
    assert python(code).strip() == "[]"


# --- W&B itself, offline ----------------------------------------------------------------------

# wandb's temporary folders live until the interpreter ends, and say so when they are collected.
WARNS = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


@pytest.mark.slow
@WARNS
def test_an_offline_run_holds_all_that_the_result_holds(
    play_toy: Play, offline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, played = write(play_toy, "pfedlia", settings=LIA, sinks=(("wandb", WandB()),))
    assert played.said == [], "nothing failed"
    assert capsys.readouterr().out == "", "wandb asks and says nothing"
    (folder,) = offline.glob("offline-run-*")
    told = Offline(folder)

    assert list(told.rows) == [1, 2, 3]
    assert told.curves() == rows_of(result)
    assert {
        name: curve[0] for name, curve in result.curves.items() if curve[0] is not None
    }.items() <= (told.rows[1].items())

    run, marks = told.run, result.fingerprint
    assert (run.project, run.run_group, run.job_type) == ("flbench", "toy/toy", "pfedlia")
    assert run.display_name == "pfedlia-seed0"
    assert run.run_id == run_id("toy", "toy", "pfedlia", marks.config, 0)
    assert list(run.tags) == [marks.config, marks.suite]
    config = config_of(result)
    assert {name: told.config[name] for name in config} == config

    assert result.scores is not None
    for name, columns, rows in tables(result):
        assert told.table(name) == {"columns": columns, "data": rows}
    scores = np.array(told.table("scores")["data"], dtype=float)
    np.testing.assert_array_equal(scores[:, 1:], result.scores.values())
    np.testing.assert_array_equal(scores[:, 0], result.scores.row_ids)
    members = np.array(told.table("membership")["data"])
    assert [column.tolist() for column in members.T[2:]] == [
        labels for _, labels in result.memberships()
    ]
    assert told.figures() == {name: svg.decode() for name, svg in figures(result)}
    assert {"curves", "clients", "scores", "partition"} <= set(told.figures())

    (artifact,) = told.artifacts
    assert artifact.name == f"toy-toy-pfedlia-{marks.config}-seed0"
    (entry,) = artifact.manifest.contents
    data = played.job.path.read_bytes()
    assert (entry.path, entry.size) == ("seed-0.json", len(data))
    assert b64decode(entry.digest) == hashlib.md5(data).digest(), "the very bytes"

    known = {name: value for name, value in result.summary.items() if value is not None}
    assert {name: told.summary[name] for name in known} == pytest.approx(known)
    assert told.summary["bytes"] == result.bytes


@pytest.mark.slow
@WARNS
def test_what_a_resumed_run_writes_offline_is_whole(play_toy: Play, offline: Path) -> None:
    _, played = write(play_toy, "fedavg", sinks=())
    result = cut_and_resumed(played.job, "wandb", (WandB(), WandB()))
    folders = sorted(offline.glob("offline-run-*"), key=lambda path: path.stat().st_mtime_ns)
    told = [Offline(folder) for folder in folders]
    assert len({one.run.run_id for one in told}) == 1
    assert sorted(map(len, (one.rows for one in told)))[-1] == 3
    whole = next(one for one in told if len(one.rows) == 3)
    assert whole.curves() == rows_of(result)
    assert whole.table("clients")["data"]


@pytest.mark.slow
def test_without_credentials_the_mode_is_offline_without_a_question(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*args: Any) -> str:
        raise AssertionError("a question was asked")

    monkeypatch.setattr("builtins.input", asked)
    assert wandb_module._mode() == "offline"


@pytest.mark.slow
def test_the_real_wandb_that_cannot_begin_does_not_stop_the_run(
    play_toy: Play, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def init(**given: Any) -> None:
        raise wandb.errors.CommError("no route to host")

    monkeypatch.setattr(wandb, "init", init)
    result, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert result.summary["round"] == 3
    assert played.said == [
        mentioning("wandb.run_started", "failed", "CommError", "no route to host")
    ]
