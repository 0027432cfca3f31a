"""CSV and TensorBoard: what lies beside the result file says what the result says."""

from __future__ import annotations

import csv
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from listeners import LIA, cut_and_resumed, info, listened, record, write
from mentions import mentioning
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy import Play

from flbench import Result, UserError, hookimpl
from flbench.cli.main import main
from flbench.run.spec import RunSpec
from flbench.sinks.csv_log import CSV, rows_before
from flbench.sinks.rows import rows_of
from flbench.sinks.tensorboard import TensorBoard, wait_for_a_new_second

Rows = list[dict[str, float]]


def csv_file(result: Path) -> Path:
    return result.parent / result.stem / "csv" / "metrics.csv"


def csv_rows(result: Path) -> Rows:
    """What a CSV file says of each round."""
    with csv_file(result).open(newline="") as lines:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(lines)]
    assert [row.pop("step") for row in rows] == list(range(1, len(rows) + 1))
    return rows


def events(result: Path) -> EventAccumulator:
    found = EventAccumulator(
        str(result.parent / result.stem / "tensorboard"), size_guidance={"scalars": 0}
    )
    found.Reload()
    return found


def board_rows(result: Path) -> Rows:
    """What event files say of each round."""
    rows: dict[int, dict[str, float]] = {}
    found = events(result)
    for name in found.Tags()["scalars"]:
        if not name.startswith("summary/"):
            told = found.Scalars(name)
            assert len({one.step for one in told}) == len(told), "once per round"
            for one in told:
                rows.setdefault(one.step, {})[name] = one.value
    assert sorted(rows) == list(range(1, len(rows) + 1))
    return [rows[step] for step in sorted(rows)]


def same(told: Rows, known: Rows) -> bool:
    """The same names in every round, with the same numbers; event files hold 32 bits of each."""
    return [set(row) for row in told] == [set(row) for row in known] and all(
        row == pytest.approx(other, rel=1e-6) for row, other in zip(told, known, strict=True)
    )


KINDS = [("csv", CSV, csv_rows), ("tensorboard", TensorBoard, board_rows)]
both = pytest.mark.parametrize(("name", "sink", "read"), KINDS, ids=["csv", "tensorboard"])
Sink, Read = Callable[[], Any], Callable[[Path], Rows]


@pytest.mark.slow
@both
@pytest.mark.parametrize("method", ["fedavg", "pfedlia"])
def test_every_number_of_every_round_is_there(
    play_toy: Play, name: str, sink: Sink, read: Read, method: str
) -> None:
    settings = LIA if method == "pfedlia" else None
    result, played = write(
        play_toy, method, settings=settings, eval_every=2, sinks=((name, sink()),)
    )
    assert played.said == []
    rows = rows_of(result)
    assert len(rows) == 3
    assert "accuracy" in rows[1]
    assert "accuracy" not in rows[0], "not measured in this round"
    assert same(read(played.job.path), rows)
    assert read(played.job.path)[1]["accuracy"] == pytest.approx(result.curves["accuracy"][1])


@pytest.mark.slow
@both
def test_a_resumed_run_goes_on_in_the_same_log(
    play_toy: Play, name: str, sink: Sink, read: Read
) -> None:
    _, played = write(play_toy, "fedavg", sinks=())
    result = cut_and_resumed(played.job, name, (Lying(sink(), 2), sink()))
    assert played.said == []
    assert same(read(played.job.path), rows_of(result))


def test_an_event_file_is_not_opened_in_the_second_of_another(tmp_path: Path) -> None:
    """Within a second the names of two have no order, and a resumed run must be read last."""
    now = int(time.time())
    for second in (now, now + 1):
        (tmp_path / f"events.out.tfevents.{second:010d}.host.9.9").touch()
    wait_for_a_new_second(tmp_path)
    assert time.time() >= now + 2


class Lying:
    """A sink that hears another accuracy in one round, so that what was taken back is told."""

    def __init__(self, sink: Any, round_: int) -> None:
        self.sink, self.round = sink, round_

    @hookimpl
    def run_started(self, info: Any) -> None:
        self.sink.run_started(info)

    @hookimpl
    def round_finished(self, record: Any) -> None:
        if record.round == self.round:
            record = replace(record, metrics={**record.metrics, "accuracy": 9.0, "gone": 1.0})
        self.sink.round_finished(record)


@pytest.mark.slow
@both
def test_the_lie_would_be_seen(play_toy: Play, name: str, sink: Sink, read: Read) -> None:
    _, played = write(play_toy, "fedavg", sinks=((name, Lying(sink(), 2)),))
    assert read(played.job.path)[1].items() >= {"accuracy": 9.0, "gone": 1.0}.items()


def forced(job: RunSpec, name: str, sink: object) -> Result:
    return listened(replace(job, sinks=((name, sink),), force=True))


@pytest.mark.slow
@both
def test_a_run_that_starts_over_begins_the_log_anew(
    play_toy: Play, name: str, sink: Sink, read: Read
) -> None:
    _, played = write(play_toy, "fedavg", sinks=((name, Lying(sink(), 3)),))
    result = forced(played.job, name, sink())
    assert same(read(played.job.path), rows_of(result))


