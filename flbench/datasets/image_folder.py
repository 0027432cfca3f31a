"""Images in folders: `<class>/`, `<domain>/<class>/`, and either below `train/` and `test/`.

Any words for the parts will do (`parts.py`); a validation part is joined to the training part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from flbench.datasets.columns import written_twice
from flbench.datasets.files import Pixels, damaged
from flbench.datasets.images import OTHER_PICTURES, SUFFIXES, opened, refuse_unseen, stacked
from flbench.datasets.parts import parts_of, words_for_parts
from flbench.errors import MissingData, UserError

BEGINNINGS = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"II*\x00", b"MM\x00*", b"RIFF", b"GIF8")
"""What files of pictures begin with."""
MASKS = frozenset(("mask", "masks", "annotation", "annotations", "segmentation", "segmentations"))
"""Names of folders of pictures that say which pixel of another picture is what."""


@dataclass(frozen=True)
class FolderImages:
    """All images of a folder, the names of their labels and domains, and each image's domain.

    `domains` is empty and `domain` (shape (m,), int64) is None if the folder has no domains;
    `notes` says what became of a validation part.
    """

    pixels: Pixels
    classes: list[str]
    domains: list[str]
    domain: Tensor | None
    notes: tuple[str, ...] = ()


def listed(folder: Path) -> list[tuple[str, str, str, Path]]:
    """Part, domain, class ("" = none) and file of each image of a folder, in order.

    Raises:
        MissingData: there is no such folder, or no image in it.
        UserError: some folders hold images and others hold folders.
    """
    if not folder.is_dir():
        got = f"{folder} is a file, expected a folder" if folder.exists() else ""
        raise MissingData(got or f"there is no folder {folder}")
    words = parts_of(names(folder))
    if not words:
        no_parts(folder, names(folder))
    order = {"train": 0, "validation": 1, "test": 2}
    found = []
    for part in sorted(words, key=lambda word: (order[words[word]], word)) or [""]:
        base = folder / part
        no_strays(base)
        no_parts(base, names(base))
        deep = [child for child in names(base) if names(base / child)]
        if deep and len(deep) < len(names(base)):
            flat = next(child for child in names(base) if child not in deep)
            raise UserError(
                f"{base} mixes <class>/ and <domain>/<class>/: {deep[0]} has folders, {flat} none"
            )
        for domain in deep or [""]:
            no_strays(base / domain)
            no_parts(base / domain, names(base / domain))
            for kind in names(base / domain):
                files = images(base / domain / kind)
                if deeper := names(base / domain / kind):
                    raise damaged(
                        base / domain / kind, f"it has a folder {deeper[0]}/ below a class, whose"
                        " pictures would be left out: move them up, or take it away"
                    )  # fmt: skip
                if not files:
                    raise damaged(base / domain / kind, "it has no image")
                found += [(part, domain, kind, file) for file in files]
    if not found:
        raise MissingData(f"{folder} has no folder of images per class")
    return found


def no_strays(folder: Path) -> None:
    """Refuse pictures beside the folders of classes, which would be left out.

    Raises:
        UserError: there are such.
    """
    if strays := images(folder):
        raise damaged(
            folder, f"{strays[0].name} lies beside folders: expected each picture in the folder of"
            " its class, as in FOLDER/CLASS/*.png; move it, or take it away"
        )  # fmt: skip


def no_parts(folder: Path, names: list[str]) -> None:
    """Refuse folders of classes or domains whose names are words for parts.

    Raises:
        UserError: there are such; training images could be tested on.
    """
    if words := words_for_parts(names):
        others = [name for name in names if name not in words]
        beside = f" beside {others[0]}/" if others else ""
        raise UserError(
            f"{folder} has {', '.join(f'{word}/' for word in words)}{beside}: expected parts at the"
            " top, as in FOLDER/train/CLASS/ and FOLDER/test/CLASS/, and no class or domain of such"
            " a name"
        )


def refuse_names(folder: Path, classes: list[str], domains: list[str]) -> None:
    """Refuse classes that are masks of the others, and names that are one written in two ways.

    Raises:
        UserError: there are such.
    """
    if masks := [name for name in classes if name.casefold() in MASKS]:
        raise damaged(
            folder, f"it has {masks[0]}/ as a class: expected one class for each image; masks, as"
            " of segmentation, are no classes"
        )  # fmt: skip
    for what, found in (("class", classes), ("domain", domains)):
        if pair := written_twice(found):
            raise damaged(
                folder, f"{pair[0]}/ and {pair[1]}/ are one {what} written in two ways: write one"
                " of them"
            )  # fmt: skip


def names(folder: Path) -> list[str]:
    """The folders in a folder; sorted, as numbers if all are numbers."""
    return ordered(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")


def ordered(found: Iterable[str]) -> list[str]:
    """Each name once; sorted, as numbers if all are numbers."""
    each = set(found)
    numbers = all(name.isdecimal() for name in each)
    return sorted(each, key=lambda name: (int(name) if numbers else 0, name))


def images(folder: Path) -> list[Path]:
    """The images of one class, sorted by name.

    Raises:
        UserError: it holds pictures of a kind that is not read, which would be left out.
    """
    files = [p for p in folder.iterdir() if not p.is_dir() and p.name[0] != "."]
    if other := sorted(p.name for p in files if p.suffix.lower() in OTHER_PICTURES):
        raise damaged(
            folder, f"{other[0]} is a picture of a kind that is not read: expected"
            f" {', '.join(SUFFIXES)}; convert it, or take it away"
        )  # fmt: skip
    unknown = sorted(p for p in files if p.suffix.lower() not in SUFFIXES)
    if pictures := [path.name for path in unknown if is_picture(path)]:
        raise damaged(
            folder, f"{pictures[0]} is a picture by its first bytes, or a link that leads nowhere,"
            f" and not by its name: expected {', '.join(SUFFIXES)}; rename it, or take it away"
        )  # fmt: skip
    return sorted(p for p in files if p.suffix.lower() in SUFFIXES)


def is_picture(file: Path) -> bool:
    """Whether a file begins as pictures do, or is a link to none."""
    try:
        with file.open("rb") as opened_file:
            return opened_file.read(12).startswith(BEGINNINGS)
    except OSError:
        return True


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
    x = stacked(arrays, colour)
    refuse_unseen(folder, x)
    classes = ordered(kind for _, _, kind, _ in rows)
    domains = ordered(domain for _, domain, _, _ in rows)
    refuse_names(folder, classes, domains)
    y = torch.tensor([classes.index(row[2]) for row in rows])
    parts = parts_of({row[0] for row in rows})
    test = torch.tensor([parts[row[0]] == "test" for row in rows]) if parts else None
    joined = sorted(word for word, part in parts.items() if part == "validation")
    notes = tuple(f"the images of {word}/ are in the training part" for word in joined)
    if domains == [""]:
        return FolderImages(Pixels(x, y, test), classes, [], None, notes)
    domain = torch.tensor([domains.index(row[1]) for row in rows])
    return FolderImages(Pixels(x, y, test), classes, domains, domain, notes)
