"""The kept mutations still have their lines."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_kept_mutation_changes_a_line_that_is_there() -> None:
    text = Path(__file__).with_name("mutations.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) >= 150
    lost = [row["id"] for row in rows if row["before"] not in lines_of(ROOT / row["file"])]
    assert not lost, "point them to the line that does the same now"


def lines_of(file: Path) -> list[str]:
    """The lines of a file without their indentation."""
    return [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
