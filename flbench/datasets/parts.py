"""Words for the parts of a data set, as people write them in folders, columns, splits and files."""

from __future__ import annotations

from collections.abc import Iterable

PARTS = {
    "train": ("train", "training", "trn"),
    "validation": ("validation", "valid", "val", "dev", "development", "eval"),
    "test": ("test", "testing", "tst", "holdout", "heldout"),
}
"""Each part -> the words for it, in small letters without anything between them."""


def part_of(word: str) -> str:
    """The part that a word names: train, validation, test, or "" for any other word.

    Example:
        >>> [part_of(word) for word in ("Training", "hold-out", "train_set", "north")]
        ['train', 'test', 'train', '']
    """
    plain = "".join(letter for letter in word.lower() if letter.isalpha())
    plain = plain.removesuffix("set").removesuffix("data").removesuffix("split") or plain
    return next((part for part, words in PARTS.items() if plain in words), "")


def parts_of(words: Iterable[str]) -> dict[str, str]:
    """Word -> part, if all words name parts and training and test are among them; else empty.

    Example:
        >>> parts_of(["Training", "Testing"]), parts_of(["train", "north"]), parts_of(["train"])
        ({'Training': 'train', 'Testing': 'test'}, {}, {})
    """
    found = {word: part_of(word) for word in words}
    whole = all(found.values()) and {"train", "test"} <= {*found.values()}
    return found if whole else {}


def words_for_parts(words: Iterable[str]) -> list[str]:
    """Those of the words that name a part."""
    return [word for word in words if part_of(word)]
