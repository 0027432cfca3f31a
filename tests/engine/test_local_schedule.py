"""How long, how fast and what each client trains, in every executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from in_threads import together
from mentions import mention
from toy import Play, Played, composition, toy_suite, watching

import flbench as fl
from flbench.engine.distributed import DistributedExecutor
from flbench.errors import PluginError

EVERYBODY = torch.arange(6)


@dataclass(frozen=True)
class Planned:
    """A method whose plan is one stage with some fields, and whose start has some masks."""

    fields: Any
    start: fl.Start | None = None

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        fields = {"epochs": ctx.local.epochs, **self.fields}
        return (fl.Stage("train", ctx.everybody, **fields),)

    @fl.hookimpl
    def dispatch(self) -> fl.Start | None:
        return self.start


def play(
    play_toy: Play, executor: str, start: fl.Start | None = None, rounds: int = 1, **fields: Any
) -> tuple[Played, list[fl.Upload]]:
    """A run and its uploads; 12 samples a client, of which 9 are trained on, in batches of 4."""
    uploads: list[fl.Upload] = []
    local = {"epochs": 2, "batch_size": 4, "lr": 0.1, **fields.pop("local", {})}
    stack = composition(("planned", Planned(fields, start)), ("watch", watching(uploads)))
    suite = toy_suite(local=local, validation_fraction=0, rounds=rounds)
    return play_toy(stack, suite=suite, executor=executor, rounds=rounds), uploads


executors = pytest.mark.parametrize("executor", ["sequential", "vectorised"])


@pytest.mark.slow
@executors
def test_every_client_has_epochs_of_its_own(executor: str, play_toy: Play) -> None:
    """An epoch has 3 steps; of one and a half epochs of 3 steps, 4 are made, of .2 one."""
    epochs = torch.tensor([0.0, 1.0, 2.0, 3.0, 1.5, 0.2])
    _, (upload,) = play(play_toy, executor, epochs=epochs)
    assert upload.steps.tolist() == [0, 3, 6, 9, 4, 1]
    assert upload.seen is not None
    assert upload.seen.tolist() == [0, 9, 18, 27, 13, 4], "of batches of 4, 4 and 1 samples"
    _, (alike,) = play(play_toy, executor, epochs=2)
    assert torch.equal(upload.params[2], alike.params[2]), "as where everybody has two epochs"
    assert not torch.equal(upload.params[1], alike.params[1])


@pytest.mark.slow
@executors
def test_a_budget_of_steps_ends_the_training(executor: str, play_toy: Play) -> None:
    limit = torch.tensor([0, 1, 2, 5, 6, 99])
    _, (upload,) = play(play_toy, executor, steps=limit)
    assert upload.steps.tolist() == [0, 1, 2, 5, 6, 6]
    _, (everyone,) = play(play_toy, executor, steps=4)
    assert everyone.steps.tolist() == [4] * 6


@executors
@pytest.mark.parametrize(("epochs", "steps"), [(1.5, 4), (0.1, 1), (2.0, 6), (2.99, 8)])
def test_a_suite_may_have_a_part_of_an_epoch(
    executor: str, epochs: float, steps: int, play_toy: Play
) -> None:
    """Of 3 steps an epoch, rounded down, but one at least; the curve counts what is made."""
    uploads: list[fl.Upload] = []
    local = {"epochs": epochs, "batch_size": 4, "lr": 0.1}
    suite = toy_suite(local=local, validation_fraction=0, participation=1.0, rounds=1)
    stack = composition(("watch", watching(uploads)))
    played = play_toy(stack, suite=suite, executor=executor, rounds=1)
    assert uploads[0].steps.tolist() == [steps] * 6
    assert played.result.summary["trained_epochs"] == pytest.approx(steps / 3, abs=1e-6)
    assert played.result.suite["local"]["epochs"] == epochs


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_a_part_of_an_epoch_is_the_same_in_lanes(optimizer: str, play_toy: Play) -> None:
    local = {"epochs": 1.5, "batch_size": 4, "lr": 0.05, "optimizer": optimizer}
    local["momentum"] = 0.0 if optimizer == "adam" else 0.9
    one, lanes = (
        play_toy("fedrep", executor=executor, local=local, rounds=2).state.models
        for executor in ("sequential", "vectorised")
    )
    torch.testing.assert_close(lanes, one, atol=2e-6, rtol=1e-4)


def test_a_scheduler_by_epochs_sees_the_epochs_that_are_begun(play_toy: Play) -> None:
    seen: list[tuple[int, float]] = []

    class Halving(fl.ClientModule):
        def configure_optimizers(self) -> Any:
            assert isinstance(self.trainer.max_epochs, int), "as Lightning's"
            optimizer = torch.optim.SGD(self.parameters(), lr=self.local.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            seen.append((self.trainer.max_epochs or 0, float(rate)))

    @dataclass(frozen=True)
    class Method:
        @fl.hookimpl
        def client_module(self, net: Any, ctx: fl.Context) -> fl.ClientModule:
            return Halving(net, ctx.local)

    local = {"epochs": 1.5, "batch_size": 4, "lr": 0.4}
    suite = toy_suite(local=local, validation_fraction=0, participation=0.2, rounds=1)
    play_toy(composition(("method", Method())), suite=suite, executor="sequential", rounds=1)
    assert seen == [(2, 0.4)] * 3 + [(2, 0.2)]


@executors
def test_every_client_has_a_learning_rate_of_its_own(executor: str, play_toy: Play) -> None:
    """The first step of plain SGD is as long as the rate; 0.1 is the suite's."""
    local = {"momentum": 0.0}
    rates = torch.tensor([0.1, 0.2, 0.4, 0.1, 0.05, 0.1])
    played, (own,) = play(play_toy, executor, steps=1, lr=rates, local=local)
    _, (usual,) = play(play_toy, executor, steps=1, local=local)
    start = played.run.context.initial
    long, usual_step = own.selected() - start, usual.selected() - start
    torch.testing.assert_close(long, usual_step * (rates / 0.1)[:, None], atol=1e-6, rtol=1e-4)
    assert torch.equal(own.params[0], usual.params[0])
    assert played.run.executor.workspace.module.local.lr == 0.1
    groups = played.run.executor.workspace.optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.1]


