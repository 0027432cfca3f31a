"""Fields of answers that have another type than their class declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from toy import Play, bad, refused

from flbench.core.client_module import Report
from flbench.core.state import (
    Membership,
    Memory,
    Message,
    Models,
    Personal,
    Scores,
    Setup,
    Stage,
    Start,
)
from flbench.plugin.field_types import misfit

ROW, IDS, FLAGS = torch.zeros(3), torch.arange(2), torch.ones(3, dtype=torch.bool)
SCORES = torch.zeros(2, 2, dtype=torch.float64)


def wrong(value: object) -> Any:
    """A value of a wrong type, whatever a type checker says."""
    return value


@pytest.mark.parametrize(
    "answer",
    [
        Models(ROW[None], {"m.kept": ROW}),
        Setup(),
        Setup(ROW[None], Membership(IDS), {"m.kept": Memory(ROW, "client")}),
        Membership(IDS, weights=SCORES),
        Stage("train", IDS, 1, name="a", samples=3, losses=True, steps=IDS, lr=0.1),
        Stage("train", IDS, wrong(np.float32(0.5)), samples=wrong(np.int64(3))),
        Stage("train", IDS, torch.tensor(2), steps=wrong(torch.tensor(2))),
        Start(ROW[None, None], extras={"sent": ROW[None]}),
        Scores(SCORES, IDS, "clients", IDS),
        Personal(row=IDS, predictor=lambda module, x: x, others={"own": Personal(params=ROW)}),
        Message(0, ROW, ROW, FLAGS),
        Report({"sent": torch.tensor(1)}),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_what_has_its_types_fits(answer: object) -> None:
    assert misfit(answer) == ""


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Models(wrong([[0.0]])), "rows is list, expected Tensor"),
        (Models(wrong(np.zeros(2))), "rows is ndarray, expected Tensor"),
        (Models(wrong(None)), "rows is None, expected Tensor"),
        (Models(ROW, wrong(ROW)), "memory is Tensor, expected names with Tensor"),
        (Models(ROW, {"m.kept": wrong(1.5)}), "memory['m.kept'] is 1.5, expected Tensor"),
        (Models(ROW, wrong({1: ROW})), "memory has the name 1, expected a string"),
        (
            Models(ROW.to_sparse()),
            "rows is a tensor that is sparse or has no data, expected a dense one",
        ),
        (
            Models(ROW, {"m.kept": ROW.to("meta")}),
            "memory['m.kept'] is a tensor that is sparse or has no data, expected a dense one",
        ),
        (Setup(memory=wrong({"m.kept": ROW})), "memory['m.kept'] is Tensor, expected Memory"),
        (
            Setup(memory={"m.kept": Memory(ROW, wrong("rows"))}),
            "memory['m.kept'].scope is 'rows', expected 'run' or 'model' or 'client'",
        ),
        (Setup(membership=wrong(IDS)), "membership is Tensor, expected Membership or None"),
        (Setup(membership=Membership(wrong([0]))), "membership.home is list, expected Tensor"),
        (Membership(IDS, weights=wrong(1)), "weights is 1, expected Tensor or None"),
        (
            Stage(wrong("rest"), IDS, 1),
            "kind is 'rest', expected 'train' or 'probe' or 'trial' or 'join'",
        ),
        (Stage("train", IDS, wrong("1")), "epochs is '1', expected float or Tensor"),
        (Stage("train", IDS, wrong(True)), "epochs is True, expected float or Tensor"),
        (Stage("train", IDS, 1, samples=wrong(2.5)), "samples is 2.5, expected int or None"),
        (Start(extras={"sent": wrong([1])}), "extras['sent'] is list, expected Tensor"),
        (
            Scores(SCORES, IDS, wrong("client"), IDS),
            "columns is 'client', expected 'models' or 'clients'",
        ),
        (
            Personal(row=IDS, predictor=wrong("net")),
            "predictor is 'net', expected a function or None",
        ),
        (
            Personal(row=IDS, others={"own": wrong(IDS)}),
            "others['own'] is Tensor, expected Personal",
        ),
        (
            Personal(row=IDS, adaptation=Stage("join", IDS, wrong([1]))),
            "adaptation.epochs is list, expected float or Tensor",
        ),
        (Message(0, ROW, ROW, FLAGS, bits=wrong("8")), "bits is '8', expected int"),
        (Report(kept=wrong({"m.kept": [1]})), "kept['m.kept'] is list, expected Tensor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_field_of_another_type_is_named(answer: object, message: str) -> None:
    assert misfit(answer) == message


@pytest.mark.parametrize(
    ("hook", "answer", "message"),
    [
        (
            "setup",
            Setup(memory=wrong({"bad.kept": ROW})),
            "bad.setup: memory['bad.kept'] is Tensor, expected Memory",
        ),
        (
            "aggregate",
            Models(wrong(np.zeros(3))),
            "round 1: bad.aggregate: rows is ndarray, expected Tensor",
        ),
        (
            "report",
            lambda module, x, y: Report(wrong([1.0])),
            "round 1: bad.report: sent is list, expected names with Tensor",
        ),
        (
            "encode",
            lambda message: replace(message, overhead=wrong("none")),
            "round 1: bad.encode: overhead is 'none', expected int",
        ),
        (
            "personalise",
            Personal(row=IDS, others=wrong({"own": 3})),
            "round 1: bad.personalise: others['own'] is 3, expected Personal",
        ),
    ],
)
def test_a_run_ends_in_a_line_that_names_hook_and_field(
    play_toy: Play, hook: str, answer: object, message: str
) -> None:
    assert refused(play_toy, bad(**{hook: lambda self: answer})) == message
