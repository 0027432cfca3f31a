"""The headline (accuracy, RMSE, mAP) and the loss against the round, one line per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from flbench.figures.style import (
    COLOURS,
    DASHES,
    INK,
    MARKERS,
    SMALLEST,
    headline_axis,
    new_figure,
    shown,
    task_of,
    to_svg,
    wrapped,
)
from flbench.metrics import Floats
from flbench.results.schema import Result
from flbench.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED_ROWS = 8
"""Number of best rows that have a name and a colour of their own; other rows are grey."""
WHOLE_NAME, HALF_NAME = 54, 24
"""Characters of a name in a legend of one or two columns."""


@dataclass(frozen=True)
class MeanCurve:
    """The measured rounds of one row, and mean, lowest and highest value over seeds."""

    rounds: Floats
    mean: Floats
    low: Floats
    high: Floats


def mean_over_seeds(results: Sequence[Result], name: str) -> MeanCurve | None:
    """A curve over seeds, at the rounds that any seed measured; None if no seed measured one."""
    rounds = zip_longest(*(result.curves.get(name, []) for result in results))
    table = np.array(list(zip(*rounds, strict=True)), dtype=np.float64)  # a row per seed
    table[~np.isfinite(table)] = np.nan
    seen = np.isfinite(table).any(axis=0)
    if not seen.any():
        return None
    kept = table[:, seen]
    mean, low, high = (rule(kept, axis=0) for rule in (np.nanmean, np.nanmin, np.nanmax))
    return MeanCurve(np.arange(1.0, table.shape[1] + 1)[seen], mean, low, high)


def curves(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw the headline on test samples, and below it the loss, against the round.

    A line is the mean over seeds, its band reaches from the lowest to the highest seed. Of many
    rows the best eight at the end have names, colours and bands; the others are grey. Rounds
    without evaluation are left out.
    """
    from matplotlib.ticker import MaxNLocator

    task = task_of(rows)
    found = [(name, mean_over_seeds(results, task.headline), results) for name, results in rows]
    kept = [(name, curve, results) for name, curve, results in found if curve is not None]
    if not kept:
        return None
    kept.sort(key=lambda row: -task.score(row[1].mean[-1]))
    losses = [mean_over_seeds(results, "loss") for _, _, results in kept]
    both = any(curve is not None for curve in losses)
    names = [name for name, _, _ in kept[:NAMED_ROWS]]
    across = 2 if max(map(len, names)) <= HALF_NAME and len(names) > 3 else 1
    lines = [wrapped(name, WHOLE_NAME if across == 1 else HALF_NAME) for name in names]
    legend = 0.14 * sum(1 + line.count("\n") for line in lines) / across
    with new_figure(1.9 + (0.95 if both else 0) + legend + 0.55) as figure:
        ratios = [2, 1] if both else [1]
        panels = figure.subplots(
            len(ratios), sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios}
        )[:, 0]
        for place, (_, curve, _) in enumerate(kept):
            _draw_line(panels[0], curve, place)
        panels[0].set_xlim(*_round_limits([curve for _, curve, _ in kept]))
        headline_axis(panels[0], task, "test {}")
        if not task.is_share:
            _logarithmic_if_wide(panels[0], [curve for _, curve, _ in kept])
        if both:
            _draw_losses(panels[1], losses)
            panels[1].set_ylabel("test loss (nats)" if task.is_share else "test loss")
        panels[-1].set_xlabel("round")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
        figure.align_ylabels(panels)
        named = [(line, curve) for line, (_, curve, _) in zip(lines, kept, strict=False)]
        _draw_legend(figure, task, named, across, grey=len(kept) > NAMED_ROWS)
        return to_svg(figure, title, description(task, kept))


def description(task: Task, kept: Sequence[tuple[str, MeanCurve, Sequence[Result]]]) -> str:
    """The last values in words, the best first."""
    ends = ", ".join(f"{name} {shown(task, curve.mean[-1])}" for name, curve, _ in kept)
    seeds = max(len(results) for _, _, results in kept)
    return (
        f"Test {task.heading} against the round, mean over at most {seeds} seeds; bands reach"
        f" from the lowest to the highest seed. At the end: {ends}."
    )


def _line_style(place: int) -> dict[str, Any]:
    """Style of a row's line; place 0 is the best row."""
    if place >= NAMED_ROWS:
        return {"color": INK, "linewidth": 0.6, "alpha": 0.55, "zorder": 1.5}
    return {
        "color": COLOURS[place],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place],
        "markersize": 3.2,
        "zorder": 2 + place / 10,  # dashed lines over the solid line of the best row
    }


def _draw_line(axes: Axes, curve: MeanCurve, place: int) -> None:
    """Draw a row's line and band; few markers, at other rounds than those of other rows."""
    step = max(1, round(len(curve.rounds) / 6))
    style = _line_style(place)
    first = place % step if step < NAMED_ROWS else place * step // NAMED_ROWS % step
    axes.plot(curve.rounds, curve.mean, markevery=(first, step), **style)
    if place < NAMED_ROWS and (curve.high > curve.low).any():
        axes.fill_between(
            curve.rounds, curve.low, curve.high, color=style["color"], alpha=0.15, linewidth=0
        )


def _draw_legend(
    figure: Figure, task: Task, named: Sequence[tuple[str, MeanCurve]], across: int, *, grey: bool
) -> None:
    """Write each line's name and where it ends below the panels, the best first."""
    from matplotlib.lines import Line2D

    others = "; grey: the other rows" if grey else ""
    heading = f"{task.heading} at the end; mean over seeds, band: lowest to highest seed{others}"

    styles = [_line_style(place) for place in range(len(named))]
    figure.legend(
        [Line2D([], [], **{**style, "markersize": 3.4}) for style in styles],
        [f"{name}  {shown(task, curve.mean[-1], unit='')}" for name, curve in named],
        loc="outside lower left", ncols=across, frameon=False, handlelength=2.6,
        borderaxespad=0.2, labelspacing=0.3, columnspacing=1.2, labelcolor="linecolor",
        title=wrapped(heading, 74, 400),
        title_fontsize=SMALLEST, alignment="left",
    )  # fmt: skip


def _round_limits(found: Sequence[MeanCurve]) -> tuple[float, float]:
    """First and last round of all curves; the two always differ."""
    first = min(curve.rounds[0] for curve in found)
    last = max(curve.rounds[-1] for curve in found)
    return (float(first), float(last)) if last > first else (float(first) - 0.5, float(last) + 0.5)


def _draw_losses(axes: Axes, losses: Sequence[MeanCurve | None]) -> None:
    """Draw the losses of the rows."""
    known = [(place, curve) for place, curve in enumerate(losses) if curve is not None]
    for place, curve in known:
        _draw_line(axes, curve, place)
    _logarithmic_if_wide(axes, [curve for _, curve in known])


def _logarithmic_if_wide(axes: Axes, known: Sequence[MeanCurve]) -> None:
    """Make the axis of values logarithmic if they differ by a factor of ten."""
    low = min(float(curve.low.min()) for curve in known)
    high = max(float(curve.high.max()) for curve in known)
    if 0 < 10 * low < high:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
