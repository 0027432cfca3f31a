"""CIFAR-10 and CIFAR-100: 60,000 colour photographs of 32x32 each, in 10 or 100 classes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009).

torchvision reads the files. They are pickles, so the md5 of all files are checked before one is
opened. If they are missing, one `.npz` file in `cifar10/` or `cifar100/` is read instead, with the
arrays x_train, y_train, x_test and y_test, for CIFAR-100 also y_train_coarse and y_test_coarse
(optional). It may hold a part of the data set: `flbench data` shows how much.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.files import (
    Found,
    Pixels,
    arrays,
    checked,
    damaged,
    expect,
    joined,
    npz_pixels,
    npz_samples,
    only_npz,
    scaled,
)
from flbench.datasets.torchvision_sets import fetch

CIFAR10_SCALE = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_SCALE = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
"""Mean and standard deviation of red, green and blue over the training part, as published."""
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
ABOUT = {
    "cifar10": DatasetInfo(
        source="A. Krizhevsky, 2009, www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; shared for research",
        files=tuple(f"cifar-10-batches-py/{file}" for file in BATCHES),
        samples=60_000,
        fetch="flbench data cifar10 --fetch; or put an .npz file into cifar10/",
    ),
    "cifar100": DatasetInfo(
        source="A. Krizhevsky, 2009, www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; shared for research",
        files=tuple(f"cifar-100-python/{file}" for file in ("train", "test", "meta")),
        samples=60_000,
        fetch="flbench data cifar100 --fetch; or put an .npz file into cifar100/",
    ),
}

SUPERCLASSES = (
    (4, 30, 55, 72, 95),  # aquatic mammals
    (1, 32, 67, 73, 91),  # fish
    (54, 62, 70, 82, 92),  # flowers
    (9, 10, 16, 28, 61),  # food containers
    (0, 51, 53, 57, 83),  # fruit and vegetables
    (22, 39, 40, 86, 87),  # household electrical devices
    (5, 20, 25, 84, 94),  # household furniture
    (6, 7, 14, 18, 24),  # insects
    (3, 42, 43, 88, 97),  # large carnivores
    (12, 17, 37, 68, 76),  # large man-made outdoor things
    (23, 33, 49, 60, 71),  # large natural outdoor scenes
    (15, 19, 21, 31, 38),  # large omnivores and herbivores
    (34, 63, 64, 66, 75),  # medium-sized mammals
    (26, 45, 77, 79, 99),  # non-insect invertebrates
    (2, 11, 35, 46, 98),  # people
    (27, 29, 44, 78, 93),  # reptiles
    (36, 50, 65, 74, 80),  # small mammals
    (47, 52, 56, 59, 96),  # trees
    (8, 13, 48, 58, 90),  # vehicles 1
    (41, 69, 81, 85, 89),  # vehicles 2
)
"""Classes of each superclass of CIFAR-100, both numbered in alphabetical order."""


def cifar10(root: Path) -> Dataset:
    """CIFAR-10, 60,000 photographs of 32x32 in 10 classes, from torchvision's files or .npz."""
    pixels, _ = found_pixels("cifar10", "CIFAR10", 10, root)
    return scaled("cifar10", pixels, 10, CIFAR10_SCALE)


def cifar100(root: Path) -> Dataset:
    """CIFAR-100, 60,000 photographs of 32x32 in 100 classes; domains are the 20 superclasses."""
    pixels, coarse = found_pixels("cifar100", "CIFAR100", 100, root)
    domains = superclass_of(pixels.y) if coarse is None else coarse
    return scaled("cifar100", pixels, 100, CIFAR100_SCALE, domains)


def superclass_of(y: Tensor) -> Tensor:
    """Superclass of each label of CIFAR-100, shape of `y`, int64."""
    table = torch.empty(100, dtype=torch.int64)
    for number, classes in enumerate(SUPERCLASSES):
        table[list(classes)] = number
    return table[y]


