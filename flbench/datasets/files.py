"""Functions of the loaders: check and read files, and convert images to network inputs.

No code in a file is executed: `.npz` files are read with `allow_pickle=False`, images by Pillow. A
file that is missing raises MissingData, one that cannot be used UserError, with its path.
"""

from __future__ import annotations

import shlex
import zipfile
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset
from flbench.errors import BadParameter, MissingData, UserError
from flbench.results.files import read_bounded

SIGNED = (0.5,), (0.5,)
"""Mean and standard deviation that scale 0..1 to -1..1, where no other scale is published."""


KINDS = ("tokens", "numbers")
"""What whole numbers may be."""
UNREADABLE = (
    ValueError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What reading a damaged `.npz` file raises; RuntimeError where it is encrypted."""
SAVED_BY_NUMPY = (b"PK\x03\x04", b"PK\x05\x06", b"\x93NUM")
"""How `.npz` files begin, those without an array, and `.npy` files."""


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


def present(root: Path, files: Sequence[str]) -> bool:
    """Whether all files are under the root."""
    return all((root / file).is_file() for file in files)


def expect(name: str, root: Path, files: Sequence[str], otherwise: str = "") -> None:
    """Check that the files of a data set, all in one folder, are under the root.

    The message names the command that fetches them and, in `otherwise`, what can replace them.
    """
    if present(root, files):
        return
    names = [Path(file).name for file in files]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    raise MissingData(
        f"data set '{name}' expects {listed} in {(root / files[0]).parent}{otherwise};"
        " set their folder with --data-root or FLBENCH_DATA, or fetch them with"
        f" flbench data {name} --fetch --data-root {shlex.quote(str(root))}"
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


def joined(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Join a training and a test part, each (x, y), to x, y and the mask of the test part."""
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    test = torch.arange(len(y)) >= len(parts[0][1]) if len(parts) > 1 else None
    return x, y if y.is_floating_point() else y.long(), test


def scaled(
    name: str,
    pixels: Pixels,
    classes: int,
    scale: tuple[Sequence[float], Sequence[float]],
    domains: Tensor | None = None,
) -> Dataset:
    """A data set of images, scaled to float32: (x / 255 - mean) / std in each channel."""
    return Dataset(name, in_range(pixels.x, scale), pixels.y, classes, domains, pixels.test)


def in_range(pixels: Tensor, scale: tuple[Sequence[float], Sequence[float]]) -> Tensor:
    """Bytes (m, channels, height, width) as float32: (x / 255 - mean) / std in each channel."""
    x = torch.empty(pixels.shape, dtype=torch.float32).copy_(pixels)
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in scale)
    return x.div_(255).sub_(mean).div_(std)


DARK = 64
"""Below this, the brightest byte of images says that white is another number than 255."""


def dark_notes(brightest: int) -> list[str]:
    """A note on images whose bytes are 0..`brightest`, where that is far from 255.

    Example:
        >>> dark_notes(16)  # doctest: +ELLIPSIS
        ['its bytes are 0..16 and are divided by 255, so that all images are dark: ...']
        >>> dark_notes(200)
        []
    """
    if brightest >= DARK:
        return []
    return [
        f"its bytes are 0..{brightest} and are divided by 255, so that all images are dark: if"
        f" {brightest} is white, scale them to 0..255"
    ]


def checked(path: Path, pixels: Pixels, classes: int) -> Pixels:
    """Return the images if there are any, with one label in 0..classes-1 per image."""
    if len(pixels.x) != len(pixels.y) or len(pixels.y) == 0:
        raise damaged(path, f"it has {len(pixels.x)} images and {len(pixels.y)} labels")
    low, high = int(pixels.y.min()), int(pixels.y.max())
    if low < 0 or high >= classes:
        raise damaged(path, f"labels must be 0..{classes - 1}, got {low}..{high}")
    return pixels


PACKED = {
    b"\x1f\x8b": "a gzip file: unpack it with gunzip",
    b"BZh": "a bzip2 file: unpack it with bunzip2",
    b"\xfd7zXZ": "an xz file: unpack it with unxz",
    b"PK\x03\x04": "a zip file or a workbook: unpack it, or save its sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "a workbook: save its sheet as CSV UTF-8",
    b"PAR1": "a parquet file: read its folder with hub:FOLDER, or save it as CSV",
}
"""What files of other kinds begin with, what they are and what to do."""
OTHER_TEXT = (
    "; a text of another encoding is converted by iconv -f ENCODING -t UTF-8, where ENCODING is"
    " WINDOWS-1252, UTF-16, ..."
)


def no_file(path: Path) -> MissingData:
    """The error where a file is expected, and there is none, or a folder."""
    what = f"{path} is a folder, expected a file" if path.is_dir() else f"there is no file {path}"
    return MissingData(what)


