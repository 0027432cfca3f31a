"""Several networks in one suite: who has which, what is trained, averaged, sent and evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
import torch
from mentions import mention, mentions
from torch import nn
from toy import (
    CLIENTS,
    WIDTH,
    Play,
    composition,
    refused,
    same_evaluations,
    seeded,
    toy_dataset,
    toy_suite,
    watching,
)

import flbench as fl
from flbench.engine.options import EngineOptions
from flbench.errors import Undefined, UserError
from flbench.plugin.registry import Entry
from flbench.run import setup
from flbench.run.composition import compose
from flbench.run.networks import (
    build_network,
    draw_networks,
    refuse_other_answers,
    refuse_other_samples,
)
from flbench.testing import CHECKS
from flbench.testing.check import MethodUnderTest
from flbench.testing.small_run import SmallRun, run_small


class Odd(nn.Module):
    """A network whose answer is changed by a function."""

    def __init__(self, change: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(3, 4), change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(self.layer(x))


NARROW = {"name": "mlp", "hidden": 3}
WIDE = {"name": "mlp", "hidden": 5}
NORMED = {"name": "mlp", "hidden": 3, "norm": True}
WIDTHS = WIDTH, 3 * 5 + 5 + 5 * 4 + 4
HEAD = 3 * 4 + 4
TWO: dict[str, Any] = {"further_models": [WIDE]}
TWINS: dict[str, Any] = {"further_models": [NARROW]}
ALIKE: dict[str, Any] = {"further_models": [NORMED], "common_head": True}
ORDER = (2, 4, 0, 5, 1, 3)


def small(method: str, order: Any = None, **changes: Any) -> SmallRun:
    suite = toy_suite(participation=1.0, rounds=2, **changes)
    return run_small(compose(method), suite, toy_dataset(), order=order)


def networks(played: SmallRun) -> torch.Tensor:
    found = played.run.context.networks
    assert found is not None
    return found


def uploads(play_toy: Play, **changes: Any) -> tuple[Any, list[fl.Upload]]:
    """FedAvg with all clients, and what they upload in each round."""
    seen: list[fl.Upload] = []
    watch = composition(("watch", watching(seen)))
    return play_toy(watch, participation=1.0, **changes), seen


@pytest.mark.slow
def test_numbers_and_tokens_are_told_apart_before_a_run() -> None:
    """A network without an embedding may take tokens all the same."""
    tokens, numbers = torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 3)
    perceptron, text = toy_suite(), toy_suite(model={"name": "gpt2", "width": 4, "heads": 1})
    nets = [build_network(suite, (3,), 4, 0) for suite in (perceptron, text)]
    refuse_other_samples(perceptron, nets[0], numbers)
    refuse_other_samples(text, nets[1], tokens)
    with pytest.raises(UserError, match=mention("mlp", "samples of numbers", "got tokens")):
        refuse_other_samples(perceptron, nets[0], tokens)
    with pytest.raises(UserError, match=mention("gpt2", "samples of tokens", "got numbers")):
        refuse_other_samples(text, nets[1], numbers)
    one_hot = nn.Sequential(OneHot(), nn.Linear(5, 4)).train()
    refuse_other_samples(perceptron, one_hot, tokens)
    assert one_hot.training


class OneHot(nn.Module):
    """Takes tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x, 5).float()


# --- the suite --------------------------------------------------------------------------------


def test_a_suite_with_one_network_has_the_hash_that_it_had() -> None:
    """That of the commit before there were several networks."""
    suite = toy_suite()
    assert {"further_models", "common_head"} & suite.settings().keys() == set()
    others = [toy_suite(**changes).hash() for changes in (TWO, TWINS, ALIKE)]
    assert len({suite.hash(), *others}) == 4


