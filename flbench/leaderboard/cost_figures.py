"""Figures of the web page: the score of methods against their bytes and their work, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from flbench.leaderboard.who_wins import Standing, WhoWins, ratio

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 42
"""Of a figure, and its margins, in its own units, as all lengths here."""
LINE = 11
"""Height of a line of text."""
LEAST = 3
"""Points of a figure."""


@dataclass(frozen=True)
class PlacedMethod:
    """A method in a figure: its cost, its score, and where it stands."""

    standing: Standing
    cost: float
    score: float
    x: float
    y: float


def cost_figures(wins: WhoWins) -> Iterator[str]:
    """Score against bytes, and against work; none where too few methods have both."""
    costs = {one.name: (one.bytes, one.work) for one in wins.lines}
    for at, (name, unit) in enumerate(
        (
            ("bytes", "megabytes of a client, times those of one model for all"),
            ("work", "local epochs, times those of one cohort in every round"),
        )
    ):
        points = [
            (one, cost, one.score.value)
            for one in wins.lines
            if one.score is not None and (cost := costs[one.name][at]) is not None
        ]
        if len(points) >= LEAST:
            yield _figure(name, unit, points)


def _figure(name: str, unit: str, points: Sequence[tuple[Standing, float, float]]) -> str:
    """A scatter plot: up is a better score, right is a higher cost, with its front named."""
    across, ticks = _log_axis([cost for _, cost, _ in points])
    worst, best = max(score for *_, score in points), min(score for *_, score in points)
    depth = (HEIGHT - TOP - BOTTOM) / (worst - best or 1)
    placed = [
        PlacedMethod(one, cost, score, across(cost), TOP + depth * (score - best))
        for one, cost, score in points
    ]
    front = _front(placed)
    parts = [*_axes(unit, {across(one): one for one in ticks}, best, worst)]
    parts += [part for one in placed for part in _against(one)]
    parts += [_dot(one, name, one in front) for one in placed if not one.standing.reference]
    parts += [_label(one) for one in _apart(front) if not one.standing.anchor]
    named = ", ".join(one.standing.name for one in front)
    label = f"score of {len(points)} methods against {name}: {named} are on the front"
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'{"".join(parts)}</svg><figcaption class="dim">Score (lower is better, at the top)'
        f" against {name}; named: no method has a better score for as little.</figcaption></figure>"
    )


def _axes(unit: str, ticks: dict[float, float], best: float, worst: float) -> Iterator[str]:
    floor_ = HEIGHT - BOTTOM
    yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor_}" y2="{floor_}"/>'
    yield f'<line x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{floor_}"/>'
    yield _text(LEFT - 4, TOP + 4, f"{best:.0f}", "end")
    yield _text(LEFT - 4, floor_ + 4, f"{worst:.0f}", "end")
    for x, value in ticks.items():
        yield _text(x, floor_ + 14, f"{value:g}", "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, unit, "middle")


def _against(one: PlacedMethod) -> Iterator[str]:
    """A line to read against: of what is not ranked, and of one model for all."""
    if one.standing.reference or one.standing.anchor:
        height = f'y1="{one.y:.1f}" y2="{one.y:.1f}"'
        yield f'<line class="against" x1="{LEFT}" x2="{WIDTH - RIGHT}" {height}/>'
        yield _text(WIDTH - RIGHT, one.y - 3, one.standing.name, "end")


def _dot(one: PlacedMethod, cost: str, in_front: bool) -> str:
    said = f"{one.standing.name}: score {one.score:.1f}, {cost} {ratio(one.cost)}"
    style = ' class="own"' if in_front else ""
    return (
        f'<circle{style} cx="{one.x:.1f}" cy="{one.y:.1f}" r="4"><title>{escape(said)}</title>'
        "</circle>"
    )


def _label(one: PlacedMethod) -> str:
    left = one.x > WIDTH * 2 / 3
    return _text(one.x + (-7 if left else 7), one.y + 4, one.standing.name,
                 "end" if left else "start")  # fmt: skip


def _text(x: float, y: float, text: str, where: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{where}">{escape(text)}</text>'


def _front(placed: Sequence[PlacedMethod]) -> list[PlacedMethod]:
    """The ranked methods that none beats at as little cost, the cheapest first."""
    found: list[PlacedMethod] = []
    for one in sorted(placed, key=lambda one: (one.cost, one.score)):
        if not one.standing.reference and all(one.score < other.score for other in found):
            found.append(one)
    return found


def _apart(placed: Sequence[PlacedMethod]) -> list[PlacedMethod]:
    """Those that can be named without one name on another; of two the better."""
    found: list[PlacedMethod] = []
    for one in sorted(placed, key=lambda one: one.y):
        if all(abs(one.y - other.y) > LINE for other in found):
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
