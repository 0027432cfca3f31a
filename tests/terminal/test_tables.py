"""Tables in the terminal: a line per method, and per metric that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_results import made

from flbench.results.schema import ClientMetricValues
from flbench.terminal.tables import print_table


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
