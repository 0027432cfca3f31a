"""Federated simulators on one GPU: `python -m flbench_benchmarks.speed.one_card`.

Each cell is a program on a workload, in processes of its own: some rounds that are not timed, then
a few that are. A cell has a limit, and all of them have a budget; what does not fit is said. The
file is written after every cell, and the same command goes on where it was stopped. Cells are
played one after the other, since programs that wait in turn would share the device's memory.

Peers compute with the torch of this Python, so that nothing large is installed: `--prepare` makes
their environments beforehand, from a folder of wheels where there is no package index. BlazeFL
gets a Python without the interpreter lock where there is one (`--python blazefl=PATH`).

`--dry` plays tiny workloads, on a CPU too; its numbers say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from flbench.engine.lanes.phase import WANTED
from flbench.errors import FlbenchError, UserError
from flbench.results.files import write_atomically

from ..compare import environments
from ..compare.environments import FRAMEWORKS, Framework
from . import w7, w8, w9
from .floor import network
from .interleaved import Program, ProgramFailed, Row, RunningProgram
from .measure import machine
from .part import PartRequest, flbench_program, floor_program
from .peers import ENVIRONMENT, HERE
from .step_graph import WAYS
from .tables import markdown_table
from .workload import Workload

FOLDER = Path("benchmarks/one-card")
TITLE = "Federated simulators on one device: milliseconds a round and memory"
BUDGET, LIMIT = 540.0, 60.0
"""Seconds of all cells, and of one."""
SAMPLING = 0.05
"""Seconds between two looks at the device's memory."""
MANY = "1000"
"""More rounds than are ever measured."""
SEVERAL = 5
"""Processes or threads of a peer that has several."""
FLOWER = (
    *FRAMEWORKS["flwr"].needs,
    *("ray==2.55.1", "click", "filelock", "jsonschema", "msgpack", "pyyaml", "requests"),
    *("fastapi<0.139", "starlette<1.4", "annotated-doc", "uvicorn", "h11", "pathspec", "rich"),
    *("sqlalchemy", "greenlet", "alembic", "mako", "httpx", "httpcore", "prompt-toolkit"),
    *("tomli", "tomli-w", "typer", "wcwidth"),
)
"""What its simulation imports."""
PEERS = {
    "pfl": FRAMEWORKS["pfl"],
    "blazefl": Framework("blazefl==3.0.0", ("tqdm",), ""),
    "flower": Framework(FRAMEWORKS["flwr"].package, FLOWER, ""),
}


Finder = Callable[[str], str]
"""Gives the Python that has a peer, by its name."""


@dataclass(frozen=True)
class Settings:
    """What is measured; a file of other settings is not gone on with."""

    accelerator: str
    rounds: int
    dry: bool

    def workload(self, work: Workload) -> Workload:
        """The workload, or a tiny one like it."""
        if not self.dry:
            return work
        return replace(work, clients=6, cohort=3, samples=2 * work.batch, epochs=1)


@dataclass(frozen=True)
class Cell:
    """A program on a workload.

    Attributes:
        workload: its name in the table.
        name: of the program in the table.
        program: makes what is run when its turn comes, as an environment may fail.
        warm: rounds that are not timed: lanes record and capture their steps in them.
    """

    workload: str
    name: str
    program: Callable[[], Program]
    warm: int


WORKLOADS: dict[str, tuple[Workload, int, tuple[str, ...]]] = {
    "W1": (Workload(), 10, ("pfl", "flower", "blazefl")),
    "W7": (w7.WORK, 1, ("blazefl", "pfl")),
    "W8": (w8.WORK, 2, ("pfl", "blazefl")),
    "W9": (w9.WORK, 3, ("pfl", "flower", "blazefl")),
}
"""The workload, its untimed rounds, and the peers that were measured on it on CPUs."""


def cells(settings: Settings, folder: Path, find: Finder, only: Sequence[str]) -> Iterator[Cell]:
    """All cells in the order in which they are measured: flbench first, the slowest to start last.

    Args:
        settings: of the measurement.
        folder: a temporary folder.
        find: finds the Python of a peer.
        only: names of workloads, or "step"; empty = all.
    """
    device, chosen = settings.accelerator, [one for one in WORKLOADS if not only or one in only]
    works = {name: settings.workload(WORKLOADS[name][0]) for name in chosen}

    def flbench(name: str, shown: str, executor: str, **env: str) -> Cell:
        request = PartRequest(folder / name, folder)
        engine = {"executor": executor, "accelerator": device}
        program = flbench_program(works[name], request, f"flbench, {shown}", **engine)
        program = replace(program, env={**program.env, **env})
        return Cell(name, program.name, partial(_same, program), WORKLOADS[name][1])

    for name, work in works.items():
        yield flbench(name, "lanes", "vectorised")
        yield flbench(name, "one by one", "sequential")
        yield Cell(name, "loop by hand", partial(_same, floor_program(work, 1, device)), 1)
    if "W1" in works:
        yield flbench("W1", "lanes, phases in one call", "vectorised", **{WANTED: "1"})
    if not only or "step" in only:
        module, work = "flbench_benchmarks.speed.step_graph", settings.workload(Workload())
        for way in WAYS:
            command = [sys.executable, "-m", module, way, device, work.text()]
            step = Program(way, command)
            yield Cell("20 steps of W1", way, partial(_same, step), 1)
    for peer in PEERS:
        for name, work in works.items():
            for several in (1, SEVERAL) if peer in WORKLOADS[name][2] else ():
                unit = "threads" if peer == "blazefl" else "processes"
                shown = f"{peer}, {several} {unit}" if several > 1 else f"{peer}, one process"
                make = partial(peer_program, peer, work, several, device, folder, find)
                yield Cell(name, shown, make, 1)


