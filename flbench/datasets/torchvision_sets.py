"""MNIST, Fashion-MNIST, USPS and SVHN, read by torchvision from files under the data root.

A run never downloads files; `flbench data NAME --fetch` does.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flbench.core import torchvision_compat as torchvision_compat
from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.files import Pixels, checked, damaged, expect, joined, scaled
from flbench.errors import warn_once

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
KINDS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "usps": "USPS", "svhn": "SVHN"}
"""torchvision's class of each data set."""
SCALES = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "usps": ((0.2469,), (0.2989,)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
"""Mean and standard deviation of the training part's pixels in 0..1, as commonly published."""

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "usps": "USPS", "svhn": "SVHN"}
MEDIUM = "pictures"
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
    return scaled("mnist", known_pixels("mnist", root), 10, SCALES["mnist"])


def fashion_mnist(root: Path) -> Dataset:
    """Fashion-MNIST, 70,000 images of 28x28, through torchvision, from files under the root."""
    pixels = known_pixels("fashion-mnist", root)
    return scaled("fashion-mnist", pixels, 10, SCALES["fashion-mnist"])


def usps(root: Path) -> Dataset:
    """USPS, 9,298 handwritten digits of 16x16, through torchvision, from files under the root."""
    return scaled("usps", known_pixels("usps", root), 10, SCALES["usps"])


def svhn(root: Path) -> Dataset:
    """SVHN, 99,289 house number digits of 32x32, through torchvision, from files under the root."""
    return scaled("svhn", known_pixels("svhn", root), 10, SCALES["svhn"])


def known_pixels(name: str, root: Path) -> Pixels:
    """Images of one of this module's data sets as bytes; a warning where they are other ones."""
    files = ABOUT[name].files
    expect(name, root, files)
    pixels = torchvision_pixels(KINDS[name], root / files[0], root, 10)
    if len(pixels.y) == ABOUT[name].samples and (why := unlike_the_originals(name, root, pixels)):
        warn_once(f"{name}: {why} under {root}")
    return pixels


def unlike_the_originals(name: str, root: Path, pixels: Pixels) -> str:
    """Why files cannot be the originals; "" = they can.

    Of MNIST by md5; of Fashion-MNIST, which is shared in several forms, by the brightness of its
    training part and by its labels, 6,000 of each. USPS is compressed in several ways, and known by
    its number of samples alone; of SVHN torchvision has looked at the md5.
    """
    if name == "fashion-mnist":
        assert pixels.test is not None
        part = ~pixels.test
        mean, usual = float(pixels.x[part].numpy().mean()) / 255, SCALES[name][0][0]
        if abs(mean - usual) > 0.005:
            return f"the mean of its pixels is {mean:.4f}, expected {usual:.4f}: other images"
        if len(set(pixels.y[part].bincount(minlength=10).tolist())) > 1:
            return "there are not as many training images of each label: other labels"
        return ""
    other = [
        Path(file).name
        for file, md5 in (MNIST_MD5 if name == "mnist" else {}).items()
        if hashlib.md5((root / file).read_bytes(), usedforsecurity=False).hexdigest() != md5
    ]
    return f"not the original by md5: {', '.join(other)}" if other else ""


def torchvision_pixels(kind: str, file: Path, root: Path, classes: int) -> Pixels:
    """Images of a torchvision class as bytes; of SVHN and CIFAR, torchvision checks the md5 first.

    Messages name the folder of `file`, which is one of its files.
    """
    folder, pairs = file.parent, []
    try:
        for part in torchvision_parts(kind, root):
            x = torch.as_tensor(part.data)
            if x.ndim == 3:
                x = x[:, None]
            elif x.shape[-1] == 3:
                x = x.permute(0, 3, 1, 2)
            y = torch.as_tensor(part.labels if kind == "SVHN" else part.targets)
            checked(folder, Pixels(x, y), classes)
            pairs.append((x, y))
    except (RuntimeError, ValueError, OSError, EOFError, IndexError, AssertionError) as error:
        changed = "corrupted" in str(error)  # torchvision's word for another md5
        why = "a file is not the original, and no other is opened" if changed else error
        raise damaged(folder, why) from None
    return Pixels(*joined(pairs))


def torchvision_parts(kind: str, root: Path, download: bool = False) -> list[Any]:
    """The training and the test part of a data set as objects of a torchvision class."""
    from torchvision import datasets

    folder = root / kind if kind in ("USPS", "SVHN") else root  # others make a folder themselves
    option, values = ("split", ("train", "test")) if kind == "SVHN" else ("train", (True, False))
    reader = getattr(datasets, kind)
    return [reader(str(folder), download=download, **{option: value}) for value in values]


def split_md5(kind: str) -> dict[str, str]:
    """md5 of the original files of USPS or SVHN, by path under the root, from torchvision."""
    from torchvision import datasets

    splits = getattr(datasets, kind).split_list
    return {f"{kind}/{file}": md5 for _, file, md5 in (splits["train"], splits["test"])}


MNIST_MD5 = {
    f"MNIST/raw/{IDX[0]}": "6bbc9ace898e44ae57da46a324031adb",
    f"MNIST/raw/{IDX[1]}": "a25bea736e30d166cdddb491f175f624",
    f"MNIST/raw/{IDX[2]}": "2646ac647ad5339dbf082846283269ea",
    f"MNIST/raw/{IDX[3]}": "27ae3e4e09519cfbb04c329615203637",
}
FETCH = {name: partial(torchvision_parts, kind, download=True) for name, kind in KINDS.items()}
MD5 = {name: partial(split_md5, KINDS[name]) for name in ("usps", "svhn")}
MD5["mnist"] = partial(dict, MNIST_MD5)
