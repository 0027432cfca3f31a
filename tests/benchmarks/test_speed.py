"""The speed benchmarks: that the same work is compared, and that tables are what files give.

How long anything takes is no matter of tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from mentions import mention, mentioning, mentions
from torch import nn

from flbench.engine.batches import orders
from flbench.engine.lanes.evaluation import TOGETHER
from flbench.engine.options import EngineOptions
from flbench.errors import Interrupted, UserError
from flbench.run.rounds import cohort, run_round
from flbench.run.setup import prepare
from flbench_benchmarks.speed import __main__ as command
from flbench_benchmarks.speed import (
    everybody,
    flbench_rounds,
    floor,
    interleaved,
    limit,
    part,
    peers,
    seeds,
    startup,
    tables,
    w4,
    w5,
    w6,
    workers,
)
from flbench_benchmarks.speed.interleaved import Measurement, Program, ProgramFailed
from flbench_benchmarks.speed.measure import measure
from flbench_benchmarks.speed.workload import Workload, dataset, images, run_spec

ROOT = Path(__file__).resolve().parents[2]
SMALL = Workload(shape=(1, 16, 16), clients=4, cohort=2, samples=10, epochs=2, batch=4)
MACHINE = {
    "cpu": "A", "cores": 2, "memory_gb": 24, "device": "cpu",
    "load": 0.1, "python": "3.11", "torch": "2", "flbench": "0",
}  # fmt: skip


def a_file(
    name: str, rows: list[dict[str, Any]], *, quick: bool = False, peers: bool = True
) -> dict[str, Any]:
    return {
        "part": name, "title": f"{name}: a title", "goal": "be quick", "quick": quick,
        "peers": peers,
        "machine": MACHINE, "date": "2026-01-01 00:00", "rows": rows,
    }  # fmt: skip


def put(folder: Path, *files: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for one in files:
        (folder / f"{one['part']}.json").write_text(json.dumps(one), encoding="utf-8")


def run(*arguments: str) -> None:
    """The command line, in this process."""
    before, sys.argv = sys.argv, ["flbench speed", *arguments]
    try:
        command.main()
    except SystemExit as error:
        if error.code:
            raise
    finally:
        sys.argv = before


# --- the same work ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    [
        SMALL,
        pytest.param(
            Workload(model="resnet18", shape=(3, 16, 16), clients=3, cohort=2, samples=10, batch=4),
            marks=[pytest.mark.slow, pytest.mark.long],
        ),
    ],
    ids=lambda work: work.model,
)
def test_the_floor_does_what_flbench_does(work: Workload, tmp_path: Path) -> None:
    """Same batches, same start: as many steps, and the same average."""
    engine = EngineOptions("sequential", accelerator="cpu")
    run_, state = prepare(run_spec(work, tmp_path, engine), dataset(work))
    module = run_.executor.workspace.module
    by_hand = floor.Floor(net := floor.network(work), work)
    with torch.no_grad():
        for name, tensor in run_.context.layout.unflatten(run_.context.initial).items():
            net.state_dict()[name.removeprefix("net.")].copy_(tensor)
    steps = flbench_rounds.StepCounter()
    after, _ = run_round(run_, state)
    count, samples = steps.stop(), run_.executor.samples

    def client(number: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        rows = samples.splits["train"][number]
        address = (1, number, "train", 0)
        drawn = orders(len(rows), work.epochs, run_.seed, *address)
        return samples.x[rows], samples.y[rows], [torch.as_tensor(order) for order in drawn]

    assert samples.sizes("train").tolist() == [work.samples] * work.clients
    start, sums, again = by_hand.copy(), by_hand.copy(), flbench_rounds.StepCounter()
    by_hand.add(sums, start, [client(number) for number in cohort(run_.suite, 0, 1).tolist()])
    assert again.stop() == count == work.cohort * work.epochs * -(-work.samples // work.batch)
    torch._foreach_div_(sums, work.cohort)
    torch._foreach_copy_(by_hand.tensors, sums)
    found = run_.context.layout.unflatten(after.models[0])
    moved = False
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, found[f"net.{name}"], rtol=0, atol=1e-5), name
            moved |= not torch.equal(tensor, module.state_dict()[f"net.{name}"])
    assert moved


def test_everybody_has_the_same_data() -> None:
    """What other frameworks import beside torch draws the same samples."""
    from flbench_benchmarks.speed import peer_workload

    work = replace(SMALL, classes=62)
    for one, other in zip(images(work), peer_workload.data(json.loads(work.text())), strict=True):
        assert torch.equal(one, other)
    assert images(work)[1].max() > 9


def test_a_network_goes_to_other_frameworks_without_flbench(tmp_path: Path) -> None:
    net = floor.network(SMALL)
    assert {type(child).__module__.split(".")[0] for child in net.modules()} == {"torch"}
    torch.save(net, tmp_path / "net.pt")
    loaded: nn.Module = torch.load(tmp_path / "net.pt", weights_only=False)
    x = images(SMALL)[0][0]
    assert torch.equal(net(x), loaded(x))


def test_work_survives_a_command_line() -> None:
    assert Workload.read(SMALL.text()) == SMALL


# --- measuring ----------------------------------------------------------------------------------

COUNTER = """
import sys
from flbench_benchmarks.speed.turns import Turns
turns = Turns()
print("this goes to standard error", flush=True)
turns.report_and_wait()
for number in range(int(sys.argv[1])):
    turns.report_and_wait(steps=number)
