"""`flbench submit`: check result files as the repository does, and copy them into place."""

from __future__ import annotations

import io
import shlex
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.options import COMMITTED, board_command
from flbench.errors import UserError
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.submission.admission import SubmittedFile


def submit(
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RESULT|FOLDER", help="result files, or folders of them"),
    ] = None,
    into: Annotated[
        Path, typer.Option("--results", help="the leaderboard's folder of result files")
    ] = COMMITTED,
    check: Annotated[bool, typer.Option("--check", help="only report what is wrong")] = False,
    new_table: Annotated[
        bool, typer.Option("--new-table", help="settings that no table has are meant")
    ] = False,
    diff: Annotated[
        str | None,
        typer.Option(
            metavar="BASE",
            help="only print, as Markdown, what changes on the leaderboard since a revision of git,"
            " such as HEAD, or against a folder of result files",
        ),
    ] = None,
) -> None:
    """Check result files as the repository does, copy them into place, and print what to commit.

    Exit code 1 if one of them is refused; then nothing is copied.
    """
    from flbench.results.files import result_files, write_atomically
    from flbench.submission.admission import gathered, outlook, problems, read

    if diff is not None:
        if results or check or new_table:
            raise UserError("--diff only prints: leave out result files, --check and --new-table")
        tell(*_changes(diff, into))
        return
    if not results:
        raise UserError("expected result files, or folders of them; or --diff BASE")
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
            tell(f"{path}: {line}")
    wrong = sum(map(bool, found.values()))
    if wrong:
        kept = "" if check else "; nothing was copied"
        raise UserError(f"{wrong} of {len(paths)} files cannot be taken{kept}")
    files = [file for file in (read(path, into) for path in paths) if not file.place.exists()]
    if check:
        tell(f"{len(paths)} files are in order, {len(files)} of them new")
        for line in outlook(paths, folder):
            tell(f"  {line}")
        return
    for file in files:
        write_atomically(file.place, file.path.read_bytes())
    tell(*_next(files, into))


def _changes(base: str, results: Path) -> list[str]:
    """What changes on the leaderboard from a revision, or another folder, to these results."""
    from flbench.leaderboard.changes import changes
    from flbench.leaderboard.headings import with_headings
    from flbench.leaderboard.table import tables
    from flbench.results.audits import LOG, added_lines
    from flbench.results.files import real_path

    def log_of(folder: Path) -> bytes:
        log = folder.parent / LOG
        return log.read_bytes() if log.is_file() else b""

    def both(before: Path, log: bytes) -> list[str]:
        said = added_lines(log, log_of(results))
        now = with_headings(tables(results))
        lines = [*changes(with_headings(tables(before)), now), *(["", said] if said else [])]
        return [*lines, *_imitating(before, results)]

    if Path(base).is_dir():
        return both(Path(base), log_of(Path(base)))
    try:
        inside = real_path(results).relative_to(real_path(Path.cwd()))
    except ValueError:
        raise UserError(
            f"--diff {base}: expected results below this folder, got '{results}': type the command"
            " in the folder of the repository"
        ) from None
    with TemporaryDirectory() as folder:
        words = ["git", "archive", "--format=tar", f"{base}^{{tree}}", "--", str(inside)]
        try:
            done = subprocess.run(words, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", b"").decode(errors="replace").strip() or str(error)
            raise UserError(
                f"--diff {base}: expected a folder, or a revision of git that has '{results}':"
                f" {said.splitlines()[0]}"
            ) from None
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            plain = [one for one in archive if one.isfile() or one.isdir()]  # no links
            # Python before 3.11.4 knows no filters
            safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(folder, plain, **safe)
        words = ["git", "show", f"{base}:./{inside.parent / LOG}"]
        shown = subprocess.run(words, capture_output=True, check=False)  # it need not be there
        return both(Path(folder) / inside, b"" if shown.returncode else shown.stdout)


def _imitating(before: Path, results: Path) -> Iterator[str]:
    """What files that are new in a folder, or changed, say of names and code that is not so here.

    Whoever copies a file into place by hand has not asked `flbench submit` for it.
    """
    from flbench.leaderboard.markdown import escaped
    from flbench.results.files import files_below, read_result
    from flbench.submission.identity import imitations, unreadable

    for path in files_below(results, "seed-*.json"):
        name = path.relative_to(results)
        old = before / name
        if not old.is_file() or old.read_bytes() != path.read_bytes():
            result = read_result(path)
            for line in (*unreadable(result), *imitations(result)):
                yield ""
                yield f"**{escaped(f'{name.as_posix()}: {line}')}**"


def _next(files: Sequence[SubmittedFile], into: Path) -> Iterator[str]:
    """The next commands for the user."""
    if not files:
        yield "all of them are there already; nothing was copied"
        return
    yield f"{len(files)} files are in place; now type:"
    suites = [file.result.suite["name"] for file in files]
    yield f"    {board_command(suites, into, into.parent)}"
    elsewhere = () if into == COMMITTED else ("--results", str(into))
    yield f"    {shlex.join(['flbench', 'submit', '--diff', 'HEAD', *elsewhere])}"
    yield f"    {shlex.join(['git', 'add', str(into.parent)])}"
    rows = {(f.result.method.name, f.result.suite["name"], f.result.dataset) for f in files}
    names = ", ".join(f"{method} on {suite} ({data})" for method, suite, data in sorted(rows))
    yield f"    {shlex.join(['git', 'commit', '-m', f'Add results: {names}'])}"
