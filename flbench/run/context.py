"""RunContext: what `flbench.core.context.Context` promises, done on the data of a run."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flbench.core.bank_budget import RowStore
from flbench.core.client_module import LocalWork
from flbench.core.context import Context, Split, needs_classes
from flbench.core.knowledge import note, noting
from flbench.core.model_bank import ModelBank
from flbench.core.state import Dispatched, Stage
from flbench.core.types import Direction, Plain
from flbench.engine import batchnorm
from flbench.engine.clock import SimulatedClock
from flbench.engine.cross_evaluation import cross_evaluate, features_of, forward, logits_of
from flbench.engine.ledger import BITS, CommunicationLedger
from flbench.engine.sequential import Sequential
from flbench.errors import Undefined, UserError
from flbench.federation.federation import Samples
from flbench.results.schema import check_note, check_text


@dataclass
class RunServices:
    """What the contexts of a run's rounds share. It holds visible samples only.

    `executor` and `draw` (index -> other initial weights) are None until the ClientModule is known;
    until then, `samples` are what the executor will hold.
    `buffers` is the suite's policy for BatchNorm statistics; `own_buffers`, shape (N, B), are those
    of the clients, where these stay with them.
    `timed` measures wall time; `simulated_clock` is that of the suite, or None. `idle_stages` are
    those of which it was said that clients make no step. `rounds_read` says whether a method has
    read how many rounds the run has.
    """

    ledger: CommunicationLedger
    say: Callable[[str], None]
    store: RowStore
    samples: Samples
    simulated_clock: SimulatedClock | None = None
    executor: Sequential | None = None
    draw: Callable[[int], Tensor] | None = None
    rounds_read: bool = False
    buffers: batchnorm.Policy = "global"
    own_buffers: Tensor | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Plain] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    idle_stages: set[str] = field(default_factory=set)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the block's wall time to a part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[part] = self.seconds.get(part, 0.0) + spent

    def warn(self, message: str) -> None:
        """Print a warning and keep it for the result, once in a round."""
        if message in self.warnings:
            return
        self.warnings.append(message)
        self.say(message)

    def drain(self) -> tuple[dict[str, Plain], list[str]]:
        """Notes and warnings since the last call."""
        drained = (dict(self.notes), list(self.warnings))
        self.notes.clear()
        self.warnings.clear()
        return drained


class _Rounds:
    """The field `rounds`, which is noted when a method reads it: a longer run may differ then.

    Unlike what `core.knowledge` notes, also where functions read it that hooks gave.
    `dataclasses.replace` hands it on and reads nothing.
    """

    def __get__(self, context: RunContext, owner: type) -> int:
        if sys._getframe(1).f_globals is not vars(dataclasses):
            context.services.rounds_read = True
        rounds: int = vars(context)["rounds"]
        return rounds

    def __set__(self, context: RunContext, rounds: int) -> None:
        vars(context)["rounds"] = rounds


@dataclass(frozen=True, kw_only=True)
class RunContext(Context):
    """The context of a round.

    Attributes:
        truth: gives the true groups; None where the method does not ask for them.
        work: what the methods say about newcomers' training; None but in `join`.
    """

    services: RunServices
    truth: Callable[[], Tensor | None] | None = None
    work: Callable[[Stage, Context], LocalWork] | None = None

    def evaluate(self, models: Tensor, clients: Tensor, split: Split = "validation") -> Tensor:
        _refuse_other(split)
        space, samples = self.executor.workspace, self.executor.samples
        own = self.services.own_buffers
        if own is None:
            sums = cross_evaluate(space, models, samples, split, clients)
        else:  # each client has the models with its own statistics
            each = []
            for one in clients.split(1):
                mine = batchnorm.with_buffers(models, own[one], self.layout)
                each.append(cross_evaluate(space, mine, samples, split, one))
            sums = torch.cat(each)
        if not bool((sums[..., 2] > 0).all()):
            raise UserError(f"a client has no {split} samples: raise validation_fraction")
        return (sums[..., 0] / sums[..., 2]).cpu()

    def train(self, models: Tensor, clients: Tensor, epochs: int | None = None) -> Tensor:
        if self.work is None:
            raise UserError("ctx.train serves newcomers: call it in the hook `join`")
        starts = Dispatched.whole(models.expand(len(clients), self.layout.width))
        if self.networks is not None:
            starts = starts.within(self.layout.of_networks[self.networks[clients]])
        stage = Stage("join", clients, self.local.epochs if epochs is None else epochs)
        work = replace(self.work(stage, self), reports=())
        with noting(None):  # the core reads
            return self.executor.fit(starts, stage, work, self.round).selected()

    def durations(
        self, stage: Stage, bits_down: int | None = None, bits_up: int | None = None
    ) -> Tensor:
        clock = self.services.simulated_clock
        if clock is None:
            raise Undefined("the suite has no clock: set `clock.seconds_per_step`, `clock.up`, ...")
        note("durations")
        whole = BITS * self.layout.width
        down, up = (whole if bits is None else bits for bits in (bits_down, bits_up))
        made = self.executor.planned_steps(stage)
        received, sent = torch.full_like(made, down), torch.full_like(made, up)
        if stage.edges is not None:
            nothing = torch.zeros_like(made)
            return clock.durations(stage.clients, made, nothing, nothing, received + sent)
        return clock.durations(stage.clients, made, received, sent)

    def client_data(self, client: int, split: Split = "train") -> tuple[Tensor, Tensor]:
        _refuse_other(split)
        samples = self._samples
        rows = samples.splits[split][client]
        return samples.x[rows], samples.y[rows]

    def server_data(self) -> tuple[Tensor, Tensor]:
        samples = self._samples
        if "server" not in samples.splits:
            raise Undefined("the server owns no samples: set `server_samples` of the suite")
        rows = samples.splits["server"][0]
        return samples.x[rows], samples.y[rows]

    def logits(self, models: Tensor, x: Tensor) -> Tensor:
        needs_classes(self, "logits")
        return logits_of(self.executor.workspace, models, x)

    def forward(self, models: Tensor, x: Tensor) -> Tensor:
        return forward(self.executor.workspace, models, x)

    def features(self, models: Tensor, x: Tensor) -> Tensor:
        return features_of(self.executor.workspace, models, x)

    def fresh_initial(self, index: int) -> Tensor:
        if self.services.draw is None:
            raise UserError("fresh weights can be drawn from `setup` on, not in `client_module`")
        return self.services.draw(index)

    def repeated(self, row: Tensor, times: int | None = None) -> Tensor:
        rows = self.clients if times is None else times
        return ModelBank.repeated(row, rows, self.services.store)

    def send(
        self,
        direction: Direction,
        clients: Tensor,
        item: str,
        scalars: Tensor | int,
        bits: int = 32,
    ) -> None:
        self.services.ledger.send(direction, clients, item, scalars, bits)

    def send_models(self, clients: Tensor, models: Tensor) -> None:
        scalars = batchnorm.most_received(self.services.buffers, self.layout, models)
        self.services.ledger.send_models(clients, models, int(scalars.sum()))

    def sent(self, direction: Direction) -> frozenset[str]:
        return self.services.ledger.sent(direction)

    def note(self, name: str, value: Plain) -> None:
        check_note(name, value)
        self.services.notes[name] = deepcopy(value)  # the method may go on with a list of its own

    def warn(self, message: str) -> None:
        check_text("warning", message)
        self.services.warn(message)

    @property
    def true_groups(self) -> Tensor:
        if self.truth is None:
            raise UserError("true groups are hidden; a method asks with `uses_true_groups = True`")
        groups = self.truth()
        if groups is None:
            raise Undefined("this partition has no true groups: choose another suite or method")
        return groups.clone()  # with them groups are judged

    @property
    def counted(self) -> Tensor:
        """`label_counts`, for the core: zeros where samples have no classes."""
        found: Tensor = vars(self)["label_counts"]
        return found

    @property
    def _samples(self) -> Samples:
        """The visible samples: there before the executor is."""
        services = self.services
        return services.samples if services.executor is None else services.executor.samples

    @property
    def executor(self) -> Sequential:
        """What models are trained and evaluated with.

        Raises:
            UserError: the ClientModule is not known yet.
        """
        if self.services.executor is None:
            raise UserError("models can be evaluated from `setup` on, not in `client_module`")
        return self.services.executor


def _refuse_other(split: str) -> None:
    """Refuse all but the two splits that a method may see."""
    if split not in ("train", "validation"):
        raise UserError(f"split: expected 'train' or 'validation', got '{split}'")


setattr(RunContext, "rounds", _Rounds())  # noqa: B010 - as a field it would be a default
