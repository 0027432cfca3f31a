"""What fresh processes are asked for in tests; they import it by this name."""

from __future__ import annotations

import os


def place() -> list[str]:
    """Where a process of a group is told to meet the others."""
    return [os.environ["LOCAL_RANK"], os.environ["MASTER_ADDR"]]


def dies() -> None:
    """End without an answer."""
    os._exit(7)


def raises() -> None:
    """Refuse."""
    raise ValueError("expected more")
