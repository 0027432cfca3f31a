"""What clients are tested with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tent import Adapts, Tent
from torch import nn
from toy import CLIENTS, Play, Played, composition, plain_work

from flbench import ClientModule, Membership, Personal, Stage, State, Upload, hookimpl
from flbench.core.client_module import LocalWork
from flbench.core.context import Context
from flbench.core.state import Dispatched
from flbench.run.evaluation import SELECTION, adapted_models, evaluate, selection_quality
from flbench.run.history import Evaluation

EVERYBODY = torch.arange(CLIENTS)


def evaluated(played: Played, personal: Personal) -> Evaluation:
    """All clients on their test samples, each with what `personal` says."""
    run, state = played.run, played.state
    return evaluate(run.executor, personal, state, run.held_out, EVERYBODY, plain_work)


def test_personal_models_are_adapted_before_they_are_tested(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    row, stage = played.state.membership.home, Stage("train", EVERYBODY, 5)
    common, asked = Personal(row=row), Personal(row=row, adaptation=stage)
    adapted = adapted_models(played.run.executor, common, played.state, stage, plain_work)
    assert (
        evaluated(played, asked).loss
        == evaluated(played, adapted).loss
        != evaluated(played, common).loss
    )
    both = evaluated(played, Personal(row=row, others={"tuned": asked}))
    assert both.loss == evaluated(played, common).loss
    assert both.others["tuned"] == pytest.approx(evaluated(played, adapted).headline(), abs=1e-6)


def test_further_figures_are_means_over_clients_not_over_samples(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1, partition={"name": "dirichlet", "alpha": 0.5})
    one = Personal(row=played.state.membership.home)
    found = evaluated(played, Personal(row=one.row, others={"same": one}))
    assert sum(found.correct) / sum(found.tested) != pytest.approx(found.headline(), abs=1e-6)
    assert found.others["same"] == pytest.approx(found.headline(), abs=1e-6)


def test_fine_tuning_takes_the_epochs_that_are_asked_for(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play_toy("fedavg", rounds=1).run
    fit, epochs = run.executor.fit, []

    def noted(start: Dispatched, stage: Stage, work: LocalWork, round_: int) -> Upload:
        epochs.append(stage.epochs)
        return fit(start, stage, work, round_)

    monkeypatch.setattr(run.executor, "fit", noted)
    personal = Personal(row=torch.zeros(CLIENTS, dtype=torch.int64))
    state = State(1, run.context.initial[None], Membership(personal.row))
    found = evaluate(run.executor, personal, state, run.held_out, EVERYBODY, plain_work, 3)
    assert epochs == [3]
    assert list(found.others) == ["fine_tuned"]


def test_models_of_ones_own_are_adapted_in_a_copy(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    rows = played.run.context.initial.repeat(CLIENTS, 1)
    stage, before = Stage("train", EVERYBODY, 1), rows.clone()
    tuned = adapted_models(
        played.run.executor, Personal(params=rows), played.state, stage, plain_work
    ).params
    assert tuned is not None
    assert not torch.equal(tuned, before)
    assert torch.equal(rows, before)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


def test_a_model_may_adapt_to_the_test_samples_of_its_client(play_toy: Play) -> None:
    """Tent by hand, on a copy of the network; all samples of a client are in one call."""
    run, state = (played := play_toy("fedavg", rounds=2, net=normed)).run, played.state
    home = state.membership.home
    (predict,) = (Tent().personalise(),)
    next(predict)
    with pytest.raises(StopIteration) as end:
        predict.send(Personal(row=home))
    found = evaluated(played, end.value.value)
    module, layout = run.executor.workspace.module, run.executor.workspace.layout
    held_out = run.held_out
    for client in range(CLIENTS):
        rows = held_out.splits["test"][client]
        x, y = held_out.x[rows], held_out.y[rows]
        net = normed()
        net.load_state_dict(
            {
                name.removeprefix("net."): tensor
                for name, tensor in layout.unflatten(state.models[home[client]]).items()
            }
        )
        p = net.train()(x).softmax(dim=1)
        (-(p * p.log()).sum(dim=1).mean()).backward()
        with torch.no_grad():
            for weight in net[1].parameters():
                weight -= 0.5 * weight.grad
            loss = nn.functional.cross_entropy(net(x), y, reduction="sum")
        assert found.loss[client] == pytest.approx(float(loss), abs=1e-4)
    assert found.loss != pytest.approx(evaluated(played, Personal(row=home)).loss, abs=1e-3)
    last = layout.flatten(module)
    assert torch.equal(last, state.models[home[-1]]), "the module has its model again"
    assert not module.training and not any(part.training for part in module.modules())


def test_what_a_prediction_does_to_the_module_is_undone(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1, net=normed)
    module = played.run.executor.workspace.module
    seen: list[bool] = []

    def predict(module: ClientModule, x: torch.Tensor) -> torch.Tensor:
        seen.append(module.training)
        module.train()
        with torch.enable_grad():
            for weight in module.parameters():
                weight.requires_grad_(weight.dim() > 1)
            module(x).sum().backward()
        for weight in module.parameters():
            weight.data.zero_()
        return module(x)

    before = evaluated(played, Personal(row=played.state.membership.home))
    evaluated(played, Personal(row=played.state.membership.home, predictor=predict))
    assert seen and not any(seen)
    assert all(weight.requires_grad and weight.grad is None for weight in module.parameters())
    assert evaluated(played, Personal(row=played.state.membership.home)).loss == before.loss


class Watched:
    """Brings a module that adapts, asks for losses in training, and uses its logits."""

    @hookimpl
    def client_module(self, net: nn.Module, ctx: Context) -> ClientModule:
        return Adapts(net, ctx.local)

    @hookimpl
    def plan(self, ctx: Context) -> list[Stage]:
        return [Stage("train", ctx.cohort, ctx.local.epochs, losses=True)]

    @hookimpl
    def aggregate(self, state: State, upload: Upload, ctx: Context) -> None:
        x, _ = ctx.client_data(0)
        before = upload.params.clone()
        logits = ctx.logits(upload.params[:, 0], x)
        ctx.note("watched.logits", float(logits.sum()))
        ctx.note("watched.loss", float(ctx.evaluate(upload.params[:, 0], ctx.cohort).sum()))
        assert torch.equal(before, upload.params), "the models that were looked at are as before"


def test_a_module_that_adapts_is_evaluated_alike_in_lanes(play_toy: Play) -> None:
    ends = [
        play_toy(composition(("watched", Watched())), executor=executor, rounds=2)
        for executor in ("sequential", "vectorised")
    ]
    one, other = (end.run.history for end in ends)
    for name in ("loss", "accuracy", "train_loss"):
        assert one.curves[name] == pytest.approx(other.curves[name], abs=1e-5)
    for first, second in zip(one.notes, other.notes, strict=True):
        assert first["value"] == pytest.approx(second["value"], rel=1e-4)
    plain = play_toy("fedavg", rounds=2)
    assert torch.equal(plain.state.models, ends[0].state.models), "training is as without it"
    assert one.last.loss != pytest.approx(plain.run.history.last.loss, abs=1e-4)


def test_a_result_says_which_predictions_look_at_a_whole_client(play_toy: Play) -> None:
    class Marks:
        @hookimpl
        def personalise(self, state: State) -> Personal:
            row = state.membership.home
            return Personal(row=row, others={"tent": Personal(row=row, transductive=True)})

    played = play_toy(composition(("marks", Marks())), rounds=3)
    told = "'tent' of a client look at all of its test samples together (transductive)"
    assert played.run.history.warnings == [told]


def test_a_selection_of_clients_without_rows_has_no_quality() -> None:
    nobody = Membership(torch.full((4,), -1), torch.zeros(2, 4))
    found = selection_quality(nobody, None, torch.ones(4, 3, dtype=torch.int64))
    assert found == dict.fromkeys(SELECTION)


def test_groups_are_numbered_by_first_appearance(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    home = torch.tensor([4, 4, -1, 2, 4, 2])
    state = replace(played.state, membership=Membership(home))
    row = torch.zeros(CLIENTS, dtype=torch.int64)
    assert evaluated(replace(played, state=state), Personal(row=row)).labels == [0, 0, -1, 1, 0, 1]
