"""Memberships: the group of every client in every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flbench.figures.client_order import (
    equal_runs,
    group_colours,
    match_to_true_groups,
    true_groups,
)
from flbench.figures.style import (
    INK,
    SMALLEST,
    caption,
    new_figure,
    one_line,
    sharp,
    to_svg,
    wrapped,
)
from flbench.metrics import Ints
from flbench.results.schema import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 8
MAX_LABELLED_GROUPS = 12
SINGLETON_COLOUR = (0.5, 0.5, 0.5, 0.22)


def timeline(result: Result) -> tuple[Ints, Ints, Ints]:
    """Group of every client in every round, with the names of the true groups.

    Before the first grouping it is that one, as in `groups_in_round`.

    Returns:
        Names, shape (R, N); size of the client's group, shape (R, N); true groups, shape (N,), or
        the last groups if these are unknown.
    """
    changes = result.memberships()
    n = len(result.clients.test)
    rounds = max([len(curve) for curve in result.curves.values()] + [r for r, _ in changes])
    last = np.array(changes[-1][1], dtype=np.int64)
    truth, _ = true_groups(result, last)
    names, sizes = np.zeros((2, rounds, n), dtype=np.int64)
    before: Ints | None = None
    for place, (number, texts) in enumerate(changes):
        start = max(number - 1, 0) if place else 0
        labels = np.array(texts, dtype=np.int64)
        before = match_to_true_groups(labels, truth, before)
        names[start:] = before
        count = np.unique(labels, return_inverse=True, return_counts=True)
        sizes[start:] = np.where(labels < 0, 1, count[2][count[1].reshape(-1)])
    return names, sizes, truth


def has_groups(result: Result) -> bool:
    """Whether groups changed, or there are more than one and fewer than clients."""
    n = len(result.clients.test)
    counts = {len(set(labels)) for _, labels in result.memberships()}
    return len(counts) > 1 or not counts <= {1, n}


def memberships(rows: Sequence[tuple[str, Sequence[Result]]], title: str) -> bytes | None:
    """Draw the group of every client against the round, a panel per row with groups.

    Clients are sorted by true group. A group has the colour of the true group it matches; groups
    of one client are light grey. At most the first 8 rows with groups are drawn.
    """
    drawn = [(name, result) for name, (result, *_) in rows if has_groups(result)]
    left_out, drawn = len(drawn[MAX_PANELS:]), drawn[:MAX_PANELS]
    if not drawn:
        return None
    across = min(len(drawn), 2)
    down = -(-len(drawn) // across)
    texts = []
    width = 28 if across > 1 else 60
    more_lines = max(_titled(name, one, width).count("\n") for name, one in drawn)
    with new_figure((1.3 + 0.11 * more_lines) * down + 0.6) as figure:
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes, (name, result) in zip(panels, drawn, strict=False):
            texts.append(_panel(axes, name, result, width))
        for axes in panels[len(drawn) :]:
            axes.axis("off")
        for axes in panels[max(len(drawn) - across, 0) : len(drawn)]:
            axes.set_xlabel("round")
        known = all(_has_few_true_groups(result) for _, result in drawn)
        right = "; right: share of clients in the group that matches, at the end" if known else ""
        caption(figure, f"colour: group; light grey: in a group of one, or in none{right}")
        more = f" {left_out} more are not drawn." if left_out else ""
        return to_svg(
            figure, title, f"Group of every client in every round. {'; '.join(texts)}.{more}"
        )


def _has_few_true_groups(result: Result) -> bool:
    """Whether each true group has a share beside it."""
    groups = result.clients.group
    return groups is not None and len({*groups}) <= MAX_LABELLED_GROUPS


def _titled(name: str, result: Result, width: int) -> str:
    """A panel's title, on lines of a width in characters."""
    words = f"{one_line(name)}, seed {result.seed}"
    return wrapped(words, width, len(words))


def _panel(axes: Axes, name: str, result: Result, width: int) -> str:
    """Draw one result; return its description."""
    names, sizes, truth = timeline(result)
    rounds, n = names.shape
    few = len(np.unique(truth)) <= MAX_LABELLED_GROUPS
    history = [*names[::-1], *((names[-1], truth) if few else ())]
    order = np.lexsort(history)
    image = group_colours(names.T[order])
    image[sizes.T[order] == 1] = SINGLETON_COLOUR
    axes.imshow(sharp(image), aspect="auto", extent=(0.5, rounds + 0.5, n - 0.5, -0.5))
    runs, known = equal_runs(truth[order]) if few else [], result.clients.group is not None
    for _, start, stop in runs:
        if start:
            axes.axhline(start - 0.5, color=INK, linewidth=0.6)
        if known:
            hit = float((names[-1][order][start:stop] == truth[order][start]).mean())
            axes.annotate(
                f"{100 * hit:.0f} %", (1.01, (start + stop) / 2 - 0.5),
                xycoords=("axes fraction", "data"), va="center", fontsize=SMALLEST,
                annotation_clip=False,
            )  # fmt: skip
    wide = [run for run in runs if run[2] - run[1] >= n / 16]
    axes.set_yticks(
        [(start + stop) / 2 - 0.5 for _, start, stop in wide], [str(g) for g, *_ in wide]
    )
    kind = "client" if not few else "true group" if known else "final group"
    axes.set_ylabel(kind, fontsize=6.5)
    axes.tick_params(axis="y", length=0)
    axes.set_title(_titled(name, result, width), fontsize=6.5, pad=3)
    last = len(np.unique(names[-1][names[-1] >= 0]))
    agree = f", {100 * float((names[-1] == truth).mean()):.0f} % as in truth" if known else ""
    return f"{name}, seed {result.seed}: {last} groups at the end{agree}"
