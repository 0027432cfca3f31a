"""`flbench show result`: what a result file says, line by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from made_results import made
from toy import Typed

from flbench.results.files import write_atomically
from flbench.results.schema import Change, ClientMetricValues, Result, ScoreMatrix, Tuning
from flbench.results.score_encoding import encode


def shown(typed: Typed, result: Result) -> list[str]:
    write_atomically(Path("seed-0.json"), result.canonical().encode())
    code, said, told = typed("show", "result", "seed-0.json")
    assert (code, told) == (0, "")
    return said.splitlines()


def test_a_result_without_more_has_no_headings_without_lines(typed: Typed) -> None:
    lines = shown(typed, made(0.5, alone=True))
    assert lines[0] == "fedavg on toy (toy), seed 0"
    assert "tuned:" not in lines
    assert "metrics of clients:" not in lines
    assert "bytes down:" not in lines
    assert "groups: " in lines
    assert not [line for line in lines if line.startswith(("scores: ", "note: "))]


def test_what_a_result_has_beside_its_summary_is_shown(typed: Typed) -> None:
    values = ClientMetricValues(name="f1", package="p 1", higher_is_better=True, values=[0.5] * 4)
    cells, low, high = encode(np.eye(2))
    scores = {"columns": "models", "row_ids": [0, 1], "column_ids": [0, 1], "cells": cells}
    result = made(0.5, tuning=Tuning(budget=3, tried=2, seeds=[1000], score="loss"))
    f1 = {"f1_mean": 0.5, "f1_std_clients": 0.25, "f1_clients": 4}
    result = result.model_copy(
        update={
            "summary": {**result.summary, **f1},
            "client_metrics": {"f1": values},
            "membership": [Change(round=1, labels=[0, 0, 1, -1])],
            "scores": ScoreMatrix(round=1, low=low, high=high, **scores),
            "warnings": ["it was late"],
        }
    )
    lines = shown(typed, result)
    tuned = lines.index("tuned:")
    assert [line.split()[0] for line in lines[tuned + 1 : tuned + 5]] == [
        "budget", "score", "seeds", "tried",
    ]  # fmt: skip
    at = lines.index("metrics of clients:")
    assert lines[at + 1].split("  ")[1:] == ["f1 of p 1", "mean 0.5000, std 0.2500, 4 of 4 clients"]
    assert lines[-3:] == [
        "groups: 2 from round 1", "scores: 2 x 2 models, round 1", "note: it was late",
    ]  # fmt: skip
