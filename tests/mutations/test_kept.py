"""The kept mutations still have their lines."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_kept_mutation_changes_a_line_that_is_there() -> None:
    text = Path(__file__).with_name("mutations.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) >= 150
    lost = [row["id"] for row in rows if row["before"] not in lines_of(ROOT / row["file"])]
    assert not lost, "point them to the line that does the same now"


def test_every_kept_mutation_has_tests_that_may_notice_it() -> None:
    program = runpy.run_path(str(Path(__file__).with_name("__main__.py")), run_name="mutations")
    tests = {test for one in program["kept"]() for test in one.tests}
    assert [test for test in tests if not (ROOT / test).exists()] == []


def lines_of(file: Path) -> list[str]:
    """The lines of a file without their indentation."""
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
