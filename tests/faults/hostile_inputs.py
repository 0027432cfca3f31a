"""Type hostile words, suites, data files and result files, and see what comes of them.

Every input comes from its name alone; which come next depends on what they reach
(`coverage_guided.py`). A run is prepared whole (names, suite, data, network,
executor), but plays no round. What is refused must be refused in one line and in bounded time, and
no file may appear outside the folder of the output.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
from coverage_guided import Draws, Reached
from damaged_results import RUNS, whole
from fault_record import Fault
from typed_command import MARK, Done, files_below, markup_in, typed

from flbench.errors import UserError
from flbench.results.schema import digest_of, file_text
from flbench.run import runner
from flbench.submission import many_files
from flbench.suite import suite_field, suite_fields

ROOT = Path(__file__).parents[2]
MEMORY = 12 * 2**30
"""Bytes of address space that a harness may take; what does not fit must be one line."""
NASTY = (
    "", " ", ",", ".", "..", "../..", "/", "~", "-", "--", "=", ":", "::", "a=b", "a:b", "[", "[]",
    "{}", "{a=1}", "[1,2", "none", "true", "nan", "inf", "-inf", "1e309", "-1", "0", "1", "2",
    "3.5", "9" * 25, "9" * 5000, "0x10", "1_000", "a" * 300, "a" * 5000, "\n", "a\nb", "\t",
    "\x1b[31m",
    "\u00e9", "\u202e", "\udc80", "\U0001f600", "%s", "{0}", "$HOME", "`id`", "'", '"', "\\", MARK,
    f"<script>{MARK}</script>", "iid", "fedavg", "fedavg+fedavg", "oracle+fedavgm", "ifca+pfedlia",
    "digits", "digits:", "digits:x", "npz:", "npz:x.npz", "images:.", "images:.@0", "images:.@9999",
    "text:.", "text:/dev", "rotated:digits", "rotated:rotated:digits", "rotated:", "label-swap:iid",
    "torchmetrics.Accuracy", "torchmetrics.nothing",
    "torchmetrics.multimodal.CLIPScore", "hub:.",
    "MulticlassAUROC:thresholds=999999999", "ece:bins=999999999", "F1Score:dist_sync_fn=print",
    "torchmetrics.classification.MulticlassAUROC",
    "f1", "top-k:k=0", "top-k:k=99999999999", "auroc:average=", "__class__", "name", "version",
    "on", "os.system", "csv", "wandb ", "suite.local", "local", "local.epochs", "model",
    "model.hidden",
    "partition.name", "iid.toml", "./x.toml", "...toml", "/dev/null", "/dev/zero", "/proc/self/mem",
    "[[[[[[[[[[[[[[[[[[[[", "1979-05-27", "'''", "2**63", str(2**63), str(-(2**63) - 1), str(2**31),
)  # fmt: skip
"""Texts that a person or a program may type by mistake or with bad intent."""


def text(rng: Random, *friendly: str) -> str:
    """A hostile text: nasty, friendly, or one that was changed."""
    kind = rng.random()
    if friendly and kind < 0.5:
        return rng.choice(friendly)
    word = rng.choice(friendly if friendly and kind < 0.65 else NASTY)
    if 0.65 <= kind < 0.85:
        return word
    letters = list(word) or ["x"]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(letters) + 1)
        change = rng.choice(
            ["\x00", "a", "0", "-", ".", ",", ":", "=", "+", "[", "]", '"', "\u00e9"]
        )
        letters[at : at + rng.randint(0, 2)] = [change]
    return "".join(letters)


def word(rng: Random, *friendly: str) -> str:
    """A text as an argument of a command, which holds no zero byte."""
    return text(rng, *friendly).replace("\x00", "0")


def value(rng: Random) -> str:
    """A value of a setting."""
    return word(rng, "0", "1", "2", "0.5", "-1", "1e-9", "true", "none", '"x"', "[0]", "[1, 2]")


SUITES = ("iid", "noisy-noniid", "rotated", "dirichlet-0.1", "label-skew-20", "slow-clients")
METHODS = ("fedavg", "ifca", "pfedlia", "oracle+fedavgm", "local-only", "fedrep", "scaffold")
SMALL = ("--set", "clients=10", "--rounds", "2")


@cache
def keys() -> tuple[str, ...]:
    """The keys of `--set` that a suite or a method knows."""
    own = ("partition.name", "model.name", "model.norm", "partition.alpha", "clock.up", "k", "mu")
    return (*suite_fields(), *own, "fedavg.x", "ifca.k", "warmup", "suite.clients", "epochs")


@cache
def committed(suite: str) -> dict[str, str]:
    """The settings of a suite of this repository: dotted key -> value as a text of TOML."""
    found = {}
    tables = [("", tomllib.loads((ROOT / f"benchmarks/{suite}.toml").read_text(encoding="utf-8")))]
    for before, table in tables:
        for key, one in table.items():
            if isinstance(one, dict):
                tables.append((f"{before}{key}.", one))
            elif suite_field(before + key) or key in ("version", "summary"):
                found[before + key] = json.dumps(one)
    return found


def one_of_a_suite(rng: Random) -> tuple[str, str]:
    """A setting that a suite of this repository has."""
    return rng.choice(list(committed(rng.choice(SUITES)).items()))


def settings(rng: Random) -> list[str]:
    """A run with a few settings."""
    words = ["run", "-p", rng.choice(METHODS), "-s", rng.choice(SUITES), *SMALL]
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(keys()) if rng.random() < 0.6 else word(rng, *keys())
        odd = rng.random() < 0.5
        words += ["--set", f"{key}={value(rng)}" if odd else "=".join(one_of_a_suite(rng))]
    return words


def plugins(rng: Random) -> list[str]:
    """A run of methods with odd names."""
    name = rng.choice("+,").join(word(rng, *METHODS) for _ in range(rng.randint(1, 3)))
    more = ["--preset", word(rng, "paper")] if rng.random() < 0.2 else []
    return ["run", "-p", name, "-s", rng.choice(SUITES), *SMALL, *more]


def suites(rng: Random) -> list[str]:
    """A run on suites with odd names."""
    command = rng.choice([["run", "-p", "fedavg", "-s"], ["show", "suite"]])
    return [*command, word(rng, *SUITES)]


def datasets(rng: Random) -> list[str]:
    """A run on a data set with an odd name."""
    name = word(rng, "digits", "bigrams", "rotated:digits", "label-swap:digits", "digits-shift")
    return ["run", "-p", "fedavg", "-s", rng.choice(SUITES), *SMALL, "--dataset", name]


OPTIONS: dict[str, tuple[str, ...]] = {
    "--seed": ("0", "1"), "--seeds": ("1", "2"), "--rounds": ("1", "2"), "--preset": ("paper",),
    "--dataset": ("digits", "bigrams"), "--data-root": (".",),
    "--executor": ("auto", "sequential", "vectorised"), "--accelerator": ("auto", "cpu"),
    "--precision": ("32-true", "bf16-mixed"), "--bank-budget": ("8GB", "1MB", "100"),
    "--threads": ("1", "2"), "--sink": ("csv", "wandb"), "--metric": ("f1", "auroc", "ece"),
    "--set": ("clients=5", "lr=0.1", "epochs=2"), "--nothing": ("x",), "--resume": (),
    "--force": (), "--offline-data": (), "--changed-source": (),
}  # fmt: skip
"""Options of a run and values that they take; those without a value have none."""


def options(rng: Random) -> list[str]:
    """A run with odd options."""
    words = ["run", "-p", rng.choice(METHODS), "-s", rng.choice(SUITES), *SMALL]
    for _ in range(rng.randint(1, 3)):
        option = rng.choice(list(OPTIONS))
        words += [option, *([word(rng, *OPTIONS[option])] if OPTIONS[option] else [])]
    return words


COMMANDS = (
    ["show", "result"], ["show", "method"], ["show", "suite"], ["show"], ["diff"], ["plot"],
    ["leaderboard", "--html", "--results"], ["leaderboard", "--no-figures", "--results"],
    ["submit", "--check"], ["submit", "--results"], ["verify"], ["list"], ["data"],
    ["data", "--check"], ["new"], ["new", "--kind"], ["new", "x", "--author"],
    ["new", "x", "--paper"], ["sync"], ["export"],
    ["verify", "--sample"], ["verify", "rows", "--sample", "2", "--methods"],
    ["sweep", "--launcher", "print", "-s", "iid", "-p"], ["sweep", "--launcher"], ["study"],
    ["tune"], ["reproduce"], ["check"], ["--version"], [],
)  # fmt: skip


def commands(rng: Random) -> list[str]:
    """Any command with odd arguments."""
    words = [*rng.choice(COMMANDS)]
    if words in (["check"], ["data", "--check"]):  # which start processes and read everything
        return [*words, f"x{word(rng)}"]  # no method or data set that is there
    return [
        *words,
        *(word(rng, "iid", "x", ".", "rows/seed-0.json") for _ in range(rng.randint(0, 3))),
    ]


def paths(rng: Random) -> list[str]:
    """A command that writes to an odd path below the output."""
    way = "/".join(word(rng, "a", "b").strip("~") for _ in range(rng.randint(1, 4)))
    way = re.sub(r"(^|/)\.\.(?=/|$)", r"\1__", way)  # a person may name any folder
    target = f"out/{way}"
    return rng.choice(
        [
            ["plot", "rows/seed-0.json", "--kind", "curves", "--out", target],
            ["leaderboard", "--results", "rows", "--html", "--out", target],
            ["leaderboard", "--results", "rows", "--no-figures", "--out", target],
            ["new", "x", "--out", target],
            ["run", "-p", "fedavg", "-s", "iid", *SMALL, "--out", target],
        ]
    )


def suite_files(rng: Random) -> list[str]:
    """A suite whose file was changed."""
    settings = dict(committed(rng.choice(SUITES)))
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if kind < 0.5:
            settings.update([one_of_a_suite(rng)])
        elif kind < 0.8:
            settings[rng.choice(list(settings))] = value(rng)
        elif kind < 0.9:
            settings[text(rng, *keys())] = value(rng)
        else:
            settings.pop(rng.choice(list(settings)))
    lines = [f"{key} = {one}\n" for key, one in settings.items()]
    if rng.random() < 0.2:
        at = rng.randrange(len(lines))
        letters = list(lines[at])
        letters[rng.randrange(len(letters))] = text(rng)
        lines[at] = "".join(letters)
    if rng.random() < 0.1:
        lines.append(f"[{text(rng, 'on', 'local', 'clock', 'on.digits', 'partition')}]\n")
    file = rng.choice([*["x.toml"] * 20, "...toml", ".toml", "a b.toml", "-.toml"])
    Path(file).write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
    command = rng.choice([["run", "-p", "fedavg", *SMALL, "-s"], ["show", "suite"]])
    return [*command, f"./{file}"]


def data_files(rng: Random) -> list[str]:
    """A data set from files that were changed."""
    kind = rng.choice(["npz", "npz", "npz", "text", "images"])
    if kind == "npz":
        Path("x.npz").write_bytes(_npz(rng))
        name = "npz:x.npz"
    elif kind == "text":
        Path("texts").mkdir()
        for domain in ("a", "b")[: rng.randint(0, 2)]:
            line = text(rng, "words of a language ").replace("\x00", " ") * rng.choice([1, 50, 400])
            data = line.encode(errors="surrogateescape")
            Path(f"texts/{domain}.txt").write_bytes((data * rng.choice([1, 1, 20]))[:500_000])
        if rng.random() < 0.1:
            os.mkfifo("texts/c.txt")
        name = "text:texts"
    else:
        for label in ("a", "b")[: rng.randint(1, 2)]:
            folder = Path("images") / label
            folder.mkdir(parents=True)
            for number in range(rng.randint(0, 3)):
                (folder / f"{number}.{rng.choice(['png', 'jpg', 'txt'])}").write_bytes(_image(rng))
        name = f"images:images{rng.choice(['', '@8', '@0', '@x'])}"
    command = ["run", "-p", "fedavg", "-s", "iid", "--rounds", "2"]
    return [*command, "--set", f"clients={rng.choice([1, 2, 4])}", "--dataset", name]


def _npz(rng: Random) -> bytes:
    """Arrays of an odd shape, type or value; perhaps damaged."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    types = ["float32", "float64", "float16", "int64", "uint8", "int8", "bool", "complex64", "U3"]
    shapes: list[tuple[int, ...]] = [
        (40, 3),
        (40, 8, 8),
        (40, 1, 8, 8),
        (40, 8, 8, 3),
        (40,),
        (0, 3),
        (),
    ]
    x = (numbers.random(rng.choice(shapes)) * rng.choice([1, 255, 1e300])).astype("float64")
    with np.errstate(all="ignore"):
        x = x.astype(rng.choice(types)) if rng.random() < 0.6 else x
    if x.size and x.dtype.kind == "f" and rng.random() < 0.3:
        x.flat[0] = rng.choice([np.nan, np.inf, -np.inf])
    y = numbers.integers(0, rng.choice([1, 2, 4, 1000]), size=rng.choice([40, 40, 40, 39, 0]))
    y = y.astype(rng.choice(["int64", "int64", "float32", "uint64", "int8"]))
    names = rng.choice([("x", "y"), ("x", "y"), ("x_train", "y_train"), ("a", "b"), ("x", "z")])
    arrays = dict(zip(names, (x, y), strict=True))
    if rng.random() < 0.3:
        arrays["domains"] = numbers.integers(-1, 3, size=rng.choice([40, 3]))
    with tempfile.TemporaryFile() as file:
        np.savez(file, **arrays)
        file.seek(0)
        data = file.read()
    return _damaged(data, rng) if rng.random() < 0.4 else data


