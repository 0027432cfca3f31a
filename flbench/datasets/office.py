"""Office-Caltech-10: ten classes of office objects in four domains.

amazon (958 images of a shop), caltech (1,123 of Caltech-256), dslr (157) and webcam (295).
As images, resized to 64x64 and scaled to -1..1, or as the 800-bin SURF histograms of the authors.

Histograms are used as by the authors: each is divided by its sum, then each bin is scaled to mean 0
and standard deviation 1 within its domain (a constant bin becomes 0).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets import image_folder
from flbench.datasets.files import SIGNED, Found, absent, damaged, present, scaled

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
FOLDER, SURF = "office_caltech_10", "office_caltech10_surf"
BINS = 800
SIZE = 64
MATS = tuple(f"{SURF}/{name}.mat" for name in ("amazon", "caltech10", "dslr", "webcam"))
SOURCE = "B. Gong, Y. Shi, F. Sha, K. Grauman, CVPR 2012"
TITLES = {"office-caltech": "Office-10", "office-surf": "Office-10 as SURF histograms"}
MEDIUM = "pictures"
ABOUT = {
    "office-caltech": DatasetInfo(
        source=SOURCE,
        licence="none stated; shared for research",
        files=tuple(f"{FOLDER}/{domain}" for domain in DOMAINS),
        samples=2_533,
        fetch=f"get the images from the authors or a mirror; put them into {FOLDER}/DOMAIN/CLASS/",
    ),
    "office-surf": DatasetInfo(
        source=SOURCE,
        licence="none stated; shared for research",
        files=MATS,
        samples=2_533,
        fetch=f"get the SURF histograms from the authors or a mirror; put the .mat into {SURF}/",
    ),
}


def images(root: Path) -> Dataset:
    """Office-Caltech-10, 2,533 photographs at 64x64 in four domains, from folders under the root.

    Raises:
        UserError: there are other domains, or not ten classes.
    """
    folder = root / FOLDER
    if not all((folder / domain).is_dir() for domain in DOMAINS):
        listed = ", ".join(DOMAINS)
        raise absent("office-caltech", root, f"{FOLDER}/DOMAIN/CLASS/*.jpg, domains {listed},")
    found = image_folder.read(folder, size=SIZE, colour=True)
    if tuple(found.domains) != DOMAINS:
        raise damaged(folder, f"domains are {', '.join(DOMAINS)}; got {', '.join(found.domains)}")
    if len(found.classes) != 10:
        raise damaged(folder, f"it has ten classes; got {', '.join(found.classes)}")
    return scaled("office-caltech", found.pixels, 10, SIGNED, found.domain)


def surf(root: Path) -> Dataset:
    """Office-Caltech-10 as 2,533 SURF histograms of 800 bins in four domains."""
    if not present(root, MATS):
        raise absent("office-surf", root, ", ".join(MATS))
    parts = [histograms(root / file) for file in MATS]
    domains = np.repeat(np.arange(len(MATS)), [len(y) for _, y in parts])
    x, y = (np.concatenate(both) for both in zip(*parts, strict=True))
    return Dataset(
        "office-surf", torch.from_numpy(x), torch.from_numpy(y), 10, torch.from_numpy(domains)
    )


def histograms(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Standardised histograms of one domain, shape (m, 800), float32, and labels 0..9."""
    from scipy.io import loadmat

    try:
        table = loadmat(str(path))
        counts, labels = table["fts"], table["labels"].reshape(-1).astype(np.int64) - 1
    except KeyError as error:
        raise damaged(path, f"it has no array {error}") from None
    except Exception as error:  # scipy raises many types for a file that is not .mat
        raise damaged(path, error) from None
    if counts.shape != (len(labels), BINS) or not np.isfinite(counts.astype(np.float64)).all():
        raise damaged(path, f"fts must be {len(labels)} x {BINS} numbers, got {counts.shape}")
    if len(labels) == 0 or labels.min() < 0 or labels.max() > 9:
        raise damaged(path, "labels are 1..10")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True, dtype=np.float64), 1)
    spread = shares.std(axis=0)
    x = (shares - shares.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return np.ascontiguousarray(x, dtype=np.float32), labels


def found_images(root: Path) -> Found | None:
    """The image folders under a root; None unless all four domains are there."""
    folder = root / FOLDER
    if not all((folder / domain).is_dir() for domain in DOMAINS):
        return None
    count = len(image_folder.listed(folder))
    return Found(FOLDER, count, count == ABOUT["office-caltech"].samples)


FOUND = {"office-caltech": found_images}
