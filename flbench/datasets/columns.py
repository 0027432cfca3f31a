"""Columns of people's tables: what is missing, what is a number, a class, a client or only an id.

Every door through which a table comes (`csv:`, `hub:`) reads its columns here, so that one text
means one thing. What would give a wrong number without a word is refused, with what to type.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from flbench.datasets.files import damaged, narrowed
from flbench.datasets.parts import parts_of, words_for_parts
from flbench.errors import UserError

MISSING = frozenset(
    (
        *("", "?", "-", "--", ".", "#n/a", "#na", "<na>", "n/a", "na", "nan", "-nan", "nat"),
        *("null", "#value!", "#div/0!", "#ref!", "#null!"),
    )
)
"""Texts that say that there is no value, in small letters; and `None`, as Python writes it.

Words of a language are categories: `none`, `missing`, `unknown`.
"""
NONE = "none"
"""In place of the labels of a sample that has none."""
YES_OR_NO = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), 1), **dict.fromkeys(("0", "0.0", "false", "no"), 0)
}  # fmt: skip
"""What says in small letters whether a sample has a label."""
HINTS = {"label": "; if a sample has several, add task=labels to the options"}
"""What to type where a value is a list, by what is read."""
BY_CHANCE = 8
"""Rows from which an order, or values that are all different, are none of chance: 2 / 8! = 5e-5."""
ROUNDING = 1e-12
"""A deviation below this share of the largest value comes from rounding."""
WHOLE = 2.0**53
"""From here on not every whole number is a float64."""
SINGLE = 2.0**-24
"""The relative error of a number in float32."""
LEAST, MOST = 1e-30, 1e30
"""Between these are the largest numbers of columns that float32 holds with their squares' sums."""
MEANT_AS_NUMBER = re.compile(
    r"(?!\d+\.\d{1,2}\.)[-+\u2212]?[$€£]?\s?[\d.,'\u2019\s]*\d[.,]?\s?[%$€£]?"
)
"""A number as people write it: with a decimal comma, thousands, per cent or a currency; no version
such as 1.2.3."""
WITH_COMMA = re.compile(r"[-+]?\d*(,\d*)?\d([eE][-+]?\d+)?")
"""A number with a decimal comma, or a whole one."""
WITH_UNIT = re.compile(r"([^\w\s.,+-]*)\s*([-+]?[\d.,]*\d)\s*([^\d\s]*)")
"""What stands before a number, the number, and its unit."""
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+")
"""A number with commas that may stand between thousands."""
MONTH = r"(jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-zä]{0,6}\.?"
A_DATE = re.compile(
    r"(\d{4}([-./])\d{1,2}(\2\d{1,2})?|\d{1,2}([-./])\d{1,2}\4(\d{4}|\d\d)"
    r"|\d{1,2}[-/]\d{4}|\d{4}[- ]?[qw]\d{1,2}|q\d[- /]\d{4}"
    rf"|\d{{1,2}}(\.|st|nd|rd|th)?[- ]{MONTH},?[- ](\d{{4}}|\d\d)"
    rf"|{MONTH}[- ](\d{{1,2}}(st|nd|rd|th)?,? )?\d{{4}})([T ].*)?",
    re.IGNORECASE,
)
"""A date as people write it, or a month, a quarter, a week: the year has four digits, or is the
last of two."""
TIME_OF_DAY = re.compile(r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[ap]\.?m\.?)?", re.IGNORECASE)
"""A time such as 07:30; the same of a duration."""
DIGITS_OF_DATE = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")
"""A number that is a date, such as 20261128."""
MANY = 20
"""Different numbers of a label above which a note asks whether they are measured."""
LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""Of the numbers to predict, which are float32."""
NINES = re.compile(r"-?9{2,}")
"""A number that people write where they have none."""
CODE = re.compile(r"0\d+")
"""A number that begins with a zero, as in codes of places and products."""
ID_WORDS = ("id", "ids", "uuid", "guid", "rowid", "rownum", "rowname", "rownames")
"""Last words of the names of columns that say which row or whose row it is."""
NUMBER_NAME = re.compile(
    r".*(\b|_)(no|nr|num|mrn|ssn|phone)|.*(number|nummer)|unnamed.*|_*(index_)?level_\d+_*"
    r"|(account|case|client|customer|item|member|order|patient|person|product|record|row|sample"
    r"|student|subject|user|visit)s?id",
    re.IGNORECASE,
)
"""Names of columns that number what is in a row, if their values are all different."""
INDEX_WORDS = ("index", "idx")
"""The same of a row; but a `body_mass_index` is measured."""
TRUTHS = {
    **dict.fromkeys(("true", "yes", "t", "y"), 1), **dict.fromkeys(("false", "no", "f", "n"), 0)
}  # fmt: skip
"""Words for 1 and 0, in small letters."""
PART_FLAG = re.compile(r"(is|in)_?(train|test|val|valid)(ing|ation)?(_?set)?", re.IGNORECASE)
"""The name of a column that says whether a row is in a part, such as `is_test`."""
FOLDS = re.compile(r"(cv|k)?[ _-]?folds?([ _-]?(id|nr|no|number))?|splits?", re.IGNORECASE)
"""The name of a column that says in which of several parts a row is."""
ROW_WORDS = ("", "row", "sample", "record", "case", "data", "df", "level", "unnamed")
"""What may stand before INDEX_WORDS in such a name."""


def is_missing(value: object) -> bool:
    """Whether a value says that there is none.

    Example:
        >>> [is_missing(one) for one in (None, " NA ", float("nan"), "None", "none", 0)]
        [True, True, True, True, False, False]
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    if not isinstance(value, str):
        return False
    return value.strip() == "None" or value.strip().lower() in MISSING


