"""pFedMe: the inner steps and the server by hand, and the setting in which it is FedAvg."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import THREE, Constant, create, toy_upload
from small import weighed
from toy import CLIENTS, Play, composition, watching

import flbench as fl
from flbench_plugins.pfedme import MEMORY, Envelope

TRAIN = fl.Stage("train", torch.arange(2), 1)
X, Y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)


def client(**settings: Any) -> Envelope:
    """w = (1, 0, 0), and f(theta) = ||theta - (1, 0, 4)||^2 / 2."""
    module = Envelope(Constant(1.0, 0.0, 0.0), fl.LocalTraining(lr=0.25))
    module.method = create("pfedme", **settings)
    target = torch.tensor([1.0, 0.0, 4.0])
    module.loss_function = lambda batch: (batch.logits[0] - target).square().sum() / 2
    module.layout = fl.ParameterLayout.of(module)
    return module


def test_two_inner_steps_by_hand() -> None:
    """Only the third scalar moves: grad f = u - 4, lambda = 1, eta_p = .25.

    u = 0 - .25 (-4) = 1, then 1 - .25 ((1 - 4) + 1) = 1.5. The envelope is (4 - 1.5)^2 / 2 +
    1.5^2 / 2 = 4.25, its gradient -1.5.
    """
    module = client(k=2, lam=1.0)
    loss = module.training_step((X, Y), 0)
    loss.backward()
    assert loss.item() == 4.25
    slope = module.net.logits.grad
    assert slope is not None and slope.tolist() == [0.0, 0.0, -1.5]
    assert client(k=1, lam=1.0, inner_lr=0.5).inner(client().weights(), X, Y)["logits"][2] == 2.0


def test_the_personal_model_by_hand() -> None:
    """w + u of the test above; the same from two samples as from one pass of 300."""
    report = create("pfedme").report(TRAIN)
    for size in (2, 300):
        x, y = torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64)
        found = report(client(k=2, lam=1.0), x, y).kept[MEMORY]
        torch.testing.assert_close(found, torch.tensor([1.0, 0.0, 1.5]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 3.0), ({"beta": 0.5}, 2.0), ({"weighting": "samples"}, 3.5), ({"beta": 2.0}, 5.0)],
)
def test_the_server_by_hand(settings: Any, expected: float) -> None:
    """w = 1, the clients' w_i 2 (of 10 samples) and 4 (of 30)."""
    home = fl.Membership(torch.zeros(2, dtype=torch.int64))
    state, ctx = fl.State(0, torch.ones(1, 3), home), SimpleNamespace(layout=THREE)
    upload = toy_upload([[2.0] * 3, [4.0] * 3], [1.0, 1.0])
    upload.samples[1] = 30
    rule = create("pfedme", **settings)
    rows = rule.aggregate(state, weighed(rule, upload), home, ctx).rows
    assert rows.tolist() == [[expected] * 3]


def test_who_has_no_personal_model_has_that_of_the_server() -> None:
    theta = torch.tensor([[torch.nan] * 3, [1.0, 2.0, 3.0]])
    home = fl.Membership(torch.zeros(2, dtype=torch.int64))
    state = fl.State(0, torch.full((1, 3), 9.0), home, {MEMORY: theta})
    found = create("pfedme").personalise(state, torch.arange(2))
    assert found.params.tolist() == [[9.0] * 3, [1.0, 2.0, 3.0]]
    assert found.others["global"].row.tolist() == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_one_inner_step_that_undoes_lambda_is_fedavg(executor: str, play_toy: Play) -> None:
    """K = 1 and eta_p = 1 / lambda: u = -grad f(w) / lambda, so -lambda u is the gradient."""
    settings = {"k": 1, "lam": 4.0, "inner_lr": 0.25, "weighting": "samples"}
    found = play_toy("pfedme", settings=settings, executor=executor)
    fedavg = play_toy("fedavg", executor=executor)
    torch.testing.assert_close(found.state.models, fedavg.state.models)
    curves = found.run.history.curves, fedavg.run.history.curves
    assert curves[0]["accuracy_global"] == curves[1]["accuracy"]
    assert found.run.ledger.totals == fedavg.run.ledger.totals
    more = play_toy("pfedme", settings={**settings, "k": 2}, executor=executor)
    assert (more.state.models - fedavg.state.models).abs().max() > 1e-3


@pytest.mark.slow
def test_theta_fits_the_client_better_than_its_w(play_toy: Play) -> None:
    """It is further along the client's own gradient, and within f(w) / lambda of w."""
    uploads: list[Any] = []
    layers = (("pfedme", create("pfedme", lam=5.0)), ("watch", watching(uploads)))
    played = play_toy(composition(*layers), rounds=1)
    ctx, theta, ids = played.run.context, played.state.memory[MEMORY], uploads[0].ids
    pair = [ctx.evaluate(rows, ids, "train").diag() for rows in (theta[ids], uploads[0].selected())]
    assert (pair[0] < pair[1]).all()
    met = ~theta.isnan().any(dim=1)
    assert met.nonzero()[:, 0].tolist() == ids.tolist() and len(ids) < CLIENTS
