"""Fashion-MNIST: 70,000 grey images of 28x28, ten kinds of clothing, read by torchvision.

Source: H. Xiao, K. Rasul, R. Vollgraf, arXiv 1708.07747 (2017), MIT licence.
"""

from __future__ import annotations

from pathlib import Path

from flbench.dataset import About, Dataset
from flbench.datasets.files import scaled
from flbench.datasets.torchvision_sets import FASHION_SCALE, IDX, fetch, idx_pixels

ABOUT = About(
    source="H. Xiao, K. Rasul, R. Vollgraf, arXiv 1708.07747",
    licence="MIT",
    files=tuple(f"FashionMNIST/raw/{file}" for file in IDX),
    samples=70_000,
    fetch="flbench data fashion-mnist --fetch",
)
FETCH = {"fashion-mnist": fetch("FashionMNIST")}


def load(root: Path) -> Dataset:
    """Fashion-MNIST, 70,000 images of 28x28, through torchvision, from files under the root.

    Raises:
        MissingData: the files are not there.
    """
    also = f" (or python -m flbench.datasets.fashion_mnist {root})"
    pixels = idx_pixels("fashion-mnist", "FashionMNIST", root, also)
    return scaled("fashion-mnist", pixels, 10, FASHION_SCALE)


if __name__ == "__main__":
    import sys

    FETCH["fashion-mnist"](Path(sys.argv[1]))
