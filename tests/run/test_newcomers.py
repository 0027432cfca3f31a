"""Newcomers: held out of training, served by every method's own rule, and of no consequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from joined import JOIN, M, N, by_hand, greeted, joined, rows
from object_walk import holds_sample_of, reachable, shares_memory
from toy import Play, Played, bad, both, composition, toy_dataset, toy_suite

import flbench as fl
from flbench.errors import UserError
from flbench.federation.federation import Newcomers, Samples
from flbench.run.newcomers import evaluate_newcomers

# --- who they are ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "unseen", "training", "sampled"),
    [
        (6, 0.0, 6, 3),
        (6, 0.5, 3, 1),
        (6, 0.34, 4, 2),
        (9, 0.12, 8, 4),
        (10, 0.3, 7, 3),
        (100, 0.2, 80, 40),
        (100, 0.29, 71, 35),
        (3, 0.99, 1, 1),
    ],
)
def test_a_share_of_the_clients_does_not_train(
    clients: int, unseen: float, training: int, sampled: int
) -> None:
    suite = toy_suite(clients=clients, unseen=unseen)
    assert suite.training_clients == training
    assert suite.cohort_size == sampled, "participation is a share of those who train"


@pytest.mark.parametrize("changes", [{"unseen": 1.0}, {"unseen": -0.1}, {"unseen_epochs": -1}])
def test_nonsense_about_newcomers_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(changes))):
        toy_suite(**changes)


def test_the_partition_is_dealt_to_all_and_newcomers_are_drawn_from_it(play_toy: Play) -> None:
    played = joined(play_toy, "fedavg")
    run, guests = played.run, played.run.newcomers
    assert guests is not None
    assert run.context.clients == N
    assert run.context.newcomers == len(guests) == M
    assert len(run.groups) == N
    assert len(guests.groups) == M
    pools = (run.executor.samples, run.held_out, both(guests))
    owned = [
        pool.x[rows] for pool in pools for name, split in pool.splits.items() if name != "server"
        for rows in split
    ]  # fmt: skip
    server = len(run.executor.samples.splits["server"][0])
    assert len(torch.cat(owned).unique(dim=0)) == sum(map(len, owned)) == 108 - server
    labels: dict[int, set[int]] = {0: set(), 1: set()}
    for client in range(N):
        labels[int(run.groups[client])] |= owned_labels(run.executor.samples, client)
    for guest in range(M):
        assert owned_labels(both(guests), guest) <= labels[int(guests.groups[guest])]
    assert labels[0] | labels[1] == {0, 1, 2, 3}
    assert not labels[0] & labels[1]


def owned_labels(samples: Any, client: int) -> set[int]:
    return set(samples.y[samples.splits["train"][client]].tolist())


def test_who_joins_depends_on_the_seed_alone(play_toy: Play) -> None:
    one, again, other = (
        joined(play_toy, method, seed=seed, rounds=1)
        for method, seed in (("fedavg", 0), ("ifca", 0), ("fedavg", 1))
    )
    assert one.run.newcomers.groups.tolist() == [0, 0, 1], "not the last ones dealt to"
    assert one.marks.partition == again.marks.partition
    assert one.marks.partition != other.marks.partition
    own = [both(played.run.newcomers).x for played in (one, again, other)]
    assert torch.equal(own[0], own[1])
    assert own[0].shape != own[2].shape or not torch.equal(own[0], own[2])


def test_a_suite_without_newcomers_is_what_it_was_before_there_were_any() -> None:
    plain = toy_suite()
    assert not {"unseen", "unseen_epochs"} & plain.settings().keys()
    assert toy_suite(unseen=0.0, unseen_epochs=0).hash() == plain.hash()
    assert len({toy_suite(unseen=0.4, unseen_epochs=e).hash() for e in (0, 1, 5)}) == 3


# --- nothing of theirs is there before the end -------------------------------------------------


@dataclass(frozen=True)
class Walker:
    """Walks from everything every hook is given; apart, what there is once they join."""

    uses_true_groups: ClassVar[bool] = False
    before: list[Any]
    after: list[Any]
    contexts: list[fl.Context]

    def walk(self, *given: Any) -> None:
        ctx = next(thing for thing in given if isinstance(thing, fl.Context))
        self.before.extend(reachable(given))
        self.contexts.append(ctx)

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        self.walk(ctx)

    @fl.hookimpl
    def score(self, state: fl.State, stage: fl.Stage, upload: Any, ctx: fl.Context) -> None:
        self.walk(state, stage, upload, ctx)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: Any, membership: Any, ctx: fl.Context) -> None:
        self.walk(state, upload, membership, ctx)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> None:
        assert clients.max() < N, "it is not asked for newcomers"
        self.walk(state, clients, ctx)

    @fl.hookimpl
    def join(self, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> None:
        self.after.extend(reachable((state, clients, ctx)))
        self.contexts.append(ctx)


def walked(play_toy: Play, walker: Walker) -> Played:
    played = play_toy(composition(("walker", walker)), **JOIN)
    assert all(ctx.newcomers == M for ctx in walker.contexts), "that they will come is known"
    assert not walker.after
    return played


@pytest.mark.slow
def test_no_hook_reaches_a_newcomers_sample_before_the_end(play_toy: Play) -> None:  # T29
    walker = Walker([], [], [])
    played = walked(play_toy, walker)
    guests = played.run.newcomers
    assert guests is not None
    hidden = [guests.visible.x, guests.visible.y, guests.held_out.x, guests.held_out.y]
    for pool in (guests.visible, guests.held_out):
        hidden += [rows for split in pool.splits.values() for rows in split]
    assert not shares_memory(walker.before, [*hidden, guests.groups])
    assert not holds_sample_of(walker.before, both(guests).x)
    assert holds_sample_of(walker.before, played.run.executor.samples.x[:1]), "the walk gets there"
    greeted(played)
    own = both(guests).x[both(guests).splits["train"][0]]
    assert holds_sample_of(walker.after, own), "training samples are there once they join"


@pytest.mark.slow
def test_not_even_then_is_a_test_sample_in_reach(play_toy: Play) -> None:  # T29
    walker = Walker([], [], [])
    played = walked(play_toy, walker)
    greeted(played)
    samples = both(played.run.newcomers)
    test = torch.cat([samples.x[rows] for rows in samples.splits["test"]])
    assert not holds_sample_of(walker.after, test)
    assert not holds_sample_of(walker.after, played.run.held_out.x)


@dataclass(frozen=True)
class Told(Walker):
    """The same, but it asks for the truth."""

    uses_true_groups: ClassVar[bool] = True


@pytest.mark.slow
def test_a_method_that_is_told_the_truth_is_not_told_about_newcomers(play_toy: Play) -> None:
    walker = Told([], [], [])
    played = walked(play_toy, walker)
    assert [len(ctx.true_groups) for ctx in walker.contexts] == [N] * len(walker.contexts)
    greeted(played)
    groups = walker.contexts[-1].true_groups
    assert groups.tolist() == [*played.run.groups.tolist(), *played.run.newcomers.groups.tolist()]


def test_what_the_truth_says_about_newcomers_is_not_in_reach(play_toy: Play) -> None:  # T29
    walker = Told([], [], [])
    guests = walked(play_toy, walker).run.newcomers
    assert guests is not None
    assert not shares_memory(walker.before, [guests.groups])


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda ctx: ctx.evaluate(ctx.initial[None], torch.tensor([N])), "IndexError"),
        (lambda ctx: ctx.client_data(N), "IndexError"),
        (lambda ctx: ctx.train(ctx.initial, ctx.cohort), "serves newcomers: call it in .*`join`"),
        (lambda ctx: ctx.train(ctx.initial, torch.tensor([N])), "serves newcomers"),
    ],
)
def test_asking_about_them_before_the_end_is_refused(
    play_toy: Play, ask: Callable[[fl.Context], object], said: str
) -> None:
    with pytest.raises(UserError, match=rf"^round 1: bad\.score.*{said}"):
        play_toy(bad(score=lambda self, ctx: ask(ctx)), **JOIN)


# --- the rules of joining ----------------------------------------------------------------------


def asked(play_toy: Play, ask: Callable[[Any, fl.Context, torch.Tensor], Any]) -> list[Any]:
    """What a method sees when `join` is asked."""
    seen: list[Any] = []

    def join(self: Any, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> None:
        seen.append(ask(state, ctx, clients))

    played = play_toy(bad(join=join), **JOIN)
    assert seen == []
    greeted(played)
    return [*seen, played]


def test_the_context_knows_newcomers_once_they_join(play_toy: Play) -> None:
    (ctx, clients, state), played = asked(play_toy, lambda state, ctx, ids: (ctx, ids, state))
    guests = both(played.run.newcomers)
    assert clients.tolist() == [N, N + 1, N + 2]
    assert (ctx.clients, ctx.newcomers, ctx.round) == (N, M, 3)
    assert torch.equal(ctx.everybody, torch.arange(N))
    assert ctx.samples.tolist() == [*played.run.context.samples.tolist(), *guests.sizes("train")]
    for guest, counts in enumerate(ctx.label_counts[N:]):
        assert {label for label, count in enumerate(counts.tolist()) if count} == owned_labels(
            guests, guest
        )
        assert int(counts.sum()) == int(ctx.samples[N + guest])
    assert state.membership.home.tolist() == [0] * (N + M), "the one model is everybody's"


@pytest.mark.slow
def test_newcomers_can_be_evaluated_and_their_data_read(play_toy: Play) -> None:
    def ask(state: fl.State, ctx: fl.Context, ids: torch.Tensor) -> Any:
        data = {split: ctx.client_data(N + 1, split) for split in ("train", "validation")}
        return ctx.evaluate(state.models, ids), ctx.evaluate(state.models, ids, "train"), data

    (validation, train, data), played = asked(play_toy, ask)
    guests, net = both(played.run.newcomers), played.run.executor.workspace
    net.load(played.state.models[0])
    for split, found in (("train", train), ("validation", validation)):
        x, y = data[split]
        own = guests.splits[split][1]
        assert torch.equal(x, guests.x[own])
        assert torch.equal(y, guests.y[own])
        with torch.no_grad():
            assert float(found[1, 0]) == pytest.approx(float(F.cross_entropy(net.module(x), y)))


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [None, 0, 1, 3])
def test_a_newcomer_trains_as_many_epochs_as_it_is_asked_to(
    play_toy: Play, epochs: int | None
) -> None:
    def ask(state: fl.State, ctx: fl.Context, ids: torch.Tensor) -> Any:
        starts = torch.stack([ctx.initial, state.models[0]])
        return (
            ctx.train(starts, ids[1:], epochs), ctx.train(ctx.initial, ids, epochs),
            state.models.clone(),
        )  # fmt: skip

    (several, common, models), played = asked(play_toy, ask)
    expected = 2 if epochs is None else epochs
    initial = played.run.context.initial
    assert torch.equal(models, played.state.models), "the state is frozen"
    assert several.shape == (2, 28)
    assert common.shape == (3, 28)
    close = {"rtol": 0, "atol": 1e-6}
    for guest, row in enumerate(common):
        torch.testing.assert_close(row, by_hand(played, initial, guest, expected, "join"), **close)
    torch.testing.assert_close(several[0], common[1])
    other = by_hand(played, played.state.models[0], 2, expected, "join")
    torch.testing.assert_close(several[1], other, **close)
    assert torch.equal(common[0], initial) is (expected == 0)


def test_the_default_serves_what_is_nobodys_own_or_the_best_model(play_toy: Play) -> None:
    """A model per client, as declared, of which clients share the head; or two of groups."""

    @dataclass(frozen=True)
    class Heads:
        row_per_client: ClassVar[bool] = True

        @fl.hookimpl
        def setup(self, ctx: fl.Context) -> fl.Setup:
            return fl.one_model_per_client(ctx)

        @fl.hookimpl
        def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
            rows = state.models.clone()
            rows[upload.ids] = upload.selected()
            return fl.Models(fl.partial_mean(rows, upload, ctx.layout.head))

    played = play_toy(composition(("heads", Heads())), **JOIN)
    models, ctx = played.state.models, played.run.context
    (personal, _), head = greeted(played)[1], ctx.layout.head
    assert not torch.equal(models[0], models[1])
    expected = torch.where(head, models[0], ctx.initial)
    assert torch.equal(rows(played, personal), expected.expand(M, -1))

    def setup(self: Any, ctx: fl.Context) -> fl.Setup:
        models = torch.stack([ctx.initial, ctx.fresh_initial(1)])
        return fl.Setup(models, fl.Membership(ctx.everybody % 2))

    seen: list[Any] = []

    def join(self: Any, state: fl.State, clients: torch.Tensor, ctx: fl.Context) -> None:
        seen.append(ctx.evaluate(state.models, clients).argmin(dim=1))

    played = play_toy(bad(setup=setup, join=join), **JOIN, seed=3)
    assert greeted(played)[1][0].row.tolist() == seen[0].tolist()
    assert seen[0].any(), "not the first row"


def test_a_newcomer_adapts_without_the_terms_of_clients(play_toy: Play) -> None:
    """The term reads a memory, in which newcomers are not: their stage is `join`."""
    kinds: list[str] = []

    def adapted(self: Any, state: fl.State, clients: torch.Tensor) -> fl.Personal:
        stage = fl.Stage("train", clients, 1, "adapt")
        return fl.Personal(row=torch.zeros_like(clients), adaptation=stage)

    def phases(self: Any, stage: fl.Stage) -> None:
        kinds.append(f"{stage.kind} {stage.label}")

    def local_term(self: Any, stage: fl.Stage) -> None:
        assert stage.label == "train", "of newcomers"

    played = play_toy(bad(join=adapted, phases=phases, local_term=local_term), **JOIN, rounds=1)
    kinds.clear()
    unseen, judged = greeted(played)
    assert kinds == ["join adapt", "join adapt", "join fine-tune"], "tested, kept, trained on"
    assert unseen.epochs == 2
    assert len(judged) == 2


def test_newcomers_have_no_true_groups_where_nobody_has(play_toy: Play) -> None:
    def partition(self: Any, clients: int) -> fl.Partition:
        return fl.Partition(tuple(np.arange(108).reshape(clients, -1)), None)

    welcome, _ = greeted(play_toy(bad(partition=partition), **JOIN))
    assert (welcome.group, len(welcome.correct)) == (None, M)


def test_of_text_every_token_of_a_newcomer_is_tested(play_toy: Play) -> None:
    """Three tokens a sample, of which a network without training gets some right."""
    tokens = toy_dataset(samples=108).y[:, None].repeat(1, 3)
    text = replace(toy_dataset(samples=108), x=tokens, y=tokens)
    played = play_toy(
        "fedavg", net=lambda: torch.nn.Embedding(4, 4), rounds=1,
        **{**JOIN, "dataset": text, "partition": {"name": "iid"}},
    )  # fmt: skip
    unseen, guests = played.result.unseen, played.run.newcomers
    assert unseen is not None and guests is not None
    assert unseen.test == (3 * guests.held_out.sizes("test")).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "ifca", "pfedlia"])
def test_a_newcomer_that_leaves_changes_nothing_for_the_others(method: str, play_toy: Play) -> None:
    played = joined(play_toy, method)
    run, guests = played.run, played.run.newcomers
    assert guests is not None
    everybody = evaluate_newcomers(run, played.state)

    def staying(pool: Samples) -> Samples:
        return replace(pool, splits={name: rows[:-1] for name, rows in pool.splits.items()})

    groups = None if guests.groups is None else guests.groups[:-1]
    run.newcomers = Newcomers(staying(guests.visible), staying(guests.held_out), groups)
    others = evaluate_newcomers(run, played.state)
    assert everybody is not None and others is not None
    for figure in ("correct", "correct_tuned", "test"):
        assert getattr(others, figure) == getattr(everybody, figure)[:-1]
