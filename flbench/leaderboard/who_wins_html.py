"""Who wins, as HTML that needs no script: the heat map, what it says, and what methods cost.

Every text of a result file is escaped. Colours are classes, as the page allows no other styles.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise

from flbench.leaderboard.cost_figures import cost_figures
from flbench.leaderboard.sentences import sentences
from flbench.leaderboard.who_wins import (
    MEANING,
    NOTE,
    Improvability,
    Standing,
    WhoWins,
    ratio,
    score_of,
)
from flbench.results.files import slug

SHADES = (5, 10, 20, 30, 40, 55, 70)
"""Ends of the shades of the map, in per cent; below the first is the deepest."""
ITALICS = (
    "Rows in italics are not ranked: they are there to read against, and below 0 where they are"
    " better than every ranked method."
)


def kind_id(kind: str) -> str:
    """The id of the part of the page that has the tables of a kind."""
    return f"kind-{slug(kind)}"


def who_wins_html(wins: WhoWins) -> str:
    """The map, its legend and the two figures."""
    shades = "".join(
        f'<span class="h{at}">{text}</span>' for at, text in enumerate(_shades_in_words())
    )
    return "\n".join(
        [
            f'<p>{escape(MEANING)}</p><p class="legend dim">Per cent: {shades}</p>',
            '<div class="beside">',
            _map(wins),
            '<div class="figures">',
            *cost_figures(wins),
            "</div></div>",
            "<ul>",
            *(f"<li>{escape(one.text)}</li>" for one in sentences(wins)),
            "</ul>",
            f'<p class="dim">{escape(f"{score_of(wins)} {ITALICS}")} {escape(NOTE)}</p>',
        ]
    )


def _shades_in_words() -> list[str]:
    ends = [f"{low} to {high}" for low, high in pairwise(SHADES)]
    return [f"below {SHADES[0]}", *ends, f"{SHADES[-1]} and more"]


def shade(value: float) -> int:
    """The shade of a number: 0 is the deepest, for the best.

    Example:
        >>> shade(-3), shade(5), shade(99)
        (0, 1, 7)
    """
    return sum(value >= end for end in SHADES)


def _map(wins: WhoWins) -> str:
    heads = [
        ("method", "name", "", ""),
        ("score", "", "", f"{sum(len(wins.kinds[kind].compared) for kind in wins.scored)} tables"),
        *((kind, "", f"#{kind_id(kind)}", _compared(wins, kind)) for kind in wins.kinds),
        ("bytes", "", "", ""),
        ("work", "", "", ""),
    ]
    head = "".join(
        f'<th scope="col" aria-sort="none" class="{style}">'
        f'<button type="button">{escape(text)}</button>{_below(where, note)}</th>'
        for text, style, where, note in heads
    )
    body = "\n".join(_line(one, wins) for one in wins.lines)
    return (
        '<div class="wide tall" role="region" tabindex="0" aria-label="methods over kinds of'
        ' federation"><table id="wins" class="map"><caption>Methods over kinds of federation, the'
        f" best score first; a kind leads to its tables</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _compared(wins: WhoWins, kind: str) -> str:
    one = wins.kinds[kind]
    return f"{len(one.compared)} of {len(one.tables)} tables"


def _below(where: str, note: str) -> str:
    if not note:
        return ""
    return f'<br><a href="{where}">{note}</a>' if where else f"<br><small>{note}</small>"


def _line(one: Standing, wins: WhoWins) -> str:
    kind = (
        ' data-kind="reference"' if one.reference else ' data-kind="anchor"' if one.anchor else ""
    )
    title = f' title="{escape(one.reference)}"' if one.reference else ""
    cells = [_cell(one.score), *(_cell(one.cells.get(kind)) for kind in wins.kinds)]
    estimated = "" if one.counted else "~"
    return (
        f'<tr{kind}><th scope="row" class="name"{title}>{escape(one.name)}</th>{"".join(cells)}'
        f"<td>{ratio(one.bytes)}</td><td>{estimated if one.work is not None else ''}"
        f"{ratio(one.work)}</td></tr>"
    )


def _cell(number: Improvability | None) -> str:
    if number is None:
        return "<td>-</td>"
    part = "" if number.whole else "*"
    title = "" if number.whole else f' title="over {number.tables} of {number.of} tables"'
    ends = f"<small>{number.ends[0]:.1f} to {number.ends[1]:.1f}</small>" if number.ends else ""
    return f'<td class="h{shade(number.value)}"{title}>{number.value + 0.0:.1f}{part}{ends}</td>'
