"""The contract carries methods of other kinds: small ones, written only with public names.

They are sketches that show the hooks suffice (control variates, several initial models chosen
before training, prototypes, client-side mixing, personal heads, layers that cross now and then),
not the methods themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from toy import CLIENTS, Play, composition, watching

import flbench as fl

N = CLIENTS


@dataclass(frozen=True)
class Scaffold:
    """Control variates: c - c_i enters the loss as a linear term; c_i stays with its client."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        p = ctx.layout.parameters
        own = fl.Memory(torch.zeros(N, p), "client")
        return fl.Setup(memory={"scaffold.c": fl.Memory(torch.zeros(1, p), "model"),
                                "scaffold.own": own})  # fmt: skip

    @fl.hookimpl
    def client_module(self, net: Any, ctx: fl.Context) -> fl.ClientModule:
        class Module(fl.ClientModule):
            def on_local_end(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
                moved = self.start[: len(self.received["c"])] - self.flat().detach()
                return {"change": moved / (self.steps * self.local.lr) - self.received["c"]}

        return Module(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        ids = stage.clients
        c = state.memory["scaffold.c"][state.membership.home[ids]]
        return fl.Start(extras={"c": c}, client_memory={"own": state.memory["scaffold.own"][ids]})

    @fl.hookimpl
    def local_term(self) -> Any:
        return lambda module: (module.received["c"] - module.received["own"]) @ module.flat()

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        own = state.memory["scaffold.own"].clone()
        own[upload.ids] += upload.extras["change"]
        shares = membership.shares(upload.ids, len(state.models))
        rows = fl.weighted_mean(state.models, upload.selected(), shares)
        sizes = torch.bincount(membership.home, minlength=len(rows))[:, None]
        c = state.memory["scaffold.c"] + (shares @ upload.extras["change"].double()) / sizes
        return fl.Models(rows, {"scaffold.own": own, "scaffold.c": c.float()})


@pytest.mark.slow
def test_control_variates_keep_their_invariant_per_group(play_toy: Play) -> None:
    local = {"epochs": 2, "batch_size": 4, "lr": 0.1}
    played = play_toy(composition(("scaffold", Scaffold())), local=local)
    memory, width = played.state.memory, played.run.context.layout.width
    torch.testing.assert_close(memory["scaffold.c"][0], memory["scaffold.own"].mean(dim=0))
    assert memory["scaffold.c"].any()
    totals = played.run.ledger.totals
    assert totals["down"] == {"model": 36 * width, "c": 36 * width}, "own variates never cross"
    assert totals["up"] == {"model": 36 * width, "change": 36 * width}
    uploads: list[Any] = []
    first = composition(("scaffold", Scaffold()), ("watch", watching(uploads)))
    play_toy(first, local=local, rounds=1)
    plain: list[Any] = []
    play_toy(composition(("watch", watching(plain))), local=local, rounds=1)
    torch.testing.assert_close(uploads[0].params, plain[0].params), "round 1 is fedavg"

    from flbench_plugins.oracle import Oracle

    both = composition(("oracle", Oracle(warmup=1)), ("scaffold", Scaffold()))
    played = play_toy(both, local=local)
    memory, groups = played.state.memory, played.run.groups
    assert memory["scaffold.c"].shape == (2, width), "the variate followed the groups"
    assert not torch.equal(memory["scaffold.c"][0], memory["scaffold.c"][1])
    assert groups is not None


@dataclass(frozen=True)
class Ifca:
    """Several initial models; every client trains the one with the least training loss."""

    k: int = 2

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        rows = torch.stack([ctx.fresh_initial(i + 1) for i in range(self.k)])
        return fl.Setup(models=rows)

    @fl.hookimpl
    def score(self, state: fl.State, stage: fl.Stage, phase: str, ctx: fl.Context) -> Any:
        if phase == "after":
            return None
        ctx.send_models(stage.clients, state.models)
        losses = ctx.evaluate(state.models, stage.clients, "train")
        return fl.Scores(-losses, stage.clients, "models", torch.arange(self.k))

    @fl.hookimpl
    def cluster(self, state: fl.State, scores: fl.Scores | None) -> Any:
        if scores is None:
            return None
        home = state.membership.home.clone()
        home[scores.row_ids] = scores.values.argmax(dim=1)
        return fl.Membership(home)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> fl.Personal:
        return fl.Personal(row=ctx.evaluate(state.models, clients, "train").argmin(dim=1))


@pytest.mark.slow
def test_clients_can_choose_among_models_before_they_train(play_toy: Play) -> None:
    played = play_toy(composition(("ifca", Ifca())), rounds=8)
    width, down = played.run.context.layout.width, played.run.ledger.totals["down"]
    assert down == {"model": 4 * 8 * 3 * 2 * width}, "the bank once; the chosen row is not resent"
    run = played.run
    fresh = [run.context.fresh_initial(1), run.context.fresh_initial(2)]
    moved = [not torch.equal(row, old) for row, old in zip(played.state.models, fresh, strict=True)]
    assert any(moved)
    assert not torch.equal(*played.state.models)
    one = play_toy(composition(("ifca", Ifca(k=1))))
    assert one.result.summary["groups"] == 1


@dataclass(frozen=True)
class Prototypes:
    """Only class means cross; classes a client lacks are NaN and cost nothing."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        rows = ctx.initial.expand(N, -1).clone()
        known = fl.Memory(torch.full((4, 3), torch.nan), "run")
        home = fl.Membership(home=ctx.everybody)
        return fl.Setup(models=rows, membership=home, memory={"prototypes.known": known})

    @fl.hookimpl
    def client_module(self, net: Any, ctx: fl.Context) -> fl.ClientModule:
        class Module(fl.ClientModule):
            def on_local_end(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
                features = self.net.body(x).detach()
                table = torch.full((4, 3), torch.nan)
                for label in y.unique():
                    table[label] = features[y == label].mean(dim=0)
                return {"prototypes": table}

        return Module(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        known = state.memory["prototypes.known"].expand(len(stage.clients), -1, -1)
        return fl.Start(sent_mask=ctx.layout.none_mask, extras={"known": known})

    @fl.hookimpl
    def score(self, upload: fl.Upload | None, ctx: fl.Context) -> fl.Scores | None:
        if upload is None:
            return None
        mean = upload.extras["prototypes"].nanmean(dim=0)
        nobody = torch.empty(0, dtype=torch.int64)
        values = torch.empty(0, 0, dtype=torch.float64)
        return fl.Scores(values, nobody, "models", nobody, {"prototypes.known": mean})


def test_what_is_nan_does_not_cross(play_toy: Play) -> None:
    played = play_toy(composition(("prototypes", Prototypes())), participation=1.0, rounds=2)
    totals = played.run.ledger.totals
    assert totals["up"]["prototypes"] == 4 * 2 * N * 2 * 3, "two labels a client, three features"
    assert totals["down"]["known"] == 4 * 1 * N * 4 * 3, "nothing is known in round 1"
    assert totals["up"]["model"] == totals["down"]["model"] == 0
    assert not played.state.memory["prototypes.known"].isnan().any()


@dataclass(frozen=True)
class Mixing:
    """Each client mixes what the others uploaded, by the loss they save it; rows are personal."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        weights = fl.Memory(torch.eye(N, dtype=torch.float64), "client")
        return fl.Setup(
            models=ctx.initial.expand(N, -1).clone(),
            membership=fl.Membership(home=ctx.everybody),
            memory={"mixing.weights": weights},
        )

    @fl.hookimpl
    def score(
        self, state: fl.State, phase: str, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        if upload is None:
            return None
        ids = upload.ids
        before = ctx.evaluate(state.models[ids], ids).diagonal()
        values = before[:, None] - ctx.evaluate(upload.selected(), ids)
        ctx.send("down", ids, "candidates", (len(ids) - 1) * ctx.layout.width)
        weights = torch.zeros(N, N, dtype=torch.float64)
        weights[ids[:, None], ids] = values.clamp(min=0)
        return fl.Scores(values, ids, "clients", ids, {"mixing.weights": weights})

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> fl.Models:
        weights = state.memory["mixing.weights"][:, upload.ids]
        return fl.Models(fl.weighted_mean(state.models, upload.selected(), weights))


def test_clients_can_mix_what_others_uploaded(play_toy: Play) -> None:
    played = play_toy(composition(("mixing", Mixing())), rounds=1)
    weights, run = played.state.memory["mixing.weights"], played.run
    helped = weights.sum(dim=1) > 0
    for client in range(N):
        kept = torch.equal(played.state.models[client], run.context.initial)
        assert kept is not bool(helped[client])
    assert 1 <= int(helped.sum()) <= 3
    assert run.ledger.totals["down"]["candidates"] == 4 * 3 * 2 * run.context.layout.width


@dataclass(frozen=True)
class PersonalHead:
    """A head of the method's own, kept by each client, whose logits are added to the model's."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(
            memory={"rod.heads": fl.Memory(self.own(ctx.initial).expand(N, -1), "client")}
        )

    def own(self, rows: torch.Tensor) -> torch.Tensor:
        return rows[..., 28:]

    @fl.hookimpl
    def client_module(self, net: Any, ctx: fl.Context) -> fl.ClientModule:
        class Module(fl.ClientModule):
            def __init__(self) -> None:
                super().__init__(net, ctx.local)
                self.psi = torch.nn.Linear(3, 4)
                torch.nn.init.zeros_(self.psi.weight)
                torch.nn.init.zeros_(self.psi.bias)

            def predict(self, x: torch.Tensor) -> torch.Tensor:
                z = self.net.body(x)
                return self.net.head(z) + self.psi(z)

            def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                x, y = batch
                z = self.net.body(x)
                generic = self.net.head(z)
                personal = generic.detach() + self.psi(z.detach())
                return F.cross_entropy(generic, y) + F.cross_entropy(personal, y)

        return Module()

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        rows = state.models[state.membership.home[stage.clients]].clone()
        rows[:, 28:] = state.memory["rod.heads"][stage.clients]
        shared = torch.arange(ctx.layout.width) < 28
        return fl.Start(params=rows[:, None], sent_mask=shared)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload) -> fl.Models:
        heads = state.memory["rod.heads"].clone()
        heads[upload.ids] = self.own(upload.selected())
        shares = state.membership.shares(upload.ids, 1) * upload.samples
        rows = fl.weighted_mean(state.models, upload.selected(), shares)
        return fl.Models(rows, {"rod.heads": heads})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: torch.Tensor) -> fl.Personal:
        rows = state.models[state.membership.home[clients]].clone()
        rows[:, 28:] = state.memory["rod.heads"][clients]
        return fl.Personal(params=rows)


@pytest.mark.slow
def test_a_method_can_add_a_head_that_stays_with_its_client(play_toy: Play) -> None:
    fedavg = play_toy("fedavg")
    for executor in ("sequential", "vectorised"):
        played = play_toy(composition(("rod", PersonalHead())), executor=executor)
        generic = played.state.models[0, :28]
        torch.testing.assert_close(generic, fedavg.state.models[0], rtol=0, atol=2e-6)
        assert played.marks.initial_weights == fedavg.marks.initial_weights
        assert played.run.ledger.totals == fedavg.run.ledger.totals
        assert played.run.context.layout.head.nonzero().flatten().tolist() == [*range(12, 28)]
        assert played.run.history.last.loss != fedavg.run.history.last.loss, "predict is used"
        assert played.result.summary["loss_mean"] < fedavg.result.summary["loss_mean"]


@dataclass(frozen=True)
class SlowBody:
    """The body crosses every second round only; the head always."""

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.all_mask if ctx.round % 2 == 0 else ctx.layout.head)


def test_layers_can_cross_in_some_rounds_only(play_toy: Play) -> None:
    played = play_toy(composition(("slow", SlowBody())), rounds=3)
    head, width = int(played.run.context.layout.head.sum()), played.run.context.layout.width
    assert (head, width) == (16, 28)
    expected = 4 * 3 * (head + width + head)
    assert played.run.ledger.totals["up"]["model"] == expected
    assert played.run.ledger.totals["down"]["model"] == expected


@dataclass(frozen=True)
class Looks:
    """Reads what a method may read about clients."""

    @fl.hookimpl
    def score(self, state: fl.State, phase: str, ctx: fl.Context) -> None:
        if phase == "before":
            return
        x, y = ctx.client_data(2)
        assert len(x) == len(y) == int(ctx.samples[2])
        assert ctx.label_counts[2].tolist() == torch.bincount(y, minlength=4).tolist()
        features, logits = ctx.features(state.models, x), ctx.logits(state.models, x)
        head = ctx.layout.unflatten(state.models[0])
        again = features[0] @ head["net.head.weight"].T + head["net.head.bias"]
        torch.testing.assert_close(again, logits[0])
        other = ctx.fresh_initial(1)
        assert not torch.equal(other, ctx.initial)
        assert torch.equal(other, ctx.fresh_initial(1))
        assert not torch.equal(other, ctx.fresh_initial(2))
        assert float(ctx.rng("x", ctx.round).random()) == float(ctx.rng("x", ctx.round).random())
        ctx.note("looks.seen", len(x))


def test_a_method_can_look_at_visible_samples_features_and_fresh_weights(play_toy: Play) -> None:
    played = play_toy(composition(("looks", Looks())), rounds=1)
    assert played.result.notes == [{"round": 1, "name": "looks.seen", "value": 7}]


def test_a_pair_of_clients_draws_alike_and_its_numbers_follow_both(play_toy: Play) -> None:
    ctx = play_toy("fedavg", rounds=1).run.context

    def drawn(one: int, other: int, names: Any = None) -> int:
        rng = replace(ctx, names=names).rng("keys", 1, client=(one, other))
        return int(rng.integers(2**62))

    assert drawn(2, 4) == drawn(4, 2) == drawn(0, 1, names=(4, 2, 0, 1, 3, 5))
    assert len({drawn(2, 4), drawn(2, 3), drawn(3, 4)}) == 3
