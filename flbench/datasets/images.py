"""Pictures of any kind as bytes: one conversion for folders and for the hub.

A picture is grey or has three colours. Palettes, CMYK, one bit and 16 bits are converted. One with
transparent pixels is refused: what is behind them is not in the file, and their own colour, often
black, is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flbench.datasets.files import damaged

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Files that are read."""
OTHER_PICTURES = (
    *(".apng", ".avif", ".dcm", ".gif", ".heic", ".heif", ".ico", ".jfif", ".jp2", ".jpe", ".npy"),
    *(".pbm", ".pcx", ".pnm", ".psd", ".raw", ".svg", ".tga", ".xbm"),
)
"""Files that are pictures too, or arrays of them, and are refused rather than left out."""
GREY = ("1", "L", "LA", "La")
WITH_ALPHA = ("RGBA", "RGBa", "LA", "La", "PA")
"""Modes with a channel that says how much of a pixel is seen."""
ORIENTATION = 274
"""The tag of EXIF that says how the camera was held."""
FEW = 8
"""Pictures that may be the same by chance."""


def opened(file: Path, size: int | None) -> np.ndarray:
    """The picture in a file; see `as_array`.

    Raises:
        UserError: it cannot be read, or its levels have more than 16 bits.
    """
    from PIL import Image

    try:
        with Image.open(file) as found:
            return as_array(found, size)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise damaged(file, error) from None


def as_array(image: Image, size: int | None = None) -> np.ndarray:
    """A picture as levels: shape (height, width) if it is grey, else (height, width, 3).

    They are uint8, or uint16 of 16-bit grey ones, which `stacked` makes bytes of. It is turned as
    EXIF says. With `size` it is resized to size x size.

    Raises:
        ValueError: its levels are no whole numbers below 65,536, it has several pictures, or
            transparent pixels.
    """
    from PIL import Image as images
    from PIL import ImageOps

    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # a camera's: the first
    if frames > 1:
        raise ValueError(f"it has {frames} pictures: save each in a file of its own")
    if image.getexif().get(ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode == "I":
        levels = np.asarray(image)
        if levels.size and not 0 <= levels.min() <= levels.max() <= 65535:
            raise ValueError("its grey levels have 32 bits, expected 8 or 16")
        deep = images.fromarray(levels.astype(np.int32))
        if size is not None and deep.size != (size, size):
            deep = deep.resize((size, size), images.Resampling.BILINEAR)
        return np.asarray(deep).astype(np.uint16)
    if image.mode == "F":
        raise ValueError("its grey levels have 32 bits, expected 8 or 16")
    if (hidden := transparent(image)) > 0:
        raise ValueError(
            f"{hidden:.2%} of its pixels are transparent: save it on a background, such as white"
        )
    is_palette = image.mode in ("P", "PA")
    if is_palette and "transparency" in image.info:
        image = image.convert("RGBA")  # which pillow asks for
    flat = image.convert("L" if image.mode in GREY else "RGB")
    if is_palette:
        array = np.asarray(flat)
        if (array == array[..., :1]).all():
            flat = images.fromarray(np.ascontiguousarray(array[..., 0]))
    if size is not None and flat.size != (size, size):
        flat = flat.resize((size, size), images.Resampling.BILINEAR)
    return np.asarray(flat)


def transparent(image: Image) -> float:
    """The share of a picture's pixels of which less than half is seen."""
    if image.mode not in WITH_ALPHA and "transparency" not in image.info:
        return 0.0
    alpha = np.asarray(image.convert("RGBA").getchannel("A"))
    return float((alpha < 128).mean()) if alpha.size else 0.0


def refuse_unseen(where: Path, x: Tensor) -> None:
    """Refuse pictures that are all the same, of which nothing can be learned.

    Args:
        where: the folder, for the error.
        x: pictures, shape (m, channels, height, width), uint8.

    Raises:
        UserError: they are.
    """
    if len(x) < FEW:
        return
    if bool((x == x[:1]).all()):
        raise damaged(where, "all its pictures are the same: expected ones that differ")


def stacked(arrays: Sequence[np.ndarray], colour: bool = False) -> Tensor:
    """Pictures of one size as (m, 1 or 3, height, width), uint8; three channels if one has them.

    Of 16-bit levels as many upper bits are taken as the brightest of all has, eight or more: those
    of a camera with 12 bits are not black.
    """
    deep = [array for array in arrays if array.dtype == np.uint16]
    if deep:
        bits = max(8, *(int(array.max()).bit_length() for array in deep))
        arrays = [
            (array >> (bits - 8)).astype(np.uint8) if array.dtype == np.uint16 else array
            for array in arrays
        ]
    if colour or any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.stack([array] * 3, axis=-1) for array in arrays]
    x = torch.from_numpy(np.stack(arrays))
    return x.permute(0, 3, 1, 2) if x.ndim == 4 else x[:, None]
