"""Figure of a partition: number of samples of each client and label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.style import COLOURS, COLUMN, INK, SMALLEST, new_figure, sharp, to_svg
from flbench.metrics import Floats, Ints
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOT = COLOURS[0]
MANY_CLIENTS = 50
"""With more clients, a heat map is drawn instead of dots."""
COLUMNS = 400
"""Largest number of columns of the heat map."""
BAND_CHARACTERS = 48
"""Characters for which there is room above the bands of groups."""


def counted(rows: Sequence[tuple[str, Sequence[Result]]]) -> Result | None:
    """The first result of the lowest seed that has counts of labels; None if none has."""
    found = [one for _, results in rows for one in results if any(one.clients.labels or ())]
    return min(found, key=lambda one: one.seed, default=None)


def partition(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw the training samples of each client and label, of the lowest seed that has counts."""
    result = counted(rows)
    if result is None:
        return None
    held = result.clients.labels or []
    counts = np.zeros((len(held), 1 + max(label for one in held for label in one)), dtype=np.int64)
    for client, one in enumerate(held):
        for label, samples in one.items():
            counts[client, label] = samples
    groups = result.clients.group
    known = None if groups is None else np.array(groups, dtype=np.int64)
    return draw_partition(counts, known, f"{title}, seed {result.seed}")


def draw_partition(counts: Ints, groups: Ints | None, title: str) -> bytes:
    """Draw a partition: clients from left to right, labels from bottom to top.

    The area of a dot is the number of samples; of more than 50 clients, the opacity of a cell is.
    Clients of one true group are side by side on a band.

    Args:
        counts: samples per client and label, shape (N, C).
        groups: true group of each client, shape (N,), or None.
    """
    n, labels = counts.shape
    order = np.arange(n) if groups is None else np.argsort(groups, kind="stable")
    shown, many = counts[order], n > MANY_CLIENTS
    with new_figure(height_of(labels)) as figure:
        axes = figure.add_subplot()
        if groups is not None:
            draw_bands(axes, groups[order])
        draw_counts(axes, shown, height_of(labels) - 0.7)
        axes.set_xlim(-0.5, n - 0.5)
        axes.set_ylim(-0.5, labels - 0.5)
        places = ticks(n, 25)
        axes.set_xticks(places, [str(order[place]) for place in places], rotation=90)
        places = ticks(labels, 25)
        axes.set_yticks(places, [str(place) for place in places])
        by = "" if groups is None else ", by true group"
        kind = "fullest cell" if many else "largest dot"
        most = float((_binned(shown) if many else shown).max())
        axes.set_xlabel(f"client{by} ({kind}: {most:.4g} samples)")
        axes.set_ylabel("label")
        axes.tick_params(labelsize=SMALLEST, length=2)
        return to_svg(figure, title, description(counts, groups))


def description(counts: Ints, groups: Ints | None) -> str:
    """What the figure shows, as alternative text.

    Example:
        >>> description(np.array([[3, 0], [0, 4]]), np.array([0, 1]))
        '2 clients and 2 labels in 2 true groups: 3 to 4 samples and 1 to 1 labels per client'
    """
    sizes, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    known = "" if groups is None else f" in {len(np.unique(groups))} true groups"
    return (
        f"{len(counts)} clients and {counts.shape[1]} labels{known}: {sizes.min()} to {sizes.max()}"
        f" samples and {held.min()} to {held.max()} labels per client"
    )


def draw_counts(axes: Axes, counts: Ints, height: float) -> None:
    """Draw a dot per client and label; of more than 50 clients, a cell.

    Args:
        height: of the axes in inches, about.
    """
    if len(counts) > MANY_CLIENTS:
        _cells(axes, counts)
    else:
        _dots(axes, counts, height)


def height_of(labels: int) -> float:
    """Height in inches: about a seventh of an inch per label, within limits."""
    return float(np.clip(labels / 7 + 0.8, 1.8, 5))


def ticks(count: int, most: int) -> list[int]:
    """At most `most` positions of 0..count-1, at a round distance."""
    steps = (scale * step for scale in (10**k for k in range(9)) for step in (1, 2, 5))
    return list(range(0, count, next(step for step in steps if count <= most * step)))


def draw_bands(axes: Axes, groups: Ints, named: bool = True) -> None:
    """Draw a band behind each group, every other one shaded, with its name if there is room."""
    names, starts, sizes = np.unique(groups, return_index=True, return_counts=True)
    longest = max(len(str(name)) for name in names)
    fits = named and longest * len(names) <= BAND_CHARACTERS
    for place, (name, start, size) in enumerate(zip(names, starts, sizes, strict=True)):
        if place % 2 == 0:
            axes.axvspan(start - 0.5, start + size - 0.5, color=INK, alpha=0.18, linewidth=0)
        if fits:
            middle = start + (size - 1) / 2
            axes.annotate(
                f"{'group ' if len(names) <= 5 else ''}{name}",
                (middle, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=INK,
                fontsize=SMALLEST,
            )


def _dots(axes: Axes, counts: Ints, height: float) -> None:
    """Draw a dot per client and label; the largest one fits its cell."""
    n, labels = counts.shape
    room = 72 * min(0.85 * COLUMN / n, 0.75 * height / labels)
    client, label = np.nonzero(counts)
    area = (0.95 * room) ** 2 * counts[client, label] / max(int(counts.max(initial=0)), 1)
    axes.scatter(client, label, s=np.maximum(area, 0.3), color=DOT, linewidths=0)


def _cells(axes: Axes, counts: Ints) -> None:
    """Draw a cell per label and client, or few neighbours; its opacity is the number of samples."""
    from matplotlib.colors import to_rgb

    mean = _binned(counts)
    image = np.empty((*mean.T.shape, 4))
    image[..., :3] = to_rgb(DOT)
    image[..., 3] = np.sqrt(mean.T / max(float(mean.max()), 1e-9))
    axes.imshow(
        sharp(image),
        origin="lower",
        aspect="auto",
        extent=(-0.5, len(counts) - 0.5, -0.5, counts.shape[1] - 0.5),
    )


def _binned(counts: Ints) -> Floats:
    """Mean counts of neighbouring clients, at most `COLUMNS` rows."""
    starts = np.linspace(0, len(counts), min(len(counts), COLUMNS) + 1).astype(np.int64)
    sums = np.add.reduceat(counts, starts[:-1], axis=0)
    return sums / np.diff(starts)[:, None]
