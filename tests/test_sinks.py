"""Sinks: what the console prints, what an offline W&B run holds, and that neither stops a run."""

from __future__ import annotations

import io
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console as Terminal
from toy import CLIENTS, Play, toy_dataset

from flbench import Membership, Result, RoundRecord, RunInfo, State
from flbench.runner import run_job
from flbench.sinks import console as console_module
from flbench.sinks import wandb as wandb_module
from flbench.sinks.console import Console
from flbench.sinks.wandb import WandB, heat_map

LIA = {"warmup": 1, "probe_epochs": 3}


def info(**changes: Any) -> RunInfo:
    known = RunInfo("fedavg", {}, "toy", "digits", 4, 3, 1, {}, "0123abcd", [0, 0, 1])
    return replace(known, **changes)


def record(round_: int, rounds: int, accuracy: float | None = 0.5, **more: Any) -> RoundRecord:
    return RoundRecord(round_, rounds, {"accuracy": accuracy}, **more)


def write(play_toy: Play, method: str, **told: Any) -> tuple[Result, Any]:
    """Play a toy run the way the command line does: sinks hear its start and its end as well."""
    sinks, settings = told.pop("sinks"), told.pop("settings", None)
    played = play_toy(method, settings=settings, **told)
    played.said.clear()
    played.job.checkpoint.unlink(missing_ok=True)
    job = replace(played.job, sinks=sinks)
    return run_job(job, lambda name, root: toy_dataset()), played


# --- the console ------------------------------------------------------------------------------


