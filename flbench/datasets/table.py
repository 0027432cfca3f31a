"""Tables of a user: `csv:FILE`, one row per sample, with the columns `label` and perhaps `client`.

Columns, named in the first line of a file in UTF-8:

    label    the label, any text; labels are numbered in their sorted order
    client   perhaps: the domain of the sample, any text, such as a hospital; the partition
             `natural` makes each a client
    split    perhaps: `train` or `test`; without it there is no original test part
    others   features: a column of numbers is scaled to mean 0 and standard deviation 1 of the
             training part; any other column becomes one column per value (0 or 1)
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.files import damaged, numbered
from flbench.errors import MissingData
from flbench.results.files import read_bounded, user_path

LARGEST = 2**31
"""Bytes of a file."""
VALUES = 100
"""Most values of a column that is not numeric."""
ROUNDING = 1e-12
"""A deviation below this share of the largest value comes from rounding."""
RESERVED = ("label", "client", "split")
ABOUT = {"csv": DatasetInfo(source="yours", licence="yours", fetch="--dataset csv:FILE.csv")}


def table(root: Path, argument: str) -> Dataset:
    """Your own table: csv:FILE with a column `label`, perhaps `client` and `split`, and features.

    Raises:
        MissingData: there is no such file.
        UserError: a row, a column or a value does not fit.
    """
    path = user_path(argument)
    if not path.is_file():
        raise MissingData(f"there is no file {path}")
    columns = read(path)
    if "label" not in columns:
        raise damaged(path, f"it needs a column 'label', got {', '.join(columns)}")
    y, labels = numbered(columns["label"])
    split = columns.get("split")
    if split is not None and {*split} != {"train", "test"}:
        came = ", ".join(sorted({*split}))
        raise damaged(path, f"column 'split' must say train and test, and no other; got {came}")
    test = None if split is None else np.array(split) == "test"
    train = np.ones(len(y), dtype=bool) if test is None else ~test
    parts = [
        feature(path, name, values, train)
        for name, values in columns.items()
        if name not in RESERVED
    ]
    if not parts:
        raise damaged(path, "it needs one or more columns of features")
    return Dataset(
        f"csv:{argument}",
        torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float32)),
        y,
        labels,
        numbered(columns["client"])[0] if "client" in columns else None,
        None if test is None else torch.from_numpy(test),
    )


def read(path: Path) -> dict[str, list[str]]:
    """The columns of a file by name, texts without spaces around them."""
    try:
        text = read_bounded(path, LARGEST).decode("utf-8-sig")
        head, *rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row] or [[]]
    except (ValueError, csv.Error) as error:
        raise damaged(path, f"it is no table in UTF-8: {error}") from None
    names = [name.strip() for name in head]
    if len({*names}) < len(names):
        raise damaged(path, "two columns have the same name")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise damaged(path, f"row {number} has {len(row)} values, expected {len(names)}")
    if len(rows) < 2:
        raise damaged(path, "it needs two rows or more")
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}


def is_number(text: str) -> bool:
    """Whether a text is a number.

    Example:
        >>> is_number("1e3"), is_number("")
        (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def feature(path: Path, name: str, values: list[str], train: np.ndarray) -> np.ndarray:
    """The columns of a feature, shape (m, 1) if it is numeric, else (m, number of values)."""
    try:
        column = np.array(values, dtype=np.float64)
    except ValueError:
        places, count = numbered(values)
        if count > VALUES:
            text = next(value for value in values if not is_number(value))
            raise damaged(
                path,
                f"column '{name}' has {count} different values, of which '{text}' is no number:"
                f" expected numbers, or at most {VALUES} texts; leave it out or fill the gaps",
            ) from None
        flags: np.ndarray = np.eye(count)[places.numpy()]
        return flags
    if not np.isfinite(column).all():
        raise damaged(path, f"column '{name}' has values that are not finite")
    spread, largest = float(column[train].std()), float(np.abs(column[train]).max())
    is_constant = spread <= ROUNDING * largest
    scaled: np.ndarray = (column - column[train].mean()) / (1.0 if is_constant else spread)
    return scaled[:, None]
