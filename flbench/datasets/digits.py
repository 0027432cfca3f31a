"""Handwritten digits of scikit-learn: 1,797 real 8x8 grey images; no files are needed.

`digits-shift` divides them among five domains with different images: unchanged (plain), shifted by
a pixel, blurred, on a textured background, with low contrast (faint). It replaces data sets of real
domains, such as Digit-5, where their files are missing.

`digit-attributes` has five labels for each image, of which any number may hold.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from flbench.core.dataset import Dataset, DatasetInfo

Values = npt.NDArray[Any]
TITLES = {
    "digits": "Digits",
    "digit-attributes": "Attributes of digits",
    "digits-shift": "Digits in five domains",
}
MEDIUM = "digits"
ABOUT = {
    "digits": DatasetInfo(
        source="E. Alpaydin, C. Kaynak, UCI Optical Recognition of Handwritten Digits, test part",
        licence="CC BY 4.0",
        samples=1_797,
    ),
    "digit-attributes": DatasetInfo(
        source="computed from digits", licence="CC BY 4.0", samples=1_797
    ),
    "digits-shift": DatasetInfo(source="computed from digits", licence="CC BY 4.0", samples=1_797),
}
ATTRIBUTES = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "loop": (0, 6, 8, 9),
    "above-four": (5, 6, 7, 8, 9),
    "multiple-of-three": (0, 3, 6, 9),
}
"""What may be said of a digit, and of which digits it holds; of 1 nothing does."""
DOMAINS = ("plain", "shifted", "blurred", "textured", "faint")


def digits(root: Path) -> Dataset:
    """Handwritten digits, 1,797 images of 8x8, from scikit-learn; no network needed."""
    pixels, labels = pixels_and_labels()
    x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return Dataset("digits", x, torch.as_tensor(labels, dtype=torch.int64), 10)


def pixels_and_labels(file: str = "datasets/data/digits.csv.gz") -> tuple[Values, Values]:
    """Pixels from 0 to 16, shape (1797, 64), and labels, shape (1797,).

    Importing scikit-learn takes longer than many runs on digits, so its file is read instead,
    where it lies in the installed package.
    """
    found = find_spec("sklearn")
    path = Path(found.origin).parent / file if found and found.origin else Path(file)
    if path.is_file():
        table = np.loadtxt(path, delimiter=",")
        return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data, bunch.target


def digit_attributes(root: Path) -> Dataset:
    """Handwritten digits with five labels (even, prime, loop, ...), of which each may hold."""
    pooled = digits(root)
    table = torch.zeros(10, len(ATTRIBUTES), dtype=torch.int64)
    for column, held in enumerate(ATTRIBUTES.values()):
        table[list(held), column] = 1
    return Dataset(
        "digit-attributes", pooled.x, table[pooled.y], len(ATTRIBUTES),
        label_names=tuple(ATTRIBUTES), task="labels",
    )  # fmt: skip


def digits_shift(root: Path) -> Dataset:
    """Handwritten digits in five domains (plain, shifted, blurred, textured, faint)."""
    pooled = digits(root)
    generator = np.random.default_rng(0)
    domain = torch.as_tensor(generator.permutation(len(pooled.y)) % len(DOMAINS))
    texture = torch.as_tensor(generator.random((len(pooled.y), 1, 8, 8)), dtype=torch.float32)
    x = torch.empty_like(pooled.x)
    for number, name in enumerate(DOMAINS):
        rows = domain == number
        x[rows] = transform(name, pooled.x[rows], texture[rows])
    return Dataset("digits-shift", x, pooled.y, pooled.classes, domain)


def transform(domain: str, x: Tensor, texture: Tensor) -> Tensor:
    """Images of one domain, shape (m, 1, 8, 8), between 0 and 1."""
    if domain == "shifted":
        return torch.roll(x, 1, dims=3)
    if domain == "blurred":
        return F.avg_pool2d(x, 3, stride=1, padding=1)
    if domain == "textured":
        return (x - 0.7 * texture).abs()
    return 0.35 + 0.3 * x if domain == "faint" else x
