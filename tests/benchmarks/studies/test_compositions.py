"""What becomes of a pair of methods, and how the page says it."""

from __future__ import annotations

import pytest
from compositions_page import page
from mentions import mentions

from flbench_benchmarks.studies import compositions
from flbench_benchmarks.studies.compositions import outcome_of

PAIRS = {
    ("fedavg", "fedprox"): "runs",
    ("fedasync", "qsgd"): "runs",
    ("fedavgm", "scaffold"): "refused",
    ("fedbabu", "knn-per"): "undefined",
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_outcomes_of_pairs(pair: tuple[str, str]) -> None:
    outcome, why = outcome_of(*pair, rounds=2)
    assert outcome == PAIRS[pair], why
    assert bool(why) == (outcome != "runs")


def test_a_row_per_method(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        ("a", "b"): ("runs", ""),
        ("a", "c"): ("fails", "it broke"),
        ("b", "c"): ("refused", ""),
    }
    monkeypatch.setattr(compositions, "entries", lambda group: {"a": 0, "b": 0, "c": 0})
    monkeypatch.setattr(compositions, "outcome_of", lambda a, b, rounds: found[a, b])
    rows = compositions.run(None, lambda line: None)  # type: ignore[arg-type]
    assert [row["runs"] for row in rows] == [["b"], ["a"], []]
    assert rows[2]["fails"] == ["a: it broke"]
    assert (rows[2]["n_refused"], rows[2]["n_fails"]) == (1, 1)
    text = page(rows)
    assert mentions(" ".join(text.split()), "3 pairs", "3 methods", "1 run", "1 are refused")
    assert "| `a` | `b` | 0 | 0 | 1 |" in text
