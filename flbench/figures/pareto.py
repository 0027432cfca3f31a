"""The final headline (accuracy, RMSE, mAP) against traffic, with the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.label_placement import Box, place_labels
from flbench.figures.style import (
    COLOURS,
    INK,
    SMALLEST,
    caption,
    headline_axis,
    new_figure,
    shown,
    task_of,
    to_svg,
    wrapped,
)
from flbench.metrics import HEADLINE
from flbench.results.schema import Result
from flbench.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRONT_COLOUR = COLOURS[0]
NAMED_ROWS = 12
"""Rows that have a name."""
NAME = 26
"""Characters of a name on one line."""
LINE = 7.4
"""Height of a line of names, in points."""


@dataclass(frozen=True)
class RowPoint:
    """A row's mean headline and traffic, and the lowest and highest seed of either."""

    name: str
    task: Task
    headline: float
    cost: float
    headlines: tuple[float, float]
    costs: tuple[float, float]

    @property
    def point(self) -> tuple[float, float]:
        """Cost, and the headline so that higher is better."""
        return self.cost, self.task.score(self.headline)


def row_point(name: str, results: Sequence[Result]) -> RowPoint | None:
    """A row's point, from the seeds that have both numbers; None if no seed has."""
    task = task_of([(name, results)])
    mean = task.named(HEADLINE)
    pairs = [(r.summary.get(mean), r.summary.get("mb_per_client")) for r in results]
    known = [(a, c) for a, c in pairs if a is not None and c is not None]
    if not known:
        return None
    table = np.array(known, dtype=float)
    headline, cost = table.mean(axis=0).tolist()
    headlines, costs = zip(table.min(axis=0).tolist(), table.max(axis=0).tolist(), strict=True)
    return RowPoint(name, task, headline, cost, headlines, costs)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, score) that no other dominates, the cheapest first.

    Of scores, higher is better. A point dominates another if it is at least as good in both and
    better in one.

    Example:
        >>> pareto_front([(2.0, 0.9), (1.0, 0.8), (3.0, 0.9), (0.0, 0.5)])
        [3, 1, 0]
    """

    def dominated(cost: float, score: float) -> bool:
        return any(
            other_cost <= cost
            and other_score >= score
            and (other_cost, other_score) != (cost, score)
            for other_cost, other_score in points
        )

    kept = [index for index, one in enumerate(points) if not dominated(*one)]
    return sorted(kept, key=lambda index: points[index])


def pareto(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw the final headline against megabytes per client, with the Pareto front.

    At most twelve rows have names and bars: those of the front, and the best others. Bars reach
    from the lowest to the highest seed. Rows without traffic are drawn left of the logarithmic
    axis.
    """
    found = [place for name, results in rows if (place := row_point(name, results)) is not None]
    if not found:
        return None
    best = pareto_front([one.point for one in found])
    with new_figure(2.9) as figure:
        axes = figure.add_subplot()
        small = "; small: other rows" if len(found) > NAMED_ROWS else ""
        caption(figure, f"circles: Pareto front; bars: lowest to highest seed{small}")
        draw_points(axes, found, best)
        return to_svg(figure, title, description(found, best))


def draw_points(axes: Axes, found: Sequence[RowPoint], best: Sequence[int]) -> None:
    """Draw rows with their names; `best` are the indices of the front, the cheapest first."""
    no_cost = _set_cost_axis(axes, found)
    at = [one.cost or no_cost for one in found]
    named = named_rows(found, best)
    for index, one in enumerate(found):
        if index in named:
            _draw_point(axes, one, at[index], index in best)
        else:
            axes.plot(at[index], one.headline, "s", color=INK, markersize=1.6, zorder=1)
    costs, headlines = [at[index] for index in best], [found[index].headline for index in best]
    axes.step(
        costs, headlines, where="post", color=FRONT_COLOUR, linewidth=0.9,
        linestyle=(0, (4, 2)), zorder=1,
    )  # fmt: skip
    headline_axis(axes, found[0].task, "final test {}")
    _draw_names(
        axes,
        [(found[index].name, at[index], found[index].headline) for index in named],
        [place for place, index in enumerate(named) if index in best],
        [
            ((one.costs[0] or x, one.headline, one.costs[1] or x, one.headline),
             (x, one.headlines[0], x, one.headlines[1]))
            for one, x in ((found[index], at[index]) for index in named)
        ],
        [(at[index], one.headline) for index, one in enumerate(found) if index not in named],
    )  # fmt: skip


def named_rows(found: Sequence[RowPoint], best: Sequence[int]) -> list[int]:
    """Indices of the rows that have a name: of the front, then the best others, 12 at most."""
    others = [index for index in range(len(found)) if index not in best]
    others.sort(key=lambda index: -found[index].point[1])
    front = sorted(best, key=lambda index: -found[index].point[1])[:NAMED_ROWS]
    kept = [index for index in best if index in front]
    return [*kept, *sorted(others[: NAMED_ROWS - len(kept)])]


def description(found: Sequence[RowPoint], best: Sequence[int]) -> str:
    """The points in words, the front first."""

    def text_of(one: RowPoint) -> str:
        return f"{one.name} {shown(one.task, one.headline)} at {one.cost:.3g} MB"

    rest = [text_of(one) for index, one in enumerate(found) if index not in best]
    others = f" Not on it: {', '.join(rest)}." if rest else ""
    return (
        f"Final test {found[0].task.heading} against megabytes sent and received per client, means"
        f" over seeds. Pareto front: {', '.join(text_of(found[index]) for index in best)}.{others}"
    )


