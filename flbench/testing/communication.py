"""Check of the communication ledger: it counts every number that is sent, and no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from flbench.core.context import Context
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Dispatched, Message, Stage, State, Upload
from flbench.core.types import Direction, Plain
from flbench.engine.communication import BITS
from flbench.engine.sequential import Sequential, Term
from flbench.run.composition import hooks_of
from flbench.run.context import RunContext
from flbench.run.rounds import Run
from flbench.testing.check import MethodUnderTest, check
from flbench.testing.edge_cases import usual_run


@dataclass
class Meter:
    """Counts what a run sends, independently of the ledger.

    Attributes:
        bits: direction -> bits that were sent.
        coded: whether the method codes what clients send (`encode`).
        largest: client -> bits of its largest candidate in this stage.
        errors: numbers that were used although they were not counted.
        counted: clients to whom the plugin itself counted something in this round.
        held: client -> models that it received in this round.
        dispatch_arguments: of the last call of `dispatch`.
        start: what the clients of the stage start from.
        probing: whether a hook is called a second time, with changed numbers.
    """

    coded: bool
    bits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("down", "up", "peer"), 0))
    largest: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    held: dict[int, list[Tensor]] = field(default_factory=dict)
    run: Run | None = None
    dispatch_arguments: tuple[State, Stage, Context] | None = None
    start: Dispatched | None = None
    probing: bool = False

    def add(self, direction: str, scalars: int, bits: int = BITS) -> None:
        """Count scalars in one direction."""
        self.bits[direction] += bits * scalars

    def message(self, message: Message) -> Message:
        """Count what a client sends after coding; of alternatives it sends the largest."""
        assert self.start is not None and self.run is not None, "clients have trained"
        assert self.dispatch_arguments is not None, "clients have trained"
        place = self.dispatch_arguments[1].clients.tolist().index(message.client)
        buffers = self.start.returned_mask[place, self.run.context.layout.parameters :].sum()
        size = int(message.mask.sum()) * message.bits + message.overhead + BITS * int(buffers)
        before = 0 if self.start.rows is not None else self.largest.get(message.client, 0)
        self.add("up", 1, max(0, size - before))
        self.largest[message.client] = max(size, before)
        update = message.update[message.mask]
        values = len((update / update.abs().max()).mul(1e4).round().unique()) if len(update) else 0
        if message.bits < 12 and values > 2**message.bits:
            self.errors.append(
                f"client {message.client} sends {values} different values of {message.bits} bits"
            )
        return message


@dataclass(frozen=True, kw_only=True)
class CountingContext(RunContext):
    """A run's context; everything that is sent is also counted by a meter."""

    meter: Meter

    @classmethod
    def of(cls, context: RunContext, meter: Meter) -> CountingContext:
        """The same context, with a meter."""
        same = {one.name: getattr(context, one.name) for one in fields(context)}
        return cls(**same, meter=meter)

    def send(
        self,
        direction: Direction,
        clients: Tensor,
        item: str,
        scalars: Tensor | int,
        bits: int = BITS,
    ) -> None:
        """Count and send, unless the hook is probed."""
        meter = self.meter
        if meter.probing:
            return
        each = torch.full(clients.shape, scalars) if isinstance(scalars, int) else scalars
        meter.add(direction, int(each.sum()), bits)
        meter.counted |= set(clients[each > 0].tolist()) if direction != "up" else set()
        super().send(direction, clients, item, scalars, bits)

    def send_models(self, clients: Tensor, models: Tensor) -> None:
        """Count and send, unless the hook is probed."""
        meter = self.meter
        if meter.probing:
            return
        meter.add("down", models.numel() * len(clients))
        for client in clients.tolist():
            meter.counted.add(client)
            meter.held.setdefault(client, []).extend(models)
        super().send_models(clients, models)

    def note(self, name: str, value: Plain) -> None:
        """Pass it on, unless the hook is probed."""
        if not self.meter.probing:
            super().note(name, value)

    def warn(self, message: str) -> None:
        """Pass it on, unless the hook is probed."""
        if not self.meter.probing:
            super().warn(message)


@dataclass(frozen=True)
class Probe:
    """Records the arguments of `dispatch`, and probes `aggregate` with changed uploads."""

    meter: Meter

    @hookimpl
    def plan(self) -> None:
        """A new round: no client holds a model."""
        self.meter.held.clear()
        self.meter.counted.clear()

    @hookimpl
    def dispatch(self, state: State, stage: Stage, ctx: Context) -> None:
        """Record the arguments."""
        if not self.meter.probing:
            self.meter.dispatch_arguments = state, stage, ctx

    @hookimpl
    def encode(self) -> Callable[[Message], Message] | None:
        """Count what the method's own coders give; this one is asked last."""
        self.meter.largest.clear()
        return self.meter.message if self.meter.coded else None

    @hookimpl
    def aggregate(self, state: State, upload: Upload, ctx: Context) -> None:
        """Call it again with other numbers in entries that were not uploaded."""
        meter = self.meter
        if not meter.probing and meter.start is not None:
            probe_aggregate(meter, state, upload, ctx)