def as_number(value: object) -> float | None:
    """The number that a value is, or None.

    Example:
        >>> as_number("1e3"), as_number("1.0") == as_number(1), as_number("1,5"), as_number("1_0")
        (1000.0, True, None, None)
    """
    if isinstance(value, str) and "_" in value:
        return None
    try:
        return float(value)  # type: ignore[arg-type] # what is no number raises
    except (TypeError, ValueError):
        return None


def exact_number(value: object) -> Decimal | None:
    """The finite number that a value is, to its last digit, or None.

    Example:
        >>> exact_number("9007199254740993") == exact_number("9007199254740992")
        False
        >>> exact_number("007") == exact_number(7.0), exact_number("a"), exact_number("inf")
        (True, None, None)
    """
    number = as_number(value)
    if number is None or not math.isfinite(number):
        return None
    return Decimal(value if isinstance(value, str) else str(_plain_object(value)))


def _plain_object(value: object) -> object:
    """A number of numpy as one of Python, and a truth value as 0 or 1."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, bool) else value


def numbers_of(values: Sequence[object]) -> list[float] | None:
    """The values as numbers, or None if one of them is no finite number."""
    found = [as_number(value) for value in values]
    return None if any(one is None or not math.isfinite(one) for one in found) else found  # type: ignore[return-value]


@dataclass(frozen=True)
class Targets:
    """What is to be predicted, as `Dataset` has it.

    Attributes:
        y: targets of m samples.
        count: number of classes, of numbers or of labels.
        names: what they are called.
    """

    y: Tensor
    count: int
    names: tuple[str, ...]


def targets_of(path: Path, task: str, columns: Mapping[str, Sequence[object]]) -> Targets:
    """The targets in some columns, by the task that a person names.

    Raises:
        UserError: a value does not fit, or classes are asked for in several columns.
    """
    if task == "numbers":
        return _numbers(path, columns)
    if task == "labels":
        return _labels(path, columns)
    if len(columns) > 1:
        raise damaged(
            path, f"classes are in one column, got {', '.join(columns)}: name one, or say what is"
            " predicted with task=numbers or task=labels"
        )  # fmt: skip
    ((column, values),) = columns.items()
    y, names = classes_of(path, column, values)
    return Targets(y, len(names), names)


def _numbers(path: Path, columns: Mapping[str, Sequence[object]]) -> Targets:
    """A number of each column for each sample, shape (m,) or (m, k), float32."""
    table = []
    for column, values in columns.items():
        refuse_missing(path, column, values, "target")
        for row, value in enumerate(values, 1):
            number = as_number(value)
            if number is None or not abs(number) <= LARGEST_NUMBER:
                raise damaged(
                    path, f"column '{column}' is {value!r:.40} in row {row}: expected a finite"
                    " number such as 1234.5"
                )  # fmt: skip
        exact = np.array([as_number(value) for value in values])
        table.append(torch.from_numpy(narrowed(path, f"column '{column}'", exact)))
    y = torch.stack(table, dim=1)
    return Targets(y[:, 0] if len(table) == 1 else y, len(table), tuple(columns))


def _labels(path: Path, columns: Mapping[str, Sequence[object]]) -> Targets:
    """Whether each sample has each label, shape (m, C), int64: a column each, or words in one."""
    if len(columns) > 1:
        return _labels_by_column(path, columns)
    ((column, values),) = columns.items()
    refuse_missing(path, column, values, "label")
    held = [_words(path, column, row, value) for row, value in enumerate(values, 1)]
    names = sorted({name for words in held for name in words}, key=_in_order)
    if len(names) < 2:
        raise damaged(
            path, f"column '{column}' holds {len(names)} labels: expected words between ; such as"
            f" red;round, or several columns of 0 and 1, as in label=red,round; {NONE} = no label"
        )  # fmt: skip
    if pair := written_twice(names):
        raise damaged(
            path, f"column '{column}' has the labels '{pair[0]}' and '{pair[1]}', which are one"
            " label written in two ways: write one of them"
        )  # fmt: skip
    texts = [value for value in values if isinstance(value, str)]
    other = next((value for value in texts if re.search(r"[,|]", value)), None)
    if other is not None and not any(";" in value for value in texts):
        raise damaged(
            path, f"column '{column}' has the label '{other:.40}', and no {';'!r} anywhere:"
            " expected labels between ; such as red;round"
        )  # fmt: skip
    place = {name: at for at, name in enumerate(names)}
    y = torch.zeros(len(values), len(names), dtype=torch.int64)
    for row, words in enumerate(held):
        y[row, [place[word] for word in words]] = 1
    return Targets(y, len(names), tuple(names))


def _labels_by_column(path: Path, columns: Mapping[str, Sequence[object]]) -> Targets:
    table = []
    for column, values in columns.items():
        refuse_missing(path, column, values, "label")
        found = [YES_OR_NO.get(str(value).strip().lower()) for value in values]
        if None in found:
            row = found.index(None)
            raise damaged(
                path, f"column '{column}' is {values[row]!r:.40} in row {row + 1}: expected 0 or 1"
            )  # fmt: skip
        table.append(found)
    return Targets(
        torch.tensor(table, dtype=torch.int64).T.contiguous(), len(table), tuple(columns)
    )


def _words(path: Path, column: str, row: int, value: object) -> set[str]:
    """The labels that a cell names: words between ;, or the entries of a list.

    Raises:
        UserError: one of them is missing.
    """
    parts = value if isinstance(value, list | tuple) else str(value).split(";")
    if gone := [part for part in parts if part != "" and is_missing(part)]:
        raise damaged(
            path, f"column '{column}' has a label in row {row} that is missing ({gone[0]!r}): fill"
            f" it in, or leave it out; {NONE} = no label"
        )  # fmt: skip
    return {str(part).strip() for part in parts} - {"", NONE}


def _in_order(name: str) -> tuple[float, str]:
    """Numbers by their size, before texts."""
    number = as_number(name)
    return (math.inf if number is None else number), name


def classes_of(path: Path, column: str, values: Sequence[object]) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as 0..C-1, shape (m,), int64, and their names; numbers in their order, else texts.

    Raises:
        UserError: labels are missing, are no classes (lists, decimals, one for each row), or there
            is one only.
    """
    places, names = groups_of(path, column, values, "label")
    numbers = numbers_of(values)
    if numbers is not None:
        decimal = next((one for one in numbers if one != round(one)), None)
        if decimal is not None:
            raise damaged(
                path, f"column '{column}' holds decimals such as {decimal:g}: expected classes; to"
                " predict numbers, add task=numbers to the options, as in csv:FILE?task=numbers, or"
                " make classes of it, such as low and high"
            )  # fmt: skip
        whole = sorted({int(one) for one in numbers})
        if len(whole) > 2 and whole == list(range(-1, len(whole) - 1)):
            at = numbers.index(-1)
            raise damaged(
                path, f"column '{column}' is -1 in row {at + 1}, which says that there is no label:"
                " leave these rows out, or give this class a name"
            )  # fmt: skip
    elif all(MEANT_AS_NUMBER.fullmatch(name) and not A_DATE.fullmatch(name) for name in names):
        raise damaged(
            path, f"column '{column}' holds numbers such as '{names[0]}': expected classes; to"
            " predict numbers, write them as 1234.5 and add task=numbers to the options, or make"
            " classes of it, such as low and high"
        )  # fmt: skip
    if len(names) < 2:
        raise damaged(path, f"column '{column}' has one label only, {names[0]}")
    if 2 * len(names) > len(values) >= BY_CHANCE:
        raise damaged(
            path, f"column '{column}' has {len(names)} labels in {len(values)} rows, as an id or a"
            " measured number has: expected classes of two rows and more, or task=numbers among the"
            " options"
        )  # fmt: skip
    return places, names


