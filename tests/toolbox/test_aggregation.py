"""Averaging: hand numbers first, then that a row is the same bits in any company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank
from flbench.core.state import Membership, Upload
from flbench.toolbox.aggregation import (
    BLOCK,
    effective_steps,
    lloyd,
    member_mean,
    partial_mean,
    weighted_mean,
)


def weights(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def bits(rows: Tensor) -> Tensor:
    return rows.view(torch.int32)


def company(clients: int = 12, width: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Uploads whose float32 sums depend on the order, and sample counts."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** torch.randint(-3, 4, (clients, 1), generator=generator).float()
    uploads = torch.randn(clients, width, generator=generator) * scale
    counts = torch.randint(3, 400, (clients,), generator=generator).double()
    return uploads, counts


def test_two_clients_and_three_parameters_by_hand() -> None:
    rows = torch.tensor([[50.0, 50.0, 50.0], [7.0, 8.0, 9.0]])
    uploads = torch.tensor([[1.0, 2.0, 3.0], [5.0, -2.0, 11.0]])
    averaged = weighted_mean(rows, uploads, weights((1, 3), (1, 1)))
    # (1*1 + 3*5)/4, (1*2 - 3*2)/4, (1*3 + 3*11)/4; then the plain means
    assert averaged.tolist() == [[4.0, -1.0, 9.0], [3.0, 0.0, 7.0]]
    assert averaged.dtype == torch.float32


def test_only_the_ratio_of_the_weights_counts() -> None:
    uploads = torch.tensor([[1.0, 2.0, 3.0], [5.0, -2.0, 11.0]])
    averaged = weighted_mean(torch.zeros(1, 3), uploads, weights((0.25, 0.75)))
    assert averaged.tolist() == [[4.0, -1.0, 9.0]]


def test_the_sum_is_kept_in_double_precision() -> None:
    uploads = torch.tensor([[1e8], [1.0], [-1e8]])
    averaged = weighted_mean(torch.zeros(1, 1), uploads, weights((1, 1, 1)))
    assert averaged.item() == pytest.approx(1 / 3, rel=1e-6), "1e8 + 1 is 1e8 in float32"


def test_the_sum_runs_in_ascending_client_order() -> None:
    big = 2.0**60  # big + 1 is big even in float64, so the order shows
    ascending = torch.tensor([[big], [-big], [1.0]])
    ones = weights((1, 1, 1))
    assert weighted_mean(torch.zeros(1, 1), ascending, ones).item() == pytest.approx(1 / 3)
    assert weighted_mean(torch.zeros(1, 1), ascending.flip(0), ones).item() == 0.0


def test_a_row_without_members_keeps_its_bits() -> None:
    odd = torch.tensor([0.1, -0.0, 1e-45, float("inf"), float("nan")])
    rows = torch.stack([odd, odd])
    averaged = weighted_mean(rows, torch.ones(2, 5), weights((0, 0), (2, 1)))
    assert torch.equal(bits(averaged[0]), bits(odd))
    assert averaged[1].tolist() == [1.0] * 5


def test_a_bank_without_members_is_kept_whole() -> None:
    rows, _ = company(3)
    averaged = weighted_mean(rows, rows + 1, torch.zeros(3, 3, dtype=torch.float64))
    assert torch.equal(bits(averaged), bits(rows))


def test_the_bank_given_is_not_changed() -> None:
    rows = torch.zeros(1, 2)
    weighted_mean(rows, torch.ones(1, 2), weights((1,)))
    assert rows.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("weight", [1.0, 3.0, 0.1, 7e-5, 417.0])
def test_one_member_returns_exactly_its_upload(weight: float) -> None:
    uploads, _ = company()
    told = torch.zeros(1, len(uploads), dtype=torch.float64)
    told[0, 5] = weight
    averaged = weighted_mean(torch.zeros(1, 40), uploads, told)
    assert torch.equal(bits(averaged[0]), bits(uploads[5]))


def test_a_row_is_the_same_bits_whatever_other_rows_exist() -> None:
    uploads, counts = company()
    member = torch.rand(9, 12, generator=torch.Generator().manual_seed(1)) < 0.4
    told = member.double() * counts
    bank = torch.zeros(9, 40)
    together = weighted_mean(bank, uploads, told)
    for row in range(9):
        alone = weighted_mean(bank[row : row + 1], uploads, told[row : row + 1])
        assert torch.equal(bits(alone[0]), bits(together[row]))
    backwards = weighted_mean(bank, uploads, told.flip(0)).flip(0)
    assert torch.equal(bits(backwards), bits(together))


def test_a_row_is_the_same_bits_whoever_else_was_sampled() -> None:
    uploads, counts = company()
    members = torch.tensor([1, 4, 5, 10])
    told = torch.zeros(2, 12, dtype=torch.float64)
    told[0, members] = counts[members]
    told[1] = counts - told[0]
    together = weighted_mean(torch.zeros(2, 40), uploads, told)
    alone = weighted_mean(torch.zeros(1, 40), uploads[members], counts[members][None])
    assert torch.equal(bits(alone[0]), bits(together[0]))


def test_rows_with_equal_members_are_equal() -> None:
    uploads, counts = company()
    averaged = weighted_mean(torch.randn(3, 40), uploads, counts.expand(3, 12).contiguous())
    assert torch.equal(bits(averaged[0]), bits(averaged[1]))
    assert torch.equal(bits(averaged[0]), bits(averaged[2]))


def test_counters_keep_the_maximum_of_the_members() -> None:
    rows = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    uploads = torch.tensor([[1.0, 30.0], [3.0, 10.0], [8.0, 99.0]])
    counters = torch.tensor([False, True])
    averaged = weighted_mean(rows, uploads, weights((1, 3, 0), (0, 0, 0)), counters)
    assert averaged.tolist() == [[2.5, 30.0], [0.0, 2.0]], "99 belongs to nobody of row 0"


def test_without_counters_every_scalar_is_averaged() -> None:
    uploads = torch.tensor([[1.0, 30.0], [3.0, 10.0]])
    none = torch.tensor([False, False])
    assert weighted_mean(torch.zeros(1, 2), uploads, weights((1, 1)), none).tolist() == [[2, 20]]


def trained(params: Tensor, samples: list[int], ids: list[int] | None = None) -> Upload:
    """What clients 0, 1, ... send, shape (n, c, W); each keeps its first candidate."""
    count, candidates, _ = params.shape
    losses = torch.zeros(count, candidates, dtype=torch.float64)
    return Upload(
        ids=torch.tensor(ids) if ids else torch.arange(count),
        params=params,
        active=torch.ones(count, candidates, dtype=torch.bool),
        samples=torch.tensor(samples),
        steps=torch.ones(count, dtype=torch.int64),
        loss=torch.zeros(count, dtype=torch.float64),
        loss_start=losses,
        loss_end=losses,
        chosen=torch.zeros(count, dtype=torch.int64),
    )


@pytest.mark.parametrize(("weighting", "mean"), [("samples", [4.0, 7.0]), ("uniform", [3.0, 6.0])])
def test_members_are_averaged_by_hand(weighting: Any, mean: list[float]) -> None:
    sent = trained(torch.tensor([[[1.0, 4.0]], [[5.0, 8.0]], [[9.0, 9.0]]]), [1, 3, 5])
    home = Membership(torch.tensor([0, 0, 1]))
    rows = member_mean(torch.zeros(3, 2), sent, home, weighting=weighting)
    assert rows.tolist() == [mean, [9.0, 9.0], [0.0, 0.0]]


def test_few_rows_of_many_are_averaged_as_all_are() -> None:
    """Also where a client is in no group yet, and where the table is a bank of shared rows."""
    params = torch.randn(5, 1, 7, generator=torch.Generator().manual_seed(0))
    sent = replace(trained(params, [3, 1, 4, 1, 5]), ids=torch.tensor([0, 2, 3, 4, 7]))
    home = torch.tensor([6, 0, 6, -1, 2, 2, 2, 6])
    table = torch.randn(9, 7, generator=torch.Generator().manual_seed(1))
    shares = Membership(home).shares(sent.ids, 9) * sent.samples
    expected = weighted_mean(table, sent.selected(), shares)
    assert torch.equal(member_mean(table, sent, Membership(home)), expected)
    bank = ModelBank(list(table), RowStore(None))
    averaged = member_mean(bank, sent, Membership(home))
    assert isinstance(averaged, ModelBank)
    assert torch.equal(averaged.dense(), expected)
    assert torch.equal(bank.dense(), table), "the old rows are kept"
    nobody = member_mean(table, sent, Membership(torch.full((8,), -1)))
    assert torch.equal(nobody, table)


def test_each_candidate_is_averaged_into_its_row() -> None:
    params = torch.tensor([[[1.0], [10.0]], [[3.0], [20.0]]])
    sent = trained(params, [1, 3])
    active = torch.tensor([[True, True], [True, False]])
    sent = replace(sent, rows=torch.tensor([1, 0]), active=active)
    both = Membership(torch.zeros(2, dtype=torch.int64), torch.ones(2, 2))
    rows = member_mean(torch.zeros(2, 1), sent, both)
    # row 1: (1*1 + 3*3)/4; row 0: client 0's second candidate alone
    assert rows.tolist() == [[10.0], [2.5]]
    counted = member_mean(torch.zeros(2, 1), sent, both, torch.tensor([True]))
    assert counted.tolist() == [[10.0], [3.0]], "of counters the largest is taken"


@pytest.mark.parametrize(("weighting", "mean"), [("samples", 4.0), ("uniform", 3.0)])
def test_the_rest_of_a_partly_shared_model_stays_personal(weighting: Any, mean: float) -> None:
    sent = trained(torch.tensor([[[1.0, 2.0]], [[5.0, 6.0]]]), [1, 3], ids=[2, 0])
    models = torch.tensor([[0.0, 7.0], [0.0, 8.0], [0.0, 9.0]])
    rows = partial_mean(models, sent, torch.tensor([True, False]), weighting=weighting)
    assert rows.tolist() == [[mean, 6.0], [mean, 8.0], [mean, 2.0]]
    assert models.tolist() == [[0.0, 7.0], [0.0, 8.0], [0.0, 9.0]]


def test_a_bank_that_shares_rows_becomes_partly_shared_like_a_tensor() -> None:
    sent = trained(torch.tensor([[[1.0, 2.0]], [[5.0, 6.0]]]), [1, 3], ids=[2, 0])
    bank = ModelBank.repeated(torch.tensor([0.0, 7.0]), 3, RowStore(10**6))
    rows = partial_mean(bank, sent, torch.tensor([True, False]))
    assert isinstance(rows, ModelBank)
    assert rows.tolist() == [[4.0, 6.0], [4.0, 7.0], [4.0, 2.0]]
    assert bank.tolist() == [[0.0, 7.0]] * 3


def test_a_model_of_more_than_one_block_is_averaged_whole() -> None:
    uploads = torch.arange(2.0)[:, None] + torch.arange(2 * BLOCK + 3.0)
    averaged = weighted_mean(torch.zeros(1, 2 * BLOCK + 3), uploads, weights((1, 1)))
    assert torch.equal(averaged[0], torch.arange(2 * BLOCK + 3.0) + 0.5)


def test_a_k_means_from_given_centres_by_hand() -> None:
    """Uploads 0, 3 and 10 of weights 2, 1 and 1; centres 0, 5 and 99.

    3 is 2 from 5: its mean with 10 is 6.5. From there it is further than from 0, and so in the end
    (2 * 0 + 3) / 3 = 1 and 10; nobody is near 99, which stays, and is not moved to a free upload.
    """
    uploads, weights = torch.tensor([[0.0], [3.0], [10.0]]), torch.tensor([2.0, 1.0, 1.0]).double()
    centres = torch.tensor([[0.0], [5.0], [99.0]])
    assert lloyd(centres, uploads, weights).tolist() == [[1.0], [10.0], [99.0]]
    assert centres.tolist() == [[0.0], [5.0], [99.0]], "those given are not changed"
    other = lloyd(centres[[2, 0, 1]], uploads, weights)
    assert other.tolist() == [[99.0], [1.0], [10.0]], "a centre keeps its place"


def test_effective_steps_by_hand() -> None:
    steps = torch.tensor([0, 1, 3])
    assert effective_steps(steps).tolist() == [0.0, 1.0, 3.0]
    # momentum .5: z = 1, 1.5, 1.75
    assert effective_steps(steps, 0.5).tolist() == [0.0, 1.0, 4.25]
    # shrink .5: 1 + .5 + .25
    assert effective_steps(steps, shrink=0.5).tolist() == [0.0, 1.0, 1.75]
    assert effective_steps(steps).dtype == torch.float64


def test_nothing_sent_changes_nothing() -> None:
    rows = torch.tensor([[1.0, 2.0]])
    averaged = weighted_mean(rows, torch.zeros(0, 2), torch.zeros(1, 0, dtype=torch.float64))
    assert averaged.tolist() == [[1.0, 2.0]]
