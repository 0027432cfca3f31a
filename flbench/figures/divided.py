"""The partition of a result: who held how much of which label."""

from __future__ import annotations

import numpy as np

from flbench.picture import draw
from flbench.results.schema import Result


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
