"""Score matrices, from which methods make groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.client_order import (
    equal_runs,
    group_colours,
    groups_in_round,
    true_groups,
)
from flbench.figures.dendrograms import (
    Tree,
    dendrogram,
    dendrogram_lines,
    groups_by_density,
    reachability,
    with_features,
)
from flbench.figures.style import (
    COLOURS,
    INK,
    SMALLEST,
    caption,
    new_figure,
    one_line,
    sharp,
    to_svg,
    wrapped,
)
from flbench.metrics import Floats, Ints
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 4
LEVELS = 16
MISSING_COLOUR = (0.48, 0.48, 0.48, 0.4)
MAX_CELLS = 200
MAX_LABELLED_GROUPS = 12


@dataclass(frozen=True)
class DrawnMatrix:
    """A score matrix as it is drawn.

    Attributes:
        values: shape (n, m), rows and columns in drawing order; NaN = not measured.
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


def sorted_matrix(result: Result) -> DrawnMatrix | None:
    """A result's matrix, sorted by true group, then by similarity; None of less than 4 entries."""
    scores = result.scores
    if scores is None or len(scores.row_ids) * len(scores.column_ids) < 4:
        return None
    values = scores.values()
    if not np.isfinite(values).any():
        return None
    labels = groups_in_round(result, scores.round)
    truth, known = true_groups(result, labels)
    rows, columns = np.array(scores.row_ids), np.array(scores.column_ids)
    square = scores.columns == "clients" and sorted(rows) == sorted(columns)
    tree = None
    if square:
        place = {client: index for index, client in enumerate(columns.tolist())}
        values = values[:, [place[client] for client in rows.tolist()]]
        columns = rows
        params = with_features(result.method.params)
        by_density = groups_by_density(params, values)
        tree = reachability(values, params) if by_density else dendrogram(values)
    similarity_order = np.arange(len(rows)) if tree is None else np.argsort(tree.order)
    if not known and len(np.unique(truth)) > MAX_LABELLED_GROUPS:  # too many groups
        truth, labels = np.zeros_like(truth), np.zeros_like(labels)
    down = np.lexsort((similarity_order, labels[rows], truth[rows]))
    across = np.arange(len(columns))
    if scores.columns == "clients":
        across = down if square else np.lexsort((columns, labels[columns], truth[columns]))
    return DrawnMatrix(
        values[np.ix_(down, across)],
        truth[rows][down],
        truth[columns][across] if scores.columns == "clients" else None,
        known,
        tree,
        truth[rows],
    )


