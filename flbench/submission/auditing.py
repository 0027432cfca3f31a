"""A result file that is run again, what came of it, and the draw of those to be run next."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import flbench
from flbench.errors import Diverged, FlbenchError, UnknownName, UserError, text_of
from flbench.leaderboard.audited import counted, installed_source, is_current, network_sources
from flbench.metrics import EPOCHS
from flbench.results.audits import (
    AGREES,
    DIFFERS,
    SAME,
    Agreement,
    Audit,
    content_digest,
    run_key,
)
from flbench.results.files import read_result
from flbench.results.kept_files import said_of_saved
from flbench.results.schema import Result
from flbench.run.core_digest import core, same
from flbench.submission.comparison import Part, compare
from flbench.submission.consistency import sound
from flbench.submission.trust import refuse_outside
from flbench.submission.verification import (
    NotTheSameRun,
    first_rounds,
    lacks_device,
    refuse_unpublished,
    replay,
    rounds_to_play,
)

if TYPE_CHECKING:
    from flbench.terminal.console import Console


@dataclass(frozen=True)
class FileVerdict:
    """What came of a result file.

    Attributes:
        claimed: the result in the file.
        rounds: how many were played, all if one diverged.
        came: the result of playing it again; None = nothing was played.
        parts: their comparison.
        refusal: why nothing was played, or how it ended; "" where it was compared.
        seconds: wall time, also of rounds that were played before it was stopped.
    """

    path: Path
    claimed: Result
    rounds: int
    came: Result | None
    parts: Sequence[Part]
    refusal: str
    seconds: float

    def outcome(self, tolerance: float) -> Agreement:
        """Whether it agrees."""
        if self.refusal or not all(part.agrees(tolerance) for part in self.parts):
            return DIFFERS
        return SAME if all(part.same for part in self.parts) else AGREES

    def how(self, tolerance: float) -> str:
        """How it differs, in one line; "" where it agrees."""
        wrong = [part.line(tolerance) for part in self.parts if not part.agrees(tolerance)]
        return self.refusal or "; ".join(wrong)


def verify_file(
    path: Path,
    result: Result,
    rounds: int | None,
    data_root: Path,
    say: Callable[[str], None],
    sink: object,
    *,
    executor: str | None = None,
    refuse: bool = False,
    opened: Sequence[str] = (),
) -> FileVerdict:
    """Run a result file again and compare.

    What shows that the code is another than that of the file is a verdict, not an error: another
    beginning, other parameters, or a run that diverges; with `refuse` it is an error too. Clients
    are trained by `executor`; None = as the file says. The file may open what is `opened` beside
    the data sets (`trust.refuse_outside`). For the rest see `replay`.

    Raises:
        UserError: it contradicts itself or a file saved beside it, or would open something else; or
            it cannot be run here, as its data or plugins are not there.
    """
    refuse_unpublished(result)
    sound(path, result)
    if text := said_of_saved(path, result):
        say(f"{path}: {text}")
    refuse_outside(result, opened)
    wanted = rounds_to_play(result, rounds)
    began = time.monotonic()
    came, parts, refusal, ended, earlier = None, list[Part](), "", False, 0.0
    try:
        came, earlier = replay(result, wanted, data_root, say, sink, executor=executor)
        parts = compare(result, came, wanted)
    except (NotTheSameRun, Diverged) as error:
        if refuse:
            raise
        refusal, ended = text_of(error), isinstance(error, Diverged)
    played = wanted if came or ended else 0
    seconds = time.monotonic() - began + earlier
    return FileVerdict(path, result, played, came, parts, refusal, seconds)


def audit_of(verdict: FileVerdict, task: AuditTask) -> Audit:
    """The line of a log that says what came of a file."""
    claimed, came = verdict.claimed, verdict.came
    here = came.environment if came else {}
    whole = verdict.rounds == claimed.suite["rounds"]
    return Audit(
        file=task.name,
        run=run_key(claimed),
        digest=content_digest(claimed),
        outcome=verdict.outcome(task.tolerance),
        how=verdict.how(task.tolerance),
        rounds=verdict.rounds,
        whole=whole,
        tolerance=task.tolerance,
        seconds=round(verdict.seconds, 1),
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        flbench=flbench.__version__,
        torch=here.get("torch", ""),
        processor=here.get("processor"),
        executor=task.executor,
        trained_epochs=came.summary.get(EPOCHS) if came and whole else None,
        sources={
            one.name: one.source if came else installed_source(one.name)
            for one in (came or claimed).plugins
        }
        | network_sources(claimed.suite),
        core=core(),
    )


def known(
    audits: Iterable[Audit],
    result: Result,
    rounds: int,
    tolerance: float,
    executor: str | None = None,
) -> Audit | None:
    """The last audit that answers the same question: this content, as many rounds, this code.

    The code is that of the core and of the plugins.

    What agrees by one executor is not asked of another one. Where nothing was played, another data
    folder may give another answer.
    """
    digest = content_digest(result)
    answers = [
        one
        for one in audits
        if one.digest == digest
        and same(one.core or "", core())
        and one.tolerance == tolerance
        and one.rounds == rounds
        and (one.agrees or one.executor == executor)
        and is_current(one.sources)
    ]
    return answers[-1] if answers else None


@dataclass(frozen=True)
class Checked:
    """A file of many: what came of it, now or earlier; or why it could not be run.

    Attributes:
        outcome: None = it could not be run here.
        how: how it differs, or why it could not be run.
        seconds: of the run; None = it was not run now.
        digest: of the content that was played; "" where it could not be run.
        first: how many rounds were played, if not all; 0 = all, or none.
    """

    path: Path
    outcome: Agreement | None
    how: str
    seconds: float | None
    digest: str = ""
    first: int = 0

    @classmethod
    def of(cls, path: Path, audit: Audit, seconds: float | None) -> Checked:
        """What an audit says of a file."""
        first = 0 if audit.whole else audit.rounds
        return cls(path, audit.outcome, audit.how, seconds, audit.digest, first)


@dataclass(frozen=True)
class AuditTask:
    """A file that is to be run again: its path, its name in the log, how many rounds, and how.

    Attributes:
        executor: in place of the file's; None = the file's.
        limits: variables by which libraries are limited, in a process that begins with them.
        opened: what a person lets the file open, see `trust.refuse_outside`.
    """

    path: Path
    name: str
    rounds: int
    tolerance: float
    data_root: Path
    executor: str | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    opened: Sequence[str] = ()


AuditAnswer = Audit | Checked
"""The line for the log, or why a file could not be run."""


def play(task: AuditTask, console: Console) -> AuditAnswer:
    """Run a file again."""
    try:
        result = read_result(task.path)
        verdict = verify_file(
            task.path,
            result,
            task.rounds,
            task.data_root,
            console.say,
            console,
            executor=task.executor,
            opened=task.opened,
        )
    except FlbenchError as error:
        return Checked(task.path, None, text_of(error), None)
    finally:
        console.close()
    return audit_of(verdict, task)


def at_hand(found: Sequence[tuple[Path, Result]], data_root: Path) -> list[tuple[Path, Result]]:
    """The results whose data set is installed and has files here, and whose kind of device is.

    A data set that is a path, or of a hub, is not here: a file may name any.
    """
    from flbench.federation.loading import opens_argument

    names = [result.suite["dataset"] for _, result in found]
    here = {one for one in {*names} if has_data(one, data_root) and not opens_argument(one)}
    return [
        one
        for one, name in zip(found, names, strict=True)
        if name in here and not lacks_device(one[1])
    ]


def has_data(dataset: str, data_root: Path) -> bool:
    """Whether a data set is installed, and its files are not known to be missing.

    Args:
        dataset: as in a suite; for `rotated:mnist` both parts must be there.
    """
    from flbench.datasets.status import surveyed
    from flbench.federation.loading import chain

    states = ("absent", "broken")
    try:
        return all(surveyed(name, data_root).state not in states for name in chain(dataset))
    except UnknownName:
        return False


def expected_seconds(result: Result, rounds: int | None) -> float:
    """Seconds that the first rounds of a result took, by its file (`first_rounds`)."""
    share = first_rounds(result, rounds) / int(result.suite["rounds"])
    return result.seconds.get("total", 0.0) * share


Lot = tuple[tuple[int, int, str], float, Path]
"""A file that can be drawn: its place in the draw, its seconds, its path."""


def draw(
    found: Sequence[tuple[Path, Result]],
    audits: Sequence[Audit],
    count: int,
    seed: int,
    most_seconds: float | None = None,
    rounds: int | None = None,
    methods: int | None = None,
) -> list[Path]:
    """Files for an audit: the least audited files of the least audited rows, at random.

    A row is a folder: the seeds of one method with one setting. A file that is called reproduced
    counts as one audit of its row. The order of the draw is that of a hash of seed and content, so
    the same command gives the same files, and an audit that was stopped goes on with those that it
    had left.

    Args:
        found: result files, with their content.
        audits: what was audited; those by other code than the installed, or that agree in fewer
            rounds, do not count.
        count: how many files; fewer if there are not so many.
        seed: of the lot.
        most_seconds: leave out what takes longer, by the seconds in the files.
        rounds: how many are to be played of each (`first_rounds`).
        methods: take each file of another row, and first one of each of so many methods.

    Raises:
        UserError: there is none, or not of so many methods.
    """
    enough = math.inf if rounds is None else rounds
    times = Counter(
        one.digest for one in counted(audits) if one.whole or one.rounds >= enough or not one.agrees
    )
    digests = {path: content_digest(result) for path, result in found}
    rows: Counter[Path] = Counter()
    for path, result in found:
        rows[path.parent] += times[digests[path]] + (result.status == "reproduced")
    lots: list[Lot] = []
    for path, result in found:
        seconds = expected_seconds(result, rounds)
        if most_seconds is None or seconds <= most_seconds:
            digest = digests[path]
            lot = hashlib.sha256(f"{seed}:{digest}".encode()).hexdigest()
            lots.append(((rows[path.parent], times[digest], lot), seconds, path))
    if not lots:
        limit = "" if most_seconds is None else f" of at most {most_seconds:g} seconds"
        raise UserError(f"no result files{limit} to draw from, {len(found)} in all")
    lots.sort()
    if methods is not None:
        lots = spread(lots, {path: result.method.name for path, result in found}, methods)
    drawn = lots[:count]
    return [path for *_, path in sorted(drawn, key=lambda one: (one[1], one[0]))]


def spread(lots: Sequence[Lot], method_of: Mapping[Path, str], methods: int) -> list[Lot]:
    """Lots of distinct rows, in their order: first one of each of so many methods, then the others.

    Raises:
        UserError: there are fewer methods.
    """
    rows: dict[Path, Lot] = {}
    for lot in lots:
        rows.setdefault(lot[-1].parent, lot)
    first: dict[str, Lot] = {}
    for lot in rows.values():
        first.setdefault(method_of[lot[-1]], lot)
    if len(first) < methods:
        raise UserError(
            f"--methods {methods}: there are files of {len(first)} methods to draw from"
        )
    chosen = list(first.values())[:methods]
    return [*chosen, *(lot for lot in rows.values() if lot not in chosen)]
