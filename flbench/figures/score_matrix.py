"""Score matrices: what a method saw when it made groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.client_order import Floats, Ints, borders, colours_of, labels_at, truth_of
from flbench.figures.dendrograms import Tree, by_density, dendrogram, forks, reachability
from flbench.figures.style import COLOURS, INK, caption, plain, sheet, written
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


PANELS = 8


LEVELS = 16


NOT_ASKED = (0.48, 0.48, 0.48, 0.4)


MOST = 200


FEW = 12


@dataclass(frozen=True)
class Grid:
    """A score matrix as it is drawn.

    Attributes:
        values: shape (n, m), rows and columns in drawing order; NaN = not asked.
        rows: group of each row, shape (n,); columns: of each column, or None of models.
        known: whether groups are the true ones.
        tree: of a square matrix of clients; its order is of positions in `row_ids`.
        groups: group of each position in `row_ids`, shape (n,).
    """

    values: Floats
    rows: Ints
    columns: Ints | None
    known: bool
    tree: Tree | None
    groups: Ints


def grid(result: Result) -> Grid | None:
    """A result's matrix, sorted by true group and then by likeness; None of less than 4 entries."""
    scores = result.scores
    if scores is None or len(scores.row_ids) * len(scores.column_ids) < 4:
        return None
    values = scores.values()
    if not np.isfinite(values).any():
        return None
    labels = labels_at(result, scores.round)
    truth, known = truth_of(result, labels)
    rows, columns = np.array(scores.row_ids), np.array(scores.column_ids)
    square = scores.columns == "clients" and sorted(rows) == sorted(columns)
    tree = None
    if square:
        place = {client: index for index, client in enumerate(columns.tolist())}
        values = values[:, [place[client] for client in rows.tolist()]]
        columns = rows
        params = result.method.params
        tree = reachability(values, params) if by_density(params, values) else dendrogram(values)
    like = np.arange(len(rows)) if tree is None else np.argsort(tree.order)
    if not known and len(np.unique(truth)) > FEW:  # too many to show: by likeness alone
        truth, labels = np.zeros_like(truth), np.zeros_like(labels)
    down = np.lexsort((like, labels[rows], truth[rows]))
    across = np.arange(len(columns))
    if scores.columns == "clients":
        across = down if square else np.lexsort((columns, labels[columns], truth[columns]))
    return Grid(
        values[np.ix_(down, across)],
        truth[rows][down],
        truth[columns][across] if scores.columns == "clients" else None,
        known,
        tree,
        truth[rows],
    )