def taken_for_classes(column: str, values: Sequence[object]) -> list[str]:
    """A note where labels may be counts or ages: many different whole numbers, as classes."""
    numbers = numbers_of(values)
    found = 0 if numbers is None else len({*numbers})
    if found <= MANY:
        return []
    return [
        f"the {found} different numbers of column {column} are taken for classes; to predict the"
        " number itself, add task=numbers to the options"
    ]


def stand_ins(
    column: str, values: Sequence[object], remedy: str = "leave these cells empty"
) -> list[str]:
    """A note where a column of numbers has 99, -999 or the like in place of what is missing.

    Such a number has nines alone, is in two rows or more, and lies further from all others than
    these lie from each other.
    """
    numbers = numbers_of([value for value in values if not is_missing(value)])
    if not numbers:
        return []
    found, counts = np.unique(np.array(numbers), return_counts=True)
    nines = np.array([bool(NINES.fullmatch(f"{one:.17g}")) for one in found])
    rest = found[~nines]
    if not len(rest):
        return []
    with np.errstate(over="ignore", invalid="ignore"):  # refused, or scaled, later
        far = (found < 2 * rest[0] - rest[-1]) | (found > 2 * rest[-1] - rest[0])
    return [
        f"column {column} has {found[at]:.17g} in {counts[at]} rows, far from its other numbers:"
        f" {remedy} if it stands for a missing value"
        for at in np.flatnonzero(nines & far & (counts > 1))
    ]


