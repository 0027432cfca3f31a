"""The kept mutations still have their code and tests."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_every_kept_mutation_has_its_code_and_its_tests() -> None:
    kept = runpy.run_path(str(Path(__file__).with_name("__main__.py")), run_name="m")["kept"]()
    assert len(kept) >= 150
    assert len({one.name for one in kept}) == len(kept)
    tests = {test for one in kept for test in one.tests}
    assert [test for test in tests if not (ROOT / test).exists()] == []


def test_one_that_is_lost_is_named(tmp_path: Path) -> None:
    program = runpy.run_path(str(Path(__file__).with_name("__main__.py")), run_name="m")
    row = {"id": "x-01", "file": "flbench/errors.py", "symbol": "", "before": "nil", "after": "0"}
    (tmp_path / "mutations.jsonl").write_text(json.dumps(row), encoding="utf-8")
    kept = program["kept"]
    kept.__globals__["HERE"] = tmp_path
    with pytest.raises(SystemExit) as stopped:
        kept()
    assert "x-01" in str(stopped.value)
    assert "flbench/errors.py" in str(stopped.value)
