"""LEAF's JSON files: users become domains, and what does not follow the format is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention, mentions
from toy import Play

from flbench.core.dataset import Dataset
from flbench.errors import BadParameter, MissingData, UserError
from flbench.federation.build import divide
from flbench.federation.fixed_parts import fixed_parts
from flbench.federation.loading import load_dataset
from flbench.plugin.hooks import HookCaller
from flbench.suite import load_suite

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


def test_texts_become_tokens_whose_label_is_the_next_character(tmp_path: Path) -> None:
    """Characters "a" to "d" are 0 to 3: "abc" then "d" is 0 1 2 and 3."""
    stored(tmp_path, "all_data", {"hamlet": (["abc", "bca"], ["d", "a"])})
    found = loaded(tmp_path)
    assert found.x.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert found.y.tolist() == [3, 0]
    assert (found.classes, found.x.dtype) == (4, torch.int64)


WINDOW, LETTERS, LENGTH = 20, 10, 420


def random_text(folder: Path) -> Dataset:
    """Windows shifted by one of random letters, 3 users: no letter can be known beforehand."""
    draw = np.random.default_rng(0)
    texts = ["".join(map(chr, 97 + draw.integers(0, LETTERS, LENGTH))) for _ in range(3)]
    places = range(LENGTH - WINDOW)
    users = {
        f"u{user}": ([t[i : i + WINDOW] for i in places], [t[i + WINDOW] for i in places])
        for user, t in enumerate(texts)
    }
    stored(folder, "all_data", users)
    return loaded(folder)


def splits(data: Dataset, **changes: Any) -> dict[str, list[set[int]]]:
    """Rows of each client by part, in a federation of one client per user."""
    suite = load_suite("natural-writers", overrides={"clients": 3, "server_samples": 0, **changes})
    hooks = HookCaller((suite.name, suite), (), ())
    numbered = replace(data, x=torch.arange(len(data.y))[:, None].float(), gap=data.gap)
    found = divide(suite, hooks, numbered, 0)
    return {
        name: [{int(pool.x[row, 0]) for row in rows} for rows in lists]
        for pool in (found.visible, found.held_out)
        for name, lists in pool.splits.items()
    }


def test_no_letter_of_a_test_window_is_in_a_training_window(tmp_path: Path) -> None:
    """Windows i and j share no letter, labels included, where j - i > 20: 20 are left out."""
    data = random_text(tmp_path)
    assert data.gap == WINDOW
    found = splits(data)
    for train, validation, test in zip(
        found["train"], found["validation"], found["test"], strict=True
    ):
        assert min(test) - max(validation) == min(validation) - max(train) == WINDOW + 1
        assert len(test) == 100, "a quarter of 400"
        assert len(validation) == 56, "a fifth of the 280 that are left"


def shuffled_text(folder: Path) -> Dataset:
    """The windows of `random_text` in another order, as LEAF's sampling leaves them."""
    random_text(folder)
    path = folder / "all_data" / "data.json"
    content = json.loads(path.read_text())
    for number, own in enumerate(content["user_data"].values()):
        order = np.random.default_rng(number).permutation(len(own["y"]))
        own |= {key: [own[key][k] for k in order] for key in ("x", "y")}
    path.write_text(json.dumps(content))
    return loaded(folder)


def test_shuffled_windows_are_divided_as_if_they_were_in_order(tmp_path: Path) -> None:
    """Divided in the order of the file, each test window would share letters with training."""
    whole, shuffled = random_text(tmp_path / "a"), shuffled_text(tmp_path / "b")
    assert shuffled.gap == whole.gap == WINDOW
    assert torch.equal(shuffled.x, whole.x)
    assert torch.equal(shuffled.y, whole.y)
    assert mentions(shuffled.notes, "order of time")


@pytest.mark.slow
@pytest.mark.long
def test_random_letters_are_not_predicted(play_toy: Play, tmp_path: Path) -> None:
    """Right is at most 1 / 10; with all letters as labels, divided at random, it was .9."""
    data = random_text(tmp_path)
    local = {"epochs": 10, "batch_size": 16, "lr": 0.01, "optimizer": "adam"}
    suite = load_suite(
        "natural-writers",
        overrides={"clients": 3, "participation": 1.0, "rounds": 2, "server_samples": 0,
                   "local": local, "model": {"name": "gpt2", "layers": 1, "width": 32}},
    )  # fmt: skip
    after = play_toy("local-only", suite=suite, dataset=data).result
    assert after.summary["accuracy_mean"] < 0.15
    assert after.clients.test == [100] * 3, "one prediction for each window"
    every = torch.cat([data.x[:, 1:], data.y[:, None]], dim=1)
    pooled = replace(data, y=every, gap=None)
    before = play_toy("local-only", suite=suite, dataset=pooled).result
    assert (before.summary["accuracy_mean"] or 0) > 0.5