def _image(rng: Random) -> bytes:
    from PIL import Image

    size = rng.choice([(8, 8), (8, 8), (1, 1), (9, 8)])
    image = Image.new(rng.choice(["L", "RGB", "RGBA", "1", "P", "I", "F"]), size)
    with tempfile.TemporaryFile() as file:
        image.save(file, "TIFF")
        file.seek(0)
        data = file.read()
    return _damaged(data, rng) if rng.random() < 0.5 else data


def _damaged(data: bytes, rng: Random) -> bytes:
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(1) + data[at + 1 :]
    return data[: rng.randrange(len(data))] if rng.random() < 0.2 else data


def result_files(rng: Random) -> list[str]:
    """A result file that was changed, with a digest that fits."""
    table = json.loads(whole(rng.choice(list(RUNS))))
    del table["digest"]
    for _ in range(rng.randint(1, 3)):
        _change(table, rng)
    lines = {
        key: json.dumps(one, separators=(",", ":"), sort_keys=True) for key, one in table.items()
    }
    lines["digest"] = '""'
    lines["digest"] = json.dumps(digest_of(file_text(lines)))
    file = Path("rows/seed-0.json")
    file.write_text(file_text(lines), encoding="utf-8", errors="replace")
    return rng.choice(
        [
            ["show", "result", str(file)],
            ["diff", str(file), "rows"],
            ["submit", "--check", str(file)],
            ["leaderboard", "--results", "rows", "--html", "--out", "out"],
            ["leaderboard", "--results", "rows", "--no-figures", "--out", "out"],
            ["plot", str(file), "--kind", "curves", "--out", "out"],
            ["verify", str(file)],
            ["verify", "rows", "--log", "log.jsonl"],
            ["verify", "rows", "--sample", "20"],
            ["export", "rows", "--out", "out"],
        ]
    )


