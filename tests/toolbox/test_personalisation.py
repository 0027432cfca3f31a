"""What a newcomer can have of models, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

import flbench as fl
from flbench.toolbox.personalisation import best_model, common_part

ROWS = torch.tensor([[7.0, 8.0, 9.0, 4.0], [7.0, 5.0, 9.0, 4.0], [7.0, 8.0, 0.0, 4.0]])


def slot(place: int, kind: Any = "parameter", network: int | None = None) -> fl.Slot:
    return fl.Slot(f"layer.{place}", (), place, place + 1, kind, False, network=network)


def context(layout: fl.ParameterLayout, **more: Any) -> Any:
    first = torch.tensor([1.0, 2.0, 3.0, 0.0])
    rows = more.pop("initial", first.expand(2, -1))
    return SimpleNamespace(layout=layout, initial_rows=lambda clients: rows, networks=None, **more)


def test_only_what_is_equal_in_all_rows_is_no_clients_own() -> None:
    layout = fl.ParameterLayout((slot(0), slot(1), slot(2), slot(3, "buffer")), 3, 1)
    ctx, ids = context(layout), torch.tensor([3, 4])
    assert common_part(ROWS, ids, ctx).tolist() == [[7.0, 2.0, 3.0, 4.0]] * 2
    assert ctx.initial_rows(ids)[0].tolist() == [1.0, 2.0, 3.0, 0.0], "a copy was written"
    ctx.layout = replace(layout, slots=(*layout.slots[:3], slot(3, "counter")))
    assert common_part(ROWS, ids, ctx).tolist() == [[7.0, 2.0, 3.0, 0.0]] * 2, "as many steps"


def test_of_different_networks_only_what_all_have_is_common() -> None:
    """All that train have network 0: its scalar 0 and its number are equal, and not common."""
    slots = (slot(0, network=0), slot(1, network=1), slot(2), slot(3, "buffer"))
    layout = fl.ParameterLayout(slots, 3, 1, networks=2, which=3)
    rows = torch.tensor([[7.0, 2.0, 9.0, 0.0], [7.0, 2.0, 9.0, 0.0]])
    ctx = context(layout, initial=torch.tensor([[1.0, 2.0, 3.0, 1.0]]))
    assert common_part(rows, torch.tensor([2]), ctx).tolist() == [[1.0, 2.0, 9.0, 1.0]]


def test_the_best_model_is_one_of_the_clients_network() -> None:
    layout = fl.ParameterLayout((slot(0), slot(1, "buffer")), 1, 1)
    losses = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 0.5]])
    ctx = context(layout, evaluate=lambda models, clients: losses)
    assert best_model(ROWS, torch.tensor([3, 4]), ctx).tolist() == [1, 2]
    ctx.layout = replace(layout, networks=2, which=1)
    ctx.networks = torch.tensor([0, 0, 0, 0, 1])
    rows = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert best_model(rows, torch.tensor([3, 4]), ctx).tolist() == [2, 1]
