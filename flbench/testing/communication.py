"""Check of the communication ledger: it counts every number that is sent, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flbench.core.client import LocalWork
from flbench.core.context import Split
from flbench.core.hookspecs import hookimpl, implemented_hooks
from flbench.core.state import (
    Dispatched,
    Membership,
    Message,
    Models,
    Scores,
    Stage,
    State,
    Upload,
)
from flbench.core.types import Direction
from flbench.engine.communication import BITS, DIRECTIONS, CommunicationLedger
from flbench.plugin.arguments import tensors
from flbench.run.context import RunContext
from flbench.run.rounds import Run
from flbench.testing.check import MethodUnderTest, check
from flbench.testing.edge_cases import usual_run
from flbench.testing.hook_recorder import same_bits
from flbench.testing.small_run import Fit


@dataclass(frozen=True, kw_only=True)
class CountingContext(RunContext):
    """A run's context; what a method reads of clients and sends by itself is noted by a meter.

    Attributes:
        meter: the meter.
        other_data: the client whose samples, and losses on them, are other numbers than they are.
    """

    meter: Meter
    other_data: int | None = None

    def evaluate(self, models: Tensor, clients: Tensor, split: Split = "validation") -> Tensor:
        """Note, and evaluate; on other data, losses have the opposite order."""
        self.meter.read |= set(clients.tolist())
        losses = super().evaluate(models, clients, split)
        is_other = (clients == self.other_data)[:, None] if self.other_data is not None else False
        return torch.where(torch.as_tensor(is_other), 1 / (0.1 + losses), losses)

    def client_data(self, client: int, split: Split = "train") -> tuple[Tensor, Tensor]:
        """Note, and read; other samples have the opposite sign, other labels the opposite order."""
        self.meter.read.add(client)
        x, y = super().client_data(client, split)
        if client != self.other_data:
            return x, y
        return -x if x.is_floating_point() else self.classes - 1 - x, self.classes - 1 - y

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
        self.meter.add(direction, int(each.sum()), bits)
        if direction == "up":
            self.meter.told |= set(clients[each > 0].tolist())
        elif direction == "peer":  # the ledger knows the receivers
            self.meter.told |= set(range(self.clients))
        if direction != "up":
            self.meter.counted |= set(clients[each > 0].tolist())
        super().send(direction, clients, item, scalars, bits)

    def send_models(self, clients: Tensor, models: Tensor) -> None:
        """Count and send."""
        self.meter.add("down", models.numel() * len(clients))
        for client in clients.tolist():
            self.meter.counted.add(client)
            self.meter.held.setdefault(client, []).extend(models)
        super().send_models(clients, models)

    def without_effects(self) -> CountingContext:
        """The same context, for a second call of a hook: nothing that it says is kept."""
        ledger = CommunicationLedger(self.clients)
        services = replace(self.services, ledger=ledger, say=lambda _: None, notes={}, warnings=[])
        return replace(self, services=services, meter=Meter(self.meter.coded))


@dataclass(eq=False)
class Meter:
    """A plugin that counts what a run sends, independently of the ledger.

    It also calls `dispatch` and `aggregate` again, with other numbers where nothing was sent: the
    answers must not depend on these numbers. Uploads are changed one at a time, because a client
    may use its own numbers without sending them, but not those of another client.

    `plan`, `score`, `cluster` and `aggregate` are called again with other samples of one client, if
    they read its samples: where more than its own part of the answer depends on them, it must send
    something beside its model in that round.

    Numbers that are as they were before round 1 are not changed: everybody knows them, such as
    those of a frozen part of the network.

    Attributes:
        coded: whether the method codes what clients send (`encode`).
        bits: direction -> bits that were sent.
        largest: client -> bits of its largest candidate in this stage.
        errors: numbers that were used although they were not counted.
        counted: clients to whom the method itself counted something in this round.
        held: client -> models that it received in this round.
        dispatched: the arguments of the last call of `dispatch`.
        start: what the clients of the stage start from.
        first: the state before round 1.
        read: clients whose samples were read, or losses on them.
        scored: those whose samples the last call of `score` read.
        told: clients that sent something beside the upload in this round.
        waiting: client -> the hook of this round whose answer for others depends on its samples.
        foreign: client with a row of its own -> scalars of it that depend on uploads of other
            clients and that this client has not received yet, shape (W,), bool.
    """

    coded: bool
    run: Run | None = None
    bits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
    largest: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    held: dict[int, list[Tensor]] = field(default_factory=dict)
    dispatched: tuple[State, Stage, CountingContext] | None = None
    start: Dispatched | None = None
    first: State | None = None
    read: set[int] = field(default_factory=set)
    scored: set[int] = field(default_factory=set)
    told: set[int] = field(default_factory=set)
    waiting: dict[int, str] = field(default_factory=dict)
    foreign: dict[int, Tensor] = field(default_factory=dict)

    def attach(self, run: Run) -> None:
        """Count what the hooks of a run send by themselves."""
        values = {one.name: getattr(run.context, one.name) for one in fields(run.context)}
        run.context = CountingContext(**values, meter=self)
        self.run = run
        for name in ("plan", "score", "cluster", "aggregate"):
            hook = partial(self.probe_samples, name, getattr(run.hooks, name))
            vars(run.hooks)[name] = hook

    def add(self, direction: str, scalars: int, bits: int = BITS) -> None:
        """Count scalars in one direction."""
        self.bits[direction] += bits * scalars

    @hookimpl
    def plan(self, ctx: CountingContext) -> None:
        """A new round: no client holds a model."""
        if ctx.meter is self:
            self.held.clear()
            self.counted.clear()

    def probe_samples(self, name: str, hook: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - see hooks
        """The answer of a hook; note the clients on whose samples it depends for others, too."""
        *given, ctx = arguments
        if ctx.meter is not self:
            return hook(*arguments)
        plain, readers = self._answer(hook, given, ctx)
        if name == "cluster":
            readers = readers | self.scored
        elif name == "score":
            self.scored = readers
        for client in readers:
            other, _ = self._answer(hook, given, ctx, client)
            if other is None:
                continue
            one, two = (seen_by_others(answer, client, given[0]) for answer in (plain, other))
            if len(one) != len(two) or not all(map(same_bits, one, two)):
                self.waiting.setdefault(client, f"round {ctx.round}: {name}")
        return hook(*arguments)

    def _answer(
        self,
        hook: Callable[..., Any],
        given: list[Any],
        ctx: CountingContext,
        other: int | None = None,
    ) -> tuple[object, set[int]]:
        """What a hook says, with other samples of one client, and the clients whose it read.

        It is None also if the hook refuses such samples.
        """
        again = replace(ctx.without_effects(), other_data=other)
        if other is not None:
            given = [
                with_other_row(one, other) if isinstance(one, Scores) else one for one in given
            ]
        try:
            return hook(*given, again), again.meter.read
        except Exception:
            return None, set()

    @hookimpl
    def round_finished(self) -> None:
        """Clients on whose samples something of others depends must have told them something."""
        for client, where in self.waiting.items():
            if client not in self.told:
                self.errors.append(
                    f"{where} depends on samples of client {client}, which sent nothing about them:"
                    " count it (`ctx.send`)"
                )
        self.waiting.clear()
        self.told.clear()

    @hookimpl
    def dispatch(self, state: State, stage: Stage, ctx: CountingContext) -> None:
        """Record the arguments."""
        if ctx.meter is self:
            self.first = self.first or state
            self.dispatched = state, stage, ctx

    def fit(
        self, fit: Fit, start: Dispatched, stage: Stage, work: LocalWork, round_: int
    ) -> Upload:
        """Train, and count what the clients of a stage receive and upload."""
        upload = fit(start, stage, work, round_)
        if self.dispatched is None or self.dispatched[1] is not stage:
            return upload  # adaptation before an evaluation, not a stage of the round
        self.count_received(start, stage)
        sent = start.returned_mask.sum(dim=1)
        models = torch.ones_like(sent) if upload.rows is None else upload.active.sum(dim=1)
        if not self.coded:
            self.add("up", int((models * sent).sum()))
        self.add("up", sum(map(_scalars, upload.extras.values())))
        self.start = start
        self.probe_dispatch(start, *self.dispatched)
        return upload

    def count_received(self, start: Dispatched, stage: Stage) -> None:
        """Count what the clients of a stage receive."""
        for index, client in enumerate(stage.clients.tolist()):
            mask, held = start.sent_mask[index], self.held.setdefault(client, [])
            there = start.params[index][start.active[index]]
            new = [row for row in there if not any(torch.equal(row, old) for old in held)]
            self.add("down", int(mask.sum()) * len(new))
            if bool(mask.all()):
                held += new
        self.add("down", sum(map(_scalars, start.extras.values())))

    def probe_dispatch(
        self, start: Dispatched, state: State, stage: Stage, ctx: CountingContext
    ) -> None:
        """What a client starts from, but was not sent, must not depend on the server's state."""
        assert self.run is not None and self.first is not None, "attached before"
        for index, client in enumerate(stage.clients.tolist()):
            free = ~start.sent_mask[index]
            foreign = self.foreign.pop(client, None)
            if client in self.counted:
                continue  # the plugin counted it by itself
            where = f"round {ctx.round}, stage '{stage.label}': client {client}"
            if foreign is not None and bool(foreign.any()):
                there = start.params[index] == state.models[state.membership.home[client]]
                if bool((there & foreign & free).any()):
                    self.errors.append(
                        f"{where} starts from a mean of other clients' uploads, which nobody"
                        " sent to it: count it (`sent_mask`, or `ctx.send`)"
                    )
                self.foreign[client] = foreign & free
            others_changed = with_other_clients_changed(state, client, self.first)
            try:
                other = self.run.hooks.dispatch(others_changed, stage, ctx.without_effects())
            except Exception:
                continue  # it refuses such numbers: no conclusion
            if other.params.shape == start.params.shape and not same_bits(
                other.params[index][:, free], start.params[index][:, free]
            ):
                self.errors.append(
                    f"{where} starts from numbers of the server that `sent_mask` excludes"
                )
            self.errors += [
                f"{where} gets '{name}' in `client_memory`, but the server made it: use `extras`"
                for name, table in start.client_memory.items()
                if not same_bits(table[index], other.client_memory[name][index])
            ]

    @hookimpl
    def encode(self) -> Callable[[Message], Message] | None:
        """Count what the method's own coders give: this plugin is asked last."""
        self.largest.clear()
        return self.count_message if self.coded else None

    def count_message(self, message: Message) -> Message:
        """Count what a client sends after coding; of alternatives it sends the largest."""
        assert self.start is not None and self.run is not None and self.dispatched is not None
        place = self.dispatched[1].clients.tolist().index(message.client)
        buffers = self.start.returned_mask[place, self.run.context.layout.parameters :].sum()
        size = int(message.mask.sum()) * message.bits + message.overhead + BITS * int(buffers)
        before = 0 if self.start.rows is not None else self.largest.get(message.client, 0)
        self.add("up", 1, max(0, size - before))
        self.largest[message.client] = max(size, before)
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
        """A client's row must not depend on numbers that another client did not upload."""
        if ctx.meter is not self or self.run is None or self.start is None:
            return
        again = ctx.without_effects()
        plain = self._aggregated(state, upload, again)
        home = state.membership.home
        kept = ~self.start.returned_mask[:, None] & (upload.params != self.start.params)
        alone = len(state.models) == len(home) and len(home.unique()) == len(home)
        for index, client in enumerate(upload.ids.tolist()):
            if bool(kept[index].any()):
                other = self._aggregated(state, _with_other_upload(upload, index, kept), again)
                for row in _changed(plain, other).any(dim=1).nonzero()[:, 0].tolist():
                    owners = (home == row).nonzero()[:, 0].tolist()
                    if owners != [client] and not set(owners) <= again.meter.counted | self.counted:
                        self.errors.append(
                            f"round {ctx.round}: row {row} of the models depends on numbers of"
                            f" client {client} that `returned_mask` excludes"
                        )
            if alone:
                other = self._aggregated(state, _with_other_upload(upload, index, None), again)
                changed = _changed(plain, other)
                for row in changed.any(dim=1).nonzero()[:, 0].tolist():
                    owner = int((home == row).nonzero()[0, 0])
                    if owner != client and owner not in again.meter.counted | self.counted:
                        before = self.foreign.get(owner, torch.zeros_like(changed[row]))
                        self.foreign[owner] = before | changed[row]

    def _aggregated(self, state: State, upload: Upload, ctx: CountingContext) -> Tensor | None:
        """The models that `aggregate` gives for an upload; None = it refuses these numbers."""
        assert self.run is not None, "attached before"
        try:
            return self.run.hooks.aggregate(state, upload, ctx).rows
        except Exception:
            return None


