"""Data sets of the Hugging Face hub: `hub:NAME?label=COLUMN&client=COLUMN` (extra `hub`).

Natural federations are there with a column that says who made a sample: FEMNIST
(`flwrlabs/femnist`, writer_id), and others of LEAF and of hospitals. The library `datasets` reads
them from its own cache, or from a folder on disk (`save_to_disk`, CSV or parquet files); a run
downloads nothing, and runs no script of a data set. The partition `natural` makes each client of
the column a client.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.columns import (
    groups_of,
    refuse_missing,
    stand_ins,
    taken_for_classes,
    targets_of,
    true_groups,
)
from flbench.datasets.files import (
    SIGNED,
    asked_kind,
    damaged,
    dark_notes,
    folder_and_size,
    in_range,
    narrowed,
    options_in,
    refuse_row_numbers,
    tokens_or_numbers,
)
from flbench.datasets.images import as_array, refuse_unseen, stacked
from flbench.datasets.parts import part_of
from flbench.datasets.windows import by_time
from flbench.errors import BadParameter, MissingData, UserError, in_one_line
from flbench.results.files import user_path
from flbench.tasks import TASKS, TaskName

ABOUT = {
    "hub": DatasetInfo(
        source="huggingface.co/datasets, or a folder of yours that `datasets` reads",
        licence="that of the data set",
        fetch=(
            "pip install flbench[hub], python -c \"import datasets; datasets.load_dataset('NAME')\""
            " once, then --dataset 'hub:NAME?label=COLUMN&client=COLUMN'"
        ),
    )
}
OPTIONS = ("label", "client", "group", "x", "size", "kind", "task")


def hub(root: Path, argument: str) -> Dataset:
    """A data set of the hub: hub:NAME?label=label&client=COLUMN&x=COLUMN; NAME or a folder.

    `x` is the column of samples: images, which are read as those of `images:` and resized to `size`
    x `size` pixels, or lists of numbers; by default the only such one. `group` is the column of the
    true group of each client. `task` says what is
    predicted: classes, numbers or labels, of which a sample has any number (words between ;, lists,
    or a column of 0 and 1 for each, label=A,B). Splits named by words for
    parts are the parts; validation is joined to training, and any others are left out.

    Raises:
        MissingData: the library or the data set is not there.
        UserError: a column does not fit.
    """
    name, _, query = argument.partition("?")
    options = options_in(f"hub:{argument}", query)
    if unknown := [key for key in options if key not in OPTIONS]:
        raise BadParameter(f"hub:{argument}: expected {', '.join(OPTIONS)}, got {unknown[0]}")
    splits = loaded(name)
    named = [(part_of(split), split) for split in splits]
    train = [split for part, split in named if part in ("train", "validation")]
    tested = [split for part, split in named if part == "test"]
    if not any(part == "train" for part, _ in named):
        raise damaged(Path(name), f"it needs a split 'train', got {', '.join(splits)}")
    notes = [
        f"split {split} is in the training part" for split in train if part_of(split) != "train"
    ]
    notes += [f"split {split} is left out" for part, split in named if not part]
    parts = [splits[split] for split in [*train, *tested]]
    columns = list(parts[0].column_names)
    targets, client = options.get("label", "label").split(","), options.get("client")
    group = options.get("group")
    if group is not None and client is None:
        raise BadParameter(f"hub:{argument}: group is the true group of each client: say client=")
    kind = asked_kind(f"hub:{argument}", options)
    task = cast("TaskName", options.get("task", "classes"))
    if task not in TASKS:
        raise BadParameter(f"hub:{argument}: task is {', '.join(TASKS)}, got '{task}'")
    x = options.get("x") or sample_column(name, parts[0], [*targets, client, group])
    for asked in (*targets, client, group, x):
        if asked is not None and asked not in columns:
            raise damaged(Path(name), f"it has no column '{asked}', but {', '.join(columns)}")
    same_columns(
        name, {split: splits[split] for split in [*train, *tested]},
        [asked for asked in (*targets, client, group, x) if asked is not None],
    )  # fmt: skip
    values = [value for part in parts for value in part[x]]
    samples = as_samples(name, x, values, options, kind)
    if hasattr(values[0], "getbands"):
        notes += dark_notes(round(float(samples.max()) * 127.5 + 127.5))
    columns_of_targets = {
        label: named_labels(parts[0], label, [value for part in parts for value in part[label]])
        for label in targets
    }
    found = targets_of(Path(name), task, columns_of_targets)
    if task == "classes":
        notes += taken_for_classes(targets[0], columns_of_targets[targets[0]])
    if task != "labels":
        notes += [
            note
            for label in targets
            for note in stand_ins(label, columns_of_targets[label], "leave these rows out")
        ]
    y = found.y
    domains: torch.Tensor | None = None
    clients: tuple[str, ...] = ()
    if client is not None:
        owners = [value for part in parts for value in part[client]]
        domains, clients = groups_of(Path(name), client, owners, "client")
    groups: torch.Tensor | None = None
    group_names: tuple[str, ...] = ()
    if group is not None and domains is not None:
        said = [value for part in parts for value in part[group]]
        remedy = "leave group= out of the options"
        groups, group_names = true_groups(Path(name), group, said, domains, clients, remedy)
    sizes = sum(len(splits[split]) for split in train)
    test = torch.arange(len(y)) >= sizes if tested else None
    data = Dataset(
        f"hub:{argument}", samples, y, found.count, domains, test,
        label_names=(
            names_of(parts[0], targets[0], found.names) if task == "classes" else found.names
        ), domain_names=clients, notes=tuple(notes), keeps_test=True,
        domain_groups=groups, group_names=group_names, task=task,
    )  # fmt: skip
    data = by_time(data, samples.numpy()) if samples.ndim < 4 else data
    if data.gap is None and samples.is_floating_point():
        refuse_row_numbers(Path(name), f"column '{x}'", samples)
    return data


def same_columns(name: str, splits: Mapping[str, Any], columns: Sequence[str]) -> None:
    """All splits have the columns, with labels numbered alike.

    Raises:
        UserError: one has not.
    """
    first, *others = splits.items()
    for split, part in others:
        for column in columns:
            if column not in part.column_names:
                raise damaged(
                    Path(name), f"split {split} has no column '{column}', as {first[0]} has, but"
                    f" {', '.join(part.column_names)}: give its columns the same names"
                )  # fmt: skip
            names = [getattr(one.features[column], "names", None) for one in (first[1], part)]
            if names[0] != names[1]:
                raise damaged(
                    Path(name), f"column '{column}' numbers its labels in another way in split"
                    f" {split} ({names[1]}) than in {first[0]} ({names[0]}): cast one of them"
                )  # fmt: skip


def names_of(part: Any, column: str, found: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ANN401 - a split
    """The names of labels, as the library has them where they are numbered."""
    names = getattr(part.features[column], "names", None)
    return tuple(names[int(number)] for number in found) if names else found


def named_labels(part: Any, column: str, values: list[Any]) -> list[Any]:  # noqa: ANN401 - a split
    """Labels with -1 as None where the library says that this number stands for no label."""
    if type(part.features[column]).__name__ != "ClassLabel":
        return values
    return [None if value == -1 else value for value in values]


def loaded(name: str) -> dict[str, Any]:
    """The splits of a data set in the library's cache, or of a folder.

    Raises:
        MissingData: the library or the data set is not there.
        UserError: it has a script, which would run.
    """
    try:
        import datasets
    except ImportError:
        raise MissingData(
            f"data set 'hub:{name}' is read by `datasets`: pip install flbench[hub]"
        ) from None
    folder, online = user_path(name), datasets.config.HF_HUB_OFFLINE
    if name.endswith(".py") or any(folder.glob("*.py")):
        raise UserError(
            f"data set 'hub:{name}' has a script, which flbench does not run: keep its samples as"
            " parquet or CSV files"
        )
    datasets.config.HF_HUB_OFFLINE = True
    try:
        if (folder / "dataset_dict.json").is_file():
            return dict(datasets.load_from_disk(str(folder)))
        if (folder / "state.json").is_file():
            return {"train": datasets.load_from_disk(str(folder))}
        asks = "trust_remote_code" in inspect.signature(datasets.load_dataset).parameters
        refusing = {"trust_remote_code": False} if asks else {}  # from version 4 it runs no script
        return dict(datasets.load_dataset(str(folder) if folder.is_dir() else name, **refusing))
    except Exception as error:  # whatever the library raises, for a name that it does not have too
        raise MissingData(
            f"data set 'hub:{name}' is not in the cache of `datasets`: {in_one_line(error)}; fetch"
            f" it with {fetching(name)}"
        ) from None
    finally:
        datasets.config.HF_HUB_OFFLINE = online


def fetching(name: str) -> str:
    """The command that fetches a data set; a name holds what it may.

    Example:
        >>> print(fetching("a'); import evil; ('"))
        python -c 'import datasets; datasets.load_dataset("a'"'"'); import evil; ('"'"'")'
    """
    return shlex.join(["python", "-c", f"import datasets; datasets.load_dataset({name!r})"])


def sample_column(name: str, part: Any, others: Sequence[str | None]) -> str:  # noqa: ANN401 - a split
    """The only column that holds images or lists of numbers."""
    first = part[0]
    found = [
        column
        for column in part.column_names
        if column not in others
        and (hasattr(first[column], "size") or (isinstance(first[column], list) and first[column]))
    ]
    if not found:
        raise damaged(Path(name), as_table(name, part.column_names))
    if len(found) > 1:
        columns = ", ".join(found)
        raise damaged(Path(name), f"expected one column of samples, got {columns}: say x=COLUMN")
    return str(found[0])


def as_table(name: str, columns: Sequence[str]) -> str:
    """Why a table is no data set for this door, and what to type."""
    code = f"import datasets; datasets.load_dataset({name!r})['train'].to_csv('mine.csv')"
    return (
        f"its columns ({', '.join(columns)}) hold one value each, as a table: expected a column of"
        f" images or lists; type {shlex.join(['python', '-c', code])}, name its columns label and"
        " client, then --dataset csv:mine.csv"
    )


def as_samples(
    name: str,
    column: str,
    values: Sequence[Any],
    options: Mapping[str, str],
    kind: str | None = None,
) -> torch.Tensor:
    """Images as (m, channels, height, width) in -1..1, lists of numbers as (m, ...), float32.

    Lists of tokens stay whole numbers.
    """
    refuse_missing(Path(name), column, values, "sample")
    if hasattr(values[0], "getbands"):
        refuse_option("kind", kind, f"column '{column}' holds pictures")
        return pictures(name, column, values, options.get("size"))
    refuse_option("size", options.get("size"), f"column '{column}' holds no pictures")
    try:
        table = np.stack([np.asarray(value) for value in values])
        if table.dtype.kind not in "iu":
            refuse_option("kind", kind, f"column '{column}' holds no whole numbers")
        if table.ndim == 2 and table.dtype.kind in "iu":
            return tokens_or_numbers(Path(name), f"column '{column}'", table, kind)
        if table.dtype.kind not in "biuf":
            table = table.astype(np.float32)
        table = narrowed(Path(name), f"column '{column}'", table)
    except (ValueError, TypeError) as error:
        raise damaged(
            Path(name), f"column '{column}' must hold images or numbers of one shape: {error}"
        ) from None
    if table.ndim < 2:
        raise damaged(Path(name), as_table(name, [column]))
    if not np.isfinite(table).all():
        raise damaged(Path(name), f"column '{column}' has values that are not finite")
    return torch.from_numpy(np.ascontiguousarray(table))


def refuse_option(option: str, value: str | None, why: str) -> None:
    """Refuse an option that would have no effect.

    Raises:
        BadParameter: it is there.
    """
    if value is not None:
        raise BadParameter(f"?{option}={value} has no effect: {why}; leave it out")


def pictures(name: str, column: str, values: Sequence[Any], size: str | None) -> torch.Tensor:
    """Pictures of the library Pillow, scaled as those of `images:`."""
    _, pixels = folder_and_size(f"hub@{size}" if size else "hub", "hub")
    arrays = []
    for row, value in enumerate(values, 1):
        try:
            arrays.append(as_array(value, pixels))
        except (AttributeError, ValueError, OSError) as error:
            raise damaged(Path(name), f"column '{column}', row {row}: {error}") from None
        if arrays[-1].shape[:2] != arrays[0].shape[:2]:
            (height, width), (first_height, first_width) = arrays[-1].shape[:2], arrays[0].shape[:2]
            raise damaged(
                Path(name), f"row {row} is {width}x{height}, row 1 is {first_width}x{first_height}:"
                " images must be of one size, or be resized with size=PIXELS"
            )  # fmt: skip
    found = stacked(arrays)
    refuse_unseen(Path(name), found)
    return in_range(found, SIGNED)
