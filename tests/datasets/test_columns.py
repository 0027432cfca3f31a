"""Targets of other tasks through every door: tables, arrays, the library `datasets`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mentions import mention, mentions

from flbench.core.dataset import Dataset
from flbench.datasets.columns import groups_of, targets_of
from flbench.datasets.status import checked
from flbench.errors import BadParameter, UserError
from flbench.federation.loading import load_dataset

TABLE = """price,width,kind,round,big
10.5,1,red;round,1,0
20,2,none,0,1
30,5,red,0,1
"""


def csv(folder: Path, options: str, text: str = TABLE) -> Dataset:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return load_dataset(f"csv:{path}?{options}", Path("nowhere"))


def test_a_column_of_numbers(tmp_path: Path) -> None:
    found = csv(tmp_path, "label=price&task=numbers&leave=kind,round,big")
    assert (found.task, found.classes, found.label_names) == ("numbers", 1, ("price",))
    assert found.y.tolist() == [10.5, 20, 30]
    assert found.y.dtype == torch.float32
    assert found.features == ("width (numbers)",)


def test_several_columns_of_numbers(tmp_path: Path) -> None:
    found = csv(tmp_path, "label=price,width&task=numbers&leave=kind")
    assert (found.classes, found.label_names) == (2, ("price", "width"))
    assert found.y.tolist() == [[10.5, 1], [20, 2], [30, 5]]


def test_a_column_for_each_label(tmp_path: Path) -> None:
    found = csv(tmp_path, "label=round,big&task=labels&leave=kind")
    assert (found.task, found.classes, found.label_names) == ("labels", 2, ("round", "big"))
    assert found.y.tolist() == [[1, 0], [0, 1], [0, 1]]


def test_words_in_one_column(tmp_path: Path) -> None:
    found = csv(tmp_path, "label=kind&task=labels")
    assert found.label_names == ("red", "round")
    assert found.y.tolist() == [[1, 1], [0, 0], [1, 0]], "none is no label"


def test_another_column_of_classes(tmp_path: Path) -> None:
    found = csv(tmp_path, "label=round&leave=kind")
    assert (found.task, found.y.tolist(), found.label_names) == ("classes", [1, 0, 0], ("0", "1"))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ("label=price&leave=kind", ("price", "10.5", "task=numbers")),
        ("label=kind&task=numbers", ("kind", "red;round", "row 1")),
        ("label=price,width", ("price, width", "task=labels")),
        ("label=price,big&task=labels", ("price", "10.5", "0 or 1")),
        ("label=weight&task=numbers", ("weight", "?label=COLUMN")),
        ("label=price&leave=price&task=numbers", ("?leave=price",)),
        ("label=price&task=regression", ("classes, numbers, labels", "regression")),
    ],
)
def test_what_does_not_fit_says_what_to_type(
    tmp_path: Path, options: str, facts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError, match=mention(*facts)):
        csv(tmp_path, options)


@pytest.mark.parametrize("gap", ["", "NA", "?", "inf", "nan"])
def test_a_number_may_not_be_missing(tmp_path: Path, gap: str) -> None:
    with pytest.raises(UserError, match=mention("price", "row 2")):
        csv(tmp_path, "label=price&task=numbers", TABLE.replace("\n20,", f"\n{gap},"))


def test_labels_may_be_lists() -> None:
    found = targets_of(Path("made"), "labels", {"tags": [[2, 10], [], ["10"], [2]]})
    assert found.names == ("2", "10")
    assert found.y.tolist() == [[1, 1], [0, 0], [0, 1], [1, 0]]
    with pytest.raises(UserError, match=mention("tags", "list", "task=labels")):
        targets_of(Path("made"), "classes", {"tags": [[2, 10], [2]]})


def npz(folder: Path, y: np.ndarray, task: str) -> Dataset:
    path = folder / "mine.npz"
    np.savez(path, x=np.arange(12, dtype=np.float32).reshape(4, 3) ** 2, y=y)
    return load_dataset(f"npz:{path}{task}", Path("nowhere"))


def test_arrays(tmp_path: Path) -> None:
    one = npz(tmp_path, np.array([1.5, 2, 3, 4]), "?task=numbers")
    assert (one.task, one.classes, one.y.tolist()) == ("numbers", 1, [1.5, 2, 3, 4])
    two = npz(tmp_path, np.array([[1, 2], [3, 4], [5, 6], [7, 9]]), "?task=numbers")
    assert (two.classes, two.y.shape) == (2, (4, 2))
    many = npz(tmp_path, np.eye(4, 2, dtype=bool), "?task=labels")
    assert (many.task, many.classes, many.y.tolist()[:2]) == ("labels", 2, [[1, 0], [0, 1]])
    with pytest.raises(UserError, match=mention("y", "float64", "?task=numbers")):
        npz(tmp_path, np.array([1.5, 2, 3, 4]), "")
    with pytest.raises(UserError, match=mention("y", "(4, 2)", "?task=labels")):
        npz(tmp_path, np.eye(4, 2, dtype=np.int64), "")
    with pytest.raises(BadParameter, match=mention("rank")):
        npz(tmp_path, np.array([1.5, 2, 3, 4]), "?task=rank")


def test_a_look_before_a_run_shows_targets(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(TABLE, encoding="utf-8")
    lines = checked(f"csv:{path}?label=price&task=numbers&leave=kind", tmp_path)
    said = " ".join(lines)
    assert mentions(said, "1 numbers to predict", "price 10.5 to 30", "mean 20.17", "deviation")
    lines = checked(f"csv:{path}?label=kind&task=labels", tmp_path)
    assert mentions(" ".join(lines), "2 labels", "red 2", "round 1", "1 samples have none")


def test_built_in_sets_of_other_tasks() -> None:
    sensors, attributes = (load_dataset(one, Path()) for one in ("sensors", "digit-attributes"))
    assert (sensors.task, sensors.x.shape, sensors.y.shape) == ("numbers", (2400, 8), (2400,))
    assert (attributes.task, attributes.y.shape) == ("labels", (1797, 5))
    digits = load_dataset("digits", Path()).y
    of_one = attributes.y[digits == 1]
    assert int(of_one.sum()) == 0
    assert attributes.y[digits == 6][0].tolist() == [1, 0, 1, 1, 1], "even, loop, above 4, by 3"
    turned = load_dataset("rotated:digit-attributes", Path())
    assert (turned.task, torch.equal(turned.y, attributes.y)) == ("labels", True)
    with pytest.raises(UserError, match=mention("labels", "classes")):
        load_dataset("label-swap:digit-attributes", Path())


def test_the_target_in_another_unit_is_no_feature(tmp_path: Path) -> None:
    rows = [(3.5, 1), (1, 2), (9, 7), (2, 2), (8, 5), (4, 4), (6.5, 0), (5, 9)]
    lines = [f"{y},{100 * y + 7},{x}" for y, x in rows]
    text = "\n".join(["price,cents,width", *lines]) + "\n"
    with pytest.raises(UserError, match=mention("cents", "?leave=cents", "?use=cents")):
        csv(tmp_path, "label=price&task=numbers", text)
    assert csv(tmp_path, "label=price&task=numbers&leave=cents", text).x.shape == (8, 1)


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        (["1", "1.0", "a"] * 3, "1.0"),
        (["caf\u00e9", "cafe\u0301", "b"] * 3, "two ways"),
        (["yes", "yes\u200b", "no"] * 3, "two ways"),
    ],
)
@pytest.mark.parametrize("task", ["classes", "labels"])
def test_one_label_is_written_in_one_way(values: list[str], fact: str, task: str) -> None:
    with pytest.raises(UserError, match=mention("kind", fact)):
        targets_of(Path("made"), task, {"kind": values})


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        (["red;NA", "red", "blue"], "row 1"),
        ([["red", None], ["blue"]], "row 1"),
        (["red,round", "red", "none"], "red;round"),
        (["red|round", "red", "none"], "red;round"),
    ],
)
def test_labels_within_a_cell_are_there_and_apart(values: list[object], fact: str) -> None:
    with pytest.raises(UserError, match=mention("kind", fact)):
        targets_of(Path("made"), "labels", {"kind": values})


def test_numbers_that_float32_cannot_hold_are_refused(tmp_path: Path) -> None:
    """Of 1.7e9, float32 has steps of 128; of 1e6, steps of 1/16, which deviations of 300 bear."""
    steps = np.array([0.25, 0.5, 0.75, 3.0])
    for value in (1.7e9 + steps, 2.0**40 + steps):
        with pytest.raises(UserError, match=mention("float32", "subtract")):
            npz(tmp_path, value, "?task=numbers")
        with pytest.raises(UserError, match=mention("price", "float32")):
            targets_of(Path("made"), "numbers", {"price": value.tolist()})
        np.savez(tmp_path / "x.npz", x=np.stack([steps, value], axis=1), y=[0, 1, 0, 1])
        with pytest.raises(UserError, match=mention("column 1", "float32")):
            load_dataset(f"npz:{tmp_path / 'x.npz'}", Path("nowhere"))
    assert npz(tmp_path, 1e6 + 300 * steps, "?task=numbers").y.tolist() == [
        1000075.0, 1000150.0, 1000225.0, 1000900.0,
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [np.arange(9), np.arange(9)[::-1] + 5, np.arange(9) * 2 % 9])
def test_arrays_have_no_row_numbers_as_features(tmp_path: Path, rows: np.ndarray) -> None:
    noise = np.random.default_rng(0).normal(size=9)
    np.savez(tmp_path / "x.npz", x=np.stack([noise, rows], axis=1), y=np.arange(9) % 2)
    with pytest.raises(UserError, match=mention("column 1", "numpy.delete")):
        load_dataset(f"npz:{tmp_path / 'x.npz'}", Path("nowhere"))


def test_ids_that_lost_digits_are_refused() -> None:
    """As whole numbers become where a column of them has a gap, above 2^53."""
    path = Path("mine.parquet")
    whole = [2**53 + 1, 2**53]
    places, names = groups_of(path, "client", whole, "client")
    assert (places.tolist(), names) == ([1, 0], (str(2**53), str(2**53 + 1)))
    with pytest.raises(UserError, match=mention("client", "row 2", "digits", 2**53)):
        groups_of(path, "client", [1.0, float(2**53)], "client")
    assert groups_of(path, "client", [1.0, np.float64(3), np.int32(2), True], "client")[1] == (
        "1", "2", "3",
    )  # fmt: skip
