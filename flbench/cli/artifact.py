"""`flbench artifact`: one folder with all that a reviewer needs to run a table again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import (
    COMMITTED,
    MOST_SEEDS,
    Results,
    SettingsOption,
    read_settings,
    refuse_no_folder,
)
from flbench.core.setting_text import written
from flbench.errors import UserError
from flbench.sweeps.request import RunRequest
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.artifact.selection import AskedArtifact


def artifact(
    study: Annotated[str, typer.Argument(help="a paper or a study: its name, or its TOML file")],
    table: Annotated[
        list[str] | None, typer.Option(help="of a paper: a table; repeatable [default: all]")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="of a paper: small, large or paper [default: small]")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="this data set alone")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_SEEDS, help="seeds 0..N-1 [default: what there is]"),
    ] = None,
    settings: SettingsOption = None,
    results: Results = COMMITTED,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="log of replays [default: audits.jsonl beside --results]"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="the artifact's folder")] = Path("artifact"),
    author: Annotated[
        list[str] | None, typer.Option(help='"Family, Given", or a group; repeatable')
    ] = None,
    title: Annotated[str, typer.Option(help="of the artifact [default: what it is of]")] = "",
) -> None:
    """Write a folder for artifact evaluation: claims, results, environment, script, metadata.

    Nothing is run: the numbers are those of result files. Typed again, it writes the same folder
    again, and keeps what was edited for the DOI and what was run in it.
    """
    from flbench.artifact.selection import AskedArtifact, selected
    from flbench.results.audits import LOG
    from flbench.terminal.console import SweepProgress

    refuse_no_folder(results)
    path = log or results.parent / LOG
    if log is not None and not log.is_file():
        raise UserError(f"--log: expected a log of replays, there is no file '{log}'")
    request = RunRequest(settings=read_settings(settings), dataset=dataset, out=results)
    asked = AskedArtifact(study, tuple(table or ()), scale, seeds, request)
    progress = SweepProgress()
    with progress.importing():
        from flbench.artifact.folder import WrittenFrom, write
    work = selected(asked, progress)
    authors = tuple(author or ())
    typed = _typed(asked, authors, title)
    lines = write(out, work, WrittenFrom(results, lines_by_digest(path), authors, title, typed))
    with_results = sum(bool(claim.results) for claim in work.claims)
    tell(*lines, f"{len(work.claims)} claims, {with_results} of them with results")
    tell(f"wrote {out}: read {out / 'README.md'}")


def lines_by_digest(log: Path) -> dict[str, bytes]:
    """The lines of a log of replays, by the content that they are about."""
    from flbench.results.audits import read_audits

    found = dict[str, bytes]()
    if log.is_file():
        lines = log.read_bytes().split(b"\n")
        for audit, line in zip(read_audits(log), lines, strict=False):
            found[audit.digest] = found.get(audit.digest, b"") + line + b"\n"
    return found


def _typed(asked: AskedArtifact, authors: Sequence[str], title: str) -> str:
    """The command without the folders of one machine."""
    name = Path(asked.study).name if asked.study.endswith(".toml") else asked.study
    pairs: list[tuple[str, object]] = [("table", one) for one in asked.tables]
    pairs += [("scale", asked.scale), ("dataset", asked.request.dataset), ("seeds", asked.seeds)]
    pairs += [("set", f"{key}={written(value)}") for key, value in asked.request.settings.items()]
    pairs += [*(("author", one) for one in authors), ("title", title)]
    words = [word for option, value in pairs if value for word in (f"--{option}", str(value))]
    return shlex.join(["flbench", "artifact", name, *words])
