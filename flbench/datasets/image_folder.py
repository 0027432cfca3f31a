"""Images in folders: `<class>/`, `<domain>/<class>/`, and either below `train/` and `test/`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flbench.datasets.files import Pixels, damaged
from flbench.errors import MissingData, UserError

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
PARTS = ["test", "train"]


@dataclass(frozen=True)
class FolderImages:
    """All images of a folder, the names of their labels and domains, and each image's domain.

    `domains` is empty and `domain` (shape (m,), int64) is None if the folder has no domains.
    """

    pixels: Pixels
    classes: list[str]
    domains: list[str]
    domain: Tensor | None


def listed(folder: Path) -> list[tuple[str, str, str, Path]]:
    """Part, domain, class ("" = none) and file of each image of a folder, in order.

    Raises:
        MissingData: there is no such folder, or no image in it.
        UserError: some folders hold images and others hold folders.
    """
    if not folder.is_dir():
        raise MissingData(f"there is no folder {folder}")
    parts = sorted(PARTS, reverse=True) if names(folder) == PARTS else [""]
    found = []
    for part in parts:
        base = folder / part
        deep = [child for child in names(base) if names(base / child)]
        if deep and len(deep) < len(names(base)):
            flat = next(child for child in names(base) if child not in deep)
            raise UserError(
                f"{base} mixes <class>/ and <domain>/<class>/: {deep[0]} has folders, {flat} none"
            )
        for domain in deep or [""]:
            for kind in names(base / domain):
                files = images(base / domain / kind)
                if not files:
                    raise damaged(base / domain / kind, "it has no image")
                found += [(part, domain, kind, file) for file in files]
    if not found:
        raise MissingData(f"{folder} has no folder of images per class")
    return found


def names(folder: Path) -> list[str]:
    """The folders in a folder; sorted, as numbers if all are numbers."""
    return ordered(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")


def ordered(found: Iterable[str]) -> list[str]:
    """Each name once; sorted, as numbers if all are numbers."""
    each = set(found)
    numbers = all(name.isdecimal() for name in each)
    return sorted(each, key=lambda name: (int(name) if numbers else 0, name))


def images(folder: Path) -> list[Path]:
    """The images of one class, sorted by name."""
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())


def read(folder: Path, size: int | None = None, colour: bool = False) -> FolderImages:
    """Read all images of a folder, the training part first.

    Each image is resized to size x size; with None all must have the same size. With `colour` they
    have three channels even if all are grey.

    Raises:
        MissingData: there is no such folder, or no image in it.
        UserError: a file cannot be read, or has another size than the first.
    """
    rows = listed(folder)
    arrays = [opened(file, size) for _, _, _, file in rows]
    first_height, first_width = arrays[0].shape[:2]
    for (_, _, _, file), array in zip(rows, arrays, strict=True):
        height, width = array.shape[:2]
        if (height, width) != (first_height, first_width):
            raise UserError(
                f"{file} is {width}x{height}, {rows[0][3]} is {first_width}x{first_height}: images"
                " must be of one size, or be resized by writing @SIZE after the folder"
            )
    if colour or any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.stack([array] * 3, axis=-1) for array in arrays]
    x = torch.from_numpy(np.stack(arrays))
    x = x.permute(0, 3, 1, 2) if x.ndim == 4 else x[:, None]
    classes = ordered(kind for _, _, kind, _ in rows)
    domains = ordered(domain for _, domain, _, _ in rows)
    y = torch.tensor([classes.index(row[2]) for row in rows])
    test = torch.tensor([row[0] == "test" for row in rows]) if rows[0][0] else None
    if domains == [""]:
        return FolderImages(Pixels(x, y, test), classes, [], None)
    domain = torch.tensor([domains.index(row[1]) for row in rows])
    return FolderImages(Pixels(x, y, test), classes, domains, domain)


def opened(file: Path, size: int | None) -> np.ndarray:
    """One image as bytes: shape (height, width) if it is grey, else (height, width, 3).

    Of 16-bit grey levels the upper eight bits are taken.
    """
    from PIL import Image

    try:
        with Image.open(file) as found:
            image: Image.Image = found
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.mode in ("I", "F"):
                raise ValueError("its grey levels have 32 bits, expected 8 or 16")
            flat = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
            if size is not None and flat.size != (size, size):
                flat = flat.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(flat)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise damaged(file, error) from None
