"""`flbench verify`: run a result file's run again and compare."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import Root
from flbench.errors import BadParameter, UserError
from flbench.submission.verification import COMPUTED_BY, TOLERANCE, replay

if TYPE_CHECKING:
    from flbench.results.schema import Result


def verify(
    file: Annotated[Path, typer.Argument(help="a result file")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="play only so many of its rounds [default: all]")
    ] = None,
    data_root: Root = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="how far numbers may be apart on another machine")
    ] = TOLERANCE,
    write: Annotated[
        bool, typer.Option("--write", help="call the file reproduced, if all of it agrees")
    ] = False,
) -> None:
    """Play a result file's run again, from nothing but the file, and say whether it agrees.

    Exit code 1 where it does not.
    """
    from flbench.results.files import read_result, write_atomically
    from flbench.terminal.console import Console

    result = read_result(file)
    wanted = _rounds(result, rounds)
    whole = wanted == result.suite["rounds"]
    if write and not whole:
        raise UserError(
            "--write calls a file reproduced, which takes all its rounds: drop --rounds"
        )
    console = Console()
    with console.waiting("importing torch and lightning"):
        from flbench.datasets import data_root as locate
        from flbench.submission.comparison import compare
        from flbench.submission.consistency import sound

    sound(file, result)
    try:
        came = replay(result, wanted, locate(data_root), console)
    finally:
        console.close()
    parts = compare(result, came, wanted)
    agreed = all(part.agrees(tolerance) for part in parts)
    print(f"{file}: {wanted} of {result.suite['rounds']} rounds played again")
    for line in (_environments(result, came), *(part.line(tolerance) for part in parts)):
        print(f"  {line}")
    if not agreed:
        print("it differs")
        raise typer.Exit(1)
    print("it agrees" if any(not part.same for part in parts) else "it agrees, to the last byte")
    if write:
        done = result.model_copy(update={"status": "reproduced"})
        write_atomically(file, done.canonical(as_read=True).encode())
        words = shlex.join(["flbench", "leaderboard", f"--suite={result.suite['name']}"])
        print(f"{file} is called reproduced; now type: {words}")


def _rounds(result: Result, wanted: int | None) -> int:
    """How many rounds to play; refused where there are not so many, or none of them is judged."""
    rounds, every = int(result.suite["rounds"]), int(result.suite.get("eval_every", 1))
    first = min(every, rounds)
    if wanted is not None and not first <= wanted <= rounds:
        raise BadParameter(f"--rounds: expected {first} to {rounds}, got {wanted}")
    return wanted or rounds


def _environments(one: Result, other: Result) -> str:
    """Where the two were not computed alike."""
    pairs = [(key, one.environment.get(key), other.environment.get(key)) for key in COMPUTED_BY]
    unlike = [
        f"{key} {stated}, here {here}" for key, stated, here in pairs if stated and stated != here
    ]
    return f"environment: {'; '.join(unlike) or 'the same, so the same bytes are expected'}"