def test_without_a_terminal_the_console_prints_plain_lines(
    play_toy: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = write(play_toy, "fedavg", sinks=(("console", Console()),))
    told = capsys.readouterr()
    assert told.out == "", "results go to standard output, progress to standard error"
    first, *rounds = told.err.splitlines()
    assert first == "fedavg on toy (toy), seed 0: 3 rounds"
    assert len(rounds) == 3
    for number, (line, accuracy) in enumerate(
        zip(rounds, result.curves["accuracy"], strict=True), 1
    ):
        assert line.startswith(f"  round {number}/3  accuracy {accuracy:.3f}  ")
        assert line.endswith(" s left")
    assert "\x1b" not in told.err, "no colours, no cursor movements"


def test_a_round_that_was_not_evaluated_shows_what_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    console.run_started(info())
    console.round_finished(record(1, 3, None))
    assert "  round 1/3  accuracy -  " in capsys.readouterr().err
    console.round_finished(record(2, 3, 0.25))
    console.round_finished(record(3, 3, None))
    assert "  round 3/3  accuracy 0.250  " in capsys.readouterr().err


@pytest.mark.parametrize("rounds", [3, 10, 19, 25, 60, 1000])
def test_a_run_prints_about_ten_lines_and_always_the_last(
    rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console()
    console.run_started(info(rounds=rounds))
    capsys.readouterr()
    for number in range(1, rounds + 1):
        console.round_finished(record(number, rounds))
    lines = capsys.readouterr().err.splitlines()
    assert min(rounds, Console.LINES) <= len(lines) <= Console.LINES + 1
    assert lines[-1].startswith(f"  round {rounds}/{rounds} ")


def test_the_time_left_counts_from_the_round_the_run_went_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [50.0]
    monkeypatch.setattr(console_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    console = Console()
    console.run_started(info(rounds=60, first=31))
    now[0] += 120  # twelve rounds of ten seconds, 31 to 42
    console.round_finished(record(42, 60))
    now[0] += 180
    console.round_finished(record(60, 60))
    lines = capsys.readouterr().err.splitlines()[1:]
    assert [line.rpartition("  ")[2] for line in lines] == ["180 s left", "0 s left"]


def test_say_is_one_plain_line_with_its_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    Console().say("--set [local] lr=0.1: [bold]no[/bold]")
    assert capsys.readouterr().err == "  note: --set [local] lr=0.1: [bold]no[/bold]\n"


def test_a_long_note_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A log is searched by line; where there is no terminal nothing is wrapped."""
    message = "pfedlia: " + "OPTICS found no group, so everybody stays in one; " * 3 + "end"
    Console().say(message)
    assert capsys.readouterr().err == f"  note: {message}\n"


def test_a_long_title_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    method = "pfedlia+a-rather-long-method-name-of-a-stranger"
    Console().run_started(info(method=method, suite="a-suite-with-a-long-name-of-its-own"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(method)
    assert line.endswith("seed 4: 3 rounds")


def test_in_a_terminal_there_is_a_bar_and_it_goes_away() -> None:
    screen = io.StringIO()
    console = Console()
    console._terminal = Terminal(file=screen, force_terminal=True, width=120)
    console.run_started(info())
    console.round_finished(record(2, 3, 0.625))
    console.say("something to know")
    bar = console._bar
    assert bar is not None
    assert (bar.tasks[0].completed, bar.tasks[0].total) == (2, 3)
    assert not bar.finished
    console.round_finished(record(3, 3, 0.75))
    console.run_finished(None)  # type: ignore[arg-type]
    console.close()  # a second time, as the command line does
    assert console._bar is None
    assert bar.finished
    told = screen.getvalue()
    for piece in ("fedavg on toy (digits), seed 4", "3/3", "accuracy 0.750", "note: something"):
        assert piece in told
    assert told.count("\x1b[?25l") == told.count("\x1b[?25h") == 1, "the cursor comes back"


# --- the picture ------------------------------------------------------------------------------


def test_the_heat_map_is_blue_white_red_and_grey_by_hand() -> None:
    picture = heat_map(np.array([[-2.0, 0.0], [2.0, 1.0], [np.nan, -1.0]]), cell=1)
    assert (picture.shape, picture.dtype) == ((3, 2, 3), np.uint8)
    assert picture.tolist() == [
        [[0, 0, 255], [255, 255, 255]],
        [[255, 0, 0], [255, 127, 127]],
        [[127, 127, 127], [127, 127, 255]],
    ]


def test_the_heat_map_repeats_every_entry() -> None:
    picture = heat_map(np.array([[1.0, -1.0]]), cell=3)
    assert picture.shape == (3, 6, 3)
    assert (picture[:, :3] == [255, 0, 0]).all()
    assert (picture[:, 3:] == [0, 0, 255]).all()


def test_the_heat_map_of_zeros_is_white() -> None:
    assert (heat_map(np.zeros((2, 2))) == 255).all()


def test_the_heat_map_of_nothing_asked_is_grey() -> None:
    assert (heat_map(np.full((2, 2), np.nan)) == 127).all()


# --- W&B, replaced ----------------------------------------------------------------------------


class FakeRun:
    """Remembers what a W&B run is told; `fails` is the call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}
        self.artifacts: list[Any] = []
        self.finished = 0

    def _may_fail(self, call: str) -> None:
        if call == self.fails:
            raise OSError(f"{call}: no connection")

    def log(self, table: dict[str, Any], step: int) -> None:
        self._may_fail("log")
        self.logged.append((step, table))

    def log_artifact(self, artifact: Any) -> None:
        self._may_fail("log_artifact")
        self.artifacts.append(artifact)

    def finish(self) -> None:
        self._may_fail("finish")
        self.finished += 1


class FakeArtifact:
    def __init__(self, name: str, type: str) -> None:
        self.name, self.type, self.files = name, type, []

    def add_file(self, path: str) -> None:
        assert Path(path).is_file()
        self.files.append(path)


def fake_wandb(monkeypatch: pytest.MonkeyPatch, fails: str = "", logged_in: bool = False) -> Any:
    """Put a stand-in where `import wandb` looks."""
    run = FakeRun(fails)
    begun: list[dict[str, Any]] = []

    def init(**given: Any) -> FakeRun:
        run._may_fail("init")
        begun.append(given)
        return run

    def login(prompt: bool = True) -> bool:
        assert not prompt, "nobody is asked"
        run._may_fail("login")
        return logged_in

    fake = SimpleNamespace(
        init=init,
        login=login,
        Error=OSError,
        Settings=lambda **given: given,
        Table=lambda **given: ("table", given),
        Image=lambda picture, caption: ("image", picture, caption),
        Artifact=FakeArtifact,
        run=run,
        begun=begun,
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_a_login_that_fails_means_offline(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    fake = fake_wandb(monkeypatch, "login")
    _, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert [given["mode"] for given in fake.begun] == ["offline"]
    assert not played.said


@pytest.mark.parametrize("fails", ["init", "log", "log_artifact", "finish"])
def test_a_wandb_that_fails_does_not_stop_the_run(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    fake_wandb(monkeypatch, fails)
    result, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert played.job.path.is_file()
    assert result.clients == played.result.clients
    assert played.said, "and it is said"
    assert all(text.startswith("wandb.") for text in played.said)
    assert all(f"{fails}: no connection" in text for text in played.said)


def test_a_wandb_that_is_not_there_does_not_stop_the_run(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    result, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert result.summary["round"] == 3
    assert played.said[0].startswith("wandb.run_started failed (")


def test_a_wandb_that_never_began_is_mentioned_once(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    fake = fake_wandb(monkeypatch, "init")
    _, played = write(play_toy, "fedavg", sinks=(("wandb", WandB()),))
    assert len(played.said) == 1
    assert fake.run.logged == []


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
    WandB().run_started(info())
    (begun,) = fake.begun
    assert begun["mode"] == expected
    assert (begun["name"], begun["group"]) == ("fedavg-seed4", "toy/digits")
    assert (begun["job_type"], begun["tags"]) == ("fedavg", ["0123abcd"])
    assert begun["config"]["seed"] == 4


def state(influence: torch.Tensor) -> State:
    home = torch.tensor([0, 0, 1])
    others = {"lia.velocity": torch.ones(3, 5), "lia.one": torch.ones(1)}
    memory = {"lia.influence": influence, **others}
    return State(1, torch.zeros(2, 4), Membership(home), memory)


def test_matrices_and_membership_are_shown_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    fake, sink = fake_wandb(monkeypatch), WandB()
    sink.run_started(info())
    nothing, something = torch.zeros(3, 3), torch.arange(9.0).reshape(3, 3)
    sink.round_finished(record(1, 4, labels=[0, 0, 0], notes={"a": 2, "b": [1]}), state(nothing))
    sink.round_finished(record(2, 4, None, labels=[0, 0, 0]), state(something))
    sink.round_finished(record(3, 4, labels=[0, 0, 1]), state(something))
    sink.round_finished(record(4, 4), state(something))
    (_, one), (_, two), (_, three), (_, four) = fake.run.logged
    assert [step for step, _ in fake.run.logged] == [1, 2, 3, 4]
    table = ("table", {"columns": ["client", "label", "true group"]})
    assert one == {
        "accuracy": 0.5,
        "a": 2,
        "membership": (
            table[0],
            {**table[1], "data": [[0, 0, 0], [1, 0, 0], [2, 0, 1]]},
        ),
    }
    assert set(two) == {"lia.influence", "lia.influence (table)"}
    kind, picture, caption = two["lia.influence"]
    assert (kind, caption) == ("image", "lia.influence, row = judging client")
    assert (picture == heat_map(something.numpy())).all()
    assert two["lia.influence (table)"][1] == {
        "columns": ["0", "1", "2"],
        "data": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0]],
    }
    assert set(three) == {"accuracy", "membership"}
    assert three["membership"][1]["data"] == [[0, 0, 0], [1, 0, 0], [2, 1, 1]]
    assert four == {"accuracy": 0.5}


def test_a_second_run_of_the_same_sink_starts_afresh(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--seeds 2` plays two runs through one sink."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    fake, sink = fake_wandb(monkeypatch), WandB()
    for seed in (0, 1):
        write(play_toy, "pfedlia", settings=LIA, rounds=2, seed=seed, sinks=(("wandb", sink),))
    assert [given["name"] for given in fake.begun] == ["pfedlia-seed0", "pfedlia-seed1"]
    assert fake.run.finished == 2
    assert [artifact.name for artifact in fake.run.artifacts] == [
        "toy-pfedlia-seed0",
        "toy-pfedlia-seed1",
    ]
    firsts = [table for step, table in fake.run.logged if step == 1]
    assert all("membership" in table for table in firsts)
    assert all("pfedlia.influence" in table for table in firsts)


# --- W&B itself, offline ----------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nobody is logged in and everything wandb writes lands in a folder of the test."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        folder = tmp_path / name.lower()
        folder.mkdir()
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    import wandb

    wandb.teardown()
    yield tmp_path / "wandb_dir" / "wandb"
    wandb.teardown()


def transaction_log(path: Path) -> list[Any]:
    """The records of a .wandb file: LevelDB's log format with a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, found, whole, at, block = path.read_bytes(), [], b"", 7, 32768
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if block - at % block < 7:  # the rest of a block is padding
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last piece of one
            one = wandb_internal_pb2.Record()
            one.ParseFromString(whole)
            found.append(one)
            whole = b""
    return found


def logged(item: Any) -> tuple[str, Any]:
    key = ".".join(item.nested_key) if item.nested_key else item.key
    return key, json.loads(item.value_json)


@pytest.mark.slow
# wandb's temporary folders live until the interpreter ends, and say so when they are collected.
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_an_offline_run_holds_curves_influence_membership_and_the_result(
    play_toy: Play, offline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, played = write(play_toy, "pfedlia", settings=LIA, sinks=(("wandb", WandB()),))
    assert played.said == [], "nothing failed"
    assert capsys.readouterr().out == "", "wandb asks and says nothing"
    (folder,) = offline.glob("offline-run-*")
    (path,) = folder.glob("*.wandb")
    records = transaction_log(path)

    rounds = [dict(map(logged, one.history.item)) for one in records if one.HasField("history")]
    assert [table["_step"] for table in rounds] == [1, 2, 3]
    for name in ("accuracy", "accuracy_validation", "loss", "train_loss", "groups", "bytes_down"):
        curve = [round(table[name], 6) for table in rounds]
        assert curve == result.curves[name]

    (run,) = [one.run for one in records if one.HasField("run")]
    assert (run.project, run.run_group, run.job_type) == ("flbench", "toy/toy", "pfedlia")
    assert run.display_name == "pfedlia-seed0"
    config = {one.key: json.loads(one.value_json) for one in run.config.update}
    assert config["params"]["warmup"] == 1
    assert config["suite"]["clients"] == CLIENTS

    media = folder / "files" / "media"
    (picture,) = media.glob("images/pfedlia.influence*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert any(key.startswith("pfedlia.influence.") for key in rounds[0])
    (matrix,) = [json.loads(file.read_text()) for file in media.glob("table/*influence*.json")]
    influence = played.state.memory["pfedlia.influence"]
    assert bool(influence.any()), "the probe took place"
    np.testing.assert_allclose(matrix["data"], influence.numpy())
    tables = [json.loads(file.read_text()) for file in media.glob("table/membership*.json")]
    assert tables, "the membership is there"
    labels = {tuple(row[1] for row in table["data"]) for table in tables}
    assert labels == {tuple(labels) for _, labels in result.memberships()}
    assert all([row[2] for row in table["data"]] == result.clients.group for table in tables)

    (artifact,) = [
        one.artifact
        for one in records
        if one.HasField("artifact") and one.artifact.type == "result"
    ]
    assert artifact.name == "toy-pfedlia-seed0"
    (entry,) = artifact.manifest.contents
    assert entry.path == "seed-0.json"
    assert entry.size == played.job.path.stat().st_size
    summary = dict(
        logged(item) for one in records if one.HasField("summary") for item in one.summary.update
    )
    assert summary["accuracy_mean"] == pytest.approx(result.summary["accuracy_mean"])


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
        "wandb.run_started failed (CommError: no route to host); the run goes on"
    ]
