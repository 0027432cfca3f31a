"""Curves: accuracy and loss against the round, one line per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flbench.figures.style import (
    COLOURS,
    DASHES,
    INK,
    MARKERS,
    apart,
    caption,
    percent,
    plain,
    sheet,
    written,
)
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Floats = npt.NDArray[np.float64]


BRIGHT = 8
"""So many rows have a colour of their own, the best; others are grey."""


@dataclass(frozen=True)
class Curve:
    """What is drawn of one row: the rounds measured, and the seeds' mean, lowest and highest."""

    rounds: Floats
    mean: Floats
    low: Floats
    high: Floats


def averaged(results: Sequence[Result], name: str) -> Curve | None:
    """A curve over seeds, at the rounds that any seed measured; None where none did.

    Args:
        results: of one row, a seed each.
        name: "accuracy", "loss", ...
    """
    curves = [result.curves.get(name, []) for result in results]
    table = np.full((len(curves), max(map(len, curves), default=0)), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[: len(curve)] = [np.nan if value is None else value for value in curve]
    table[~np.isfinite(table)] = np.nan
    seen = np.isfinite(table).any(axis=0)
    if not seen.any():
        return None
    kept = table[:, seen]
    mean, low, high = (
        np.asarray(rule(kept, axis=0), dtype=np.float64)
        for rule in (np.nanmean, np.nanmin, np.nanmax)
    )
    return Curve((np.flatnonzero(seen) + 1).astype(np.float64), mean, low, high)


def curves(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw test accuracy, and below it the loss, against the round.

    A line is the mean over seeds, its band reaches from the lowest to the highest seed. Of many
    rows the best eight at the end have colours and bands. Rounds without evaluation are left out.

    Args:
        rows: name and results over seeds.
        title: one line on top.

    Returns:
        An SVG file, or None where no accuracy was ever measured.
    """
    found = [(name, averaged(results, "accuracy"), results) for name, results in rows]
    kept = [(name, curve, results) for name, curve, results in found if curve is not None]
    if not kept:
        return None
    kept.sort(key=lambda row: -row[1].mean[-1])
    losses = [averaged(results, "loss") for _, _, results in kept]
    both = any(curve is not None for curve in losses)
    tall = max(2.6, 0.135 * len(kept))
    with sheet(6.2, tall + (1.5 if both else 0) + 0.6) as figure:
        ratios = [tall, 1.5] if both else [1]
        panels = figure.subplots(
            len(ratios), sharex=True, squeeze=False, gridspec_kw={"height_ratios": ratios}
        )[:, 0]
        for place, (_, curve, _) in enumerate(kept):
            _line(panels[0], curve, place)
        _names(panels[0], [(name, curve) for name, curve, _ in kept], 72 * tall * 0.97)
        panels[0].set_ylabel("test accuracy (%)")
        percent(panels[0])
        if both:
            _losses(panels[1], losses)
        panels[-1].set_xlabel("round")
        others = "; grey: the other rows" if len(kept) > BRIGHT else ""
        caption(figure, f"mean over seeds, band: lowest to highest seed{others}")
        return written(figure, title, described(kept))


def described(kept: Sequence[tuple[str, Curve, Sequence[Result]]]) -> str:
    """The lines' ends in words."""
    ends = ", ".join(f"{name} {100 * curve.mean[-1]:.1f} %" for name, curve, _ in kept)
    seeds = max(len(results) for _, _, results in kept)
    return (
        f"Test accuracy against the round, mean over at most {seeds} seeds; bands reach"
        f" from the lowest to the highest seed. At the end: {ends}."
    )


def _look(place: int) -> dict[str, Any]:
    """How the line of a row looks, by its place from the best."""
    if place >= BRIGHT:
        return {"color": INK, "linewidth": 0.6, "alpha": 0.55, "zorder": 1.5}
    return {
        "color": COLOURS[place],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place],
        "markersize": 3.2,
        "zorder": 2 + place / 10,  # dashes over the solid line of the best
    }


def _line(axes: Axes, curve: Curve, place: int) -> None:
    """One row's line and band; markers stand on few rounds, and not all on the same."""
    step = max(1, round(len(curve.rounds) / 6))
    look = _look(place)
    first = place % step if step < BRIGHT else place * step // BRIGHT % step
    axes.plot(curve.rounds, curve.mean, markevery=(first, step), **look)
    if place < BRIGHT and (curve.high > curve.low).any():
        axes.fill_between(
            curve.rounds, curve.low, curve.high, color=look["color"], alpha=0.15, linewidth=0
        )


def _names(axes: Axes, lines: Sequence[tuple[str, Curve]], tall: float) -> None:
    """Each line's name to the right of its end, in its colour and with its marker.

    Args:
        tall: height of the panel, in points.
    """
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    axes.set_xlim(*_reach([curve for _, curve in lines]))
    least = min(8.6 / tall, 1 / len(lines))
    ends = [float(curve.mean[-1] - low) / (high - low) for _, curve in lines]
    spots = within(ends[::-1], least)[::-1]  # of equal ends the first is on top
    for place, ((name, curve), end, spot) in enumerate(zip(lines, ends, spots, strict=True)):
        look, bright = _look(place), place < BRIGHT
        style = {"transform": axes.transAxes, "clip_on": False, "color": look["color"]}
        axes.plot([1.005, 1.035], [end, spot], linewidth=0.5, alpha=0.7 if bright else 0.2, **style)
        if bright:
            axes.plot([1.05], [spot], marker=look["marker"], markersize=3.6, **style)
        axes.annotate(
            f"{plain(name)}  {100 * curve.mean[-1]:.1f}",
            (1.065, spot),
            xycoords="axes fraction",
            va="center",
            color=look["color"],
            annotation_clip=False,
        )


def within(places: list[float], least: float) -> list[float]:
    """Places at least so far apart and, where there is room, between 0 and 1.

    Example:
        >>> within([0.9, 1.0, 1.0], 0.25)
        [0.5, 0.75, 1.0]
    """
    moved = apart(places, least)
    order = sorted(range(len(moved)), key=lambda index: moved[index])
    for rank, index in enumerate(order):
        moved[index] = max(moved[index], rank * least)
    for rank, index in enumerate(reversed(order)):
        moved[index] = min(moved[index], 1 - rank * least)
    return moved


def _reach(found: Sequence[Curve]) -> tuple[float, float]:
    """First and last round of all curves, never the same."""
    first = min(curve.rounds[0] for curve in found)
    last = max(curve.rounds[-1] for curve in found)
    return (float(first), float(last)) if last > first else (float(first) - 0.5, float(last) + 0.5)


def _losses(axes: Axes, losses: Sequence[Curve | None]) -> None:
    """The losses of the same rows; on a logarithmic axis where they differ tenfold."""
    known = [(place, curve) for place, curve in enumerate(losses) if curve is not None]
    for place, curve in known:
        _line(axes, curve, place)
    low = min(float(curve.low.min()) for _, curve in known)
    high = max(float(curve.high.max()) for _, curve in known)
    if 0 < 10 * low < high:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(lambda value, _: "")
    axes.set_ylabel("test loss (nats)")
