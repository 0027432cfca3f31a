"""`flbench verify`: run result files again and compare."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import COMMITTED, Executors, Root, Workers, board_command, read_workers
from flbench.cli.show import digest_line
from flbench.errors import FlbenchError, Interrupted, UserError
from flbench.results.difference import TOLERANCE
from flbench.submission.verification import computed_otherwise, rounds_to_play
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.results.audits import Audit
    from flbench.results.schema import Result
    from flbench.submission.auditing import Checked, FileVerdict

OtherExecutor = Annotated[
    Executors | None,
    typer.Option(help="how clients train", show_default="as each file says"),
]
Opened = Annotated[
    list[str] | None,
    typer.Option(
        "--open",
        metavar="NAME",
        help="let a file name this path or data set of yours, such as npz:mine.npz; repeatable",
    ),
]
PLACE = re.compile(r"[0-9a-f]{8}/seed-\d+\.json")
"""The last folder and the name of a file that lies where a run wrote it."""
Tolerance = Annotated[
    float, typer.Option(min=0, max=1, help="how far numbers may be apart on another machine")
]


def verify(
    files: Annotated[
        list[Path], typer.Argument(metavar="RESULT|FOLDER", help="result files, or folders of them")
    ],
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="play only so many of its rounds, with --sample at least until one is evaluated"
            " [default: all]",
        ),
    ] = None,
    data_root: Root = None,
    tolerance: Tolerance = TOLERANCE,
    write: Annotated[
        bool, typer.Option("--write", help="call a file reproduced, if all of it agrees")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="append what comes of each file to this log, too [default: none; with --sample"
            " audits.jsonl beside FOLDER]",
        ),
    ] = None,
    executor: OtherExecutor = None,
    workers: Workers = "auto",
    opened: Opened = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="run N files of FOLDER, drawn at random of those verified least",
        ),
    ] = None,
    methods: Annotated[
        int | None,
        typer.Option(min=1, help="of --sample: at least so many methods, and each of another row"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="of --sample [default: 0]")] = None,
    most_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="of --sample: only what takes no longer, by the files"),
    ] = None,
) -> None:
    """Run result files again, from nothing but the files, and say whether they agree.

    Exit code 1 where one does not. Several files: what differs stops no other, and an interrupted
    or killed command goes on when it is typed again.
    """
    from flbench.results.files import read_result, some_result_files

    if write and tolerance > TOLERANCE:
        raise UserError(
            f"--write calls a file reproduced, which takes a tolerance of {TOLERANCE:g} or less,"
            f" got {tolerance:g}: drop one of the two"
        )
    many = partial(
        verify_all,
        data_root=data_root,
        tolerance=tolerance,
        write=write,
        executor=executor,
        workers=workers,
        opened=opened or (),
    )
    if sample is not None:
        from flbench.submission.auditing import draw
        from flbench.submission.verification import first_rounds

        if methods is not None and methods > sample:
            raise UserError(f"--methods {methods}: expected at most --sample, {sample}")
        folder, log = _folder_and_log(files, log)
        lot = partial(draw, count=sample, seed=seed or 0, methods=methods)
        lot = partial(lot, most_seconds=most_seconds, rounds=rounds)
        paths = _drawn(folder, log, lot, rounds, data_root)
        _refuse_part(paths, rounds, write)
        many(paths, [log], folder, partial(first_rounds, most=rounds), again=True)
        return
    for name, value in (("methods", methods), ("seed", seed), ("most-seconds", most_seconds)):
        if value is not None:
            raise UserError(f"--{name}: expected --sample N with it, which draws the files")
    paths = some_result_files(files)
    _refuse_part(paths, rounds, write)
    if len(paths) > 1 or log is not None:
        wanted = partial(rounds_to_play, wanted=rounds)
        many(paths, [] if log is None else [log], None, wanted)
        return
    (path,) = paths
    result = read_result(path)
    if write and result.source_changes:
        raise UserError(f"{path}: the code changed within the run: it can never be reproduced")
    verdict = _alone(path, result, rounds, data_root, executor, opened or ())
    for line in lines_of(verdict, tolerance):
        tell(line)
    if other := _other_place(path, result):
        tell(other)
    if verdict.outcome(tolerance) == "differs":
        raise typer.Exit(1)
    if write:
        if read_result(path) != result:
            raise UserError(f"{path}: it was changed while it was played: it stays as it is")
        tell(f"{_reproduced(path, result)}; now type: {_next([(path, result)])}")


def _refuse_part(paths: Iterable[Path], rounds: int | None, write: bool) -> None:
    """Refuse to call files reproduced of which a part is played.

    Raises:
        UserError: one has other rounds than are asked for.
    """
    from flbench.results.files import read_result

    part = (rounds != read_result(path).suite["rounds"] for path in paths)
    if write and rounds is not None and any(part):
        raise UserError(
            "--write calls a file reproduced, which takes all its rounds: drop --rounds"
        )


def _folder_and_log(files: Sequence[Path], log: Path | None) -> tuple[Path, Path]:
    """The folder that files are drawn from, and the log of what came of them.

    Raises:
        UserError: what was given is not one folder.
    """
    from flbench.results.audits import LOG

    if len(files) != 1:
        raise UserError(f"--sample: expected one folder of result files, got {len(files)} paths")
    if not files[0].is_dir():
        raise UserError(
            f"--sample: expected a folder of result files, there is no folder '{files[0]}': a clone"
            f" of the repository has {COMMITTED}"
        )
    return files[0], log or files[0].parent / LOG


def _drawn(
    folder: Path,
    log: Path,
    lot: Callable[[Sequence[tuple[Path, Result]], Sequence[Audit]], list[Path]],
    rounds: int | None,
    data_root: Path | None,
) -> list[Path]:
    """The files of a folder that a lot takes, by what the log says; tells how many they are."""
    from flbench.datasets import data_root as locate
    from flbench.results.audits import read_audits
    from flbench.results.files import read_results
    from flbench.submission.auditing import at_hand, expected_seconds

    found = list(read_results(folder))
    here, audits = at_hand(found, locate(data_root)), read_audits(log)
    lack = len(found) - len(here)
    if lack and not here:
        raise UserError(
            f"{folder}: its {lack} result files all lack their data or device here: give the folder"
            " of the data with --data-root"
        )
    paths = lot(here, audits)
    expected = sum(expected_seconds(result, rounds) for path, result in found if path in paths)
    others = f"; {lack} lack their data or device here" if lack else ""
    tell(f"{len(paths)} of {len(here)} result files{others}; they took {expected:.0f} s")
    return paths


def _alone(
    path: Path,
    result: Result,
    rounds: int | None,
    data_root: Path | None,
    executor: str | None,
    opened: Sequence[str],
) -> FileVerdict:
    """Run one file again; what forbids that is an error.

    Raises:
        UserError: nothing was played, with the reason.
        Diverged: the run does.
        Interrupted: a person stops it.
    """
    from flbench.engine.machine.instructions import limit, limited
    from flbench.submission.verification import engine_of, limits_of, rounds_to_play
    from flbench.terminal.console import Console

    rounds_to_play(result, rounds)
    limits = limits_of(result, engine_of(result))
    if not limited(limits):
        limit(limits)
        os.execv(sys.executable, sys.orig_argv)  # libraries see the variables when they are loaded
    console = Console()
    with console.importing():
        from flbench.datasets import data_root as locate
        from flbench.submission.auditing import verify_file
        from flbench.submission.trust import will_run
    console.say(will_run([result]))
    if not result.is_digested:
        console.say(f"{path}: {digest_line(result)}")
    try:
        root = locate(data_root)
        return verify_file(
            path,
            result,
            rounds,
            root,
            console.say,
            console,
            executor=executor,
            refuse=True,
            opened=opened,
        )
    except KeyboardInterrupt:
        raise Interrupted("interrupted: type the same again to go on") from None
    finally:
        console.close()


def lines_of(verdict: FileVerdict, tolerance: float) -> list[str]:
    """The comparison of a file in full."""
    result = verdict.claimed
    assert verdict.came is not None
    outcome, rounds = verdict.outcome(tolerance), result.suite["rounds"]
    is_part = verdict.rounds != rounds
    part = f" in its first {verdict.rounds} of {rounds} rounds" if is_part else ""
    bytes_ = ", to the last byte" if outcome == "same bytes" else ""
    left = "; the end of the run was not judged" if is_part else ""
    return [
        f"{verdict.path}: {verdict.rounds} of {rounds} rounds played again",
        f"  {_environments(result, verdict.came)}",
        *(f"  {part.line(tolerance)}" for part in verdict.parts),
        "it differs" if outcome == "differs" else f"it agrees{part}{bytes_}{left}",
    ]


def verify_all(
    paths: Sequence[Path],
    logs: Sequence[Path],
    root: Path | None,
    rounds: Callable[[Result], int],
    data_root: Path | None,
    tolerance: float,
    write: bool,
    *,
    again: bool = False,
    executor: str | None = None,
    workers: str = "auto",
    opened: Sequence[str] = (),
) -> None:
    """Run several files again, a line for each, and sum up; exit code 1 if not all agree.

    What the log in this user's cache answers is not run again; no other log is believed, as
    anybody may have written it.

    Args:
        logs: where lines are appended beside that log.
        root: files are named below this folder in the logs; None = as they are given.
        rounds: how many of a result's rounds to play.
        again: run all of them; that log is left alone.
        executor: by which clients are trained, in place of the files'.
        workers: how many at once, as `--workers` takes it.
        opened: what a person lets the files open.
    """
    from flbench.results.files import refuse_unwritable
    from flbench.sweeps.workers import prepare_workers
    from flbench.terminal.console import Console

    number = read_workers(workers)
    for log in logs:
        refuse_unwritable(log)
    if len(paths) > 1:
        prepare_workers(number)
    console = Console()
    with console.importing():
        from flbench.datasets import data_root as locate
        from flbench.submission.many_files import verify_many
        from flbench.submission.trust import will_run
    console.say(will_run(_readable(paths)))
    audits, own = ([], []) if again else _known(console.say)
    logs = [*own, *logs]
    where = logs[-1] if logs else "no log"
    done: list[Checked] = []
    written: list[tuple[Path, Result]] = []
    try:
        running = verify_many(
            paths,
            audits,
            logs,
            root,
            rounds=rounds,
            tolerance=tolerance,
            data_root=locate(data_root),
            console=console,
            workers=number,
            executor=executor,
            opened=opened,
        )
        with closing(running):
            for one in running:
                done.append(one)
                tell(f"[{len(done)}/{len(paths)}] {_line(one)}")
                if write and one.outcome in ("same bytes", "agrees"):
                    written += _called_reproduced(one.path, one.digest)
    except KeyboardInterrupt:
        ended = {one.path for one in done}
        tell(*summary(done, [path for path in paths if path not in ended]))
        raise Interrupted(
            f"interrupted; what was played is in {where}: type the same again to go on"
        ) from None
    tell(*summary(done, []), f"log: {where}")
    if written:
        called = "1 file is" if len(written) == 1 else f"{len(written)} files are"
        tell(f"{called} called reproduced; now type: {_next(written)}")
    if wrong := sum(one.outcome in (None, "differs") for one in done):
        raise UserError(f"{wrong} of {len(done)} files did not come out the same")


def _readable(paths: Iterable[Path]) -> Iterator[Result]:
    """The results that can be read; why others cannot is said where they are run."""
    from flbench.results.files import read_result

    for path in paths:
        with suppress(UserError):
            yield read_result(path)


def _known(say: Callable[[str], None]) -> tuple[list[Audit], list[Path]]:
    """What the log in the user's cache says, and that log, if it can be written."""
    from flbench.results.files import refuse_unwritable
    from flbench.submission.replay_folder import own_audits, own_log

    try:
        refuse_unwritable(own_log())
    except UserError as error:  # also where nobody knows the user's folder
        say(f"were it stopped, it would begin anew: {error}")
        return [], []
    return own_audits(), [own_log()]