sys.exit("no more")
"""


def counter(name: str, rounds: int) -> Program:
    return Program(name, [sys.executable, "-c", COUNTER, str(rounds)])


def test_programs_play_in_turn_and_one_that_fails_stops_no_other() -> None:
    missing = Program("missing", (), note="cannot be installed: no such thing")
    found = interleaved.measure_interleaved([counter("a", 9), counter("b", 1), missing], 3)
    assert found["a"].error == ""
    assert len(found["a"].seconds) == 3
    assert found["a"].steps == 0
    assert found["a"].startup >= found["a"].ready > 0
    assert found["b"].error == "no more"
    rows = interleaved.comparison_rows(found, "a", {"epochs": 1})
    assert [row["program"] for row in rows] == ["a", "b", "missing"]
    assert rows[1] == {"epochs": 1, "program": "b", "note": "not run: no more"}
    assert rows[2]["note"] == mentioning("not run", "no such thing")


def test_ratios_are_of_pairs() -> None:
    found = {
        "one": Measurement(seconds=[2.0, 4.0, 9.0]),
        "other": Measurement(seconds=[1.0, 4.0, 3.0]),
    }
    row = interleaved.comparison_rows(found, "one", {})[1]
    names = ("one_over_this", "one_over_this_low", "one_over_this_high")
    assert [row[name] for name in names] == [2.0, 1.0, 3.0]
    assert interleaved.comparison_rows(found, "one", {}, inverse=True)[1]["ratio"] == 0.5


def test_the_operations_of_a_round_are_counted_in_the_network() -> None:
    """Two linear layers forwards, their weights backwards, and the input of the second."""
    work = Workload(model="mlp", shape=(1, 8, 8), clients=9, cohort=3, samples=5, epochs=2)
    hidden, head = 2 * 64 * 64, 2 * 64 * 10
    assert limit.round_operations(work) == 3 * 5 * 2 * (2 * hidden + 3 * head)


def test_the_limit_does_all_operations_of_a_round() -> None:
    done: list[int] = []
    product = limit.Product(8, lambda: done.append(8))
    assert product.repeat(20) > 0
    assert sum(done) == 24, "at least as many"
    assert {one.operations for one in limit.products()} == {2 * size**3 for size in limit.SIZES}


def test_every_program_has_its_share_of_the_limit() -> None:
    found = {
        "flbench": Measurement(seconds=[2.0, 4.0, 8.0]),
        "floor": Measurement(seconds=[1.0, 4.0, 4.0]),
        "limit": Measurement(seconds=[1.0, 1.0, 2.0]),
    }
    rows = interleaved.comparison_rows(found, "flbench", {}, limit="limit")
    assert [row.get("share_of_limit") for row in rows] == [0.25, 0.5, None]
    rows = interleaved.comparison_rows(found, "flbench", {}, limit="not measured")
    assert not any("share_of_limit" in row for row in rows)


@pytest.mark.parametrize("name", ["w7", "w8", "w9"])
def test_frameworks_are_compared_in_one_process_and_in_two(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, list[str], int]] = []

    def compare(programs: list[Program], rounds: int, *_: object, processes: int) -> list[Any]:
        asked.append((processes, [program.name for program in programs], rounds))
        return [{"processes": processes}]

    monkeypatch.setattr(part, "compare", compare)
    module = __import__(f"flbench_benchmarks.speed.{name}", fromlist=["run"])
    request = part.PartRequest(tmp_path, tmp_path, quick=True, peers=False)
    assert module.run(request) == [{"processes": 1}, {"processes": 2}]
    names = ["flbench", "floor", part.LIMIT]
    assert asked == [(1, names, 2), (2, names, 2)]


@pytest.mark.slow
@pytest.mark.long
def test_a_program_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaved, "TIMEOUT", 0.2)
    sleeper = Program("asleep", [sys.executable, "-c", "import time; time.sleep(60)"])
    assert "no report for" in interleaved.measure_interleaved([sleeper], 1)["asleep"].error
    with pytest.raises(ProgramFailed):
        raise ProgramFailed("so it is an exception")


def test_shares_of_a_run_sum_to_one() -> None:
    row = w5.shares({"total": 10.0, "train": 6.0, "evaluate": 1.0, "cluster": 1.0, "checkpoint": 1})
    parts = ("training", "evaluation", "scoring", "aggregation", "everything_else")
    assert [row[name] for name in parts] == [0.6, 0.1, 0.1, 0.0, 0.2]
    assert row["of_it_checkpoints"] == 0.1


def test_a_command_is_timed_until_it_says_the_words() -> None:
    said = "import sys; print('1 rounds', file=sys.stderr)"
    assert startup.seconds_until([sys.executable, "-c", said], "1 rounds") > 0
    with pytest.raises(RuntimeError, match="oh no"):
        startup.seconds_until([sys.executable, "-c", "import sys; sys.exit('oh no')"], "")


def test_a_framework_that_cannot_be_installed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path, *arguments: str) -> str:
        raise peers.subprocess.CalledProcessError(1, "pip", stderr="x\nERROR: No matching one")

    monkeypatch.setattr(peers, "_run", fails)
    (found,) = peers.programs("pfl", SMALL, 1, tmp_path / "net.pt", 1, tmp_path)
    assert (found.command, found.note) == ((), mentioning("No matching one", "installed"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = peers.programs("blazefl", SMALL, 2, tmp_path / "net.pt", 1, tmp_path)
    assert found.command == ()
    assert mentions(found.note, "python3.14t", "python3.14", "PATH")


def test_a_framework_is_installed_in_a_python_that_it_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first command that starts; a command of pyenv for a version not chosen does not."""
    for name, code in (("python3.14t", 127), ("python3.14", 0)):
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\nexit {code}\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert peers.interpreter(peers.PEERS["blazefl"].pythons) == str(tmp_path / "python3.14")
    run: list[list[str]] = []

    def runs(*command: str) -> str:
        run.append(list(command))
        if "venv" in command:
            (tmp_path / "blazefl").mkdir(exist_ok=True)
        return "Python 3.14, torch 2\n"

    monkeypatch.setattr(peers, "_run", runs)
    monkeypatch.setattr(peers, "version", lambda name: "2.13.0+cpu")

    def made(processes: int) -> list[Program]:
        return peers.programs("blazefl", SMALL, processes, tmp_path / "net.pt", 3, tmp_path)

    one, two = made(1), made(2)
    assert [program.name for program in one] == ["blazefl 3.0.0"]
    assert [program.name for program in two] == ["blazefl 3.0.0 threads", "blazefl 3.0.0 processes"]
    assert [program.command[-1] for program in two] == ["threads", "processes"]
    assert {program.note for program in (*one, *two)} == {"Python 3.14, torch 2"}
    assert run[0][0] == str(tmp_path / "python3.14")
    assert "torch==2.13.0" in run[1], "any build of it"
    assert len(run) == 3, "it is made once"
    marker = tmp_path / "blazefl" / peers.READY
    marker.write_bytes(marker.read_bytes()[:9])
    made(1)
    assert len(run) == 6, "again, where a killed process left half of its marker"


