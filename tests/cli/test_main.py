"""The command line, typed as a person would."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import TextIO
from unittest.mock import Mock

import forked
import pytest
from grids import begun
from mentions import mention, mentions

from flbench.cli.main import leave_objects, main
from flbench.errors import FlbenchError, Interrupted
from flbench.results.schema import VOLATILE

QUICK = ("--rounds", "3", "--set", "clients=20", "--set", "participation=0.25")
LIA = ("--set", "warmup=1", "--set", "probe_epochs=1")


Command = Callable[..., subprocess.CompletedProcess[str]]
Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run the command in this process, in an empty folder."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["flbench", *args])
        monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "empty"))
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return run


@pytest.fixture
def typed(command: Command) -> Typed:
    """The same; gives exit code and standard error."""

    def run(*args: str) -> tuple[int, str]:
        done = command(*args)
        return done.returncode, done.stderr

    return run


def one_line(code: int, errors: str) -> str:
    """The one line that the person's own mistake gives."""
    assert code == 1, errors
    lines = errors.strip().splitlines()
    assert len(lines) == 1, errors
    assert lines[0].startswith("flbench: ")
    return lines[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("--help",),
        ("--version",),
        ("list",),
        ("list", "--json"),
        ("leaderboard", "--results", ".", "--out", "board"),
        ("run", "--help"),
    ],
)
def test_light_commands_import_no_torch(args: tuple[str, ...], tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['flbench', *sys.argv[1:]]\n"
        "from flbench.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'lightning', 'sklearn', 'wandb', 'flbench_plugins'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code, *args], cwd=tmp_path, check=True, timeout=60)


@pytest.mark.slow
def test_list_shows_what_is_installed(command: Command) -> None:
    text = command("list").stdout
    for name in ("pfedlia", "oracle", "noisy-noniid", "digits", "lenet5", "label-groups", "wandb"):
        assert re.search(rf"^  {name} ", text, flags=re.MULTILINE), name
    table = json.loads(command("list", "methods", "--json").stdout)
    assert {row["name"] for row in table["methods"]} >= {
        "fedavg",
        "local-only",
        "oracle",
        "pfedlia",
    }
    assert all(row["summary"] for row in table["methods"])


@pytest.mark.slow
def test_the_main_job_ends_in_a_table_and_a_result(command: Command, tmp_path: Path) -> None:
    fewer = ("--rounds", "12", "--set", "warmup=8", "--set", "clients=30")
    done = command("run", "--plugin", "pfedlia", "--suite", "noisy-noniid", *fewer)
    assert done.returncode == 0, done.stderr
    path = tmp_path / done.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"flbench-results/noisy-noniid/digits/pfedlia/[0-9a-f]{8}/seed-0\.json",
        str(path.relative_to(tmp_path)),
    )
    result = json.loads(path.read_text())
    assert result["summary"]["accuracy_mean"] > 0.5
    assert result["summary"]["groups"] > 1
    assert result["method"]["name"] == "pfedlia"
    assert [file.name for file in path.parent.iterdir()] == ["seed-0.json"], "nothing is left over"
    assert "accuracy" in done.stdout
    assert "12/12" in done.stderr


@pytest.mark.slow
def test_names_seeds_and_parameters_combine(command: Command, tmp_path: Path) -> None:
    out = ("--out", "results")
    done = command(
        "run", "-p", "pfedlia,fedavg", "-p", "pfedlia+fedavg", "-s", "pathological-noniid",
        "--seeds", "2", *QUICK, *LIA, *out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "results").rglob("seed-*.json"))
    assert [file.name for file in files] == ["seed-0.json", "seed-1.json"] * 2
    assert "±" in done.stdout
    again = command("run", "-p", "pfedlia", "-s", "pathological-noniid", *QUICK, *LIA, *out)
    assert mentions(again.stderr, "--force", "complete")
    other = command(
        "run", "-p", "pfedlia", "-s", "pathological-noniid", *QUICK, "--set", "pfedlia.warmup=2",
        "--set", "probe_epochs=1", *out,
    )  # fmt: skip
    assert "is complete" not in other.stderr, "other parameters never meet an old result"
    shown = command("show", "result", str(files[0])).stdout
    assert "accuracy_mean" in shown
    board = command("leaderboard", "--results", "results", "--out", "board", "--no-figures")
    assert board.returncode == 0, board.stderr
    assert "| pfedlia" in (tmp_path / "board" / "overview.md").read_text()
    check = ("leaderboard", "--results", "results", "--out", "board", "--no-figures", "--check")
    assert command(*check).returncode == 0
    (tmp_path / "board" / "README.md").write_text("by hand")
    stale = command(*check)
    assert "run flbench leaderboard" in one_line(stale.returncode, stale.stderr)


