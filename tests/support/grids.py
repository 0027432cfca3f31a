"""Small grids of runs, their results, and the processes that they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flbench.results.files import files_below
from flbench.results.schema import VOLATILE

QUICK = (
    "--executor", "sequential",  # cells one at a time, also those of several seeds
    "--rounds", "2", "--set", "clients=10",
)  # fmt: skip
GRID = ("-p", "fedavg,local-only", "-s", "iid", "--seeds", "2", *QUICK)


def results(folder: Path) -> list[Path]:
    """The result files below a folder, also while a run writes there: `rglob` would fail."""
    return files_below(folder, "seed-*.json")


def stable(folder: Path) -> dict[str, dict[str, Any]]:
    """All results below a folder, without what differs between two runs of the same."""
    return {
        str(path.relative_to(folder)): {
            key: value for key, value in json.loads(path.read_text()).items() if key not in VOLATILE
        }
        for path in results(folder)
    }


def begun(out: Path) -> list[Path]:
    """Checkpoints of cells that have no result yet; a killed one may leave both for a moment."""
    found = files_below(out, "*.checkpoint.safetensors")
    return [p for p in found if not p.with_name(f"{p.name.partition('.')[0]}.json").is_file()]


def alive(mark: str) -> list[str]:
    """Command lines of all processes that inherited a mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
