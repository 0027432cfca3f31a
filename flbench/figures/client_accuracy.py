"""Distribution of the headline (accuracy, RMSE, mAP) over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.style import (
    COLOURS,
    INK,
    caption,
    headline_axis,
    new_figure,
    sharp,
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

BINS = 51
MAX_ROWS = 24
"""Rows in a figure, which then is as tall as a column of a paper."""
HALF = 0.2
"""Half of the height of a strip; the rest of a row is for its name."""
STRIP_COLOUR, MEDIAN_COLOUR = COLOURS[:2]


def client_headlines(results: Sequence[Result]) -> Floats:
    """Headlines of the clients of all seeds that have one, in one row, shape (n,)."""
    found = [result.clients.headline_values() for result in results]
    headlines = np.concatenate(found) if found else np.empty(0)
    return headlines[~np.isnan(headlines)]


def clients(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw the distribution of the headline over clients, the best median on top.

    A row's shade is the share of the clients of all seeds with that headline; marked are the mean,
    the median and the tenth percentile (the 90th where lower is better). At most 24 rows are drawn;
    the words have all.
    """
    task = task_of(rows)
    found = [(name, client_headlines(results)) for name, results in rows]
    kept = sorted_by_median([(name, values) for name, values in found if len(values)], task)
    if not kept:
        return None
    every, kept = kept, kept[:MAX_ROWS]
    top = 1.0 if task.is_share else max(float(values.max()) for _, values in kept) or 1.0
    names = [wrapped(name, 60) for name, _ in kept]
    places = strip_places([name.count("\n") for name in names])
    with new_figure(0.29 * (places[-1] + 1) + 1.0) as figure:
        axes = figure.add_subplot()
        _draw_strips(axes, [values for _, values in kept], places, top)
        for name, place, (_, values) in zip(names, places, kept, strict=True):
            worst, median = np.percentile(values, [task.worst_percentile, 50])
            ends = [place - HALF, place + HALF]
            axes.plot([worst, worst], ends, color=INK, linewidth=1)
            axes.plot([median, median], ends, color=MEDIAN_COLOUR, linewidth=1.6)
            axes.plot(values.mean(), place, marker="D", markersize=2.6, color=INK)
            axes.annotate(
                name, (0, place - HALF), xytext=(0, 1.5), va="bottom", fontsize=6.5,
                xycoords=("axes fraction", "data"), textcoords="offset points",
            )  # fmt: skip
        axes.set_yticks([])
        axes.set_ylim(places[-1] + 0.4, -0.8)
        least = min(float(values.min()) for _, values in kept) if task.is_share else 0.0
        axes.set_xlim(np.floor(min(least, 0.9) * 10) / 10 - 0.01 * top, 1.01 * top)
        axes.spines["left"].set_visible(False)
        headline_axis(axes, task, "test {} of a client", "x")
        marks = (
            f"orange line: median; diamond: mean; grey line: {task.worst_percentile}th percentile"
        )
        best = f"; the best {len(kept)} of {len(every)} rows" if len(kept) < len(every) else ""
        caption(figure, f"blue: share of clients; {marks}{best}")
        return to_svg(figure, title, description(every, task))


def strip_places(breaks: Sequence[int]) -> list[float]:
    """Positions of strips from the top, so that there is room for the lines of each one's name.

    Args:
        breaks: line breaks of each name.

    Example:
        >>> strip_places([0, 1, 0])
        [0.0, 1.4, 2.4]
    """
    return [round(at + 0.4 * sum(breaks[: at + 1]), 6) for at in range(len(breaks))]


def histogram(values: Floats, top: float = 1.0) -> Floats:
    """Share of clients in bins around 0, 0.02, ..., 1 times the top, shape (51,).

    Example:
        >>> histogram(np.array([0.0, 1.0, 1.0, 0.995]))[[0, 50]].tolist()
        [0.25, 0.75]
    """
    counts = np.bincount(np.round(values / top * (BINS - 1)).astype(int), minlength=BINS)
    return counts / len(values)


def _draw_strips(axes: Axes, kept: Sequence[Floats], places: Sequence[float], top: float) -> None:
    """Draw a strip per row: the more clients in a bin, the stronger its colour."""
    from matplotlib.colors import to_rgb

    half = 0.5 * top / (BINS - 1)
    for place, values in zip(places, kept, strict=True):
        shares = histogram(values, top)
        image = np.zeros((1, BINS, 4))
        image[..., :3] = to_rgb(STRIP_COLOUR)
        image[0, :, 3] = np.sqrt(shares) * 0.85 + 0.15 * (shares > 0)
        ends = (-half, top + half, place + HALF, place - HALF)
        axes.imshow(sharp(image), aspect="auto", extent=ends)


def sorted_by_median(rows: Sequence[tuple[str, Floats]], task: Task) -> list[tuple[str, Floats]]:
    """Rows by median, then by mean, the best first, then by name."""

    def place(row: tuple[str, Floats]) -> tuple[float, float, str]:
        name, values = row
        return -task.score(float(np.median(values))), -task.score(float(values.mean())), name

    return sorted(rows, key=place)


def description(kept: Sequence[tuple[str, Floats]], task: Task) -> str:
    """Medians and percentiles of the worst clients in words."""
    at = task.worst_percentile
    text = ", ".join(
        f"{name} {shown(task, float(np.median(values)))}"
        f" ({shown(task, float(np.percentile(values, at)))})"
        for name, values in kept
    )
    worst = "tenth" if at == 10 else f"{at}th"
    over = f"Test {task.heading} over the clients of all seeds"
    return f"{over}, median ({worst} percentile): {text}."
