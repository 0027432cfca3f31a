"""Methods to compare with: the client's own labels, ids, trees, random levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from toy import Play, Played

from flbench.core.dataset import Dataset
from flbench_plugins import boosting, linear, random_intercept
from flbench_plugins.boosting import Classifier


def natural(y: torch.Tensor, x: torch.Tensor, each: int) -> Dataset:
    """Clients of `each` samples, in order."""
    domains = torch.arange(len(y)) // each
    return Dataset("made", x.float(), y.long(), int(y.max()) + 1, domains)


def opposite(each: int = 60, clients: int = 6) -> Dataset:
    """The label is whether x_0 > 0 or < 0: the odd clients mean the opposite of the even ones."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(each * clients, 3, generator=generator)
    odd = (torch.arange(len(x)) // each) % 2
    return natural((x[:, 0] > 0).long() ^ odd, x, each)


def played(play_toy: Play, method: str, data: Dataset, **changes: Any) -> Played:
    fields = {"partition": {"name": "natural"}, "rounds": 1, "participation": 1.0, **changes}
    return play_toy(method, dataset=data, **fields)


def accuracy(found: Played) -> float:
    return float(found.result.summary["accuracy_mean"])


def nothing_crosses(found: Played) -> bool:
    return sum(sum(items.values()) for items in found.run.ledger.totals.values()) == 0


@pytest.mark.slow
def test_own_majority_by_hand(play_toy: Play) -> None:
    """Of twelve samples of a client, nine have the label k mod 3; a fifth of each is tested."""
    labels = torch.tensor([[k % 3] * 9 + [(k + 1) % 3] * 3 for k in range(6)]).flatten()
    data = natural(labels, torch.randn(72, 3), 12)
    found = played(play_toy, "own-majority", data)
    counts = found.run.context.label_counts.double()
    likely = (counts + 1 / 3) / (counts.sum(dim=1, keepdim=True) + 1)
    pool = found.run.held_out
    for client, rows in enumerate(pool.splits["test"]):
        own = pool.y[rows]
        assert found.result.clients.correct[client] == int((own == client % 3).sum())
        loss = -float(likely[client, own].log().sum())
        assert found.result.clients.loss[client] == pytest.approx(loss, rel=1e-4)
    assert torch.equal(found.state.models[0], found.run.context.initial)
    assert nothing_crosses(found)


@pytest.mark.slow
def test_one_model_with_ids_knows_who_asks(play_toy: Play) -> None:
    """Half of the clients have mostly label 0, the others label 1, whatever the sample is."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(360, 3, generator=generator)
    odd = (torch.arange(360) // 60) % 2
    rare = torch.rand(360, generator=generator) < 0.1
    data = natural(odd ^ rare.long(), x, 60)
    local = {"epochs": 1, "batch_size": 8, "lr": 0.1}
    alike, told = (
        accuracy(played(play_toy, method, data, rounds=12, local=local))
        for method in ("centralised", "centralised-id")
    )
    assert told > 0.8
    assert alike < 0.65


@pytest.mark.slow
def test_trees_alone_know_opposites_and_trees_of_all_do_not(play_toy: Play) -> None:
    alone = played(play_toy, "boosting-alone", opposite())
    pooled = played(play_toy, "boosting", opposite())
    assert accuracy(alone) > 0.85
    assert accuracy(pooled) < 0.65
    assert nothing_crosses(alone)
    sent = pooled.run.ledger.totals["up"]
    assert sent == {"samples": 4 * int(pooled.run.context.samples.sum()) * (3 + 1), "model": 0}


def test_lines_alone_and_slopes_of_each_know_opposites(play_toy: Play) -> None:
    alone = played(play_toy, "linear-alone", opposite())
    slopes = played(play_toy, "random-slopes", opposite())
    assert accuracy(alone) > 0.85
    assert accuracy(slopes) > 0.85
    assert nothing_crosses(alone)
    sent = slopes.run.ledger.totals["up"]
    assert sent == {"samples": 4 * int(slopes.run.context.samples.sum()) * (3 + 1), "model": 0}


@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 2, 2], [0, 1, 2]])
def test_lines_know_the_labels_that_a_client_has(labels: list[int]) -> None:
    x = np.array([[0.0, 1], [3, 0], [0, -3]])
    y = np.array(labels, dtype=np.int64)
    found = linear.fitted(x.tobytes(), y.tobytes(), (3, 2, 3), True, 100.0)
    outputs = x @ found[:, :2].T + found[:, 2]
    assert outputs.argmax(axis=1).tolist() == labels
    absent = [label for label in range(3) if label not in labels]
    assert (outputs[:, absent] < outputs.max(axis=1, keepdims=True) - 1).all()


def test_slopes_of_clients_are_pulled_to_those_of_all() -> None:
    """y = u_i x, u = 1 and 3: with a weak penalty both are met, with a strong one they meet."""
    x = np.array([[-1.0], [1], [-1], [1]])
    y = np.array([-1.0, 1, -3, 3])
    owners = np.array([0, 0, 1, 1])

    def slopes(inverse_penalty: float) -> list[float]:
        parts = (one.tobytes() for one in (x, y, owners))
        found = linear.pooled(*parts, (4, 1, 1), False, inverse_penalty)
        assert found.shape == (3, 1, 2)
        return found[:, 0, 0].tolist()

    assert slopes(1e6) == pytest.approx([1, 3, 4 / 3], abs=1e-3), "two thirds of 2 are common"
    near = slopes(0.05)
    assert near[1] - near[0] < 0.5 < near[1]


@pytest.mark.slow
def test_trees_learn_what_no_line_does(play_toy: Play) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=generator)
    y = (x[:, 0] > 0) ^ (x[:, 1] > 0)
    assert accuracy(played(play_toy, "boosting", natural(y, x, 100))) > 0.85


def test_a_client_of_one_label_predicts_its_shares() -> None:
    x, y = np.zeros((3, 2), dtype=np.float32), np.full(3, 2, dtype=np.int64)
    found = boosting.classifier(x.tobytes(), y.tobytes(), (3, 2, 3), 5, 0.1)
    assert found.model is None
    shares = np.log(np.array([1 / 3, 1 / 3, 3 + 1 / 3]) / 4)
    np.testing.assert_allclose(found.outputs(np.zeros((2, 2))), [shares, shares])


def test_labels_that_trees_do_not_know_are_unlikely_and_not_impossible() -> None:
    class Half:
        def predict_proba(self, table: np.ndarray) -> np.ndarray:
            return np.tile([0.25, 0.75], (len(table), 1))

    shares = np.log(np.array([0.4, 0.1, 0.5]))
    found = Classifier(Half(), np.array([0, 2]), shares).outputs(np.zeros((1, 1)))
    np.testing.assert_allclose(found, np.log([[0.25, 0.1, 0.75]]))


def levels(sizes: list[int]) -> tuple[np.ndarray, ...]:
    """Clients whose odds are e^2 to 1 and 1 to e^2 in turn; features say nothing."""
    generator = np.random.default_rng(0)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    chance = 1 / (1 + np.exp(-2.0 * np.where(owners % 2, 1, -1)))
    y = (generator.random(len(owners)) < chance).astype(np.int64)
    return generator.normal(size=(len(owners), 2)), y, owners


@pytest.mark.slow
def test_levels_are_found_and_those_of_few_samples_are_pulled_to_zero() -> None:
    pytest.importorskip("statsmodels", reason="random-intercept needs the extra `mixed`")
    sizes = [200] * 10 + [4, 4]
    x, y, owners = levels(sizes)
    parts = x.tobytes(), y.tobytes(), owners.tobytes()
    weights, own = random_intercept.fitted_classes(*parts, (len(y), 2, 2, len(sizes)))
    assert weights.shape == (1, 3)
    assert own.shape == (12, 1)
    assert abs(weights[0, :2]).max() < 0.2
    level = own[:, 0] + weights[0, 2]
    assert (np.sign(level[:10]) == np.where(np.arange(10) % 2, 1, -1)).all()
    assert abs(abs(level[:10]) - 2).max() < 0.6
    assert abs(own[10:]).max() < abs(own[:10]).min()


@pytest.mark.slow
def test_a_random_level_beats_one_line_for_all(play_toy: Play) -> None:
    pytest.importorskip("statsmodels", reason="random-intercept needs the extra `mixed`")
    x, y, _ = levels([60] * 6)
    data = natural(torch.from_numpy(y), torch.from_numpy(np.c_[x, x[:, :1]]), 60)
    found = played(play_toy, "random-intercept", data)
    assert accuracy(found) > 0.75
    three = natural((torch.arange(360) // 60) % 3, torch.randn(360, 3), 60)
    assert accuracy(played(play_toy, "random-intercept", three)) > 0.95, "of three labels"


def numbers(each: int = 60, clients: int = 6) -> Dataset:
    """y = x_0 + 3 for the odd clients, x_0 - 3 for the even ones, and a little noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(each * clients, 3, generator=generator)
    domains = torch.arange(len(x)) // each
    y = x[:, 0] + torch.where(domains % 2 == 1, 3.0, -3.0)
    y = y + 0.1 * torch.randn(len(x), generator=generator)
    return Dataset("made", x, y, 1, domains, task="numbers")


@pytest.mark.slow
def test_numbers_are_predicted_as_well(play_toy: Play) -> None:
    """All vary by 10: a mean of each leaves 1, levels leave .01 if the slope is known."""

    def error(method: str, **changes: Any) -> float:
        return float(played(play_toy, method, numbers(), **changes).result.summary["rmse_mean"])

    unit = 1 / np.sqrt(10)
    assert error("own-majority") == pytest.approx(unit, rel=0.2)
    assert error("random-intercept") == pytest.approx(0.1 * unit, rel=0.3)
    assert error("boosting-alone") < 0.6 * unit
    assert error("linear-alone") == pytest.approx(0.1 * unit, rel=0.3)
    assert error("random-slopes") == pytest.approx(0.1 * unit, rel=0.3)
    assert error("boosting") > 2.5 * unit, "it does not know who asks"
    told = error("centralised-id", rounds=12, local={"epochs": 1, "batch_size": 8, "lr": 0.25})
    assert told < 0.5 * unit
