"""Tables of a user: `csv:FILE`, one row per sample, with the columns `label` and perhaps `client`.

What is predicted is a class, unless the options name another task.

Columns, named in the first line of a file in UTF-8:

    label    the label, any text; labels are numbered in their sorted order
    client   perhaps: the domain of the sample, any text, such as a hospital; the partition
             `natural` makes each a client
    split    perhaps: the part, `train` or `test` (and `validation`, which counts as `train`);
             without it there is no original test part
    group    perhaps: the true group of the client, any text, the same in all of its rows; what
             methods find is compared with it, and no method but `oracle` sees it
    others   features: a column of numbers is scaled to mean 0 and standard deviation 1 of what
             clients train on; any other column becomes one column per value (0 or 1)

Options follow a question mark, as in `csv:FILE?missing=drop&leave=name,visit`:

    label      the columns that are predicted, `label` by default; of classes it is one
    client     the column that says whose row it is, `client` by default
    split      the column that says the part, `split` by default
    task       what they hold: classes, numbers (one or several columns), or labels, of which a
               sample has any number: a column of 0 and 1 for each, or one column of words between ;
               with `none` for no label
    missing    what becomes of rows where a feature is missing: drop, mean (of what clients train
               on) or indicator
    leave      columns that are no features
    use        columns that look like numbers of rows, or are called group, and are features all
               the same
    text       columns of numbers that are texts, such as codes
    time       a column that says when a sample was: rows are put in its order, and parts divided by
               time
    gap        rows left out between the parts then, such as the length of a window; 0 by default
    separator  what is between values, if it is no comma
    decimal    a comma, where numbers are written as 1,5
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Container
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.columns import (
    codes,
    features_of,
    groups_of,
    id_of,
    is_label_again,
    is_missing,
    is_number_again,
    numbers_of,
    part_in,
    refused_ids,
    stand_ins,
    taken_for_classes,
    targets_of,
    tells_labels,
    texts_written_twice,
    true_groups,
    typed,
    with_points,
)
from flbench.datasets.files import damaged, no_file, options_in, text_in
from flbench.datasets.parts import parts_of, words_for_parts
from flbench.datasets.windows import by_time
from flbench.errors import BadParameter
from flbench.results.files import user_path
from flbench.tasks import TASKS, TaskName

LARGEST = 2**31
"""Bytes of a file."""
VALUES = 100
"""Most values of a column that is not numeric."""
LABEL, GROUP, RESERVED = "label", "group", ("client", "split")
"""The column that is predicted unless another one is named, and those that are no features."""
FORMAT = ("separator", "decimal")
OPTIONS = (LABEL, *RESERVED, "task", "missing", "leave", "use", "text", "time", "gap", *FORMAT)
FILLS = ("drop", "mean", "indicator")
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
YEAR_LAST = re.compile(r"(\d{3,4}|\d{1,2}\.)(19|20)\d\d")
"""A number that is a date with the year at its end, such as 28112026 or 11.2026."""
YEAR_FIRST = re.compile(r"(19|20)\d\d")
MEDIUM = "tables"
NATURAL = True
ABOUT = {"csv": DatasetInfo(source="yours", licence="yours", fetch="--dataset csv:FILE.csv")}


def table(root: Path, argument: str) -> Dataset:
    """Your own table: csv:FILE with a column `label`, perhaps `client` and `split`, and features.

    Raises:
        MissingData: there is no such file.
        UserError: a row, a column or a value does not fit.
    """
    name, options = asked(argument)
    path = user_path(name)
    if not path.is_file():
        raise no_file(path)
    columns = read(path, options.get("separator", ","))
    if "decimal" in options:
        others = {*listed(options, "leave", columns), *listed(options, "text", columns)}
        numbers = {name: values for name, values in columns.items() if name not in others}
        columns |= {name: with_points(path, name, values) for name, values in numbers.items()}
    refuse_two_roles(f"csv:{argument}", columns, options)
    given, columns = columns, under_our_names(path, columns, options)
    targets = listed(options, "label", given) or [LABEL]
    for at, one in enumerate(targets):
        if one in targets[:at]:
            raise damaged(path, f"?label={','.join(targets)}: '{one}' is there twice")
        if one in given and one in (options.get(name, name) for name in RESERVED):
            raise damaged(
                path, f"column '{one}' says whose a row is, or of which part: expected another one"
                " to predict"
            )  # fmt: skip
        if one not in given:
            raise damaged(
                path, f"it needs a column '{one}', got {', '.join(given)}: name another one with"
                " ?label=COLUMN"
            )  # fmt: skip
    for option in ("leave", "use", "text", "time"):
        if unknown := [one for one in listed(options, option, given) if one not in given]:
            raise damaged(path, f"?{option}={unknown[0]}: it has {', '.join(given)}")
    if len(whens := listed(options, "time", given)) > 1:
        raise damaged(path, f"?time={','.join(whens)}: expected one column")
    left, used, texts = (listed(options, one, given) for one in ("leave", "use", "text"))
    notes = [f"columns left out: {', '.join(left)}"] if left else []
    columns = {name: values for name, values in columns.items() if name not in left}
    if when := next(iter(whens), ""):
        columns, moments = in_order(path, when, columns)
        if "split" in columns:
            refuse_earlier_test(path, when, moments, columns)
        times = columns.pop(when)
        notes.append(
            f"rows are in the order of column {when}, from {times[0]} to {times[-1]}, which is no"
            " feature"
        )
    grouped = GROUP in columns and GROUP not in (*targets, *used)
    kept = (*targets, *RESERVED, *([GROUP] if grouped else ()))
    features = {name: values for name, values in columns.items() if name not in kept}
    if not features:
        raise damaged(path, "it needs one or more columns of features")
    blocks = [columns[name] for name in kept if name in columns]
    task = cast("TaskName", options.get("task", "classes"))
    fill, found = options.get("missing", ""), None
    if fill != "drop":  # before columns that go with each of them are looked for
        found = targets_of(path, task, {name: columns[name] for name in targets})
    ids = {
        name: why
        for name, values in features.items()
        if name not in used
        and (why := no_feature(name, values, task, [columns[one] for one in targets], blocks))
    }
    if ids:
        raise refused_ids(path, ids)
    if fill == "drop":
        whole, features, dropped = without_gaps(path, columns, features)
        notes += [f"rows left out, as a feature is missing: {dropped}"]
        kinds = (*([] if task == "numbers" else targets), *RESERVED)
        notes += [
            f"with them went {', '.join(gone)} of column {name}"
            for name in kinds
            if name in columns and (gone := sorted({*columns[name]} - {*whole[name]}))
        ]
        columns = whole
    if found is None:
        found = targets_of(path, task, {name: columns[name] for name in targets})
    if task == "classes":
        notes += taken_for_classes(targets[0], columns[targets[0]])
    if task == "classes":
        told = {name: one for name, one in features.items() if name not in used}
        labels = columns[targets[0]]
        notes += [note for name, one in told.items() for note in tells_labels(name, one, labels)]
    measured = [name for name in features if name not in texts]
    notes += [note for name in measured for note in stand_ins(name, columns[name])]
    if task != "labels":
        rows = "leave these rows out"
        notes += [note for name in targets for note in stand_ins(name, columns[name], rows)]
    notes += [note for name in measured for note in codes(name, columns[name])]
    notes += [
        note
        for name, one in features.items()
        if numbers_of([value for value in one if not is_missing(value)]) is None
        for note in texts_written_twice(name, one)
    ]
    y = found.y
    test = test_part(path, columns["split"], notes) if "split" in columns else None
    domains: torch.Tensor | None = None
    clients: tuple[str, ...] = ()
    if "client" in columns:
        domains, clients = groups_of(path, "client", columns["client"], "client")
        if words_for_parts(clients) and len(words_for_parts(clients)) == len(clients):
            raise damaged(path, f"column 'client' says {', '.join(clients)}: name it 'split'")
    groups: torch.Tensor | None = None
    group_names: tuple[str, ...] = ()
    if grouped:
        groups, group_names = groups_in(path, columns[GROUP], domains, clients)
    train = np.ones(len(y), dtype=bool) if test is None else ~test
    raw = [numbers_of(values) for values in features.values()]
    x, kinds, scaled, filled = samples_of(path, features, train, texts, fill)
    data = Dataset(
        f"csv:{argument}",
        torch.from_numpy(x),
        y,
        found.count,
        domains,
        None if test is None else torch.from_numpy(test),
        label_names=found.names,
        domain_names=clients,
        features=kinds,
        notes=tuple(notes),
        keeps_test=True,
        gap=int(options.get("gap", 0)) if when else None,
        scaled=scaled,
        filled=filled,
        domain_groups=groups,
        group_names=group_names,
        task=task,
    )
    is_windows = not when and all(one is not None for one in raw)
    return by_time(data, np.array(raw).T) if is_windows else data


def samples_of(
    path: Path, features: dict[str, list[str]], train: np.ndarray, texts: list[str], fill: str
) -> tuple[np.ndarray, tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """The columns of features as numbers, shape (m, d), float32, NaN = missing.

    Args:
        train: rows that may be trained on, shape (m,), bool.
        texts: columns that are texts, whatever they hold.
        fill: what becomes of gaps.

    Returns:
        The numbers; what each column is; the places that are scaled, and those that are filled.
    """
    parts: list[np.ndarray] = []
    kinds: list[str] = []
    scaled: list[int] = []
    filled: list[int] = []
    for name, values in features.items():
        block = features_of(path, name, values, train, name in texts, fill, VALUES)
        places = block.places(sum(part.shape[1] for part in parts))
        scaled += places if block.numeric else ()
        filled += places if block.gaps and not block.numeric else ()
        parts.append(block.values)
        gone = ", and whether it is missing" if block.indicator else ""
        kinds.append(f"{name} ({block.kind}{gone})")
    x = np.concatenate(parts, axis=1, dtype=np.float32)
    return x, tuple(kinds), tuple(scaled), tuple(filled)


def groups_in(
    path: Path, values: list[str], domains: torch.Tensor | None, clients: tuple[str, ...]
) -> tuple[torch.Tensor, tuple[str, ...]]:
    """The true group of each client, shape (D,), int64, and the groups' names.

    Raises:
        UserError: there are no clients, a value is missing, or rows of a client differ.
    """
    feature = f"if it is a feature, type ?use={GROUP}"
    if domains is None:
        raise damaged(
            path, f"column '{GROUP}' is the true group of each client, and there is no column"
            f" 'client': add one; {feature}"
        )  # fmt: skip
    return true_groups(path, GROUP, values, domains, clients, feature)


def no_feature(
    name: str,
    values: list[str],
    task: TaskName,
    targets: list[list[str]],
    blocks: list[list[str]],
) -> str:
    """Why a column is no feature; "" if it may be one."""
    if task == "numbers" and any(is_number_again(values, one) for one in targets):
        return "it is the target again, in the same or another unit"
    if task != "numbers" and any(is_label_again(values, one) for one in targets):
        return "it is the label again: each of its values goes with one label"
    return part_in(name, values) or id_of(name, values, blocks)


def asked(argument: str) -> tuple[str, dict[str, str]]:
    """The file of an argument, and its options.

    Raises:
        BadParameter: an option or its value is unknown.

    Example:
        >>> asked("a.csv?missing=drop&leave=x,y")
        ('a.csv', {'missing': 'drop', 'leave': 'x,y'})
    """
    name, mark, query = argument.rpartition("?")
    if not mark or "=" not in query:
        return argument, {}
    options = options_in(f"csv:{argument}", query)
    if unknown := [key for key in options if key not in OPTIONS]:
        raise BadParameter(f"csv:{argument}: expected {', '.join(OPTIONS)}, got {unknown[0]}")
    if (task := options.get("task", "classes")) not in TASKS:
        raise BadParameter(f"csv:{argument}: task is {', '.join(TASKS)}, got '{task}'")
    if (fill := options.get("missing", FILLS[0])) not in FILLS:
        raise BadParameter(f"csv:{argument}: missing is {', '.join(FILLS)}, got '{fill}'")
    if len(between := options.get("separator", ",")) != 1 or between in '"\r\n':
        raise BadParameter(
            f"csv:{argument}: separator is one character, such as %3B (;), | or %09 (a tab);"
            f" got {between!r}"
        )
    if options.get("decimal", ",") != ",":
        raise BadParameter(
            f"csv:{argument}: decimal is a comma, %2C, as a point is always read; got"
            f" {options['decimal']!r}"
        )
    if "gap" in options and not (options["gap"].isdecimal() and options.get("time")):
        raise BadParameter(
            f"csv:{argument}: gap is a number of rows, beside time=COLUMN; got '{options['gap']}'"
        )
    return name, options


def under_our_names(
    path: Path, columns: dict[str, list[str]], options: dict[str, str]
) -> dict[str, list[str]]:
    """The columns, those that `client=` and `split=` name under these two names.

    Raises:
        UserError: there is no such column, or the name is another one's.
    """
    ours = {options[name].strip(): name for name in RESERVED if name in options}
    for theirs, name in ours.items():
        if theirs not in columns:
            raise damaged(path, f"?{name}={theirs}: it has {', '.join(columns)}")
        if theirs != name and name in columns:
            raise damaged(
                path, f"?{name}={theirs}: it has a column '{name}' too: give that one another name"
            )  # fmt: skip
    return {ours.get(name, name): values for name, values in columns.items()}


def listed(options: dict[str, str], option: str, columns: Container[str] = ()) -> list[str]:
    """The columns that an option names; the name of one of `columns` may have commas.

    Example:
        >>> listed({"leave": "a, last, first"}, "leave", ["last, first", "a"])
        ['a', 'last, first']
    """
    words, found = options.get(option, "").split(","), list[str]()
    while words:
        longest = (",".join(words[:count]).strip() for count in range(len(words), 1, -1))
        name = next((one for one in longest if one in columns), words[0].strip())
        words = words[name.count(",") + 1 :]
        found += [name] if name else []
    return found


def refuse_two_roles(what: str, columns: Container[str], options: dict[str, str]) -> None:
    """Refuse options of which one leaves another without effect.

    Raises:
        BadParameter: a column is left out, predicted, or says whose or when a sample is, and has
            another role, too.
    """
    alone = {one: listed(options, one, columns) for one in ("leave", "time", *RESERVED)}
    alone[LABEL] = listed(options, LABEL, columns) or [LABEL]
    features = {one: listed(options, one, columns) for one in ("use", "text")}
    for option, names in alone.items():
        for other, named in {**alone, **features}.items():
            if other != option and (both := [one for one in names if one in named]):
                raise BadParameter(
                    f"{what}: ?{option}={typed(both[0])} and ?{other}={typed(both[0])} exclude each"
                    " other: expected one of them"
                )


def read(path: Path, separator: str = ",") -> dict[str, list[str]]:
    """The columns of a file by name, texts without spaces around them."""
    try:
        text = text_in(path, LARGEST)
        lines = csv.reader(
            io.StringIO(text), strict=True, delimiter=separator, skipinitialspace=True
        )
        head, *rows = [row for row in lines if row] or [[]]
    except (ValueError, TypeError, csv.Error) as error:
        raise damaged(path, f"it is no table in UTF-8: {error}") from None
    names = [name.strip() for name in head]
    if names[:1] and names[0].lower().startswith("sep="):
        raise damaged(path, f"its first line is '{separator.join(head)}', no names: take it away")
    if len(names) == 1:
        for other, word in SEPARATORS.items():
            if other in names[0]:
                typed = "%09" if other == "\t" else "%3B" if other == ";" else other
                raise damaged(
                    path, f"its values are between {word}, expected commas: type"
                    f" 'csv:{path}?separator={typed}'"
                )  # fmt: skip
    if len({*names}) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise damaged(path, f"two columns have the same name, '{twice}': rename one of them")
    if "" in names and rows:
        raise damaged(
            path, f"column {names.index('') + 1} has no name, as the column of row numbers that"
            " data frames write: save it without (index=False), or give the column a name"
        )  # fmt: skip
    starts = [at for at, row in enumerate(rows, 1) if row[0].strip() == names[0]]
    again = next((at for at in starts if [*map(str.strip, rows[at - 1])] == names), 0)
    if again and len(names) > 1:
        raise damaged(
            path, f"row {again} has the names of the columns again, as where files were joined:"
            " take it away"
        )  # fmt: skip
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            shown = f"row {number} has {len(row)} values, expected {len(names)}"
            if number > 1:
                raise damaged(path, shown)
            raise damaged(
                path, f"{shown}, as the first line names the columns, and is"
                f" '{separator.join(head):.60}': take away lines above the names, and write one"
                " sign between names and between values"
            )  # fmt: skip
    if len(rows) < 2:
        raise damaged(path, "it needs two rows or more")
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(names)}


def in_order(
    path: Path, when: str, columns: dict[str, list[str]]
) -> tuple[dict[str, list[str]], list[float]]:
    """The rows in the order of a column of numbers, or of dates such as 2026-11-28, and its times.

    Raises:
        UserError: it says something else, or a value is missing.
    """
    if gone := [row for row, value in enumerate(columns[when], 1) if is_missing(value)]:
        raise damaged(path, f"column '{when}' has no time in row {gone[0]}: fill it in")
    moments: list[float] | None = numbers_of(columns[when])
    if moments is not None:
        refuse_unsorted(path, when, columns[when])
    else:
        try:
            dates = [datetime.fromisoformat(value) for value in columns[when]]
        except ValueError as error:
            raise damaged(
                path, f"column '{when}' must hold numbers or dates such as 2026-11-28: {error}"
            ) from None  # fmt: skip
        zones = [date.tzinfo is not None for date in dates]
        if len({*zones}) > 1:
            here, there = zones.index(True), zones.index(False)
            raise damaged(
                path, f"column '{when}' has a time zone in row {here + 1}"
                f" ('{columns[when][here]}') and none in row {there + 1}"
                f" ('{columns[when][there]}'): write all times with one, or all without"
            )  # fmt: skip
        start = datetime(1970, 1, 1, tzinfo=UTC if zones[0] else None)
        moments = [(date - start).total_seconds() for date in dates]
    order = np.argsort(moments, kind="stable").tolist()
    ordered = {name: [values[row] for row in order] for name, values in columns.items()}
    return ordered, [moments[row] for row in order]


def refuse_earlier_test(
    path: Path, when: str, moments: list[float], columns: dict[str, list[str]]
) -> None:
    """Refuse a test part that is not later than the training part of its client.

    Args:
        when: the column that says the times.
        moments: times of the rows, in order.
        columns: of the same rows; `split` is there, and `client` may be.

    Raises:
        UserError: a row of the test part is before one of the training part.
    """
    test = test_part(path, columns["split"], [])
    clients = columns.get("client", [""] * len(test))
    first: dict[str, float] = {}
    for moment, client, is_test in zip(moments, clients, test, strict=True):
        if is_test:
            first.setdefault(client, moment)
        elif first.get(client, moment) < moment:
            whose = f" of client {client}" if client else ""
            raise damaged(
                path, f"column 'split' puts rows{whose} into the test part that are before rows of"
                f" the training part by column {when}: expected what is later in the test part;"
                " type leave=split to divide by time, or leave out time="
            )  # fmt: skip


def refuse_unsorted(path: Path, when: str, values: list[str]) -> None:
    """Refuse numbers that are dates whose year comes last, as they do not sort in time.

    Raises:
        UserError: they are, such as 28112026 or 11.2026.
    """
    if all(map(YEAR_LAST.fullmatch, values)) and not all(map(YEAR_FIRST.match, values)):
        raise damaged(
            path, f"column '{when}' holds numbers such as {values[0]}, which end in the year and do"
            " not sort in time: write dates such as 2026-11-28"
        )  # fmt: skip


def without_gaps(
    path: Path, columns: dict[str, list[str]], features: dict[str, list[str]]
) -> tuple[dict[str, list[str]], dict[str, list[str]], int]:
    """The rows in which no feature is missing: all columns, the features, rows left out.

    Raises:
        UserError: none is left.
    """
    rows = len(next(iter(columns.values())))
    kept = [i for i in range(rows) if not any(is_missing(one[i]) for one in features.values())]
    if not kept:
        gaps = {name: sum(map(is_missing, one)) for name, one in features.items()}
        most = max(gaps, key=gaps.__getitem__)
        raise damaged(
            path, f"each row lacks a feature, most of them '{most}' ({gaps[most]} of {rows} rows):"
            f" expected rows without gaps; leave it out with ?leave={typed(most)}, or type"
            " missing=mean"
        )  # fmt: skip
    left = {name: [values[i] for i in kept] for name, values in columns.items()}
    return left, {name: left[name] for name in features}, rows - len(kept)


def test_part(path: Path, split: list[str], notes: list[str]) -> np.ndarray:
    """The mask of the test part, shape (m,), bool; notes what becomes of a validation part.

    Raises:
        UserError: a word names no part, or training or test part is not there.
    """
    words = parts_of({*split})
    if not words:
        came = ", ".join(sorted({*split}))
        raise damaged(path, f"column 'split' must say train and test, and no other; got {came}")
    if "validation" in words.values():
        notes.append("the validation part is in the training part: suites draw their own")
    return np.array([words[word] == "test" for word in split])