# --- tables -----------------------------------------------------------------------------------


def test_the_page_is_what_the_files_give() -> None:
    text = ROOT / tables.PAGE
    assert tables.page_with_tables(text, ROOT / "leaderboard" / "speed") == text.read_text(
        encoding="utf-8"
    )


def test_tables_are_made_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables.PAGE.parent.mkdir(parents=True)
    tables.PAGE.write_text(f"above\n{tables.BEGIN}\nold\n{tables.END}\nbelow\n", encoding="utf-8")
    run("--table")
    text = tables.PAGE.read_text(encoding="utf-8")
    assert text == f"above\n{tables.BEGIN}\n{tables.NO_TABLES}{tables.END}\nbelow\n"
    row = {"program": "a|b", "seconds": 0.123456, "ratio": 2.0, "ratio_low": 1, "ratio_high": 3.5}
    put(
        tmp_path / "leaderboard" / "speed",
        a_file("w2", [{"program": "c", "note": "not run: so"}], quick=True),
        {
            **a_file(
                "w1", [{**row, "steps": None, "note": ""}, {"program": "d", "seconds": 1234.5}]
            ),
            "about": "what is alike",
        },
    )
    run("--table")
    text = tables.PAGE.read_text(encoding="utf-8")
    assert text.index("### w1: a title") < text.index("### w2: a title")
    assert "| program | seconds | ratio |\n|---|---:|---:|\n" in text
    assert "| a\\|b | 0.123 | 2 (1–3.5) |\n| d | 1234 | - |\n" in text
    assert "goal: be quick.\n" in text
    assert "be quick.\n\nwhat is alike\n\n| program" in text.partition("### w2")[0]
    assert "This was a trial" in text.partition("### w2")[2]
    assert mentions(text, "2 cores", "24 GiB", "Python", "3.11", "torch", "2", "0.1 before")
    once = text
    run("--table")
    assert tables.PAGE.read_text(encoding="utf-8") == once