def _with_other_upload(upload: Upload, index: int, where: Tensor | None) -> Upload:
    """The upload with other numbers of one client, all or those of a mask, shape (n, c, W)."""
    params = upload.params.clone()
    other = perturbed(params[index])
    params[index] = other if where is None else torch.where(where[index], other, params[index])
    return replace(upload, params=params)


def _changed(one: Tensor | None, other: Tensor | None) -> Tensor:
    """Which scalars of two banks differ, shape (K, W), bool; none where there is no conclusion."""
    if one is None or other is None or one.shape != other.shape:
        return torch.zeros(0, 0, dtype=torch.bool)
    return torch.as_tensor(one != other)


def seen_by_others(answer: object, client: int, state: State) -> list[Tensor]:
    """What others than one client know of the answer of a hook.

    Its own are the scores that it gives, its rows of memory, a model that nobody shares with it,
    and the choice of its model where `weights` do not change with it, as the server then treats its
    upload as before.
    """
    if not isinstance(answer, (Scores, Membership, Models)):
        return [one for _, one in tensors(answer, "plan")]
    found = [
        _without(table, client) if state.scopes.get(name) == "client" else table
        for name, table in sorted(answer.memory.items())
    ]
    if isinstance(answer, Scores):
        return [answer.values[answer.row_ids != client], answer.column_ids, *found]
    if isinstance(answer, Models):
        return [_without(torch.as_tensor(answer.rows), own_row(state.membership, client)), *found]
    if answer.weights is None:
        found.append(answer.home)
    else:
        found.append(_without(answer.home, client))
        found.append(_without(answer.weights, own_row(answer, client)))
    return [*found, *(one for one in (answer.parent, answer.models) if one is not None)]


