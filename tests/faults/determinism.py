"""Type the same command in other surroundings, and compare the bytes of its results.

Surroundings are what no result may depend on: the seed of hashes, the folder, language, time zone,
umask, optimised bytecode, the terminal, the number of processes and the version of Python. Each
case is a fresh interpreter; it must equal the command of one process in plain surroundings.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

from fault_record import Fault

from flbench.results.schema import VOLATILE

SUITE = """
version = 1
summary = "small, to be run in many surroundings"
dataset = "digits"
clients = 8
participation = 0.5
rounds = 5
server_samples = 60
partition = {name = "label-groups", groups = 2}
model = {name = "mlp", hidden = 16}
local = {epochs = 1, batch_size = 32, lr = 0.1}
"""
TRIALS = ("t_start=2", "tau=1", "window=1", "t_obs=1", "t_sp=1", "threshold=1.0")
PROBE = ("warmup=2", "probe_epochs=2")
COMMANDS: dict[str, list[str]] = {
    "five methods": [
        *("-p", "fedavg,pfedlia,dc-pfl,fedproto,flis-hc"),
        *(word for one in PROBE for word in ("--set", f"pfedlia.{one}")),
        *(word for one in TRIALS for word in ("--set", f"dc-pfl.{one}")),
    ],
    "pfedlia of peers": [
        *("-p", "pfedlia", "--set", "mode=peer"),
        *(word for one in PROBE for word in ("--set", one)),
    ],
}
"""What is typed, beside the suite: runs with different state and different work of a server."""
PROCESSES = (1, 2)


@dataclass(frozen=True)
class Surroundings:
    """What a command is typed in.

    Attributes:
        kind: what the report counts it under.
        environ: variables of the environment.
        flags: flags of the interpreter.
        folder: where the command is typed, below a folder of the case.
        umask: of the process.
        terminal: whether output and errors are a terminal.
        python: the interpreter; "" = this one.
    """

    kind: str
    environ: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    folder: str = "here"
    umask: int = 0o022
    terminal: bool = False
    python: str = ""


def variables(kind: str, name: str, *values: str) -> dict[str, Surroundings]:
    """Surroundings that differ in one variable of the environment."""
    return {f"{name}={one}": Surroundings(kind, environ=((name, one),)) for one in values}


PLAIN = Surroundings("plain")
WAYS: dict[str, Surroundings] = {
    "plain": PLAIN,
    **variables("hash seed", "PYTHONHASHSEED", "1", "2", "4294967295"),
    **variables("language", "LC_ALL", "C", "C.UTF-8", "tr_TR.UTF-8"),
    **variables("time zone", "TZ", "Pacific/Kiritimati", "America/St_Johns"),
    **variables("terminal", "COLUMNS", "20"),
    "another folder": Surroundings("folder", folder="a b/\u00e9\u4e2d/deep"),
    "umask 077": Surroundings("umask", umask=0o077),
    "umask 000": Surroundings("umask", umask=0),
    "-O": Surroundings("optimised", flags=("-O",)),
    "-OO": Surroundings("optimised", flags=("-OO",)),
    "a terminal": Surroundings("terminal", terminal=True, environ=(("TERM", "xterm-256color"),)),
    "a narrow terminal": Surroundings("terminal", terminal=True, environ=(("COLUMNS", "20"),)),
}
"""Surroundings by name; interpreters are added as `python=PATH`."""


def names(pythons: Sequence[str]) -> list[str]:
    """The cases: each command, with one process and two, in all surroundings."""
    ways = [*WAYS, *(f"python={one}" for one in pythons)]
    return [f"{what}|{n}|{way}" for what, n, way in product(COMMANDS, PROCESSES, ways)]


def surroundings(way: str) -> Surroundings:
    """What a name means."""
    if way.startswith("python="):
        python = way.removeprefix("python=")
        return Surroundings(f"Python {version_of(python)}", python=python)
    return WAYS[way]


@cache
def version_of(python: str) -> str:
    """The version of an interpreter."""
    words = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@cache
def locales() -> str:
    """A folder of languages with Turkish, whose small i has no dot as a capital."""
    folder = tempfile.mkdtemp(prefix="flbench-faults-")
    words = ["localedef", "-i", "tr_TR", "-f", "UTF-8", f"{folder}/tr_TR.UTF-8"]
    subprocess.run(words, check=True, capture_output=True)
    return folder


def typed_in(root: Path, words: Sequence[str], around: Surroundings) -> tuple[int, str]:
    """Type `flbench run` with words in surroundings; exit code and the end of what was printed."""
    folder = root / around.folder
    folder.mkdir(parents=True)
    (folder / "small.toml").write_text(SUITE, encoding="utf-8")
    environ = {k: v for k, v in os.environ.items() if k not in ("LC_ALL", "LANG", "COLUMNS")}
    environ |= {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONWARNINGS": "ignore"}
    environ |= dict(around.environ)
    if environ["LC_ALL"].startswith("tr_TR"):
        environ["LOCPATH"] = locales()
    command = [around.python or sys.executable, *around.flags, "-m", "flbench", "run"]
    command += ["-s", "small.toml", "--out", "out", *words]
    master, slave = pty.openpty() if around.terminal else (-1, subprocess.PIPE)
    errors = slave if around.terminal else subprocess.STDOUT
    with subprocess.Popen(
        command, cwd=folder, env=environ, umask=around.umask,
        stdin=subprocess.DEVNULL, stdout=slave, stderr=errors,
    ) as process:  # fmt: skip
        if around.terminal:
            os.close(slave)
            output = everything(master)
        else:
            output = process.communicate()[0]
    return process.returncode, output.decode(errors="replace")[-400:]


def everything(descriptor: int) -> bytes:
    """What a terminal is told until nobody has it open."""
    found = b""
    try:
        while more := os.read(descriptor, 2**16):
            found += more
    except OSError:  # how a terminal says it
        pass
    finally:
        os.close(descriptor)
    return found


def lasting(text: str) -> bytes:
    """The bytes of a result file without the lines of what differs between equal runs."""
    own = tuple(f"{json.dumps(key)}: " for key in VOLATILE)
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(own)
    ).encode()


def results(folder: Path) -> dict[str, bytes]:
    """The lasting bytes of all result files below a folder."""
    return {
        path.relative_to(folder).as_posix(): lasting(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("seed-*.json"))
    }


def differing(expected: dict[str, bytes], found: dict[str, bytes]) -> dict[str, int]:
    """The files that differ, and in how many bytes; a file that is missing counts whole."""
    counts = {}
    for path in sorted({*expected, *found}):
        one, other = expected.get(path, b""), found.get(path, b"")
        bytes_ = sum(a != b for a, b in zip(one, other, strict=False))
        counts[path] = bytes_ + abs(len(one) - len(other))
    return {path: count for path, count in counts.items() if count}


@cache
def expected(what: str, executor: str) -> dict[str, bytes]:
    """The results of a command of one process in plain surroundings."""
    root = Path(tempfile.mkdtemp(prefix="flbench-faults-"))
    try:
        code, output = typed_in(root, [*COMMANDS[what], "--executor", executor], PLAIN)
        assert code == 0, output
        return results(root / PLAIN.folder / "out")
    finally:
        shutil.rmtree(root)


def inject(name: str) -> Fault:
    """Type a command in other surroundings, and compare its results with those of plain ones."""
    what, processes, way = name.split("|")
    around = surroundings(way)
    executor = "auto" if processes == "1" else "sequential"  # in lanes processes change rounding
    whole = expected(what, executor)
    words = [*COMMANDS[what], "--executor", executor]
    if processes != "1":
        words += ["--devices", processes, "--accelerator", "cpu"]
    with tempfile.TemporaryDirectory(prefix="flbench-faults-", ignore_cleanup_errors=True) as root:
        code, output = typed_in(Path(root), words, around)
        counts = differing(whole, results(Path(root) / around.folder / "out"))
    wrong = "ended badly" if code else "other bytes" if counts else ""
    message = f"{counts} {output}" if wrong else ""
    return Fault(
        name,
        around.kind,
        "other" if wrong else "same",
        wrong,
        sum(counts.values()),
        message=message,
    )
