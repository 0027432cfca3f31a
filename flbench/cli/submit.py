"""`flbench submit`: check result files as the repository does, and copy them into place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.submission.admission import File

DEFAULT_FOLDER = Path("leaderboard/results")


def submit(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULT|FOLDER", help="result files, or folders of them")
    ],
    into: Annotated[
        Path, typer.Option("--results", help="the leaderboard's folder of result files")
    ] = DEFAULT_FOLDER,
    check: Annotated[bool, typer.Option("--check", help="only report what is wrong")] = False,
    new_table: Annotated[
        bool, typer.Option("--new-table", help="settings that no table has are meant")
    ] = False,
) -> None:
    """Check result files as the repository does, copy them into place, and print what to commit.

    Exit code 1 if one of them is refused; then nothing is copied.
    """
    from flbench.results.files import result_files, write_atomically
    from flbench.submission.admission import gathered, outlook, problems, read

    paths = result_files(results)
    if not check and not into.is_dir():
        raise UserError(
            f"--results: expected the leaderboard's folder of result files, there is no '{into}':"
            " type this in a clone of flbench, or add --check"
        )
    folder = gathered(into, paths, new_table)
    found = {path: problems(path, folder) for path in paths}
    for path, lines in found.items():
        for line in lines:
            print(printable(f"{path}: {line}"))
    wrong = sum(map(bool, found.values()))
    if wrong:
        kept = "" if check else "; nothing was copied"
        raise UserError(f"{wrong} of {len(paths)} files cannot be taken{kept}")
    files = [file for file in (read(path, into) for path in paths) if not file.place.exists()]
    if check:
        print(f"{len(paths)} files are in order, {len(files)} of them new")
        for line in outlook(paths, folder):
            print(printable(f"  {line}"))
        return
    for file in files:
        write_atomically(file.place, file.path.read_bytes())
    print("\n".join(_next(files, into)))


def _next(files: Sequence[File], into: Path) -> Iterator[str]:
    """The next commands for the user."""
    if not files:
        yield "all of them are there already; nothing was copied"
        return
    yield f"{len(files)} files are in place; now type:"
    is_default = into == DEFAULT_FOLDER
    words = [] if is_default else ["--results", str(into), "--out", str(into.parent)]
    suites = sorted({f"--suite={file.result.suite['name']}" for file in files})
    yield f"    {shlex.join(['flbench', 'leaderboard', *suites, *words])}"
    yield f"    {shlex.join(['git', 'add', str(into.parent)])}"
    rows = {(f.result.method.name, f.result.suite["name"], f.result.dataset) for f in files}
    names = ", ".join(f"{method} on {suite} ({data})" for method, suite, data in sorted(rows))
    yield f"    {shlex.join(['git', 'commit', '-m', f'Add results: {names}'])}"


def printable(line: str) -> str:
    """A line without control characters for the terminal."""
    return line if line.isprintable() else ascii(line)[1:-1]
