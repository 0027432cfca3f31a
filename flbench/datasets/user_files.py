"""Data sets from a user's files: `npz:FILE` and `images:FOLDER` (`images:FOLDER@SIZE`).

Paths are relative to the current folder. Files that do not follow these rules are refused.

`npz:FILE`: arrays x_train, y_train, x_test, y_test, or x, y without a test part. Labels are
integers 0..C-1, each of which occurs. Samples are one of

- uint8: images of shape (m, height, width), (m, 1 or 3, height, width) or
  (m, height, width, 1 or 3); they become (m, channels, height, width) in 0..1;
- float: samples of shape (m, ...), unchanged; all values are finite;
- other integers: tokens, unchanged.

Domains are integers 0..D-1, one for each sample: `domains_train` and `domains_test`, or `domains`
for the training part followed by the test part.

`images:FOLDER`: folders `<class>/` or `<domain>/<class>/`, both also below `train/` and `test/`.
Classes and domains are numbered in the order of their names. Images are scaled to -1..1, with one
channel if all are grey. They must have one size, or are resized to SIZE x SIZE.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets import image_folder
from flbench.datasets.files import SIGNED, arrays, damaged, scaled
from flbench.errors import BadParameter

ABOUT = {
    "npz": DatasetInfo(source="yours", licence="yours", fetch="--dataset npz:FILE.npz"),
    "images": DatasetInfo(source="yours", licence="yours", fetch="--dataset images:FOLDER[@SIZE]"),
}


def npz(root: Path, argument: str) -> Dataset:
    """Your own arrays: npz:FILE with x_train, y_train, x_test, y_test, perhaps domains.

    Raises:
        MissingData: there is no such file.
        UserError: an array is missing, or has a wrong shape, type or value.
    """
    path = Path(argument).expanduser()
    stored = arrays(path)
    parts = [""] if "x" in stored and "x_train" not in stored else ["_train", "_test"]
    for key in [f"{kind}{part}" for part in parts for kind in "xy"]:
        if key not in stored:
            raise damaged(path, f"it has no array {key} (it has {', '.join(stored) or 'none'})")
    samples = [as_samples(path, f"x{part}", stored[f"x{part}"]) for part in parts]
    labels = [whole(path, f"y{part}", stored[f"y{part}"]) for part in parts]
    for part, x, y in zip(parts, samples, labels, strict=True):
        if len(x) != len(y):
            raise damaged(path, f"x{part} has {len(x)} samples, y{part} {len(y)} labels")
    if samples[0].shape[1:] != samples[-1].shape[1:] or samples[0].dtype != samples[-1].dtype:
        shapes = " and ".join(f"{tuple(x.shape[1:])} {x.dtype}" for x in samples)
        raise damaged(path, f"samples of x_train and x_test differ: {shapes}")
    y = numbered(path, "labels", torch.cat(labels))
    domains = domains_of(path, stored, [len(y) for y in labels])
    test = torch.arange(len(y)) >= len(labels[0]) if len(parts) == 2 else None
    return Dataset(f"npz:{argument}", torch.cat(samples), y, int(y.max()) + 1, domains, test)


def as_samples(path: Path, key: str, array: np.ndarray) -> Tensor:
    """Convert an array to samples, shape (m, ...), float32 or int64."""
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
        return torch.from_numpy(array.astype(np.int64))
    if array.dtype.kind != "f":
        raise damaged(path, f"{key} must be numbers, got {array.dtype}")
    if not np.isfinite(array.min()) or not np.isfinite(array.max()):
        raise damaged(path, f"{key} holds numbers that are not finite")
    return torch.from_numpy(array.astype(np.float32, copy=False))


def whole(path: Path, key: str, array: np.ndarray) -> Tensor:
    """Check that an array holds integers, shape (m,), and convert it to int64."""
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise damaged(path, f"{key} must be m whole numbers, got {array.dtype} {array.shape}")
    return torch.from_numpy(array.astype(np.int64))


def numbered(path: Path, what: str, y: Tensor) -> Tensor:
    """Return the numbers if they are 0..C-1 and each of them occurs."""
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= len(y):
        raise damaged(path, f"{what} must be 0..C-1, got {low}..{high}")
    gaps = torch.nonzero(torch.bincount(y) == 0)[:, 0].tolist()
    if gaps:
        raise damaged(path, f"{what} are 0..{high}, but {gaps[0]} never occurs")
    return y


def domains_of(path: Path, stored: dict[str, np.ndarray], sizes: list[int]) -> Tensor | None:
    """Domain of each sample, shape (m,), or None if the file has no domains."""
    keys = [key for key in ("domains", "domains_train", "domains_test") if key in stored]
    if not keys:
        return None
    if keys != ["domains"] and keys != ["domains_train", "domains_test"]:
        raise damaged(path, f"it needs domains, or domains_train and domains_test; got {keys}")
    parts = [whole(path, key, stored[key]) for key in keys]
    expected = [sum(sizes)] if len(keys) == 1 else sizes
    if [len(part) for part in parts] != expected:
        got = [len(part) for part in parts]
        raise damaged(path, f"{' and '.join(keys)}: expected {expected} numbers, got {got}")
    return numbered(path, "domains", torch.cat(parts))


def images(root: Path, argument: str) -> Dataset:
    """Your own images: images:FOLDER with <class>/ or <domain>/<class>/, resized by @SIZE.

    Raises:
        MissingData: there is no such folder, or no image in it.
        BadParameter: SIZE is not a size in 1..1024.
        UserError: a file cannot be read, or images differ in size.
    """
    folder, at, size = argument.rpartition("@")
    if not at or "/" in size:
        folder, size = argument, ""
    elif not size.isdecimal() or not 1 <= int(size) <= 1024:
        raise BadParameter(f"images:{argument}: SIZE is 1..1024 pixels, got '{size}'")
    found = image_folder.read(Path(folder).expanduser(), int(size) if size else None)
    if len(found.classes) < 2:
        raise damaged(Path(folder), f"it has one class only, {found.classes[0]}")
    return scaled(f"images:{argument}", found.pixels, len(found.classes), SIGNED, found.domain)
