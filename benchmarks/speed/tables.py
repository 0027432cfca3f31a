"""The tables of leaderboard/speed/README.md: a pure function of the files of the parts."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flbench.errors import UserError

PARTS = (
    "startup", "workers", "w0", "lanes", "seeds", "w1", "w2", "w3", "personal", "w4", "everybody",
    "w5", "w6", "w7", "w8", "w9", "text", "options", "accuracy",
)  # fmt: skip
PAGE = Path("leaderboard/speed/README.md")
BEGIN, END = "<!-- flbench speed --table: begin -->", "<!-- flbench speed --table: end -->"
NO_TABLES = "Nothing was measured yet: `flbench speed` does it.\n"


def is_complete(file: Path, quick: bool, peers: bool) -> bool:
    """Whether a part is measured, and as much of it as is asked for.

    The file of a `--quick` run counts for a `--quick` run only, and one of `--no-peers` likewise.
    One that could not be measured has rows of notes alone.
    """
    if not file.is_file():
        return False
    content = read_part(file)
    if all(row.keys() == {"note"} for row in content["rows"]):
        return False
    return (quick or not content["quick"]) and (not peers or content.get("peers", True))


def read_part(file: Path) -> dict[str, Any]:
    """Read the file of a part.

    Raises:
        UserError: the file cannot be read, is not JSON, or gives no table.
    """
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        section(content)
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read: {error}; --force measures again") from None
    except (AttributeError, LookupError, TypeError):
        raise UserError(
            f"{file}: expected a file that `flbench speed` wrote; --force measures again"
        ) from None
    return content


def page_with_tables(page: Path, folder: Path) -> str:
    """The text of the page with its generated section made from the files of a folder.

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
    """All measured parts as Markdown."""
    files = [folder / f"{part}.json" for part in PARTS]
    return "\n".join(section(read_part(file)) for file in files if file.is_file()) or NO_TABLES


def section(part: Mapping[str, Any]) -> str:
    """One part as Markdown: title, command, goal, table and machine."""
    machine = part["machine"]
    measured_on = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GiB,"
        f" device {machine['device']}, Python {machine['python']}, torch {machine['torch']},"
        f" load {machine['load']} before; {part['date']} UTC"
    )
    trial = " This was a trial (`--quick`): its numbers say little." if part["quick"] else ""
    goal = f"`flbench speed {part['part']}`; goal: {part['goal']}.{trial}"
    about = f"{_wrapped(part['about'])}\n\n" if part.get("about") else ""
    return (
        f"### {part['title']}\n\n{_wrapped(goal)}\n\n{about}"
        f"{markdown_table(part['rows'])}\n{_wrapped(measured_on)}.\n"
    )


def _wrapped(text: str) -> str:
    """Prose in lines of at most 119 characters."""
    return textwrap.fill(text, 119, break_long_words=False, break_on_hyphens=False)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table.

    The range `x_low` to `x_high` is written behind `x`. Columns without a value are left out.

    Example:
        >>> print(markdown_table([{"x": 1.5, "x_low": 1.25, "x_high": 2.0, "y": None}]), end="")
        | x |
        |---:|
        | 1.5 (1.25–2) |
    """
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if value != ""))
    names = [name for name in names if name.removesuffix("_low").removesuffix("_high") == name]
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    names.sort(key=lambda name: name == "note")  # the note comes last
    text_columns = {name for name in names if any(isinstance(row.get(name), str) for row in rows)}
    alignment = "|".join("---" if name in text_columns else "---:" for name in names)
    lines = [[cell(row, name) for name in names] for row in rows]
    head = " | ".join(name.replace("_", " ") for name in names)
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"| {head} |\n|{alignment}|\n{body}"


def cell(row: Mapping[str, Any], name: str) -> str:
    """A value and its range, with three significant digits."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if low is None or high is None:
        return _short(row.get(name))
    return f"{_short(row.get(name))} ({_short(low)}–{_short(high)})"


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "-" if value is None else str(value).replace("|", "\\|")
