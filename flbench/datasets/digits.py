"""Handwritten digits: 1,797 real 8x8 grey images, embedded in scikit-learn.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI (its test part).
"""

from __future__ import annotations

from pathlib import Path

import torch

from flbench.dataset import About, Dataset

ABOUT = About(
    source="E. Alpaydin, C. Kaynak, UCI Optical Recognition of Handwritten Digits, test part",
    licence="CC BY 4.0",
    samples=1_797,
)


def load(root: Path) -> Dataset:
    """Handwritten digits, 1,797 images of 8x8, from scikit-learn; no network needed."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.as_tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    return Dataset("digits", x, torch.as_tensor(bunch.target, dtype=torch.int64), 10)
