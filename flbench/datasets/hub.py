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
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.files import damaged, numbered
from flbench.errors import BadParameter, MissingData, UserError, in_one_line
from flbench.results.files import user_path

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
OPTIONS = ("label", "client", "x")


def hub(root: Path, argument: str) -> Dataset:
    """A data set of the hub: hub:NAME?label=label&client=COLUMN&x=COLUMN; NAME or a folder.

    `x` is the column of samples: images or lists of numbers; by default the only such one. The
    splits `train` and `test` are the parts; any others are left out.

    Raises:
        MissingData: the library or the data set is not there.
        UserError: a column does not fit.
    """
    name, _, query = argument.partition("?")
    options = dict(parse_qsl(query))
    if unknown := [key for key in options if key not in OPTIONS]:
        raise BadParameter(f"hub:{argument}: expected {', '.join(OPTIONS)}, got {unknown[0]}")
    splits = loaded(name)
    parts = [splits[split] for split in ("train", "test") if split in splits]
    if not parts:
        raise damaged(Path(name), f"it needs a split 'train', got {', '.join(splits)}")
    columns = list(parts[0].column_names)
    label, client = options.get("label", "label"), options.get("client")
    x = options.get("x") or sample_column(name, parts[0], [label, client])
    for asked in (label, client, x):
        if asked is not None and asked not in columns:
            raise damaged(Path(name), f"it has no column '{asked}', but {', '.join(columns)}")
    samples = torch.cat([as_samples(name, x, part[x]) for part in parts])
    y, classes = numbered([value for part in parts for value in part[label]])
    domains = None
    if client is not None:
        domains, _ = numbered([value for part in parts for value in part[client]])
    test = torch.arange(len(y)) >= len(parts[0]) if len(parts) > 1 else None
    return Dataset(f"hub:{argument}", samples, y, classes, domains, test)


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
    if len(found) != 1:
        columns = ", ".join(found) or "none"
        raise damaged(Path(name), f"expected one column of samples, got {columns}: say x=COLUMN")
    return str(found[0])


def as_samples(name: str, column: str, values: Any) -> torch.Tensor:  # noqa: ANN401 - a column
    """Images as (m, channels, height, width) in 0..1, lists of numbers as (m, ...).

    Images of 16-bit grey levels are arrays of uint16.
    """
    try:
        arrays = [np.asarray(value) for value in values]
        table = np.stack(arrays).astype(np.float32)
    except (ValueError, TypeError) as error:
        raise damaged(
            Path(name), f"column '{column}' must hold images or numbers of one shape: {error}"
        ) from None
    if arrays[0].dtype in (np.uint8, np.uint16):
        table /= np.iinfo(arrays[0].dtype).max
        table = table[:, None] if table.ndim == 3 else table.transpose(0, 3, 1, 2)
    if not np.isfinite(table).all():
        raise damaged(Path(name), f"column '{column}' has values that are not finite")
    return torch.from_numpy(np.ascontiguousarray(table))
