"""Load a data set by the name that `--dataset` gives."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.errors import BadParameter, MissingData, PluginError, UserError, warn_once
from flbench.plugin.isolation import produced
from flbench.plugin.registry import entries, find, load_entry
from flbench.tasks import TaskName

MOST_ALL_DIFFERENT = 100
"""Most samples, as of a sample of CIFAR-100, that may each have a class of their own."""
TYPES: Mapping[TaskName, tuple[torch.dtype, ...]] = {
    "classes": (torch.int64,),
    "numbers": (torch.float32,),
    "labels": (torch.int64, torch.bool),
}
"""Types of the targets of a data set, by its task."""


def load_dataset(name: str, root: Path) -> Dataset:
    """Load a data set by name; `npz:FILE` calls the data set `npz` with the argument FILE.

    `digit-5[mnist,usps]` is a part of `digit-5`: the one that it gives where the files of no other
    domains are there.

    Raises:
        UnknownName: no installed package has this data set.
        BadParameter: the argument is missing, or is given to a data set that takes none.
        MissingData: its files are not under the root, or they give another part.
        PluginError: its function raises anything else, or gives what is no such data set.
    """
    entry = entry_name(name)
    whole, colon, argument = name.partition(":")
    load = load_entry(find("datasets", entry))
    has_argument = takes_argument(load)
    if has_argument and not argument:
        raise BadParameter(f"data set '{entry}' needs an argument, as in {entry}:...")
    if colon and not has_argument:
        raise BadParameter(f"data set '{entry}' takes no argument, got '{argument}'")
    owner = f"data set '{entry}'"
    arguments = (root, argument) if has_argument else (root,)
    dataset = produced(entry, owner, Dataset, lambda: load(*arguments))
    check(owner, dataset)
    if whole == entry and not argument:
        _tell_of_another_count(entry, load, root, len(dataset.y))
    if whole != entry and dataset.name != name:
        raise MissingData(f"'{name}' is asked for, the files under {root} give '{dataset.name}'")
    return dataset


def _tell_of_another_count(name: str, load: object, root: Path, count: int) -> None:
    """Warn where files that should be whole give another number of samples than it has."""
    if load.__module__ not in sys.modules:
        return
    about, find_files = of(load, "ABOUT", name), of(load, "FOUND", name)
    if not isinstance(about, DatasetInfo) or about.samples in (0, count):
        return
    found = find_files(root) if callable(find_files) else None
    if found is not None and not found.whole:
        return
    warn_once(
        f"{name}: the files under {root} give {count:,} samples, the complete data set has"
        f" {about.samples:,}: is one of them another file?"
    )


def entry_name(name: str) -> str:
    """The installed data set that a name is of.

    Raises:
        BadParameter: it is the path of a file or folder, and says not what this holds.

    Example:
        >>> entry_name("npz:FILE"), entry_name("digit-5[mnist,usps]")
        ('npz', 'digit-5')
    """
    entry, colon, _ = name.partition(":")
    known = entries("datasets")
    path = Path(entry.partition("?")[0])
    kind = path.suffix[1:].lower()
    if not colon and entry not in known:
        if kind in known:
            raise BadParameter(f"data set: '{name}' is a file: type {kind}:{name}")
        if path.is_dir() or path.is_file():
            raise BadParameter(
                f"data set: '{name}' is a path: say what it holds, as in csv:{name}, images:{name}"
                f" or text:{name} (flbench data lists all)"
            )
    return entry.partition("[")[0] if entry.endswith("]") else entry


def of(load: object, constant: str, name: str) -> Any:  # noqa: ANN401 - as the constant is
    """The entry of one data set in a table of its loader's module, or None."""
    table = getattr(sys.modules[load.__module__], constant, None)
    return table.get(name) if isinstance(table, dict) else table


def chain(name: str) -> list[str]:
    """The installed data sets that load a data set of this name, that of the name first.

    Example:
        >>> chain("rotated:npz:mine.npz"), chain("digit-5[mnist,usps]"), chain("csv:digits")
        (['rotated', 'npz'], ['digit-5'], ['csv'])
    """
    found = [entry_name(name)]
    while _is_derived(found[-1]) and (name := name.partition(":")[2]):
        found.append(entry_name(name))
    return found


def opens_argument(name: str) -> bool:
    """Whether loading a data set opens what its name says, a path or a data set of the hub.

    Example:
        >>> opens_argument("npz:npz"), opens_argument("rotated:csv:a"), opens_argument("rotated:a")
        (True, True, False)
    """
    while ":" in name:
        if not _is_derived(entry_name(name)):
            return True
        name = name.partition(":")[2]
    return False


