"""Sizes of memory that a person types."""

from __future__ import annotations

import pytest

from flbench.engine.options import size
from flbench.errors import BadParameter


@pytest.mark.parametrize(
    ("text", "expected"), [("4096", 4096), ("8GB", 2**33), (" 1.5 mb", 1572864), ("2TiB", 2**41)]
)
def test_a_size_in_bytes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "x", "8 XB", "-1GB", "1e3", "9" * 18 + "GB", "9" * 400])
def test_what_is_no_size_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BadParameter, match=r"^expected a size [^\n]{1,120}$"):
        size(text)