def _line(one: Checked) -> str:
    """What came of a file."""
    what = {
        None: "cannot be run",
        "same bytes": "agrees, to the last byte",
        "agrees": "agrees",
        "differs": "differs",
    }[one.outcome]
    if one.first and one.outcome != "differs":
        what = what.replace("agrees", f"agrees in its first {one.first} rounds", 1)
    when = f" ({one.seconds:.1f} s)" if one.seconds is not None else ""
    earlier = " (known from the log)" if one.outcome and one.seconds is None else ""
    other = "" if one.outcome is None else _other_place(one.path)
    how = "; ".join(filter(None, (one.how, other)))
    return f"{one.path}: {what}{when}{earlier}{f': {how}' if how else ''}"


def _other_place(path: Path, result: Result | None = None) -> str:
    """That a file with the name and folders of one run holds another one; "" = it does not."""
    from flbench.results.files import misplaced, read_result

    if not PLACE.fullmatch("/".join(path.absolute().parts[-2:])):
        return ""  # such as a file that came by mail
    try:
        held = misplaced(path.absolute(), result or read_result(path))
    except FlbenchError:
        return ""  # it was removed while others were played
    return f"it holds another run than its place says: {held}" if held else ""


def summary(done: Sequence[Checked], left: Sequence[Path]) -> list[str]:
    """How many agree, differ, could not be run and are left; and which did not agree."""
    agree = [one for one in done if one.outcome in ("same bytes", "agrees")]
    bytes_ = sum(one.outcome == "same bytes" for one in agree)
    part = sum(one.first > 0 for one in agree)
    in_part = f", {part} of them in their first rounds only" if part else ""
    wrong = [one for one in done if one.outcome == "differs"]
    failed = [one for one in done if one.outcome is None]
    lines = [
        f"{len(agree)} agree, {bytes_} of them to the last byte{in_part}; {len(wrong)} differ;"
        f" {len(failed)} cannot be run; {len(left)} are left"
    ]
    for what, found in (("differs", wrong), ("cannot be run", failed)):
        lines += [f"  {what}: {one.path}" for one in found]
    return [*lines, *(f"  left: {path}" for path in left)]


