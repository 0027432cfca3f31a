"""Who wins, as HTML that needs no script: the heat map, and score against bytes and work.

Every text of a result file is escaped. Colours are classes, as the page allows no other styles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import floor, log10

from flbench.leaderboard.sentences import sentences
from flbench.leaderboard.who_wins import MEANING, NOTE, Number, Standing, WhoWins, listed, ratio
from flbench.results.files import slug

SHADES = (5, 10, 20, 30, 40, 55, 70)
"""Ends of the shades of the map, in per cent; below the first is the deepest."""
WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 42
LINE = 11
"""Height of a line of text. All lengths of figures are in their own units."""
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
            _map(wins),
            f'<p class="dim">{escape(f"Score: the mean over {listed(wins.scored)}. {ITALICS}")}'
            f" {escape(NOTE)}</p>",
            "<ul>",
            *(f"<li>{escape(one.text)}</li>" for one in sentences(wins)),
            "</ul>",
            '<div class="figures">',
            *_figures(wins),
            "</div>",
        ]
    )


def _shades_in_words() -> list[str]:
    ends = [f"{low} to {high}" for low, high in zip(SHADES, SHADES[1:], strict=False)]
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


def _cell(number: Number | None) -> str:
    if number is None:
        return "<td>-</td>"
    part = "" if number.whole else "*"
    title = "" if number.whole else f' title="over {number.tables} of {number.of} tables"'
    ends = f"<small>{number.ends[0]:.1f} to {number.ends[1]:.1f}</small>" if number.ends else ""
    return f'<td class="h{shade(number.value)}"{title}>{number.value + 0.0:.1f}{part}{ends}</td>'


Point = tuple[float, float, Standing]


def _figures(wins: WhoWins) -> Iterator[str]:
    """Score against bytes, and against work; none where too few methods have both."""
    for name, unit, of in (
        ("bytes", "megabytes of a client, times those of one model for all", lambda one: one.bytes),
        ("work", "local epochs, times those of one cohort in every round", lambda one: one.work),
    ):
        points = [
            (x, one.score.value, one)
            for one in wins.lines
            if one.score is not None and (x := of(one)) is not None
        ]
        if len(points) > 2:  # noqa: PLR2004 - two are no front
            yield _figure(name, unit, points)


def _figure(name: str, unit: str, points: Sequence[Point]) -> str:
    """A scatter plot: up is a better score, right is a higher cost, with its front named."""
    across, ticks = _log_axis([x for x, _, _ in points])
    worst, best = max(y for _, y, _ in points), min(y for _, y, _ in points)

    def down(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (value - best) / (worst - best or 1)

    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>',
        f'<line x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>',
    ]
    for value in (best, worst):
        parts.append(_text(LEFT - 4, down(value) + 4, f"{value:.0f}", "end"))
    for value in ticks:
        parts.append(_text(across(value), HEIGHT - BOTTOM + 14, f"{value:g}", "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, unit, "middle"))
    for _, y, one in points:
        if one.reference or one.anchor:
            place = f'y1="{down(y):.1f}" y2="{down(y):.1f}"'
            parts.append(f'<line class="against" x1="{LEFT}" x2="{WIDTH - RIGHT}" {place}/>')
            parts.append(_text(WIDTH - RIGHT, down(y) - 3, one.name, "end"))
    front = _front(points)
    named = _apart([(across(x), down(y), one) for x, y, one in points if one in front])
    for x, y, one in points:
        if one.reference:
            continue
        style = "own" if one in front else "other"
        said = f"{one.name}: score {y:.1f}, {name} {ratio(x)}"
        parts.append(
            f'<circle class="{style}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="4">'
            f"<title>{escape(said)}</title></circle>"
        )
        if one in named and not one.anchor:
            end = across(x) > WIDTH * 2 / 3
            parts.append(_text(across(x) + (-7 if end else 7), down(y) + 4, one.name,
                               "end" if end else "start"))  # fmt: skip
    label = f"score of {len(points)} methods against {name}: {_said(front)} are on the front"
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'{"".join(parts)}</svg><figcaption class="dim">Score (lower is better, at the top)'
        f" against {name}; named: no method has a better score for as little.</figcaption></figure>"
    )


def _apart(points: Sequence[Point]) -> list[Standing]:
    """Those that can be named without one name on another; of two the better."""
    found: list[Point] = []
    for x, y, one in sorted(points, key=lambda point: point[1]):
        if all(abs(y - other) > LINE for _, other, _ in found):
            found.append((x, y, one))
    return [one for *_, one in found]


def _said(front: Sequence[Standing]) -> str:
    return ", ".join(one.name for one in front)


def _text(x: float, y: float, text: str, where: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{where}">{escape(text)}</text>'


def _front(points: Sequence[Point]) -> list[Standing]:
    """The ranked methods that none beats at as little cost, the cheapest first."""
    found: list[Standing] = []
    lowest = float("inf")
    for _, y, one in sorted(points, key=lambda point: point[:2]):
        if not one.reference and y < lowest:
            lowest = y
            found.append(one)
    return found


def _log_axis(values: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """Where a number stands on an axis of powers of ten, with 0 at its left end; and its ticks."""
    known = [log10(one) for one in values if one > 0] or [0.0]
    low, high = floor(min(known)), max(floor(max(known)) + 1, floor(min(known)) + 1)
    start = LEFT + 14

    def across(value: float) -> float:
        share = (log10(value) - low) / (high - low) if value > 0 else 0.0
        return start + (WIDTH - RIGHT - start) * share

    return across, [10.0**power for power in range(low, high + 1)]