def codes(column: str, values: Sequence[str]) -> list[str]:
    """A note where numbers of a column of features begin with a zero, as codes such as 01234 do.

    Example:
        >>> codes("zip", ["20095", "01067"]), codes("rate", ["0", "0.5", "-0.25", "1e-05"])
        (['column zip has numbers such as 01067, and is measured; if they are codes, read them as \
texts with ?text=zip'], [])
    """
    first = next((value for value in values if CODE.fullmatch(value)), None)
    if first is None or any(as_number(value) is None for value in values if not is_missing(value)):
        return []
    return [
        f"column {column} has numbers such as {first}, and is measured; if they are codes, read"
        f" them as texts with ?text={typed(column)}"
    ]


def refuse_missing(path: Path, column: str, values: Sequence[object], what: str) -> None:
    """Refuse a column that lacks a value; `what` says whose value it is.

    Raises:
        UserError: it does.
    """
    gone = [row for row, value in enumerate(values, 1) if is_missing(value)]
    if gone:
        raise damaged(
            path, f"column '{column}' has no {what} in {len(gone)} of {len(values)} rows, such as"
            f" row {gone[0]} ({values[gone[0] - 1]!r}): fill it in, or leave these rows out"
        )  # fmt: skip


def groups_of(
    path: Path, column: str, values: Sequence[object], what: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Number of each value's group, shape (m,), int64, and the groups' names, in order.

    `1` and `1.0` are one group, as ` a` and `a` are; numbers are compared to their last digit.

    Raises:
        UserError: a value is missing, is a list, has lost digits, or is one that another row
            writes in another way (`007` and `7`); `what` says whose value it is.
    """
    refuse_missing(path, column, values, what)
    for row, value in enumerate(values, 1):
        if not isinstance(value, str | int | float | bool | np.generic):
            raise damaged(
                path, f"column '{column}' holds {type(value).__name__} in row {row}: expected one"
                f" {what} for each sample{HINTS.get(what, '')}"
            )  # fmt: skip
        if isinstance(value, float) and abs(value) >= WHOLE:
            raise damaged(
                path, f"column '{column}' holds the decimal number {value:.17g} in row {row}, whose"
                f" last digits may be lost: expected whole numbers or texts as {what}s"
            )  # fmt: skip
    texts = [str(_plain_object(value)).strip() for value in values]
    exact = [exact_number(text) for text in texts]
    numeric = all(number is not None for number in exact)
    if numeric:
        texts = [re.sub(r"(?<=\d)\.0*$", "", text) for text in texts]
    names = sorted({*texts})
    if numeric:
        names.sort(key=dict(zip(texts, exact, strict=True)).__getitem__)  # type: ignore[arg-type]
    if pair := written_twice(names):
        why = f"one {what} written in two ways: write one of them"
        if numeric:
            why = "equal as numbers: write one of them, or put a letter before each if they are two"
        raise damaged(
            path, f"column '{column}' has the {what}s '{pair[0]}' and '{pair[1]}', which are {why}"
        )
    place = {name: number for number, name in enumerate(names)}
    return torch.tensor([place[text] for text in texts], dtype=torch.int64), tuple(names)


def true_groups(
    path: Path,
    column: str,
    values: Sequence[object],
    domains: Tensor,
    clients: Sequence[str],
    remedy: str,
) -> tuple[Tensor, tuple[str, ...]]:
    """The true group of each client, shape (D,), int64, and the groups' names.

    Args:
        values: the group that each row says, m.
        domains: the client of each row, shape (m,).
        clients: their names.
        remedy: what to type if the column is none of true groups.

    Raises:
        UserError: a value is missing, or rows of a client differ.
    """
    places, names = groups_of(path, column, values, "group")
    owners = domains.numpy()
    first = np.unique(owners, return_index=True)[1]
    other = np.flatnonzero((places != places[first][domains]).numpy())
    if len(other):
        row = int(other[0])
        start, owner = int(first[owners[row]]), clients[int(owners[row])]
        raise damaged(
            path, f"column '{column}' is '{values[start]}' in row {start + 1} and '{values[row]}'"
            f" in row {row + 1}, both of client '{owner}': expected one true group for each client;"
            f" {remedy}"
        )  # fmt: skip
    return places[first], names


def written_twice(names: Sequence[str]) -> tuple[str, str] | None:
    """Two names that mean the same: as numbers, truth values, or but for how they are written.

    Capitals (of more than a letter), signs that are not seen, accents as signs of their own, spaces
    between words, quotes around them and a dot after them.

    Example:
        >>> written_twice(["No", "Yes", "no"]), written_twice(["0", "1", "False", "True"])
        (('No', 'no'), ('0', 'False'))
        >>> written_twice(["A", "a"]), written_twice(["0", "1", "A"])
        (None, None)
        >>> written_twice(["1", "1.0", "A"]), written_twice(["B", "caf\u00e9", "cafe\u0301"])
        (('1', '1.0'), ('caf\u00e9', 'cafe\u0301'))
        >>> written_twice(["<=50K", "<=50K."]), written_twice(["n", "no", "y"])
        (('<=50K', '<=50K.'), ('n', 'no'))
    """
    known: dict[str, str] = {}
    numbers: dict[Decimal, str] = {}
    for name in names:
        plain = _plain(name)
        first = known.setdefault(plain.casefold(), name)
        if first is not name and (len(name) > 1 or plain == _plain(first)):
            return first, name
        number = exact_number(plain)
        if number is not None:
            first = numbers.setdefault(number, name)
            if first is not name:
                return first, name
    if len(known) > 2 and {*TRUTHS}.issuperset(known) and any(len(one) > 1 for one in known):
        first, other = next(
            (a, b) for a in known for b in known if a != b and TRUTHS[a] == TRUTHS[b]
        )
        return known[first], known[other]
    digits, truths = ([one for one in known if one in few] for few in (("0", "1"), TRUTHS))
    if digits and truths and len(digits) + len(truths) == len(known):
        return known[digits[0]], known[truths[0]]
    return None


def _plain(name: str) -> str:
    """A name without signs that are not seen, quotes and a last dot, composed as Unicode does."""
    shown = " ".join(unicodedata.normalize("NFKC", name).split())
    seen = "".join(sign for sign in shown if unicodedata.category(sign) not in ("Cf", "Cc"))
    return seen.strip().strip("\"'").rstrip(".").strip() or seen.strip()


def is_numeric(path: Path, column: str, values: Sequence[str]) -> bool:
    """Whether a column of features holds numbers; missing values aside.

    Raises:
        UserError: it holds numbers and texts, or numbers as people write them for people.
    """
    there = [value for value in values if not is_missing(value)]
    numbers = [value for value in there if as_number(value) is not None]
    if len(numbers) == len(there):
        return bool(there)
    remedy = f"write numbers such as 1234.5, or read it as texts with ?text={typed(column)}"
    with_comma = [value for value in there if "," in value]
    are_thousands = all(map(THOUSANDS.fullmatch, with_comma))
    if not are_thousands and all(map(WITH_COMMA.fullmatch, there)):
        raise damaged(
            path, f"column '{column}' holds decimal commas, such as '{there[0]}': read them with"
            f" ?decimal=%2C, or as texts with ?text={typed(column)}"
        )  # fmt: skip
    if numbers:
        text = next(value for value in there if as_number(value) is None)
        raise damaged(
            path, f"column '{column}' holds {len(numbers)} numbers and {len(there) - len(numbers)}"
            f" texts, such as '{text}' in row {values.index(text) + 1}: {remedy}"
        )  # fmt: skip
    if all(map(MEANT_AS_NUMBER.fullmatch, there)) and not all(map(A_DATE.fullmatch, there)):
        raise damaged(path, f"column '{column}' holds numbers such as '{there[0]}': {remedy}")
    if has_a_unit(there):
        raise damaged(
            path, f"column '{column}' holds numbers with a unit, such as '{there[0]}': {remedy}"
        )  # fmt: skip
    return False


def with_points(path: Path, column: str, values: list[str]) -> list[str]:
    """The values of a column in a file of decimal commas, as they are written with points.

    Texts stay as they are, and so do columns in which no value has a comma.

    Raises:
        UserError: numbers of the column have a point, which would mean another number.

    Example:
        >>> with_points(Path("a.csv"), "a", ["1,5", "-2", "NA"])
        ['1.5', '-2', 'NA']
    """
    there = [value for value in values if not is_missing(value)]
    if point := next((one for one in there if "." in one and as_number(one) is not None), None):
        raise damaged(
            path, f"column '{column}' has the number '{point}': with decimal commas, expected one"
            " without a point: write thousands without a sign between them, or leave out ?decimal"
        )  # fmt: skip
    if not all(map(WITH_COMMA.fullmatch, there)):
        return values
    return [one if is_missing(one) else one.replace(",", ".") for one in values]


def typed(*names: str) -> str:
    """Names of columns as they are typed after a question mark, between commas.

    Example:
        >>> typed("a", "C+ id", "R&D")
        'a,C%2B id,R%26D'
    """
    return ",".join(re.sub(r"[%&+?#]", lambda found: quote(found[0]), name) for name in names)


def has_a_unit(values: Sequence[str]) -> bool:
    """Whether texts are numbers, `BY_CHANCE` or more, that share one unit or one sign before them.

    Example:
        >>> has_a_unit([f"{kilos} kg" for kilos in range(8)]), has_a_unit(["3 rooms", "4 rooms"])
        (True, False)
    """
    found = [WITH_UNIT.fullmatch(value) for value in values]
    units = {(one[1], one[3]) for one in found if one is not None}
    numbers = {one[2] for one in found if one is not None}
    shared = None not in found and len(units) == 1 and units != {("", "")}
    return shared and len(numbers) >= BY_CHANCE


def part_in(name: str, values: Sequence[str]) -> str:
    """Why a column of features only says in which part a row is; "" if it does not.

    Example:
        >>> [bool(part_in(name, ["0", "1"])) for name in ("is_test", "inTrain", "is_tested_often")]
        [True, True, False]
        >>> bool(part_in("kfold", list("123"))), bool(part_in("Client", list("ab")))
        (True, True)
    """
    words = sorted({value for value in values if not is_missing(value)})
    if words and (parts_of(words) or len(words_for_parts(words)) == len(words)):
        return f"it says {', '.join(words)}: if these are the parts, name it split"
    if PART_FLAG.fullmatch(name) and len(words) == 2:
        return "its name says in which part a row is: name it split, and write train and test"
    if FOLDS.fullmatch(name):
        return (
            "its name says in which part a row is: for one test part, name it split, and write"
            " train and test"
        )
    if name.strip().lower() == "client":
        return "its name says whose row it is: name it client, in small letters"
    if name.strip().lower() == "group":
        return "its name says the true group of a client: name it group, in small letters"
    return ""


def is_label_again(values: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether each value of a column goes with one label, and each label with one value.

    Rows in which the column has a gap do not count.

    Example:
        >>> is_label_again(["y", "n"] * 4, ["1", "0"] * 4), is_label_again(["y"] * 8, ["1"] * 8)
        (True, False)
    """
    there = [pair for pair in zip(values, labels, strict=True) if not is_missing(pair[0])]
    pairs = {*there}
    few = len({value for value, _ in pairs}) == len({label for _, label in pairs}) == len(pairs)
    return few and len(pairs) > 1 and len(there) >= BY_CHANCE


def tells_labels(column: str, values: Sequence[str], labels: Sequence[str]) -> list[str]:
    """A note where few values of a column each go with one label, or the other way round.

    Such a column may be made from the label: a part of it, a kind of it, or whether it is one.

    Example:
        >>> kinds, labels = ["a1", "a2", "b", "b"] * 3, ["a", "a", "b", "b"] * 3
        >>> len(tells_labels("kind", kinds, labels)), tells_labels("kind", ["a", "b"] * 6, labels)
        (1, [])
    """
    there = {*(pair for pair in zip(values, labels, strict=True) if not is_missing(pair[0]))}
    found, kinds = {value for value, _ in there}, {label for _, label in there}
    few = len(values) >= 4 * max(len(found), len(kinds)) and min(len(found), len(kinds)) > 1
    if not few or len(there) > max(len(found), len(kinds)):
        return []
    what = "value of it goes with one label" if len(there) == len(found) else "label has one value"
    return [
        f"column {column} may be made from the label, as each {what}: leave it out with"
        f" ?leave={typed(column)} if it is"
    ]


def texts_written_twice(column: str, values: Sequence[str]) -> list[str]:
    """A note where two texts of a column mean the same.

    Example:
        >>> len(texts_written_twice("sex", ["Male", "male"])), texts_written_twice("sex", ["f"])
        (1, [])
    """
    pair = written_twice(sorted({value for value in values if not is_missing(value)}))
    if pair is None:
        return []
    return [
        f"column {column} has the texts '{pair[0]}' and '{pair[1]}', each a feature: write them in"
        " one way if they are one"
    ]


def is_number_again(values: Sequence[str], targets: Sequence[str]) -> bool:
    """Whether a column holds numbers that are predicted, in another unit, rounded or by a curve.

    It does if it only ever rises, or falls, with the target, both with `BY_CHANCE` values or more.
    Rows in which it has a gap do not count.

    Example:
        >>> celsius, fahrenheit = list("12345678"), [str(32 + 1.8 * one) for one in range(1, 9)]
        >>> is_number_again(fahrenheit, celsius), is_number_again(list("12345687"), celsius)
        (True, False)
    """
    pairs = zip(values, targets, strict=True)
    there = [pair for pair in pairs if not any(is_missing(one) for one in pair)]
    found = [numbers_of(side) for side in zip(*there, strict=True)]
    if len(found) < 2 or found[0] is None or found[1] is None:
        return False
    one, other = np.array(found[0]), np.array(found[1])
    if min(len(np.unique(one)), len(np.unique(other))) < BY_CHANCE:
        return False
    return any(
        bool((np.diff((sign * one)[np.lexsort((sign * one, other))]) >= 0).all())
        for sign in (1, -1)
    )


def id_of(name: str, values: Sequence[str], blocks: Sequence[Sequence[object]] = ()) -> str:
    """Why a column of features only says which row it is; "" if it does not.

    It does so if its name says so, if it numbers the rows (all of them, or anew in each `block`, a
    column of groups), if its values are all different and sorted, or texts all different, or dates.

    Example:
        >>> [bool(id_of(name, ["7", "3"])) for name in ("patient_id", "index", "body_mass_index")]
        [True, True, False]
        >>> [bool(id_of(name, ["7", "3"])) for name in ("Id Paciente", "0", "grid", "%")]
        [True, False, False, False]
    """
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).casefold()
    words = ["", *re.findall(r"[^\W\d_]+", split)]
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if "id" in words[1:2] or last in ID_WORDS or (last in INDEX_WORDS and before in ROW_WORDS):
        return "its name says that it is an id"
    rows = [row for row, value in enumerate(values) if not is_missing(value)]
    known = [values[row] for row in rows]
    numbers = numbers_of(known)
    if len(known) < BY_CHANCE:
        return ""
    is_unlike = len({*known}) == len(known)
    if numbers is None:
        if any(as_number(value) is not None for value in known):
            return ""
        if all(map(A_DATE.fullmatch, known)):
            when = f"where they say when a sample was, type ?time={typed(name)}"
            return f"its values are dates; {when}"
        if all(map(TIME_OF_DAY.fullmatch, known)):
            return f"its values are times such as {known[0]}: write numbers, as 7.5 for 7:30"
        meant = all(map(MEANT_AS_NUMBER.fullmatch, known)) or has_a_unit(known)
        return "each row has another text" if is_unlike and not meant else ""
    if all(map(DIGITS_OF_DATE.fullmatch, known)):
        return f"its values are dates such as {known[0]}, which are no numbers to measure with"
    column = np.array(numbers)
    if np.array_equal(np.sort(column), np.arange(len(column)) + column.min()):
        return "it numbers the rows"
    steps = np.diff(column)
    if (steps > 0).all() or (steps < 0).all():
        return "its values are all different and in order, as the number of a row"
    groups = ([block[row] for row in rows] for block in blocks)
    if any(_anew(column, group) for group in groups):
        return "it numbers the rows of each group"
    numbered = NUMBER_NAME.fullmatch(name) and is_unlike
    if numbered and (column == np.round(column)).all():
        return "its name says that it is an id, and its values are all different whole numbers"
    return ""


