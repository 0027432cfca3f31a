"""Data sets in the JSON files of LEAF, one domain per user: `leaf:FOLDER` and `leaf:FOLDER@SIZE`.

Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar, "LEAF: a benchmark for federated
settings", arXiv 1812.01097. Its scripts write `train/*.json` and `test/*.json`, or, before the
split, `all_data/*.json`, each with

    {"users": ["u"], "num_samples": [2], "user_data": {"u": {"x": [[0.5, 1.0], ...], "y": [3, 1]}}}

Samples are lists of numbers (FEMNIST, synthetic), which @SIZE makes grey images of SIZE x SIZE
pixels; or texts of one length whose label is the next character (Shakespeare), which become tokens
with one label each. Such texts are windows of a sequence: they are put in its order, if they are in
another one, and divided by time, and as many are left out between the parts as share a character.
The partition `natural` makes each user a client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.columns import written_twice
from flbench.datasets.files import damaged, folder_and_size, narrowed, refuse_row_numbers
from flbench.datasets.parts import words_for_parts
from flbench.datasets.windows import by_time
from flbench.errors import MissingData, UserError
from flbench.results.files import read_bounded, user_path

LARGEST = 2**31
"""Bytes of a file."""
NATURAL = True
ABOUT = {
    "leaf": DatasetInfo(
        source="Caldas et al. 2018, leaf.cmu.edu; or yours in its format",
        licence="that of the files",
        fetch="--dataset leaf:FOLDER[@SIZE], with the files that LEAF's preprocess.sh writes",
    )
}


def leaf(root: Path, argument: str) -> Dataset:
    """The JSON files of LEAF: leaf:FOLDER with train/ and test/, or all_data/; a domain per user.

    Raises:
        MissingData: there are no such files.
        UserError: a file does not follow the format.
    """
    folder, size = folder_and_size(argument, "leaf")
    home = user_path(folder)
    parts = [sorted((home / part).glob("*.json")) for part in ("train", "test")]
    if not all(parts):
        parts = [sorted((home / "all_data").glob("*.json"))]
    if not parts[0]:
        raise MissingData(
            f"data set 'leaf:{argument}' expects train/*.json and test/*.json, or all_data/*.json,"
            f" in {home}, got {_listing(home)}"
        )
    samples: list[Any] = []
    owners: list[set[str]] = []
    labels: list[Any] = []
    domains: list[int] = []
    users: dict[str, int] = {}
    sizes = []
    for files in parts:
        owners.append(set())
        for path in files:
            for user, own, own_labels in read(path):
                if user in owners[-1]:
                    raise damaged(
                        path, f"its user {user} is in another file of {path.parent.name}/, too:"
                        " join the samples of a user, or rename one of the two"
                    )  # fmt: skip
                owners[-1].add(user)
                domains += [users.setdefault(user, len(users))] * len(own_labels)
                samples += own
                labels += own_labels
        sizes.append(len(labels))
    if not labels:
        raise damaged(home, "its users have no samples")
    if len(owners) > 1 and not owners[0] & owners[1]:
        raise UserError(
            f"{home} has {len(owners[0])} users in train/ and {len(owners[1])} others in test/:"
            " expected samples of each user in both; write them by LEAF's preprocess.sh -t sample,"
            " or put all files into all_data/ and hold users out with --set suite.unseen=0.2"
        )
    refuse_others(home, samples, labels)
    text = isinstance(samples[0], str)
    if text:
        x, y, classes, names = characters(home, samples, labels)
    else:
        x, y, classes = numbers(home, samples, labels)
        names = ()
    if size:
        x = as_images(home, x, size)
    test = torch.arange(len(labels)) >= sizes[0] if len(sizes) > 1 else None
    others = [p.name for p in home.iterdir() if p.is_dir() and p.name not in ("train", "test")]
    unread = sorted(words_for_parts(others)) if len(sizes) > 1 else []
    notes = [f"folder {name}/ is left out" for name in unread]
    notes += [note for files in parts for note in _unread(files[0].parent, files)]
    if pair := written_twice([*users]):
        notes.append(f"users '{pair[0]}' and '{pair[1]}' may be one, written in two ways")
    if not text and 2 * (known := len({*labels})) < classes:
        notes.append(
            f"{known} of the labels 0..{classes - 1} occur, and the network has {classes} outputs:"
            " number the labels anew if these are all"
        )
    data = Dataset(
        f"leaf:{argument}", x, y, classes, torch.tensor(domains), test,
        label_names=names, domain_names=tuple(users), notes=tuple(notes), keeps_test=True,
    )  # fmt: skip
    if not text:
        return data
    data = by_time(data, torch.cat([x, y[:, None]], dim=1).numpy())
    return data if data.gap is not None else replace(data, gap=1)  # by the label


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which each key is there once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise ValueError(f"'{twice}' is there twice")
    return found


def _unread(folder: Path, files: Sequence[Path]) -> Iterator[str]:
    """A note on the files of a folder of LEAF that are not read."""
    others = sorted(one.name for one in folder.iterdir() if one not in files and one.name[0] != ".")
    if others:
        yield f"left out in {folder.name}/, as no .json: {', '.join(others[:5])}"


def _listing(home: Path) -> str:
    """What is in a folder, in a few words."""
    if not home.is_dir():
        return "a file" if home.exists() else "no such folder"
    return ", ".join(sorted(path.name for path in home.iterdir())[:5]) or "nothing"


def read(path: Path) -> Iterable[tuple[str, list[Any], list[Any]]]:
    """The users of a file, each with its samples and labels."""
    try:
        content = json.loads(read_bounded(path, LARGEST), object_pairs_hook=_once)
        named = list(map(str, content["users"]))
        if len({*named}) < len(named):
            raise damaged(path, "a user is listed twice")
        data = {str(user): own for user, own in content["user_data"].items()}
        found = [(user, list(data[user]["x"]), list(data[user]["y"])) for user in named]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, f"it is no LEAF file: {type(error).__name__}: {error}") from None
    if unlisted := [user for user in data if user not in named]:
        raise damaged(
            path, f"'users' does not list {unlisted[0]}, whose samples are in 'user_data': list"
            " each user, or take its samples out"
        )  # fmt: skip
    counts = content.get("num_samples", [len(y) for _, _, y in found])
    if not isinstance(counts, list) or len(counts) != len(found):
        raise damaged(
            path, f"'num_samples' must be a list of {len(found)} numbers, one per user of 'users'"
        )
    for (user, x, y), count in zip(found, counts, strict=True):
        if len(x) != len(y):
            raise damaged(path, f"user {user} has {len(x)} samples and {len(y)} labels")
        if count != len(y):
            raise damaged(
                path, f"'num_samples' says {count} of user {user}, whose samples are {len(y)}: the"
                " file is cut, or edited by hand"
            )  # fmt: skip
    return found


def refuse_others(home: Path, samples: list[Any], labels: list[Any]) -> None:
    """Refuse LEAF's data sets whose samples are neither numbers nor texts of characters.

    Raises:
        UserError: it is one of them; says what to do.
    """
    first = samples[0]
    if isinstance(first, str) and first.lower().endswith((".jpg", ".jpeg", ".png")):
        raise damaged(
            home, f"its samples are names of pictures, such as '{first}', as those of CelebA: put"
            " the pictures into folders USER/LABEL/ and type --dataset images:FOLDER@SIZE"
        )  # fmt: skip
    if isinstance(first, list) and any(isinstance(one, str) and " " in one for one in first):
        raise damaged(
            home, f"its samples are posts of several texts, such as '{first[0]}', as those of"
            " Sent140: make vectors of the texts (an encoder, word counts) and save them with the"
            " users as domains in an .npz file, for --dataset npz:FILE"
        )  # fmt: skip
    is_words = isinstance(first, list) and first and isinstance(first[0], list | str)
    if is_words and any(isinstance(one, str) for one in _flat(first)):
        raise damaged(
            home, "its samples are lists of words, as those of Reddit: write the text of each user"
            " to USER.txt in one folder and type --dataset text:FOLDER"
        )  # fmt: skip


def _flat(nested: Any) -> Iterable[Any]:  # noqa: ANN401 - as JSON holds it
    """The values in nested lists."""
    for one in nested:
        if isinstance(one, list):
            yield from _flat(one)
        else:
            yield one


def numbers(home: Path, samples: list[Any], labels: list[Any]) -> tuple[Tensor, Tensor, int]:
    """Lists of numbers and whole labels: x (m, ...), float32, y (m,) in 0..C-1, and C."""
    try:
        x = narrowed(home, "its samples", np.array(samples, dtype=np.float64))
        y = np.array(labels, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise damaged(
            home, "samples must be numbers, as many in each, or texts of one length; labels numbers"
        ) from None
    if x.ndim < 2 or y.ndim != 1 or not np.isfinite(x).all():
        raise damaged(home, f"samples must be lists of finite numbers, got shape {x.shape}")
    if (y != y.round()).any() or y.min() < 0 or y.max() >= 2**20:
        raise damaged(home, f"labels must be whole numbers from 0, got {y.min():g}..{y.max():g}")
    refuse_row_numbers(home, "its samples", torch.from_numpy(x))
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)), int(y.max()) + 1


def characters(
    home: Path, samples: list[Any], labels: list[Any]
) -> tuple[Tensor, Tensor, int, tuple[str, ...]]:
    """Texts as tokens x (m, T), the character after each y (m,), their number C and their names.

    Characters are numbered in their order in Unicode.
    """
    if not all(isinstance(one, str) for one in [*samples, *labels]):
        raise damaged(home, "samples must be texts and labels the next characters, in all files")
    if len({*map(len, samples)}) > 1 or {*map(len, labels)} != {1}:
        raise damaged(home, "samples must be texts of one length, labels one character each")
    names = sorted({*"".join(samples), *labels})
    known = {character: number for number, character in enumerate(names)}
    tokens = torch.tensor([[known[character] for character in row] for row in samples])
    return tokens, torch.tensor([known[one] for one in labels]), len(known), tuple(map(repr, names))


def as_images(home: Path, x: Tensor, size: int) -> Tensor:
    """Rows of SIZE * SIZE numbers as images, shape (m, 1, SIZE, SIZE)."""
    if x[0].numel() != size * size:
        raise damaged(home, f"@{size} expects {size * size} numbers per sample, got {x[0].numel()}")
    return x.reshape(len(x), 1, size, size)
