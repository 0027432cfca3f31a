"""What may be wrong with the numbers of a person's own data, whatever kind of file they are from.

`flbench data SPEC --check` shows it: a note asks, nothing is refused or changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flbench.core.dataset import Dataset
from flbench.datasets.columns import NINES
from flbench.metrics import Floats

FAR, FEW, APART = 1000, 0.01, 10
"""Quarters' distances from the median from which numbers may be mistakes, the share of samples that
these are at most, and how many times as far as all others they lie."""
UNITS, OTHERS = 100, 1 / 3
"""Times of the usual size from which a client's numbers may be in another unit, and the share of
clients that may be; where more differ, sizes differ by themselves."""
MOST = 3
"""Notes of one kind."""


def doubts(data: Dataset) -> list[str]:
    """Notes on a person's own data: on targets, numbers that are measured, and parts."""
    if not data.keeps_test:
        return []
    return [*_of_targets(data), *_of_features(data), *_of_parts(data)]


def _of_targets(data: Dataset) -> Iterator[str]:
    """Numbers that are far from the others, or a client's in another unit; one label per client."""
    y = data.y.numpy()
    owners = None if data.domains is None else data.domains.numpy()
    if data.task == "numbers":
        table = y.reshape(len(y), -1).astype(np.float64)
        names = data.label_names or [str(at + 1) for at in range(table.shape[1])]
        for name, column in zip(names, table.T, strict=True):
            yield from _far(f"target {name}", column)
            if owners is not None:
                yield from _other_units(f"target {name}", column, owners, data.domain_names)
    elif data.task == "classes" and y.ndim == 1 and owners is not None:
        clients, labels = len(np.unique(owners)), len(np.unique(y))
        pairs = len(np.unique(np.stack([owners, y]), axis=1).T)
        if pairs == clients > 1 and labels > 1 and len(y) > clients:
            yield "each client has samples of one label alone: who it is says the label"


def _of_features(data: Dataset) -> list[str]:
    """Numbers of a table that are far from the others of their column."""
    if data.x.ndim != 2 or not data.x.is_floating_point():
        return []
    columns = data.x.numpy().T
    named = len(data.features) == len(columns)
    found = []
    for at, column in enumerate(columns):
        name = data.features[at].partition(" (")[0] if named else f"number {at + 1} of a sample"
        found += _far(f"feature {name}" if named else name, column.astype(np.float64))
    return found[:MOST]


def _far(what: str, column: Floats) -> list[str]:
    """A note where few numbers lie a thousand times as far from the median as most do.

    Away from the median in quarters' distances. All others are within a tenth of that, so that
    numbers of all sizes, such as incomes, are none. Several 99 or -999 are another note's.

    Example:
        >>> _far("target y", np.array([*range(200), 1e9]))
        ['target y has numbers such as 1e+09 (1 in all), 1,000 times as far from its median as \
most: a mistake?']
        >>> _far("y", np.array([0.0, 0, 0, 5])), _far("y", np.arange(200.0))
        ([], [])
    """
    numbers = column[np.isfinite(column)]
    if not len(numbers):
        return []
    low, middle, high = np.percentile(numbers, (25, 50, 75))
    away = np.abs(numbers - middle)
    far = away > FAR * max(high - middle, middle - low)
    count, worst = int(far.sum()), float(numbers[away.argmax()])
    if high == low or not 0 < count <= max(FEW * len(numbers), 1):
        return []
    if away[far].min() < APART * away[~far].max():
        return []
    if count > 1 and NINES.fullmatch(f"{worst:.17g}"):
        return []
    return [
        f"{what} has numbers such as {worst:g} ({count} in all), {FAR:,} times as far from its"
        " median as most: a mistake?"
    ]


