"""`flbench speed`: run the speed benchmarks, and write their tables into the documentation.

Every part is measured by a process of its own (`python -m` the package of the benchmarks) that
leaves one JSON file; tables are a pure function of these files. Imports no torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flbench.errors import Interrupted, UnknownName, UserError

PACKAGE = "flbench_benchmarks.speed"
PARTS = ("startup", "w1", "w2", "w3", "w4", "w5", "w6", "options", "accuracy")
PAGE = Path("docs/performance.md")
BEGIN, END = "<!-- flbench speed --table: begin -->", "<!-- flbench speed --table: end -->"
NOTHING = "Nothing was measured yet: `flbench speed` does it.\n"


def speed(
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help=f"of {', '.join(PARTS)}")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder whose speed/ the files are in")] = Path(
        "leaderboard"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="a trial: less of everything")] = False,
    peers: Annotated[
        bool, typer.Option("--peers/--no-peers", help="measure other frameworks as well")
    ] = True,
    env_root: Annotated[
        Path, typer.Option(help="where the environments of other frameworks are made")
    ] = Path("~/.cache/flbench/speed"),
    force: Annotated[bool, typer.Option("--force", help="measure again what is there")] = False,
    table: Annotated[
        bool, typer.Option("--table", help=f"measure nothing; write the tables into {PAGE}")
    ] = False,
) -> None:
    """Measure how fast flbench is; parts whose files are complete are not measured again."""
    chosen, folder = parts or list(PARTS), out / "speed"
    for part in chosen:
        if part not in PARTS:
            raise UnknownName("part", part, PARTS, listed="there are")
    if table:
        from flbench.results.files import write_atomically

        write_atomically(PAGE, written(PAGE, folder).encode())
        print(f"wrote {PAGE}")
        return
    for part in chosen:
        file = folder / f"{part}.json"
        if force or not complete(file, quick):
            print(f"measuring {part}", file=sys.stderr)
            more = (["--quick"] if quick else []) + ([] if peers else ["--no-peers"])
            root = ["--env-root", str(env_root.expanduser().absolute())]
            measure([part, str(folder), *root, *more])
        print(section(read(file)))


def measure(arguments: Sequence[str]) -> None:
    """Let a process measure a part.

    Raises:
        UserError: it could not.
        Interrupted: the person stopped it.
    """
    try:
        done = subprocess.run([sys.executable, "-m", PACKAGE, *arguments])
    except KeyboardInterrupt:
        raise Interrupted("interrupted; finished parts are kept, type the same to go on") from None
    if done.returncode:
        raise UserError(f"part '{arguments[0]}' failed; what it said is above")


def complete(file: Path, quick: bool) -> bool:
    """Whether a part was measured; a trial does for a trial only."""
    return file.is_file() and (quick or not read(file)["quick"])


def read(file: Path) -> dict[str, Any]:
    """A part's file.

    Raises:
        UserError: it is none.
    """
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read: {error}; --force measures again") from None
    return found


def written(page: Path, folder: Path) -> str:
    """The page with its generated section as the files give it.

    Raises:
        UserError: the page has no such section.
    """
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{page}: expected the lines '{BEGIN}' and '{END}', to write between them")
    return f"{before}{begin}\n{tables(folder)}{end}{after}"


def tables(folder: Path) -> str:
    """All parts that were measured, as Markdown."""
    files = [folder / f"{part}.json" for part in PARTS]
    return "\n".join(section(read(file)) for file in files if file.is_file()) or NOTHING


def section(part: Mapping[str, Any]) -> str:
    """One part as Markdown: what was measured, on what, the goal, and a table."""
    on = part["machine"]
    where = (
        f"{on['cpu']}, {on['cores']} cores, {on['memory_gb']} GiB, device {on['device']},"
        f" Python {on['python']}, torch {on['torch']}, load {on['load']} before; {part['date']} UTC"
    )
    trial = " This was a trial (`--quick`): its numbers say little." if part["quick"] else ""
    return (
        f"### {part['title']}\n\n`flbench speed {part['part']}`; goal: {part['goal']}.{trial}\n\n"
        f"{markdown(part['rows'])}\n{where}.\n"
    )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table; `x_low` and `x_high` stand behind `x`, columns without a value are left out.

    Example:
        >>> print(markdown([{"x": 1.5, "x_low": 1.25, "x_high": 2.0, "y": None}]), end="")
        | x |
        |---:|
        | 1.5 (1.25–2) |
    """
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value != ""))
    names = [name for name in names if name.removesuffix("_low").removesuffix("_high") == name]
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    names.sort(key=lambda name: name == "note")  # the longest last
    words = {name for name in names if any(isinstance(row.get(name), str) for row in rows)}
    sides = "|".join("---" if name in words else "---:" for name in names)
    lines = [[cell(row, name) for name in names] for row in rows]
    head = " | ".join(name.replace("_", " ") for name in names)
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"| {head} |\n|{sides}|\n{body}"


def cell(row: Mapping[str, Any], name: str) -> str:
    """A value and its range, with three digits that count."""

    def short(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return "-" if value is None else str(value).replace("|", "\\|")

    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    spread = "" if low is None or high is None else f" ({short(low)}–{short(high)})"
    return short(row.get(name)) + spread