def scores(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw score matrices, a panel each; beside those of clients, their similarity.

    Rows and columns are sorted by true group. If signs differ, blue is positive (helps) and
    vermilion negative (harms); else a stronger colour is better. Entries that were not measured are
    grey. The similarity is a dendrogram (average linkage) of 1 - normalised symmetrised score, or
    the reachability of OPTICS on the rows if the method clusters by density. Four
    matrices of at least 4 entries are drawn, those of clients first.
    """
    firsts = [(name, result) for name, (result, *_) in rows]
    found = [(name, one, m) for name, one in firsts if (m := sorted_matrix(one)) is not None]
    found.sort(key=lambda one: one[2].columns is None)  # those of clients first
    left_out, found = len(found[MAX_PANELS:]), found[:MAX_PANELS]
    if not found:
        return None
    longest = max(len(one_line(name)) for name, *_ in found)
    with new_figure((1.95 if longest < 40 else 2.1) * len(found) + 0.4) as figure:
        parts = figure.subfigures(len(found), 1, squeeze=False)[:, 0]
        for part, (name, result, matrix) in zip(parts, found, strict=True):
            kind = matrix.tree and ("dendrogram" if matrix.tree.merges is not None else "OPTICS")
            beside = f"; {kind}" if kind else ""
            words = f"{one_line(name)}, seed {result.seed}{beside}"
            part.suptitle(wrapped(words, 58, len(words)), fontsize=7)
            if matrix.tree is None:
                _draw_matrix(part.add_subplot(), matrix)
                continue
            one, two = part.subplots(1, 2, gridspec_kw={"width_ratios": [1, 0.62]})
            _draw_matrix(one, matrix)
            _draw_tree(two, matrix.tree, matrix.groups)
        groups = "true groups" if all(matrix.known for *_, matrix in found) else "groups"
        caption(figure, f"higher is better; grey: not asked; strip and numbers: {groups}")
        more = f" {left_out} more are not drawn." if left_out else ""
        texts = "; ".join(description(name, result, matrix) for name, result, matrix in found)
        return to_svg(figure, title, f"Score matrices, higher is better. {texts}.{more}")


def description(name: str, result: Result, matrix: DrawnMatrix) -> str:
    """A panel in words."""
    assert result.scores is not None
    n, m = matrix.values.shape
    kind = result.scores.columns
    beside = ""
    if matrix.tree is not None and matrix.tree.merges is not None:
        beside = ", beside it the average-linkage dendrogram of 1 - normalised symmetrised score"
    elif matrix.tree is not None:
        beside = ", beside it the reachability of OPTICS on its rows"
    return (
        f"{name}, seed {result.seed}, round {result.scores.round}: {n} clients by"
        f" {m} {kind}, {result.scores.low:.3g} to {result.scores.high:.3g}{beside}"
    )


def score_colours(values: Floats, low: float, high: float) -> Floats:
    """Colours of scores, shape (..., 4); grey where not measured.

    Opacity grows from `low` to `high`. If these differ in sign, it is 0 at score 0 and each sign
    has its own colour.
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
    image[~known] = MISSING_COLOUR
    return image


def downsampled(values: Floats) -> Floats:
    """Means of neighbouring entries, at most 200 rows and columns; NaN where none is measured."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0.0), known.astype(float)
    for axis in (0, 1):
        size = values.shape[axis]
        starts = np.linspace(0, size, min(size, MAX_CELLS) + 1).astype(np.int64)[:-1]
        total, count = (np.add.reduceat(part, starts, axis=axis) for part in (total, count))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def draw_scores(axes: Axes, values: Floats, rows: Ints, columns: Ints | None) -> None:
    """Draw scores, shape (n, m), and lines between runs of equal groups of rows and columns."""
    n, m = values.shape
    low, high = np.nanpercentile(values, [2, 98])
    image = score_colours(downsampled(values), low, high)
    axes.imshow(sharp(image), aspect="auto", extent=(-0.5, m - 0.5, n - 0.5, -0.5))
    for groups, line, ticks in (
        (rows, axes.axhline, axes.set_yticks),
        (columns, axes.axvline, axes.set_xticks),
    ):
        if groups is None:
            continue
        runs = equal_runs(groups) if len(np.unique(groups)) <= MAX_LABELLED_GROUPS else []
        for _, start, _ in runs[1:]:
            line(start - 0.5, color=INK, linewidth=0.6)
        wide = [run for run in runs if run[2] - run[1] >= len(groups) / 25]
        few = wide if len(runs) > 1 else []
        ticks([(start + stop - 1) / 2 for _, start, stop in few], [str(g) for g, _, _ in few])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)


def _draw_matrix(axes: Axes, matrix: DrawnMatrix) -> None:
    """Draw the matrix, lines between groups, and the colour scale above."""
    draw_scores(axes, matrix.values, matrix.rows, matrix.columns)
    if matrix.columns is None:  # models
        count = matrix.values.shape[1]
        axes.set_xticks(range(count) if count <= MAX_LABELLED_GROUPS else [])
    low, high = np.nanpercentile(matrix.values, [2, 98])
    several = len(np.unique(matrix.rows)) > 1
    kind = ", by true group" if matrix.known else ", by group found"
    axes.set_ylabel(f"judging client{kind if several else ''}", fontsize=6.5)
    axes.set_xlabel("judged client" if matrix.columns is not None else "judged model", fontsize=6.5)
    bar = axes.inset_axes((0.0, 1.04, 1.0, 0.035))
    ends = [low, 0.0, high] if low < 0 < high else [low, high]
    ramp = np.concatenate([np.linspace(*pair, 2 * LEVELS) for pair in pairwise(ends)])
    places = np.linspace(0, 1, len(ends))
    bar.imshow(sharp(score_colours(ramp[None], low, high)), aspect="auto", extent=(0, 1, 0, 1))
    bar.set_yticks([])
    texts = ["0" if end == 0 else f"{end:.3g}" for end in ends]
    bar.set_xticks(places, [f"≤ {texts[0]}", *texts[1:-1], f"≥ {texts[-1]}"])
    bar.xaxis.tick_top()
    bar.tick_params(length=1.5, labelsize=SMALLEST, pad=1)
    labels = bar.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    labels[-1].set_horizontalalignment("right")


def _draw_tree(axes: Axes, tree: Tree, groups: Ints) -> None:
    """Draw the similarity of clients, beside a strip of the groups."""
    n = len(groups)
    if tree.merges is not None:
        heights, places = dendrogram_lines(tree.merges, tree.order)
        axes.plot(heights, places, color=INK, linewidth=0.6)
        top = float(tree.merges[-1, 2]) or 1.0
        axes.set_xlabel("1 - score, normalised", fontsize=6.5)
    else:
        assert tree.reach is not None
        finite = tree.reach[np.isfinite(tree.reach)]
        top = float(finite.max(initial=0.0)) or 1.0
        reach = np.where(np.isfinite(tree.reach), tree.reach, top)
        axes.stairs(
            reach, np.arange(n + 1) - 0.5, orientation="horizontal", fill=True, color=INK, alpha=0.9
        )
        axes.set_xlabel("reachability", fontsize=6.5)
    axes.set_xlim(-0.1 * top, 1.03 * top)
    axes.set_ylim(n - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if len(np.unique(groups)) == 1:
        return
    strip = group_colours(groups[tree.order])[:, None]
    axes.imshow(sharp(strip), aspect="auto", extent=(-0.1 * top, -0.03 * top, n - 0.5, -0.5))
    for group, start, stop in equal_runs(groups[tree.order]):
        if stop - start >= n / 20:
            axes.text(
                -0.13 * top,
                (start + stop - 1) / 2,
                str(group),
                ha="right",
                va="center",
                fontsize=SMALLEST,
            )