def _is_derived(name: str) -> bool:
    """Whether the argument of an installed data set is the name of another one."""
    known = entries("datasets").get(name)
    about = None if known is None else of(load_entry(known), "ABOUT", name)
    return about is not None and about.derived


def takes_argument(load: object) -> bool:
    """Whether a data set's function takes an argument beside the data root."""
    return callable(load) and len(inspect.signature(load).parameters) > 1


def check(owner: str, dataset: Dataset) -> None:
    """The tensors of a data set have the types, lengths and labels that `Dataset` promises.

    Raises:
        PluginError: they have not; the message names the owner.
    """
    if dataset.task not in TYPES:
        raise PluginError(f"{owner}: task is {dataset.task!r}, expected {', '.join(TYPES)}")
    fields = {
        "x": (dataset.x, (torch.float32, torch.int64)),
        "y": (dataset.y, TYPES[dataset.task]),
        "domains": (dataset.domains, (torch.int64,)),
        "test": (dataset.test, (torch.bool,)),
    }
    samples = len(dataset.x) if isinstance(dataset.x, Tensor) and dataset.x.ndim else 0
    for name, (tensor, types) in fields.items():
        if tensor is None and name in ("domains", "test"):
            continue
        expected = f"{' or '.join(map(str, types))} with one entry for each sample"
        if not isinstance(tensor, Tensor):
            raise PluginError(f"{owner}: {name} is {type(tensor).__name__}, expected {expected}")
        if tensor.dtype not in types or tensor.ndim == 0 or len(tensor) != samples:
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise PluginError(f"{owner}: {name} is {got}, expected {expected}")
        if tensor.requires_grad:
            raise PluginError(f"{owner}: {name} takes a gradient, expected plain data (detach())")
    if not samples:
        raise PluginError(f"{owner} has no samples")
    if dataset.task == "classes":
        low, high = int(dataset.y.min()), int(dataset.y.max())
        if low < 0 or high >= dataset.classes:
            raise PluginError(
                f"{owner}: y holds labels {low}..{high}, expected 0..{dataset.classes - 1}"
            )
    if dataset.test is not None and bool(dataset.test.all()):
        raise PluginError(f"{owner}: test marks all samples, expected some to train on")
    check_domains(owner, dataset)
    if dataset.gap is not None and not (isinstance(dataset.gap, int) and dataset.gap >= 0):
        raise PluginError(f"{owner}: gap is {dataset.gap!r}, expected a whole number from 0")
    check_groups(owner, dataset)
    check_inputs(owner, dataset)
    check_targets[dataset.task](owner, dataset)


def check_domains(owner: str, dataset: Dataset) -> None:
    """Domains are numbered from 0, and names are as many as there are numbers.

    Raises:
        PluginError: they are not.
    """
    numbered = {"domain_names": 0, "label_names": dataset.classes}
    if dataset.domains is not None:
        if (low := int(dataset.domains.min())) < 0:
            raise PluginError(f"{owner}: domains hold {low}, expected 0 or more")
        numbered["domain_names"] = int(dataset.domains.max()) + 1
    for name, count in numbered.items():
        came = len(getattr(dataset, name))
        if came and came != count:
            raise PluginError(f"{owner}: {came} {name}, expected {count} or none")


def check_inputs(owner: str, dataset: Dataset) -> None:
    """Inputs are finite, but for NaN in columns in which it becomes a mean: scaled and filled ones.

    Raises:
        UserError: they are not.
    """
    x = dataset.x
    if not x.is_floating_point() or bool(x.sum(dtype=torch.float64).isfinite()):
        return
    wrong = ~x.isfinite()
    if columns := [*dataset.scaled, *dataset.filled]:
        wrong[:, columns] = x[:, columns].isinf()
    if bool(wrong.any()):
        row = int(wrong.flatten(1).any(dim=1).nonzero()[0, 0])
        raise UserError(
            f"{owner}: x of sample {row} is not finite: expected numbers; columns in which values"
            " are missing (NaN) are named in `scaled` or `filled`"
        )


