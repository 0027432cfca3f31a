"""The ledger: bits counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mentions import mention

from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank
from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.ledger import CommunicationLedger, count_true, in_bytes
from flbench.errors import UserError


def start(models: list[list[list[float]]], mask: list[bool] | None = None) -> Dispatched:
    """Models of clients 0, 1, ..., shape (n, c, 2); both directions send what the mask names."""
    params = torch.tensor(models)
    flags = torch.tensor(mask or [True, True]).expand(len(params), -1)
    active = torch.ones(params.shape[:2], dtype=torch.bool)
    return Dispatched(params, active, None, flags, flags)


def upload(candidates: int = 1, **more: Any) -> Upload:
    """What two clients have trained."""
    losses = torch.zeros(2, candidates, dtype=torch.float64)
    empty = Upload(
        ids=torch.arange(2),
        params=torch.zeros(2, candidates, 2),
        active=torch.ones(2, candidates, dtype=torch.bool),
        samples=torch.ones(2, dtype=torch.int64),
        steps=torch.ones(2, dtype=torch.int64),
        loss=torch.zeros(2, dtype=torch.float64),
        loss_start=losses,
        loss_end=losses,
        chosen=torch.zeros(2, dtype=torch.int64),
    )
    return replace(empty, **more)


def counts(ledger: CommunicationLedger, way: str) -> list[int]:
    return ledger.per_client[way].tolist()


def test_numbers_have_32_bits_and_are_added_by_item_and_client() -> None:
    ledger = CommunicationLedger(3)
    ledger.send("up", torch.tensor([0, 2]), "losses", 2)
    ledger.send("up", torch.tensor([2, 2]), "losses", torch.tensor([1, 0]), bits=3)
    ledger.send("peer", torch.tensor([1]), "model", 1)
    assert ledger.bits == {"down": {}, "up": {"losses": 131}, "peer": {"model": 32}}
    assert ledger.totals["up"] == {"losses": 17}, "131 bits are 16.4 bytes"
    assert counts(ledger, "up") == [8, 0, 9]
    assert [ledger.total(way) for way in ("down", "up", "peer")] == [0, 17, 4]


@pytest.mark.parametrize(
    ("way", "scalars"),
    [("north", 1), ("up", torch.tensor([1])), ("up", torch.tensor([1, -1]))],
)
def test_what_cannot_be_counted_is_refused(way: Any, scalars: Any) -> None:
    with pytest.raises(UserError, match="direction" if way == "north" else "scalars"):
        CommunicationLedger(2).send(way, torch.arange(2), "x", scalars)


def test_the_names_of_what_crossed() -> None:
    ledger = CommunicationLedger(2)
    ledger.send("up", torch.arange(2), "loss", 1)
    ledger.send("up", torch.arange(2), "nothing", 0)
    ledger.open_round()
    assert ledger.sent("up") == {"loss"}, "also in rounds before"
    assert ledger.sent("down") == ledger.sent("peer") == set()
    with pytest.raises(UserError, match=mention("of down", "got 'north'")):
        ledger.sent("north")  # type: ignore[arg-type]


def test_the_slowest_client_is_one_of_this_round() -> None:
    ledger = CommunicationLedger(2)
    ledger.open_round()
    ledger.send("up", torch.tensor([0]), "x", 100)
    ledger.open_round()
    ledger.send("up", torch.tensor([0, 1]), "x", torch.tensor([1, 3]))
    assert ledger.slowest("up") == 12


def test_a_model_that_a_client_has_is_not_sent_again_in_the_round() -> None:
    ledger, stage = CommunicationLedger(2), Stage("train", torch.arange(2), 1)
    models = start([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [5.0, 6.0]]])
    models.active[1, 1] = False
    ledger.open_round()
    ledger.start(models, stage)
    assert counts(ledger, "down") == [16, 8]
    ledger.start(models, stage)
    assert counts(ledger, "down") == [16, 8]
    ledger.open_round()
    ledger.start(models, stage)
    assert counts(ledger, "down") == [32, 16]


def test_a_complete_model_that_was_sent_counts_as_received() -> None:
    ledger, stage = CommunicationLedger(2), Stage("train", torch.arange(2), 1)
    ledger.send_models(torch.tensor([0]), torch.tensor([[1.0, 2.0]]))
    assert counts(ledger, "down") == [8, 0]
    ledger.start(start([[[1.0, 2.0]], [[1.0, 2.0]]]), stage)
    assert counts(ledger, "down") == [8, 8]


def test_a_part_of_a_model_is_sent_each_time() -> None:
    ledger, stage = CommunicationLedger(1), Stage("train", torch.arange(1), 1)
    for _ in range(2):
        ledger.start(start([[[1.0, 2.0]]], [True, False]), stage)
    assert counts(ledger, "down") == [8]


def test_a_model_is_complete_without_what_no_message_has() -> None:
    """The last scalar stays with the client, or is of another network."""
    ledger, stage = CommunicationLedger(1), Stage("train", torch.arange(1), 1)
    ledger.send_models(torch.tensor([0]), torch.tensor([[1.0, 2.0]]))
    for own in (5.0, 6.0):
        ledger.start(start([[[1.0, own]]], [True, False]), stage, torch.tensor([1]))
        ledger.start(start([[[3.0, own]]], [True, False]), stage, torch.tensor([1]))
    assert counts(ledger, "down") == [12], "the second time the client has it"
    ledger.start(start([[[9.0, 5.0]]], [False, True]), stage, torch.tensor([1]))
    assert counts(ledger, "down") == [16], "it never received that scalar"


def test_extras_count_without_what_is_nan() -> None:
    ledger, stage = CommunicationLedger(2), Stage("train", torch.arange(2), 1)
    table = torch.tensor([[1.0, torch.nan, 2.0], [torch.nan, torch.nan, 3.0]])
    begun = replace(start([[[1.0, 2.0]]] * 2, [False, False]), extras={"table": table})
    ledger.start(begun, stage)
    assert ledger.bits["down"] == {"model": 0, "table": 96}
    ledger.upload(upload(extras={"table": table}), begun)
    assert ledger.bits["up"] == {"model": 0, "table": 96}
    assert counts(ledger, "up") == [8, 4]


@pytest.mark.parametrize("shape", [(0,), (0, 4), (0, 4, 2)])
def test_extras_of_nobody_are_no_scalars(shape: tuple[int, ...]) -> None:
    ledger, there = CommunicationLedger(2), torch.arange(shape[0])
    begun = start([[[1.0, 2.0]]] * 2, [False, False]).select(there)
    sent = replace(upload().select(there), extras={"table": torch.zeros(shape)})
    ledger.upload(sent, begun)
    assert ledger.bits["up"] == {"model": 0, "table": 0}


def test_the_kept_candidate_is_sent_or_all_that_belong_to_rows() -> None:
    begun = start([[[1.0, 2.0]] * 2] * 2, [True, False])
    active = torch.tensor([[True, True], [True, False]])
    one, rows = CommunicationLedger(2), CommunicationLedger(2)
    one.upload(upload(2, active=active), begun)
    rows.upload(upload(2, active=active, rows=torch.arange(2)), begun)
    assert counts(one, "up") == [4, 4]
    assert counts(rows, "up") == [8, 4]


def test_coded_bits_are_counted_as_they_are() -> None:
    begun, bits = start([[[1.0, 2.0]] * 2] * 2), torch.tensor([[8, 24], [16, 0]])
    one, rows = CommunicationLedger(2), CommunicationLedger(2)
    one.upload(upload(2, bits=bits), begun)
    rows.upload(upload(2, bits=bits, rows=torch.arange(2)), begun)
    assert counts(one, "up") == [3, 2]
    assert counts(rows, "up") == [4, 2]


def test_bytes_and_masks_by_hand() -> None:
    assert [in_bytes(bits) for bits in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert count_true(torch.tensor([True, False, True]).expand(3, -1)).tolist() == [2, 2, 2]
    assert count_true(torch.tensor([[True, False], [True, True]])).tolist() == [1, 2]
    assert count_true(torch.zeros(0, 2, dtype=torch.bool)).tolist() == []


def test_masks_that_are_equal_scalar_by_scalar_are_counted_one_by_one() -> None:
    """Expanded along the scalars, not along the clients."""
    masks = torch.tensor([[True], [False], [True]]).expand(3, 4)
    assert count_true(masks).tolist() == [4, 0, 4]


def test_a_client_that_was_sent_models_need_not_get_them_again() -> None:
    ledger = CommunicationLedger(2)
    ledger.open_round()
    ledger.send_models(torch.tensor([1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    ledger.start(start([[[3.0, 4.0]], [[3.0, 4.0]]]), Stage("train", torch.arange(2), 1))
    assert counts(ledger, "down") == [8, 16], "client 1 has both models"


def test_a_model_that_begins_like_one_that_was_sent_is_another() -> None:
    ledger, stage = CommunicationLedger(1), Stage("train", torch.arange(1), 1)
    ledger.send_models(torch.tensor([0]), torch.tensor([[3.0, 2.0], [3.0, 5.0]]))
    ledger.start(start([[[3.0, 4.0]]]), stage)
    assert counts(ledger, "down") == [24]
    ledger.start(start([[[3.0, 5.0]]]), stage)
    assert counts(ledger, "down") == [24]


def test_models_of_a_bank_need_not_be_sent_again_either() -> None:
    bank = ModelBank.repeated(torch.tensor([1.0, 2.0]), 3, RowStore(10**6))
    bank[2] = torch.tensor([3.0, 4.0])
    ledger = CommunicationLedger(1)
    ledger.send_models(torch.tensor([0]), bank)
    ledger.start(start([[[3.0, 4.0]]]), Stage("train", torch.arange(1), 1))
    assert counts(ledger, "down") == [24]


def test_what_clients_of_edges_get_and_send_is_counted_between_them() -> None:
    """Two models of two scalars and a loss each; an edge tells the server three numbers."""
    ledger, near = CommunicationLedger(2), torch.tensor([1, 1])
    stage = Stage("train", torch.arange(2), 1, edges=near)
    given = start([[[1.0, 2.0]], [[3.0, 4.0]]])
    ledger.start(given, stage)
    sent = upload(extras={"loss": torch.zeros(2, 1)})
    ledger.upload(sent, given, stage)
    ledger.send("edge-cloud", torch.tensor([1]), "model", 3)
    assert ledger.bits == {
        "down": {},
        "up": {},
        "peer": {},
        "client-edge": {"model": 8 * 32, "loss": 2 * 32},
        "edge-cloud": {"model": 3 * 32},
    }
    assert counts(ledger, "client-edge") == [20, 20]
    assert "edge-cloud" not in ledger.per_client, "no client sends it"
    assert ledger.total("edge-cloud") == 12
    assert ledger.sent("client-edge") == {"model", "loss"}


def test_an_edge_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match=mention("numbers of edges", "0..2", "got [3]")):
        CommunicationLedger(3).send("edge-cloud", torch.tensor([3]), "model", 1)