@pytest.mark.slow
def test_a_run_no_longer_than_its_warmup_says_so(typed: Typed) -> None:
    code, errors = typed("run", "-p", "pfedlia", "-s", "noisy-noniid", *QUICK)
    assert code == 0
    assert mentions(errors, "pfedlia", "3 rounds", "warmup=20", "fedavg")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("-p", "pfedlai", "-s", "noisy-noniid"), r"unknown method 'pfedlai'; did you mean 'pfedlia'\? \(installed: .*fedavg, .*oracle"),
        (("-p", "fedavg", "-s", "noisy"), r"unknown suite 'noisy'; did you mean 'noisy-noniid'\? \(installed: "),
        (("-p", "fedavg", "-s", "noisy-noniid", "--dataset", "digit"), r"unknown dataset 'digit'; did you mean 'digits'\?"),
        (("-p", "pfedlia", "-s", "noisy-noniid", "--set", "warmup=soon"), r"method 'pfedlia': 'warmup' expects int, default 20; got 'soon'"),
        (("-p", "pfedlia", "-s", "noisy-noniid", "--set", "warmup=0"), r"'warmup' expects int, default 20; got 0 \(input should be greater than or equal to 1\)"),
        (("-p", "pfedlia", "-s", "noisy-noniid", "--set", "mode=ring"), r"'mode' expects 'central' \| 'peer', default 'central'; got 'ring'"),
        (("-p", "pfedlia", "-s", "noisy-noniid", "--set", "warmpu=3"), r"unknown parameter 'warmpu'; did you mean .*warmup"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--set", "clients=0"), r"'clients': input should be greater than or equal to 1.*got 0"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--set", "lr=-1"), r"'local\.lr': input should be greater than 0, default 0\.01; got -1"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--set", "clients=500"), r"expected at least|use fewer clients"),
        (
            ("-p", "fedavg", "-s", "iid", "--set", "clients=100000000"),
            "suite.clients=100000000 of 1797 samples.*use fewer clients",
        ),
        (("-p", "fedavg", "-s", "noisy-noniid", "--dataset", "fashion-mnist"), r"'fashion-mnist' expects train-images-idx3-ubyte.*--data-root or FLBENCH_DATA"),
        (("-p", "fedavg", "-s", "none.toml"), r"suite 'none\.toml': cannot read"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--sink", "wandbb"), r"unknown sink 'wandbb'; did you mean 'wandb'\?"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--bank-budget", "lots"), r"expected a size such as 8GB or 500MB, got 'lots'"),
        (("-p", "fedavg+fedavg", "-s", "noisy-noniid"), r"expected distinct names joined by '\+'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(
    args: tuple[str, ...], expected: str, tmp_path: Path, typed: Typed
) -> None:
    line = one_line(*typed("run", *args))
    assert re.search(expected, line), line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "args",
    [
        ("run",),
        ("run", "-p", "fedavg", "-s", "noisy-noniid", "--seed", "1", "--seeds", "2"),
        ("run", "-p", "fedavg", "-s", "noisy-noniid", "--set", "clients"),
        ("run", "-p", "fedavg", "-s", "noisy-noniid", "--rounds", "0"),
        ("jump",),
        ("new", "my-method", "--year", "-5"),
        ("sweep", "-p", "fedavg", "-s", "iid", "--executor", "warp"),
        ("run", "-p", "fedavg", "-s", "iid", "--changed-source"),
        ("run", "-p", "fedavg", "-s", "iid", "--seed", "100000000000000000"),
    ],
)
def test_usage_errors_exit_with_2(args: tuple[str, ...], tmp_path: Path, typed: Typed) -> None:
    assert typed(*args)[0] == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_diverged_run_exits_with_3_and_the_others_go_on(typed: Typed, tmp_path: Path) -> None:
    suites = ("-s", "noisy-noniid", "-s", "pathological-noniid")
    code, errors = typed("run", "-p", "fedavg", *suites, *QUICK, "--set", "lr=1e30")
    assert code == 3
    assert mentions(errors, "fedavg", "noisy-noniid", "digits", "seed 0", "round 1")
    assert mentions(errors, "fedavg", "pathological-noniid", "digits", "seed 0", "round 1")
    assert not list(tmp_path.rglob("seed-*.json"))