def test_a_page_without_the_section_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run("--table")
    assert "expected the lines" in capsys.readouterr().err


def test_an_unknown_part_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("w99")
    said = capsys.readouterr().err
    assert said.startswith("flbench: unknown part 'w99'")
    assert said.count("\n") == 1


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(command, "measure", asked.append)
    rows = [{"program": "flbench", "seconds": 1.0}]
    put(tmp_path / "speed", a_file("w1", rows), a_file("w2", rows, quick=True))
    run("w1", "w2", "--out", str(tmp_path), "--no-peers", "--env-root", "/e")
    folder = str(tmp_path / "speed")
    assert asked == [["w2", folder, "--env-root", "/e", "--no-peers"]], "a trial does not count"
    run("w1", "w2", "--out", str(tmp_path), "--quick")
    assert len(asked) == 1, "but for a trial"
    run("w1", "--out", str(tmp_path), "--force", "--env-root", "/e")
    assert asked[1:] == [["w1", folder, "--env-root", "/e"]]
    assert "### w1: a title" in capsys.readouterr().out
    put(tmp_path / "speed", a_file("w1", rows, peers=False), a_file("w6", [{"note": "no CUDA"}]))
    del asked[:]
    run("w1", "w6", "--out", str(tmp_path), "--no-peers", "--env-root", "/e")
    assert [words[0] for words in asked] == ["w6"], "what could not be measured"
    run("w1", "--out", str(tmp_path), "--env-root", "/e")
    assert [words[0] for words in asked] == ["w6", "w1"], "peers are asked for"
    (tmp_path / "speed" / "w1.json").write_text("{")
    with pytest.raises(SystemExit):
        run("w1", "--out", str(tmp_path))


