"""The kept mutations still have their code and tests."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from mentions import mention

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_kept_mutation_has_its_code_and_its_tests() -> None:
    kept = runpy.run_path(str(Path(__file__).with_name("__main__.py")), run_name="m")["kept"]()
    assert len(kept) >= 150
    assert len({one.name for one in kept}) == len(kept)
    tests = {test for one in kept for test in one.tests}
    assert [test for test in tests if not (ROOT / test).exists()] == []


@pytest.mark.parametrize(
    ("file", "near"), [("flbench/errors.py", "LONGEST"), ("flbench/erors.py", "flbench/errors.py")]
)
def test_one_that_is_lost_is_named_with_what_is_near(file: str, near: str, tmp_path: Path) -> None:
    kept = runpy.run_path(str(Path(__file__).with_name("__main__.py")), run_name="m")["kept"]
    kept.__globals__["HERE"] = tmp_path
    row = {"id": "x-01", "file": file, "symbol": "", "before": "LONGESTS = 1", "after": "0"}
    (tmp_path / "mutations.jsonl").write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(SystemExit, match=mention("x-01", file, near)):
        kept()