def _change(table: Any, rng: Random) -> None:
    """Change an entry somewhere below a table or list."""
    while True:
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(table[key], (dict, list)) and table[key] and rng.random() < 0.8:
            table = table[key]
            continue
        values = [
            None,
            True,
            0,
            1,
            -1,
            0.5,
            1e300,
            2**53,
            2**70,
            [],
            {},
            [[]],
            text(rng),
            text(rng),
        ]
        if rng.random() < 0.1:
            del table[key]
        elif isinstance(table, dict) and rng.random() < 0.2:
            table[text(rng)] = rng.choice(values)
        else:
            table[key] = rng.choice(values)
        return


def trace_files(rng: Random) -> list[str]:
    """A file of the speeds of clients."""
    rows = [f"{client},{value(rng)}" for client in range(10)]
    rows[rng.randrange(10)] = text(rng, "3,1.0")
    Path("t.csv").write_text("client,up\n" + "\n".join(rows), encoding="utf-8", errors="replace")
    found = (ROOT / "benchmarks" / "iid.toml").read_text(encoding="utf-8")
    speed = '{ trace = "t.csv" }' if rng.random() < 0.7 else value(rng)
    whole_text = f"{found}\n[clock]\nup = {speed}\n"
    Path("x.toml").write_text(whole_text, encoding="utf-8", errors="replace")
    return ["run", "-p", "fedavg", *SMALL, "-s", "./x.toml"]