def test_each_network_begins_as_it_does_alone() -> None:
    nets = build_network(toy_suite(**TWO), (3,), 4, seed=0)
    for number, model in enumerate((NARROW, WIDE)):
        alone = build_network(toy_suite(model=model), (3,), 4, seed=0)
        inside = nets.networks[number].state_dict()  # type: ignore[union-attr]
        assert all(torch.equal(inside[name], value) for name, value in alone.state_dict().items())


def test_heads_of_different_shapes_are_not_common() -> None:
    with pytest.raises(UserError, match=r"common_head: expected .* got \(4, 3\), \(4, 5\)"):
        build_network(toy_suite(**TWO, common_head=True), (3,), 4, seed=0)


def test_every_client_has_a_network_that_follows_it() -> None:
    suite = toy_suite(**TWO)
    drawn = draw_networks(suite, 0, range(1000))
    assert drawn is not None
    assert 450 < int(drawn.sum()) < 550, "equal probabilities"
    moved = draw_networks(suite, 0, ORDER)
    assert moved is not None
    assert moved.tolist() == drawn[list(ORDER)].tolist()
    assert draw_networks(suite, 1, range(9)).tolist() != drawn[:9].tolist()  # type: ignore[union-attr]
    assert draw_networks(toy_suite(), 0, range(9)) is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "local-only", "lg-fedavg", "fedproto", "fedprox"])
def test_relabelled_clients_end_with_the_same_models(method: str) -> None:
    one, other = small(method, **ALIKE), small(method, order=ORDER, **ALIKE)
    assert networks(other).tolist() == networks(one)[list(ORDER)].tolist()
    assert len(networks(one).unique()) == 2
    torch.testing.assert_close(other.served, one.served[list(ORDER)], rtol=0, atol=1e-6)


# --- training and averaging -------------------------------------------------------------------


def test_clients_train_their_own_network_and_nothing_else(play_toy: Play) -> None:
    played, seen = uploads(play_toy, rounds=1, **TWO)
    layout, start = played.run.context.layout, played.run.context.initial
    assert layout.of_networks.sum(dim=1).tolist() == list(WIDTHS)
    for network, row in zip(networks(played), seen[0].selected(), strict=True):
        own = layout.of_networks[network] & layout.trainable
        assert int(layout.network_of(row)) == network
        assert (row[own] != start[own]).any()
        rest = ~own & (torch.arange(layout.width) != layout.which)
        assert torch.equal(row[rest], start[rest])


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_neither_decay_nor_terms_move_the_other_network(play_toy: Play, executor: str) -> None:
    local = {"epochs": 1, "batch_size": 4, "lr": 0.1, "weight_decay": 0.5}
    played = play_toy("fedprox", rounds=2, local=local, executor=executor, **TWO)
    layout, start = played.run.context.layout, played.run.context.initial
    for network, row in enumerate(played.state.models):
        rest = layout.of_networks[1 - network]
        assert torch.equal(row[rest], start[rest])
        assert not torch.equal(row[~rest], start[~rest])


def test_twins_are_averaged_each_among_its_own(play_toy: Play) -> None:
    """Twice the same network: each half has the weighted mean of its members, by hand."""
    played, seen = uploads(play_toy, rounds=1, **TWINS)
    layout, upload = played.run.context.layout, seen[0]
    assert len(played.state.models) == 2
    for network in (0, 1):
        members = networks(played) == network
        own = layout.of_networks[network]
        rows = upload.selected()[members][:, own].double()
        share = upload.samples[members].double()
        mean = (share[:, None] * rows).sum(dim=0) / share.sum()
        found = played.state.models[network, own].double()
        torch.testing.assert_close(found, mean, rtol=0, atol=1e-7)
    assert played.state.membership.home.tolist() == networks(played).tolist()


def test_a_twin_trains_as_its_client_does_in_a_suite_with_one_network(play_toy: Play) -> None:
    """The first round starts from the same weights, and draws the same batches."""
    twins, seen = uploads(play_toy, rounds=1, executor="sequential", **TWINS)
    alone: list[fl.Upload] = []
    play_toy(composition(("watch", watching(alone))), participation=1.0, rounds=1)
    masks = twins.run.context.layout.of_networks[networks(twins)]
    found = torch.stack([row[own] for row, own in zip(seen[0].selected(), masks, strict=True)])
    torch.testing.assert_close(found, alone[0].selected())  # its scalars lie at other places


