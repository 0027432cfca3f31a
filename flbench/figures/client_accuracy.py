"""Distribution of accuracy over clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.style import (
    COLOURS,
    INK,
    caption,
    new_figure,
    percent_axis,
    sharp,
    to_svg,
    wrapped,
)
from flbench.metrics import Floats
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 51
MAX_ROWS = 24
"""Rows in a figure, which then is as tall as a column of a paper."""
HALF = 0.2
"""Half of the height of a strip; the rest of a row is for its name."""
STRIP_COLOUR, MEDIAN_COLOUR = COLOURS[:2]


def client_accuracies(results: Sequence[Result]) -> Floats:
    """Accuracy of every client with test samples, all seeds in one row, shape (n,)."""
    accuracies = [result.clients.headline_values() for result in results]
    return np.concatenate(accuracies) if accuracies else np.empty(0)


def clients(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw the distribution of accuracy over clients, the best median on top.

    A row's shade is the share of the clients of all seeds with that accuracy; marked are the mean,
    the median and the tenth percentile. At most 24 rows are drawn; the words have all.
    """
    found = [(name, client_accuracies(results)) for name, results in rows]
    kept = sorted_by_median([(name, accuracies) for name, accuracies in found if len(accuracies)])
    if not kept:
        return None
    every, kept = kept, kept[:MAX_ROWS]
    names = [wrapped(name, 60) for name, _ in kept]
    places = strip_places([name.count("\n") for name in names])
    with new_figure(0.29 * (places[-1] + 1) + 1.0) as figure:
        axes = figure.add_subplot()
        _draw_strips(axes, [accuracies for _, accuracies in kept], places)
        for name, place, (_, accuracies) in zip(names, places, kept, strict=True):
            low, median = np.percentile(accuracies, [10, 50])
            ends = [place - HALF, place + HALF]
            axes.plot([low, low], ends, color=INK, linewidth=1)
            axes.plot([median, median], ends, color=MEDIAN_COLOUR, linewidth=1.6)
            axes.plot(accuracies.mean(), place, marker="D", markersize=2.6, color=INK)
            axes.annotate(
                name, (0, place - HALF), xytext=(0, 1.5), va="bottom", fontsize=6.5,
                xycoords=("axes fraction", "data"), textcoords="offset points",
            )  # fmt: skip
        axes.set_yticks([])
        axes.set_ylim(places[-1] + 0.4, -0.8)
        worst = min(float(accuracies.min()) for _, accuracies in kept)
        axes.set_xlim(np.floor(min(worst, 0.9) * 10) / 10 - 0.01, 1.01)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("test accuracy of a client (%)")
        percent_axis(axes, "x")
        marks = "orange line: median; diamond: mean; grey line: 10th percentile"
        best = f"; the best {len(kept)} of {len(every)} rows" if len(kept) < len(every) else ""
        caption(figure, f"blue: share of clients; {marks}{best}")
        return to_svg(figure, title, description(every))


def strip_places(breaks: Sequence[int]) -> list[float]:
    """Positions of strips from the top, so that there is room for the lines of each one's name.

    Args:
        breaks: line breaks of each name.

    Example:
        >>> strip_places([0, 1, 0])
        [0.0, 1.4, 2.4]
    """
    return [round(at + 0.4 * sum(breaks[: at + 1]), 6) for at in range(len(breaks))]


def histogram(accuracies: Floats) -> Floats:
    """Share of clients in bins around 0, 0.02, ..., 1, shape (51,).

    Example:
        >>> histogram(np.array([0.0, 1.0, 1.0, 0.995]))[[0, 50]].tolist()
        [0.25, 0.75]
    """
    counts = np.bincount(np.round(accuracies * (BINS - 1)).astype(int), minlength=BINS)
    return counts / len(accuracies)


def _draw_strips(axes: Axes, kept: Sequence[Floats], places: Sequence[float]) -> None:
    """Draw a strip per row: the more clients in a bin, the stronger its colour."""
    from matplotlib.colors import to_rgb

    half = 0.5 / (BINS - 1)
    for place, accuracies in zip(places, kept, strict=True):
        shares = histogram(accuracies)
        image = np.zeros((1, BINS, 4))
        image[..., :3] = to_rgb(STRIP_COLOUR)
        image[0, :, 3] = np.sqrt(shares) * 0.85 + 0.15 * (shares > 0)
        ends = (-half, 1 + half, place + HALF, place - HALF)
        axes.imshow(sharp(image), aspect="auto", extent=ends)


def sorted_by_median(rows: Sequence[tuple[str, Floats]]) -> list[tuple[str, Floats]]:
    """Rows by median, then by mean, both descending, then by name."""
    return sorted(rows, key=lambda row: (-np.median(row[1]), -row[1].mean(), row[0]))


def description(kept: Sequence[tuple[str, Floats]]) -> str:
    """Medians and tenth percentiles in words."""
    text = ", ".join(
        f"{name} {100 * np.median(accuracies):.1f} % ({100 * np.percentile(accuracies, 10):.1f} %)"
        for name, accuracies in kept
    )
    return f"Test accuracy over the clients of all seeds, median (tenth percentile): {text}."
