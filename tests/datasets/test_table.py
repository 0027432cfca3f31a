"""Tables of a user: columns by hand, and what is refused."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from mentions import mention, mentions

from flbench.core.dataset import Dataset
from flbench.datasets.columns import stand_ins
from flbench.datasets.status import contents
from flbench.errors import BadParameter, MissingData, UserError
from flbench.federation.feature_scale import scaled
from flbench.federation.loading import load_dataset

TABLE = """label,client,split,age,colour
ill,north,train,10,red
well,south,train,30,blue
well,north,test,50,red
"""


def loaded(folder: Path, text: str, options: str = "") -> Dataset:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return load_dataset(f"csv:{path}{options}", Path("nowhere"))


def ready(found: Dataset) -> torch.Tensor:
    """The samples as they are where all rows but those of the test part are trained on."""
    rows = torch.ones(len(found.y), dtype=torch.bool) if found.test is None else ~found.test
    return scaled(found, np.flatnonzero(rows.numpy()))


def test_a_table_by_hand(tmp_path: Path) -> None:
    """Ages 10 and 30 have mean 20 and deviation 10, so 50 is 3; colours are blue and red."""
    found = loaded(tmp_path, TABLE)
    assert found.x.tolist() == [[10.0, 0.0, 1.0], [30.0, 1.0, 0.0], [50.0, 0.0, 1.0]]
    assert ready(found).tolist() == [[-1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [3.0, 0.0, 1.0]]
    assert (found.y.tolist(), found.classes) == ([0, 1, 1], 2)
    assert found.domains is not None and found.domains.tolist() == [0, 1, 0]
    assert found.test is not None and found.test.tolist() == [False, False, True]
    assert found.x.dtype == torch.float32


def test_only_labels_and_features_are_needed(tmp_path: Path) -> None:
    found = loaded(tmp_path, "\ufefflabel, b\n1, 2\n0, 2\n\n")
    assert ready(found).tolist() == [[0.0], [0.0]], "a column of equal numbers"
    assert (found.domains, found.test) == (None, None)


def test_a_constant_column_is_not_blown_up(tmp_path: Path) -> None:
    """The deviation of equal numbers that are no binary fractions is not quite 0."""
    rows = "0,train,0.3\n" * 499 + "1,train,0.3\n1,test,0.2\n"
    found = loaded(tmp_path, f"label,split,a\n{rows}")
    x = ready(found)
    assert x[:500].abs().max() < 1e-9
    assert x[500].item() == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "two rows or more"),
        ("label,a\n1,2\n", "two rows or more"),
        ("kind,a\n1,2\n1,2\n", "needs a column 'label', got kind, a"),
        ("label\n1\n2\n", "columns of features"),
        ("label,a\n1,2\n1\n", "row 2 has 1 values, expected 2"),
        ("label,a,a\n1,2,3\n1,2,3\n", "same name, 'a'"),
        ("label,a\n1,inf\n2,2\n", "'a' has inf in row 1, which is not finite"),
        (
            "label,split,a\n1,train,2\n2,dev,2\n",
            "and no other; got dev, train",
        ),
        (
            "label,split,a\n1,train,2\n2,train,2\n",
            "train and test, and no other; got train",
        ),
        ("label,a\n" + "".join(f"{i % 2},x{i % 101}\n" for i in range(202)), "101 different texts"),
        ('label,a\n1,"2\n', "no table"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, text)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        load_dataset(f"csv:{tmp_path / 'other.csv'}", tmp_path)


PURE_NOISE = ["0.3", "-1.2", "0.8", "0.1", "-0.4", "1.9", "0.2", "-0.7", "1.1", "-2.0"]
"""Ten numbers in no order."""


def rows_of(head: str, *columns: list[str]) -> str:
    """A table of ten rows, label 0 in the first five; then the columns."""
    lines = [",".join([str(i // 5), *(one[i] for one in columns)]) for i in range(len(PURE_NOISE))]
    return "\n".join([f"label,{head}", *lines])


COUNTED = [str(i) for i in range(10)]
SHUFFLED = ["12", "10", "11", "14", "13", "19", "18", "15", "17", "16"]
GROWING = [str(100 + i * i) for i in range(10)]


@pytest.mark.parametrize(
    ("head", "columns", "why"),
    [
        ("", [COUNTED], "column 2 has no name"),
        (" ", [PURE_NOISE], "column 2 has no name"),
        ("nr,a", [COUNTED, PURE_NOISE], "'nr' is no feature: it numbers the rows"),
        ("nr,a", [COUNTED[::-1], PURE_NOISE], "'nr' is no feature: it numbers the rows"),
        ("nr,a", [SHUFFLED, PURE_NOISE], "'nr' is no feature: it numbers the rows"),
        ("time,a", [GROWING, PURE_NOISE], "'time' is no feature: its values are all different"),
        ("time,a", [GROWING[::-1], PURE_NOISE], "'time' is no feature: its values are all"),
        ("patient_id,a", [["7"] * 10, PURE_NOISE], "'patient_id' is no feature: its name"),
        ("PatientID,a", [PURE_NOISE, PURE_NOISE], "'PatientID' is no feature: its name"),
        ("name,a", [[f"n{i}" for i in range(10)], PURE_NOISE], "'name' is no feature: each row"),
        ("nr,a", [COUNTED[:5] * 2, PURE_NOISE], "'nr' is no feature: it numbers the rows of each"),
        ("nr,a", [["", *COUNTED[1:]], PURE_NOISE], "'nr' is no feature: it numbers the rows"),
        ("fold,a", [["0", "1"] * 5, PURE_NOISE], "'fold' is no feature: .* in which part"),
        ("Split,a", [["0", "1"] * 5, PURE_NOISE], "'Split' is no feature: .* in which part"),
        ("Client,a", [["p", "q"] * 5, PURE_NOISE], "'Client' is no feature: .* name it client"),
        ("Group,a", [["p", "q"] * 5, PURE_NOISE], "'Group' is no feature: .* name it group"),
    ],
)
def test_what_only_says_which_row_it_is_is_no_feature(
    tmp_path: Path, head: str, columns: list[list[str]], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, rows_of(head, *columns))


@pytest.mark.parametrize("name", ["body_mass_index", "refractiveIndex", "paid", "humid", "valid"])
def test_what_is_measured_is_a_feature(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, rows_of(name, PURE_NOISE)).features == (f"{name} (numbers)",)


@pytest.mark.parametrize("name", ["index", "row_index", "sampleIdx", "Unnamed: 0 index", "ID"])
def test_names_of_rows_are_no_features(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=mention(name, "leave", "use")):
        loaded(tmp_path, rows_of(f"{name},a", PURE_NOISE, PURE_NOISE))


@pytest.mark.parametrize("word", ["none", "missing", "unknown", "no", "nil"])
def test_words_of_a_language_are_categories(tmp_path: Path, word: str) -> None:
    """How much somebody drinks may be none; so may a label."""
    text = f"label,a\n{word},high\nill,{word}\n{word},high\n"
    found = loaded(tmp_path, text)
    assert found.label_names == tuple(sorted(("ill", word)))
    assert found.features == ("a (2 texts)",)


def test_columns_are_left_out_or_kept_where_one_says_so(tmp_path: Path) -> None:
    text = rows_of("nr,a", COUNTED, PURE_NOISE)
    without = loaded(tmp_path, text, "?leave=nr")
    assert without.features == ("a (numbers)",)
    assert without.notes == ("columns left out: nr",)
    both = loaded(tmp_path, text, "?use=nr")
    assert both.features == ("nr (numbers)", "a (numbers)")
    assert torch.equal(both.x[:, 1:], without.x)


@pytest.mark.parametrize("gap", ["", "NA", "n/a", "NaN", "?", "null", "None", "-", " "])
@pytest.mark.parametrize("rows", [9, 300])
def test_missing_features_are_refused_in_tables_of_any_length(
    tmp_path: Path, gap: str, rows: int
) -> None:
    values = [gap, *(str(i * 7 % rows / 3) for i in range(1, rows))]
    text = "label,a\n" + "".join(f"{i % 2},{value}\n" for i, value in enumerate(values))
    with pytest.raises(UserError, match=r"'a' has no value in 1 of .*row 1 .*missing=drop"):
        loaded(tmp_path, text)


GAPS = "label,a,c\n0,1,red\n1,?,red\n0,3,NA\n1,5,blue\n"


@pytest.mark.parametrize(
    ("fill", "expected", "labels"),
    [
        # a: 1, 3, 5, or 1 and 5 where rows are left out; c: blue, red
        ("drop", [[-1.0, 0, 1], [1.0, 1, 0]], [0, 1]),
        (
            "mean",
            [[-(1.5**0.5), 0, 1], [0, 0, 1], [0, 1 / 3, 2 / 3], [1.5**0.5, 1, 0]],
            [0, 1, 0, 1],
        ),
        (
            "indicator",
            [
                [-(1.5**0.5), 0, 0, 1, 0],
                [0, 1, 0, 1, 0],
                [0, 0, 1 / 3, 2 / 3, 1],
                [1.5**0.5, 0, 1, 0, 0],
            ],
            [0, 1, 0, 1],
        ),
    ],
)
def test_what_becomes_of_gaps_is_chosen(
    tmp_path: Path, fill: str, expected: list[list[float]], labels: list[int]
) -> None:
    found = loaded(tmp_path, GAPS, f"?missing={fill}")
    assert torch.allclose(ready(found), torch.tensor(expected))
    assert found.y.tolist() == labels
    says = [mentions(one, "whether it is missing") for one in found.features]
    assert says == [fill == "indicator"] * 2


def test_only_the_training_part_says_what_the_mean_is(tmp_path: Path) -> None:
    text = "label,split,a\n0,train,1\n1,train,3\n0,train,\n1,test,100\n"
    assert ready(loaded(tmp_path, text, "?missing=mean"))[:, 0].tolist() == [-1, 1, 0, 98]


@pytest.mark.parametrize("column", ["label", "client"])
@pytest.mark.parametrize("gap", ["", "NA", "?", "nan"])
def test_labels_and_clients_may_not_be_missing(tmp_path: Path, column: str, gap: str) -> None:
    rows = {"label": ["0", "1", "0"], "client": ["x", "y", "x"]}
    rows[column][1] = gap
    text = "label,client,a\n" + "".join(
        f"{label},{client},1\n" for label, client in zip(rows["label"], rows["client"], strict=True)
    )
    with pytest.raises(UserError, match=rf"'{column}' has no {column} in 1 of 3 rows, .* row 2"):
        loaded(tmp_path, text)


def test_numbers_that_are_equal_are_one_label_and_one_client(tmp_path: Path) -> None:
    found = loaded(tmp_path, "label,client,a\n1,7,1\n1.0,7.00,2\n2,8.0,3\n10,8,4\n")
    assert found.y.tolist() == [0, 0, 1, 2]
    assert found.label_names == ("1", "2", "10")
    assert found.domains is not None and found.domains.tolist() == [0, 0, 1, 1]
    assert found.domain_names == ("7", "8")


def test_long_numbers_are_clients_of_their_own(tmp_path: Path) -> None:
    """A float64 does not tell these apart."""
    ids = [str(2**53 + i) for i in range(4)] + ["1" * 19 + "2", "1" * 20]
    rows = "".join(f"{i % 2},{name},{i}\n" for i, name in enumerate(ids))
    found = loaded(tmp_path, f"label,client,a\n{rows}")
    assert found.domain_names == (*ids[:4], ids[5], ids[4])
    assert found.domains is not None and found.domains.tolist() == [0, 1, 2, 3, 5, 4]


@pytest.mark.parametrize(
    "pair", [("007", "7"), ("1.1", "1.10"), ("1e3", "1000"), ("+1", "1"), ("010", "10")]
)
@pytest.mark.parametrize("column", ["client", "label"])
def test_codes_that_are_equal_as_numbers_are_refused(
    pair: tuple[str, str], column: str, tmp_path: Path
) -> None:
    """They may be one client or two, and nobody can know which."""
    names = {"client": ("3", "4"), "label": ("3", "4"), column: pair}
    rows = [f"{names['label'][i % 2]},{names['client'][i % 2]},{i * i % 5}\n" for i in range(8)]
    with pytest.raises(UserError) as caught:
        loaded(tmp_path, "label,client,a\n" + "".join(rows))
    assert mentions(str(caught.value), *(f"'{one}'" for one in pair), "equal", "letter")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (["1.5", "2.5", "1.5"], "decimals such as 1.5"),
        ([str(i + 0.5) for i in range(300)], "decimals such as 0.5"),
        ([str(i) for i in range(9)], "9 labels in 9 rows"),
        ([f"name {i}" for i in range(9)], "9 labels in 9 rows"),
        (["a", "a", "a"], "one label only, a"),
        (["0", "1", "-1"], "-1 in row 3, which says that there is no label"),
        ([str(7 * i % 60 + i // 60) for i in range(90)], "61 labels in 90 rows"),
        (["No", "yes", "no", "yes"], "'No' and 'no', which are one label written in two ways"),
        (["1", "0", "True", "0"], "'1' and 'True'|'0' and 'True'"),
        (["0", "Y", "0", "1", "N"], "'0' and 'N'"),
    ],
)
def test_labels_are_classes(tmp_path: Path, values: list[str], why: str) -> None:
    text = "label,a\n" + "".join(f"{value},{i % 3}\n" for i, value in enumerate(values))
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, text)


def test_letters_are_labels_of_their_own(tmp_path: Path) -> None:
    """In handwriting `A` and `a` are two; digits and letters may stand beside each other."""
    text = "label,a\n" + "".join(f"{one},{i}\n" for i, one in enumerate("AaAa11yy"))
    assert loaded(tmp_path, text, "?use=a").label_names == ("1", "A", "a", "y")


def test_a_client_is_written_in_one_way(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'North' and 'north', which are one client"):
        loaded(tmp_path, "label,client,a\n0,North,1\n1,north,2\n")


FIVES = ["no"] * 5 + ["yes"] * 5
"""What goes with the label of `rows_of`."""


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("answer", FIVES, "it is the label again"),
        ("code", ["7"] * 5 + ["3"] * 5, "it is the label again"),
        ("set", ["train", "test"] * 5, "it says test, train: if these are the parts"),
        ("phase", ["Training", "Validation", "Testing", "Training", "Training"] * 2, "the parts"),
        ("is_test", ["0", "1"] * 5, "its name says in which part a row is"),
        ("InTrainingSet", ["yes", "no"] * 5, "its name says in which part a row is"),
    ],
)
def test_what_gives_the_label_or_the_part_away_is_no_feature(
    tmp_path: Path, name: str, values: list[str], why: str
) -> None:
    table = rows_of(f"{name},a", values, PURE_NOISE)
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, table)
    assert len(loaded(tmp_path, table, f"?leave={name}").features) == 1
    assert len(loaded(tmp_path, table, f"?use={name}").features) == 2


def test_a_column_that_nearly_is_the_label_is_a_feature(tmp_path: Path) -> None:
    table = rows_of("answer,a", ["yes", *FIVES[1:]], PURE_NOISE)
    assert len(loaded(tmp_path, table).features) == 2


@pytest.mark.parametrize(
    ("labels", "notes"),
    [(range(20), 0), (range(21), 1), (range(20, 96), 1), ([f"kind {i}" for i in range(30)], 0)],
)
def test_many_numbers_as_labels_are_pointed_out(
    tmp_path: Path, labels: Sequence[object], notes: int
) -> None:
    rows = [f"{label},{(7 * row) % 31 / 10}" for row, label in enumerate([*labels] * 3)]
    found = loaded(tmp_path, "\n".join(["label,a", *rows])).notes
    assert len(found) == notes
    assert all(f"{len(labels)} different numbers" in note for note in found)
    assert all("task=numbers" in note for note in found)


def test_rows_that_go_need_no_label(tmp_path: Path) -> None:
    text = "\n".join(["label,a", *(f"{'xy'[row % 2]},{row % 5}" for row in range(12)), ",", ","])
    assert len(loaded(tmp_path, text, "?missing=drop").y) == 12
    with pytest.raises(UserError, match="has no label in 2 of 14 rows"):
        loaded(tmp_path, text, "?missing=mean")


@pytest.mark.parametrize(
    "asked",
    ["?label=y,y&task=numbers", "?label=client", "?label=y,client&task=numbers", "?label=split"],
)
def test_a_target_is_named_once_and_is_no_client(tmp_path: Path, asked: str) -> None:
    rows = (f"{row % 3},{row / 7},{row % 5},{'train' if row % 4 else 'test'}" for row in range(12))
    text = "\n".join(["client,y,a,split", *rows])
    with pytest.raises(UserError, match=r"there twice|says whose a row is"):
        loaded(tmp_path, text, asked)


@pytest.mark.parametrize(
    ("other", "rows", "notes"),
    [
        ("-999", 2, 1), ("-999.0", 2, 1), ("99", 3, 1), ("9999", 2, 1),
        ("-999", 1, 0), ("9.9", 2, 0), ("3.5", 2, 0), ("100", 2, 0),
    ],
)  # fmt: skip
def test_a_number_in_place_of_a_missing_value_is_pointed_out(
    tmp_path: Path, other: str, rows: int, notes: int
) -> None:
    values = [other] * rows + [str((7 * row) % 31 / 10) for row in range(31)]
    text = "\n".join(["label,a", *(f"{row % 2},{one}" for row, one in enumerate(values))])
    found = loaded(tmp_path, text).notes
    assert len(found) == notes
    assert all(f"column a has {float(other):g} in {rows} rows" in note for note in found)
    numbers = "\n".join(["label,a", *(f"{one},{row % 7}" for row, one in enumerate(values))])
    assert len(loaded(tmp_path, numbers, "?task=numbers").notes) == notes


@pytest.mark.parametrize(
    ("column", "options", "why"),
    [
        (["", "NA"], "?missing=mean", "'a' is empty"),
        (["", ""], "", "'a' is empty"),
        (["inf", "-inf"], "", "not finite"),
    ],
)
def test_a_column_of_no_numbers_is_refused_in_one_line(
    tmp_path: Path, column: list[str], options: str, why: str
) -> None:
    rows = [f"{at % 2},{column[at // 2 % 2]},{at * 5 % 7}" for at in range(12)]
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, "\n".join(["label,a,b", *rows]), options)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("column", [["1e308", "-1e308", "99", "99"], ["inf", "-inf", "99", "99"]])
def test_the_largest_numbers_raise_no_warning(column: list[str]) -> None:
    assert stand_ins("a", column) == []


def test_nines_among_numbers_as_large_are_numbers(tmp_path: Path) -> None:
    rows = [f"{row % 2},{(row * 37) % 1201}" for row in range(60)]
    assert not loaded(tmp_path, "\n".join(["label,a", "0,999", "1,999", *rows])).notes


def test_two_classes_may_be_minus_one_and_one(tmp_path: Path) -> None:
    assert loaded(tmp_path, "label,a\n-1,1\n1,2\n-1,3\n").y.tolist() == [0, 1, 0]


@pytest.mark.parametrize("rows", [6, 300])
@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["10", "20", "90+"], "2?.* numbers and .* texts, such as '90\\+' in row 3"),
        (["1,5", "2,5", "2,7"], "decimal commas, such as '1,5'"),
        (["5 %", "7 %", "9 %"], "numbers such as '5 %'"),
        (["$5", "$7", "$1,000"], "numbers such as '\\$5'"),
    ],
)
def test_a_column_is_of_numbers_or_of_texts(
    tmp_path: Path, rows: int, texts: list[str], why: str
) -> None:
    lines = [f'{i % 2},"{texts[i % 3]}"' for i in range(rows)]
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, "\n".join(["label,a", *lines]))
    found = loaded(tmp_path, "\n".join(["label,a", *lines]), "?text=a")
    assert found.x.shape == (rows, 3)


def test_a_validation_part_counts_as_training(tmp_path: Path) -> None:
    text = "label,split,a\n0,Training,1\n1,VAL,3\n0,Testing,2\n"
    found = loaded(tmp_path, text)
    assert found.test is not None and found.test.tolist() == [False, False, True]
    assert ready(found)[:, 0].tolist() == [-1, 1, 0]
    assert found.notes == ("the validation part is in the training part: suites draw their own",)


def test_clients_are_no_parts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'client' says test, train: name it 'split'"):
        loaded(tmp_path, "label,client,a\n0,train,1\n1,test,2\n")


def test_values_between_semicolons(tmp_path: Path) -> None:
    text = "label;a\n0;1\n1;2\n"
    with pytest.raises(UserError, match=r"separator=%3B'"):
        loaded(tmp_path, text)
    assert loaded(tmp_path, text, "?separator=%3B").x.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("option", ["?missing=no", "?colour=red", "?leave=z", "?use=z", "?text=z"])
def test_options_that_are_none(tmp_path: Path, option: str) -> None:
    with pytest.raises(UserError, match=option.strip("?").partition("=")[0]):
        loaded(tmp_path, "label,a\n0,1\n1,2\n", option)


# --- order in time ------------------------------------------------------------------------------


def test_rows_are_put_in_the_order_of_a_column_and_divided_by_time(tmp_path: Path) -> None:
    """Written backwards; ages 0, 2, 4, ... are in the order of the days."""
    rows = [f"{k % 2},2026-01-{k + 1:02d},{2 * k if k % 3 else 7}" for k in reversed(range(20))]
    text = "\n".join(["label,day,age", *rows])
    found = loaded(tmp_path, text, "?time=day&gap=2")
    assert found.y.tolist() == [k % 2 for k in range(20)]
    assert (found.gap, len(found.features)) == (2, 1)
    assert mentions(found.notes, "order", "day")
    assert loaded(tmp_path, text.replace("2026-01-", "1"), "?time=day").gap == 0
    with pytest.raises(UserError, match=mention("'day'", "2026-11-28")):
        loaded(tmp_path, text.replace("2026-01-", "day "), "?time=day")
    with pytest.raises(UserError, match=mention("'day'", "row 20")):
        loaded(tmp_path, text.replace("2026-01-01", ""), "?time=day")
    for wrong in ("?gap=2", "?time=day&gap=x", "?time=month"):
        with pytest.raises(UserError):
            loaded(tmp_path, text, wrong)


def test_windows_of_a_series_in_a_table_are_divided_by_time(tmp_path: Path) -> None:
    """Four lags beside each other share values with up to three rows before them."""
    series = np.random.default_rng(0).normal(size=40)
    rows = [",".join(map(str, [int(series[k] > 0), *series[k - 4 : k]])) for k in range(4, 40)]
    found = loaded(tmp_path, "\n".join(["label,l4,l3,l2,l1", *rows]))
    assert found.gap == 3
    assert mentions(found.notes, "windows", 3)


def test_a_split_of_the_table_is_its_test_part_or_is_left_out(tmp_path: Path) -> None:
    assert loaded(tmp_path, TABLE).keeps_test
    other = loaded(tmp_path, TABLE, "?leave=split")
    assert (other.test, other.notes) == (None, ("columns left out: split",))
    with pytest.raises(UserError, match=mention("?leave=label")):
        loaded(tmp_path, TABLE, "?leave=label")


TIMES = ["2026-03-29T02:30:00", "2026-03-29T01:30:00"] * 4


@pytest.mark.parametrize(("zones", "refused"), [(("", ""), False), (("+01:00", "Z"), False),
                                                (("", "Z"), True)])  # fmt: skip
def test_times_have_zones_or_none_has(
    tmp_path: Path, zones: tuple[str, str], refused: bool
) -> None:
    """02:30 at +01:00 and 01:30 at Z are one moment: rows stay as they are."""
    rows = "".join(f"{i % 2},{i * i % 7},{TIMES[i]}{zones[i % 2]}\n" for i in range(8))
    if refused:
        with pytest.raises(UserError, match=r"time zone in row 2 .* none in row 1"):
            loaded(tmp_path, f"label,a,at\n{rows}", "?time=at")
        return
    found = loaded(tmp_path, f"label,a,at\n{rows}", "?time=at")
    assert found.y.tolist() == ([0, 1] * 4 if zones[0] else [1] * 4 + [0] * 4)


def test_old_times_and_old_ends_of_lines_are_read(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},{i * i % 7},{9 - i:04d}-01-01\r" for i in range(8))
    (tmp_path / "mine.csv").write_bytes(f"label,a,at\r{rows}".encode())
    found = load_dataset(f"csv:{tmp_path / 'mine.csv'}?time=at", Path("nowhere"))
    assert found.y.tolist() == [1, 0] * 4, "the latest row is the first"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (gzip.compress(b"label,a", mtime=0), "gunzip"),
        (b"PK\x03\x04\x00", "CSV UTF-8"),
        (b"PAR1", "hub:FOLDER"),
        ("label,å".encode("latin-1"), "iconv"),
        ("label,a".encode("utf-16"), "iconv"),
        ("label,a\n0,1".encode("utf-16-le"), "bytes of zero.*iconv"),
    ],
)
def test_other_files_say_what_to_do(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(UserError, match=why):
        load_dataset(f"csv:{tmp_path / 'mine.csv'}", Path("nowhere"))


def test_decimal_commas_are_read_where_it_is_said(tmp_path: Path) -> None:
    text = "label;a;b;place\n0;1,5;2;x,y\n1;-,25;3;z\n0;1e-1;4;x,y\n1;NA;5;z"
    with pytest.raises(UserError, match=mention("'a'", "decimal commas", "?decimal=%2C")):
        loaded(tmp_path, text, "?separator=%3B&missing=mean")
    data = loaded(tmp_path, text, "?separator=%3B&missing=mean&decimal=%2C")
    expected = [[1.5, 2, 1, 0], [-0.25, 3, 0, 1], [0.1, 4, 1, 0], [float("nan"), 5, 0, 1]]
    torch.testing.assert_close(data.x, torch.tensor(expected), equal_nan=True)
    quoted = text.replace(";1,5;", ';"1,5";').replace("-,25", '"-,25"').replace("x,y", "x")
    assert torch.equal(
        loaded(tmp_path, quoted.replace(";", ","), "?missing=mean&decimal=%2C").x.nan_to_num(),
        data.x.nan_to_num(),
    )
    targets = loaded(
        tmp_path, "label;a\n0,5;1\n1,5;2\n3;3", "?separator=%3B&decimal=%2C&task=numbers"
    )
    assert targets.y.tolist() == [0.5, 1.5, 3.0]


def test_columns_left_out_or_of_texts_may_have_points_beside_decimal_commas(tmp_path: Path) -> None:
    text = "label;a;version;code\n0;1,5;1.2;1.1\n1;2,5;1.3;2.2"
    options = "?separator=%3B&decimal=%2C&leave=version&text=code"
    assert loaded(tmp_path, text, options).x.tolist() == [[1.5, 1, 0], [2.5, 0, 1]]


@pytest.mark.parametrize(
    ("text", "options", "why"),
    [
        ("label;a\n0;1.5\n1;2", "?separator=%3B&decimal=%2C", "'1.5': with decimal commas"),
        ("label;a\n0;1.234,5\n1;2.000", "?separator=%3B&decimal=%2C", "'2.000': with decimal"),
        ("label;a\n0;1.234,5\n1;2", "?separator=%3B&decimal=%2C", "1 numbers and 1 texts"),
        ("label,a\n0,1\n1,2", "?decimal=.", "decimal is a comma"),
    ],
)
def test_points_beside_decimal_commas_are_refused(
    tmp_path: Path, text: str, options: str, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, text, options)


def test_versions_are_texts_and_no_dates(tmp_path: Path) -> None:
    rows = [f"{i % 2},{i % 3}.{i // 3 % 2}.1" for i in range(12)]
    assert loaded(tmp_path, "label,a\n" + "\n".join(rows)).features == ("a (6 texts)",)


@pytest.mark.parametrize("typed", ["", "xx", "%0A", "%22"])
def test_a_separator_is_one_character(tmp_path: Path, typed: str) -> None:
    with pytest.raises(UserError, match="separator is one character"):
        loaded(tmp_path, "label,a\n0,1\n1,2", f"?separator={typed}")


@pytest.mark.parametrize(
    ("column", "options", "noted"),
    [
        (["01067", "20095", "", "1"], "?missing=mean", True),
        (["01067", "20095", "8", "1"], "?text=a", False),
        (["0", "0.5", "10", "-0.25"], "", False),
    ],
)
def test_numbers_that_begin_with_a_zero_may_be_codes(
    tmp_path: Path, column: list[str], options: str, noted: bool
) -> None:
    rows = [f"{at % 2},{value},{at * 5 % 7}" for at, value in enumerate(column * 2)]
    notes = loaded(tmp_path, "\n".join(["label,a,b", *rows]), options).notes
    assert any(mentions(note, "column a", "01067", "?text=a") for note in notes) == noted


def test_a_look_says_what_training_and_test_part_share(tmp_path: Path) -> None:
    """Row 0 is tested again; class c is in the test part alone."""
    rows = [f"{'ab'[i % 2]},train,{i * i}" for i in range(6)] + ["a,test,0", "c,test,7"]
    told = contents(loaded(tmp_path, "label,split,a\n" + "\n".join(rows)))
    assert mentions(told, "1 of 2 test samples", "training")
    assert mentions(told, "nobody trains on c", "1 test samples")
    apart = contents(loaded(tmp_path, "label,split,a\n" + "\n".join([*rows[:6], "a,test,7"])))
    assert not mentions(apart, "note")


def test_numbers_that_float32_cannot_tell_apart_are_scaled_as_they_are(tmp_path: Path) -> None:
    """Seconds since 1970, and numbers beyond the range of float32 and below it."""
    rng = np.random.default_rng(0)
    columns = np.stack([1.7e9 + rng.normal(size=30), 1e200 * rng.normal(size=30),
                        1e-200 * rng.normal(size=30)], axis=1)  # fmt: skip
    rows = "".join(
        f"{i % 2},{','.join(map(repr, row))}\n" for i, row in enumerate(columns.tolist())
    )
    found = scaled(loaded(tmp_path, f"label,a,b,c\n{rows}"), np.arange(20))
    units = columns / np.abs(columns).max(axis=0)
    expected = (units - units[:20].mean(axis=0)) / units[:20].std(axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


GROUPED = """label,client,group,a
0,x,coast,1
1,y,inland,2.5
1,x,coast,4
0,z,coast,3
"""


def test_true_groups_by_hand(tmp_path: Path) -> None:
    found = loaded(tmp_path, GROUPED)
    assert found.domain_groups is not None and found.domain_groups.tolist() == [0, 1, 0]
    assert found.group_names == ("coast", "inland")
    assert found.features == ("a (numbers)",)


@pytest.mark.parametrize("option", ["?use=group", "?leave=group", "?label=group"])
def test_a_column_that_is_called_group_may_be_something_else(tmp_path: Path, option: str) -> None:
    text = GROUPED.replace("label", "kind") if "label" in option else GROUPED
    found = loaded(tmp_path, text, option)
    assert (found.domain_groups, found.group_names) == (None, ())
    assert ("group (2 texts)" in found.features) == (option == "?use=group")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (GROUPED.replace("x,coast,4", "x,inland,4"), ("group", "row 1", "row 3", "'x'", "use")),
        (GROUPED.replace("client", "a2"), ("group", "no column 'client'", "use=group")),
        (GROUPED.replace("z,coast", "z,"), ("group", "row 4", "fill")),
    ],
)
def test_true_groups_that_are_none(tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=mention(*facts)):
        loaded(tmp_path, text)


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    theirs = TABLE.replace("label,client,split", "state,hospital,part")
    found = loaded(tmp_path, theirs, "?label=state&client=hospital&split=part")
    ours = loaded(tmp_path, TABLE)
    assert torch.equal(found.x, ours.x) and torch.equal(found.y, ours.y)
    assert found.domain_names == ours.domain_names == ("north", "south")
    assert found.test is not None and found.test.tolist() == [False, False, True]
    for options, facts in (
        ("?label=state&client=ward", ("ward", "hospital")),
        ("?label=state&split=parts", ("parts", "part")),
    ):
        with pytest.raises(UserError, match=mention(*facts)):
            loaded(tmp_path, theirs, options)
    both = TABLE.replace("age", "hospital")
    with pytest.raises(UserError, match=mention("hospital", "client")):
        loaded(tmp_path, both, "?client=hospital")


def test_a_path_without_its_kind_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    for name, typed in (
        ("visits.csv", "csv:visits.csv"),
        ("visits.csv?label=a", "csv:visits.csv?label=a"),
        ("a/b.npz", "npz:a/b.npz"),
        (str(tmp_path), f"images:{tmp_path}"),
        (str(tmp_path / "mine.txt"), "text:"),
    ):
        with pytest.raises(UserError, match=mention(typed)):
            load_dataset(name, Path("nowhere"))


# --- what people's tables hold -----------------------------------------------------------------


def rows_with(name: str, values: list[str], labels: list[str] | None = None) -> str:
    """A table of a column of noise and another one; labels are 0 and 1 in turn."""
    rng = np.random.default_rng(0)
    told = labels or [str(i % 2) for i in range(len(values))]
    lines = [f"{y},{rng.normal():.3f},{v}" for y, v in zip(told, values, strict=True)]
    return "\n".join([f"label,noise,{name}", *lines])


NOISE = [f"{one:.3f}" for one in np.random.default_rng(1).normal(size=24)]


@pytest.mark.parametrize("name", ["0", "年齢", "возраст", "%", "grid", "covid"])
def test_a_feature_may_have_any_name(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, rows_with(name, NOISE)).x.shape == (24, 2)


SPARSE = [str(7 * i * i % 101 + 100 * i) for i in (5, 3, 8, 1, 9, 2, 7, 4, 6, 0, 11, 10)]
"""Twelve different whole numbers in no order, which number nothing."""


@pytest.mark.parametrize(
    "name", ["id_cliente", "Id Paciente", "customerid", "case_number", "Matrikelnummer", "mrn",
             "Unnamed: 0", "__index_level_0__"],
)  # fmt: skip
def test_an_id_is_known_by_its_name_in_other_forms(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"'{re.escape(name)}' is no feature: .*leave="):
        loaded(tmp_path, rows_with(name, SPARSE))
    for measured in ("population", "fluid", "oxygen_level", "number_of_rooms", "phone_calls"):
        assert loaded(tmp_path, rows_with(measured, SPARSE)).x.shape == (12, 2)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([f"1,{i:03d}" for i in range(24)], "holds numbers such as '1,000'"),
        ([f"\u2212{i}.5" for i in range(24)], "holds numbers such as '\u22120.5'"),
        ([f"{i}\u00a0000" for i in range(24)], "holds numbers such as"),
        ([f"{i} kg" for i in range(24)], "numbers with a unit, such as '0 kg'"),
        ([f"<{i}" for i in range(24)], "numbers with a unit"),
        ([f"2026-11-{i + 1:02d}" for i in range(24)], r"dates; .*\?time=it"),
        ([f"{i % 12 + 1}.11.2026" for i in range(24)], r"dates; .*\?time=it"),
        ([f"{i % 12 + 1} Nov 2026" for i in range(24)], r"dates; .*\?time=it"),
        ([f"{i % 12 + 1}. november 2026" for i in range(24)], r"dates; .*\?time=it"),
        ([f"Dec {i % 12 + 1}, 2026" for i in range(24)], r"dates; .*\?time=it"),
        ([f"2026-{i % 12 + 1:02d}" for i in range(24)], r"dates; .*\?time=it"),
        ([f"{i % 12 + 1}/2026" for i in range(24)], r"dates; .*\?time=it"),
        ([f"2026-Q{i % 4 + 1}" for i in range(24)], r"dates; .*\?time=it"),
        ([f"Q{i % 4 + 1} 2026" for i in range(24)], r"dates; .*\?time=it"),
        ([f"2026-W{i + 1:02d}" for i in range(24)], r"dates; .*\?time=it"),
        ([f"{i % 12 + 1}:30" for i in range(24)], r"times such as 1:30: .* 7\.5"),
        ([f"{i % 12 + 1}:30 pm" for i in range(24)], r"times such as 1:30 pm"),
        ([f"202611{(7 * i) % 12 + 10}" for i in range(24)], r"dates such as 20261110"),
    ],
)
def test_numbers_and_dates_for_people_are_no_texts(
    tmp_path: Path, values: list[str], why: str
) -> None:
    """Left out as texts that are all different, they would be lost without a word."""
    quoted = [f'"{value}"' for value in values]
    with pytest.raises(UserError, match=why):
        loaded(tmp_path, rows_with("it", quoted))


def test_the_names_of_the_columns_are_no_row(tmp_path: Path) -> None:
    """Two files with texts alone, one behind the other."""
    text = "label,client,colour\n" + "good,x,red\nbad,y,blue\n" * 6
    with pytest.raises(UserError, match=mention("row 13", "names of the columns", "joined")):
        loaded(tmp_path, text + text)


NAMES = 'label,client,"last, first",C+ id,R&D,50%,f\n'
"""Names of columns with signs that mean something after a question mark."""
OTHERS = "".join(f"{'ab'[i % 2]},{'xyz'[i % 3]},{i * i % 7},{i * i % 11},{i % 5},{i * i},.{i}\n"
                 for i in range(12))  # fmt: skip


def test_every_column_can_be_named(tmp_path: Path) -> None:
    found = loaded(tmp_path, NAMES + OTHERS, "?leave=last, first,C%2B id,R%26D,50%25")
    assert found.features == ("f (numbers)",)
    assert found.notes == ("columns left out: last, first, C+ id, R&D, 50%",)


def test_what_is_to_be_typed_can_be_typed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=mention("'C+ id'", "?leave=C%2B id")):
        loaded(tmp_path, NAMES + OTHERS)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("?use=b&leave=b", ("?leave=b", "?use=b")),
        ("?leave=b&text=b", ("?leave=b", "?text=b")),
        ("?leave=client&client=client", ("?leave=client", "?client=client")),
        ("?time=b&use=b", ("?time=b", "?use=b")),
        ("?use=label", ("?label=label", "?use=label")),
        ("?label=b&client=b", ("?client=b", "?label=b")),
        ("?label=b&text=b,a&task=numbers", ("?label=b", "?text=b")),
    ],
)
def test_a_column_has_one_role(tmp_path: Path, options: str, named: tuple[str, ...]) -> None:
    text = "label,client,a,b\n" + "p,x,1,5\nq,y,2,3\n" * 6
    with pytest.raises(BadParameter, match=mention(*named, "exclude each other")):
        loaded(tmp_path, text, options)


@pytest.mark.parametrize(
    ("rows", "whose"),
    [
        (["test,1,x", "train,2,x", "test,3,y", "train,0,y"], "client x"),
        (["test,2,x", "train,1,x", "train,3,y", "test,4,y"], ""),  # each client's own are later
        (["test,2,x", "train,2,x", "train,1,y", "test,2,y"], ""),  # at the same time
    ],
)
def test_what_is_tested_is_later(tmp_path: Path, rows: list[str], whose: str) -> None:
    values = [f"{one},{'pq'[at % 2]},{at * at % 5}.5" for at, one in enumerate(rows * 3)]
    text = "\n".join(["split,day,client,label,a", *values])
    if not whose:
        found = loaded(tmp_path, text, "?time=day")
        assert found.test is not None
        assert int(found.test.sum()) == 6
        return
    with pytest.raises(UserError, match=mention("split", whose, "column day", "leave=split")):
        loaded(tmp_path, text, "?time=day")
    assert loaded(tmp_path, text, "?time=day&leave=split").test is None


def test_rows_that_are_dropped_have_times_too(tmp_path: Path) -> None:
    rows = [f"{'test' if day > 8 else 'train'},{day},{'pq'[day % 2]},{day * day % 5}.5" for day in
            range(12)]  # fmt: skip
    text = "\n".join(["split,day,label,a", *rows, "train,3,p,"])
    found = loaded(tmp_path, text, "?time=day&missing=drop")
    assert found.test is not None
    assert found.test.tolist() == [False] * 9 + [True] * 3
    with pytest.raises(UserError, match=mention("split", "column day")):
        loaded(tmp_path, text + "\ntrain,20,p,1", "?time=day&missing=drop")


@pytest.mark.parametrize("option", ["leave", "use", "text", "label"])
def test_columns_are_called_as_in_the_file(tmp_path: Path, option: str) -> None:
    """The column that `client` names is not called client."""
    text = "label,site,a,b\n" + "p,x,1,5\nq,y,2,3\n" * 6
    with pytest.raises(UserError, match=mention("client", "label, site, a, b")):
        loaded(tmp_path, text, f"?client=site&{option}=client")


def test_a_class_may_stand_for_a_missing_one(tmp_path: Path) -> None:
    labels = ["0", "1", "99", "-9"] * 6
    text = "label,a\n" + "".join(f"{one},{i * i % 7}.5\n" for i, one in enumerate(labels))
    notes = [note for note in loaded(tmp_path, text).notes if "column label" in note]
    assert mentions(notes[0], "99", "6 rows", "leave these rows out")
    assert len(notes) == 1, "-9 is not far from 0"


@pytest.mark.parametrize("values", [[f"{rooms} rooms" for rooms in (3, 4, 4)] * 8,
                                    ["north", "south", "3rd"] * 8])  # fmt: skip
def test_few_texts_with_numbers_stay_texts(tmp_path: Path, values: list[str]) -> None:
    assert loaded(tmp_path, rows_with("it", values)).x.shape == (24, 1 + len({*values}))


def test_measured_labels_for_people_are_no_classes(tmp_path: Path) -> None:
    values = [f'"{i % 6 + 1},5"' for i in range(24)]
    with pytest.raises(UserError, match=mention("1,5", "task=numbers", "1234.5")):
        loaded(tmp_path, rows_with("it", NOISE, values))


LABELS = [str(i % 3) for i in range(24)]


@pytest.mark.parametrize(
    "values",
    [
        [f"is {label}" if at else "" for at, label in enumerate(LABELS)],
        [" ".join(["kind", label]) for label in LABELS],
    ],
)
def test_the_label_again_is_no_feature_with_gaps_too(tmp_path: Path, values: list[str]) -> None:
    with pytest.raises(UserError, match="the label again"):
        loaded(tmp_path, rows_with("it", values, LABELS), "?missing=indicator")


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([f"k{label}{at % 2}" for at, label in enumerate(LABELS)], 1),  # kinds of the label
        (["1" if label == "2" else "0" for label in LABELS], 1),  # whether it is one
        (["1" if at % 5 else "0" for at in range(24)], 0),
    ],
)
def test_what_may_be_made_from_the_label_has_a_note(
    tmp_path: Path, values: list[str], count: int
) -> None:
    found = loaded(tmp_path, rows_with("it", values, LABELS))
    assert sum("column it may be made from the label" in note for note in found.notes) == count
    assert not any("made from" in note for note in
                   loaded(tmp_path, rows_with("it", values, LABELS), "?use=it").notes)  # fmt: skip


PRICES = [str(100 + 37 * i * i % 997) for i in range(24)]


@pytest.mark.parametrize(
    "values",
    [
        [f"{np.log(float(price)):.6f}" for price in PRICES],
        [f"{float(price) / 10:.0f}" for price in PRICES],
        [price if at else "" for at, price in enumerate(PRICES)],
        [f"{-float(price)}" for price in PRICES],
    ],
)
def test_the_target_by_a_curve_or_rounded_is_no_feature(tmp_path: Path, values: list[str]) -> None:
    with pytest.raises(UserError, match="the target again"):
        loaded(tmp_path, rows_with("it", values, PRICES), "?task=numbers&missing=mean")


def test_a_row_without_gaps_must_be_left(tmp_path: Path) -> None:
    columns = rows_with("it", ["", "NA"] * 12)
    with pytest.raises(UserError, match=mention("it", "24 of 24", "missing=mean", "leave=it")):
        loaded(tmp_path, columns, "?missing=drop")
    rows = "client," + rows_with("it", ["", *NOISE[1:]]).replace("\n", "\na,").replace(
        "a,", "b,", 1
    )
    found = loaded(tmp_path, rows, "?missing=drop")
    assert "with them went b of column client" in found.notes


def test_texts_of_features_in_two_ways_have_a_note(tmp_path: Path) -> None:
    for values, count in (
        (["Male", "male", "f"], 1),
        (["m", "f", "d"], 0),
        (["yes", "no", "y"], 1),
    ):
        found = loaded(tmp_path, rows_with("it", values * 8))
        assert sum("written" in note or "in one way" in note for note in found.notes) == count


@pytest.mark.parametrize("pair", [("<=50K", "<=50K."), ("new york", "new  york"), ("cat", "'cat'")])
def test_labels_with_a_dot_spaces_or_quotes_are_one(tmp_path: Path, pair: tuple[str, str]) -> None:
    labels = [*pair, "other"] * 8
    with pytest.raises(UserError, match="written in two ways"):
        loaded(tmp_path, rows_with("it", NOISE, labels))


def test_spaces_before_quotes_are_no_part_of_a_value(tmp_path: Path) -> None:
    lines = [f'"{i % 2}", "h{i % 3}", "{value}"' for i, value in enumerate(NOISE)]
    found = loaded(tmp_path, "\n".join(["label, client, a", *lines]))
    assert (found.x.shape, found.domain_names) == ((24, 1), ("h0", "h1", "h2"))


def test_an_option_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    table = rows_with("it", NOISE)
    with pytest.raises(UserError, match=mention("leave", "twice", "leave=FIRST,SECOND")):
        loaded(tmp_path, table, "?leave=it&leave=noise")
    with pytest.raises(UserError, match=mention("time", "noise,it", "one column")):
        loaded(tmp_path, table, "?time=noise,it")


@pytest.mark.parametrize(
    ("times", "refused"),
    [
        ([f"{i % 28 + 1:02d}112026" for i in range(24)], True),
        ([f"{i % 12 + 1}.{2020 + i // 12}" for i in range(24)], True),
        ([f"202611{i + 1:02d}" for i in range(24)], False),
        ([f"{1700000000 + i}" for i in range(24)], False),
    ],
)
def test_dates_that_end_in_the_year_are_no_order(
    tmp_path: Path, times: list[str], refused: bool
) -> None:
    if refused:
        with pytest.raises(UserError, match=mention(times[0], "2026-11-28")):
            loaded(tmp_path, rows_with("at", times), "?time=at")
    else:
        (note,) = [one for one in loaded(tmp_path, rows_with("at", times), "?time=at").notes
                   if "order" in one]  # fmt: skip
        assert f"from {times[0]} to {times[-1]}" in note


def test_equal_samples_have_a_note_where_parts_are_drawn(tmp_path: Path) -> None:
    once = rows_with("it", NOISE)
    for table, count in ((once, 0), ("\n".join([once, *once.splitlines()[1:3]]), 2)):
        text = "\n".join(contents(loaded(tmp_path, table)))
        assert (f"{count} of 26 samples are equal" in text) == bool(count)


@pytest.mark.parametrize("first", ["Visits in 2026", "# by hospital", "sep=,"])
def test_a_first_line_that_names_no_columns_is_shown(tmp_path: Path, first: str) -> None:
    with pytest.raises(UserError, match=mention(first, "first line")):
        loaded(tmp_path, f"{first}\nlabel,a,b\n1,2,3\n0,4,5\n")