def test_a_common_head_is_one_for_all(play_toy: Play) -> None:
    played = play_toy("lg-fedavg", rounds=2, participation=1.0, **ALIKE)
    layout, rows = played.run.context.layout, played.state.models
    head = layout.head & layout.common
    assert int(head.sum()) == HEAD
    assert len(rows[:, head].unique(dim=0)) == 1
    assert not torch.equal(rows[0, head], played.run.context.initial[head])
    assert len(rows[:, ~head].unique(dim=0)) == CLIENTS


# --- bytes ------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_own_network(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=2, participation=1.0, **TWO)
    sizes = torch.tensor(WIDTHS)[networks(played)] * 4 * 2
    for way in ("down", "up"):
        assert played.run.ledger.per_client[way].tolist() == sizes.tolist()


def test_bytes_of_a_common_head(play_toy: Play) -> None:
    played = play_toy("lg-fedavg", rounds=2, participation=1.0, **ALIKE)
    assert played.run.ledger.totals["up"] == {"model": 2 * CLIENTS * HEAD * 4}


@pytest.mark.slow
def test_bytes_of_prototypes_do_not_depend_on_networks(play_toy: Play) -> None:
    pair = [
        play_toy("fedproto", rounds=2, participation=1.0, **more).run.ledger.totals
        for more in ({}, {"further_models": [NORMED]})
    ]
    assert pair[0] == pair[1]


# --- executors, processes, checkpoints, newcomers ---------------------------------------------