def _same(program: Program) -> Program:
    return program


def peer_program(
    peer: str, work: Workload, several: int, device: str, folder: Path, find: Finder
) -> Program:
    """A peer on a workload.

    Raises:
        ProgramFailed: there is no environment for it.
    """
    python, net = find(peer), folder / f"{work.model}-{work.classes}-{work.shape[0]}.pt"
    if not net.is_file():
        torch.save(network(work), net)
    command = [python, str(HERE / f"peer_{peer}.py"), work.text(), str(several), str(net)]
    env = {**ENVIRONMENT, "FLBENCH_SPEED_DEVICE": device}
    return Program(peer, [*command, MANY, "threads"], env)


def environment(given: Mapping[str, str], root: Path, peer: str) -> str:
    """The Python of a peer: that which is given, or an environment that is made.

    Raises:
        ProgramFailed: it cannot be made.
    """
    if peer in given:
        return given[peer]
    if peer == "blazefl" and sys.version_info < (3, 12):
        raise ProgramFailed("it needs Python 3.12 for its syntax: --python blazefl=PATH")
    os.environ["PIP_IGNORE_REQUIRES_PYTHON"] = "1"  # BlazeFL asks for 3.14, and runs in 3.12
    try:
        return str(environments.ensure(PEERS[peer], root / f"one-card-{peer}"))
    except UserError as error:
        raise ProgramFailed(str(error)) from None


def measure_cell(cell: Cell, rounds: int, limit: float) -> Row:
    """Play a cell; its row.

    Args:
        cell: the cell.
        rounds: that are timed.
        limit: seconds; what was timed by then counts, if it is a round at least.
    """
    row: Row = {"workload": cell.workload, "program": cell.name}
    until = time.monotonic() + limit
    seconds: list[float] = []
    try:
        process = RunningProgram(cell.program())
    except ProgramFailed as error:
        return {**row, "note": f"not run: {error}"}
    note = ""
    with peak_of_device() as device_mb:
        try:
            ready = process.read_report(until - time.monotonic())
            row |= {"ready_s": round(time.perf_counter() - process.began, 1)}
            row |= {"lock": "on" if ready["lock"] else "off"} if "lock" in ready else {}
            row |= {"bits": ready["bits"]} if "bits" in ready else {}
            for number in range(cell.warm + rounds):
                report = process.play_round(until - time.monotonic())
                if number == 0:
                    row |= {"first_ms": _ms(report["seconds"])}
                if number >= cell.warm:
                    seconds.append(report["seconds"])
            row |= {"peak_mb": process.peak_mb()}
        except ProgramFailed as error:
            note = f"{error}"
        finally:
            process.stop()
    row |= {"device_mb": device_mb()}
    if seconds:
        row |= {
            "ms": _ms(median(seconds)),
            "ms_low": _ms(min(seconds)),
            "ms_high": _ms(max(seconds)),
        }
        row |= {"rounds": len(seconds)}
    return {**row, "note": note if seconds or not note else f"not run: {note}"}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


@contextmanager
def peak_of_device() -> Iterator[Callable[[], int | None]]:
    """A function that gives the most memory of the device that was in use meanwhile, MiB.

    What was in use before is subtracted. It is looked at from outside, so that it is the same for
    all programs: contexts, caches of freed blocks and all their processes count.
    """
    if not torch.cuda.is_available():
        yield lambda: None
        return
    used, stop = [_used()], threading.Event()
    before = used[0]

    def look() -> None:
        while not stop.wait(SAMPLING):
            used[0] = max(used[0], _used())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: round((used[0] - before) / 2**20)
    finally:
        stop.set()
        thread.join()


def _used() -> int:
    """Bytes of the device's memory in use, by all processes."""
    free, whole = torch.cuda.mem_get_info()
    return whole - free


def is_done(row: Row) -> bool:
    """Whether a cell was measured; others are tried again."""
    return "ms" in row


