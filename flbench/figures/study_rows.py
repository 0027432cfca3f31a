"""Figures of a study's rows: lists against each other or as matrices; numbers as bars or lines.

A row is plain data, as `flbench.sweeps.study` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from flbench.figures.style import COLOURS, MARKERS, caption, new_figure, sharp, to_svg, wrapped
from flbench.metrics import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DrawnRow = Mapping[str, Any]
ACROSS = 4
"""Matrices in a line of a figure."""
FIRST = 6
"""Clients of whom a matrix is drawn where a row has all pairs of clients."""


def pairs(rows: Sequence[DrawnRow], names: Sequence[str], title: str) -> bytes | None:
    """Draw two lists of each row against each other: a mark for each pair of entries.

    Args:
        names: of the columns for the horizontal and the vertical axis.
    """
    across, up = names
    found = [(row[across], row[up]) for row in rows if row.get(across) and row.get(up)]
    if not found:
        return None
    with new_figure(2.4) as figure:
        axes = figure.add_subplot()
        for place, (x, y) in enumerate(found[: len(COLOURS)]):
            axes.plot(
                x, y, linestyle="none", marker=MARKERS[place], markersize=2, alpha=0.5,
                color=COLOURS[place],
            )  # fmt: skip
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        runs = "1 run" if len(found) == 1 else f"each of {len(found)} runs"
        caption(figure, f"{len(found[0][0])} pairs of clients in {runs}")
        one, other = (np.concatenate([pair[side] for pair in found]) for side in (0, 1))
        r = float(np.corrcoef(one, other)[0, 1])
        return to_svg(figure, title, f"{up} against {across}; correlation of all marks {r:.3f}.")


def matrices(rows: Sequence[DrawnRow], names: Sequence[str], title: str) -> bytes | None:
    """Draw lists of each row as matrices, a panel for each row and name.

    A list of lists is a matrix; a list of numbers holds the pairs (0, 1), (0, 2), ... of clients,
    of whom the first six are drawn. Of each matrix 0 is blank and its largest entry is full.
    """
    found = [
        (_label(row, name if len(names) > 1 else ""), as_matrix(row[name]))
        for row in rows
        for name in names
        if row.get(name)
    ]
    if not found:
        return None
    across = min(ACROSS, len(found))
    lines = -(-len(found) // across)
    with new_figure(1.15 * lines * 4 / max(across, 3) + 0.5) as figure:
        panels = figure.subplots(lines, across, squeeze=False).ravel()
        for axes, (label, matrix) in zip(panels, found, strict=False):
            _draw(axes, matrix)
            axes.set_title(wrapped(label, 60 // across))
        for axes in panels[len(found) :]:
            axes.set_axis_off()
        caption(figure, "blank: 0; full: the largest entry of the matrix; row and column: clients")
        ends = "; ".join(f"{label}: {m.min():.3g} to {m.max():.3g}" for label, m in found)
        return to_svg(figure, title, f"Matrices of clients. {ends}.")


def as_matrix(values: Sequence[Any]) -> Floats:
    """The matrix of a list of lists, or of the pairs of clients, without a diagonal: 0.

    Example:
        >>> as_matrix([0.5, 0.25, 1.0]).tolist()
        [[0.0, 0.5, 0.25], [0.5, 0.0, 1.0], [0.25, 1.0, 0.0]]
    """
    table = np.array(values, dtype=np.float64)
    if table.ndim == 2:
        return table
    clients = (1 + isqrt(1 + 8 * len(table))) // 2
    matrix = np.zeros((clients, clients))
    matrix[np.triu_indices(clients, 1)] = table
    return (matrix + matrix.T)[:FIRST, :FIRST]


def bars(rows: Sequence[DrawnRow], names: Sequence[str], title: str) -> bytes | None:
    """Draw numbers of each row as horizontal bars, a colour for each name; None is no bar."""
    found = [row for row in rows if any(row.get(name) is not None for name in names)]
    if not found:
        return None
    height = 0.8 / len(names)
    with new_figure(0.6 + 0.13 * len(found) * max(len(names), 2)) as figure:
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            at = np.arange(len(found)) + place * height
            widths = [row.get(name) or 0.0 for row in found]
            axes.barh(at, widths, height, color=COLOURS[place], label=name)
        axes.set_yticks(np.arange(len(found)) + 0.4 - height / 2)
        axes.set_yticklabels([_label(row) for row in found])
        axes.invert_yaxis()
        figure.legend(loc="outside lower left", ncols=2, frameon=False, labelcolor="linecolor")
        words = "; ".join(
            f"{_label(row)}: " + ", ".join(f"{name} {row.get(name)}" for name in names)
            for row in found
        )
        return to_svg(figure, title, f"Bars. {words}.")


def lines(rows: Sequence[DrawnRow], names: Sequence[str], title: str) -> bytes | None:
    """Draw a number of each row against another, a line for each value of a third.

    Args:
        names: of the columns for the horizontal and the vertical axis, and of that which has a line
            for each of its values.
    """
    across, up, by = names
    found: dict[Any, list[tuple[float, float]]] = {}
    for row in rows:
        if row.get(across) is not None and row.get(up) is not None:
            found.setdefault(row.get(by), []).append((row[across], row[up]))
    if not found:
        return None
    with new_figure(2.4) as figure:
        axes = figure.add_subplot()
        for place, (value, places) in enumerate(found.items()):
            axes.plot(
                *zip(*sorted(places), strict=True), label=f"{value}", markersize=3,
                color=COLOURS[place % len(COLOURS)], marker=MARKERS[place % len(MARKERS)],
            )  # fmt: skip
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        figure.legend(
            title=by, loc="outside lower left", ncols=6, frameon=False, labelcolor="linecolor"
        )
        words = "; ".join(
            f"{by} {value}: " + ", ".join(f"{x:g} {y:.4f}" for x, y in sorted(places))
            for value, places in found.items()
        )
        return to_svg(figure, title, f"{up} against {across}. {words}.")


def _label(row: DrawnRow, more: str = "") -> str:
    """What names a row: its words, and the round if it has one."""
    words = [str(value) for value in row.values() if isinstance(value, str)]
    place = [f"round {row['round']}"] if "round" in row else []
    return ", ".join([*words, *place, *([more] if more else [])])


def _draw(axes: Axes, matrix: Floats) -> None:
    """One matrix, the first row on top."""
    from matplotlib.colors import to_rgb
    from matplotlib.ticker import MaxNLocator

    image = np.empty((*matrix.shape, 4))
    image[..., :3], image[..., 3] = to_rgb(COLOURS[0]), matrix / (matrix.max() or 1.0)
    n, m = matrix.shape
    axes.imshow(sharp(image), aspect="equal", extent=(-0.5, m - 0.5, n - 0.5, -0.5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
