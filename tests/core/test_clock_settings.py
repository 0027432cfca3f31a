"""Traces: one row per client, in files of any editor."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest
from mentions import mention

from flbench.core.clock_settings import read_trace
from flbench.errors import BadParameter


def test_a_trace_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(codecs.BOM_UTF8 + b"client,down\r\n1,5\r\n0,2.5\r\n")
    assert read_trace(path, "down") == [2.5, 5.0]
    path.write_bytes(b"client,up\n0,5\n")
    with pytest.raises(BadParameter, match=mention("client", "down")):
        read_trace(path, "down")
