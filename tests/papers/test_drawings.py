"""Figures of a paper's page: which are drawn, under which names, and that the page shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drawn_results import desc, full
from mentions import mention
from toy import Typed

from flbench.errors import BadParameter, UserError
from flbench.papers.claims import StoredResults, results_of_study
from flbench.papers.drawings import drawings, file_of, study_rows
from flbench.papers.page import page
from flbench.papers.paper import Claim, Drawn, Paper, PaperTable
from flbench.sweeps.request import RunRequest
from flbench.terminal.console import SweepProgress

ABOUT = {"summary": "s", "title": "t", "authors": "a", "venue": "v", "link": "l"}
ROWS = [
    {"suite": "one", "x": [0.5, 1.0, 2.0], "y": [1.0, 2.0, 4.0], "n": 3.0},
    {"suite": "two", "x": [0.5, 1.0, 2.0], "y": [4.0, 2.0, 1.0], "n": 7.0},
]


def paper_of(*drawn: Drawn, study: str = "mine", **tables: PaperTable) -> Paper:
    claim = Claim(where="Fig. 1, and 2", says="so it is.", study=study, drawn=list(drawn))
    return Paper(name="card", claims=[claim], tables=tables, **ABOUT)  # type: ignore[arg-type]


def drawn_of(kind: Any, *names: str, **more: Any) -> Drawn:
    return Drawn(kind=kind, names=list(names), title=f"as {kind}", **more)


@pytest.fixture
def request_(tmp_path: Path) -> RunRequest:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "mine.json").write_text(json.dumps({"rows": ROWS}))
    return RunRequest(out=tmp_path / "results")


def test_rows_of_a_study_are_drawn_and_the_page_shows_what_is(request_: RunRequest) -> None:
    some = drawn_of("pairs", "x", "y", suite="two")
    none = drawn_of("bars", "n", only={"suite": "three"})
    card = paper_of(some, drawn_of("bars", "n"), none)
    found = dict(drawings(card, StoredResults.of(card, request_, SweepProgress())))
    assert list(found) == ["card-fig-1-and-2-1.svg", "card-fig-1-and-2-2.svg"]
    assert "-0.9" in desc(found["card-fig-1-and-2-1.svg"]), "of suite two alone they fall"
    assert "one: n 3.0; two: n 7.0" in desc(found["card-fig-1-and-2-2.svg"])
    text = page(card, request_, SweepProgress())
    assert [f"](figures/{name})" in text for name in found] == [True, True]
    assert "card-fig-1-and-2-3.svg" not in text
    assert "Not drawn, as nothing was run: as bars." in text


def test_runs_of_a_table_are_drawn_by_method(tmp_path: Path) -> None:
    rows = {"a": [full("one")], "b": [full("one")]}
    asked: list[Any] = []

    def results(table: str, scale: str) -> Any:
        asked.append((table, scale))
        return {("one", "data"): rows, ("two", "data"): {"c": [full("one")]}}

    stored = StoredResults(results, lambda study: {}, tmp_path)
    card = paper_of(drawn_of("curves", table="7", scale="large", suite="one", methods=["b", "z"]))
    ((name, svg),) = drawings(card, stored)
    assert name == file_of(card, card.claims[0], 0) == "card-fig-1-and-2.svg"
    assert asked == [("7", "large")]
    assert ": b " in desc(svg) and " a " not in desc(svg).partition("At the end")[2]
    noted = paper_of(drawn_of("note", "no such note", table="7"))
    assert list(drawings(noted, stored)) == []


def test_a_table_of_a_study_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    assert study_rows("mine", tmp_path) is None
    (tmp_path / "studies").mkdir()
    for odd in ("{", '{"rows": [1]}', '{"rows": {"a": 1}}'):
        (tmp_path / "studies" / "mine.json").write_text(odd)
        with pytest.raises(UserError, match=mention("mine.json", "rows")):
            study_rows("mine", tmp_path)


def test_a_measurement_has_no_results_to_draw(request_: RunRequest) -> None:
    with pytest.raises(BadParameter, match=mention("discrepancy", "grid")):
        results_of_study("discrepancy", request_, SweepProgress())


def test_figures_go_with_a_page(typed: Typed, tmp_path: Path) -> None:
    code, _, told = typed("reproduce", "fedc2i", "--figures", str(tmp_path))
    assert (code, "--markdown" in told) == (1, True)