METHODS = ["fedavg", "fedprox", "local-only", "fedproto", "lg-fedavg"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_executors_agree(play_toy: Play, method: str) -> None:
    pair = [
        play_toy(method, executor=name, participation=1.0, **ALIKE)
        for name in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    assert pair[0].run.ledger.totals == pair[1].run.ledger.totals
    assert not [line for line in pair[1].said if "one by one" in line]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_all_laws_hold_across_networks(method: str) -> None:
    tested = MethodUnderTest(method)
    declared = tested.conformance
    params = {} if method == "lg-fedavg" else declared.params  # warm rounds have no meaning
    equals = {} if method == "lg-fedavg" else declared.equals
    suite = {**declared.suite, **ALIKE}
    vars(tested)["conformance"] = replace(declared, suite=suite, params=params, equals=equals)
    found = [tested.run_check(check) for check in CHECKS.values()]
    assert [str(result) for result in found if not result.ok] == []
    assert tested.usual_run.run.context.networks is not None


@dataclass(frozen=True)
class Teacher:
    """A term that looks at a model of network 1, which each client may get itself."""

    sent: bool

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        row = ctx.layout.with_network(ctx.initial, torch.ones(len(stage.clients)))
        return fl.Start(extras={"teacher": row} if self.sent else {})

    @fl.hookimpl
    def local_term(self, ctx: fl.Context) -> Any:
        own, x = ctx.layout.with_network(ctx.initial, torch.ones(1))[0], torch.ones(4, 3)

        def term(module: fl.ClientModule) -> torch.Tensor:
            row = module.received["teacher"] if self.sent else own
            return module.with_row(row, module.net, x).square().sum() * module.flat().square().sum()

        return term


@pytest.mark.slow
@pytest.mark.parametrize("sent", [True, False])
def test_another_model_computes_with_its_own_network(play_toy: Play, sent: bool) -> None:
    """Of models that differ between clients, lanes cannot look which network they have."""
    stack = composition(("teacher", Teacher(sent)))
    local = {"epochs": 1, "batch_size": 8, "lr": 0.01}
    pair = [
        play_toy(stack, executor=name, rounds=2, local=local, **TWO)
        for name in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(pair[0].personal, pair[1].personal, rtol=0, atol=1e-5)
    reasons = [line for line in pair[1].said if "one by one" in line]
    assert len(reasons) == sent
    assert all(mentions(line, "several", "networks") for line in reasons)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["global", "local", "reset"])
def test_statistics_of_every_policy_leave_the_networks_alone(play_toy: Play, policy: str) -> None:
    played = play_toy("fedavg", participation=1.0, buffers=policy, **ALIKE)
    served = played.run.context.layout.network_of(played.personal)
    assert served.tolist() == networks(played).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_newcomers_have_networks_of_their_own(play_toy: Play, method: str) -> None:
    changes = {"clients": 12, "unseen": 0.5, "unseen_epochs": 1}
    played = play_toy(method, dataset=toy_dataset(samples=144), **changes, **ALIKE)
    assert played.result.unseen is not None, played.said
    assert len(played.result.unseen.correct) == 6


def test_a_newcomer_trains_the_part_of_its_network(play_toy: Play) -> None:
    seen: list[torch.Tensor] = []

    @dataclass(frozen=True)
    class Door:
        @fl.hookimpl
        def join(self, clients: torch.Tensor, ctx: fl.Context) -> None:
            assert ctx.networks is not None
            networks = ctx.networks[clients]
            starts, own = ctx.layout.with_network(ctx.initial, networks), ctx.layout.of_networks
            moved = ctx.train(starts, clients) != starts
            seen.extend([(moved & own[networks]).any(dim=1), moved & ~own[networks]])

    changes = {"clients": 12, "unseen": 0.5, "dataset": toy_dataset(samples=144)}
    assert play_toy(composition(("door", Door())), **changes, **TWO).result.unseen is not None
    own, others = seen
    assert own.all()
    assert not others.any()


def test_a_newcomer_gets_the_model_of_its_network(play_toy: Play) -> None:
    found: list[tuple[torch.Tensor, torch.Tensor]] = []

    @dataclass(frozen=True)
    class Door:
        @fl.hookimpl
        def join(self, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> None:
            assert ctx.networks is not None
            found.append((state.membership.home[clients], ctx.networks[clients]))

    changes = {"clients": 12, "unseen": 0.5, "dataset": toy_dataset(samples=144)}
    assert play_toy(composition(("door", Door())), **changes, **TWO).result.unseen is not None
    ((home, networks),) = found
    assert home.tolist() == networks.tolist()
    assert len(networks.unique()) == 2


@pytest.mark.slow
def test_a_context_computes_each_model_with_its_own_network(play_toy: Play) -> None:
    played = play_toy("local-only", participation=1.0, **ALIKE)
    ctx, rows, x = played.run.context, played.state.models, torch.randn(7, 3)
    space = played.run.executor.workspace
    logits, features = ctx.logits(rows, x), ctx.features(rows, x)
    for row, got, z in zip(rows, logits, features, strict=True):
        space.load(row)
        space.module.eval()
        net = space.module.net.networks[int(ctx.layout.network_of(row))]
        torch.testing.assert_close(got, net(x))
        torch.testing.assert_close(z, net.body(x))


def test_gradients_flow_to_the_own_network(play_toy: Play) -> None:
    played = play_toy("local-only", rounds=1, **TWO)
    ctx, layout = played.run.context, played.run.context.layout
    rows = played.state.models.clone().detach().requires_grad_()
    (gradient,) = torch.autograd.grad(ctx.forward(rows, torch.randn(5, 3)).square().sum(), rows)
    for network, slope in zip(networks(played), gradient, strict=True):
        assert (slope[layout.of_networks[network]] != 0).any()
        assert (slope[~layout.of_networks[network]] == 0).all()


def test_features_of_different_widths_are_refused(play_toy: Play) -> None:
    played = play_toy("local-only", rounds=1, **TWO)
    with pytest.raises(Undefined, match=r"different numbers of features: \[3, 5\]"):
        played.run.context.features(played.state.models, torch.randn(5, 3))


def test_a_row_carries_nothing_beside_its_network(play_toy: Play) -> None:
    """Numbers in the place of another network are not counted, so they do not reach a client."""
    seen: list[fl.Upload] = []

    @dataclass(frozen=True)
    class Smuggler:
        @fl.hookimpl
        def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
            rows = state.models[state.membership.home[stage.clients]]
            others = ~ctx.layout.of_networks[ctx.layout.network_of(rows)]
            others[:, ctx.layout.which] = False
            return fl.Start(params=(rows + others.float())[:, None])

    stack = composition(("watch", watching(seen)), ("smuggler", Smuggler()))
    played = play_toy(stack, rounds=1, participation=1.0, **TWO)
    ctx = played.run.context
    others = ~ctx.layout.of_networks[networks(played)]
    expected = ctx.initial_rows(ctx.everybody)
    assert torch.equal(seen[0].selected()[others], expected[others])


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes", "reason"),
    [
        ("fedrep", TWO, "fedrep: clients of this suite have 2 different networks"),
        ("lg-fedavg", TWO, "only with `common_head = true`"),
        ("fedproto", TWO, r"features of one width; the networks have \[3, 5\]"),
        ("fedavg+fedavgm", TWO, "fedavgm: clients of this suite have 2"),
    ],
)
def test_methods_without_a_meaning_are_undefined(
    play_toy: Play, method: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Undefined, match=reason):
        play_toy(method, **changes)


def test_lg_fedavg_shares_no_other_layer_of_different_networks(play_toy: Play) -> None:
    with pytest.raises(Undefined, match=mention("common", "layer")):
        play_toy("lg-fedavg", settings={"k": 2}, **ALIKE)


@dataclass(frozen=True)
class Careless:
    """Sends or serves everybody the first client's model."""

    hook: str

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start | None:
        rows = state.models[:1].expand(len(stage.clients), -1)[:, None]
        return fl.Start(params=rows) if self.hook == "dispatch" else None

    @fl.hookimpl
    def personalise(self, clients: torch.Tensor) -> fl.Personal | None:
        row = torch.zeros_like(clients)
        return fl.Personal(row=row) if self.hook == "personalise" else None


@pytest.mark.parametrize("hook", ["dispatch", "personalise"])
def test_a_model_of_another_network_is_refused(play_toy: Play, hook: str) -> None:
    line = refused(play_toy, composition(("careless", Careless(hook))), participation=1.0, **TWO)
    assert f"careless.{hook} gave client" in line
    assert mentions(line, "network 0", "network 1")


@pytest.mark.slow
def test_two_processes_agree() -> None:
    from flbench.testing.reproducibility import end_in_process_group, end_of_run
    from flbench.testing.subprocesses import in_process_group

    changes = {"participation": 1.0, "rounds": 2, **ALIKE}
    engine = EngineOptions(executor="sequential", accelerator="cpu")
    suite = toy_suite(**{**changes, "name": "small", "dataset": "small"})
    plain = suite.model_dump(mode="json")
    ends = in_process_group(end_in_process_group, 2, "lg-fedavg", {}, plain)
    expected = end_of_run(run_small(compose("lg-fedavg"), suite, engine=engine))
    assert ends == [expected, expected]


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda z: (z, z), "a tuple"),
        (lambda z: {"logits": z}, "a dict"),
        (lambda z: z[:, :3], "shape (1, 3)"),
        (lambda z: z[:, 0], "shape (1,)"),
    ],
)
def test_a_network_that_gives_no_logits_is_refused_before_a_run(
    change: Callable[[torch.Tensor], Any], got: str
) -> None:
    net, x, y = Odd(change), torch.ones(1, 3), torch.zeros(1).long()
    with pytest.raises(UserError, match=mention("'mine'", "logits", "(1, 4)", got)):
        refuse_other_answers(net, "mine", x, y, 4)
    assert net.training, "it is left as it was"
    refuse_other_answers(Odd(lambda z: z), "mine", x, y, 4)


