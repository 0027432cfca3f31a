"""Local training and cross-evaluation, by hand and by law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from mentions import mention
from torch import Tensor, nn
from toy import CLIENTS, Play, composition, toy_dataset, toy_suite, watching

from flbench import (
    ClientModule,
    LocalPhase,
    LocalTraining,
    Membership,
    Setup,
    Stage,
    Start,
    hookimpl,
)
from flbench.core.client_module import LocalWork
from flbench.core.state import Dispatched
from flbench.engine.batches import orders, steps, subset
from flbench.engine.cross_evaluation import cross_evaluate, logits_of
from flbench.engine.model_evaluation import CHUNK, chunk, evaluate_model
from flbench.engine.sequential import mean_in_order
from flbench.errors import Diverged, PluginError
from flbench.federation.pooled import Pooled
from flbench.run.rounds import cohort
from flbench.toolbox.aggregation import weighted_mean


def modules(change: Callable[[nn.Module, Any], ClientModule]) -> Any:
    """A method that answers `client_module`."""

    @dataclass(frozen=True)
    class Changed:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return change(net, ctx)

    return Changed()


def test_fedavg_is_ten_lines_of_plain_torch(play_toy: Play) -> None:
    """The reference: three rounds of FedAvg with torch's own optimiser, written out."""
    ragged = {"dataset": toy_dataset(samples=105), "partition": {"name": "iid"}}
    played = play_toy("fedavg", **ragged)
    run, local = played.run, played.job.suite.local
    assert len(set(run.executor.samples.sizes("train").tolist())) > 1, "weights matter"
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 4))
    w = run.context.initial.clone()
    samples = run.executor.samples
    for round_ in (1, 2, 3):
        total, mean = 0, torch.zeros_like(w, dtype=torch.float64)
        for client in cohort(played.job.suite, 0, round_).tolist():
            nn.utils.vector_to_parameters(w.clone(), net.parameters())
            rule = torch.optim.SGD(net.parameters(), lr=local.lr, momentum=local.momentum)
            rows = samples.splits["train"][client]
            for order in orders(len(rows), local.epochs, 0, round_, client, "train", 0):
                for batch in torch.as_tensor(order).split(local.batch_size):
                    rule.zero_grad()
                    F.cross_entropy(net(samples.x[rows][batch]), samples.y[rows][batch]).backward()
                    rule.step()
            mean += len(rows) * nn.utils.parameters_to_vector(net.parameters()).detach().double()
            total += len(rows)
        w = (mean / total).float()
    torch.testing.assert_close(played.state.models[0], w, rtol=0, atol=1e-6)


def test_one_full_batch_step_by_hand(play_toy: Play) -> None:
    """Two clients of equal size, one step each: the mean of w - lr g_i."""
    local = LocalTraining(epochs=1, batch_size=1000, lr=0.5)
    played = play_toy("fedavg", rounds=1, participation=1.0, clients=2, local=local)
    run, initial = played.run, played.run.context.initial
    ends = []
    for client in (0, 1):
        space, rows = run.executor.workspace, run.executor.samples.splits["train"][client]
        space.load(initial)
        space.module.zero_grad()
        x, y = run.executor.samples.x[rows], run.executor.samples.y[rows]
        F.cross_entropy(space.module(x), y).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in space.module.parameters()])
        ends.append(initial - 0.5 * gradient)
    sizes = run.executor.samples.sizes("train").double()
    expected = weighted_mean(initial[None], torch.stack(ends), sizes[None])
    torch.testing.assert_close(played.state.models, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("samples", "size", "per_step", "skip", "expected"),
    [
        (10, 4, 1, False, [[4], [4], [2]]),
        (9, 4, 1, False, [[4], [4], [1]]),
        (9, 4, 1, True, [[4], [4]]),
        (1, 4, 1, True, []),
        (10, 4, 2, False, [[4, 4]]),
        (10, 2, 3, False, [[2, 2, 2]]),
        (0, 4, 1, False, []),
    ],
)
def test_batches_of_an_epoch(
    samples: int, size: int, per_step: int, skip: bool, expected: list[list[int]]
) -> None:
    cut = steps(samples, size, per_step, skip_single=skip)
    assert [[part.stop - part.start for part in step] for step in cut] == expected