def found_pixels(name: str, kind: str, classes: int, root: Path) -> tuple[Pixels, Tensor | None]:
    """Images from torchvision's files or the .npz file, and coarse labels if the latter has them.

    Raises:
        MissingData: neither is there.
        UserError: torchvision's files are not the originals, or the .npz file is malformed.
    """
    files = ABOUT[name].files
    path = None if all((root / file).is_file() for file in files) else only_npz(root / name)
    if path is None:
        expect(name, root, files, otherwise=f", or one .npz file in {root / name}")
        return torchvision_pixels(kind, root), None
    stored = arrays(path)
    if "x" in stored:
        raise damaged(path, "it needs arrays x_train, y_train, x_test and y_test")
    pixels = npz_pixels(path, stored, classes)
    if pixels.x.shape[1:] != (3, 32, 32):
        raise damaged(path, f"images must be 32x32 in colour, got {tuple(pixels.x.shape[1:])}")
    return pixels, coarse_labels(path, stored, pixels.y)


def coarse_labels(path: Path, stored: dict[str, np.ndarray], y: Tensor) -> Tensor | None:
    """Superclasses in an .npz file, shape (m,), or None without them."""
    if "y_train_coarse" not in stored or "y_test_coarse" not in stored:
        return None
    both = np.concatenate([stored["y_train_coarse"], stored["y_test_coarse"]])
    if both.dtype.kind not in "iu" or both.shape != tuple(y.shape):
        raise damaged(path, f"coarse labels must be {len(y)} whole numbers, got {both.shape}")
    coarse = torch.from_numpy(both.astype(np.int64))
    if int(coarse.min()) < 0 or int(coarse.max()) >= len(SUPERCLASSES):
        raise damaged(path, f"coarse labels are 0..{len(SUPERCLASSES) - 1}")
    return coarse


def torchvision_pixels(kind: str, root: Path) -> Pixels:
    """Images of torchvision's files; all md5 are checked before a file is opened."""
    from torchvision import datasets
    from torchvision.datasets.utils import check_integrity

    reader = getattr(datasets, kind)
    folder = root / reader.base_folder
    for file, md5 in md5_of(reader).items():
        if not check_integrity(str(root / file), md5):
            raise damaged(
                root / file,
                f"its md5 is not {md5}, and of pickles only originals are opened",
            )
    parts = [reader(str(root), train=train) for train in (True, False)]
    pairs = [
        (torch.from_numpy(part.data).permute(0, 3, 1, 2), torch.tensor(part.targets))
        for part in parts
    ]
    return checked(folder, joined(pairs), len(parts[0].classes))


def md5_of(reader: Any) -> dict[str, str]:  # noqa: ANN401 - torchvision has no types
    """md5 of the files of a torchvision class, by path under the root."""
    listed = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
    return {f"{reader.base_folder}/{file}": md5 for file, md5 in listed}


def found(name: str) -> Callable[[Path], Found | None]:
    """A function that finds the files of a data set under a root."""

    def find_files(root: Path) -> Found | None:
        files, whole = ABOUT[name].files, ABOUT[name].samples
        if all((root / file).is_file() for file in files):
            return Found(str(Path(files[0]).parent), whole, True)
        paths = sorted((root / name).glob("*.npz"))
        if not paths:
            return None
        count = npz_samples(paths[0])
        return Found(f"{name}/{paths[0].name}", count, count == whole)

    return find_files


def originals(kind: str) -> Callable[[], dict[str, str]]:
    """A function that returns the md5 of the original files."""

    def listed() -> dict[str, str]:
        from torchvision import datasets

        return md5_of(getattr(datasets, kind))

    return listed


FOUND = {name: found(name) for name in ABOUT}
FETCH = {"cifar10": fetch("CIFAR10"), "cifar100": fetch("CIFAR100")}
MD5 = {"cifar10": originals("CIFAR10"), "cifar100": originals("CIFAR100")}
