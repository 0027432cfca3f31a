"""Whether a process is flbench's own, asked in that process; it imports nothing large."""

from __future__ import annotations

import os
from pathlib import Path

from flbench.engine.processes import own_process


def write_whether_own(path: str) -> None:
    """Write whether this process is flbench's own, and the mark that it was given."""
    mark = os.environ.get(own_process.MARK)
    Path(path).write_text(f"{own_process.is_own()} {mark}", encoding="utf-8")