def _other_units(what: str, column: Floats, owners: np.ndarray, names: Sequence[str]) -> list[str]:
    """Notes where a client's numbers are a hundred times those of most, or a hundredth.

    By the median size of each client's numbers; of three clients or more.

    Example:
        >>> kg = np.array([1.0, 2, 1, 2, 1000, 2000])
        >>> _other_units("target kg", kg, np.array([0, 0, 1, 1, 2, 2]), "abc")
        ['target kg of client c is about 1,000 times that of most clients: in another unit?']
    """
    order = np.argsort(owners, kind="stable")
    ids, starts = np.unique(owners[order], return_index=True)
    sizes = np.array([np.median(one) for one in np.split(np.abs(column)[order], starts[1:])])
    usual = float(np.median(sizes))
    if len(ids) < 3 or not usual:
        return []
    ratios = sizes / usual
    other = np.flatnonzero((sizes > 0) & ((ratios >= UNITS) | (ratios <= 1 / UNITS)))
    if len(other) > OTHERS * len(ids):
        return []
    return [
        f"{what} of client {names[ids[at]] if names else ids[at]} is about {_times(ratios[at])}"
        " times that of most clients: in another unit?"
        for at in other[:MOST].tolist()
    ]


def some(names: Sequence[str], most: int = 20) -> str:
    """The first names, and how many more there are."""
    more = f", and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _times(ratio: float) -> str:
    """A ratio of two digits or so.

    Example:
        >>> _times(1234.4), _times(0.0012)
        ('1,234', '0.0012')
    """
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _of_parts(data: Dataset) -> list[str]:
    """What makes a number on test samples say less: equal rows, classes of one part only."""
    rows = data.x.reshape(len(data.x), -1).numpy()
    keys = np.array([hash(row.tobytes()) for row in rows])
    if data.test is None:
        if data.gap is not None:  # parts are divided by time
            return []
        again = len(keys) - len(np.unique(keys))
        text = f"{again:,} of {len(keys):,} samples are equal to another one in x: where parts are"
        return [f"{text} drawn, some are trained and tested on"] if again else []
    test = data.test.numpy()
    found = _unlike(rows[~test], rows[test], data.x.shape[1:]) if data.x.is_floating_point() else []
    if again := int(np.isin(keys[test], keys[~test]).sum()):
        found.append(f"{again:,} of {test.sum():,} test samples are training samples too, equal x")
    if data.task == "classes" and data.y.ndim == 1:
        y = data.y.numpy()
        new = np.setdiff1d(y[test], y[~test]).tolist()
        if new:
            named = [data.label_names[one] if data.label_names else str(one) for one in new]
            count = int(np.isin(y[test], new).sum())
            found.append(f"nobody trains on {some(named)}: {count:,} test samples have that label")
    return found


UNLIKE = 20
"""How many times as wide the numbers of a part may be before their scale is doubted."""
LOOKED_AT = 1000
"""Samples of a part that are looked at for that."""


def _unlike(train: np.ndarray, test: np.ndarray, shape: Sequence[int]) -> list[str]:
    """A note where the numbers of one part are far wider than those of the other.

    Nine tenths of the numbers are compared: of each column of a table, of all pixels of images.

    Args:
        train: training samples, shape (m, F).
        test: test samples, shape (n, F).
        shape: of one sample.
    """
    parts = [part[:: len(part) // LOOKED_AT + 1] for part in (train, test)]
    if len(shape) > 1:
        parts = [part.reshape(-1, 1) for part in parts]
    low, high = np.stack([np.quantile(part, (0.05, 0.95), axis=0) for part in parts], axis=1)
    widths = high - low
    wide = (widths.min(axis=0) > 0) & (widths.max(axis=0) > UNLIKE * widths.min(axis=0))
    if not wide.any():
        return []
    at = int(wide.argmax())
    first, second = (f"{low[part, at]:.4g}..{high[part, at]:.4g}" for part in (0, 1))
    where = "" if len(shape) > 1 else f"of number {at + 1} of a sample, "
    return [
        f"{where}most training values are {first}, most test values {second}: if the parts were"
        " scaled apart, scale them alike"
    ]
