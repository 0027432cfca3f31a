"""Functions of the loaders: check and read files, and convert images to network inputs.

No code in a file is executed: `.npz` files are read with `allow_pickle=False`, images by Pillow. An
error of a file is one line with its path.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset
from flbench.errors import MissingData, UserError

SIGNED = (0.5,), (0.5,)
"""Mean and standard deviation that scale 0..1 to -1..1, where no other scale is published."""


@dataclass(frozen=True)
class Pixels:
    """Images as bytes; training part first, then the test part.

    Attributes:
        x: shape (m, channels, height, width), uint8; it may be a view.
        y: labels, shape (m,), int64.
        test: mask of the test part, shape (m,), bool, or None.
    """

    x: Tensor
    y: Tensor
    test: Tensor | None = None


@dataclass(frozen=True)
class Found:
    """The files of one data set under a data root.

    Attributes:
        where: their path, relative to the root.
        samples: number of samples; 0 = unknown until it is loaded.
        whole: whether the data set is complete.
    """

    where: str
    samples: int
    whole: bool


def expect(
    name: str, root: Path, files: Sequence[str], otherwise: str = "", also: str = ""
) -> None:
    """Check that the files of a data set are there.

    Args:
        name: the data set.
        root: the data root.
        files: the files, relative to the root, all in one folder.
        otherwise: alternative to the files, for the message.
        also: another command that fetches them, for the message.

    Raises:
        MissingData: one of them is not there.
    """
    if all((root / file).is_file() for file in files):
        return
    names = [Path(file).name for file in files]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    raise MissingData(
        f"data set '{name}' expects {listed} in {(root / files[0]).parent}{otherwise};"
        " set their folder with --data-root or FLBENCH_DATA, or fetch them with"
        f" flbench data {name} --fetch --data-root {shlex.quote(str(root))}{also}"
    )


def absent(name: str, root: Path, expected: str) -> MissingData:
    """The error for missing files that no command fetches."""
    return MissingData(
        f"data set '{name}' expects {expected} under {root}; set their folder with --data-root or"
        f" FLBENCH_DATA; flbench data {name} shows where to get them"
    )


def damaged(path: Path, why: object) -> UserError:
    """The error for a file that cannot be used."""
    return UserError(f"{path} cannot be used: {' '.join(str(why).split())}")


def joined(parts: Sequence[tuple[Tensor, Tensor]]) -> Pixels:
    """Join a training and a test part, each (x, y)."""
    (x, y), (x_test, y_test) = parts
    test = torch.arange(len(y) + len(y_test)) >= len(y)
    return Pixels(torch.cat([x, x_test]), torch.cat([y, y_test]).long(), test)


def scaled(
    name: str,
    pixels: Pixels,
    classes: int,
    scale: tuple[Sequence[float], Sequence[float]],
    domains: Tensor | None = None,
) -> Dataset:
    """A data set of images, scaled to float32: (x / 255 - mean) / std in each channel."""
    x = torch.empty(pixels.x.shape, dtype=torch.float32).copy_(pixels.x)
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in scale)
    x.div_(255).sub_(mean).div_(std)
    return Dataset(name, x, pixels.y, classes, domains, pixels.test)


def checked(path: Path, pixels: Pixels, classes: int) -> Pixels:
    """Return the images if there is one label in 0..classes-1 per image.

    Raises:
        UserError: there are no images, another number of labels, or other labels.
    """
    if len(pixels.x) != len(pixels.y) or len(pixels.y) == 0:
        raise damaged(path, f"it has {len(pixels.x)} images and {len(pixels.y)} labels")
    low, high = int(pixels.y.min()), int(pixels.y.max())
    if low < 0 or high >= classes:
        raise damaged(path, f"labels are 0..{classes - 1}, got {low}..{high}")
    return pixels


def arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file.

    Raises:
        MissingData: there is no such file.
        UserError: it is not an `.npz` file, or holds something else than numbers and text.
    """
    if not path.is_file():
        raise MissingData(f"there is no file {path}")
    try:
        with path.open("rb") as stream:
            stored = np.load(stream, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise ValueError("it is one array, not an .npz file")
            return {key: stored[key] for key in stored.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise damaged(path, error) from None


def only_npz(folder: Path) -> Path | None:
    """The only `.npz` file of a folder, or None.

    Raises:
        UserError: the folder has several.
    """
    found = sorted(folder.glob("*.npz"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{folder} holds several .npz files ({names}): leave one")
    return found[0] if found else None


def npz_samples(path: Path) -> int:
    """Number of labels in an `.npz` file of images; the images are not read."""
    try:
        with path.open("rb") as stream:
            stored = np.load(stream, allow_pickle=False)
            return sum(len(stored[key]) for key in ("y", "y_train", "y_test") if key in stored)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, TypeError):
        return 0


def npz_pixels(path: Path, stored: dict[str, np.ndarray], classes: int) -> Pixels:
    """Images of an `.npz` file: x, y, or x_train, y_train, x_test, y_test; channels last.

    Raises:
        UserError: an array is missing, or has another shape or type.
    """
    suffixes = ("",) if "x" in stored else ("_train", "_test")
    parts = []
    for suffix in suffixes:
        if f"x{suffix}" not in stored or f"y{suffix}" not in stored:
            raise damaged(path, "it needs arrays x and y, or x_train, y_train, x_test and y_test")
        x, y = stored[f"x{suffix}"], stored[f"y{suffix}"]
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3):
            raise damaged(
                path, f"x{suffix} must be uint8 (m, height, width, 1 or 3), got {x.dtype} {x.shape}"
            )
        if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
            got = f"{y.dtype} {y.shape}"
            raise damaged(path, f"y{suffix} must be {len(x)} whole numbers, got {got}")
        parts.append(
            (torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y.astype(np.int64)))
        )
    if parts[0][0].shape[1:] != parts[-1][0].shape[1:]:
        raise damaged(path, "images of x_train and x_test differ in shape")
    whole = Pixels(*parts[0]) if len(parts) == 1 else joined(parts)
    return checked(path, whole, classes)