def own_row(membership: Membership, client: int) -> int:
    """The row of a client's model if nobody shares it, else -1."""
    row = int(membership.home[client])
    return row if int((membership.home == row).sum()) == 1 else -1


def with_other_row(scores: Scores, client: int) -> Scores:
    """The scores in the opposite order where one client gives them."""
    return replace(
        scores,
        values=torch.where((scores.row_ids == client)[:, None], -scores.values, scores.values),
    )


def _without(table: Tensor, row: int) -> Tensor:
    """All rows of a table but one."""
    return table[torch.arange(len(table)) != row]


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
    meter = Meter(any("encode" in implemented_hooks(type(p)) for _, p in method.compose().layers))
    wide = method.suite(model={"name": "mlp", "hidden": 600}) if meter.coded else None
    finished = method.run(
        wide,  # so that a client has more scalars than eight bits have values
        extra_plugins=[("kit", meter)],
        around_fit=meter.fit,
        before_first_round=meter.attach,
    )
    if meter.errors:
        raise method.failure(meter.errors[0])
    for direction in DIRECTIONS:
        counted, sent = sum(finished.run.ledger.bits[direction].values()), meter.bits[direction]
        if counted != sent:
            raise method.failure(
                f"the ledger counts {counted / 8:.12g} bytes {direction}, but {sent / 8:.12g} were"
                " sent"
            )
