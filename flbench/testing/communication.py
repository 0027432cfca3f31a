"""Laws about bytes: what the ledger says is what crosses, and what is free is the client's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from flbench.core.context import Context
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Dispatched, Stage, State, Upload
from flbench.core.types import Direction, Plain
from flbench.engine.communication import BYTES
from flbench.engine.sequential import Sequential, Term
from flbench.run.context import RunContext
from flbench.run.rounds import Run
from flbench.testing.check import Case, law
from flbench.testing.edge_cases import usual_run


@dataclass
class Meter:
    """Watches a run from outside the ledger: what is sent, trained from and uploaded.

    Attributes:
        bytes: direction -> what crossed, as seen here.
        odd: what crossed although it was not counted.
        told: clients to whom the plugin itself counted something in this round.
    """

    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("down", "up", "peer"), 0))
    odd: list[str] = field(default_factory=list)
    told: set[int] = field(default_factory=set)
    held: dict[int, list[Tensor]] = field(default_factory=dict)
    run: Run | None = None
    asked: tuple[State, Stage, Context] | None = None
    start: Dispatched | None = None
    trying: bool = False

    def add(self, direction: str, scalars: int) -> None:
        """Count scalars."""
        self.bytes[direction] += BYTES * scalars


@dataclass(frozen=True, kw_only=True)
class MeteredContext(RunContext):
    """A run's context that tells a meter what is sent; nothing is counted while `meter.trying`."""

    meter: Meter

    @classmethod
    def of(cls, context: RunContext, meter: Meter) -> MeteredContext:
        """The same context, with a meter."""
        same = {one.name: getattr(context, one.name) for one in fields(context)}
        return cls(**same, meter=meter)

    def send(self, direction: Direction, clients: Tensor, item: str, scalars: Tensor | int) -> None:
        """Count, unless it is only tried."""
        meter = self.meter
        if meter.trying:
            return
        each = torch.full(clients.shape, scalars) if isinstance(scalars, int) else scalars
        meter.add(direction, int(each.sum()))
        meter.told |= set(clients[each > 0].tolist()) if direction != "up" else set()
        super().send(direction, clients, item, scalars)

    def send_models(self, clients: Tensor, models: Tensor) -> None:
        """Count, unless it is only tried."""
        meter = self.meter
        if meter.trying:
            return
        meter.add("down", models.numel() * len(clients))
        for client in clients.tolist():
            meter.told.add(client)
            meter.held.setdefault(client, []).extend(models)
        super().send_models(clients, models)

    def note(self, name: str, value: Plain) -> None:
        """Keep it, unless it is only tried."""
        if not self.meter.trying:
            super().note(name, value)


@dataclass(frozen=True)
class Watch:
    """Keeps what `dispatch` is given, and tries `aggregate` with other uploads."""

    meter: Meter

    @hookimpl
    def plan(self) -> None:
        """A new round: nobody holds anything."""
        self.meter.held.clear()
        self.meter.told.clear()

    @hookimpl
    def dispatch(self, state: State, stage: Stage, ctx: Context) -> None:
        """Keep the question."""
        if not self.meter.trying:
            self.meter.asked = state, stage, ctx

    @hookimpl
    def aggregate(self, state: State, upload: Upload, ctx: Context) -> None:
        """Ask again with other numbers where nothing was sent up."""
        meter = self.meter
        if not meter.trying and meter.start is not None:
            try_upload(meter, state, upload, ctx)


class Metering(Sequential):
    """Trains, and counts what the clients of a stage receive and send."""

    def __init__(self, inner: Sequential, meter: Meter) -> None:
        super().__init__(inner.workspace, inner.samples, inner.seed)
        self.meter = meter

    def fit(self, start: Dispatched, stage: Stage, terms: Sequence[Term], round_: int) -> Upload:
        """See `Sequential.fit`."""
        upload = super().fit(start, stage, terms, round_)
        meter = self.meter
        if meter.asked is None or meter.asked[1] is not stage:
            return upload  # before judging; it is no part of a round
        self._down(start, stage)
        sent = start.returned_mask.sum(dim=1)
        models = torch.ones_like(sent) if upload.rows is None else upload.active.sum(dim=1)
        meter.add("up", int((models * sent).sum()))
        meter.add("up", sum(_scalars(tensor) for tensor in upload.extras.values()))
        meter.start = start
        try_dispatch(meter, start)
        return upload

    def _down(self, start: Dispatched, stage: Stage) -> None:
        meter = self.meter
        for place, client in enumerate(stage.clients.tolist()):
            mask, held = start.sent_mask[place], meter.held.setdefault(client, [])
            there = [row for row, on in zip(start.params[place], start.active[place]) if on]  # noqa: B905
            news = [row for row in there if not any(torch.equal(row, old) for old in held)]
            meter.add("down", int(mask.sum()) * len(news))
            if bool(mask.all()):
                held += news
        meter.add("down", sum(_scalars(tensor) for tensor in start.extras.values()))


