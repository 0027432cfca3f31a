"""Built-in data sets: functions `(root) -> Dataset`, entry points of group `flbench.datasets`.

A function `(root, argument) -> Dataset` takes an argument: `--dataset npz:FILE` passes it FILE.

`root` is the data root (`--data-root`, else the environment variable FLBENCH_DATA, else
`~/.cache/flbench`). A loader returns all samples, training and test part of the original together,
because a suite makes its own splits; it raises MissingData if its files are not there, and
UserError if they are damaged. `files` and `image_folder` read files; `status` is the report of
`flbench data`.
"""

from __future__ import annotations

import os
from pathlib import Path

from flbench.errors import UserError
from flbench.results.files import user_path


def data_root(given: Path | None = None) -> Path:
    """The folder of the data sets' files.

    Raises:
        UserError: nothing says where it is.
    """
    try:
        return user_path(given or os.environ.get("FLBENCH_DATA") or "~/.cache/flbench")
    except UserError as error:
        raise UserError(f"data root {error}, as --data-root or in FLBENCH_DATA") from None