@pytest.mark.slow
def test_an_interrupted_run_can_be_resumed_to_the_same_bytes(
    command: Command, tmp_path: Path
) -> None:
    small = ("--rounds", "30", "--set", "clients=10", "--set", "local.epochs=1")
    args = ("run", "-p", "fedavg", "-s", "noisy-noniid", *small)
    assert command(*args, "--out", "whole").returncode == 0
    process = forked.Command(args, tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not begun(tmp_path / "flbench-results"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        code, _, errors = process.finish(60)
    finally:
        process.kill()
    assert code == 130, errors
    last = errors.strip().splitlines()[-1]
    assert mentions(last, "with: flbench", "interrupted")
    assert last.endswith("--resume")
    assert not list(tmp_path.glob("flbench-results/**/seed-0.json"))
    resumed = command(*last.split("flbench ")[-1].split())
    assert resumed.returncode == 0, resumed.stderr
    first, second = (stable(next(tmp_path.glob(f"{d}/**/seed-0.json"))) for d in ("whole", "flb*"))
    assert first == second


def stable(path: Path) -> dict[str, object]:
    table = json.loads(path.read_text())
    return {key: value for key, value in table.items() if key not in VOLATILE}


@pytest.mark.slow
def test_show_explains_suites_and_methods(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flbench", "show", "method", "pfedlia"])
    with pytest.raises(SystemExit):
        main()
    method = capsys.readouterr().out
    assert "Rokvic" in method
    assert "warmup: int = 20\n      rounds of fedavg before the probe" in method
    suite = ["flbench", "show", "suite", "noisy-noniid", "--dataset", "fashion-mnist"]
    monkeypatch.setattr(sys, "argv", suite)
    with pytest.raises(SystemExit):
        main()
    assert "lenet5" in capsys.readouterr().out


@pytest.mark.parametrize(("imported", "done"), [(True, "unfreeze"), (False, "freeze")])
def test_cycles_are_looked_for_at_the_end_if_triton_would_miss_it(
    imported: bool, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    if imported:
        monkeypatch.setitem(sys.modules, "triton", Mock())
    else:
        monkeypatch.delitem(sys.modules, "triton", raising=False)
    leave_objects()
    assert calls == [done]


# --- streams that fail --------------------------------------------------------------------------


@pytest.fixture
def main_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Type a command whose streams are those given; gives the exit code."""

    def run(stdout: TextIO, stderr: TextIO, *args: str) -> int:
        monkeypatch.setattr(sys, "argv", ["flbench", *args])
        with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as stop:
            main()
        stdout.flush()
        stderr.flush()
        return int(stop.value.code or 0)

    return run


def test_windows_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match=mention("Linux or macOS", "expected")):
        main()


def test_standard_output_that_is_full_is_one_line(
    main_with: Callable[..., int], tmp_path: Path
) -> None:
    with open("/dev/full", "w") as full, open(tmp_path / "errors", "w") as errors:
        assert main_with(full, errors, "list", "sinks") == 1
    told = "flbench: standard output: No space left on device; free some space, or choose"
    assert one_line(1, (tmp_path / "errors").read_text()).startswith(told)


@pytest.mark.slow
def test_standard_error_that_is_full_ends_nothing_and_is_told_once(
    main_with: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = ("run", "-p", "local-only", "-s", "iid", "--set", "clients=4", "--rounds", "3")
    with open("/dev/full", "w") as full, open("output", "w") as output:
        assert main_with(output, full, *run) == 0
    lines = Path("output").read_text().splitlines()
    assert lines[-2].endswith("/seed-0.json")
    assert Path(lines[-2]).is_file()
    assert mentions(lines[-1], "messages", "standard")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(main_with: Callable[..., int], tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as pipe, open(tmp_path / "errors", "w") as errors:
        assert main_with(pipe, errors, "list") == 1
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["flbench_benchmarks.compare", "--list"],
        ["flbench_benchmarks.speed", "--table", "--help"],
        ["flbench", "list"],
    ],
)
def test_no_program_prints_a_traceback_where_nobody_reads(command: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", *command], stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_a_stream_that_takes_ascii_gets_ascii(
    main_with: Callable[..., int], tmp_path: Path
) -> None:
    paths = [tmp_path / "output", tmp_path / "errors"]
    with open(paths[0], "w", encoding="ascii") as output, open(paths[1], "w") as errors:
        assert main_with(output, errors, "data") == 0
    assert "fashion-mnist" in paths[0].read_text(encoding="ascii")
    assert paths[1].read_text() == ""


@pytest.mark.slow
def test_memory_that_is_not_there_is_one_line(typed: Typed) -> None:
    set_ = ("--set", "model.hidden=4294967296", "--set", "clients=4")
    line = one_line(*typed("run", "-p", "fedavg", "-s", "iid", *set_))
    assert line.startswith("flbench: model 'mlp' raised RuntimeError: ")
    assert "memory" in line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(30, "x", "a/b"), "a/b: Read-only file system; choose a folder that can be"),
        (MemoryError(), "Cannot allocate memory; close other programs"),
    ],
    ids=repr,
)
def test_what_the_machine_refuses_is_one_line(
    error: Exception, told: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flbench.cli.list.summary_of", Mock(side_effect=error))
    assert one_line(*typed("list")).startswith(f"flbench: {told}")


def chained(*errors: Exception | KeyboardInterrupt) -> Exception:
    """The last of the errors, each of which was caused by the one before."""
    for cause, error in pairwise(errors):
        error.__cause__ = cause
    assert isinstance(errors[-1], Exception)
    return errors[-1]


@pytest.mark.parametrize(
    "error",
    [
        chained(KeyboardInterrupt(), SystemError("returned a result with an exception set")),
        chained(KeyboardInterrupt(), ImportError("x"), FlbenchError("a.score raised ImportError")),
    ],
    ids=repr,
)
def test_an_interruption_of_c_code_is_none_of_its_errors(
    error: Exception, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flbench.cli.list.summary_of", Mock(side_effect=error))
    assert typed("list") == (Interrupted.exit_code, "flbench: interrupted\n")


def test_an_interruption_that_no_command_heeds_is_said(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that a plugin raises when it is imported; typer ends it without a word."""
    monkeypatch.setattr("flbench.cli.list.summary_of", Mock(side_effect=KeyboardInterrupt))
    assert typed("list") == (Interrupted.exit_code, "flbench: interrupted\n")


def test_an_error_of_flbench_itself_keeps_its_traceback(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flbench.cli.list.summary_of", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        typed("list")


# --- what is silent or unbounded ----------------------------------------------------------------


@pytest.mark.parametrize("words", [("-p", ",", "-s", "iid"), ("-p", "fedavg", "-s", "")])
def test_no_name_at_all_is_refused(words: tuple[str, ...], command: Command) -> None:
    done = command("run", *words)
    assert done.returncode == 2
    assert "expects a name, got" in done.stderr


@pytest.mark.slow
def test_an_accelerator_that_is_not_there_is_one_line(typed: Typed) -> None:
    words = ("run", "-p", "fedavg", "-s", "iid", "--set", "clients=4", "--accelerator", "tpu")
    assert "--accelerator tpu: " in one_line(*typed(*words))


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-p", "fedavg", "-s", "iid", "--seeds"),
        ("sweep", "-p", "fedavg", "-s", "iid", "--seeds"),
        ("study", "absent", "--seeds"),
        ("reproduce", "absent", "--seeds"),
        ("tune", "fedprox", "-s", "iid", "--budget"),
        ("tune", "fedprox", "-s", "iid", "--budget", "3", "--tuning-seeds"),
    ],
)
@pytest.mark.parametrize("count", ["10001", "9" * 25])
def test_cells_have_a_maximum(words: tuple[str, ...], count: str, typed: Typed) -> None:
    code, errors = typed(*words, count)
    assert code == 2
    assert "10000" in errors


def test_threads_have_a_maximum(typed: Typed) -> None:
    code, errors = typed("run", "-p", "fedavg", "-s", "iid", "--threads", "1025")
    assert code == 2
    assert "1024" in errors


@pytest.mark.parametrize("words", [("--rounds", "2147483648"), ("--set", "rounds=100001")])
def test_rounds_have_a_maximum(words: tuple[str, str], typed: Typed) -> None:
    assert "'rounds'" in one_line(*typed("run", "-p", "fedavg", "-s", "iid", *words))


@pytest.mark.slow
def test_server_samples_that_are_not_there_are_told(command: Command) -> None:
    words = ("run", "-p", "fedavg", "-s", "iid", "--set", "clients=4", "--rounds", "1")
    told = "the server owns 170 samples, not 900 (server_samples)"
    assert told in command(*words, "--set", "server_samples=900").stderr
    assert "the server owns" not in command(*words, "--set", "server_samples=100").stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "moon"])
def test_a_batch_of_one_before_batchnorm_is_one_line(method: str, command: Command) -> None:
    """Also where a hook of the method computes the loss."""
    words = ("--set", "model.norm=true", "--set", "local.batch_size=1", "--set", "clients=4")
    done = command("run", "-p", method, "-s", "iid", "--rounds", "1", *words)
    assert mentions(done.stderr, "BatchNorm", "trained")
    assert done.returncode == 1


def test_a_command_ends_without_looking_for_cycles() -> None:
    code = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 1000));"
        " from flbench.cli.main import main; sys.argv = ['flbench', '--version']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["True"]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("submit", "--diff"), ("--diff", "HEAD")),
        (("run", "-p", "fedavg", "-s"), ("-s", "TOML file")),
        (("run", "--seeds"), ("--seeds", "0..N-1")),
    ],
)
def test_an_option_without_its_value_says_what_it_takes(
    words: tuple[str, ...], facts: tuple[str, ...], typed: Typed
) -> None:
    code, said = typed(*words)
    assert code == 2
    assert mentions(said, *facts)