@pytest.mark.parametrize("content", [{}, [], 3, {"rows": 3}, {**a_file("w0", []), "rows": [3]}])
def test_a_file_of_something_else_is_one_line(content: object, tmp_path: Path) -> None:
    (tmp_path / "w0.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=mention("w0.json", "file", "flbench speed")):
        tables.read_part(tmp_path / "w0.json")


def test_a_file_that_cannot_be_written_is_refused_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(command, "measure", asked.append)
    (tmp_path / "afile").touch()
    with pytest.raises(SystemExit):
        run("w0", "--out", str(tmp_path / "afile"))
    assert asked == []
    assert "w0.json: Not a directory; " in capsys.readouterr().err


def test_a_part_that_fails_or_is_stopped_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MEASURE", "flbench.no_such_package")
    with pytest.raises(UserError, match="part 'w1' failed"):
        command.measure(["w1"])

    waited: list[object] = []

    class Stopped(nullcontext[Any]):
        def __enter__(self) -> Any:
            return self

        def wait(self, seconds: float | None = None) -> int:
            waited.append(seconds)
            if seconds is None:
                raise KeyboardInterrupt
            return 130

        def kill(self) -> None:
            waited.append("killed")

    monkeypatch.setattr(command.subprocess, "Popen", lambda words: Stopped())
    with pytest.raises(Interrupted, match="finished parts are kept"):
        command.measure(["w1"])
    assert waited == [None, command.ENDING, "killed"], "it has time to remove its files"


def test_workers_are_compared_with_one_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    spent = iter([40.0, 20.0, 44.0, 20.0, 42.0, 28.0])

    def seconds(command: list[str], words: str) -> float:
        asked.append(command[command.index("--workers") + 1])
        return next(spent)

    monkeypatch.setattr(workers, "seconds_until", seconds)
    rows = workers.run(part.PartRequest(tmp_path, tmp_path, say=lambda message: None))
    assert asked == ["1", "auto"] * 3
    assert [(row["workers"], row["seconds"]) for row in rows] == [
        ("--workers 1", 42.0), ("--workers auto", 20.0),
    ]  # fmt: skip
    assert "ratio" not in rows[0]
    assert (rows[1]["ratio"], rows[1]["ratio_low"], rows[1]["ratio_high"]) == (2.0, 1.5, 2.2)


def test_seeds_in_lanes_are_compared_with_seeds_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(command: list[str], words: str) -> float:
        given = dict(pairwise(command))
        fast = given["--executor"] == "vectorised"
        folder = Path(given["--out"], "cell")
        folder.mkdir(parents=True)
        for seed in range(int(given["--seeds"])):
            spent = {"train": 1.0 if fast else 5.0, "evaluate": 0.5, "score": 0.25, "cluster": 0.5}
            text = json.dumps({"seconds": spent})
            (folder / f"seed-{seed}.json").write_text(text)
        return (10.0 if fast else 40.0) / (2 if "sweep" in command else 1)

    monkeypatch.setattr(seeds, "seconds_until", seconds)
    rows = seeds.run(part.PartRequest(tmp_path, tmp_path, say=lambda message: None))
    shown = [(row["part"], row["command"], row["seconds"], row.get("ratio")) for row in rows]
    assert shown[:6] == [
        ("whole command", "flbench run", 40.0, None),
        ("whole command", "flbench run --executor vectorised", 10.0, 4.0),
        ("whole command", "flbench sweep --workers 2", 20.0, 2.0),
        ("whole command", "flbench sweep --workers 2 --executor vectorised", 5.0, 8.0),
        ("training", "flbench run", 20.0, None),
        ("training", "flbench run --executor vectorised", 4.0, 5.0),
    ]  # fmt: skip
    assert [(row["part"], row["seconds"]) for row in rows[6:12]] == [
        ("evaluation", 2.0), ("evaluation", 2.0),
        ("scores and groups", 3.0), ("scores and groups", 3.0),
        ("all else", 15.0), ("all else", 1.0),
    ]  # fmt: skip
    last = ("whole without training", "flbench run --executor vectorised", 6.0, 6.667)
    assert shown[12] == last
    assert [row["model"] for row in rows[::13]] == ["mlp", "logistic-regression"]


@pytest.mark.parametrize("name", tables.PARTS)
def test_every_part_is_a_module(name: str) -> None:
    module = __import__(f"flbench_benchmarks.speed.{name}", fromlist=["run"])
    assert module.TITLE
    assert module.GOAL
    assert callable(module.run)


# --- whole parts ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_a_part_is_measured_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("w3", "--quick", "--out", str(tmp_path))
    found = json.loads((tmp_path / "speed" / "w3.json").read_text(encoding="utf-8"))
    assert found["quick"]
    assert [row["model"] for row in found["rows"]] == ["lenet5"]
    assert found["rows"][0]["samples"] == 8 * 8 * 30
    assert "### W3" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.long
def test_flbench_is_compared_with_the_floor(tmp_path: Path) -> None:
    asked = part.PartRequest(tmp_path, tmp_path, quick=True, peers=False, say=lambda message: None)
    programs = [
        part.flbench_program(SMALL, asked, accelerator="cpu"),
        part.floor_program(SMALL),
    ]
    rows = part.compare(programs, 2, asked, processes=1)
    both = [part.floor_program(SMALL, 2), part.limit_program(SMALL, 2)]
    two = part.compare(both, 2, asked, processes=2)
    assert [row["steps"] for row in (*rows, *two)] == [None, 12, 6, None]
    assert two[0]["share_of_limit"] > 0
    assert two[1]["note"].endswith(" GFLOP per round")
    assert all(row["rounds"] == 2 for row in (*rows, *two))


@pytest.mark.slow
@pytest.mark.long
def test_more_clients_are_compared_with_the_fewest(tmp_path: Path) -> None:
    asked = part.PartRequest(tmp_path, tmp_path, quick=True, peers=False, say=lambda message: None)
    rows = w4.run(asked)
    told = [(row["method"], row["clients"], "ratio" in row) for row in rows]
    both = [(20, False), (40, True)]
    assert told == [(method, *one) for method in ("fedavg", "local-only") for one in both]


def test_what_would_take_too_long_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing takes 2 s with 300 clients and 70 s with 1,000; 3,000 would take 1,800 s."""
    asked: list[int] = []

    def ran(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        clients = int(command[5])
        asked.append(clients)
        found = {"total": 100.0, "comparing": 2.0 if clients == 300 else 70.0, "peak_mb": 400}
        return subprocess.CompletedProcess(command, 0, json.dumps(found).encode())

    monkeypatch.setattr(everybody, "METHODS", {"cfl": {}})
    monkeypatch.setattr(everybody.subprocess, "run", ran)
    rows = everybody.run(part.PartRequest(tmp_path, tmp_path, say=lambda message: None))
    assert asked == [300, 1000]
    assert rows[1]["exponent"] == 2.95
    assert rows[2]["note"].startswith("not run: 17")


@pytest.mark.slow
@pytest.mark.long
def test_lanes_are_compared_with_clients_one_by_one(tmp_path: Path) -> None:
    """What W6 measures on a device, on the CPU here."""
    asked = part.PartRequest(tmp_path, tmp_path, quick=True, say=lambda message: None)
    rows = w6.compared(asked, SMALL, "small", "cpu")
    assert [row["program"] for row in rows] == [
        "one by one", "lanes", "one by one, bfloat16", "lanes, bfloat16",
    ]  # fmt: skip
    assert rows[0]["times_as_fast"] == 1.0
    assert rows[1]["times_as_fast"] == round(rows[0]["seconds"] / rows[1]["seconds"], 2)
    alone, lanes = w6.evaluated(asked, SMALL, "cpu")
    assert (alone["program"], lanes["program"]) == ("one by one", "lanes")
    assert lanes["times_as_fast"] > 0
    one, together = w6.cross_evaluated(asked, SMALL, "cpu")
    assert (one["program"], together["program"]) == ("one by one", "32 at once")
    assert TOGETHER == {"cuda": 32}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device")
def test_what_cannot_be_measured_here_is_left_as_it_was(tmp_path: Path) -> None:
    said: list[str] = []
    asked = part.PartRequest(tmp_path, tmp_path, say=said.append)
    w6_file = tmp_path / "w6.json"
    measure("w6", w6, tmp_path, asked)
    assert json.loads(w6_file.read_text())["rows"] == [{"note": "not run: no CUDA device"}]
    w6_file.write_text("measured elsewhere")
    measure("w6", w6, tmp_path, asked)
    assert w6_file.read_text() == "measured elsewhere"
    assert said == [mentioning("w6", "not run", "CUDA", w6_file)]


@pytest.mark.slow
@pytest.mark.long
def test_networks_for_text_are_compared(tmp_path: Path) -> None:
    run("text", "--quick", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "speed" / "text.json").read_text(encoding="utf-8"))["rows"]
    assert [row["network"] for row in rows] == ["recurrent", "LSTM of torch", "LSTM, plain"]
    assert "ratio" not in rows[0] and all(row["ratio"] > 0 for row in rows[1:])
    assert all(0 < row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] for row in rows)


def test_both_lstms_are_the_same_function() -> None:
    """With the weights of one in the other; torch keeps its gates in another order, of two maps."""
    from flbench_benchmarks.speed.text import HIDDEN, PlainLstm, TorchLstm

    torch.manual_seed(0)
    plain, torchs = PlainLstm(HIDDEN), TorchLstm(HIDDEN)
    weight, bias = plain.gates.weight.detach(), plain.gates.bias.detach()
    enter, forget, leave, new = weight.chunk(4)
    order = torch.cat([enter, forget, new, leave])
    one, two, three, four = bias.chunk(4)
    with torch.no_grad():
        torchs.lstm.weight_ih_l0.copy_(order[:, :HIDDEN])
        torchs.lstm.weight_hh_l0.copy_(order[:, HIDDEN:])
        torchs.lstm.bias_ih_l0.copy_(torch.cat([one, two, four, three]))
        torchs.lstm.bias_hh_l0.zero_()
        x = torch.randn(3, 5, HIDDEN)
        assert torch.allclose(plain(x), torchs(x), atol=1e-5)