def check_groups(owner: str, dataset: Dataset) -> None:
    """Columns that are scaled are there, and each domain has one of the true groups.

    Raises:
        PluginError: they are not, or it has not.
    """
    width = dataset.x.shape[1] if dataset.x.ndim == 2 else 0
    named = (*dataset.scaled, *dataset.filled)
    wrong = [one for one in named if not 0 <= one < width] or len({*named}) < len(named)
    if wrong or (named and not dataset.x.is_floating_point()):
        shape = tuple(dataset.x.shape)
        raise PluginError(
            f"{owner}: scaled and filled name columns of x in float32, each once, got x of {shape}"
        )
    groups, domains = dataset.domain_groups, dataset.domains
    if groups is None:
        return
    count = 0 if domains is None else int(domains.max()) + 1
    if groups.dtype != torch.int64 or tuple(groups.shape) != (count,):
        got = f"{groups.dtype} of shape {tuple(groups.shape)}"
        raise PluginError(
            f"{owner}: domain_groups is {got}, expected int64, one of {count} domains"
        )


def check_columns(owner: str, dataset: Dataset) -> Tensor:
    """The targets as a table, shape (m, k), with one column for each output.

    Raises:
        PluginError: they have another shape, or another number of names.
    """
    y = dataset.y[:, None] if dataset.y.ndim == 1 and dataset.task == "numbers" else dataset.y
    if y.ndim != 2 or y.shape[1] != dataset.classes:
        shape = f"(m, {dataset.classes})"
        raise PluginError(
            f"{owner}: y is of shape {tuple(dataset.y.shape)}, expected {shape} for {dataset.task}"
        )
    if dataset.label_names and len(dataset.label_names) != dataset.classes:
        names = len(dataset.label_names)
        raise PluginError(f"{owner}: {names} label_names, expected {dataset.classes}, as columns")
    return y


def named(dataset: Dataset, column: int) -> str:
    """What a column of targets is called."""
    return dataset.label_names[column] if dataset.label_names else str(column)


def check_numbers(owner: str, dataset: Dataset) -> None:
    """The targets of a data set are numbers, one or several for each sample.

    Raises:
        UserError: they are not finite, or all samples have the same.
    """
    y = check_columns(owner, dataset)
    if not bool(y.isfinite().all()):
        row = int((~y.isfinite()).any(dim=1).nonzero()[0, 0])
        raise UserError(f"{owner}: a target of sample {row} is not finite: expected numbers")
    for column, (low, high) in enumerate(zip(y.amin(dim=0), y.amax(dim=0), strict=True)):
        if low == high:
            raise UserError(
                f"{owner}: target '{named(dataset, column)}' is {float(low):g} for all samples:"
                " expected two values or more"
            )


def check_labels(owner: str, dataset: Dataset) -> None:
    """The targets of a data set say of each label whether a sample has it.

    Raises:
        UserError: they hold something else than 0 and 1, or nobody or everybody has a label.
    """
    y = check_columns(owner, dataset)
    low, high = int(y.min()), int(y.max())
    if low < 0 or high > 1:
        raise UserError(f"{owner}: y holds {low}..{high}, expected 0 or 1 for each label")
    for column, count in enumerate(y.sum(dim=0).tolist()):
        if count in (0, len(y)):
            who = "no sample has" if count == 0 else "all samples have"
            raise UserError(
                f"{owner}: {who} label '{named(dataset, column)}': expected some of them"
            )


def check_classes(owner: str, dataset: Dataset) -> None:
    """The targets of a data set are classes, or the tokens that follow each token of a text.

    Raises:
        UserError: they are something else: masks, numbers that are measured, ids, one label only.
    """
    x, y = dataset.x, dataset.y
    if y.ndim > 1:
        if y.shape != x.shape or x.dtype != torch.int64:
            raise UserError(
                f"{owner}: its targets are of shape {tuple(y.shape[1:])} for samples of"
                f" {tuple(x.shape[1:])}, such as masks or several labels: expected one class for"
                " each sample, or of a text the tokens that follow"
            )
        if not 0 <= int(x.min()) <= int(x.max()) < dataset.classes:
            raise UserError(
                f"{owner}: its tokens are {int(x.min())}..{int(x.max())}, expected"
                f" 0..{dataset.classes - 1}, as its targets are"
            )
        return
    if x.dtype == torch.int64 and int(x.min()) < 0:
        raise UserError(f"{owner}: a token is {int(x.min())}, expected whole numbers from 0")
    found = len(y.unique())
    if found == 1:
        raise UserError(f"{owner}: all of its samples have the same label: expected two or more")
    if found == len(y) > MOST_ALL_DIFFERENT:
        raise UserError(
            f"{owner}: each of its {len(y):,} samples has a label of its own, as an id or a number"
            " that is measured has: expected classes"
        )


check_targets: Mapping[TaskName, Callable[[str, Dataset], None]] = {
    "classes": check_classes,
    "numbers": check_numbers,
    "labels": check_labels,
}
"""What checks the targets of a data set, by its task."""