KINDS: dict[str, Callable[[Random], list[str]]] = {
    "--set": settings,
    "--plugin": plugins,
    "--suite": suites,
    "--dataset": datasets,
    "options": options,
    "commands": commands,
    "paths": paths,
    "suite files": suite_files,
    "data files": data_files,
    "result files": result_files,
    "trace files": trace_files,
}


def names(count: int) -> list[str]:
    """The inputs: every kind equally often."""
    return [f"{kind}/{number}" for number in range(-(-count // len(KINDS))) for kind in KINDS]


def _no_round(*given: object, **named: object) -> NoReturn:
    raise UserError("prepared: the harness plays no round")


@contextmanager
def bounded() -> Iterator[None]:
    """Runs are prepared and not played, in this process alone; memory has a limit."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        with (
            patch.object(runner, "play", _no_round),
            patch.object(many_files, "at_once", lambda files: 1),
        ):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def inject(name: str, reached: Reached | None = None) -> Fault:
    """Type a command with a hostile input, in a folder of its own; `reached` watches it."""
    kind = name.partition("/")[0]
    rng, lines = Draws(name), reached.lines if reached else 0
    top = Path(tempfile.mkdtemp(prefix="flbench-faults-"))
    work, before = top / TYPED_IN, Path.cwd()
    work.mkdir(parents=True)
    os.chdir(work)
    try:
        Path("out").mkdir()
        Path("rows").mkdir()
        Path("rows/seed-0.json").write_bytes(whole("plain"))
        words = KINDS[kind](rng)
        if words[:1] == ["run"] and "--out" not in words:
            words += ["--out", "out"]
        there = files_below(top)
        forget_peak()
        began = time.monotonic()
        home = {"HOME": str(top / "home"), "MPLCONFIGDIR": str(matplotlib_folder())}
        with (
            patch.dict(os.environ, home),
            bounded(),
            reached.watching() if reached else nullcontext(),
        ):
            done = typed(*words)
        fault = replace(
            _judged(name, kind, done, top, there),
            seconds=round(time.monotonic() - began, 3),
            megabytes=peak(),
            drawn=rng.drawn,
            reached=reached.lines - lines if reached else 0,
        )
        return replace(fault, message=f"{words}: {fault.message}") if fault.wrong else fault
    finally:
        os.chdir(before)
        shutil.rmtree(top)


@cache
def matplotlib_folder() -> Path:
    """Where matplotlib keeps its list of fonts, which is made once."""
    return Path(tempfile.mkdtemp(prefix="flbench-faults-"))


def forget_peak() -> None:
    """Measure the most memory from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most memory that this process had, in MB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024


TYPED_IN = Path("a", "b", "here")
"""Where the command is typed, below a folder that is watched."""
EXPECTED = rf"{TYPED_IN.as_posix()}/|home(/\.cache|/\.local(/share)?)?(/wandb|/flbench|$)"
"""Where new files may be: where the command is typed, wandb's own, and rounds of a replay."""


def _judged(name: str, kind: str, done: Done, top: Path, there: set[Path]) -> Fault:
    fault = done.fault(name, kind)
    allowed = top / TYPED_IN
    new = files_below(top) - there
    # `new` writes a package where it is told to, `plot` and `submit` into `figures` and a folder.
    own = ("out", "figures", "flbench-x", "leaderboard", "flbench-results")
    outside = [one for one in new if not re.match(EXPECTED, one.relative_to(top).as_posix())]
    inside = [one for one in new if one.is_relative_to(allowed)]
    odd = [one for one in inside if one.relative_to(allowed).parts[0] not in own]
    if not fault.wrong and (outside or [one for one in odd if kind not in ("commands",)]):
        return Fault(name, kind, fault.outcome, "file outside", message=str((outside or odd)[:2]))
    pages = [one for one in new if one.suffix in (".html", ".md", ".svg") and one.is_file()]
    if not fault.wrong and markup_in(pages) and kind != "commands":
        return Fault(name, kind, fault.outcome, "markup", message=str(pages[:2]))
    if not fault.wrong and "prepared: the harness" in done.errors:
        return Fault(name, kind, "prepared")
    return fault
