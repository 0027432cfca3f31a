"""Words for the parts of a data set, as people write them in folders, columns, splits and files."""

from __future__ import annotations

import re
from collections.abc import Iterable

PARTS = {
    "train": ("train", "training", "trn"),
    "validation": ("validation", "valid", "val", "dev", "development", "eval"),
    "test": ("test", "testing", "tst", "holdout", "heldout"),
}
"""Each part -> the words for it, in small letters without anything between them."""
BESIDE = ("set", "sets", "data", "split", "part", "images", "image", "imgs", "img", "pictures",
          "photos", "samples", "files", "folder", "dir")  # fmt: skip
"""What may stand beside such a word, as in `train_images` and `test_data`."""


def part_of(word: str) -> str:
    """The part that a word names: train, validation, test, or "" for any other word.

    Example:
        >>> [part_of(word) for word in ("Training", "hold-out", "train_set", "north")]
        ['train', 'test', 'train', '']
        >>> [part_of(word) for word in ("trainImages", "data-test", "train_station")]
        ['train', 'test', '']
    """
    pieces = re.findall(r"[^\W\d_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", word).lower())
    plain = "".join(piece for piece in pieces if piece not in BESIDE)
    plain = plain.removesuffix("set").removesuffix("data").removesuffix("split") or plain
    return next((part for part, words in PARTS.items() if plain in words), "")


def _named_alike(words: Iterable[str]) -> dict[str, str]:
    """Word -> part of words that differ only in it, such as `seg_train` and `seg_test`."""
    alike: dict[tuple[str, ...], dict[str, str]] = {}
    for word in words:
        pieces = re.findall(r"[^\W_]+", word.lower())
        for at in {0, len(pieces) - 1} if len(pieces) > 1 else ():
            if part := part_of(pieces[at]):
                rest = (str(at == 0), *pieces[:at], *pieces[at + 1 :])
                alike.setdefault(rest, {})[word] = part
    found = (group for group in alike.values() if {"train", "test"} <= {*group.values()})
    return {word: part for group in found for word, part in group.items()}


def parts_of(words: Iterable[str]) -> dict[str, str]:
    """Word -> part, if all words name parts and training and test are among them; else empty.

    Example:
        >>> parts_of(["Training", "Testing"]), parts_of(["train", "north"]), parts_of(["train"])
        ({'Training': 'train', 'Testing': 'test'}, {}, {})
        >>> parts_of(["seg_train", "seg_test"])
        {'seg_train': 'train', 'seg_test': 'test'}
    """
    words = [*words]
    alike = _named_alike(words)
    found = {word: part_of(word) or alike.get(word, "") for word in words}
    whole = all(found.values()) and {"train", "test"} <= {*found.values()}
    return found if whole else {}


def words_for_parts(words: Iterable[str]) -> list[str]:
    """Those of the words that name a part."""
    words = [*words]
    alike = _named_alike(words)
    return [word for word in words if part_of(word) or word in alike]
