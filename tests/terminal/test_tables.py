"""Tables in the terminal: a line per method, and per metric that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_results import made
from made_tasks import as_numbers
from mentions import mentioning, mentions

from flbench.results.schema import ClientMetricValues
from flbench.terminal.tables import print_table, table_text


def test_a_method_without_a_metric_has_no_line_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    values = ClientMetricValues(name="f1", package="p 1", higher_is_better=True, values=[0.5] * 4)
    plain = made(0.5, method="cfl")
    summary = {**plain.summary, "f1_mean": 0.5, "f1_clients": 4}
    with_f1 = plain.model_copy(update={"client_metrics": {"f1": values}, "summary": summary})
    print_table([(Path("a.json"), with_f1), (Path("b.json"), made(0.25, method="ifca"))])
    said = capsys.readouterr().out
    above, below = said.split("metrics of clients")
    assert "cfl" in above
    assert "ifca" in above
    assert "cfl" in below
    assert "ifca" not in below
    assert said.splitlines()[-2:] == ["a.json", "b.json"]


def test_what_stands_beside_a_headline_is_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    finished = []
    for name, accuracy in (("bad", 0.25), ("good", 0.75)):
        one = as_numbers(made(accuracy, method=name))
        values = [accuracy] * 4
        r2 = ClientMetricValues(name="r2", package="p 1", higher_is_better=True, values=values)
        summary = {**one.summary, "r2_mean": accuracy, "r2_clients": 4}
        one = one.model_copy(update={"client_metrics": {"r2": r2}, "summary": summary})
        finished.append((Path(name), one))
    print_table(finished)
    said = capsys.readouterr().out
    assert mentions(said, "method", "RMSE", "r2", "MB/client")
    lines = [line for line in said.splitlines() if "good" in line or "bad" in line]
    assert lines[0] == mentioning("good", "0.2500", "0.7500"), "the lower error first"
    assert lines[1] == mentioning("bad", "0.7500", "0.2500")
    assert "metrics of clients" not in said


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_wraps_words_and_cuts_no_number(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    both = [made(accuracy, method="a-method-with-a-name") for accuracy in (0.25, 0.75)]
    print_table([(Path(f"{number}.json"), one) for number, one in enumerate(both)])
    said = capsys.readouterr().out
    for whole in ("a-method-with-a-name", "0.5000 ± 0.3536", "MB/client", "decile", "seconds"):
        assert whole in said
    assert "…" not in said
    if width == 80:
        assert max(map(len, said.splitlines())) <= width


def test_the_text_of_a_table_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the kernel of a notebook, where rich shows tables itself and codes of colours."""
    elsewhere = table_text([made(0.25)])
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert table_text([made(0.25)]) == elsewhere
    assert "0.2500" in elsewhere


def test_rows_that_do_not_share_what_a_seed_draws_are_said_to_be_uneven() -> None:
    one, other = made(method="a"), made(method="b")
    assert "cannot be compared" not in table_text([one, other])
    marks = other.fingerprint.model_copy(update={"partition": "else", "initial_weights": "other"})
    text = table_text([one, other.model_copy(update={"fingerprint": marks})])
    said = "these rows do not share partition (seed 0), initial weights (seed 0): they cannot be"
    assert f"{said} compared" in text
