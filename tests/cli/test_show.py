"""`flbench show`: what a result file says, and what a run would make of a suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_results import made
from mentions import mentions
from toy import Typed

from flbench.results.files import read_result, write_atomically
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


# --- methods together ---------------------------------------------------------------------------


def test_what_becomes_of_methods_together_is_one_line(typed: Typed, tmp_path: Path) -> None:
    code, said, told = typed("show", "composition", "fedavgm+scaffold")
    assert (code, told, said.count("\n")) == (0, "", 1)
    assert said.startswith("fedavgm+scaffold: refused: fedavgm and scaffold both ")
    code, said, told = typed("show", "composition", "fedavg+nobody")
    assert (code, said, told.count("\n")) == (1, "", 1)
    assert mentions(told, "unknown method 'nobody'")
    code, _, told = typed("show", "composition", "fedavg+qsgd", "--set", "clients=9")
    assert code == 1 and mentions(told, "--suite")
    code, said, told = typed("show", "composition", "fedavg", "--suite", "nowhere")
    assert (code, said) == (1, "") and mentions(told, "unknown suite 'nowhere'")
    asked = ("show", "composition", "qsgd", "-s", "noisy-noniid", "--dataset", "fashion-mnist")
    code, said, told = typed(*asked)
    assert (code, said, told.count("\n")) == (1, "", 1), "its files are not there"
    assert [*tmp_path.rglob("*")] == [], "nothing is written"


# --- a suite before it is run -------------------------------------------------------------------


def test_a_suite_is_shown_with_who_has_what(typed: Typed, tmp_path: Path) -> None:
    code, said, told = typed("show", "suite", "pathological-noniid")
    assert (code, told) == (0, "")
    assert mentions(said, "digits divided with seed 0", "100 clients train")
    assert mentions(said, "labels", 2, 2, 2), "least, median and most of a client"
    assert mentions(said, "have none", "clients that have it")
    assert mentions(said, "mean earth mover's distance", "0.800")
    assert [*tmp_path.rglob("*")] == [], "nothing is written"


SMALL = ("--set", "suite.clients=12", "--set", "partition.groups=3")


@pytest.mark.slow
def test_a_suite_is_shown_as_a_run_would_take_it(typed: Typed) -> None:
    """The partition is that of the result, and so are the settings."""
    changes = (*SMALL, "--rounds", "1", "--set", "unseen=0.25", "--metric", "f1")
    code, said, told = typed("show", "suite", "noisy-noniid", "-p", "fedavg", *changes)
    assert (code, told) == (0, "")
    assert mentions(said, "9 clients train", "3 more join")
    assert mentions(said, "metrics", "f1")
    assert typed("run", "-p", "fedavg", "-s", "noisy-noniid", *changes)[0] == 0
    (path,) = Path("flbench-results").rglob("seed-0.json")
    result = read_result(path)
    assert mentions(said, "rounds = 1")
    assert all(mentions(said, f"{key} = {result.suite[key]}") for key in ("clients", "unseen"))
    trained = sum(result.clients.train)
    assert result.unseen is not None
    assert mentions(said, "to train on", trained + sum(result.unseen.train))


@pytest.mark.slow
def test_who_has_what_is_drawn_where_it_is_asked_for(typed: Typed, tmp_path: Path) -> None:
    asked = ("show", "suite", "feature-shift", "--set", "suite.unseen=['0']")
    code, said, _ = typed(*asked, "--out", "sub/mine.svg")
    assert code == 0
    assert said.endswith("wrote sub/mine.svg\n")
    assert typed(*asked, "--out", "figures")[1].endswith(
        "wrote figures/feature-shift-digits-shift-holdings.svg\n"
    )
    one, two = sorted(tmp_path.rglob("*.svg"))
    assert one.read_bytes() == two.read_bytes()
    assert b"5 clients in 5 true groups, of which 1 join late" in one.read_bytes()


@pytest.mark.slow
def test_a_seed_changes_who_has_what_and_text_has_sizes_alone(typed: Typed) -> None:
    outs = [typed("show", "suite", "noisy-noniid", *SMALL, "--seed", seed)[1] for seed in "112"]
    assert outs[0] == outs[1] != outs[2]
    said = typed("show", "suite", "nordic-text", "--offline-data")[1]
    assert mentions(said, "bigrams divided", "clients train")
    assert "have none" in said
    assert "labels of" not in said
    assert mentions(said, "domain", "samples")


@pytest.mark.slow
def test_a_persons_own_table_is_shown_by_name(typed: Typed) -> None:
    rows = [f"{'yes' if k % 3 else 'no'},site-{k // 30},{(k * 37) % 101}.5" for k in range(120)]
    Path("mine.csv").write_text("\n".join(["label,client,age", *rows]))
    asked = ("show", "suite", "natural-writers", "--dataset", "csv:mine.csv")
    changes = ("--set", "suite.clients=4", "--set", "suite.server_samples=0")
    code, said, told = typed(*asked, *changes, "--set", "unseen=site-2", "--out", "a.svg")
    assert (code, told) == (0, "")
    assert mentions(said, "site-2", 30, 1, 3)
    assert mentions(said, "yes", 4, 0)
    assert mentions(said, "3 clients train", "1 more")
    assert "site-2" in Path("a.svg").read_text()
    code, _, told = typed(*asked, *changes, "--set", "unseen=site-7")
    assert code == 1
    assert mentions(told, "site-7", "site-0", "site-3")


def test_what_is_wrong_is_said_first(typed: Typed) -> None:
    for args, facts in (
        (("--out", "x.png"), ("--out", ".svg", "x.png")),
        (("--set", "suite.clientz=3"), ("suite.clientz", "clients")),
        (("--offline-data", "--dataset", "digits"), ("--offline-data", "--dataset digits")),
        (("--offline-data", "--set", "dataset=digits"), ("--offline-data", "--set dataset=digits")),
        (("--set", "nothing=3"), ("nothing",)),
    ):
        code, said, told = typed("show", "suite", "feature-shift", *args)
        assert code != 0
        assert said == ""
        assert mentions(" ".join(told.split()), *facts)


@pytest.mark.slow
def test_without_the_data_the_settings_are_still_shown(typed: Typed) -> None:
    asked = ("show", "suite", "noisy-noniid", "--dataset", "fashion-mnist")
    code, said, _ = typed(*asked)
    assert code == 0
    assert "lenet5" in said
    assert mentions(said, "fashion-mnist", "divided")
    code, _, told = typed(*asked, "--out", "x.svg")
    assert code == 1
    assert mentions(told, "fashion-mnist", "expects")


@pytest.mark.slow
def test_a_partition_that_cannot_be_made_says_why(typed: Typed) -> None:
    code, said, told = typed("show", "suite", "pathological-noniid", "--set", "suite.clients=9999")
    assert code == 1
    assert "clients = 9999" in said
    assert mentions(told, "samples", "clients")


def test_without_a_word_it_prints_its_help_in_lines(typed: Typed) -> None:
    _, _, told = typed("show")
    assert mentions(told, "composition") and "\\n" not in told
    assert len(told.splitlines()) > 5
