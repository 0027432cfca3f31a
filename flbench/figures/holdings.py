"""Figure of a federation before anything is trained: who has what.

From top to bottom: the labels of each client, its domains, and its samples to train, validate and
test on. Where the targets are no classes, there are no labels, and sizes alone are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.partition import (
    COLUMNS,
    MANY_CLIENTS,
    draw_bands,
    draw_counts,
    ticks,
)
from flbench.figures.style import COLOURS, INK, SMALLEST, new_figure, one_line, to_svg
from flbench.metrics import Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES_HEIGHT = 1.4
"""Inches of the lowest part."""
LONGEST_NAME = 14
"""Characters of the name of a label or domain."""
PARTS = ("train", "validate", "test")


def draw_holdings(
    sizes: Ints,
    kinds: Sequence[tuple[str, Ints, Sequence[str]]],
    groups: Ints | None,
    newcomers: int,
    title: str,
) -> bytes:
    """Draw what each client has, clients from left to right, those of a true group side by side.

    Args:
        sizes: samples to train, validate and test on, shape (N + M, 3); newcomers are the last M.
        kinds: what else is counted, such as labels: its name, samples per client and kind, shape
            (N + M, C), and C names.
        groups: true group of each client, shape (N + M,), or None.
        newcomers: clients that join after the last round, M; they stand on the right.
    """
    n = len(sizes)
    late = np.arange(n) >= n - newcomers
    keys = (np.zeros(n, dtype=np.int64) if groups is None else groups, late)
    order = np.lexsort(keys)
    heights = [float(np.clip(counts.shape[1] / 7 + 0.3, 0.7, 5)) for _, counts, _ in kinds]
    heights.append(SIZES_HEIGHT)
    with new_figure(sum(heights) + 0.4) as figure:
        every: list[Axes] = list(
            figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[
                :, 0
            ]
        )
        for axes, height, (name, counts, names) in zip(every, heights, kinds, strict=False):
            draw_counts(axes, counts[order], height - 0.2)
            axes.set_ylim(-0.5, counts.shape[1] - 0.5)
            places = ticks(counts.shape[1], 25)
            axes.set_yticks(places, [one_line(names[place], LONGEST_NAME) for place in places])
            axes.set_ylabel(name)
        _draw_sizes(every[-1], sizes[order])
        for number, axes in enumerate(every):
            if groups is not None:
                draw_bands(axes, groups[order][: n - newcomers], named=number == 0)
            if newcomers:
                axes.axvline(n - newcomers - 0.5, color=INK, linewidth=0.8, linestyle="--")
                axes.axvspan(n - newcomers - 0.5, n - 0.5, color=INK, alpha=0.07, linewidth=0)
            axes.tick_params(labelsize=SMALLEST, length=2)
        every[-1].set_xlim(-0.5, n - 0.5)
        places = ticks(n, 25)
        every[-1].set_xticks(places, [str(order[place]) for place in places], rotation=90)
        by = "" if groups is None else ", by true group"
        every[-1].set_xlabel(f"client{by}" + ("; on the right: join late" if newcomers else ""))
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        return to_svg(figure, title, description(sizes, kinds, groups, newcomers))


def _draw_sizes(axes: Axes, sizes: Ints) -> None:
    """Draw a bar per client, or few neighbours: samples to train, validate and test on."""
    n = len(sizes)
    edges = np.linspace(0, n, min(n, COLUMNS) + 1).astype(np.int64)
    widths = np.diff(edges)
    means = np.add.reduceat(sizes, edges[:-1], axis=0) / widths[:, None]
    below = np.zeros(len(means))
    for part, colour, column in zip(PARTS, COLOURS, means.T, strict=False):
        axes.bar(
            edges[:-1] - 0.5, column, widths * (1.0 if n > MANY_CLIENTS else 0.8), bottom=below,
            align="edge", color=colour, linewidth=0, label=part,
        )  # fmt: skip
        below = below + column
    axes.set_ylabel("samples")


def description(
    sizes: Ints,
    kinds: Sequence[tuple[str, Ints, Sequence[str]]],
    groups: Ints | None,
    newcomers: int,
) -> str:
    """What the figure shows, as alternative text.

    Example:
        >>> counts = np.array([[3, 0], [0, 4], [2, 2]])
        >>> sizes = np.array([[2, 1, 1], [3, 1, 1], [3, 1, 2]])
        >>> print(description(sizes, [("label", counts, "ab")], np.array([0, 0, 1]), 1))
        3 clients in 2 true groups, of which 1 join late: 4 to 6 samples, 1 to 2 of 2 labels each
    """
    every = sizes.sum(axis=1)
    text = f"{len(sizes)} clients"
    text += "" if groups is None else f" in {len(np.unique(groups))} true groups"
    text += f", of which {newcomers} join late" if newcomers else ""
    text += f": {every.min()} to {every.max()} samples"
    for name, counts, _ in kinds:
        held = (counts > 0).sum(axis=1)
        text += f", {held.min()} to {held.max()} of {counts.shape[1]} {name}s"
    return f"{text} each"
