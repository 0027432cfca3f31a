"""The command line, typed as a person would."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import forked
import pytest

from flbench.cli.main import main
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
    assert "is complete; --force computes it again" in again.stderr
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
    assert "pfedlia: 3 rounds do not exceed warmup=20: fedavg" in errors


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
        (("-p", "fedavg", "-s", "noisy-noniid", "--dataset", "fashion-mnist"), r"'fashion-mnist' expects train-images-idx3-ubyte.*--data-root or FLBENCH_DATA"),
        (("-p", "fedavg", "-s", "none.toml"), r"suite 'none\.toml': cannot read"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--sink", "wandbb"), r"unknown sink 'wandbb'; did you mean 'wandb'\?"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--bank-budget", "lots"), r"expected a size such as 8GB or 500MB, got 'lots'"),
        (("-p", "fedavg", "-s", "noisy-noniid", "--executor", "warp"), r"unknown executor 'warp': expected auto, sequential or vectorised"),
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
    assert "fedavg on noisy-noniid (digits), seed 0: round 1: parameters of client" in errors
    assert "fedavg on pathological-noniid (digits), seed 0: round 1: parameters" in errors
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
        while not list(tmp_path.glob("flbench-results/**/*.checkpoint.safetensors")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        code, _, errors = process.finish(60)
    finally:
        process.kill()
    assert code == 130, errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith(
        "flbench: interrupted; the last whole round is kept, go on with: flbench"
    )
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
