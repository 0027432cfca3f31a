"""Check of the communication ledger: it counts every number that is sent, and no other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flbench.core.client_module import LocalWork
from flbench.core.context import Split
from flbench.core.hookspecs import hookimpl, implemented_hooks
from flbench.core.state import Dispatched, Message, Personal, Stage, State, Upload
from flbench.core.types import Direction
from flbench.engine import split_training
from flbench.engine.encoding import encoded
from flbench.engine.ledger import BITS, DIRECTIONS, EDGES, CommunicationLedger
from flbench.federation.target_scale import SCALARS
from flbench.run.context import RunContext
from flbench.run.evaluation import evaluate_judged
from flbench.run.newcomers import evaluate_newcomers
from flbench.run.rounds import Run
from flbench.testing.check import MethodUnderTest, check
from flbench.testing.edge_cases import usual_run
from flbench.testing.hook_recorder import same_bits
from flbench.testing.small_run import FitFunction
from flbench.testing.unsent import (
    Shadow,
    larger,
    numbers_sent,
    same_content,
    seen_by_others,
    turned,
)


@dataclass(frozen=True, kw_only=True)
class CountingContext(RunContext):
    """A run's context; what a method reads of clients and sends by itself is noted by a counter.

    Attributes:
        counter: the counter.
        other_data: clients whose samples, and losses on them, are other numbers than they are.
    """

    counter: TrafficCounter
    other_data: frozenset[int] = frozenset()

    def evaluate(self, models: Tensor, clients: Tensor, split: Split = "validation") -> Tensor:
        """Note, and evaluate; on other data, losses have the opposite order."""
        self.counter.read |= set(clients.tolist())
        losses = super().evaluate(models, clients, split)
        other = torch.tensor([client in self.other_data for client in clients.tolist()])
        return torch.where(other[:, None], 1 / (0.1 + losses), losses)

    def client_data(self, client: int, split: Split = "train") -> tuple[Tensor, Tensor]:
        """Note, and read; other samples have the opposite sign, other labels the opposite order."""
        self.counter.read.add(client)
        x, y = super().client_data(client, split)
        if client not in self.other_data:
            return x, y
        highest = {"classes": self.outputs - 1, "numbers": 0, "labels": 1}[self.task]
        return -x if x.is_floating_point() else self.outputs - 1 - x, highest - y

    def own_label_counts(self, clients: Tensor) -> Tensor:
        """Note, and read; other labels have the opposite order."""
        self.counter.read |= set(clients.tolist())
        counts = super().own_label_counts(clients)
        other = torch.tensor([client in self.other_data for client in clients.tolist()])
        return torch.where(other[:, None], counts.flip(1), counts)

    def send(
        self,
        direction: Direction,
        clients: Tensor,
        item: str,
        scalars: Tensor | int,
        bits: int = BITS,
    ) -> None:
        """Count and send."""
        each = torch.full(clients.shape, scalars) if isinstance(scalars, int) else scalars
        self.counter.add(direction, int(each.sum()), bits)
        ends = set(clients[each > 0].tolist())
        if direction in ("up", "client-edge"):
            self.counter.senders |= ends
        elif direction == "peer":  # the ledger knows the receivers
            self.counter.senders |= set(range(self.clients))
        if direction in ("down", "peer", "client-edge"):
            self.counter.counted |= ends
        super().send(direction, clients, item, scalars, bits)

    def send_models(self, clients: Tensor, models: Tensor) -> None:
        """Count and send."""
        self.counter.add("down", models.numel() * len(clients))
        for client in clients.tolist():
            self.counter.counted.add(client)
            self.counter.held.setdefault(client, []).extend(models)
        super().send_models(clients, models)

    def without_effects(self, other_data: Collection[int] = ()) -> CountingContext:
        """The same context, for a second call of a hook: nothing that it says is kept."""
        ledger = CommunicationLedger(self.clients)
        services = replace(self.services, ledger=ledger, say=lambda _: None, notes={}, warnings=[])
        counter = TrafficCounter(self.counter.coded)
        return replace(self, services=services, counter=counter, other_data=frozenset(other_data))


ALL_WAYS = (*DIRECTIONS, *EDGES)
DECIDING = ("plan", "dispatch", "score", "cluster", "aggregate", "personalise", "join")
"""Hooks whose answers reach others than one client."""
TRAINING = ("batch_loss", "local_term", "phases", "report")
"""Hooks that say how clients train."""


@dataclass(eq=False)
class TrafficCounter:
    """A plugin that counts what a run sends, independently of the ledger.

    It also calls `dispatch` and `aggregate` again, with other numbers where nothing was sent: the
    answers must not depend on these numbers. Uploads are changed one at a time, because a client
    may use its own numbers without sending them, but not those of another client.

    Every hook whose answer reaches others is called again with other numbers of one client: of what
    it did not send (`flbench.testing.unsent`), and of its samples, if the hook reads them. Where
    more than its own part of the answer depends on them, it must send something beside its model in
    that round. Local training, coders and predictors are functions of hooks: they are called again
    for one client, with other numbers of all others.

    Numbers that are as they were before round 1 are not changed: everybody knows them, such as
    those of a frozen part of the network.

    Attributes:
        coded: whether the method codes what clients send (`encode`).
        knows_all: whether clients may know what others send: an attack.
        trains: whether a hook of the method says how clients train.
        bits: direction -> bits that were sent.
        largest: client -> bits of its largest candidate in this stage.
        reported: client -> scalars of extras in its message of this stage.
        errors: numbers that were used although they were not counted.
        counted: clients to whom the method itself counted something in this round.
        owed: client -> what it got in this round, unless something is counted to it by its end.
        held: client -> models that it received in this round.
        dispatched: the arguments of the last call of `dispatch`.
        start: what the clients of the stage start from.
        first: the state before round 1.
        read: clients whose samples were read, or losses on them.
        shadows: what clients did not send, with two kinds of other numbers.
        senders: clients that sent something beside the upload in this round.
        waiting: client -> what of this round depends for others on what it has.
        foreign: client with a row of its own -> scalars of it that depend on uploads of other
            clients and that this client has not received yet, shape (W,), bool.
    """

    coded: bool
    knows_all: bool = False
    trains: bool = False
    run: Run | None = None
    bits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ALL_WAYS, 0))
    largest: dict[int, int] = field(default_factory=dict)
    reported: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    owed: list[tuple[int, str]] = field(default_factory=list)
    held: dict[int, list[Tensor]] = field(default_factory=dict)
    dispatched: tuple[State, Stage, CountingContext] | None = None
    start: Dispatched | None = None
    first: State | None = None
    read: set[int] = field(default_factory=set)
    shadows: tuple[Shadow, ...] = field(default_factory=lambda: (Shadow(larger), Shadow(turned)))
    senders: set[int] = field(default_factory=set)
    waiting: dict[int, str] = field(default_factory=dict)
    foreign: dict[int, Tensor] = field(default_factory=dict)

    def attach(self, run: Run) -> None:
        """Count what the hooks of a run send by themselves, and what `setup` has sent already."""
        values = {one.name: vars(run.context)[one.name] for one in fields(run.context)}
        ctx = CountingContext(**values, counter=self)
        self.run = run
        again = ctx.without_effects()
        plain = run.hooks.setup(again)
        self.bits = again.counter.bits
        if run.scale is not None:  # of the targets, which the core has exchanged
            for way in ("up", "down"):
                self.add(way, ctx.clients * SCALARS * ctx.outputs)
        for client in again.counter.read - again.counter.senders:
            other, _ = self._answer(run.hooks.setup, [], ctx, {client})
            one, two = (seen_by_others(answer, client, []) for answer in (plain, other))
            if other is not None and not same_content(one, two):
                self.errors.append(owes(client, "setup", "samples of"))
        for name in DECIDING:
            vars(run.hooks)[name] = partial(self.probe, name, getattr(run.hooks, name))
        vars(run.hooks)["encode"] = partial(self.probe_coders, run.hooks.encode)
        run.context = ctx

    def add(self, direction: str, scalars: int, bits: int = BITS) -> None:
        """Count scalars in one direction."""
        self.bits[direction] += bits * scalars

    @hookimpl
    def plan(self, ctx: CountingContext) -> None:
        """A new round: no client holds a model."""
        if ctx.counter is self:
            self.held.clear()
            self.counted.clear()

    def probe(self, name: str, hook: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - see hooks
        """The answer of a hook; note the clients whose unsent numbers reach others through it."""
        *given, ctx = arguments
        if ctx.counter is not self:
            return hook(*arguments)
        if name == "score" and given[3] is not None:
            self._follow(given[0], given[3])
        plain, readers = self._answer(hook, given, ctx)
        for shadow in self.shadows:
            if name == "score":
                shadow.scores.clear()
            if plain is None or ctx.pools_data:
                continue
            holders = shadow.holders(*given)
            for client in sorted(readers | holders):
                changed = [shadow.of(one, {client}) for one in given]
                other, _ = self._answer(hook, changed, ctx, {client})
                if other is None:
                    continue  # it refuses such numbers: no conclusion
                untouched = shadow.passes_on(client, plain, other)
                one = seen_by_others(plain, client, given)
                if not same_content(one, seen_by_others(untouched, client, changed)):
                    what = "numbers that were not sent, of" if client in holders else "samples of"
                    where = f"round {ctx.round}: {name}"
                    self.waiting.setdefault(client, owes(client, where, what))
                shadow.learn(client, plain, other, given[0])
        answer = hook(*arguments)
        if name == "personalise" and isinstance(answer, Personal):
            self.probe_evaluation(hook, answer, given, ctx)
        return answer

    def _follow(self, state: State, upload: Upload | None = None) -> None:
        """Find what clients have kept in this stage, and what of their uploads did not cross."""
        assert self.dispatched is not None and self.start is not None, "dispatched before"
        before, stage, _ = self.dispatched
        sent = {} if upload is None else numbers_sent(upload, self.start)
        for shadow in self.shadows:
            shadow.kept(before, state, stage.clients, sent)
            if upload is not None:
                shadow.trained(upload, self.start, state)

    def _answer(
        self,
        hook: Callable[..., Any],
        given: list[Any],
        ctx: CountingContext,
        other: Collection[int] = (),
    ) -> tuple[Any, set[int]]:
        """What a hook says, with other samples of some clients, and the clients whose it read.

        It is None also if the hook refuses such samples.
        """
        again = ctx.without_effects(other)
        try:
            return hook(*given, again), again.counter.read
        except Exception:
            return None, set()

    @hookimpl
    def round_finished(self) -> None:
        """Clients on whose numbers something of others depends must have told them something."""
        self.errors += [text for client, text in self.waiting.items() if client not in self.senders]
        self.errors += [text for client, text in self.owed if client not in self.counted]
        for client in self.senders:
            for shadow in self.shadows:
                shadow.forget(client)
        self.waiting.clear()
        self.owed.clear()
        self.senders.clear()

    @hookimpl
    def dispatch(self, state: State, stage: Stage, ctx: CountingContext) -> None:
        """Record the arguments."""
        if ctx.counter is self:
            self.first = self.first or state
            self.dispatched = state, stage, ctx

    def fit(
        self, fit: FitFunction, start: Dispatched, stage: Stage, work: LocalWork, round_: int
    ) -> Upload:
        """Train, and count what the clients of a stage receive and upload."""
        assert self.run is not None, "attached before"
        crossings = split_training.follow(self.run.executor, start, stage, work, round_)
        upload = fit(start, stage, work, round_)
        if self.dispatched is None or self.dispatched[1] is not stage:
            return upload  # adaptation before an evaluation, not a stage of the round
        self.count_received(start, stage)
        sent = start.returned_mask.sum(dim=1)
        models = torch.ones_like(sent) if upload.rows is None else upload.active.sum(dim=1)
        if not self.coded:
            self.add(self.way("up"), int((models * sent).sum()))
            self.add(self.way("up"), sum(map(_scalars, upload.extras.values())))
        for (way, _), scalars in split_training.crossed(crossings, upload, stage).items():
            self.add(self.way(way), int(scalars.sum()))
        self.start = start
        self.probe_dispatch(start, *self.dispatched)
        if self.trains:
            self.probe_training(fit, start, upload)
        return upload

    def way(self, way: str) -> str:
        """The direction of what the clients of this stage get or send."""
        assert self.dispatched is not None, "dispatched before"
        return way if self.dispatched[1].edges is None else "client-edge"

    def others(self, client: int, *given: object) -> set[int]:
        """Clients but one that have something which they did not send."""
        return self.shadows[0].holders(*given) - {client} - self.senders

    def probe_training(self, fit: FitFunction, start: Dispatched, upload: Upload) -> None:
        """A client's training must not depend on what others have."""
        assert self.run is not None and self.dispatched is not None, "attached before"
        state, stage, ctx = self.dispatched
        if stage.pooled:
            return
        _, readers = self._answer(self.run.hooks.local_work, [state, stage], ctx)
        for place, client in enumerate(stage.clients.tolist()):
            others = self.others(client, state) | (readers - {client} - self.senders)
            given = [self.shadows[0].of(state, others), stage]
            work, _ = self._answer(self.run.hooks.local_work, given, ctx, others)
            if not others or work is None:
                continue
            at = torch.tensor([place])
            alone = fit(start.select(at), stage.select(at), work, ctx.round)
            pairs = [(alone, 0), (upload, place)]
            one, two = ([it.params[i], *(t[i] for t in it.extras.values())] for it, i in pairs)
            if not same_content(one, two):
                where = f"round {ctx.round}: local training of client {client}"
                self.blame(others, where)

    def blame(self, others: set[int], where: str) -> None:
        """Something of one client depends on unsent numbers of some others."""
        client = min(others)
        self.waiting.setdefault(client, owes(client, where, "numbers that were not sent, as of"))

    def probe_coders(self, encode: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - see hooks
        """What a client sends must not depend on what others have, or would send."""
        state, stage, upload, ctx = arguments
        if ctx.counter is not self:
            return encode(*arguments)
        if not self.coded or self.knows_all:
            return encode(*arguments)
        assert self.start is not None, "trained before"
        self._follow(state)
        plain, _ = self._answer(encode, [state, stage, upload], ctx)
        for place, client in enumerate(upload.ids.tolist()):
            others = self.others(client, state)
            params = larger(upload.params)
            params[place] = upload.params[place]
            given = [self.shadows[0].of(state, others), stage, replace(upload, params=params)]
            changed, _ = self._answer(encode, given, ctx, others)
            if plain is None or changed is None:
                continue
            at = torch.tensor([place])
            alone = upload.select(at), self.start.select(at)
            parameters = ctx.layout.parameters
            sent = [encoded(*alone, each, state, parameters)[0] for each in (plain, changed)]
            one, two = ([it.params, it.bits, dict(it.extras)] for it in sent)
            if not same_content(one, two):
                ids = set(upload.ids.tolist()) - {client}
                self.blame(ids | others, f"round {ctx.round}: what client {client} sends")
        return encode(*arguments)

    def probe_evaluation(
        self, hook: Callable[..., Any], plain: Personal, given: list[Any], ctx: CountingContext
    ) -> None:
        """Predictors and adaptations must not depend on what others have."""
        assert self.run is not None, "attached before"
        state, clients = given
        served = [plain, *plain.others.values()]
        if ctx.pools_data or not any(one.predictor or one.adaptation for one in served):
            return
        for client in clients.tolist():
            others = self.others(client, state)
            changed = self.shadows[0].of(state, others)
            other, _ = self._answer(hook, [changed, clients], ctx, others)
            if not others or other is None:
                continue
            one, two = (
                self.tested(answer, known, client, ctx)
                for answer, known in ((plain, state), (other, changed))
            )
            if one != two:
                self.blame(others, f"round {ctx.round}: what client {client} is tested with")

    def tested(self, personal: Personal, state: State, client: int, ctx: CountingContext) -> object:
        """What one client's models answer to its test samples."""
        assert self.run is not None, "attached before"
        run, again = self.run, ctx.without_effects()
        work = partial(run.hooks.local_work, state, ctx=again)
        judged = torch.tensor([client])
        metrics = run.metrics and run.metrics.headline
        found = evaluate_judged(
            run.executor, personal, state, run.held_out, judged, work, metrics=metrics
        )
        return found.loss, found.correct, found.others

    def count_received(self, start: Dispatched, stage: Stage) -> None:
        """Count what the clients of a stage receive."""
        for index, client in enumerate(stage.clients.tolist()):
            mask, held = start.sent_mask[index], self.held.setdefault(client, [])
            there = start.params[index][start.active[index]]
            new = [
                row for row in there if not any(torch.equal(row[mask], old[mask]) for old in held)
            ]
            self.add(self.way("down"), int(mask.sum()) * len(new))
            if bool((mask | start.at_server[index]).all()):
                held += new
        self.add(self.way("down"), sum(map(_scalars, start.extras.values())))

    def probe_dispatch(
        self, start: Dispatched, state: State, stage: Stage, ctx: CountingContext
    ) -> None:
        """What a client starts from, but was not sent, must not depend on the server's state."""
        assert self.run is not None and self.first is not None, "attached before"
        use = "use `extras`"
        for index, client in enumerate(stage.clients.tolist()):
            free = ~start.sent_mask[index] & ~start.at_server[index]
            foreign = self.foreign.pop(client, None)
            if client in self.counted:
                continue  # the plugin counted it by itself
            where = f"round {ctx.round}, stage '{stage.label}': client {client}"
            if foreign is not None and bool(foreign.any()):
                there = start.params[index] == state.models[state.membership.home[client]]
                if bool((there & foreign & free).any()):
                    text = (
                        f"{where} starts from a mean of other clients' uploads, which nobody"
                        " sent to it: count it (`sent_mask`, or `ctx.send`)"
                    )
                    self.owed.append((client, text))
                self.foreign[client] = foreign & free
            others_changed = with_other_clients_changed(state, client, self.first)
            try:
                other = self.run.hooks.dispatch(others_changed, stage, ctx.without_effects())
            except Exception:
                continue  # it refuses such numbers: no conclusion
            if other.params.shape == start.params.shape and not same_bits(
                other.params[index][:, free], start.params[index][:, free]
            ):
                text = f"{where} starts from numbers of the server that `sent_mask` excludes"
                self.owed.append((client, text))
            self.owed += [
                (client, f"{where} gets '{name}' in `client_memory`, but the server made it: {use}")
                for name, table in start.client_memory.items()
                if not same_bits(table[index], other.client_memory[name][index])
            ]

    @hookimpl
    def encode(self, ctx: CountingContext) -> Callable[[Message], Message] | None:
        """Count what the method's own coders give: this plugin is asked last."""
        if ctx.counter is not self:
            return None
        self.largest.clear()
        self.reported.clear()
        return self.count_message if self.coded else None

    def count_message(self, message: Message) -> Message:
        """Count what a client sends after coding; of alternatives it sends the largest."""
        assert self.start is not None and self.run is not None and self.dispatched is not None
        place = self.dispatched[1].clients.tolist().index(message.client)
        buffers = self.start.returned_mask[place, self.run.context.layout.parameters :].sum()
        size = int(message.mask.sum()) * message.bits + message.overhead + BITS * int(buffers)
        before = 0 if self.start.rows is not None else self.largest.get(message.client, 0)
        self.add(self.way("up"), 1, max(0, size - before))
        self.largest[message.client] = max(size, before)
        scalars = sum(_scalars(torch.as_tensor(extra)) for extra in message.extras.values())
        self.add(self.way("up"), scalars - self.reported.get(message.client, 0))
        self.reported[message.client] = scalars
        update = message.update[message.mask]
        values = (update / update.abs().max()).mul(1e4).round().unique() if len(update) else update
        if message.bits < 12 and len(values) > 2**message.bits:
            self.errors.append(
                f"client {message.client} sends {len(values)} different values of {message.bits}"
                " bits"
            )
        return message

    @hookimpl
    def aggregate(self, state: State, upload: Upload, ctx: CountingContext) -> None:
        """Find what of a client's own row depends on the uploads of others."""
        home = state.membership.home
        alone = len(state.models) == len(home) and len(home.unique()) == len(home)
        if ctx.counter is not self or self.run is None or not alone:
            return
        again = ctx.without_effects()
        plain = self._aggregated(state, upload, again)
        for index, client in enumerate(upload.ids.tolist()):
            changed = _changed(plain, self._aggregated(state, _with_other(upload, index), again))
            for row in changed.any(dim=1).nonzero()[:, 0].tolist():
                owner = int((home == row).nonzero()[0, 0])
                if owner != client and owner not in again.counter.counted | self.counted:
                    before = self.foreign.get(owner, torch.zeros_like(changed[row]))
                    self.foreign[owner] = before | changed[row]

    def _aggregated(self, state: State, upload: Upload, ctx: CountingContext) -> Tensor | None:
        """The models that `aggregate` gives for an upload; None = it refuses these numbers."""
        assert self.run is not None and self.dispatched is not None, "attached before"
        try:
            return self.run.hooks.aggregate(state, self.dispatched[1], upload, ctx).rows
        except Exception:
            return None


def owes(client: int, where: str, what: str) -> str:
    """What is wrong where others know a client's numbers."""
    return (
        f"{where} depends for others on {what} client {client}, which sent nothing about them:"
        " count it (`ctx.send`)"
    )


def _with_other(upload: Upload, index: int) -> Upload:
    """The upload with other numbers of one client."""
    params = upload.params.clone()
    params[index] = perturbed(params[index])
    return replace(upload, params=params)


def _changed(one: Tensor | None, other: Tensor | None) -> Tensor:
    """Which scalars of two banks differ, shape (K, W), bool; none where there is no conclusion."""
    if one is None or other is None or one.shape != other.shape:
        return torch.zeros(0, 0, dtype=torch.bool)
    return torch.as_tensor(one != other)


def _scalars(tensor: Tensor) -> int:
    """Scalars that are not NaN (= not sent)."""
    return int((~tensor.isnan()).sum())


def perturbed(tensor: Tensor, keep: Tensor | None = None, known: Tensor | None = None) -> Tensor:
    """A table with other finite numbers.

    Args:
        tensor: the table, shape (n, ...).
        keep: rows that keep their numbers, shape (n,), bool.
        known: another table; numbers that are equal in both are kept, if it has the same shape.
    """
    if not tensor.is_floating_point():
        return tensor
    other = torch.where(tensor.isfinite(), 1.5 * tensor + 0.25, tensor)
    if known is not None and known.shape == tensor.shape:
        other = torch.where(tensor == known, tensor, other)
    if keep is not None:
        other[keep] = tensor[keep]
    return other


def with_other_clients_changed(state: State, client: int, first: State) -> State:
    """The state with other numbers in everything that is not the client's own or known to all.

    Known to all is what is as in the state `first`, before round 1.
    """
    home, clients = state.membership.home, len(state.membership.home)
    mine = torch.zeros(len(state.models), dtype=torch.bool)
    if home[client] >= 0 and int((home == home[client]).sum()) == 1 and len(mine) == clients:
        mine[home[client]] = True  # a row of its own
    own = torch.arange(clients) == client
    memory = {
        name: perturbed(
            table, own if state.scopes.get(name) == "client" else None, first.memory.get(name)
        )
        for name, table in state.memory.items()
    }
    same = first.models.shape == state.models.shape
    known = first.models if same else first.models[:1].expand(state.models.shape)
    models = perturbed(state.models.clone(), mine, known.clone())
    return replace(state, models=models, memory=memory)


@check(usual_run)
def bytes_add_up(method: MethodUnderTest) -> None:
    """The ledger counts every number that is sent, and nothing else."""
    plugins = [plugin for _, plugin in method.compose().layers]
    hooks = set().union(*(implemented_hooks(type(plugin)) for plugin in plugins))
    counter = TrafficCounter(
        coded="encode" in hooks,
        knows_all=any(hasattr(plugin, "attackers") for plugin in plugins),
        trains=not hooks.isdisjoint(TRAINING),
    )
    # so that a client has more scalars than eight bits have values
    wide = {"model": {"name": "mlp", "hidden": 600}} if counter.coded else {}
    finished = method.run_with_newcomers(
        wide,
        extra_plugins=[("kit", counter)],
        around_fit=counter.fit,
        before_first_round=counter.attach,
    )
    evaluate_newcomers(finished.run, finished.state)
    counter.round_finished()  # what newcomers were served
    if counter.errors:
        raise method.failure(counter.errors[0])
    for direction in ALL_WAYS:
        items = finished.run.ledger.bits.get(direction, {})
        counted, sent = sum(items.values()), counter.bits[direction]
        if counted != sent:
            raise method.failure(
                f"the ledger counts {counted / 8:.12g} bytes {direction}, but {sent / 8:.12g} were"
                " sent"
            )
