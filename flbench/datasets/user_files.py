"""Data sets from a user's files: `npz:FILE` and `images:FOLDER` (`images:FOLDER@SIZE`).

`npz:FILE?kind=tokens` and `npz:FILE?kind=numbers` say what whole numbers (m, T) are.
`npz:FILE?task=numbers` predicts numbers, `?task=labels` any number of labels for each sample.

Paths are relative to the current folder. Files that do not follow the rules below are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets import image_folder
from flbench.datasets.files import (
    SIGNED,
    arrays,
    asked_kind,
    damaged,
    dark_notes,
    folder_and_size,
    joined,
    narrowed,
    npz_parts,
    options_in,
    refuse_row_numbers,
    scaled,
    tokens_or_numbers,
    whole_numbers,
)
from flbench.datasets.windows import by_time, gap_of, sequence_of
from flbench.errors import BadParameter
from flbench.results.files import user_path
from flbench.tasks import TASKS, TaskName

SAMPLES = ("x", "x_train", "x_test")
"""Arrays of samples."""
DOMAINS = ("domains", "domains_train", "domains_test")
"""Arrays that say whose a sample is."""
CLIENTS = re.compile(
    r"(.*_)?(client|user|site|group|domain|hospital|device|subject|patient)s?(_.*)?", re.IGNORECASE
)
"""What the names of such arrays hold in others' files."""
PART = re.compile(r"[xy]_?(train|test|val|valid|validation|dev)", re.IGNORECASE)
"""Names of samples and labels of a part."""
ABOUT = {
    "npz": DatasetInfo(source="yours", licence="yours", fetch="--dataset npz:FILE.npz"),
    "images": DatasetInfo(source="yours", licence="yours", fetch="--dataset images:FOLDER[@SIZE]"),
}


def npz(root: Path, argument: str) -> Dataset:
    """Your own arrays: npz:FILE with x_train, y_train, x_test, y_test, perhaps domains.

    Without a test part the arrays are x and y. Labels are integers 0..C-1, each of which occurs; by
    npz:FILE?task=numbers y is (m,) or (m, k) of floats, by ?task=labels (m, C) of 0 and 1.
    """
    name, options = file_and_options(argument)
    task = cast("TaskName", options.get("task", "classes"))
    path = user_path(name)
    stored = arrays(path)
    kind = asked_kind(f"npz:{argument}", options) or known_kind(stored)
    for key in ("x", "x_train"):
        if "kind" in options and key in stored and not are_whole(stored[key]):
            raise BadParameter(
                f"npz:{argument}: kind says what whole numbers are, and {key} is"
                f" {stored[key].dtype}: leave it out"
            )
    read = None if task == "classes" else READ[task]
    parts = npz_parts(path, stored, partial(as_samples, kind=kind), read)
    x, y, test = joined(parts)
    count = 1 if y.ndim == 1 else y.shape[1]
    if task == "classes":
        y = numbered(path, "labels", y)
        count = int(y.max()) + 1
    domains = domains_of(path, stored, [len(y) for _, y in parts])
    bytes_of = [stored[key] for key in SAMPLES if key in stored and stored[key].dtype == np.uint8]
    dark = dark_notes(max(int(array.max()) for array in bytes_of)) if bytes_of else []
    data = Dataset(
        f"npz:{argument}", x, y, count, domains, test, notes=(*left_out(path, stored), *dark),
        keeps_test=True, task=task,
    )  # fmt: skip
    data = by_time(data, x.numpy()) if x.ndim < 4 else data
    if data.gap is None and x.is_floating_point():
        refuse_row_numbers(path, "x", x)
    return data


def file_and_options(argument: str) -> tuple[str, dict[str, str]]:
    """The file of an argument, and its options, `kind` and `task`.

    Raises:
        BadParameter: it has others.

    Example:
        >>> file_and_options("a.npz?kind=tokens"), file_and_options("what?.npz")
        (('a.npz', {'kind': 'tokens'}), ('what?.npz', {}))
    """
    name, mark, query = argument.rpartition("?")
    if not mark or "=" not in query:
        return argument, {}
    options = options_in(f"npz:{argument}", query)
    if unknown := [key for key in options if key not in ("kind", "task")]:
        raise BadParameter(f"npz:{argument}: expected kind or task, got {unknown[0]}")
    if (task := options.get("task", "classes")) not in TASKS:
        raise BadParameter(f"npz:{argument}: task is {', '.join(TASKS)}, got '{task}'")
    return name, options


def are_whole(array: np.ndarray) -> bool:
    """Whether samples are whole numbers, which may be tokens; bytes are images."""
    return array.dtype.kind in "iu" and array.dtype != np.uint8


def known_kind(stored: Mapping[str, np.ndarray]) -> str | None:
    """What the whole numbers of a file are, where it can be known; None = it cannot.

    Windows of a sequence whose label is the next number are tokens.
    """
    x, y = (stored.get(f"{key}_train", stored.get(key)) for key in ("x", "y"))
    if x is None or y is None or x.ndim != 2 or x.dtype.kind not in "iu" or y.shape != (len(x),):
        return None
    rows = np.concatenate([x, y[:, None]], axis=1)
    one = np.zeros(len(rows), dtype=np.int64)
    is_text = gap_of(rows, one) is not None or sequence_of(rows, one) is not None
    return "tokens" if is_text and y.dtype.kind in "iu" else None


def numbers(path: Path, key: str, array: np.ndarray, count: int) -> Tensor:
    """An array of numbers that are predicted, shape (count,) or (count, k), as float32."""
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2) or len(array) != count:
        got = f"{array.dtype} {array.shape}"
        raise damaged(path, f"{key} must be {count} numbers, or {count} rows of some, got {got}")
    return torch.from_numpy(narrowed(path, key, array))


