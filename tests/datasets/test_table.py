"""Tables of a user: columns by hand, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flbench.core.dataset import Dataset
from flbench.errors import MissingData, UserError
from flbench.federation.loading import load_dataset

TABLE = """label,client,split,age,colour
ill,north,train,10,red
well,south,train,30,blue
well,north,test,50,red
"""


def loaded(folder: Path, text: str) -> Dataset:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return load_dataset(f"csv:{path}", Path("nowhere"))


def test_a_table_by_hand(tmp_path: Path) -> None:
    """Ages 10 and 30 have mean 20 and deviation 10, so 50 is 3; colours are blue and red."""
    found = loaded(tmp_path, TABLE)
    assert found.x.tolist() == [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [3.0, 0.0, 1.0]]
    assert (found.y.tolist(), found.classes) == ([0, 1, 1], 2)
    assert found.domains is not None and found.domains.tolist() == [0, 1, 0]
    assert found.test is not None and found.test.tolist() == [False, False, True]
    assert found.x.dtype == torch.float32


def test_only_labels_and_features_are_needed(tmp_path: Path) -> None:
    found = loaded(tmp_path, "\ufefflabel, b\n1, 2\n0, 2\n\n")
    assert found.x.tolist() == [[0.0], [0.0]], "a column of equal numbers"
    assert (found.domains, found.test) == (None, None)


def test_a_constant_column_is_not_blown_up(tmp_path: Path) -> None:
    """The deviation of equal numbers that are no binary fractions is not quite 0."""
    rows = "0,train,0.3\n" * 500 + "1,test,0.2\n"
    found = loaded(tmp_path, f"label,split,a\n{rows}")
    assert found.x[:500].abs().max() < 1e-9
    assert found.x[500].item() == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "two rows or more"),
        ("label,a\n1,2\n", "two rows or more"),
        ("kind,a\n1,2\n1,2\n", "needs a column 'label', got kind, a"),
        ("label\n1\n2\n", "columns of features"),
        ("label,a\n1,2\n1\n", "row 2 has 1 values, expected 2"),
        ("label,a,a\n1,2,3\n1,2,3\n", "the same name"),
        ("label,a\n1,nan\n1,2\n", "'a' has values that are not finite"),
        (
            "label,split,a\n1,train,2\n1,dev,2\n",
            "and no other; got dev, train",
        ),
        (
            "label,split,a\n1,train,2\n1,train,2\n",
            "train and test, and no other; got train",
        ),
        (
            "label,a\n" + "".join(f"1,x{i}\n" for i in range(101)),
            "101 different values, of which 'x0'",
        ),
        ("label,a\n1,\n" + "".join(f"1,{i}\n" for i in range(101)), "of which '' is no number"),
        ('label,a\n1,"2\n', "no table"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        load_dataset(f"csv:{tmp_path / 'other.csv'}", tmp_path)