def _scalars(tensor: Tensor) -> int:
    """Scalars that are not NaN (= not sent)."""
    return int((~tensor.isnan()).sum())


def shaken(tensor: Tensor, keep: Tensor | None = None) -> Tensor:
    """Other numbers in the place of a table's finite ones, but for the rows to keep.

    Args:
        keep: rows, shape (n,), bool; None = no row.
    """
    if not tensor.is_floating_point():
        return tensor
    other = torch.where(tensor.isfinite(), 1.5 * tensor + 0.25, tensor)
    if keep is not None:
        other[keep] = tensor[keep]
    return other


def of_others(state: State, client: int) -> State:
    """The state with other numbers in everything but what a client may have kept itself."""
    home, clients = state.membership.home, len(state.membership.home)
    mine = torch.zeros(len(state.models), dtype=torch.bool)
    if home[client] >= 0 and int((home == home[client]).sum()) == 1 and len(mine) == clients:
        mine[home[client]] = True  # a row of its own
    own = torch.arange(clients) == client
    memory = {
        name: shaken(table, own if state.scopes.get(name) == "client" else None)
        for name, table in state.memory.items()
    }
    return replace(state, models=shaken(state.models.clone(), mine), memory=memory)


def try_dispatch(meter: Meter, start: Dispatched) -> None:
    """What a client is given free of charge must not change with what others know."""
    assert meter.asked is not None and meter.run is not None, "set before"
    state, stage, ctx = meter.asked
    meter.trying = True
    try:
        for place, client in enumerate(stage.clients.tolist()):
            if client in meter.told:
                continue  # what the plugin counted by itself may be what arrived
            try:
                other = meter.run.hooks.dispatch(of_others(state, client), stage, ctx)
            except Exception:
                continue  # it minds such numbers: nothing is learnt
            where = f"round {ctx.round}, stage '{stage.label}': client {client}"
            free = ~start.sent_mask[place]
            if other.params.shape == start.params.shape and not torch.equal(
                other.params[place][:, free], start.params[place][:, free]
            ):
                meter.odd.append(f"{where} starts from server's numbers that `crosses` leaves out")
            meter.odd += [
                f"{where} is told '{name}' as its own (`own`), but the server made it: use `extras`"
                for name, table in start.client_memory.items()
                if not torch.equal(
                    table[place].nan_to_num(7e7), other.client_memory[name][place].nan_to_num(7e7)
                )
            ]
    finally:
        meter.trying = False


def try_upload(meter: Meter, state: State, upload: Upload, ctx: Context) -> None:
    """What others are served by must not change with what a client did not send up."""
    assert meter.start is not None and meter.run is not None, "set before"
    kept, meter.trying = ~meter.start.returned_mask[:, None], True
    try:
        if not bool(kept.any()):
            return
        params = torch.where(kept, shaken(upload.params), upload.params)
        first = meter.run.hooks.aggregate(state, upload, ctx)
        other = meter.run.hooks.aggregate(state, replace(upload, params=params), ctx)
        changed = {
            int(row) for row in (first.rows != other.rows).any(dim=1).nonzero()[:, 0].tolist()
        }
        own = {int(state.membership.home[client]) for client in upload.ids}
        shared = [
            row
            for row in changed
            if row not in own or int((state.membership.home == row).sum()) > 1
        ]
        if shared:
            meter.odd.append(
                f"round {ctx.round}: row {shared[0]} of the bank changes with numbers that"
                " `returns` leaves out"
            )
    finally:
        meter.trying = False


@law(usual_run)
def bytes_add_up(case: Case) -> None:
    """The ledger counts what crosses, and what crosses is counted."""
    meter = Meter()

    def wrap(run: Run) -> Sequential:
        meter.run = run
        run.context = MeteredContext.of(run.context, meter)
        return Metering(run.executor, meter)

    played = case.play(watch=[("kit", Watch(meter))], wrap=wrap)
    if meter.odd:
        raise case.breaks(meter.odd[0])
    found = {way: sum(items.values()) for way, items in played.run.ledger.totals.items()}
    odd = [way for way in found if found[way] != meter.bytes[way]]
    if odd:
        raise case.breaks(
            f"the ledger counts {found[odd[0]]} bytes {odd[0]}, but {meter.bytes[odd[0]]} crossed"
        )
