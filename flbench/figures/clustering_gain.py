"""What clustering gives, in one look: scores in blocks, and the headline against traffic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flbench.figures.client_order import (
    groups_in_round,
    match_to_true_groups,
    true_groups,
)
from flbench.figures.pareto import description as points_in_words
from flbench.figures.pareto import draw_points, pareto_front, row_point
from flbench.figures.score_matrix import draw_scores
from flbench.figures.style import caption, new_figure, to_svg, wrapped
from flbench.metrics import Floats, Ints
from flbench.results.schema import Result


def scores_of_all(result: Result) -> Floats | None:
    """Scores of each client for each, shape (N, N), clients in order; None where there are none."""
    scores = result.scores
    n = len(result.clients.test)
    if scores is None or scores.columns != "clients":
        return None
    if not sorted(scores.row_ids) == sorted(scores.column_ids) == list(range(n)):
        return None
    return scores.values()[np.ix_(np.argsort(scores.row_ids), np.argsort(scores.column_ids))]


def found_groups(result: Result) -> Ints:
    """The groups at the time of the scores, shape (N,), named as the true ones they match."""
    labels = groups_in_round(result, result.scores.round if result.scores else 1)
    truth, _ = true_groups(result, labels)
    return match_to_true_groups(labels, truth)


def clustering_gain(
    grouped: Sequence[tuple[str, Sequence[Result]]],
    rows: Sequence[tuple[str, Sequence[Result]]],
    title: str,
) -> bytes | None:
    """Draw scores between clients, in a random order and by group; below them all rows.

    Args:
        grouped: rows; the first that has a score of each client for each other is drawn.
        rows: rows of the lower panel, final headline against megabytes per client.
        title: one line.
    """
    firsts = [(name, one, scores_of_all(one)) for name, (one, *_) in grouped]
    square = [(name, one, values) for name, one, values in firsts if values is not None]
    points = [point for name, results in rows if (point := row_point(name, results)) is not None]
    if not square or not points:
        return None
    name, result, values = square[0]
    groups = found_groups(result)
    order = np.lexsort((np.arange(len(groups)), groups))
    best = pareto_front([one.point for one in points])
    with new_figure(4.2) as figure:
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[1.75, 2.45])[:, 0]
        above.suptitle(wrapped(f"scores between clients: {name}, seed {result.seed}", 58))
        left, right = above.subplots(1, 2)
        none = np.zeros(len(groups), dtype=np.int64)
        mixed = np.random.default_rng(0).permutation(len(groups))
        draw_scores(left, values[np.ix_(mixed, mixed)], none, none)
        draw_scores(right, values[np.ix_(order, order)], groups[order], groups[order])
        left.set_xlabel("clients in a random order")
        left.set_ylabel("judging client")
        right.set_xlabel("clients by group found")
        draw_points(below.add_subplot(), points, best)
        caption(figure, "scores: a stronger blue is better; circles: Pareto front; bars: lowest to"
                        " highest seed")  # fmt: skip
        count = len(np.unique(groups[groups >= 0]))
        words = f"Scores between {len(groups)} clients of {name} fall into {count} groups."
        return to_svg(figure, title, f"{words} {points_in_words(points, best)}")
