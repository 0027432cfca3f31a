"""Picture of a partition: who holds how much of which label, as SVG in the style of `figures`.

Matplotlib is imported when something is drawn. The same counts give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def partition(result: Result, title: str) -> bytes | None:
    """Draw who held how many training samples of which label.

    Args:
        result: any of the suite and seed.
        title: one line on top.

    Returns:
        An SVG file, or None where samples have no labels or their counts were not kept.
    """
    held = result.clients.labels
    if not held or not any(held):
        return None
    counts = np.zeros((len(held), 1 + max(label for one in held for label in one)), dtype=np.int64)
    for client, one in enumerate(held):
        for label, samples in one.items():
            counts[client, label] = samples
    groups = result.clients.group
    return draw(counts, None if groups is None else np.array(groups, dtype=np.int64), title)


Ints = npt.NDArray[np.int64]


INK, DOT = "#7a7a7a", "#3d85c6"


MANY = 200  # beyond this many clients, dots become a heat map


COLUMNS = 1000  # of the heat map at most


def draw(counts: Ints, groups: Ints | None, title: str) -> bytes:
    """Draw a partition: clients from left to right, labels from bottom to top.

    A dot's area is the number of samples; of more than 200 clients, the strength of a cell is.
    Clients of one true group stand side by side on a band of their own.

    Args:
        counts: samples per client and label, shape (N, C).
        groups: true group of each client, shape (N,), or None.
        title: one line on top.

    Returns:
        An SVG file.
    """
    from flbench.figures.style import sheet, written

    n, labels = counts.shape
    order = np.arange(n) if groups is None else np.argsort(groups, kind="stable")
    shown, many = counts[order], n > MANY
    with sheet(*_inches(min(n, MANY), labels)) as figure:
        axes = figure.add_subplot()
        if groups is not None:
            _bands(axes, groups[order])
        if many:
            _cells(axes, shown)
        else:
            _dots(axes, shown)
        axes.set_xlim(-0.5, n - 0.5)
        axes.set_ylim(-0.5, labels - 0.5)
        places = _ticks(n, 40)
        axes.set_xticks(places, [str(order[place]) for place in places], rotation=90)
        places = _ticks(labels, 25)
        axes.set_yticks(places, [str(place) for place in places])
        by = "" if groups is None else ", by true group"
        kind = "fullest cell" if many else "largest dot"
        most = float((_binned(shown) if many else shown).max())
        axes.set_xlabel(f"client{by}   ({kind}: {most:.4g} samples)")
        axes.set_ylabel("label")
        axes.tick_params(labelsize=6, length=2)
        return written(figure, title, describe(counts, groups))


def describe(counts: Ints, groups: Ints | None) -> str:
    """What the picture shows, for those who do not see it.

    Example:
        >>> describe(np.array([[3, 0], [0, 4]]), np.array([0, 1]))
        '2 clients and 2 labels in 2 true groups: 3 to 4 samples and 1 to 1 labels per client'
    """
    sizes, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    known = "" if groups is None else f" in {len(np.unique(groups))} true groups"
    return (
        f"{len(counts)} clients and {counts.shape[1]} labels{known}: {sizes.min()} to {sizes.max()}"
        f" samples and {held.min()} to {held.max()} labels per client"
    )


def _inches(clients: int, labels: int) -> tuple[float, float]:
    """Width and height: about a seventh of an inch per client and label, within reason."""
    return float(np.clip(clients / 7, 4, 16)), float(np.clip(labels / 4, 3, 9))


def _ticks(count: int, most: int) -> list[int]:
    """At most so many places out of 0..count-1, at a round distance."""
    steps = (scale * step for scale in (10**k for k in range(9)) for step in (1, 2, 5))
    return list(range(0, count, next(step for step in steps if count <= most * step)))


def _bands(axes: Axes, groups: Ints) -> None:
    """A band behind each group, every other one shaded, named on top if there is room."""
    names, starts, sizes = np.unique(groups, return_index=True, return_counts=True)
    for place, (name, start, size) in enumerate(zip(names, starts, sizes, strict=True)):
        if place % 2 == 0:
            axes.axvspan(start - 0.5, start + size - 0.5, color=INK, alpha=0.18, linewidth=0)
        if len(names) <= 40:
            middle = start + (size - 1) / 2
            axes.annotate(
                f"{'group ' if len(names) <= 10 else ''}{name}",
                (middle, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=INK,
                fontsize=7,
            )


def _dots(axes: Axes, counts: Ints) -> None:
    """A dot per client and label; the largest just fits its cell."""
    n, labels = counts.shape
    width, height = _inches(n, labels)
    room = 72 * min(0.85 * width / n, 0.75 * height / labels)
    client, label = np.nonzero(counts)
    area = (0.95 * room) ** 2 * counts[client, label] / max(int(counts.max(initial=0)), 1)
    axes.scatter(client, label, s=np.maximum(area, 0.3), color=DOT, linewidths=0)


def _cells(axes: Axes, counts: Ints) -> None:
    """A cell per label and client, or per few neighbours: the fuller, the less transparent."""
    from matplotlib.colors import to_rgb

    mean = _binned(counts)
    image = np.empty((*mean.T.shape, 4))
    image[..., :3] = to_rgb(DOT)
    image[..., 3] = np.sqrt(mean.T / max(float(mean.max()), 1e-9))
    axes.imshow(
        image,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, len(counts) - 0.5, -0.5, counts.shape[1] - 0.5),
    )


def _binned(counts: Ints) -> npt.NDArray[np.float64]:
    """Mean counts of neighbouring clients, at most 1000 rows."""
    starts = np.linspace(0, len(counts), min(len(counts), COLUMNS) + 1).astype(np.int64)
    sums = np.add.reduceat(counts, starts[:-1], axis=0)
    mean: npt.NDArray[np.float64] = sums / np.diff(starts)[:, None]
    return mean
