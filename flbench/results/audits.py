"""The log of audits: a line of JSON for each time that a result file was run again.

Lines are only appended. A line that a killed process left without its end counts as not written.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from flbench.errors import UserError, naming
from flbench.results.difference import TOLERANCE
from flbench.results.schema import (
    LONGEST,
    Line,
    Name,
    Number,
    Result,
    Text,
    first_problem,
    problem_text,
)

LOG = "audits.jsonl"
"""Name of the leaderboard's log, beside the folder of its results."""
Agreement = Literal["same bytes", "agrees", "differs"]
SAME: Agreement = "same bytes"
AGREES: Agreement = "agrees"
DIFFERS: Agreement = "differs"


def _day(text: str) -> str:
    """A day of the calendar, as it is; a ValueError if there is no such day, or not yet."""
    if date.fromisoformat(text) > datetime.now(UTC).date() + timedelta(days=1):
        raise ValueError("a day of the past expected: is a clock wrong?")
    return text


class Audit(BaseModel):
    """What came of running a result file again.

    Attributes:
        file: the result file.
        run: the run, `<config>-<seed>`, as in exported tables.
        digest: of the file's content, see `content_digest`.
        outcome: all bytes are the same; all parts are within the tolerance; or not.
        how: the parts that differ, or why nothing was played; "" where it agrees.
        rounds: how many were played, from the first on.
        whole: whether these are all of the run.
        tolerance: allowed distance of numbers.
        seconds: wall time.
        date: of the machine, year-month-day in UTC.
        flbench: its version, as `torch`.
        processor: as in a result's environment; None = not known, or nothing was played.
        executor: the one that was asked for in place of the file's; None = the file's.
        trained_epochs: the metric of that name, which older files lack; None = not known.
        sources: plugin, or `network NAME` -> hash of the source that ran; "" where it has none.
        core: digest of the core that ran it, as in a result's environment; None in older lines.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)
    file: Name
    run: Name
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    outcome: Agreement
    how: Text = ""
    rounds: Annotated[int, Field(ge=0)]
    whole: bool
    tolerance: Number
    seconds: Number
    date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$"), AfterValidator(_day)]
    flbench: Line
    torch: Line
    processor: Line | None = None
    executor: Line | None = None
    trained_epochs: Number | None = None
    sources: dict[Name, Line]
    core: Line | None = None

    @model_validator(mode="after")
    def _fits(self) -> Audit:
        """Refuse an agreement of nothing: no round was played, or something differs."""
        if self.agrees and (self.how or not self.rounds):
            what = self.how or "no round was played"
            raise ValueError(f"outcome '{self.outcome}', but {what}: '{DIFFERS}' expected")
        return self

    @property
    def agrees(self) -> bool:
        """Whether it came out as the file says."""
        return self.outcome != DIFFERS

    @property
    def is_strict(self) -> bool:
        """Whether it differed, or agreed within the tolerance that the leaderboard asks for."""
        return not self.agrees or self.tolerance <= TOLERANCE

    def settles(self, rounds: int | None) -> bool:
        """Whether it says what a run of so many rounds is worth: all agreed, or it differed."""
        return not self.agrees or (self.is_strict and self.whole and self.rounds == rounds)


def content_digest(result: Result) -> str:
    """SHA-256 in hex of the text of a result that was read, but for its status and saved files.

    The status changes when a file is called reproduced, and what a run saves beside it changes no
    number; what was audited stays the same.
    """
    aside = {"status": "self-reported", "saved": None}
    text = result.model_copy(update=aside).canonical(as_read=True)
    return hashlib.sha256(text.encode()).hexdigest()


def name_of(path: Path) -> str:
    r"""The name of a file in a log: one printable line, the end of it where it is long.

    Example:
        >>> name_of(Path("a/b")), name_of(Path("a\nb")), len(name_of(Path("x" * 999)))
        ('a/b', 'a\\nb', 200)
    """
    name = path.as_posix()
    text = name if name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= LONGEST else f"...{text[3 - LONGEST :]}"


def run_key(result: Result) -> str:
    """The name of a run: fingerprint of suite, method and parameters, and seed."""
    return f"{result.fingerprint.config}-{result.seed}"


def read_audits(path: Path) -> list[Audit]:
    """The audits of a log, the oldest first; none if there is no such file.

    Raises:
        UserError: a line is no audit.
        MachineError: it cannot be read.
    """
    with naming(path):
        if not path.exists():
            return []
        *lines, last = path.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate([*lines, *_whole(last, path)], start=1):
        try:
            table = json.loads(line)
            found.append(Audit.model_validate(table))
        except ValidationError as error:
            what = problem_text(*first_problem(error, table))
            raise UserError(f"{path}, line {number}: no audit: {what}") from None
        except ValueError as error:
            raise UserError(f"{path}, line {number}: no audit: {error}") from None
    return found


def _whole(last: bytes, path: Path) -> list[bytes]:
    """The text after the last end of a line, if it is a whole line; none where it was cut off.

    Raises:
        UserError: it is no line of a log, nor the beginning of one.
    """
    if not last:
        return []
    if not last.startswith(b"{"):
        raise UserError(f"{path}: expected a log of audits, got other text: choose another file")
    try:
        json.loads(last)
    except ValueError:
        return []
    return [last]


def append_audit(path: Path, audit: Audit) -> None:
    """Append a line; it is on the disk when this returns.

    What a killed process wrote of its line is cut off first. `read_audits` tells whether the file
    is a log.

    Raises:
        UserError: its last line is none of a log.
        MachineError: it cannot be written.
    """
    text = json.dumps(audit.model_dump(), sort_keys=True, separators=(", ", ": "))
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            there = file.read()
            last = there[there.rfind(b"\n") + 1 :]
            if _whole(last, path):
                file.write(b"\n")
            else:
                file.truncate(len(there) - len(last))
            file.write(f"{text}\n".encode())
            file.flush()
            os.fsync(file.fileno())


def added_lines(before: bytes, after: bytes) -> str:
    """What became of a log, in a sentence of Markdown; "" = nothing."""
    if not after.startswith(before):
        return "**Lines of the log of audits were changed or removed: it may only be appended to.**"
    number = after[len(before) :].count(b"\n")
    return f"Lines that are new in the log of audits: {number}." if number else ""


def rounds_of(results: Iterable[Result]) -> dict[str, int]:
    """The rounds of runs, by the key of each."""
    return {run_key(one): int(one.suite["rounds"]) for one in results}


def latest(audits: Iterable[Audit], rounds: Mapping[str, int]) -> dict[tuple[str, str], Audit]:
    """The last audit of each run and digest that played all of it, or differed.

    Args:
        audits: of any runs, the oldest first.
        rounds: of the runs that are asked for, see `rounds_of`.
    """
    return {(one.run, one.digest): one for one in audits if one.settles(rounds.get(one.run))}


def elsewhere(audit: Audit, result: Result) -> bool:
    """Whether an audit ran on another processor than the one that computed the result."""
    there, here = audit.processor, result.environment.get("processor")
    return None not in (there, here) and there != here


def latest_part(audits: Iterable[Audit]) -> dict[tuple[str, str], Audit]:
    """The last audit of each run and digest that played its first rounds only, and agreed."""
    parts = (one for one in audits if one.agrees and one.is_strict and not one.whole)
    return {(one.run, one.digest): one for one in parts}


@dataclass(frozen=True)
class KnownAudits:
    """What the audits of a log say of results.

    Attributes:
        whole: see `latest`.
        parts: see `latest_part`.
        runs: keys of all runs that were audited.
    """

    whole: Mapping[tuple[str, str], Audit]
    parts: Mapping[tuple[str, str], Audit]
    runs: Collection[str]

    @classmethod
    def of(cls, audits: Sequence[Audit], results: Iterable[Result]) -> KnownAudits:
        """Those of some results."""
        whole, parts = latest(audits, rounds_of(results)), latest_part(audits)
        return cls(whole, parts, {one.run for one in audits})

    def about(self, result: Result) -> tuple[Audit | None, Audit | None]:
        """The last audit of all rounds of a result, or that differed; that of its first ones."""
        if run_key(result) not in self.runs:
            return None, None
        key = run_key(result), content_digest(result)
        return self.whole.get(key), self.parts.get(key)