def _set_cost_axis(axes: Axes, found: Sequence[RowPoint]) -> float:
    """Set up the axis of costs; return the position of rows without traffic."""
    paid = [one.cost for one in found if one.cost > 0] or [1.0]
    low, high = min(paid), max(paid)
    wide = max(np.log10(high / low), 0.5)
    no_cost = low / 10 ** (0.16 * wide)
    free = any(one.cost == 0 for one in found)
    edge = 10 ** (0.06 * wide)
    axes.set_xscale("log")
    axes.set_xlim((no_cost if free else low) / edge, high * edge)
    steps = (1,) if high > 50 * low else (1, 2, 5) if high > 3 * low else range(1, 10)
    powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
    round_ones = [step * 10.0**power for power in powers for step in steps]
    ticks = [(one, f"{one:.6g}") for one in round_ones if low / edge <= one <= high * edge]
    if free:
        ticks.insert(0, (no_cost, "none"))
        axes.axvline((no_cost * low) ** 0.5, color=INK, linewidth=0.5, linestyle=(0, (1, 2)))
    axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("sent and received per client (MB, logarithmic)")
    return float(no_cost)


def _draw_names(
    axes: Axes,
    found: Sequence[tuple[str, float, float]],
    best: Sequence[int],
    spans: Sequence[tuple[Box, Box]],
    small: Sequence[tuple[float, float]],
) -> None:
    """Write each point's name beside it, the front first, with a line if it is far away.

    `spans` are the two error bars of each point, in data coordinates; `small` are points without
    names.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.margins(y=0.1)
    axes.set_ylim(axes.get_ylim())
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    bounds = axes.get_window_extent()
    left, low, right, high = (scale * float(value) for value in bounds.extents)
    order = [*best, *(index for index in range(len(found)) if index not in best)]
    points = [tuple(scale * axes.transData.transform(found[index][1:])) for index in order]
    steps = [piece for one, two in pairwise(points[: len(best)]) for piece in _step_boxes(one, two)]
    steps += [box for one in spans for box in _bar_boxes(axes, one, scale)]
    for x, y in (scale * axes.transData.transform(one) for one in small):
        steps.append((float(x) - 1.2, float(y) - 1.2, float(x) + 1.2, float(y) + 1.2))
    together = same_place(points)
    places = [points[members[0]] for members in together]
    names = [
        "\n".join(wrapped(found[order[at]][0], NAME) for at in members) for members in together
    ]
    lines = [name.split("\n") for name in names]
    sizes = [(3.6 * max(map(len, texts)), LINE * len(texts)) for texts in lines]
    boxes = place_labels(places, sizes, (left, low, right, high), steps)
    for members, name, (x, y), box in zip(together, names, places, boxes, strict=True):
        index = order[members[0]]
        colour = FRONT_COLOUR if index in best else INK
        end = min(max(x, box[0]), box[2]), min(max(y, box[1] + LINE / 2), box[3] - LINE / 2)
        if abs(end[0] - x) + abs(end[1] - y) > 9:
            axes.annotate(
                "", _to_data(axes, end, scale), found[index][1:],
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkB": 0},
            )  # fmt: skip
        side = "left" if box[0] > x else "right" if box[2] < x else "center"
        at = {"left": box[0], "right": box[2], "center": x}[side], (box[1] + box[3]) / 2
        axes.text(
            *_to_data(axes, at, scale), name, ha=side, va="center", color=colour,
            fontsize=SMALLEST, linespacing=1.05,
        )  # fmt: skip


def same_place(points: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Indices of points by place: with the first point of a place are those near it.

    Lengths are in typographic points. Points that cover each other look like one, so they share
    a label.

    Example:
        >>> same_place([(0.0, 0.0), (50.0, 0.0), (1.0, 2.0)])
        [[0, 2], [1]]
    """
    found: list[list[int]] = []
    for index, (x, y) in enumerate(points):
        for members in found:
            left, low = points[members[0]]
            if max(abs(x - left), abs(y - low)) <= 4:
                members.append(index)
                break
        else:
            found.append([index])
    return found


def _step_boxes(one: tuple[float, float], two: tuple[float, float]) -> tuple[Box, Box]:
    """The boxes that the front's line covers between two points: to the right, then up or down."""
    (left, start), (right, end) = one, two
    low, high = sorted((start, end))
    return (left, start - 1, right, start + 1), (right - 1, low, right + 1, high)


def _bar_boxes(axes: Axes, bars: tuple[Box, Box], scale: float) -> Iterator[Box]:
    """What error bars cover, in typographic points."""
    for left, low, right, high in bars:
        (x, y), (to_x, to_y) = scale * axes.transData.transform([(left, low), (right, high)])
        yield float(x) - 0.4, float(y) - 0.4, float(to_x) + 0.4, float(to_y) + 0.4


def _to_data(axes: Axes, place: tuple[float, float], scale: float) -> tuple[float, float]:
    """Typographic points in data coordinates of the axes."""
    x, y = axes.transData.inverted().transform((place[0] / scale, place[1] / scale))
    return float(x), float(y)


def _draw_point(axes: Axes, one: RowPoint, at: float, best: bool) -> None:
    """Draw a point with its error bars."""
    from matplotlib.colors import to_rgb

    colour = FRONT_COLOUR if best else INK
    axes.errorbar(
        at,
        one.headline,
        yerr=_error_bar(one.headline, one.headlines),
        xerr=_error_bar(one.cost, one.costs),
        fmt="o" if best else "s",
        markersize=3.8 if best else 2.8,
        color=colour,
        elinewidth=0.6,
        ecolor=(*to_rgb(colour), 0.5),
    )


def _error_bar(mean: float, ends: tuple[float, float]) -> list[list[float]]:
    """Lengths of an error bar; the mean may be outside its ends by a rounding error."""
    return [[max(mean - ends[0], 0.0)], [max(ends[1] - mean, 0.0)]]