class CountingExecutor(Sequential):
    """Trains, and counts what the clients of a stage receive and upload."""

    def __init__(self, inner: Sequential, meter: Meter) -> None:
        super().__init__(inner.workspace, inner.samples, inner.seed)
        self.meter = meter

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """See `Sequential.fit`."""
        upload = super().fit(start, stage, terms, round_)
        meter = self.meter
        if meter.dispatch_arguments is None or meter.dispatch_arguments[1] is not stage:
            return upload  # adaptation before an evaluation, not a stage of the round
        self._down(start, stage)
        sent = start.returned_mask.sum(dim=1)
        models = torch.ones_like(sent) if upload.rows is None else upload.active.sum(dim=1)
        if not meter.coded:
            meter.add("up", int((models * sent).sum()))
        meter.add("up", sum(_scalars(tensor) for tensor in upload.extras.values()))
        meter.start = start
        probe_dispatch(meter, start)
        return upload

    def _down(self, start: Dispatched, stage: Stage) -> None:
        meter = self.meter
        for index, client in enumerate(stage.clients.tolist()):
            mask, held = start.sent_mask[index], meter.held.setdefault(client, [])
            there = [row for row, on in zip(start.params[index], start.active[index]) if on]  # noqa: B905
            new = [row for row in there if not any(torch.equal(row, old) for old in held)]
            meter.add("down", int(mask.sum()) * len(new))
            if bool(mask.all()):
                held += new
        meter.add("down", sum(_scalars(tensor) for tensor in start.extras.values()))


def _scalars(tensor: Tensor) -> int:
    """Scalars that are not NaN (= not sent)."""
    return int((~tensor.isnan()).sum())


def changed(tensor: Tensor, keep: Tensor | None = None) -> Tensor:
    """A table with changed finite numbers, except in the rows to keep.

    Args:
        keep: rows, shape (n,), bool; None = no row.
    """
    if not tensor.is_floating_point():
        return tensor
    other = torch.where(tensor.isfinite(), 1.5 * tensor + 0.25, tensor)
    if keep is not None:
        other[keep] = tensor[keep]
    return other


def with_other_clients_changed(state: State, client: int) -> State:
    """The state with changed numbers in everything that is not the client's own."""
    home, clients = state.membership.home, len(state.membership.home)
    mine = torch.zeros(len(state.models), dtype=torch.bool)
    if home[client] >= 0 and int((home == home[client]).sum()) == 1 and len(mine) == clients:
        mine[home[client]] = True  # a row of its own
    own = torch.arange(clients) == client
    memory = {
        name: changed(table, own if state.scopes.get(name) == "client" else None)
        for name, table in state.memory.items()
    }
    return replace(state, models=changed(state.models.clone(), mine), memory=memory)


def probe_dispatch(meter: Meter, start: Dispatched) -> None:
    """Numbers that are not counted as sent to a client must not depend on the server's state."""
    assert meter.dispatch_arguments is not None and meter.run is not None, "set before"
    state, stage, ctx = meter.dispatch_arguments
    meter.probing = True
    try:
        for index, client in enumerate(stage.clients.tolist()):
            if client in meter.counted:
                continue  # the plugin counted it by itself
            try:
                other = meter.run.hooks.dispatch(
                    with_other_clients_changed(state, client), stage, ctx
                )
            except Exception:
                continue  # it refuses such numbers: no conclusion
            where = f"round {ctx.round}, stage '{stage.label}': client {client}"
            free = ~start.sent_mask[index]
            if other.params.shape == start.params.shape and not torch.equal(
                other.params[index][:, free], start.params[index][:, free]
            ):
                meter.errors.append(
                    f"{where} starts from numbers of the server that `sent_mask` excludes"
                )
            meter.errors += [
                f"{where} gets '{name}' in `client_memory`, but the server made it: use `extras`"
                for name, table in start.client_memory.items()
                if not torch.equal(
                    table[index].nan_to_num(7e7), other.client_memory[name][index].nan_to_num(7e7)
                )
            ]
    finally:
        meter.probing = False


def probe_aggregate(meter: Meter, state: State, upload: Upload, ctx: Context) -> None:
    """Models of other clients must not depend on numbers that a client did not upload."""
    assert meter.start is not None and meter.run is not None, "set before"
    kept, meter.probing = ~meter.start.returned_mask[:, None], True
    try:
        if not bool(kept.any()):
            return
        params = torch.where(kept, changed(upload.params), upload.params)
        first = meter.run.hooks.aggregate(state, upload, ctx)
        other = meter.run.hooks.aggregate(state, replace(upload, params=params), ctx)
        rows_changed = {
            int(row) for row in (first.rows != other.rows).any(dim=1).nonzero()[:, 0].tolist()
        }
        own = {int(state.membership.home[client]) for client in upload.ids}
        shared = [
            row
            for row in rows_changed
            if row not in own or int((state.membership.home == row).sum()) > 1
        ]
        if shared:
            meter.errors.append(
                f"round {ctx.round}: row {shared[0]} of the models depends on numbers that"
                " `returned_mask` excludes"
            )
    finally:
        meter.probing = False


@check(usual_run)
def bytes_add_up(method: MethodUnderTest) -> None:
    """The ledger counts every number that is sent, and nothing else."""
    meter = Meter(any("encode" in hooks_of(plugin) for _, plugin in method.compose().layers))

    def wrap(run: Run) -> Sequential:
        meter.run = run
        run.context = CountingContext.of(run.context, meter)
        return CountingExecutor(run.executor, meter)

    finished = method.run(extra_plugins=[("kit", Probe(meter))], executor=wrap)
    if meter.errors:
        raise method.failure(meter.errors[0])
    found = {way: sum(items.values()) for way, items in finished.run.ledger.bits.items()}
    odd = [way for way in found if found[way] != meter.bits[way]]
    if odd:
        counted, sent = (f"{table[odd[0]] / 8:.12g}" for table in (found, meter.bits))
        raise method.failure(f"the ledger counts {counted} bytes {odd[0]}, but {sent} were sent")
