"""Built-in data sets: functions `(root) -> Dataset`, entry points of group `flbench.datasets`.

A function `(root, argument) -> Dataset` is a door: `--dataset npz:FILE` gives it FILE.

`root` is the data root (`--data-root`, else the environment variable FLBENCH_DATA, else
`~/.cache/flbench`). A loader returns all samples pooled, training and test parts of the original
together: a suite makes its own splits.
"""

from __future__ import annotations

import os
from pathlib import Path


def data_root(given: Path | None = None) -> Path:
    """Where data sets are looked for."""
    return (given or Path(os.environ.get("FLBENCH_DATA") or "~/.cache/flbench")).expanduser()


def survey(root: Path, name: str, check: bool, fetch: bool) -> None:
    """Print what `flbench data` says."""
    from flbench.datasets.status import report

    print("\n".join(report(root, name, check, fetch)))
