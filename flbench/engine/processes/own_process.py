"""Processes that are flbench's own: those of its commands, and those that these start.

There, parts of torch and torchmetrics run their code only when something of them is used, which
saves seconds of start-up (`core/deferred_dynamo.py`, `core/deferred_torchmetrics.py`). A process of
somebody else that imports flbench, or a module of it, keeps its modules as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from flbench.core import deferred_dynamo, deferred_torchmetrics

FINDERS = (deferred_dynamo.FINDER, deferred_torchmetrics.FINDER)
MARK = "FLBENCH_OWN_PROCESS"
"""Environment variable by which a process that this one starts knows that it is flbench's own."""


def defer_imports() -> None:
    """Make this process flbench's own; what it has imported already stays as it is."""
    sys.meta_path[:0] = [finder for finder in FINDERS if finder not in sys.meta_path]


def is_own() -> bool:
    """Whether this process is flbench's own."""
    return all(finder in sys.meta_path for finder in FINDERS)


def inherited() -> Mapping[str, str]:
    """Environment variables for a process that imports this module: it is as this one is."""
    return {MARK: "1"} if is_own() else {}


if os.environ.pop(MARK, None):
    defer_imports()