def test_an_odd_network_in_a_run(play_toy: Play) -> None:
    net = seeded(lambda: Odd(lambda z: (z, z)))
    with (
        patch.object(setup, "build_network", net),
        pytest.raises(UserError, match=mention("'mlp'", "logits", "a tuple")),
    ):
        play_toy("fedavg")


def test_tokens_with_one_label_each_are_predicted_after_the_last_one() -> None:
    """Four tokens, three labels: the logits of all positions, of the last one the first three."""
    suite = toy_suite(model={"name": "gpt2", "width": 4, "heads": 1})
    last = build_network(suite, (5,), 3, 0, tokens=4)
    every = build_network(suite, (5,), 4, 0)
    x = torch.tensor([[0, 1, 2, 3, 0], [3, 3, 1, 0, 2]])
    assert every(x).shape == (2, 5, 4)
    assert torch.equal(last(x), every(x)[:, -1, :3])


@pytest.mark.slow
def test_tokens_with_one_label_each_in_a_run(play_toy: Play) -> None:
    """The label is the last token, of more tokens than labels; the counts are of samples."""
    x = torch.randint(0, 9, (72, 5), generator=torch.Generator().manual_seed(0))
    data = fl.Dataset("tokens", x, x[:, -1] % 4, 4)
    model = {"name": "gpt2", "width": 8, "heads": 1, "layers": 1}
    local = {"epochs": 5, "batch_size": 8, "lr": 0.02, "optimizer": "adam"}
    changes = {"model": model, "local": local, "rounds": 6, "partition": "iid"}
    one, other = (
        play_toy("fedavg", dataset=data, executor=executor, participation=1.0, **changes)
        for executor in ("sequential", "vectorised")
    )
    assert sum(one.result.clients.test) == 18
    assert (one.result.summary["accuracy_mean"] or 0) > 0.5
    assert "perplexity" not in one.result.summary
    same_evaluations(one, other)