@pytest.mark.slow
@both
def test_runs_of_one_sink_have_a_log_each(
    play_toy: Play, name: str, sink: Sink, read: Read
) -> None:
    """`--seeds 2` plays two runs through one sink."""
    shared = sink()
    for seed in (0, 1):
        result, played = write(play_toy, "fedavg", seed=seed, sinks=((name, shared),))
        assert same(read(played.job.path), rows_of(result))
        assert played.job.path.stem == f"seed-{seed}"


@pytest.mark.slow
@both
def test_what_cannot_be_written_does_not_stop_the_run(
    play_toy: Play, name: str, sink: Sink, read: Read
) -> None:
    played = play_toy("fedavg")
    folder = played.job.path.with_suffix("")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where a folder should be")
    result, played = write(play_toy, "fedavg", sinks=((name, sink()),))
    assert result.summary["round"] == 3
    failures = [text for text in played.said if "starts over" not in text]
    assert failures
    assert all(text.startswith(f"{name}.") for text in failures)


@pytest.mark.slow
@both
def test_both_at_once_do_not_disturb_each_other(
    play_toy: Play, name: str, sink: Sink, read: Read
) -> None:
    sinks = (("csv", CSV()), ("tensorboard", TensorBoard()))
    result, played = write(play_toy, "fedavg", sinks=sinks)
    assert played.said == []
    assert same(read(played.job.path), rows_of(result))


@pytest.mark.slow
def test_a_resumed_csv_file_has_the_bytes_of_one_that_was_never_cut(play_toy: Play) -> None:
    _, played = write(play_toy, "pfedlia", settings=LIA, sinks=(("csv", CSV()),))
    whole = csv_file(played.job.path).read_bytes()
    cut_and_resumed(played.job, "csv", (CSV(), CSV()))
    assert csv_file(played.job.path).read_bytes() == whole
    assert len(whole.splitlines()) == 4


def test_rows_before_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    assert rows_before(9, file) == []
    file.write_text("a,b,step\n0.5,,1\n,1e-07,2\n3.0,4.0,3\n")
    assert rows_before(3, file) == [(1, {"a": 0.5}), (2, {"b": 1e-07})]
    assert rows_before(1, file) == []
    file.write_text("a,b,step\n0.5,,1\n,1e")
    assert rows_before(3, file) == [(1, {"a": 0.5})], "half of a line is left out"


def test_a_killed_run_has_logged_what_it_played(tmp_path: Path) -> None:
    """Without being told that the run ends: nothing waits in memory."""
    path = tmp_path / "fresh" / "seed-0.json"
    sinks = [CSV(), TensorBoard()]
    for sink in sinks:
        sink.run_started(info(path=str(path)))
        for number in (1, 2):
            sink.round_finished(record(number, 3, number / 4))
    assert csv_rows(path) == board_rows(path) == [{"accuracy": 0.25}, {"accuracy": 0.5}]


@pytest.mark.slow
def test_tensorboard_lists_parameters_beside_the_summary(play_toy: Play) -> None:
    result, played = write(
        play_toy, "pfedlia", settings=LIA, sinks=(("tensorboard", TensorBoard()),)
    )
    found = events(played.job.path)
    plugin = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    from tensorboard.plugins.hparams import plugin_data_pb2

    told = plugin_data_pb2.HParamsPluginData.FromString(plugin).session_start_info.hparams
    assert told["method"].string_value == "pfedlia"
    assert told["warmup"].number_value == 1
    assert told["seed"].number_value == 0
    for name, value in result.summary.items():
        if value is not None:
            (one,) = found.Scalars(f"summary/{name}")
            assert (one.step, one.value) == (3, pytest.approx(value, rel=1e-6))


# --- where it is not installed ----------------------------------------------------------------


def absent(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "flbench.sinks.tensorboard.find_spec", lambda name: None if name in names else real(name)
    )


def test_without_tensorboard_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    absent(monkeypatch, "tensorboard", "tensorboardX")
    words = ["run", "-p", "fedavg", "-s", "pathological-noniid", "--sink", "tensorboard"]
    monkeypatch.setattr(sys, "argv", ["flbench", *words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1] == mentioning(
        "sink", "tensorboard", "package", "pip install 'flbench[tensorboard]'"
    )
    assert list(tmp_path.iterdir()) == [], "before anything ran"


@pytest.mark.parametrize("names", [("tensorboard",), ("tensorboardX",), ()])
def test_one_of_the_two_packages_is_enough(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    absent(monkeypatch, "tensorboard", "tensorboardX")
    with pytest.raises(UserError):
        TensorBoard()
    monkeypatch.setattr(
        "flbench.sinks.tensorboard.find_spec", lambda name: None if name in names else object()
    )
    TensorBoard()


def test_a_log_that_was_never_opened_takes_nothing(play_toy: Play) -> None:
    """A run goes on without a sink whose start has failed; it still hears what follows."""
    result, played = write(play_toy, "fedavg", rounds=1, sinks=())
    before, sink = set(played.job.path.parent.rglob("*")), TensorBoard()
    sink.round_finished(record(1, 1))
    sink.run_finished(result)
    assert set(played.job.path.parent.rglob("*")) == before