def test_two_phases_move_only_what_they_may(play_toy: Play) -> None:
    """The mask acts on the update: momentum and weight decay cannot leak through it."""
    seen: list[tuple[Tensor, Tensor]] = []

    class HeadThenBody(ClientModule):
        def phases(self, epochs: int) -> Sequence[LocalPhase]:
            return (LocalPhase(epochs - 1, HEAD), LocalPhase(1, ~HEAD))

        def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            seen.append((self.start.clone(), self.flat().detach().clone()))
            return {}

    class OnlyHead(HeadThenBody):
        def phases(self, epochs: int) -> Sequence[LocalPhase]:
            return (LocalPhase(epochs, HEAD),)

    local = LocalTraining(epochs=3, batch_size=4, lr=0.1, momentum=0.9, weight_decay=1e-2)
    HEAD = torch.arange(28) >= 12  # 3*3+3 in the body, 3*4+4 in the head
    for kind, body_moves in ((OnlyHead, False), (HeadThenBody, True)):
        seen.clear()
        plugin = modules(lambda net, ctx, kind=kind: kind(net, ctx.local))
        play_toy(composition(("phased", plugin)), local=local, rounds=1)
        assert len(seen) == 3
        for start, end in seen:
            assert torch.equal(start[~HEAD], end[~HEAD]) is not body_moves
            assert not torch.equal(start[HEAD], end[HEAD])