@pytest.mark.slow
def test_tokens_name_the_suites_of_text() -> None:
    tokens = torch.ones(1, 3, dtype=torch.int64)
    facts = ("tokens", "nordic-text", "lora-text", "--set model=gpt2", "float32")
    with pytest.raises(UserError, match=mention("mlp", *facts)):
        refuse_other_samples(toy_suite(), build_network(toy_suite(), (3,), 4, 0), tokens)
    with pytest.raises(UserError, match=mention("lenet5", "(3,)", *facts)):
        build_network(toy_suite(model="lenet5"), (3,), 4, 0, tokens=9)


# --- networks of other packages -----------------------------------------------------------------


@cache
def kept(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes)


def drawn_elsewhere(shape: tuple[int, ...], classes: int) -> nn.Module:
    net = nn.Linear(shape[0], classes)
    nn.init.constant_(net.bias, next(NUMBERS))
    return net


def lazy(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.LazyLinear(classes)


def empty(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Identity()


def frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes).requires_grad_(False)


class Restless(nn.Linear):
    """Adds noise to its answers, in evaluation too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(1)


def restless(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Restless(shape[0], classes)


NUMBERS = count()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("kept", "built twice it is the same network"),
        ("drawn_elsewhere", "built twice for one seed it has other weights ('bias')"),
        ("lazy", "it has lazy layers"),
        ("empty", "it has no parameters"),
        ("frozen", "no parameter of the network takes a gradient"),
        ("restless", "two passes over one sample in eval mode differ"),
    ],
)
def test_a_network_is_new_and_the_same_for_each_seed(
    build: str, said: str, monkeypatch: pytest.MonkeyPatch, play_toy: Play
) -> None:
    entry = Entry("models", "theirs", f"{__name__}:{build}", "strangers", "1.0")
    monkeypatch.setattr("flbench.run.networks.find", lambda kind, name: entry)
    with pytest.raises(UserError, match=re.escape(said)):
        play_toy("fedavg", rounds=1, model={"name": "theirs"})
