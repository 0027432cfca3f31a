"""Fashion-MNIST: 70,000 grey images of 28x28, ten kinds of clothing, read by torchvision.

Source: H. Xiao, K. Rasul, R. Vollgraf, arXiv 1708.07747 (2017), MIT licence.
"""

from __future__ import annotations

from pathlib import Path

import torch

from flbench import torchvision_ops as torchvision_ops
from flbench.dataset import Dataset
from flbench.errors import MissingData

MEAN, STD = 0.2860, 0.3530
"""Of the pixels of the training part, scaled to 0..1."""


def load(root: Path) -> Dataset:
    """Fashion-MNIST, 70,000 images of 28x28, through torchvision, from files under the root.

    Raises:
        MissingData: the files are not there.
    """
    from torchvision.datasets import FashionMNIST

    try:
        parts = [FashionMNIST(str(root), train=train, download=False) for train in (True, False)]
    except RuntimeError:
        raise MissingData(
            "data set 'fashion-mnist' expects train-images-idx3-ubyte, train-labels-idx1-ubyte,"
            " t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte in"
            f" {root / 'FashionMNIST' / 'raw'};"
            " name their place with --data-root or FLBENCH_DATA, or fetch them with"
            f" python -m flbench.datasets.fashion_mnist {root}"
        ) from None
    x = torch.cat([part.data for part in parts])[:, None].float().div_(255).sub_(MEAN).div_(STD)
    return Dataset("fashion-mnist", x, torch.cat([part.targets for part in parts]).long(), 10)


if __name__ == "__main__":
    import sys

    from torchvision.datasets import FashionMNIST

    FashionMNIST(sys.argv[1], download=True)
