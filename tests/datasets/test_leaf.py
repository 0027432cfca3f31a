"""LEAF's JSON files: users become domains, and what does not follow the format is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flbench.core.dataset import Dataset
from flbench.errors import BadParameter, MissingData, UserError
from flbench.federation.loading import load_dataset

TRAIN = {"a": ([[0.0, 1.0, 0.5, 0.25]], [2]), "b": ([[1, 1, 1, 1], [0, 0, 0, 0]], [0, 1])}
TEST = {"b": ([[0.5, 0.5, 0.5, 0.5]], [1])}


def stored(folder: Path, name: str, users: dict[str, Any]) -> Path:
    path = folder / name / "data.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def loaded(folder: Path, end: str = "") -> Dataset:
    return load_dataset(f"leaf:{folder}{end}", Path("nowhere"))


def test_users_are_domains_and_the_test_files_the_test_part(tmp_path: Path) -> None:
    stored(tmp_path, "train", TRAIN)
    stored(tmp_path, "test", TEST)
    found = loaded(tmp_path)
    assert found.x.tolist() == [[0.0, 1.0, 0.5, 0.25], [1.0] * 4, [0.0] * 4, [0.5] * 4]
    assert (found.y.tolist(), found.classes) == ([2, 0, 1, 1], 3)
    assert found.domains is not None and found.domains.tolist() == [0, 1, 1, 1]
    assert found.test is not None and found.test.tolist() == [False, False, False, True]


def test_files_before_the_split_have_no_test_part(tmp_path: Path) -> None:
    stored(tmp_path, "all_data", TRAIN)
    assert loaded(tmp_path).test is None


def test_numbers_become_images(tmp_path: Path) -> None:
    stored(tmp_path, "all_data", TRAIN)
    assert loaded(tmp_path, "@2").x[0].tolist() == [[[0.0, 1.0], [0.5, 0.25]]]
    with pytest.raises(UserError, match="@3 expects 9 numbers per sample, got 4"):
        loaded(tmp_path, "@3")
    with pytest.raises(BadParameter):
        loaded(tmp_path, "@0")


def test_texts_become_tokens_and_those_that_follow(tmp_path: Path) -> None:
    """Characters "a" to "d" are 0 to 3: "abc" then "d" is 0 1 2 and 1 2 3."""
    stored(tmp_path, "all_data", {"hamlet": (["abc", "bca"], ["d", "a"])})
    found = loaded(tmp_path)
    assert found.x.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert found.y.tolist() == [[1, 2, 3], [2, 0, 0]]
    assert (found.classes, found.x.dtype) == (4, torch.int64)


@pytest.mark.parametrize(
    ("users", "why"),
    [
        ({"a": ([[1.0]], [0, 1])}, "user a has 1 samples and 2 labels"),
        ({"a": ([[1.0], [1.0, 2.0]], [0, 1])}, "as many in each"),
        ({"a": ([1.0, 2.0], [0, 1])}, "lists of finite numbers"),
        ({"a": ([[1.0]], [0.5])}, "labels must be whole numbers"),
        ({"a": ([[1.0]], [-1])}, "labels must be whole numbers"),
        ({"a": ([["x"]], [0])}, "samples must be numbers"),
        ({"a": (["abc", "ab"], ["d", "c"])}, "texts of one length"),
        ({"a": (["abc"], ["de"])}, "texts of one length"),
        ({"a": (["abc", [1.0]], ["d", "e"])}, "in all files"),
        ({"a": ([], [])}, "no samples"),
    ],
)
def test_what_does_not_follow_the_format(tmp_path: Path, users: Any, why: str) -> None:
    stored(tmp_path, "all_data", users)
    with pytest.raises(UserError, match=why):
        loaded(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"users": ["a"], "user_data": {}}', "[" * 10_000])
def test_other_files(tmp_path: Path, text: str) -> None:
    stored(tmp_path, "all_data", TRAIN).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="it is no LEAF file"):
        loaded(tmp_path)


def test_a_user_listed_often_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    """200,000 times the samples of one user would fill the memory."""
    file = tmp_path / "all_data" / "a.json"
    file.parent.mkdir()
    user = {"x": [[0.5, 1.0]] * 1000, "y": [1] * 1000}
    content = {"users": ["u"] * 200_000, "num_samples": [], "user_data": {"u": user}}
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match="a user is listed twice"):
        loaded(tmp_path)


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"expects train/\*.json"):
        loaded(tmp_path)
