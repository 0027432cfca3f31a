"""Where the rounds of a replay are kept, so that one which was stopped goes on.

They are in the cache of the user, never beside the results: files that come with somebody's results
could otherwise say how a replay ends.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from flbench.errors import Diverged, InProgress, UserError
from flbench.results.audits import Audit, content_digest, read_audits
from flbench.results.files import user_path
from flbench.results.schema import Result
from flbench.run.core_digest import UNKNOWN
from flbench.run.run_folder import held
from flbench.run.setup import code_of, environment_of
from flbench.run.spec import RunSpec

LONGEST = 30 * 86_400
"""Seconds for which the rounds of a replay that was stopped are kept."""


def cache() -> Path:
    """The folder of all replays.

    A relative `XDG_CACHE_HOME` does not count: it may lead beside somebody's files.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    return user_path(root if os.path.isabs(root) else "~/.cache") / "flbench" / "verify"


def own_log() -> Path:
    """The log of what this user's commands played; the only one that is believed."""
    return cache().parent / "verified.jsonl"


def own_audits() -> list[Audit]:
    """What that log says; nothing where another user wrote it."""
    path = own_log()
    return read_audits(path) if path.is_file() and path.stat().st_uid == os.getuid() else []


def folder_of(spec: RunSpec, result: Result, rounds: int) -> Path:
    """The folder of one replay.

    Another content, engine, code, version of a library or number of rounds has another one.

    Args:
        spec: how the run is played again.
        rounds: how many of them.
    """
    computes = sorted(code_of(spec).items()), sorted(environment_of(spec).items())
    told = content_digest(result), rounds, spec.engine, *computes
    return cache() / hashlib.sha256(repr(told).encode()).hexdigest()[:16]


@contextmanager
def rounds_kept(spec: RunSpec, result: Result, rounds: int) -> Iterator[RunSpec]:
    """The run of a replay, in a folder that keeps its rounds until it has ended.

    Where nothing can be written, or another process plays the same, nothing is kept.

    Args:
        spec, rounds: see `folder_of`.
    """
    with ExitStack() as stack:
        try:
            folder = folder_of(spec, result, rounds)
            kept = replace(spec, out=folder, resume=environment_of(spec)["core"] != UNKNOWN)
            stack.enter_context(held(kept.path))
        except UserError as error:
            is_played = isinstance(error, InProgress)
            why = "another process plays the same" if is_played else str(error).partition(";")[0]
            spec.say(f"{spec.title}: were it stopped, it would begin anew: {why}")
            made = tempfile.TemporaryDirectory(prefix="flbench-verify-")
            yield replace(spec, out=Path(stack.enter_context(made)))
            return
        _forget_old(folder)
        try:
            yield kept
        except Diverged:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _forget_old(folder: Path) -> None:
    """Remove the replays that nobody went on with for a long time, but this one."""
    with suppress(OSError):
        os.utime(folder)
        for other in list(cache().iterdir()):
            if time.time() - other.stat().st_mtime > LONGEST:
                shutil.rmtree(other, ignore_errors=True)