def test_a_step_can_take_several_batches(play_toy: Play) -> None:
    taken: list[int] = []

    class Pairs(ClientModule):
        batches_per_step: ClassVar[int] = 2

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            taken.append(len(batch))
            return super().training_step(batch[0], batch_idx)

    plugin = modules(lambda net, ctx: Pairs(net, ctx.local))
    played = play_toy(composition(("pairs", plugin)), rounds=1, participation=1.0)
    sizes = played.run.executor.samples.sizes("train").tolist()
    assert taken == [2] * sum(2 * (-(-n // 4) // 2) for n in sizes)


@pytest.mark.slow
def test_local_terms_of_all_plugins_are_added(play_toy: Play) -> None:
    """mu/2 ||w - start||^2 for two plugins of mu/2 each is the one of mu."""

    def near(mu: float) -> Any:
        @dataclass(frozen=True)
        class Near:
            @hookimpl
            def local_term(self) -> Callable[[ClientModule], Tensor]:
                return lambda m: mu / 2 * (m.flat() - m.start[: len(m.flat())]).square().sum()

        return Near()

    halves = play_toy(composition(("one", near(0.5)), ("two", near(0.5))))
    whole = play_toy(composition(("one", near(1.0))))
    torch.testing.assert_close(halves.state.models, whole.state.models, rtol=0, atol=1e-6)
    free = play_toy("fedavg")
    assert torch.equal(play_toy(composition(("none", near(0.0)))).state.models, free.state.models)
    away = (free.state.models - free.run.context.initial).norm()
    assert (whole.state.models - free.run.context.initial).norm() < away


def test_extras_go_down_and_reports_come_up(play_toy: Play) -> None:
    received: list[float] = []
    uploads: list[Any] = []

    class Talks(ClientModule):
        def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            received.append(float(self.received["word"] + self.received["own"]))
            return {"answer": torch.tensor([float(len(y)), 1.0])}

    @dataclass(frozen=True)
    class Talk:
        @hookimpl
        def client_module(self, net: nn.Module, ctx: Any) -> ClientModule:
            return Talks(net, ctx.local)

        @hookimpl
        def dispatch(self, stage: Stage) -> Start:
            ids = stage.clients.float()
            return Start(extras={"word": ids}, client_memory={"own": ids * 100})

        @hookimpl
        def aggregate(self, upload: Any) -> None:
            uploads.append(upload)

    played = play_toy(composition(("talk", Talk())), rounds=1)
    ids = uploads[0].ids
    assert received == [101.0 * i for i in ids.tolist()]
    assert uploads[0].extras["answer"].tolist() == [[float(n), 1.0] for n in uploads[0].samples]
    totals = played.run.ledger.totals
    assert totals["down"]["word"] == 4 * len(ids)
    assert totals["up"]["answer"] == 8 * len(ids)
    assert "own" not in totals["down"]


@pytest.mark.slow
def test_dropout_has_an_address_and_leaves_the_global_generator_alone(play_toy: Play) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = play_toy("fedavg", net=net)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    assert torch.equal(play_toy("fedavg", net=net).state.models, one.state.models)


def test_batchnorm_skips_a_single_sample_and_counts_steps(play_toy: Play) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))

    dataset = toy_dataset(samples=36)  # 6 a client: 2 tested, 1 validated, 3 trained on
    local = LocalTraining(epochs=1, batch_size=2, lr=0.1)
    uploads: list[Any] = []

    watch = composition(("watch", watching(uploads)))
    played = play_toy(watch, net=net, dataset=dataset, local=local, rounds=1)
    assert uploads[0].samples.tolist() == [3, 3, 3]
    assert uploads[0].steps.tolist() == [1, 1, 1]
    layout = played.run.context.layout
    assert played.state.models[0][layout.counters].tolist() == [1.0]


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_a_short_last_batch_is_left_out_on_request(executor: str, play_toy: Play) -> None:
    dataset = toy_dataset(samples=36)  # 6 a client: 2 tested, 1 validated, 3 trained on
    steps: list[list[int]] = []
    for drop in (False, True):
        local = LocalTraining(epochs=2, batch_size=2, lr=0.1, drop_last=drop)
        uploads: list[Any] = []
        watch = composition(("watch", watching(uploads)))
        play_toy(watch, dataset=dataset, local=local, rounds=1, executor=executor)
        steps.append(uploads[0].steps.tolist())
    assert steps == [[4, 4, 4], [2, 2, 2]]


def test_candidates_are_trained_on_the_same_batches_and_one_is_kept(play_toy: Play) -> None:
    uploads: list[Any] = []

    @dataclass(frozen=True)
    class Trial:
        @hookimpl
        def plan(self, ctx: Any) -> tuple[Stage, ...]:
            return (Stage("trial", ctx.cohort, 1, losses=True),)

        @hookimpl
        def dispatch(self, state: Any, stage: Stage) -> Start:
            n = len(stage.clients)
            twice = torch.stack([state.models[0], state.models[0]])
            active = torch.ones(n, 2, dtype=torch.bool)
            active[0, 0] = False
            return Start(params=twice.expand(n, -1, -1), active=active)

        @hookimpl
        def aggregate(self, upload: Any) -> None:
            uploads.append(upload)

    played = play_toy(composition(("trial", Trial())), rounds=1)
    upload = uploads[0]
    assert torch.equal(upload.params[1:, 0], upload.params[1:, 1])
    assert torch.equal(upload.params[0, 0], played.run.context.initial), "not active: untouched"
    assert upload.loss_end[0, 0].isnan()
    assert upload.chosen.tolist() == [1, 0, 0], "the first that each of them trained"
    assert torch.equal(upload.selected()[0], upload.params[0, 1])
    assert (upload.loss_end[1:] < upload.loss_start[1:]).all()
    width = played.run.context.layout.width
    assert played.run.ledger.totals["down"]["model"] == 4 * width * 5
    assert played.run.ledger.totals["up"]["model"] == 4 * width * 3
    assert played.result.summary["trained_epochs"] == pytest.approx(5 / 6, abs=1e-6), "candidates"


def test_cross_evaluation_is_the_mean_loss_of_every_pair(play_toy: Play) -> None:
    run = play_toy("local-only", participation=1.0).run
    space, samples = run.executor.workspace, run.executor.samples
    models = run.context.initial + 0.1 * torch.arange(5)[:, None]
    clients = torch.tensor([4, 0, 2])
    table = cross_evaluate(space, models, samples, "validation", clients)
    for i, client in enumerate(clients.tolist()):
        rows = samples.splits["validation"][client]
        for k, row in enumerate(models):
            space.load(row)
            with torch.no_grad():
                logits = space.module(samples.x[rows])
            loss = float(F.cross_entropy(logits, samples.y[rows])) * len(rows)
            assert abs(loss - float(table[i, k, 0])) < 1e-5
            assert int((logits.argmax(1) == samples.y[rows]).sum()) == table[i, k, 1]
            assert len(rows) == table[i, k, 2]
        pooled = Pooled.of(samples, "validation", clients[i : i + 1])
        one = evaluate_model(space, models[0], pooled)
        torch.testing.assert_close(one.sums[0], table[i, 0], rtol=0, atol=1e-5)
    assert logits_of(space, models, samples.x[:7]).shape == (5, 7, 4)


@pytest.mark.slow
def test_an_untouched_row_costs_the_others_nothing(play_toy: Play) -> None:
    """Group 0 ends the same whether or not the clients of group 1 exist in its bank."""

    def grouped(rows: int) -> Any:
        @dataclass(frozen=True)
        class Grouped:
            @hookimpl
            def setup(self, ctx: Any) -> Setup:
                home = (torch.arange(ctx.clients) >= 3).long() * (rows - 1)
                return Setup(ctx.initial.expand(rows, -1).clone(), Membership(home=home))

        return composition(("grouped", Grouped()))

    two, nine = play_toy(grouped(2)), play_toy(grouped(9))
    assert torch.equal(two.state.models[0], nine.state.models[0])
    assert torch.equal(two.state.models[1], nine.state.models[8])
    assert torch.equal(nine.state.models[4], nine.run.context.initial)


def test_a_diverging_run_is_stopped_and_named(play_toy: Play) -> None:
    local = LocalTraining(epochs=5, batch_size=4, lr=1e30)
    with pytest.raises(Diverged, match=mention("round 1", "parameters")) as told:
        play_toy("fedavg", local=local)
    assert told.value.exit_code == 3


def test_a_module_that_fails_names_client_stage_and_round(play_toy: Play) -> None:
    class Fails(ClientModule):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            raise IndexError("list index out of range")

    plugin = modules(lambda net, ctx: Fails(net, ctx.local))
    with pytest.raises(PluginError, match=mention("fails", "failed", "train", "IndexError")):
        play_toy(composition(("fails", plugin)))


def test_a_module_has_one_optimiser(play_toy: Play) -> None:
    class Two(ClientModule):
        def configure_optimizers(self) -> Any:
            return [super().configure_optimizers()] * 2

    plugin = modules(lambda net, ctx: Two(net, ctx.local))
    with pytest.raises(PluginError, match="returned 2 optimisers, expected one"):
        play_toy(composition(("two", plugin)))


def test_the_suite_names_the_optimiser(play_toy: Play) -> None:
    sgd = play_toy("fedavg").state.models
    adam = play_toy(
        "fedavg", local={**vars(toy_suite().local), "optimizer": "adam", "momentum": 0.0}
    ).state.models
    assert not torch.allclose(sgd, adam)


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
@pytest.mark.parametrize("odd", [{}, {"mood": torch.zeros(2)}, {"mood": torch.zeros(1).double()}])
def test_clients_upload_the_same_extras(
    play_toy: Play, odd: dict[str, Tensor], executor: str
) -> None:
    class Moody(ClientModule):
        def on_local_end(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"mood": torch.zeros(1)} if int(y.min()) == 0 else odd

    method = composition(("m", modules(lambda net, ctx: Moody(net, ctx.local))))
    suite = toy_suite(participation=1.0)
    with pytest.raises(PluginError, match=mention("clients", "differ")):
        play_toy(method, rounds=1, suite=suite, executor=executor)


def test_losses_are_added_in_order_in_double_precision() -> None:
    values = [1.0, 2.0**-53, 2.0**-53]  # each of the small ones is lost; both together would not be
    assert mean_in_order([torch.tensor(value, dtype=torch.float64) for value in values]) == 1 / 3
    assert mean_in_order([torch.tensor(16777216.0), torch.tensor(1.0)]) == 8388608.5
    assert mean_in_order([]) != mean_in_order([]), "NaN"


def test_a_pooled_stage_trains_on_the_samples_of_all(play_toy: Play) -> None:
    executor = play_toy("fedavg", rounds=1).run.executor
    lists = executor.samples.splits["train"]
    own = executor.owned(1, Stage("train", torch.tensor([1]), 1))
    everything = executor.owned(1, Stage("train", torch.tensor([1]), 1, pooled=True))
    assert own.tolist() == lists[1].tolist()
    assert everything.tolist() == [row for rows in lists for row in rows.tolist()]


def test_steps_and_loss_are_those_of_the_first_candidate_that_is_trained(play_toy: Play) -> None:
    run = play_toy("fedavg", rounds=1).run
    models = run.context.initial.repeat(1, 2, 1)
    whole = Dispatched.whole(models[:, 0])
    start = replace(whole, params=models, active=torch.tensor([[False, True]]))
    upload = run.executor.fit(start, Stage("train", torch.tensor([2]), 1), LocalWork(), 1)
    assert torch.equal(upload.params[0, 0], models[0, 0])
    assert not torch.equal(upload.params[0, 1], models[0, 1])
    assert (
        upload.steps.tolist()
        == run.executor.planned_steps(Stage("train", torch.tensor([2]), 1)).tolist()
    )
    assert bool(upload.loss.isfinite().all())


@pytest.mark.parametrize("change", [{}, {"samples": 3}, {"samples": 10**6}, {"pooled": True}])
def test_the_numbers_of_samples_are_those_of_the_rows(
    play_toy: Play, change: dict[str, Any]
) -> None:
    executor = play_toy("fedavg", rounds=1).run.executor
    stage = replace(Stage("train", torch.tensor([0, 3, 4]), 1), **change)
    rows = [executor.owned(client, stage) for client in stage.clients.tolist()]
    assert executor.numbers_owned(stage) == [len(own) for own in rows]


def test_a_subset_belongs_to_the_name_of_a_client(play_toy: Play) -> None:
    executor = play_toy("fedavg", rounds=1).run.executor
    names = tuple(reversed(range(CLIENTS)))
    executor.samples = replace(executor.samples, names=names)
    stage = Stage("train", torch.tensor([0]), 1, samples=3)
    rows = executor.samples.splits["train"][0]
    assert executor.owned(0, stage).tolist() == rows[subset(len(rows), stage, 0, names[0])].tolist()
    assert executor.owned(0, stage).tolist() != rows[subset(len(rows), stage, 0, 0)].tolist()


def test_models_are_evaluated_without_dropout(play_toy: Play) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.9), nn.Linear(8, 4))

    run = play_toy("fedavg", net=net, rounds=1).run
    space, row = run.executor.workspace, run.context.initial
    pooled = Pooled.of(run.executor.samples, "train", torch.arange(CLIENTS))
    once, again = (evaluate_model(space, row, pooled).sums for _ in range(2))
    assert torch.equal(once, again)


@pytest.mark.parametrize(
    ("labels", "size"), [((4,), CHUNK), ((4, 16), CHUNK // 16), ((4, 10 * CHUNK), 1)]
)
def test_a_forward_pass_has_as_many_tokens_as_it_has_images(
    labels: tuple[int, ...], size: int
) -> None:
    assert chunk(torch.zeros(labels, dtype=torch.int64)) == size
