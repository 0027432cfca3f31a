"""The script of one card: cells have limits, what does not fit is said, and it can be resumed."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flbench.engine.lanes import phase
from flbench.errors import UserError
from flbench_benchmarks.speed import one_card
from flbench_benchmarks.speed.interleaved import Program, ProgramFailed
from flbench_benchmarks.speed.one_card import Cell, Settings
from flbench_benchmarks.speed.workload import Workload

DRY = Settings("cpu", 2, dry=True)
PLAYER = (
    "import os\n"
    'print(\'{"seconds": 0.5, "lock": false}\', flush=True)\n'
    "for number in range(9):\n"
    "    os.read(0, 1) or os._exit(0)\n"
    "    number < STOPS or os._exit(1)\n"
    "    print('{\"seconds\": %d}' % (number + 1), flush=True)\n"
)


def player(stops: int = 9) -> Program:
    """Says that its rounds take 1, 2, ... seconds, and ends after some."""
    return Program("player", [sys.executable, "-c", f"STOPS = {stops}\n{PLAYER}"])


def cell(name: str, program: Any = player, warm: int = 1) -> Cell:
    return Cell("W", name, program, warm)


def test_a_cell_has_rounds_that_are_not_timed() -> None:
    row = one_card.measure_cell(cell("p"), rounds=3, limit=30)
    assert (row["first_ms"], row["ms"], row["ms_low"], row["ms_high"]) == (1000, 3000, 2000, 4000)
    assert (row["rounds"], row["lock"], row["note"]) == (3, "off", "")


def test_what_was_timed_counts_if_the_rest_fails() -> None:
    row = one_card.measure_cell(cell("p", partial(player, 3)), rounds=5, limit=30)
    assert (row["rounds"], row["ms"], row["note"]) == (2, 2500, "no error was printed")
    row = one_card.measure_cell(cell("p", partial(player, 0)), rounds=5, limit=30)
    assert "ms" not in row
    assert row["note"] == "not run: no error was printed"


def test_a_cell_has_a_limit() -> None:
    row = one_card.measure_cell(cell("p"), rounds=5, limit=0)
    assert row["note"] == "not run: no report for 0 s; no error was printed"


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """What was measured stays, what failed or did not fit is tried again."""
    file, played = tmp_path / "one-card.json", list[str]()

    def plays(name: str) -> Program:
        played.append(name)
        if played == ["b"]:
            raise ProgramFailed("no index")
        return player()

    todo = [cell(name, partial(plays, name)) for name in "bac"]
    one_card.measure(DRY, file, todo[:2], 30, 30)
    one_card.measure(DRY, file, todo, 0, 30)
    rows = {row["program"]: row for row in json.loads(file.read_text())["rows"]}
    assert "ms" in rows["a"]
    assert rows["c"]["note"] == "not run: it did not fit in 0 s"
    one_card.measure(DRY, file, todo, 30, 30)
    assert played == ["b", "a", "b", "c"]
    rows = {row["program"]: row for row in json.loads(file.read_text())["rows"]}
    assert all("ms" in row for row in rows.values())
    assert "| W | a |" in file.with_suffix(".md").read_text()
    with pytest.raises(UserError, match="expected rounds '3', found '2'; choose another folder"):
        one_card.measure(Settings("cpu", 3, dry=True), file, todo, 30, 30)


def test_all_programs_are_there(tmp_path: Path) -> None:
    cells = list(one_card.cells(DRY, tmp_path, lambda peer: sys.executable, []))
    names = [(one.workload, one.name) for one in cells]
    assert len(set(names)) == len(names)
    for work in ("W1", "W7", "W8", "W9"):
        own = [name for workload, name in names if workload == work]
        assert {"flbench, lanes", "flbench, one by one", "loop by hand"} <= set(own)
        assert {"pfl, one process", "pfl, 5 processes", "blazefl, 5 threads"} <= set(own)
    programs = {name: one.program() for name, one in zip(names, cells, strict=True)}
    whole = programs["W1", "flbench, lanes, phases in one call"]
    assert whole.env[phase.WANTED] == "1"
    assert programs["W9", "pfl, 5 processes"].env["FLBENCH_SPEED_DEVICE"] == "cpu"
    assert Workload.read(programs["W8", "pfl, one process"].command[2]).clients == 6, "a dry run"


def test_blazefl_needs_a_newer_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11))
    with pytest.raises(ProgramFailed, match="--python blazefl=PATH"):
        one_card.environment({}, tmp_path, "blazefl")
    assert one_card.environment({"blazefl": "here"}, tmp_path, "blazefl") == "here"