def test_a_short_user_is_left_out_and_said(tmp_path: Path) -> None:
    data = random_text(tmp_path)
    short = torch.cat([torch.arange(400), torch.arange(400, 440), torch.arange(800, 1200)])
    assert data.domains is not None
    few = replace(data, x=data.x[short], y=data.y[short], domains=data.domains[short])
    notes = fixed_parts(few, 0.25, 0.2).notes
    assert mentions(notes, "1 of 3", "'u1'", WINDOW)
    one = replace(few, x=few.x[400:440], y=few.y[400:440], domains=data.domains[400:440])
    with pytest.raises(UserError, match=mention("'u1'", 40, WINDOW)):
        fixed_parts(one, 0.25, 0.2)


def test_numbers_of_users_are_their_names(tmp_path: Path) -> None:
    path = tmp_path / "all_data" / "a.json"
    path.parent.mkdir()
    data = {"7": {"x": [[0.0], [1.0]], "y": [0, 1]}, "8": {"x": [[0.5]], "y": [1]}}
    path.write_text(json.dumps({"users": [7, 8], "num_samples": [2, 1], "user_data": data}))
    assert loaded(tmp_path).domain_names == ("7", "8")


def test_parts_of_other_users_say_what_to_type(tmp_path: Path) -> None:
    stored(tmp_path, "train", {"a": ([[0.0], [1.0]], [0, 1])})
    stored(tmp_path, "test", {"b": ([[0.5]], [1])})
    with pytest.raises(UserError, match=mention("train/", "test/", "-t sample", "all_data/")):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("x", "facts"),
    [
        (["cat_01.jpg", "dog_02.jpg"], ("'cat_01.jpg'", "images:FOLDER@SIZE")),
        ([["1", "Mon", "NO_QUERY", "u", "hi all"]] * 2, ("Sent140", "npz:FILE")),
        ([[["<BOS>", "hi", "<PAD>"]], [["a", "b", "c"]]], ("Reddit", "USER.txt", "text:FOLDER")),
    ],
)
def test_data_sets_of_leaf_that_are_not_read(
    tmp_path: Path, x: list[Any], facts: tuple[str, ...]
) -> None:
    stored(tmp_path, "all_data", {"u": (x, [0, 1])})
    with pytest.raises(UserError, match=mention(*facts)):
        loaded(tmp_path)


@pytest.mark.parametrize(
    ("users", "why"),
    [
        ({"a": ([[1.0]], [0, 1])}, "user a has 1 samples and 2 labels"),
        ({"a": ([[1.0], [1.0, 2.0]], [0, 1])}, "as many in each"),
        ({"a": ([1.0, 2.0], [0, 1])}, "lists of finite numbers"),
        ({"a": ([[1.0]], [0.5])}, "labels must be whole numbers"),
        ({"a": ([[1.0]], [-1])}, "labels must be whole numbers"),
        ({"a": ([[None]], [0])}, "lists of finite numbers"),
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


def changed(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}))


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"users": ["a"], "num_samples": [1]}, ("users", "b")),
        ({"num_samples": [1, 3]}, ("num_samples", "3", "b", "2")),
        ({"num_samples": [1]}, ("num_samples", "2")),
        ({"num_samples": []}, ("num_samples", "2")),
        ({"num_samples": None}, ("num_samples", "2")),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(
    tmp_path: Path, fields: dict[str, Any], facts: tuple[str, ...]
) -> None:
    changed(stored(tmp_path, "all_data", TRAIN), **fields)
    with pytest.raises(UserError, match=mention(*facts)):
        loaded(tmp_path)


def test_a_key_or_a_user_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, "all_data", TRAIN)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"user_data": {', '"user_data": {"a": {"x": [], "y": []}, '))
    with pytest.raises(UserError, match=mention(path, "'a' is there twice")):
        loaded(tmp_path)
    path.write_text(text, encoding="utf-8")
    other = path.with_name("other.json")
    other.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=mention(other, "user a", "another file")):
        loaded(tmp_path)
    other.rename(path.with_name("other.JSON"))
    assert mentions(loaded(tmp_path).notes, "all_data/", "no .json", "other.JSON")


def test_users_in_two_ways_and_labels_with_gaps(tmp_path: Path) -> None:
    stored(tmp_path, "all_data", {"ann": ([[0.1, 0.7]], [0]), "Ann": ([[0.4, 0.2]], [1])})
    (note,) = loaded(tmp_path).notes
    assert mentions(note, "ann", "Ann", "two ways")
    stored(tmp_path, "all_data", {"ann": ([[0.1, 0.7]], [0]), "ben": ([[0.4, 0.2]], [5])})
    (note,) = loaded(tmp_path).notes
    assert mentions(note, "2", "0..5", "6 outputs")
