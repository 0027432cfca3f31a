"""Loading: a data set by name, or through a door, by the rules of `--dataset`."""

from __future__ import annotations

import inspect
from pathlib import Path

from flbench.core.dataset import Dataset
from flbench.errors import BadParameter, FlbenchError, PluginError, in_one_line
from flbench.plugin.isolation import IsolatedPlugin
from flbench.plugin.process_state import SHARED
from flbench.plugin.registry import find, load_entry


def load_dataset(name: str, root: Path) -> Dataset:
    """Load a data set by name, or through a door: `npz:FILE` gives FILE to the door `npz`.

    Raises:
        UnknownName: nobody offers it.
        BadParameter: a door without an argument, or another with one.
        MissingData: its files are not under the root.
        PluginError: its function raises anything else.
    """
    entry, colon, argument = name.partition(":")
    load = load_entry(find("datasets", entry))
    door = is_door(load)
    if door and not argument:
        raise BadParameter(f"data set '{entry}' needs an argument, as in {entry}:...")
    if colon and not door:
        raise BadParameter(f"data set '{entry}' takes no argument, got '{argument}'")
    who = f"data set '{entry}'"
    try:
        with IsolatedPlugin(entry).acting(who, quiet=SHARED):  # imports may draw
            dataset: Dataset = load(root, argument) if door else load(root)
    except FlbenchError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{who} raised {in_one_line(error)}") from error
    return dataset


def is_door(load: object) -> bool:
    """Whether a data set's function takes an argument."""
    return callable(load) and len(inspect.signature(load).parameters) > 1
