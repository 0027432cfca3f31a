"""my-dataset: tumours of the breast, measured in images of cells.

Source: Wolberg, Mangasarian, Street, Street, Breast Cancer Wisconsin (Diagnostic), UCI, 1995,
embedded in scikit-learn. Licence: CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path

import torch

import flbench as fl


def load(root: Path) -> fl.Dataset:
    """569 tumours, 30 measurements each, benign or malignant; from scikit-learn.

    Args:
        root: where data sets lie; not looked at, as this one needs no files.

    Returns:
        x of shape (569, 30), each measurement with mean 0 and deviation 1; y is 0 = malignant or
        1 = benign.

    To predict numbers, give y of shape (m,) or (m, k), float32, classes=k and task="numbers"; for
    any number of labels for each sample, y of shape (m, C) of 0 and 1 and task="labels".
    """
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x = torch.as_tensor(bunch.data, dtype=torch.float32)
    x = (x - x.mean(dim=0)) / x.std(dim=0)
    return fl.Dataset("my-dataset", x, torch.as_tensor(bunch.target, dtype=torch.int64), classes=2)