def text_in(path: Path, most: int) -> str:
    """The text of a file in UTF-8 of at most `most` bytes; lines end as on Linux.

    Raises:
        UserError: it is something else; says what to do.
    """
    content = read_bounded(path, most)
    if known := next((what for start, what in PACKED.items() if content.startswith(start)), None):
        raise damaged(path, f"it is {known}")
    if b"\0" in content:
        raise damaged(path, f"it has bytes of zero, which no text in UTF-8 has{OTHER_TEXT}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise damaged(path, f"expected UTF-8 text: {error}{OTHER_TEXT}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def narrowed(path: Path, what: str, array: np.ndarray) -> np.ndarray:
    """Numbers, shape (m, ...), as float32.

    Raises:
        UserError: float32, which has 24 bits, cannot tell the values of a column from each other:
            the error of rounding is over a thousandth of their deviation.
    """
    with np.errstate(over="ignore"):  # what is too large is infinite then
        single = array.astype(np.float32)
    if array.dtype.itemsize < 4 or array.dtype == np.float32 or array.ndim > 2 or not array.size:
        return single
    exact = array.astype(np.float64)
    if not np.isfinite(exact).all() or not np.isfinite(single).all():
        return single  # refused by who asks
    scale = np.abs(exact).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    lost = np.abs(exact - single).max(axis=0) / scale > 1e-3 * (exact / scale).std(axis=0)
    lost &= (exact != exact[:1]).any(axis=0)
    if lost.any():
        column = int(np.flatnonzero(np.atleast_1d(lost))[0])
        values = exact if exact.ndim == 1 else exact[:, column]
        place = "" if exact.ndim == 1 else f", column {column},"
        raise damaged(
            path, f"{what}{place} holds numbers from {values.min():.17g} to {values.max():.17g},"
            " which float32 cannot tell from each other: subtract their mean first"
        )  # fmt: skip
    return single


def refuse_row_numbers(path: Path, what: str, x: Tensor) -> None:
    """Refuse samples, shape (m, d), of which a column numbers the rows, in any order.

    Raises:
        UserError: one does; it says where a sample is, which is no feature.
    """
    if x.ndim != 2 or x.shape[1] < 2 or len(x) < 8:
        return
    low = x.amin(dim=0)
    for column in torch.nonzero(x.amax(dim=0) - low == len(x) - 1)[:, 0].tolist():
        if torch.equal(x[:, column].sort().values - low[column], torch.arange(len(x)).to(x.dtype)):
            raise damaged(
                path, f"column {column} of {what} numbers the rows, and is no feature: leave it"
                f" out, as numpy.delete(x, {column}, axis=1) does"
            )  # fmt: skip


def arrays(path: Path, keys: Container[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, or those of them that `keys` names.

    Raises:
        MissingData: there is no such file.
        UserError: it is not an `.npz` file, or holds something else than numbers and text.
    """
    if not path.is_file():
        raise no_file(path)
    try:
        with path.open("rb") as stream:
            if stream.read(4) not in SAVED_BY_NUMPY:
                raise ValueError("it is no .npz file, as numpy.savez writes; of a table: csv:FILE")
            stream.seek(0)
            stored = np.load(stream, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise ValueError("it is one array, not an .npz file")
            return {key: stored[key] for key in stored.files if keys is None or key in keys}
    except UNREADABLE as error:
        raise damaged(path, error) from None


def only_npz(folder: Path) -> Path | None:
    """The only `.npz` file of a folder, or None."""
    found = sorted(folder.glob("*.npz"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise UserError(f"{folder} holds several .npz files ({names}): leave one")
    return found[0] if found else None


def found_npz(root: Path, folder: str, whole: int) -> Found | None:
    """The first `.npz` file in a folder under the root; None without one. Images are not read.

    The complete data set has `whole` samples.
    """
    paths = sorted((root / folder).glob("*.npz"))
    if not paths:
        return None
    try:
        count = sum(y.size for y in arrays(paths[0], ("y", "y_train", "y_test")).values())
    except UserError:
        count = 0
    return Found(f"{folder}/{paths[0].name}", count, count >= whole)


def whole_numbers(
    path: Path, key: str, array: np.ndarray, count: int, limit: int | None = None
) -> Tensor:
    """An array of an `.npz` file as integers, shape (count,), int64."""
    if array.dtype.kind not in "iu" or array.shape != (count,):
        got = f"{array.dtype} {array.shape}"
        more = "; to predict numbers, add ?task=numbers" if array.dtype.kind == "f" else ""
        more = more or ("; for labels of 0 and 1, add ?task=labels" if array.ndim == 2 else "")
        if array.shape == (count, 1):
            more = f"; type {key}[:, 0]"
        elif array.dtype.kind in "bSU" and array.shape == (count,):
            more = f"; type numpy.unique({key}, return_inverse=True)[1]"
        elif array.ndim == 1 and len(array) != count:
            more = f": expected one for each of the {count} samples"
        more = more if key.startswith(("y", "domains")) and path.suffix == ".npz" else ""
        raise damaged(path, f"{key} must be {count} whole numbers, got {got}{more}")
    numbers = torch.from_numpy(array.astype(np.int64))
    if limit is not None and not 0 <= numbers.min() <= numbers.max() < limit:
        got = f"{int(numbers.min())}..{int(numbers.max())}"
        raise damaged(path, f"{key} must be 0..{limit - 1}, got {got}")
    return numbers


def asked_kind(spec: str, options: Mapping[str, str]) -> str | None:
    """What whole numbers of a person's file are, as an option says; None = it does not.

    Raises:
        BadParameter: it is none of `KINDS`.
    """
    kind = options.get("kind")
    if kind is not None and kind not in KINDS:
        raise BadParameter(f"{spec}: kind={kind}: expected {' or '.join(KINDS)}")
    return kind


def tokens_or_numbers(path: Path, what: str, array: np.ndarray, kind: str | None) -> Tensor:
    """Whole numbers (m, T) as tokens, int64, or as numbers such as pixels, float32.

    Negative ones are numbers.

    Raises:
        UserError: both could be, and `kind` does not say which.
    """
    negative = array.size and array.min() < 0
    if kind is None and not negative:
        raise damaged(
            path, f"{what} holds whole numbers {array.dtype} {array.shape}, which may be tokens of"
            " a text, or numbers such as pixels: add ?kind=tokens or ?kind=numbers to the name of"
            " the data set"
        )  # fmt: skip
    if kind == "tokens" and negative:
        raise damaged(path, f"{what} are no tokens, as one is {array.min()}: expected 0 or more")
    if kind == "tokens":
        return torch.from_numpy(array.astype(np.int64))
    return torch.from_numpy(narrowed(path, what, array))


def folder_and_size(argument: str, owner: str) -> tuple[str, int | None]:
    """The parts of FOLDER@SIZE; None = no size is given.

    Raises:
        BadParameter: the size is not 1..1024 pixels; names the `owner`.
    """
    folder, at, size = argument.rpartition("@")
    if not at or "/" in size:
        return argument, None
    if not size.isdecimal() or not 1 <= int(size) <= 1024:
        if Path(argument).is_dir():
            return argument, None
        raise BadParameter(
            f"{owner}:{argument}: expected a size of 1..1024 pixels after @, got '{size}': type"
            f" {owner}:{folder}@32, or {owner}:{folder}"
        )
    return folder, int(size)


def options_in(what: str, query: str) -> dict[str, str]:
    """The options after a question mark, as in `leave=x,y&missing=drop`.

    Args:
        what: the data set, for the error.

    Raises:
        BadParameter: an option is there twice.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise BadParameter(
            f"{what}: option '{twice}' is there twice: expected one; of several columns or values"
            f" write {twice}=FIRST,SECOND"
        )
    return dict(pairs)


def npz_parts(
    path: Path,
    stored: dict[str, np.ndarray],
    convert: Callable[[Path, str, np.ndarray], Tensor],
    targets: Callable[[Path, str, np.ndarray, int], Tensor] | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Samples and labels of each part of an `.npz` file: x_train, y_train, x_test, y_test; or x, y.

    Args:
        path: of the file.
        stored: its arrays.
        convert: checks and converts an array of samples, given the file and the array's name.
        targets: the same of targets, and of how many samples; None = they are labels 0..C-1.
    """
    read = targets or whole_numbers
    parts = []
    for part in [""] if "x" in stored and "x_train" not in stored else ["_train", "_test"]:
        for key in (f"x{part}", f"y{part}"):
            if key not in stored:
                raise damaged(path, f"it has no array {key} (it has {', '.join(stored) or 'none'})")
        x = convert(path, f"x{part}", stored[f"x{part}"])
        parts.append((x, read(path, f"y{part}", stored[f"y{part}"], len(x))))
    held = [stored[key].dtype for key in ("x_train", "x_test") if key in stored]
    if len({"bytes" if one == np.uint8 else one.kind for one in held}) > 1:
        raise damaged(
            path, f"x_train is {held[0]} and x_test {held[1]}: expected one of them in both, as"
            " bytes are divided by 255, and whole numbers may be tokens"
        )  # fmt: skip
    first, last = parts[0][0], parts[-1][0]
    if first.shape[1:] != last.shape[1:] or first.dtype != last.dtype:
        shapes = " and ".join(f"{tuple(x.shape[1:])} {x.dtype}" for x in (first, last))
        raise damaged(path, f"samples of x_train and x_test differ: {shapes}")
    return parts


def npz_pixels(path: Path, stored: dict[str, np.ndarray], classes: int) -> Pixels:
    """Colour images of 32x32 in the arrays of an `.npz` file, uint8, channels last."""
    return checked(path, Pixels(*joined(npz_parts(path, stored, as_bytes))), classes)


def as_bytes(path: Path, key: str, array: np.ndarray) -> Tensor:
    """Images of shape (m, 32, 32, 3) as (m, 3, 32, 32), uint8."""
    if array.dtype != np.uint8 or array.shape[1:] != (32, 32, 3):
        got = f"{array.dtype} {array.shape}"
        raise damaged(path, f"{key} must be uint8 (m, 32, 32, 3), got {got}")
    return torch.from_numpy(array).permute(0, 3, 1, 2)
