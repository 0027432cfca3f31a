"""MNIST, Fashion-MNIST, USPS and SVHN, read by torchvision from files under the data root.

Sources: MNIST: Y. LeCun, C. Cortes, C. Burges, yann.lecun.com/exdb/mnist (1998). Fashion-MNIST:
H. Xiao, K. Rasul, R. Vollgraf, arXiv 1708.07747 (2017). USPS: J. J. Hull, IEEE TPAMI 16(5)
(1994), in LIBSVM's format. SVHN: Y. Netzer et al., NIPS workshop (2011).

A run never downloads files; `flbench data NAME --fetch` does. Each SCALE is the mean and standard
deviation of the training part's pixels in 0..1, as commonly published for the data set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.files import Pixels, checked, damaged, expect, joined, scaled

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST_SCALE = (0.1307,), (0.3081,)
FASHION_SCALE = (0.2860,), (0.3530,)
USPS_SCALE = (0.2469,), (0.2989,)
SVHN_SCALE = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)

ABOUT = {
    "mnist": DatasetInfo(
        source="Y. LeCun, C. Cortes, C. Burges, yann.lecun.com/exdb/mnist",
        licence="CC BY-SA 3.0",
        files=tuple(f"MNIST/raw/{file}" for file in IDX),
        samples=70_000,
        fetch="flbench data mnist --fetch",
    ),
    "fashion-mnist": DatasetInfo(
        source="H. Xiao, K. Rasul, R. Vollgraf, arXiv 1708.07747",
        licence="MIT",
        files=tuple(f"FashionMNIST/raw/{file}" for file in IDX),
        samples=70_000,
        fetch="flbench data fashion-mnist --fetch",
    ),
    "usps": DatasetInfo(
        source="J. J. Hull, IEEE TPAMI 16(5), 1994; files of LIBSVM",
        licence="none stated; shared for research",
        files=("USPS/usps.bz2", "USPS/usps.t.bz2"),
        samples=9_298,
        fetch="flbench data usps --fetch",
    ),
    "svhn": DatasetInfo(
        source="Y. Netzer et al., NIPS workshop 2011, ufldl.stanford.edu/housenumbers",
        licence="non-commercial use",
        files=("SVHN/train_32x32.mat", "SVHN/test_32x32.mat"),
        samples=99_289,
        fetch="flbench data svhn --fetch",
    ),
}


def mnist(root: Path) -> Dataset:
    """MNIST, 70,000 handwritten digits of 28x28, through torchvision, from files under the root."""
    return scaled("mnist", mnist_pixels(root), 10, MNIST_SCALE)


def mnist_pixels(root: Path) -> Pixels:
    """MNIST's images as bytes."""
    return idx_pixels("mnist", "MNIST", root)


def fashion_mnist(root: Path) -> Dataset:
    """Fashion-MNIST, 70,000 images of 28x28, through torchvision, from files under the root.

    Raises:
        MissingData: the files are not there.
    """
    pixels = idx_pixels("fashion-mnist", "FashionMNIST", root)
    return scaled("fashion-mnist", pixels, 10, FASHION_SCALE)


def idx_pixels(name: str, kind: str, root: Path) -> Pixels:
    """Images of the four idx files under `<root>/<kind>/raw`, `kind` being torchvision's class.

    Raises:
        MissingData: one of them is not there.
        UserError: one of them is incomplete.
    """
    from torchvision import datasets

    expect(name, root, [f"{kind}/raw/{file}" for file in IDX])
    raw = root / kind / "raw"
    try:
        parts = [getattr(datasets, kind)(str(root), train=train) for train in (True, False)]
        for part in parts:
            checked(raw, Pixels(part.data, part.targets), 10)
        return joined([(part.data[:, None], part.targets) for part in parts])
    except (RuntimeError, ValueError, OSError, AssertionError) as error:
        raise damaged(raw, error) from None


def usps(root: Path) -> Dataset:
    """USPS, 9,298 handwritten digits of 16x16, through torchvision, from files under the root."""
    return scaled("usps", usps_pixels(root), 10, USPS_SCALE)


def usps_pixels(root: Path) -> Pixels:
    """USPS's images as bytes."""
    from torchvision.datasets import USPS

    expect("usps", root, ABOUT["usps"].files)
    folder = root / "USPS"
    try:
        parts = [USPS(str(folder), train=train) for train in (True, False)]
        pairs = [(torch.from_numpy(p.data)[:, None], torch.tensor(p.targets)) for p in parts]
    except (RuntimeError, ValueError, OSError, EOFError, IndexError) as error:
        raise damaged(folder, error) from None
    return checked(folder, joined(pairs), 10)


def svhn(root: Path) -> Dataset:
    """SVHN, 99,289 house number digits of 32x32, through torchvision, from files under the root."""
    return scaled("svhn", svhn_pixels(root), 10, SVHN_SCALE)


def svhn_pixels(root: Path) -> Pixels:
    """SVHN's images as bytes; torchvision checks their md5 first."""
    from torchvision.datasets import SVHN

    expect("svhn", root, ABOUT["svhn"].files)
    folder = root / "SVHN"
    try:
        parts = [SVHN(str(folder), split=split) for split in ("train", "test")]
    except RuntimeError:
        raise damaged(folder, "train_32x32.mat or test_32x32.mat is not the original") from None
    pairs = [(torch.from_numpy(part.data), torch.from_numpy(part.labels)) for part in parts]
    return checked(folder, joined(pairs), 10)


def fetch(kind: str) -> Callable[[Path], object]:
    """A function that downloads the files of a torchvision class."""

    def download(root: Path) -> object:
        from torchvision import datasets

        return getattr(datasets, kind)(str(root), download=True)

    return download


def fetch_usps(root: Path) -> None:
    """Download USPS."""
    from torchvision.datasets import USPS

    (root / "USPS").mkdir(parents=True, exist_ok=True)
    for train in (True, False):
        USPS(str(root / "USPS"), train=train, download=True)


def fetch_svhn(root: Path) -> None:
    """Download SVHN."""
    from torchvision.datasets import SVHN

    for split in ("train", "test"):
        SVHN(str(root / "SVHN"), split=split, download=True)


def usps_md5() -> dict[str, str]:
    """md5 of USPS's original files, by path under the root, from torchvision."""
    from torchvision.datasets import USPS

    return {f"USPS/{file}": md5 for _, file, md5 in USPS.split_list.values()}


def svhn_md5() -> dict[str, str]:
    """md5 of SVHN's original files, by path under the root, from torchvision."""
    from torchvision.datasets import SVHN

    parts = [SVHN.split_list[part] for part in ("train", "test")]
    return {f"SVHN/{file}": md5 for _, file, md5 in parts}


FETCH = {
    "mnist": fetch("MNIST"),
    "fashion-mnist": fetch("FashionMNIST"),
    "usps": fetch_usps,
    "svhn": fetch_svhn,
}
MD5 = {"usps": usps_md5, "svhn": svhn_md5}
