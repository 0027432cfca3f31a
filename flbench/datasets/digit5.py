"""Digit-5, and those of its domains that torchvision does not have: MNIST-M and SynthDigits.

Digit-5: ten digits in five domains: MNIST, SVHN, USPS, SynthDigits, MNIST-M. It uses the domains
whose files are there; with fewer than five its name lists them, as in
`digit-5[mnist,usps,mnist-m]`, and a warning is logged.

Images are 3x32x32 in -1..1: grey images are repeated to three channels, images of other sizes are
resized (bilinear). Of a domain at most 5,000 training and 9,000 test samples are kept, drawn with a
fixed seed.

MNIST-M was made from MNIST's digits. If its file gives for each sample the index in MNIST's *test*
part (`mnist_test_index`), samples with an even index are its training part and those with an odd
index its test part, and Digit-5 removes the digits with an even index from MNIST's test part: no
digit is in a training and in a test part. Without that array the position of a sample is used in
place of the index.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets import image_folder
from flbench.datasets.files import (
    SIGNED,
    Found,
    Pixels,
    absent,
    arrays,
    checked,
    found_npz,
    npz_pixels,
    only_npz,
    present,
    scaled,
    whole_numbers,
)
from flbench.datasets.torchvision_sets import ABOUT as OTHERS
from flbench.datasets.torchvision_sets import known_pixels
from flbench.errors import MissingData, warn_once

DOMAINS = ("mnist", "svhn", "usps", "synth-digits", "mnist-m")
KEPT = {False: 5_000, True: 9_000}
"""Largest number of samples of a domain's training part (False) and test part (True)."""
FOLDERS = {"mnist-m": "mnist_m", "synth-digits": "synth_digits"}
FORM = "one .npz file (x, y; or x_train, y_train, x_test, y_test) or a folder of images per digit"
TITLES = {"mnist-m": "MNIST-M", "synth-digits": "SynthDigits", "digit-5": "Digit-5"}
MEDIUM = "pictures"
ABOUT = {
    "mnist-m": DatasetInfo(
        source="Y. Ganin, V. Lempitsky, ICML 2015",
        licence="non-commercial research (BSDS500 photographs)",
        files=("mnist_m/*",),
        samples=68_002,
        fetch=f"get it from its authors or a mirror; put into mnist_m/ {FORM}",
    ),
    "synth-digits": DatasetInfo(
        source="Y. Ganin, V. Lempitsky, ICML 2015",
        licence="none stated; shared for research",
        files=("synth_digits/*",),
        samples=488_953,
        fetch=f"get it from its authors or a mirror; put into synth_digits/ {FORM}",
    ),
    "digit-5": DatasetInfo(
        source="X. Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019",
        licence="that of each domain",
        fetch="each domain for itself: " + ", ".join(f"flbench data {name}" for name in DOMAINS),
    ),
}


def mnist_m(root: Path) -> Dataset:
    """MNIST-M, digits of 32x32 on patches of photographs, from .npz or folders under the root."""
    return scaled("mnist-m", own_pixels("mnist-m", root)[0], 10, SIGNED)


def synth_digits(root: Path) -> Dataset:
    """SynthDigits, rendered digits of 32x32, from .npz or folders under the root."""
    return scaled("synth-digits", own_pixels("synth-digits", root)[0], 10, SIGNED)


def own_pixels(name: str, root: Path) -> tuple[Pixels, Tensor]:
    """Images, training part first, and the indices of MNIST's test digits in that part."""
    folder = root / FOLDERS[name]
    path, index = only_npz(folder), None
    if path is not None:
        stored = arrays(path)
        pixels = npz_pixels(path, stored, 10)
        if (given := stored.get("mnist_test_index")) is not None:
            index = whole_numbers(path, "mnist_test_index", given, len(pixels.y), 10_000)
    elif folder.is_dir() and image_folder.names(folder):
        pixels = checked(folder, image_folder.read(folder, size=32, colour=True).pixels, 10)
    else:
        raise absent(name, root, f"in {FOLDERS[name]}/ {FORM}")
    if pixels.test is not None:
        return pixels, torch.empty(0, dtype=torch.int64)
    source = torch.arange(len(pixels.y)) if index is None else index
    order = torch.argsort(source % 2, stable=True)
    test = source[order] % 2 == 1
    trained_on = source[:0] if index is None else source[order][~test]
    return Pixels(pixels.x[order], pixels.y[order], test), trained_on


