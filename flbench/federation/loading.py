"""Load a data set by the name that `--dataset` gives."""

from __future__ import annotations

import inspect
from pathlib import Path

from flbench.core.dataset import Dataset
from flbench.errors import BadParameter, FlbenchError, MissingData, PluginError, in_one_line
from flbench.plugin.isolation import SHARED, IsolatedPlugin
from flbench.plugin.registry import find, load_entry


def load_dataset(name: str, root: Path) -> Dataset:
    """Load a data set by name; `npz:FILE` calls the data set `npz` with the argument FILE.

    `digit-5[mnist,usps]` is a part of `digit-5`: the one that it gives where the files of no other
    domains are there.

    Raises:
        UnknownName: no installed package has this data set.
        BadParameter: the argument is missing, or is given to a data set that takes none.
        MissingData: its files are not under the root, or they give another part.
        PluginError: its function raises anything else.
    """
    entry, colon, argument = name.partition(":")
    whole, bracket, _ = entry.partition("[")
    entry = whole if entry.endswith("]") else entry
    load = load_entry(find("datasets", entry))
    has_argument = takes_argument(load)
    if has_argument and not argument:
        raise BadParameter(f"data set '{entry}' needs an argument, as in {entry}:...")
    if colon and not has_argument:
        raise BadParameter(f"data set '{entry}' takes no argument, got '{argument}'")
    owner = f"data set '{entry}'"
    try:
        with IsolatedPlugin(entry).acting(owner, quiet=SHARED):  # imports may draw random numbers
            dataset: Dataset = load(root, argument) if has_argument else load(root)
    except FlbenchError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{owner} raised {in_one_line(error)}") from error
    if bracket and dataset.name != name:
        raise MissingData(f"'{name}' is asked for, the files under {root} give '{dataset.name}'")
    return dataset


def takes_argument(load: object) -> bool:
    """Whether a data set's function takes an argument beside the data root."""
    return callable(load) and len(inspect.signature(load).parameters) > 1