def _called_reproduced(path: Path, digest: str) -> list[tuple[Path, Result]]:
    """Call a file that agrees reproduced, if it is not yet and can be; both, if it was done.

    Also what the log says of it: a command may have been killed before it wrote the file.

    Args:
        digest: of the content that was played.
    """
    from flbench.results.audits import content_digest
    from flbench.results.files import read_result

    result = read_result(path)
    if content_digest(result) != digest:
        tell(f"  {path}: it was changed while it was played: it stays as it is")
    elif result.source_changes:
        tell(f"  {path}: the code changed within the run: it stays as it is")
    elif result.status != "reproduced":
        tell(f"  {_reproduced(path, result)}")
        return [(path, result)]
    return []


def _reproduced(path: Path, result: Result) -> str:
    """Call a file reproduced; says so."""
    from flbench.results.files import write_atomically

    done = result.model_copy(update={"status": "reproduced"})
    write_atomically(path, done.canonical(as_read=True).encode())
    return f"{path} is called reproduced"


def _next(written: Iterable[tuple[Path, Result]]) -> str:
    """The commands that show it, one for each folder of results."""
    suites: dict[Path, list[str]] = {}
    for path, result in written:
        is_placed = path.parts[-5:-4] == (result.suite["name"],)
        folder = path.parents[4] if is_placed else COMMITTED
        suites.setdefault(folder, []).append(result.suite["name"])
    return " && ".join(
        board_command(names, folder, _board_of(folder)) for folder, names in suites.items()
    )


def _board_of(results: Path) -> Path:
    """The folder of the pages of some results: of those in `flbench-results` one beside it."""
    return results.parent if results.name == COMMITTED.name else results.with_name("board")


def _environments(one: Result, other: Result) -> str:
    """Where the two were not computed alike, and what the first does not say of that."""
    unlike = "; ".join(computed_otherwise(one, other))
    return f"environment: {unlike or 'the same, so the same bytes are expected'}"