def measure(settings: Settings, file: Path, todo: list[Cell], budget: float, limit: float) -> None:
    """Measure the cells that the file has not, as long as the budget lasts."""
    began = time.monotonic()
    content = read(file, settings)
    rows = {(row["workload"], row["program"]): row for row in content["rows"]}
    for cell in todo:
        name = cell.workload, cell.name
        if name in rows and is_done(rows[name]):
            continue
        left = budget - (time.monotonic() - began)
        if left <= 0:
            note = f"not run: it did not fit in {budget:.0f} s"
            rows[name] = {"workload": cell.workload, "program": cell.name, "note": note}
        else:
            print(f"{cell.workload}: {cell.name}", file=sys.stderr)
            rows[name] = measure_cell(cell, settings.rounds, min(limit, left))
        write(file, {**content, "rows": list(rows.values())})


def read(file: Path, settings: Settings) -> dict[str, Any]:
    """What was measured before, or the head of a new file.

    Raises:
        UserError: it was measured with other settings, or on another device.
    """
    own = {"settings": asdict(settings), "machine": machine()}
    if not file.is_file():
        date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
        return {"title": TITLE, **own, "date": date, "rows": []}
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    alike = ("cpu", "device", "torch", "flbench")
    for name, mine, its in [
        *((name, value, content["settings"][name]) for name, value in own["settings"].items()),
        *((name, own["machine"][name], content["machine"][name]) for name in alike),
    ]:
        if mine != its:
            raise UserError(
                f"{file}: expected {name} '{mine}', found '{its}'; choose another folder with --out"
            )
    return content


def write(file: Path, content: dict[str, Any]) -> None:
    """Write the JSON file and its table as Markdown."""
    write_atomically(file, f"{json.dumps(content, indent=1)}\n".encode())
    write_atomically(file.with_suffix(".md"), page(content).encode())


def page(content: dict[str, Any]) -> str:
    """The table as Markdown."""
    settings, on = content["settings"], content["machine"]
    dry = "A dry run of tiny workloads: its numbers say nothing.\n\n" if settings["dry"] else ""
    return (
        f"# {content['title']}\n\n{dry}"
        f"{on['device']}; {on['cpu']}, {on['cores']} cores; Python {on['python']}, torch"
        f" {on['torch']}; {content['date']} UTC.\n\n"
        "`ms`: median of the timed rounds, with the fastest and the slowest. `device mb`: most\n"
        "memory of the device that the processes of a program took. `peak mb`: of the host.\n"
        "`lock`: whether Python's interpreter lock was on. `bits`: equal where numbers are.\n\n"
        f"{markdown_table(content['rows'])}"
    )


def pairs(text: str) -> tuple[str, str]:
    """`NAME=PATH` as a pair."""
    name, _, path = text.partition("=")
    if name not in PEERS or not Path(path).is_file():
        names = ", ".join(PEERS)
        raise argparse.ArgumentTypeError(f"expected NAME=PATH of a Python, NAME of {names}")
    return name, path


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(prog="one_card", description=TITLE)
    add = parser.add_argument
    add("--accelerator", choices=("cuda", "cpu"), default="cuda")
    add("--rounds", type=int, default=5, help="timed rounds of a cell")
    add("--budget", type=float, default=BUDGET, help="seconds of all cells")
    add("--limit", type=float, default=LIMIT, help="seconds of a cell")
    add("--out", type=Path, default=FOLDER, help="folder of the table")
    add("--env-root", type=Path, default=Path("~/.cache/flbench/speed").expanduser())
    add("--wheels", type=Path, help="folder of wheels, in place of a package index")
    add("--python", type=pairs, action="append", default=[], metavar="NAME=PATH",
        help="a Python that has a peer; may be repeated")  # fmt: skip
    add("--only", action="append", default=[], choices=[*WORKLOADS, "step"])
    add("--dry", action="store_true", help="tiny workloads, to try the command")
    add("--prepare", action="store_true", help="make the peers' environments, measure nothing")
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    """Make the environments, and measure.

    Raises:
        UserError: there is no CUDA device, or the file is of another measurement.
    """
    if arguments.wheels is not None:
        os.environ["PIP_NO_INDEX"] = "1"
        os.environ["PIP_FIND_LINKS"] = str(arguments.wheels.absolute())
    find = partial(environment, dict(arguments.python), arguments.env_root.absolute())
    if arguments.prepare:
        for peer in PEERS:
            try:
                print(f"{peer}: {find(peer)}")
            except ProgramFailed as error:
                print(f"{peer}: {error}")
        return
    if arguments.accelerator == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA device; --accelerator cpu --dry tries the command")
    settings = Settings(arguments.accelerator, arguments.rounds, arguments.dry)
    with tempfile.TemporaryDirectory(prefix="flbench-speed-") as folder:
        todo = list(cells(settings, Path(folder), find, arguments.only))
        measure(settings, arguments.out / "one-card.json", todo, arguments.budget, arguments.limit)
    print(page(read(arguments.out / "one-card.json", settings)))


def main() -> None:
    """Run the command; an error is printed in one line."""
    try:
        run(parsed())
    except FlbenchError as error:
        print(f"one_card: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
