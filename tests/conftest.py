"""Fixtures of all tests; what they are made of is in `toy.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy import Play, player


@pytest.fixture
def play_toy(tmp_path: Path) -> Play:
    """See `toy.player`."""
    return player(tmp_path)