def scores(results: Sequence[Result], title: str) -> bytes | None:
    """Draw score matrices, a panel each; beside those of clients, who is like whom.

    Rows and columns stand by true group. Blue helps and vermilion harms where signs differ; else
    the fuller, the better. What was not asked is grey. Beside it stands the dendrogram (average
    linkage) of 1 - normalised symmetrised score, or the reachability of OPTICS on the rows where
    the method groups by density.

    Args:
        results: at most the first 8 with a matrix of at least 4 entries are drawn.
        title: one line on top.

    Returns:
        An SVG file, or None where there is no such matrix.
    """
    found = [(result, one) for result in results if (one := grid(result)) is not None]
    left_out, found = len(found[PANELS:]), found[:PANELS]
    if not found:
        return None
    across = min(len(found), 2)
    down = -(-len(found) // across)
    with sheet(4.2 * across, 2.75 * down + 0.5) as figure:
        figure.set_layout_engine("constrained", h_pad=0.09)  # room for the scales
        panels = figure.subplots(
            down, 2 * across, squeeze=False, gridspec_kw={"width_ratios": [1, 0.62] * across}
        ).reshape(-1, 2)
        for (one, two), (result, shown) in zip(panels, found, strict=False):
            _matrix(one, result, shown)
            _tree(two, shown)
        for pair in panels[len(found) :]:
            for axes in pair:
                axes.axis("off")
        caption(figure, "higher is better; grey: not asked; the strip shows groups")
        more = f" {left_out} more are not drawn." if left_out else ""
        told = "; ".join(described(result, shown) for result, shown in found)
        return written(figure, title, f"Score matrices, higher is better. {told}.{more}")


def described(result: Result, shown: Grid) -> str:
    """A panel in words."""
    assert result.scores is not None
    n, m = shown.values.shape
    kind = result.scores.columns
    beside = "" if shown.tree is None else ", beside it "
    if shown.tree is not None:
        beside += (
            "the reachability of OPTICS on its rows"
            if shown.tree.merges is None
            else "the average-linkage dendrogram of 1 - normalised symmetrised score"
        )
    return (
        f"{result.method.name}, seed {result.seed}, round {result.scores.round}: {n} clients by"
        f" {m} {kind}, {result.scores.low:.3g} to {result.scores.high:.3g}{beside}"
    )


def shades(values: Floats, low: float, high: float) -> Floats:
    """Colours of scores, shape (..., 4); grey where not asked.

    From `low` to `high` they get fuller; where these differ in sign, nothing is drawn at 0 and
    either side has its own colour.
    """
    from matplotlib.colors import to_rgb

    known = np.isfinite(values)
    asked = np.where(known, values, low)
    if low < 0 < high:
        strength = np.where(asked < 0, -asked / low, asked / high)
    else:
        strength = (asked - low) / ((high - low) or 1.0)
    steps = np.round(strength.clip(-1 if low < 0 < high else 0, 1) * LEVELS) / LEVELS
    image = np.empty((*values.shape, 4))
    image[..., :3] = np.where(steps[..., None] >= 0, to_rgb(COLOURS[0]), to_rgb(COLOURS[1]))
    image[..., 3] = np.abs(steps)
    image[~known] = NOT_ASKED
    return image


def binned(values: Floats) -> Floats:
    """Means of neighbours, at most 200 rows and columns; NaN where none of them was asked."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0.0), known.astype(float)
    for axis in (0, 1):
        size = values.shape[axis]
        starts = np.linspace(0, size, min(size, MOST) + 1).astype(np.int64)[:-1]
        total, count = (np.add.reduceat(part, starts, axis=axis) for part in (total, count))
    mean: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def _matrix(axes: Axes, result: Result, shown: Grid) -> None:
    """The matrix, borders between groups, and its scale below."""
    n, m = shown.values.shape
    low, high = np.nanpercentile(shown.values, [2, 98])
    image = shades(binned(shown.values), low, high)
    axes.imshow(image, aspect="auto", interpolation="none", extent=(-0.5, m - 0.5, n - 0.5, -0.5))
    for groups, line, ticks in (
        (shown.rows, axes.axhline, axes.set_yticks),
        (shown.columns, axes.axvline, axes.set_xticks),
    ):
        if groups is None:
            continue
        runs = borders(groups) if len(np.unique(groups)) <= FEW else []
        for _, start, _ in runs[1:]:
            line(start - 0.5, color=INK, linewidth=0.6)
        wide = [run for run in runs if run[2] - run[1] >= len(groups) / 25]
        few = wide if len(runs) > 1 else []
        ticks([(start + stop - 1) / 2 for _, start, stop in few], [str(g) for g, _, _ in few])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)
    several = len(np.unique(shown.rows)) > 1
    kind = ", by true group" if shown.known else ", by group found"
    axes.set_ylabel(f"judging client{kind if several else ''}")
    axes.set_xlabel("judged client" if shown.columns is not None else "judged model")
    axes.set_title(f"{plain(result.method.name)}, seed {result.seed}")
    bar = axes.inset_axes((0.0, -0.29, 1.0, 0.04))
    ends = [low, 0.0, high] if low < 0 < high else [low, high]
    ramp = np.concatenate([np.linspace(*pair, 2 * LEVELS) for pair in pairwise(ends)])
    places = np.linspace(0, 1, len(ends))
    bar.imshow(shades(ramp[None], low, high), aspect="auto", extent=(0, 1, 0, 1))
    bar.set_yticks([])
    told = ["0" if end == 0 else f"{end:.3g}" for end in ends]
    bar.set_xticks(places, [f"≤ {told[0]}", *told[1:-1], f"≥ {told[-1]}"])
    bar.tick_params(length=1.5, labelsize=6)


def _tree(axes: Axes, shown: Grid) -> None:
    """Who is like whom, beside a strip of the groups."""
    if shown.tree is None:
        axes.axis("off")
        return
    tree, n = shown.tree, len(shown.groups)
    if tree.merges is not None:
        heights, places = forks(tree.merges, tree.order)
        axes.plot(heights, places, color=INK, linewidth=0.6)
        top = float(tree.merges[-1, 2]) or 1.0
        axes.set_xlabel("1 - score, normalised")
        axes.set_title("dendrogram")
    else:
        assert tree.reach is not None
        finite = tree.reach[np.isfinite(tree.reach)]
        top = float(finite.max(initial=0.0)) or 1.0
        reach = np.where(np.isfinite(tree.reach), tree.reach, top)
        axes.stairs(
            reach, np.arange(n + 1) - 0.5, orientation="horizontal", fill=True, color=INK, alpha=0.9
        )
        axes.set_xlabel("reachability")
        axes.set_title("OPTICS")
    axes.set_xlim(-0.1 * top, 1.03 * top)
    axes.set_ylim(n - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if len(np.unique(shown.groups)) == 1:
        return
    strip = colours_of(shown.groups[tree.order])[:, None]
    axes.imshow(
        strip, aspect="auto", interpolation="none", extent=(-0.1 * top, -0.03 * top, n - 0.5, -0.5)
    )
    for group, start, stop in borders(shown.groups[tree.order]):
        if stop - start >= n / 20:
            axes.text(
                -0.13 * top, (start + stop - 1) / 2, str(group), ha="right", va="center", fontsize=6
            )
