"""Names beside points: placed so that they cover as little as possible."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""


AROUND = ((1, 1), (1, 0), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))


FAR = (4.0, 10.0, 18.0, 28.0, 40.0)


def placed(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    height: float,
    ground: Box,
    barred: Sequence[Box] = (),
) -> list[Box]:
    """A box for each point's name, in the order given: the nearest place that is free.

    Args:
        points: in printer's points.
        widths: of the names, in points.
        height: of a name, in points.
        ground: within which names stand.
        barred: what names do not cover, beside the points.

    Returns:
        Boxes; where there is no free place, the one that covers least.
    """
    taken: list[Box] = [*barred, *((x - 3, y - 3, x + 3, y + 3) for x, y in points)]
    found = []
    for (x, y), width in zip(points, widths, strict=True):
        boxes = [
            _beside(x, y, right * far, up * far, width, height)
            for far in FAR
            for right, up in AROUND
        ]
        cost = [
            round(sum(covered(box, other) for other in taken) + _out(box, ground), 6)
            for box in boxes
        ]
        found.append(boxes[cost.index(min(cost))])
        taken.append(found[-1])
    return found


def _beside(x: float, y: float, right: float, up: float, width: float, height: float) -> Box:
    """The box of a name that begins, ends or is centred so far from a point."""
    left = x + right - (0 if right > 0 else width if right < 0 else width / 2)
    low = y + up * (0.7 if right else 1.4) - height / 2
    return (left, low, left + width, low + height)


def covered(one: Box, other: Box) -> float:
    """Area that two boxes share.

    Example:
        >>> covered((0, 0, 2, 2), (1, 1, 3, 3)), covered((0, 0, 1, 1), (1, 0, 2, 1))
        (1, 0)
    """
    wide = min(one[2], other[2]) - max(one[0], other[0])
    tall = min(one[3], other[3]) - max(one[1], other[1])
    return wide * tall if wide > 0 and tall > 0 else 0


def _out(box: Box, ground: Box) -> float:
    """Area of a box that lies outside, counted tenfold."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    return 10 * (area - covered(box, ground))
