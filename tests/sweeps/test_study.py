"""Files of studies."""

from __future__ import annotations

import codecs
from pathlib import Path

from flbench.sweeps.study import read_grid


def test_a_study_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    plain = Path("benchmarks/studies/fedc2i-gamma.toml")
    marked = tmp_path / "mine.toml"
    marked.write_bytes(codecs.BOM_UTF8 + plain.read_bytes())
    assert read_grid(marked) == read_grid(plain)
