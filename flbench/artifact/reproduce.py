"""Run the claims of this artifact again, compare them, and make its tables and figures.

    python reproduce.py                  all claims that have a result
    python reproduce.py --list           their names and minutes
    python reproduce.py CLAIM --seed 0   some of them
    python reproduce.py --compare        run nothing, compare what was run

This is the module `flbench.artifact.reproduce`, and as `reproduce.py` a copy of it in each
artifact. Type it in the artifact's folder, in an environment with flbench. What was run is in
`rerun/`; a run that is complete is not run again, so an interrupted script is typed again. Exit
code 1: a number differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from flbench import figures
from flbench.errors import FlbenchError
from flbench.metrics import table_of
from flbench.results.difference import TOLERANCE, relative_distance
from flbench.results.files import read_result, slug, write_atomically
from flbench.results.marks import KINDS
from flbench.results.schema import Result
from flbench.submission.comparison import compare
from flbench.submission.verification import engine_of, limits_of

CLAIMS, LOG = "claims.json", "rerun.jsonl"
"""What is claimed; and the log of what was run: seconds and peak memory of each run."""
HEADINGS = ("claim", "number", "published", "seeds", "expected", "again", "verdict", "whole result")
ListedClaim = Mapping[str, Any]
"""A claim as `claims.json` has it."""
UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in which the system counts the peak memory of a process."""


def number(result: Result, column: str) -> float | None:
    """A number of a result: a metric, or the last value of a curve."""
    ends = {name: curve[-1] for name, curve in result.curves.items() if curve}
    found = {**ends, **result.metrics()}.get(column)
    return None if found is None else float(found)


def limit(result: Result, column: str) -> float:
    """How far a number may be from that of a result on another machine; see `KINDS`."""
    kinds = {metric.name: metric.kind for metric in table_of(result.outcome())}
    return TOLERANCE * KINDS[kinds.get(column, "other")].mean


@dataclass(frozen=True)
class Compared:
    """A number of a claim: what is expected, and what came.

    Attributes:
        seeds: those that were compared.
        expected: the mean over them, as `again`; None = no run has such a number.
        verdict: "equal", "agrees", "differs", or why it was not compared.
        whole: whether all else in the results agrees.
    """

    claim: str
    column: str
    published: str
    seeds: tuple[int, ...]
    expected: float | None
    again: float | None
    verdict: str
    whole: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """A row under `HEADINGS`."""
        numbers = ["-" if one is None else f"{one:.4f}" for one in (self.expected, self.again)]
        if self.expected is None and not self.seeds:
            numbers[0] = "not run"
        seeds = ", ".join(map(str, self.seeds))
        texts = (self.claim, self.column, self.published, seeds, *numbers, self.verdict, self.whole)
        return tuple(text or "-" for text in texts)


def compared(folder: Path, claim: ListedClaim, again: str = "writes") -> Iterator[Compared]:
    """Compare the numbers of a claim.

    Args:
        again: the key of a run that names the file to compare with the one that is claimed.
    """
    runs = [run for run in claim["runs"] if run["result"]]
    there = [run for run in runs if (folder / run[again]).is_file()]
    pairs = [
        (read_result(folder / run["result"]), read_result(folder / run[again])) for run in there
    ]
    seeds = tuple(run["seed"] for run in there)
    whole = _whole(pairs)
    for column in claim["columns"]:
        if not pairs:
            why = "not run" if runs or not claim["why"] else f"not run: {claim['why']}"
            all_ = tuple(run["seed"] for run in runs)
            numbers = [run["expected"][column] for run in runs]
            known = _mean([one for one in numbers if one is not None])
            yield Compared(claim["key"], column, claim["published"], all_, known, None, why)
            continue
        expected = [run["expected"][column] for run in there]
        came = [number(other, column) for _, other in pairs]
        limits = [limit(one, column) for one, _ in pairs]
        verdict = _verdict(expected, came, limits)
        mine, theirs = (_mean([x for x in one if x is not None]) for one in (expected, came))
        yield Compared(
            claim["key"], column, claim["published"], seeds, mine, theirs, verdict, whole
        )


def _mean(numbers: Sequence[float]) -> float | None:
    return mean(numbers) if numbers else None


