"""How accuracy is spread over clients: whom a method serves well, and whom it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flbench.figures.style import COLOURS, INK, caption, percent, plain, sheet, written
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Floats = npt.NDArray[np.float64]


BINS = 51


SHADE, MIDDLE = COLOURS[:2]


def accuracies(results: Sequence[Result]) -> Floats:
    """Accuracy of every client with test samples, all seeds in one row, shape (n,)."""
    each = [
        np.array(result.clients.correct, dtype=float)[judged] / test[judged]
        for result in results
        for test in [np.array(result.clients.test, dtype=float)]
        for judged in [test > 0]
    ]
    return np.concatenate(each) if each else np.empty(0)


def clients(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw how accuracy is spread over clients, the best median on top.

    A row's shade is the share of the clients of all seeds with that accuracy; marked are the mean,
    the median and the tenth percentile.

    Args:
        rows: name and results over seeds.
        title: one line on top.

    Returns:
        An SVG file, or None where no client was tested.
    """
    found = [(name, accuracies(results)) for name, results in rows]
    kept = by_median([(name, each) for name, each in found if len(each)])
    if not kept:
        return None
    with sheet(6.2, 0.2 * len(kept) + 1.2) as figure:
        axes = figure.add_subplot()
        _strips(axes, [each for _, each in kept])
        for place, (_, each) in enumerate(kept):
            low, median = np.percentile(each, [10, 50])
            axes.plot([low, low], [place - 0.36, place + 0.36], color=INK, linewidth=1.2)
            axes.plot([median, median], [place - 0.36, place + 0.36], color=MIDDLE, linewidth=2)
            axes.plot(each.mean(), place, marker="D", markersize=3.2, color=INK)
        axes.set_yticks(range(len(kept)), [plain(name) for name, _ in kept])
        axes.set_ylim(len(kept) - 0.4, -0.6)
        worst = min(float(each.min()) for _, each in kept)
        axes.set_xlim(np.floor(min(worst, 0.9) * 10) / 10 - 0.01, 1.01)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("test accuracy of a client (%)")
        percent(axes, "x")
        told = (
            "blue: share of clients; orange line: median; diamond: mean; grey line: 10th percentile"
        )
        caption(figure, told)
        return written(figure, title, described(kept))


def shares(each: Floats) -> Floats:
    """Share of clients in bins around 0, 0.02, ..., 1, shape (51,).

    Example:
        >>> shares(np.array([0.0, 1.0, 1.0, 0.995]))[[0, 50]].tolist()
        [0.25, 0.75]
    """
    counts = np.bincount(np.round(each * (BINS - 1)).astype(int), minlength=BINS)
    found: Floats = counts / len(each)
    return found


def _strips(axes: Axes, kept: Sequence[Floats]) -> None:
    """A strip per row: the more clients in a bin, the fuller its colour; a gap between strips."""
    from matplotlib.colors import to_rgb

    image = np.zeros((10 * len(kept), BINS, 4))
    image[..., :3] = to_rgb(SHADE)
    for place, each in enumerate(kept):
        image[10 * place + 1 : 10 * place + 9, :, 3] = np.sqrt(shares(each)) * 0.85 + 0.15 * (
            shares(each) > 0
        )
    half = 0.5 / (BINS - 1)
    axes.imshow(image, aspect="auto", extent=(-half, 1 + half, len(kept) - 0.5, -0.5))


def by_median(rows: Sequence[tuple[str, Floats]]) -> list[tuple[str, Floats]]:
    """Rows, the best median first; of equal ones the best mean, then by name."""
    return sorted(rows, key=lambda row: (-np.median(row[1]), -row[1].mean(), row[0]))


def described(kept: Sequence[tuple[str, Floats]]) -> str:
    """Medians and tenth percentiles in words."""
    told = ", ".join(
        f"{name} {100 * np.median(each):.1f} % ({100 * np.percentile(each, 10):.1f} %)"
        for name, each in kept
    )
    return f"Test accuracy over the clients of all seeds, median (tenth percentile): {told}."
