"""What a change of result files does to the leaderboard: which rows, by how much, which ranks.

Names come from the files, which anybody may have written; they are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flbench.leaderboard.markdown import ends_text, escaped, grid, titled
from flbench.leaderboard.pages import page_of
from flbench.leaderboard.statistics import DIGITS, share_letter
from flbench.leaderboard.table import Table, TableRow

NOTHING = "No row of the leaderboard changes. (Is it committed already? --diff HEAD~1)"
MOST = 10
"""Names that are listed; of more, their number is said."""


def changes(before: Sequence[Table], after: Sequence[Table]) -> list[str]:
    """Lines of Markdown: a section for every table that has other rows than before.

    Example:
        >>> changes([], [])
        ['No row of the leaderboard changes. (Is it committed already? --diff HEAD~1)']
    """
    sides = [{(one.suite, one.dataset, one.fingerprint): one for one in s} for s in (before, after)]
    lines: list[str] = []
    pages: dict[str, None] = {}
    for key in sorted({*sides[0], *sides[1]}):
        old, new = (side.get(key) for side in sides)
        if section := _section(old, new):
            table = new or old
            assert table is not None, "the key is of one of them"
            lines += ["", f"### {escaped(table.heading) or titled(table.title)}", "", *section]
            pages[page_of(key[0])] = None
    if not lines:
        return [NOTHING]
    return [f"Pages of the leaderboard that change: {', '.join(map(escaped, pages))}.", *lines]


def _section(old: Table | None, new: Table | None) -> list[str]:
    """Rows that are new, changed or gone; then the other rows whose rank changes."""
    was, now = ({row.config: row for row in side.rows} if side else {} for side in (old, new))
    touched = [
        config
        for config in [*now, *(config for config in was if config not in now)]
        if config not in was or config not in now or was[config].results != now[config].results
    ]
    if not touched:
        return []
    task = next(iter((now or was).values())).task
    better = "" if task.higher_is_better else f" of {task.heading}, below 0 is better"
    headings = (
        ("row", True),
        ("before", False),
        ("now", False),
        (f"change{better}", False),
        (f"place by {task.heading}", False),
        ("rank", False),
        ("cannot be told apart from", True),
    )
    rows = [_line(was.get(config), now.get(config), new) for config in touched]
    moved = [
        f"{escaped(row.name)} ({_rank(was[config])} to {_rank(row)})"
        for config, row in now.items()
        if config not in touched and was[config].rank != row.rank
    ]

    return [*grid(headings, rows), "", f"Other ranks that change: {_listed(moved)}."]


def _line(was: TableRow | None, now: TableRow | None, table: Table | None) -> list[str]:
    """A row before and after."""
    row = now or was
    assert row is not None, "it is in one of them"
    alike: list[str] = []
    place = ""
    if now is not None and table is not None:
        of_kind = table.tuned if now.tuning else table.main
        place = _place(now, of_kind)
        alike = [
            escaped(one.name)
            for one in of_kind
            if one.config != now.config
            and one.search == now.search
            and share_letter(one.ties, now.ties)
        ]
    return [
        escaped(row.name),
        _headline(was),
        _headline(now),
        f"{now.mean - was.mean:+.4f}" if was and now else "",
        place,
        _rank(now),
        _listed(alike),
    ]


def _place(row: TableRow, of_kind: Sequence[TableRow]) -> str:
    """Its place by the mean headline among rows of its kind that are no reference."""
    if row.reference or row.outdated:
        return ""
    peers = [one for one in of_kind if one.search == row.search and not one.reference]
    gains = [round(row.task.gain(one.mean, row.mean), DIGITS) for one in peers]
    return f"{1 + sum(gain > 0 for gain in gains)} of {len(peers)}"


def _headline(row: TableRow | None) -> str:
    """Mean headline, its interval, and the number of seeds."""
    if row is None:
        return ""
    seeds = f"{len(row.seeds)} seed{'s' if len(row.seeds) > 1 else ''}"
    return f"{row.mean:.4f} ({ends_text(row.interval, len(row.seeds))}), {seeds}"


def _rank(row: TableRow | None) -> str:
    """Its rank; or why it has none."""
    if row is None:
        return "gone"
    return "outdated" if row.outdated else "none" if row.rank is None else str(row.rank)


def _listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return (", ".join(found[:MOST]) + more) or "none"
