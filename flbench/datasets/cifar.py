"""CIFAR-10 and CIFAR-100: 60,000 colour photographs of 32x32 each, in 10 or 100 classes.

torchvision reads the files; they are pickles, so it checks their md5 before it opens one. If they
are missing, one `.npz` file in `cifar10/` or `cifar100/` is read instead, with the arrays x_train,
y_train, x_test and y_test, for CIFAR-100 also y_train_coarse and y_test_coarse (optional). It may
hold a part of the data set: `flbench data` shows how much.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.files import (
    Found,
    Pixels,
    arrays,
    damaged,
    expect,
    found_npz,
    npz_pixels,
    only_npz,
    present,
    scaled,
    whole_numbers,
)
from flbench.datasets.torchvision_sets import torchvision_parts, torchvision_pixels

KINDS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100"}
"""torchvision's class of each data set."""
CIFAR10_SCALE = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_SCALE = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
"""Mean and standard deviation of red, green and blue over the training part, as published."""
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
MEDIUM = "pictures"
ABOUT = {
    name: DatasetInfo(
        source="A. Krizhevsky, 2009, www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; shared for research",
        files=tuple(f"{folder}/{file}" for file in files),
        samples=60_000,
        fetch=f"flbench data {name} --fetch; or put an .npz file into {name}/",
    )
    for name, folder, files in (
        ("cifar10", "cifar-10-batches-py", BATCHES),
        ("cifar100", "cifar-100-python", ("train", "test", "meta")),
    )
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
    pixels, _ = found_pixels("cifar10", 10, root)
    return scaled("cifar10", pixels, 10, CIFAR10_SCALE)


def cifar100(root: Path) -> Dataset:
    """CIFAR-100, 60,000 photographs of 32x32 in 100 classes; domains are the 20 superclasses."""
    pixels, coarse = found_pixels("cifar100", 100, root)
    domains = superclass_of(pixels.y) if coarse is None else coarse
    return scaled("cifar100", pixels, 100, CIFAR100_SCALE, domains)


def superclass_of(y: Tensor) -> Tensor:
    """Superclass of each label of CIFAR-100, shape of `y`, int64."""
    table = torch.empty(100, dtype=torch.int64)
    for number, classes in enumerate(SUPERCLASSES):
        table[list(classes)] = number
    return table[y]


def found_pixels(name: str, classes: int, root: Path) -> tuple[Pixels, Tensor | None]:
    """Images of torchvision's files or the .npz file, and coarse labels if the latter has them."""
    files = ABOUT[name].files
    path = None if present(root, files) else only_npz(root / name)
    if path is None:
        expect(name, root, files, otherwise=f", or one .npz file in {root / name}")
        return torchvision_pixels(KINDS[name], root / files[0], root, classes), None
    stored = arrays(path)
    pixels = npz_pixels(path, stored, classes)
    if pixels.test is None:
        raise damaged(path, "it needs arrays x_train, y_train, x_test and y_test")
    if (most := int(pixels.y.max())) < classes // 2:
        raise damaged(path, f"{name} has labels 0..{classes - 1}, got 0..{most}: another data set?")
    if "y_train_coarse" not in stored or "y_test_coarse" not in stored:
        return pixels, None
    both = np.concatenate([stored["y_train_coarse"], stored["y_test_coarse"]])
    return pixels, whole_numbers(path, "coarse labels", both, len(pixels.y), len(SUPERCLASSES))


def found(name: str, root: Path) -> Found | None:
    """The files of a data set under a root."""
    files, whole = ABOUT[name].files, ABOUT[name].samples
    if present(root, files):
        return Found(str(Path(files[0]).parent), whole, True)
    return found_npz(root, name, whole)


def originals(kind: str) -> dict[str, str]:
    """md5 of the original files of a torchvision class, by path under the root."""
    from torchvision import datasets

    reader = getattr(datasets, kind)
    listed = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
    return {f"{reader.base_folder}/{file}": md5 for file, md5 in listed}


FOUND = {name: partial(found, name) for name in KINDS}
FETCH = {name: partial(torchvision_parts, kind, download=True) for name, kind in KINDS.items()}
MD5 = {name: partial(originals, kind) for name, kind in KINDS.items()}
