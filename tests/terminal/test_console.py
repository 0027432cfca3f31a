"""The console: what it prints."""

from __future__ import annotations

import io
import pdb
import subprocess
import sys
from dataclasses import replace
from types import FrameType, SimpleNamespace

import pytest
from listeners import info, record, write
from mentions import mentioning
from rich.console import Console as Terminal
from toy import Play

from flbench.results.events import RoundRecord
from flbench.terminal import console as console_module
from flbench.terminal.console import Console, RunBar, SweepProgress


@pytest.mark.slow
def test_without_a_terminal_the_console_prints_plain_lines(
    play_toy: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = write(play_toy, "fedavg", sinks=(("console", Console()),))
    told = capsys.readouterr()
    assert told.out == "", "results go to standard output, progress to standard error"
    first, *rounds = told.err.splitlines()
    assert first == mentioning("fedavg", "toy", "seed 0", "3 rounds")
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


def test_a_run_of_another_task_shows_its_headline(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    for task, name, shown in (("numbers", "rmse", "RMSE"), ("labels", "map", "mAP")):
        console.run_started(info(task=task))
        console.round_finished(RoundRecord(1, 3, {"accuracy": 0.75, name: None}))
        console.round_finished(RoundRecord(2, 3, {name: 0.25}))
        lines = capsys.readouterr().err.splitlines()
        assert f"  round 1/3  {shown} -  " in lines[1], "a number of another task is none of its"
        assert f"  round 2/3  {shown} 0.250  " in lines[2]


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
    assert capsys.readouterr().err == mentioning("note", "--set", "lr=0.1", "bold]no[/bold]")


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


def test_the_bar_of_a_run_without_a_result_is_closed_when_the_next_one_starts() -> None:
    screen = io.StringIO()
    console = Console()
    console._terminal = Terminal(file=screen, force_terminal=True, width=120)
    console.run_started(info())
    first = console._bar
    assert first is not None
    console.run_started(info(seed=5))
    assert console._bar is not first
    assert not first.live.is_started
    console.close()
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 2


def test_brackets_of_a_name_are_no_markup() -> None:
    screen = io.StringIO()
    for console in (Console(), SweepProgress()):
        console._terminal = Terminal(file=screen, force_terminal=True, width=160)
        if isinstance(console, SweepProgress):
            console.open({}, 1)
        console.run_started(replace(info(), method="[/red]x[bold]"))
        console.round_finished(record(2, 3, 0.625))
        console.close()
    assert screen.getvalue().count("[/red]x[bold]") >= 2


@pytest.mark.slow
@pytest.mark.long
def test_objects_of_what_is_imported_first_are_not_looked_at_again() -> None:
    code = (
        "import gc, sys; from flbench.terminal.console import Console\n"
        "for _ in range(2):\n"
        "    with Console().importing():\n"
        "        print('torch' in sys.modules, gc.isenabled())\n"
        "        import torch\n"
        "    print(gc.isenabled(), gc.get_freeze_count() > 10_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False False", "True True", "True True", "True True"]


def test_in_a_notebook_there_are_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel sets FORCE_COLOR, as hosted CI does; rich takes it for a terminal."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = SweepProgress()
    console.open({}, 1)
    console.finished("a cell", "done", "")
    assert capsys.readouterr().err.splitlines() == ["cell 1/1  a cell  0 s left"]


def test_without_a_terminal_a_long_run_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("flbench.terminal.console.time.monotonic", lambda: now[0])
    progress = SweepProgress()
    progress.tell("2 cells")
    progress.open({}, 2)
    for run in (progress, RunBar(progress)):  # in this process, and of another one
        run.run_started(info())
        for number, seconds in ((1, 4.0), (2, 6.0), (3, 20.0)):
            now[0] += seconds
            run.round_finished(record(number, 3, 0.5))
    lines = capsys.readouterr().err.splitlines()[1:]
    assert lines == [
        "  fedavg on toy, seed 4: round 2/3  accuracy 0.500  5 s left",
        "  fedavg on toy, seed 4: round 1/3  accuracy 0.500  8 s left",
    ]


def test_a_debugger_gets_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar goes, and pdb begins in the frame of `breakpoint()`, with a stream of its own."""
    screen = io.StringIO()
    seen: list[tuple[str, object]] = []

    def set_trace(self: pdb.Pdb, frame: FrameType) -> None:
        seen.append((frame.f_code.co_name, self.stdout))

    monkeypatch.setattr("pdb.Pdb.set_trace", set_trace)
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    for console in (Console(), SweepProgress()):
        console._terminal = Terminal(file=screen, force_terminal=True, width=120)
        if isinstance(console, SweepProgress):
            console.open({}, 1)
        console.run_started(info())
        breakpoint()
        assert seen.pop() == ("test_a_debugger_gets_the_terminal", screen)
        assert console._bar is None
        assert sys.breakpointhook is sys.__breakpointhook__
        console.round_finished(record(3, 3, 0.5))
        console.close()
    monkeypatch.setenv("PYTHONBREAKPOINT", "ipdb.set_trace")
    console.run_started(info())
    assert sys.breakpointhook is sys.__breakpointhook__
    console.close()
