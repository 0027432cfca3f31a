"""Critical difference diagram: which average ranks differ significantly (Demšar, JMLR 2006)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flbench.figures.style import COLOURS, INK, new_figure, one_line, to_svg


def cliques(ranks: Sequence[float], distance: float) -> list[tuple[int, int]]:
    """First and last index of each maximal run of at least two ranks that differ by less.

    Example:
        >>> cliques([1.0, 1.5, 2.2, 4.0], 1.0)
        [(0, 1), (1, 2)]
    """
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(index for index, other in enumerate(ranks) if other - rank < distance)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def bar_rows(bars: Sequence[tuple[float, float]]) -> list[int]:
    """For each bar, the first row on which it touches no earlier bar.

    Example:
        >>> bar_rows([(1.0, 2.0), (1.5, 3.0), (2.5, 4.0)])
        [0, 1, 0]
    """
    found: list[int] = []
    for start, stop in bars:
        earlier = zip(found, bars, strict=False)
        busy = {row for row, (left, right) in earlier if start <= right and left <= stop}
        found.append(next(row for row in range(len(bars)) if row not in busy))
    return found


def critical_difference(
    ranks: Mapping[str, float], distance: float, blocks: int, title: str
) -> bytes | None:
    """Draw average ranks; a bar joins methods that do not differ significantly.

    Args:
        ranks: average rank of each method, 1 = best.
        distance: the critical difference, > 0.
        blocks: number of blocks (suites, or suites and seeds) that ranks are averaged over.
    """
    if len(ranks) < 2:
        return None
    order = sorted(ranks.items(), key=lambda item: (item[1], item[0]))
    values = [rank for _, rank in order]
    bars = cliques(values, distance)
    half = (len(order) + 1) // 2
    last = max(len(order), round(max(values) + 0.499))
    more = 0.006 * last
    drawn = [(values[first] - more, values[end] + more) for first, end in bars]
    rows = bar_rows([(start - more, stop + more) for start, stop in drawn])
    depth = 0.9 + 0.45 * (max(rows, default=-1) + 1)
    with new_figure(6.4, 0.9 + 0.19 * (depth + half + 2)) as figure:
        axes = figure.add_subplot()
        axes.axis("off")
        axes.set_xlim(1 - 0.02 * last, last + 0.02 * last)
        axes.set_ylim(depth + half, -2.6)
        axes.plot([1, last], [0, 0], color=INK, linewidth=0.8)
        step = next((step for step in (1, 2, 5, 10, 20, 50) if last <= 12 * step), -(-last // 12))
        for tick in [1, *range(step if step > 1 else 2, last + 1, step)]:
            axes.plot([tick, tick], [0, -0.25], color=INK, linewidth=0.8)
            axes.text(tick, -0.4, str(tick), ha="center", va="bottom")
        axes.plot([1, 1 + distance], [-1.9, -1.9], color=COLOURS[1], linewidth=2)
        axes.text(1 + distance / 2, -2.05, f"CD = {distance:.2f}", ha="center", va="bottom")
        for row, ends in zip(rows, drawn, strict=True):
            y = 0.6 + 0.45 * row
            axes.plot(ends, [y, y], color=COLOURS[0], linewidth=2.6, zorder=3)
        for place, (name, rank) in enumerate(order):
            left = place < half
            y = depth + (place if left else len(order) - 1 - place) + 0.4
            side = 1 - 0.02 * last if left else last + 0.02 * last
            axes.plot([rank, rank, side], [0, y, y], color=INK, linewidth=0.6)
            text = f"{one_line(name)}  {rank:.2f}" if left else f"{rank:.2f}  {one_line(name)}"
            axes.annotate(
                text, (side, y), xytext=(-3 if left else 3, 0), textcoords="offset points",
                ha="right" if left else "left", va="center", annotation_clip=False,
            )  # fmt: skip
        return to_svg(figure, title, description(order, bars, distance, blocks))


def description(
    order: Sequence[tuple[str, float]],
    bars: Sequence[tuple[int, int]],
    distance: float,
    blocks: int,
) -> str:
    """Ranks and bars in words."""
    ranking = ", ".join(f"{name} {rank:.2f}" for name, rank in order)
    names = [name for name, _ in order]
    joined = "; ".join(", ".join(names[first : last + 1]) for first, last in bars)
    return (
        f"Average ranks over {blocks} blocks, 1 is best: {ranking}. Critical difference"
        f" {distance:.2f}. Not told apart: {joined or 'none'}."
    )
