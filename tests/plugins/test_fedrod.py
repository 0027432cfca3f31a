"""FedRoD: both losses by hand, laws, and the head that stays with its client."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mentions import mention
from torch import Tensor, nn
from toy import (
    CLIENTS,
    Play,
    Played,
    composition,
    plain_work,
    same_evaluations,
    toy_dataset,
    watching,
)

import flbench as fl
from flbench.run.evaluation import evaluate
from flbench.run.rounds import round_context
from flbench_plugins.fedrod import FedRoD, TwoHeads

HARD = {"epochs": 2, "batch_size": 3, "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}
RAGGED = {"partition": {"name": "iid"}, "participation": 1.0, "dataset": toy_dataset(samples=105)}


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


def part(played: Played, rows: Tensor, prefix: str = "net.") -> Tensor:
    """The scalars of some tensors."""
    slots = [slot for slot in played.run.context.layout.slots if slot.name.startswith(prefix)]
    return torch.cat([rows[..., slot.start : slot.stop] for slot in slots], dim=-1)


def asked(played: Played) -> fl.Personal:
    ctx = round_context(played.run, played.state.round)
    return played.run.hooks.personalise(played.state, ctx.everybody, ctx)


def two_heads(psi: list[list[float]], prior: Tensor | None = None) -> TwoHeads:
    """z = x, G = (x_0 + 2 x_1, x_0 / 2 - x_1), Q = psi x."""
    net = nn.Sequential(OrderedDict(body=nn.Identity(), head=nn.Linear(2, 2, bias=False)))
    net.head.weight.data = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    module = TwoHeads(net, fl.LocalTraining(), nn.Linear(2, 2))
    module.psi.weight.data, module.psi.bias.data = torch.tensor(psi), torch.zeros(2)
    module.received = {} if prior is None else {"prior": prior}
    return module


def told(gamma: float, *counts: list[int]) -> dict[str, Tensor]:
    own: Any = lambda ids: torch.tensor(counts)[ids]  # noqa: E731
    ctx: Any = SimpleNamespace(own_label_counts=own, initial=torch.zeros(1))
    return FedRoD(gamma=gamma).prior(torch.arange(len(counts)), ctx)


def test_the_balanced_loss_by_hand() -> None:  # T09
    (prior,) = told(1.0, [3, 1])["prior"]
    module = two_heads([[0.0, 0.0], [0.0, 0.0]], prior)
    module.net.head.weight.data.zero_()
    batch = torch.ones(1, 2), torch.tensor([0])
    generic = module.training_step(batch, 0).item() - math.log(2)
    assert generic == pytest.approx(-math.log(0.75))
    assert generic == pytest.approx(0.28768, abs=1e-5)
    (module.received["prior"],) = told(2.0, [3, 1])["prior"]
    assert module.training_step(batch, 0).item() - math.log(2) == pytest.approx(-math.log(0.9))


def test_a_class_that_a_client_lacks_never_wins_and_breaks_nothing() -> None:
    prior = told(0.5, [4, 0], [3, 1])["prior"]
    assert prior.tolist()[0] == [pytest.approx(math.log(2)), -math.inf]
    module = two_heads([[0.0, 0.0], [0.0, 0.0]], prior[0])
    module.training_step((torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)), 0).backward()
    assert not module.net.head.weight.grad.any(), "one class alone has nothing to learn"
    assert told(0.0, [4, 0]) == {}, "0 times -inf is not a number"


def test_the_personal_loss_moves_the_personal_head_alone() -> None:  # T09
    x, y = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([0, 1])
    grads = []
    for psi in ([[0.0, 0.0], [0.0, 0.0]], [[5.0, -3.0], [7.0, 2.0]]):
        module = two_heads(psi, torch.tensor([0.3, -0.2]))
        module.net.body = nn.Linear(2, 2, bias=False)
        module.net.body.weight.data = torch.eye(2)
        loss = module.training_step((x, y), 0)
        loss.backward()
        grads.append(torch.cat([p.grad for p in module.net.parameters()]))
        logits = x @ (module.net.head.weight + module.psi.weight).T
        wrong = (logits.softmax(dim=1) - F.one_hot(y)) / 2
        torch.testing.assert_close(module.psi.weight.grad, wrong.T @ x)
        torch.testing.assert_close(module.psi.bias.grad, wrong.sum(dim=0))
        generic = F.cross_entropy(x @ module.net.head.weight.T + torch.tensor([0.3, -0.2]), y)
        torch.testing.assert_close(loss, generic + F.cross_entropy(logits, y))
    assert grads[0].any()
    assert torch.equal(*grads), "whatever the personal head says"


def test_a_client_predicts_by_the_sum_of_both_heads() -> None:
    module, x = two_heads([[0.0, 1.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    assert module(x).tolist() == [[3.0, -0.5]]
    assert module.predict(x).tolist() == [[4.0, 2.5]]
    torch.testing.assert_close(two_heads([[0.0, 0.0], [0.0, 0.0]]).predict(x), module(x))


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, RAGGED, {"net": batchnorm, **RAGGED}])
def test_without_a_prior_the_generic_model_is_fedavgs(
    play_toy: Play, more: dict[str, Any]
) -> None:  # T09
    rod = play_toy("fedrod", settings={"gamma": 0}, executor="sequential", local=HARD, **more)
    fedavg = play_toy("fedavg", executor="sequential", local=HARD, **more)
    assert torch.equal(part(rod, rod.state.models[0]), fedavg.state.models[0])
    assert rod.run.history.curves["accuracy_generic"] == fedavg.run.history.curves["accuracy"]
    assert rod.run.history.last.correct != fedavg.run.history.last.correct, "psi had a say"
    assert rod.run.ledger.totals == fedavg.run.ledger.totals, "psi never crosses"
    copy = {"gamma": 0, "psi": "copy"}
    copied = play_toy("fedrod", settings=copy, executor="sequential", local=HARD, **more)
    assert torch.equal(part(copied, copied.state.models[0]), fedavg.state.models[0])
    assert copied.run.history.curves["accuracy_generic"] == fedavg.run.history.curves["accuracy"]
    prior = play_toy("fedrod", executor="sequential", local=HARD, **more)
    assert not torch.equal(part(prior, prior.state.models[0]), fedavg.state.models[0])
    assert prior.run.ledger.totals == fedavg.run.ledger.totals, "nor do class counts"


def test_a_personal_head_of_zero_predicts_as_the_generic_model(play_toy: Play) -> None:  # T09
    played = play_toy("fedrod")
    run, everybody = played.run, played.run.context.everybody

    def judged(state: fl.State) -> Any:
        personal = asked(replace(played, state=state))
        return evaluate(run.executor, personal, state, run.held_out, everybody, plain_work)

    psi = played.state.memory["fedrod.psi"]
    none = judged(played.state.remember({"fedrod.psi": torch.zeros_like(psi)}))
    assert none.headline() == pytest.approx(none.others["generic"], abs=1e-6)
    assert run.history.curves["accuracy_generic"][-1] == none.others["generic"]
    assert judged(played.state).correct == run.history.last.correct != none.correct
    rows, prior = asked(played).params, asked(played).extras["prior"]
    assert torch.equal(prior, run.context.label_counts.float().log()), "for further training"
    assert torch.equal(part(played, rows, "psi."), psi)
    assert (part(played, rows) == part(played, played.state.models[0])).all()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["zeros", "copy"])
def test_personal_heads_start_alike_and_stay_with_their_clients(play_toy: Play, start: str) -> None:
    starts: list[Any] = []

    @dataclass(frozen=True)
    class Watch:
        @fl.hookimpl
        def local_term(self) -> Any:
            def term(module: fl.ClientModule) -> Tensor:
                starts.append((module.start.clone(), module.received["prior"]))
                return torch.zeros(())

            return term

    uploads: list[Any] = []
    layers = (("fedrod", FedRoD(psi=start)), ("watch", Watch()), ("more", watching(uploads)))
    one_step = {"epochs": 1, "batch_size": 16, "lr": 0.1}
    played = play_toy(composition(*layers), local=one_step, rounds=4, executor="sequential")
    initial = played.run.context.initial
    first = part(played, initial, "psi.")
    head = part(played, initial, "net.head")
    assert torch.equal(first, head if start == "copy" else torch.zeros(16))
    psi, at = first.expand(CLIENTS, -1).clone(), iter(starts)
    for upload in uploads:
        for place, client in enumerate(upload.ids.tolist()):
            began, prior = next(at)
            assert torch.equal(part(played, began, "psi."), psi[client]), "as it was left"
            samples = played.run.executor.samples
            counts = torch.bincount(samples.y[samples.splits["train"][client]], minlength=4)
            assert torch.equal(prior, counts.float().log())
            psi[client] = part(played, upload.selected()[place], "psi.")
            assert not torch.equal(psi[client], part(played, began, "psi."))
    assert torch.equal(played.state.memory["fedrod.psi"], psi)
    assert torch.equal(part(played, played.state.models[0], "psi."), first)
    assert len(uploads) == 4
    assert next(at, None) is None


@pytest.mark.slow
def test_a_newcomer_is_served_by_the_generic_model(play_toy: Play) -> None:
    more = {"unseen": 0.34, "partition": {"name": "iid"}}
    unseen = play_toy("fedrod", settings={"gamma": 0}, **more).result.unseen
    assert unseen.correct == play_toy("fedavg", **more).result.unseen.correct
    assert play_toy("fedrod", unseen_epochs=2, **more).result.unseen is not None


@pytest.mark.slow
def test_a_group_of_everybody_changes_nothing(play_toy: Play) -> None:
    one = {"partition": {"name": "label-groups", "groups": 1}}
    both = play_toy("oracle+fedrod", settings={"warmup": 1}, **one)
    alone = play_toy("fedrod", **one)
    same_evaluations(both, alone)
    two = play_toy("oracle+fedrod", settings={"warmup": 1})
    assert len(two.state.models) == 2
    assert two.state.memory["fedrod.psi"].shape == (CLIENTS, 16)


@pytest.mark.slow
@pytest.mark.parametrize("net", [None, batchnorm])
@pytest.mark.parametrize("settings", [{}, {"gamma": 0}, {"psi": "copy", "gamma": 0.5}])
def test_executors_agree(play_toy: Play, settings: dict[str, Any], net: Any) -> None:
    local = {"epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.5}
    more = {"settings": settings, "net": net, "local": local, **RAGGED, "rounds": 2}
    pair = [play_toy("fedrod", executor=e, **more) for e in ("sequential", "vectorised")]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=1e-5, atol=1e-5)
    heads = [played.state.memory["fedrod.psi"] for played in pair]
    torch.testing.assert_close(*heads, rtol=0, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
    assert pair[0].run.history.last.correct == pair[1].run.history.last.correct


def test_a_personal_head_is_of_the_heads_kind(play_toy: Play) -> None:
    played = play_toy("fedrod", net=lambda: nn.Linear(3, 4, bias=False), settings={"psi": "copy"})
    slots = [slot.name for slot in played.run.context.layout.slots]
    assert slots == ["net.weight", "psi.weight"], "the whole network is the head here"
    initial = played.run.context.initial
    assert torch.equal(part(played, initial, "psi."), part(played, initial))


def test_a_network_without_a_head_is_refused(play_toy: Play) -> None:
    with pytest.raises(fl.Undefined, match=mention("network", "personal")):
        play_toy("fedrod", net=lambda: nn.BatchNorm1d(3))