@executors
def test_the_rate_decays_from_round_to_round(executor: str, play_toy: Play) -> None:
    local = {"momentum": 0.0, "lr_decay": 0.5}
    seen: list[float] = []

    @dataclass(frozen=True)
    class Reader:
        @fl.hookimpl
        def report(self, ctx: fl.Context) -> fl.Reporter:
            def rate(module: fl.ClientModule, x: torch.Tensor, y: torch.Tensor) -> fl.Report:
                seen.extend((module.local.lr, ctx.local.lr))
                return fl.Report()

            return rate

    suite = toy_suite(local={"lr": 0.4, **local}, rounds=3)
    play_toy(composition(("reader", Reader())), suite=suite, executor=executor, rounds=3)
    assert sorted(set(seen), reverse=True) == [0.4, 0.2, 0.1]
    assert seen[0::2] == seen[1::2]


@executors
def test_only_the_scalars_of_a_client_s_mask_move(executor: str, play_toy: Play) -> None:
    """Momentum and weight decay do not move the others either."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(6, 28, generator=generator) < 0.5
    local = {"momentum": 0.9, "weight_decay": 0.1}
    played, (upload,) = play(play_toy, executor, fl.Start(trained_mask=mask), local=local)
    moved = upload.selected() != played.run.context.initial
    assert not moved[~mask].any()
    assert moved[mask].float().mean() > 0.9


@pytest.mark.slow
def test_executors_agree(play_toy: Play) -> None:
    fields = {
        "epochs": torch.tensor([1.0, 2.0, 0.5, 2.0, 3.0, 1.0]),
        "steps": torch.tensor([9, 2, 9, 4, 9, 9]),
        "lr": torch.tensor([0.1, 0.2, 0.1, 0.2, 0.3, 0.1]),
    }
    mask = torch.arange(28) < torch.tensor([28, 14, 28, 7, 20, 28])[:, None]
    start = fl.Start(trained_mask=mask)
    played, (one,) = play(play_toy, "sequential", start, **fields)
    _, (lanes,) = play(play_toy, "vectorised", start, **fields)
    assert lanes.steps.tolist() == one.steps.tolist() == [3, 2, 1, 4, 9, 3]
    torch.testing.assert_close(lanes.params, one.params, atol=1e-6, rtol=1e-4)
    run = played.run
    state = played.state
    ctx = run.context
    stage = fl.Stage("train", EVERYBODY, **fields)
    begun = run.hooks.dispatch(state, stage, ctx)
    work = run.hooks.local_work(state, stage, ctx)
    whole = run.executor.fit(begun, stage, work, 2)
    halves = together(
        2, lambda ranks: DistributedExecutor(run.executor, ranks).fit(begun, stage, work, 2)
    )
    for half in halves:
        assert torch.equal(half.params, whole.params)
        assert half.steps.tolist() == whole.steps.tolist()
        assert half.seen is not None and lanes.seen is not None and whole.seen is not None
        assert half.seen.tolist() == whole.seen.tolist() == lanes.seen.tolist()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"epochs": -1}, "has epochs of -1, expected 0 or more"),
        ({"epochs": torch.ones(5)}, r"epochs returned shape \(5,\), expected \(6,\)"),
        ({"steps": -2}, "has steps of -2, expected 0 or more"),
        ({"lr": 0.0}, "has lr of 0, expected above 0"),
        ({"lr": float("nan")}, "has lr of nan, expected above 0"),
    ],
)
def test_a_schedule_that_cannot_be(fields: Any, text: str, play_toy: Play) -> None:
    with pytest.raises(PluginError, match=text):
        play(play_toy, "sequential", **fields)


# --- what clients report and keep -------------------------------------------------------------


@dataclass(frozen=True)
class Stores:
    """Every client keeps as many numbers as its id says, and sends their sum."""

    name: str = "stores.rows"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(memory={"stores.rows": fl.Memory(torch.empty(ctx.clients, 0), "client")})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        return fl.Start(
            extras={"id": stage.clients.float()[:, None]},
            client_memory={"rows": state.memory["stores.rows"][stage.clients]},
        )

    @fl.hookimpl
    def report(self, ctx: fl.Context) -> fl.Reporter:
        def rows(module: fl.ClientModule, x: torch.Tensor, y: torch.Tensor) -> fl.Report:
            client = int(module.received["id"])
            before = fl.unpadded(module.received["rows"])
            assert before.tolist() == [float(client)] * client * (ctx.round > 1)
            kept = torch.full((client,), float(client))
            return fl.Report({"sum": kept.sum()[None]}, {self.name: kept})

        return rows


@executors
def test_clients_keep_entries_of_unequal_length(executor: str, play_toy: Play) -> None:
    uploads: list[fl.Upload] = []
    stack = composition(("stores", Stores()), ("watch", watching(uploads)))
    played = play_toy(stack, rounds=2, participation=1.0, executor=executor)
    rows = played.state.memory["stores.rows"]
    assert rows.shape == (6, 5)
    assert [fl.unpadded(row).tolist() for row in rows] == [[float(i)] * i for i in range(6)]
    assert uploads[0].extras["sum"].flatten().tolist() == [float(i * i) for i in range(6)]
    assert uploads[0].kept == {}, "what stays with a client is not in the upload"
    assert played.run.ledger.totals["up"]["sum"] == 2 * 6 * 4
    assert "rows" not in played.run.ledger.totals["up"]


def test_two_processes_keep_the_same(play_toy: Play) -> None:
    played = play_toy(composition(("stores", Stores())), rounds=1, participation=1.0)
    run, ctx = played.run, played.run.context
    stage = fl.Stage("train", EVERYBODY, 1)
    state = played.state.remember({"stores.rows": torch.empty(6, 0)})
    begun, work = run.hooks.dispatch(state, stage, ctx), run.hooks.local_work(state, stage, ctx)
    whole = run.executor.fit(begun, stage, work, 0)
    for half in together(
        2, lambda ranks: DistributedExecutor(run.executor, ranks).fit(begun, stage, work, 0)
    ):
        torch.testing.assert_close(half.kept, whole.kept, equal_nan=True)


class Logs(fl.ClientModule):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


@dataclass(frozen=True)
class InTurns:
    """Everybody trains, some clients after the others, in stages of one name."""

    sizes: tuple[int, ...]

    @fl.hookimpl
    def client_module(self, net: torch.nn.Module, ctx: fl.Context) -> fl.ClientModule:
        return Logs(net, ctx.local)

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        return [fl.Stage("train", some, 1) for some in EVERYBODY.split(self.sizes)]

    @fl.hookimpl
    def aggregate(self, state: fl.State) -> fl.Models:
        return fl.Models(state.models)


def test_stages_of_one_name_are_one_in_turns(play_toy: Play) -> None:
    """Clients have the same batches in them, and what is logged is the mean of all."""
    ends = []
    for sizes in ((6,), (1, 3, 2)):
        uploads: list[fl.Upload] = []
        stack = composition(("turns", InTurns(sizes)), ("watch", watching(uploads)))
        ends.append((play_toy(stack, rounds=1), torch.cat([one.params for one in uploads])))
    (whole, params), (turns, in_turns) = ends
    assert torch.equal(in_turns, params)
    (one,), (other,) = whole.run.history.notes, turns.run.history.notes
    assert one["name"] == other["name"] == "turns.loss"
    assert other["value"] == pytest.approx(one["value"], abs=2e-6)


def test_what_is_kept_was_declared(play_toy: Play) -> None:
    with pytest.raises(PluginError, match=mention("other", "setup")):
        play_toy(composition(("stores", Stores("other"))), rounds=1)


def test_two_methods_do_not_send_one_name(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Sums:
        @fl.hookimpl
        def report(self) -> fl.Reporter:
            return lambda module, x, y: fl.Report({"sum": x.sum()[None]})

    with pytest.raises(PluginError, match=mention("sum", "methods")):
        play_toy(composition(("stores", Stores()), ("sums", Sums())), rounds=1)


def test_what_was_not_received_is_an_error_that_says_so(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Asks:
        where: str

        @fl.hookimpl
        def report(self) -> fl.Reporter | None:
            if self.where != "training":
                return None
            return lambda module, x, y: fl.Report({"c": module.received["c"]})

        @fl.hookimpl
        def personalise(self, state: fl.State, clients: torch.Tensor) -> fl.Personal | None:
            if self.where != "evaluation":
                return None
            home = state.membership.home[clients]
            return fl.Personal(home, predictor=lambda module, x: module.received["c"])

    for where, hint in (("training", "Start.extras"), ("evaluation", "Personal.extras")):
        with pytest.raises(PluginError, match=rf"has no 'c' in.*{where}.*{hint}.*holds nothing"):
            play_toy(composition(("asks", Asks(where))), rounds=1)
