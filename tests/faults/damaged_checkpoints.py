"""Damage checkpoints of methods with different state, resume, and judge what comes of it.

All runs are of the toy federation, in this process. The undisturbed run of each method leaves a
checkpoint after every round; a fault damages that of round 2, with that of round 1 whole, absent or
damaged as the generation before.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import traceback
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from damage import DAMAGED, DAMAGES
from every import TRIALS, Film, run_of
from fault_record import Fault
from toy import Played, player, toy_dataset

from flbench.errors import FlbenchError
from flbench.run.checkpoint_file import previous
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare

LIA = {"warmup": 2, "probe_epochs": 2}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "scaffold": ("scaffold", {}),
    "pfedlia": ("pfedlia", LIA),
    "pfedlia-peer": ("pfedlia", {**LIA, "mode": "peer"}),
    "dc-pfl": ("dc-pfl", TRIALS),
    "ifca": ("ifca", {}),
    "fedproto": ("fedproto", {}),
    "fesem": ("fesem", {"k": 2}),
    "cfl": ("cfl", {"eps1": 9, "eps2": 0, "start_round": 1}),
    "clusterfl": ("clusterfl", {}),
    "flis-dc": ("flis-dc", {}),
    "fedrep": ("fedrep", {}),
    "fedavgm": ("oracle+fedavgm", {}),
    "fedfomo": ("fedfomo", {}),
}
"""Name -> plugins and parameters; their states have different tables and memories."""
ROUNDS, CUT = 4, 2
BEFORE = ("whole", "absent", "damaged")
SWAPS = {
    "of another method": r"a checkpoint of another method: expected \S+, found ",
    "of another seed": r"a checkpoint of another seed: expected 0, found 1",
    "of another suite": r"a checkpoint of another suite",
    "of other data": r"a checkpoint of another data",
    "of other code": r"what computes has changed since: ",
}
"""A whole checkpoint of something else in its place, and what the refusal says."""


class Undisturbed(NamedTuple):
    """A finished run and the checkpoints of its rounds."""

    played: Played
    film: Film

    @property
    def result(self) -> dict[str, Any]:
        """What the result holds, but for times and the environment."""
        return self.played.stable


@cache
def undisturbed(name: str, seed: int = 0, rounds: int = ROUNDS, data: int = 0) -> Undisturbed:
    """A run of a method, its checkpoints kept."""
    method, settings = METHODS[name]
    folder = Path(tempfile.mkdtemp(prefix="flbench-faults-"))
    film = Film(folder)
    played = run_of(
        player(folder), method, settings=settings, rounds=rounds, seed=seed,
        sinks=(("film", film),), dataset=toy_dataset(data),
    )  # fmt: skip
    return Undisturbed(played, film)


def names(each: int) -> list[str]:
    """The faults: every method, every kind, `each` times; what was before changes with them."""
    found = [
        f"{method}/{kind}/{BEFORE[number % 3]}/{number}"
        for method, kind, number in product(METHODS, DAMAGES, range(each))
    ]
    return found + [f"{method}/{swap}/whole/0" for method, swap in product(METHODS, SWAPS)]


def inject(name: str) -> Fault:
    """Damage a checkpoint, resume, and compare with the undisturbed run."""
    method, kind, before, _ = name.split("/")
    rng = Random(crc32(name.encode()))
    whole = undisturbed(method)
    with tempfile.TemporaryDirectory(prefix="flbench-faults-") as out:
        job = replace(whole.played.job, out=Path(out), resume=True, sinks=())
        said: list[str] = []
        job = replace(job, say=said.append)
        newest = job.checkpoint
        newest.parent.mkdir(parents=True)
        shutil.copy(whole.film.checkpoint(CUT), newest)
        shutil.copy(whole.film.checkpoint(CUT - 1), previous(newest))
        if kind in SWAPS:
            expected = re.compile(SWAPS[kind])
            job = _swapped(kind, method, job, newest)
        else:
            damage, expected = DAMAGES[kind]
            damage(newest, rng)
            if before == "absent":
                previous(newest).unlink()
            elif before == "damaged":
                DAMAGES["bit anywhere"][0](previous(newest), rng)
        unharmed = newest.read_bytes() == whole.film.checkpoint(CUT).read_bytes()
        return _judged(name, whole, job, said, expected, unharmed=unharmed, before=before)


def _swapped(kind: str, method: str, job: Any, newest: Path) -> Any:
    """Put a checkpoint of another run in its place, or change the code of the job."""
    if kind == "of other code":
        plugins = [
            one.model_copy(update={"source": "0" * 12}) for one in job.method.described.plugins
        ]
        described = job.method.described.model_copy(update={"plugins": plugins})
        return replace(job, method=replace(job.method, described=described))
    other = {
        "of another method": ("scaffold" if method == "fedavg" else "fedavg", 0, ROUNDS, 0),
        "of another seed": (method, 1, ROUNDS, 0),
        "of another suite": (method, 0, ROUNDS + 1, 0),
        "of other data": (method, 0, ROUNDS, 5),
    }[kind]
    shutil.copy(undisturbed(*other).film.checkpoint(CUT), newest)
    return job


def _judged(
    name: str,
    whole: Undisturbed,
    job: Any,
    said: list[str],
    expected: re.Pattern[str],
    *,
    unharmed: bool,
    before: str,
) -> Fault:
    """Resume, and say what came of it."""
    kind = name.split("/")[1]
    try:
        run, state = prepare(job, toy_dataset())
        start = state.round
        end = Played(run, run_rounds(run, state), job)
        result = end.stable
    except FlbenchError as error:
        line = str(error)
        wrong = "" if expected.search(line) and "\n" not in line else "cause not named"
        if before == "whole" and expected is DAMAGED:
            wrong = "the generation before was not used"
        return Fault(name, kind, "refused", wrong, message=line)
    except Exception:
        return Fault(name, kind, "traceback", "traceback", message=traceback.format_exc()[-300:])
    lost = different_bytes(result, whole.result)
    outcome, wrong = "previous used", "a wrong result" if lost else ""
    if unharmed:
        outcome = "nothing changed"
    elif start != CUT - 1:
        wrong = wrong or "went on with a damaged checkpoint"
    elif not any(expected.search(line) for line in said):
        wrong = wrong or "nothing was said"
    return Fault(name, kind, outcome, wrong, lost, CUT - start, "; ".join(said))


def different_bytes(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Bytes of the keys of two results that differ."""
    return sum(len(str(other.get(key))) for key in {*one, *other} if one.get(key) != other.get(key))