def _anew(column: np.ndarray, block: Sequence[object]) -> bool:
    """Whether a column counts the rows of each group from the same number."""
    _, groups = np.unique(np.array([str(one) for one in block]), return_inverse=True)
    if not 1 < groups.max() + 1 <= len(column) // 2:
        return False
    parts = [column[groups == group] for group in range(groups.max() + 1)]
    first = parts[0][0]
    return all(np.array_equal(part, np.arange(len(part)) + first) for part in parts)


@dataclass(frozen=True)
class FeatureBlock:
    """The numbers that a column of features becomes.

    Attributes:
        values: shape (m, k), float64; NaN = missing.
        kind: what they are, in words.
        numeric: whether they are measured, and to be scaled; else they are 0 or 1.
        gaps: whether one is missing, in the first k' columns; a column that says so is the last.
        indicator: whether the last column says where values are missing.
    """

    values: np.ndarray
    kind: str
    numeric: bool
    gaps: bool
    indicator: bool

    def places(self, start: int) -> range:
        """The columns that hold the values themselves, where the first one is `start`."""
        return range(start, start + self.values.shape[1] - self.indicator)


def features_of(
    path: Path,
    column: str,
    values: Sequence[str],
    train: np.ndarray,
    text: bool,
    fill: str,
    most: int,
) -> FeatureBlock:
    """The numbers of a column of features, as they are.

    A column of texts becomes one of 0 and 1 for each text; with `fill` "indicator" one column more
    is 1 where a value is missing. Nothing is scaled or filled here: that is done with the training
    samples of the clients, which a file does not know (`federation.feature_scale`).

    Args:
        train: rows that may be trained on, shape (m,), bool.

    Raises:
        UserError: values are missing and `fill` is "", or a column does not fit.
    """
    gone = np.array([is_missing(value) for value in values])
    if gone.all():
        raise damaged(path, f"column '{column}' is empty: leave it out with ?leave={typed(column)}")
    if gone.any() and not fill:
        row = int(gone.argmax())
        raise damaged(
            path, f"column '{column}' has no value in {gone.sum()} of {len(gone)} rows, such as row"
            f" {row + 1} ({values[row]!r}): leave these rows out with ?missing=drop, take the mean"
            " with ?missing=mean, or add a column that says so with ?missing=indicator"
        )  # fmt: skip
    if gone[train].all():
        raise damaged(path, f"column '{column}' has no value in the training part")
    known = [value for value, is_gone in zip(values, gone, strict=True) if not is_gone]
    numeric = not text and is_numeric(path, column, values)
    if numeric:
        table = np.full((len(values), 1), np.nan)
        table[~gone, 0] = [float(value) for value in known]
        if len(endless := np.flatnonzero(np.isinf(table[:, 0]))):
            row = int(endless[0])
            raise damaged(
                path, f"column '{column}' has {values[row]} in row {row + 1}, which is not finite:"
                " expected numbers; leave the cell empty where the value is missing"
            )  # fmt: skip
        table, kind = in_single(table), "numbers"
    else:
        names, places = np.unique(np.array(known), return_inverse=True)
        if len(names) > most:
            raise damaged(
                path, f"column '{column}' has {len(names)} different texts, such as '{known[0]}':"
                f" expected numbers, or at most {most} texts; leave it out with"
                f" ?leave={typed(column)}"
            )  # fmt: skip
        table = np.full((len(values), len(names)), np.nan)
        table[~gone] = np.eye(len(names))[places]
        kind = f"{len(names)} texts"
    indicator = fill == "indicator" and bool(gone.any())
    if indicator:
        table = np.concatenate([table, gone[:, None]], axis=1)
    return FeatureBlock(table, kind, numeric, bool(gone.any()), indicator)


def in_single(table: np.ndarray) -> np.ndarray:
    """Numbers that are to be scaled, shape (m, 1), NaN = missing, so that float32 holds them.

    Numbers of which float32 would lose more than a thousandth of their deviation, such as seconds
    since 1970, become deviations from their mean, in units of their deviation. Scaling undoes any
    shift and any unit, so no number that is trained on depends on the rows that say which.
    """
    largest = float(np.nanmax(np.abs(table))) or 1.0
    shares = table / largest
    mean, deviation = np.nanmean(shares), np.nanstd(shares)
    if LEAST < largest < MOST and deviation > 1e3 * SINGLE:
        return table
    found: np.ndarray = (shares - mean) / (1.0 if deviation <= ROUNDING else deviation)
    return found


def refused_ids(path: Path, found: dict[str, str]) -> UserError:
    """The error for columns that only say which row it is, column -> why."""
    column, why = next(iter(found.items()))
    names = typed(*found)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return damaged(
        path, f"column '{column}'{more} is no feature: {why}; leave it out with ?leave={names}, or"
        f" keep it with ?use={names}"
    )  # fmt: skip