def labels(path: Path, key: str, array: np.ndarray, count: int) -> Tensor:
    """An array that says of each label whether a sample has it, shape (count, C), as int64."""
    if array.dtype.kind not in "iub" or array.ndim != 2 or len(array) != count:
        got = f"{array.dtype} {array.shape}"
        more = f"; type {key}.astype(int)" if array.dtype.kind == "f" else ""
        raise damaged(
            path, f"{key} must be {count} rows of 0 and 1 for each label, got {got}{more}"
        )
    return torch.from_numpy(array.astype(np.int64))


READ = {"numbers": numbers, "labels": labels}
"""What reads the targets of an `.npz` file, by task."""


def as_samples(path: Path, key: str, array: np.ndarray, kind: str | None = None) -> Tensor:
    """Convert an array to samples, shape (m, ...), float32 or int64.

    uint8 are images, (m, height, width), (m, 1 or 3, height, width) or (m, height, width, 1 or 3):
    they become (m, channels, height, width) in 0..1. Floats stay; other integers are what `kind`
    says, tokens or numbers.
    """
    if array.ndim < 2 or array.size == 0:
        raise damaged(path, f"{key} must be samples of one or more numbers, got {array.shape}")
    if array.dtype == np.uint8:
        if array.ndim == 3:
            array = array[:, None]
        elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
            array = array.transpose(0, 3, 1, 2)
        if array.ndim != 4 or array.shape[1] not in (1, 3):
            raise damaged(path, f"{key} is uint8, so images of 1 or 3 channels; got {array.shape}")
        x = torch.empty(array.shape, dtype=torch.float32)
        return x.copy_(torch.from_numpy(array)).div_(255)
    if array.dtype.kind in "iu":
        if array.ndim > 2:
            raise damaged(
                path, f"{key} is {array.dtype} {array.shape}, expected tokens or numbers of shape"
                " (m, T): save pixels as uint8 or float32, other numbers as float32"
            )  # fmt: skip
        return tokens_or_numbers(path, key, array, kind)
    if array.dtype.kind != "f":
        raise damaged(path, f"{key} must be numbers, got {array.dtype}")
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        raise damaged(
            path, f"{key} is {array.shape}, which looks like images with channels last: expected"
            " (m, channels, height, width) of floats; type numpy.moveaxis(x, 3, 1)"
        )  # fmt: skip
    array = array if array.dtype == np.float32 else narrowed(path, key, array)
    if not np.isfinite(array.min()) or not np.isfinite(array.max()):
        raise damaged(path, f"{key} holds numbers that are not finite in float32")
    return torch.from_numpy(array)


RENUMBER = "; numpy.unique(all of them, return_inverse=True)[1] numbers them"


def numbered(path: Path, what: str, y: Tensor) -> Tensor:
    """Return the numbers if they are 0..C-1 and each of them occurs."""
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= len(y):
        raise damaged(path, f"{what} must be 0..C-1, got {low}..{high}{RENUMBER}")
    gaps = torch.nonzero(torch.bincount(y) == 0)[:, 0].tolist()
    if gaps:
        raise damaged(path, f"{what} are 0..{high}, but {gaps[0]} never occurs{RENUMBER}")
    return y


def left_out(path: Path, stored: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """A note on the arrays of a file that are not read.

    Raises:
        UserError: one of them says whose a sample is, or is of a part.
    """
    whole = "x" in stored and "x_train" not in stored
    read = ("x", "y") if whole else ("x_train", "y_train", "x_test", "y_test")
    others = [key for key in stored if key not in (*read, *DOMAINS)]
    for key in others:
        if CLIENTS.fullmatch(key):
            raise damaged(
                path, f"its array {key} is not read: whose a sample is stands in domains, whole"
                " numbers 0..D-1; rename it"
            )  # fmt: skip
        if key in ("x", "y") or PART.fullmatch(key):
            raise damaged(
                path, f"it has {key} beside {', '.join(read)}, which is not read: expected x_train,"
                " y_train, x_test and y_test, or x and y without a test part; of validation, join"
                " it to the training part"
            )  # fmt: skip
    return (f"arrays left out: {', '.join(others)}",) if others else ()


def domains_of(path: Path, stored: dict[str, np.ndarray], sizes: list[int]) -> Tensor | None:
    """Domain 0..D-1 of each sample, shape (m,), or None if the file has no domains.

    They are in `domains_train` and `domains_test`, or in `domains`, the training part first.
    """
    keys = [key for key in DOMAINS if key in stored]
    if not keys:
        return None
    if keys != ["domains"] and keys != ["domains_train", "domains_test"]:
        raise damaged(path, f"it needs domains, or domains_train and domains_test; got {keys}")
    counts = [sum(sizes)] if len(keys) == 1 else sizes
    parts = [
        whole_numbers(path, key, stored[key], count)
        for key, count in zip(keys, counts, strict=True)
    ]
    return numbered(path, "domains", torch.cat(parts))


def images(root: Path, argument: str) -> Dataset:
    """Your own images: images:FOLDER with <class>/ or <domain>/<class>/, resized by @SIZE.

    Images are scaled to -1..1. They have one channel if all are grey, and one size without @SIZE.
    """
    folder, size = folder_and_size(argument, "images")
    found = image_folder.read(user_path(folder), size)
    if len(found.classes) < 2:
        raise damaged(Path(folder), f"it has one class only, {found.classes[0]}")
    made = scaled(f"images:{argument}", found.pixels, len(found.classes), SIGNED, found.domain)
    return replace(
        made,
        label_names=tuple(found.classes),
        domain_names=tuple(found.domains),
        notes=(*found.notes, *dark_notes(int(found.pixels.x.max()))),
        keeps_test=True,
    )
