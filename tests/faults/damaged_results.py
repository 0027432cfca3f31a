"""Damage result files, and see whether a command takes one for a whole file.

Files are of toy runs; each is read by `show`, `diff`, `submit --check` and `leaderboard`. A file
that is not the one that the run wrote must be refused by all of them, in one line.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from zlib import crc32

from fault_record import Fault
from toy import player
from typed_command import Done, typed

from flbench.results.schema import Result

RUNS = {"plain": ("fedavg", {}), "groups": ("ifca", {}), "scores": ("pfedlia", {"warmup": 1})}


@cache
def whole(name: str) -> bytes:
    """The file of a toy run."""
    method, settings = RUNS[name]
    with tempfile.TemporaryDirectory(prefix="flbench-faults-") as folder:
        result = player(Path(folder))(method, settings=settings).result
    return result.canonical().encode()


def _bit(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _bits(data: bytes, rng: Random) -> bytes:
    for _ in range(rng.randint(2, 9)):
        data = _bit(data, rng)
    return data


def _byte(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _zeroed(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes(len(data) - at)


def _block(data: bytes, rng: Random) -> bytes:
    """A block that is missing, or there twice."""
    at, to = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    return data[:at] + (data[at:to] * 2 if rng.random() < 0.5 else b"") + data[to:]


def _number(data: bytes, rng: Random) -> bytes:
    """A number of the text is another one."""
    found = rng.choice(list(re.finditer(rb"-?\d+(\.\d+)?", data)))
    value = rng.choice([b"0", b"1", b"0.5", b"-1", b"99", b"%d" % rng.randrange(10**6), b"1e3"])
    return data[: found.start()] + value + data[found.end() :]


def _word(data: bytes, rng: Random) -> bytes:
    """A key or text is another one."""
    found = rng.choice(list(re.finditer(rb'"[^"]+"', data)))
    value = rng.choice([b'""', b'"x"', b'"accuracy_mean"', b"null", b'"seed"', b'"<b>"'])
    return data[: found.start()] + value + data[found.end() :]


def _line(data: bytes, rng: Random) -> bytes:
    """A line is missing, or elsewhere."""
    lines = data.splitlines(keepends=True)
    line = lines.pop(rng.randrange(len(lines)))
    if rng.random() < 0.5:
        lines.insert(rng.randrange(len(lines) + 1), line)
    return b"".join(lines)


def _space(data: bytes, rng: Random) -> bytes:
    """Other white space, which means the same to a reader of JSON."""
    return rng.choice(
        [data + b"\n", b" " + data, data.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + data]
    )


def _of_another(data: bytes, rng: Random) -> bytes:
    """The digest is that of another file."""
    digest = re.compile(rb'"digest": "[0-9a-f]+"')
    other = whole(rng.choice([name for name in RUNS if whole(name) != data]))
    found = digest.search(other)
    assert found is not None
    return digest.sub(found[0], data)


def _edited(data: bytes, rng: Random) -> bytes:
    """An entry of the summary is edited, and the file written anew with the old digest."""
    table = json.loads(data)
    name = rng.choice(sorted(table["summary"].keys() - {"accuracy_mean"}))  # that one is checked
    table["summary"][name] = rng.choice([0, 1, 0.123, None])
    text = Result.model_validate(table).canonical().encode() if rng.random() < 0.3 else None
    if text is not None:  # edited by a program that keeps the layout
        return re.sub(rb'(?<="digest": ")[0-9a-f]+', table["digest"].encode(), text)
    return json.dumps(table).encode()


def _without(data: bytes, rng: Random) -> bytes:
    """The digest is taken away."""
    return re.sub(rb'"digest": "[0-9a-f]+",\n', b"", data)


def _unknown(data: bytes, rng: Random) -> bytes:
    """A number that is no metric, in a file of an older version."""
    table = json.loads(_without(data, rng)) | {"schema_version": 2}
    table["summary"][f"accuracy_{rng.randrange(10**6)}"] = 0.9
    return json.dumps(table).encode()


DAMAGES: dict[str, Callable[[bytes, Random], bytes]] = {
    "bit flipped": _bit,
    "bits flipped": _bits,
    "byte replaced": _byte,
    "truncated": _cut,
    "zeroed tail": _zeroed,
    "block missing or twice": _block,
    "number edited": _number,
    "word edited": _word,
    "line moved or missing": _line,
    "other white space": _space,
    "digest of another file": _of_another,
    "summary edited": _edited,
    "digest taken away": _without,
    "unknown number": _unknown,
}


def names(count: int) -> list[str]:
    """The faults, about as many as asked for: every damage of every file, bits most often."""
    weights = {"bit flipped": 4, "number edited": 2, "word edited": 2}
    kinds = [kind for kind in DAMAGES for _ in range(weights.get(kind, 1))]
    each = -(-count // (len(kinds) * len(RUNS)))
    return [
        f"{run}/{kind}/{at}/{number}"
        for number in range(each)
        for at, kind in enumerate(kinds)
        for run in RUNS
    ]


def inject(name: str) -> Fault:
    """Damage a file, and let commands read it."""
    run, kind, _, _ = name.split("/")
    rng = Random(crc32(name.encode()))
    data = whole(run)
    damaged = DAMAGES[kind](data, rng)
    with tempfile.TemporaryDirectory(prefix="flbench-faults-") as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            return _judged(name, kind, damaged, same=damaged == data)
        finally:
            os.chdir(before)


def _judged(name: str, kind: str, damaged: bytes, *, same: bool) -> Fault:
    Path("rows").mkdir()
    file = Path("rows/seed-0.json")
    file.write_bytes(damaged)
    found: list[Done] = []
    for words in (
        ("show", "result", str(file)),
        ("submit", "--check", str(file)),
        ("diff", str(file), str(file)),
        ("leaderboard", "--results", "rows", "--html", "--out", "board"),
    ):
        found.append(typed(*words))
    worst = next((one for one in found if one.wrong), found[0])
    fault = worst.fault(name, kind)
    accepted = [one.code == 0 for one in found]
    if any(accepted) and not same:
        return Fault(name, kind, "accepted", "accepted", len(damaged), message=str(accepted))
    if same:
        return Fault(name, kind, "not damaged", "" if accepted[0] else "whole file refused")
    if Path("board").exists():
        return Fault(name, kind, "refused", "a page was written")
    return fault