def _verdict(
    expected: Sequence[float | None], came: Sequence[float | None], limits: Sequence[float]
) -> str:
    """Of numbers by seed: equal, within the limits, or not."""
    if expected == came:
        return "equal"
    for one, other, most in zip(expected, came, limits, strict=True):
        if one is None or other is None:
            if one is not other:
                return "differs"
        elif relative_distance(one, other) > most + 1e-12:
            return "differs"
    return "agrees"


def _whole(pairs: Sequence[tuple[Result, Result]]) -> str:
    """In which parts whole results differ, as `flbench verify` compares them."""
    parts = [part for one, other in pairs for part in compare(one, other, one.suite["rounds"])]
    wrong = dict.fromkeys(part.name for part in parts if not part.agrees(TOLERANCE))
    if wrong:
        return f"differs in {', '.join(wrong)}"
    return "same bytes" if all(part.same for part in parts) else "agrees"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows under as many of `HEADINGS` as they have cells, in Markdown."""
    width = len(rows[0]) if rows else len(HEADINGS)
    lines = [HEADINGS[:width], ("---",) * width, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def drawn(folder: Path, claims: Sequence[ListedClaim], file: str) -> Iterator[tuple[str, bytes]]:
    """The figures of the results there are, one per suite and data set: its name, and the file.

    Args:
        file: the key of a run that names its result file.
    """
    places: dict[str, list[tuple[str, list[Result]]]] = {}
    for claim in claims:
        names = [run[file] for run in claim["runs"] if run["result"]]
        found = [read_result(folder / name) for name in names if (folder / name).is_file()]
        if found:
            places.setdefault(claim["place"], []).append((claim["name"], found))
    for place, rows in places.items():
        for kind, draw in (("curves", figures.curves), ("cost", figures.pareto)):
            svg = draw(rows, place)
            if svg is not None:
                yield f"{slug(place)}-{kind}.svg", svg


def write_expected(folder: Path, claims: Sequence[ListedClaim]) -> None:
    """Write the table and the figures of what is claimed."""
    rows = [row.cells for claim in claims for row in compared(folder, claim, "result")]
    _write(folder / "expected", [row[:5] for row in rows], drawn(folder, claims, "result"))


def write_rerun(folder: Path, claims: Sequence[ListedClaim]) -> None:
    """Write the table and the figures of what was run again."""
    rows = [row.cells for claim in claims for row in compared(folder, claim)]
    _write(folder / "rerun", rows, drawn(folder, claims, "writes"))


def _write(into: Path, rows: Sequence[Sequence[str]], figures: Iterable[tuple[str, bytes]]) -> None:
    write_atomically(into / "table.md", table(rows).encode())
    for name, svg in figures:
        write_atomically(into / "figures" / name, svg)


def play(folder: Path, run: ListedClaim, key: str, data_root: str | None) -> int:
    """Run one seed of a claim in a process of its own, and log what it took. Gives its exit code.

    Raises:
        KeyboardInterrupt: a person stops it; the same command goes on.
    """
    words = [sys.executable, "-m", "flbench", *shlex.split(run["command"])[1:]]
    words += [] if data_root is None else ["--data-root", os.path.abspath(data_root)]
    claimed = read_result(folder / run["result"])
    limits = limits_of(claimed, engine_of(claimed))
    began = time.monotonic()
    process = subprocess.Popen(words, cwd=folder, env={**os.environ, **limits})
    while True:
        try:
            _, status, used = os.wait4(process.pid, 0)
            break
        except KeyboardInterrupt:  # the run hears of it, too, and keeps its rounds
            continue
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode in (130, -2):
        raise KeyboardInterrupt
    about = {
        "claim": key,
        "seed": run["seed"],
        "seconds": round(time.monotonic() - began, 1),
        "memory": used.ru_maxrss * UNIT,
        "exit_code": process.returncode,
    }
    with (folder / LOG).open("a", encoding="utf-8") as log:
        log.write(f"\n{json.dumps(about, sort_keys=True)}\n")
    return process.returncode


def measured(folder: Path) -> dict[str, tuple[float, int]]:
    """Claim -> seconds of its runs together, and the largest peak memory in bytes, by the log."""
    found: dict[tuple[str, int], tuple[float, int]] = {}
    path = folder / LOG
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for line in lines:
        with suppress(ValueError, KeyError):  # what a killed process left of a line
            one = json.loads(line)
            if one["exit_code"] == 0:
                found[one["claim"], one["seed"]] = one["seconds"], one["memory"]
    claims = dict.fromkeys(key for key, _ in found)
    of = {key: [one for (name, _), one in found.items() if name == key] for key in claims}
    return {key: (sum(s for s, _ in one), max(m for _, m in one)) for key, one in of.items()}


def chosen(
    claims: Sequence[ListedClaim], keys: Sequence[str], seeds: Sequence[int]
) -> list[ListedClaim]:
    """The claims of some names, with some of their seeds; of none all are.

    Raises:
        SystemExit: there is no such claim, or no such seed.
    """
    known = [claim["key"] for claim in claims]
    for key in keys:
        if key not in known:
            ends = [one for one in known if one.endswith(f"/{key}")]
            meant = f"type {' or '.join(ends)}" if ends else "--list names them"
            sys.exit(f"reproduce.py: there is no claim '{key}'; {meant}")
    there = {run["seed"] for claim in claims for run in claim["runs"]}
    if seeds and not there.intersection(seeds):
        sys.exit(f"reproduce.py: --seed: expected one of {sorted(there)}, got {seeds[0]}")
    return [
        {**claim, "runs": [run for run in claim["runs"] if not seeds or run["seed"] in seeds]}
        for claim in claims
        if not keys or claim["key"] in keys
    ]


def main(folder: Path, words: Sequence[str] | None = None) -> int:
    """The command, in the folder of an artifact. Returns the exit code."""
    reader = argparse.ArgumentParser(prog="reproduce.py", description=__doc__.partition("\n")[0])
    reader.add_argument("claim", nargs="*", help="names of claims [default: all]")
    reader.add_argument("--seed", type=int, action="append", default=[], help="repeatable")
    reader.add_argument("--list", action="store_true", help="list the claims")
    reader.add_argument("--compare", action="store_true", help="run nothing")
    reader.add_argument("--data-root", help="where data sets are [default: $FLBENCH_DATA]")
    asked = reader.parse_args(words)
    try:
        every = json.loads((folder / CLAIMS).read_text(encoding="utf-8"))["claims"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"reproduce.py: {folder / CLAIMS}: expected the claims of an artifact: {error}")
    claims = chosen(every, asked.claim, asked.seed)
    if asked.list:
        for claim in claims:
            print(f"{claim['key']}  {claim['seconds'] / 60:.1f} minutes  {claim['why']}")
        return 0
    code = 0
    if not asked.compare:
        try:
            code = play_all(folder, claims, asked.data_root)
        except KeyboardInterrupt:
            print("reproduce.py: interrupted: type the same again to go on", file=sys.stderr)
            return 130
    write_rerun(folder, every)
    rows = [row for claim in claims for row in compared(folder, claim)]
    for row in rows:
        seeds = f" (seeds {', '.join(map(str, row.seeds))})" if row.seeds else ""
        numbers = f"expected {row.cells[4]}, again {row.cells[5]}"
        whole = f"; whole result: {row.whole}" if row.whole else ""
        print(f"{row.claim} {row.column}: {row.verdict}: {numbers}{seeds}{whole}")
    counts = {
        said: sum(row.verdict == said for row in rows) for said in ("equal", "agrees", "differs")
    }
    counts["not run"] = len(rows) - sum(counts.values())
    asked_not = sum(len(claim["columns"]) for claim in every) - len(rows)
    counts |= {"not asked for": asked_not} if asked_not else {}
    print(", ".join(f"{count} {one}" for one, count in counts.items()))
    print("tables and figures: rerun/table.md, rerun/figures; expected: expected/table.md")
    return int(counts["differs"] > 0) or code


def play_all(folder: Path, claims: Sequence[ListedClaim], data_root: str | None) -> int:
    """Run what is missing of some claims. Gives the largest exit code."""
    wanted = [
        (claim["key"], run)
        for claim in claims
        for run in claim["runs"]
        if run["result"] and not (folder / run["writes"]).is_file()
    ]
    codes = [0]
    for at, (key, run) in enumerate(wanted, start=1):
        print(f"[{at}/{len(wanted)}] {key}, seed {run['seed']}: {run['command']}", flush=True)
        codes.append(play(folder, run, key, data_root))
    return max(map(abs, codes))


if __name__ == "__main__":
    try:
        sys.exit(main(Path(__file__).resolve().parent))
    except FlbenchError as error:
        sys.exit(f"reproduce.py: {error}")