def digit5(root: Path) -> Dataset:
    """Digit-5: ten digits in up to five domains, those whose files are under the root."""
    found: dict[str, Pixels] = {}
    trained_on: dict[str, Tensor] = {}
    for name in reversed(DOMAINS):  # MNIST last, without the digits that MNIST-M trains on
        try:
            if name in FOLDERS:
                pixels, trained_on[name] = own_pixels(name, root)
            else:
                pixels = known_pixels(name, root)
        except MissingData:
            continue
        if name == "mnist" and "mnist-m" in trained_on:
            pixels = without(pixels, trained_on["mnist-m"])
        found[name] = limit(pixels)
    there = [name for name in DOMAINS if name in found]
    if len(there) < 2:
        raise absent("digit-5", root, "the files of two or more of " + ", ".join(DOMAINS))
    name = "digit-5"
    if len(there) < len(DOMAINS):
        name = f"digit-5[{','.join(there)}]"
        lacking = ", ".join(domain for domain in DOMAINS if domain not in found)
        warn_once(f"{name}: no files of {lacking} under {root}")
    domain = torch.cat([torch.full_like(found[d].y, number) for number, d in enumerate(there)])
    y = torch.cat([found[d].y for d in there])
    test = torch.cat([mask for d in there if (mask := found[d].test) is not None])
    x = torch.empty((len(y), 3, 32, 32))
    for number, d in enumerate(there):
        x[domain == number] = colour_32(found.pop(d).x)
    order = torch.argsort(test.long(), stable=True)
    return Dataset(name, x[order], y[order], 10, domain[order], test[order])


def without(pixels: Pixels, removed: Tensor) -> Pixels:
    """Images without some of the test part; `removed` holds positions in the test part."""
    assert pixels.test is not None
    test_rows = torch.nonzero(pixels.test)[:, 0]
    keep = torch.ones(len(pixels.y), dtype=torch.bool)
    keep[test_rows[removed[removed < len(test_rows)]]] = False
    return Pixels(pixels.x[keep], pixels.y[keep], pixels.test[keep])


def limit(pixels: Pixels) -> Pixels:
    """At most KEPT samples of each part, drawn with a fixed seed, in their order."""
    assert pixels.test is not None
    rng = np.random.default_rng(0)
    chosen = []
    for part, most in KEPT.items():
        rows = np.flatnonzero(pixels.test.numpy() == part)
        if len(rows) > most:
            rows = np.sort(rng.choice(rows, most, replace=False))
        chosen.append(torch.from_numpy(rows))
    order = torch.cat(chosen)
    return Pixels(pixels.x[order], pixels.y[order], pixels.test[order])


def colour_32(x: Tensor) -> Tensor:
    """Convert images from bytes, shape (m, 1 or 3, h, w), to -1..1, shape (m, 3, 32, 32)."""
    x = x.float().div_(127.5).sub_(1)
    if x.shape[2:] != (32, 32):
        x = F.interpolate(x, (32, 32), mode="bilinear", align_corners=False)
    return x.expand(-1, 3, -1, -1)


def found_own(name: str, root: Path) -> Found | None:
    """The files of MNIST-M or SynthDigits under a root."""
    folder, whole = root / FOLDERS[name], ABOUT[name].samples
    npz = found_npz(root, FOLDERS[name], whole)
    if npz or not folder.is_dir() or not image_folder.names(folder):
        return npz
    count = len(image_folder.listed(folder))
    return Found(FOLDERS[name], count, count >= whole)


def found_digit5(root: Path) -> Found | None:
    """The domains of Digit-5 under a root; None with fewer than two."""
    there = [
        name
        for name in DOMAINS
        if (found_own(name, root) if name in FOLDERS else present(root, OTHERS[name].files))
    ]
    whole = len(there) == len(DOMAINS)
    return Found(", ".join(there), 0, whole) if len(there) > 1 else None


FOUND = {**{name: partial(found_own, name) for name in FOLDERS}, "digit-5": found_digit5}
