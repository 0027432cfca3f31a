"""RunServices: what a context can do, on behalf of a method, and the run's stop-watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flbench.core.model_bank import ModelBank, RowStore
from flbench.core.state import Dispatched, Stage
from flbench.core.types import Direction, Plain
from flbench.engine.communication import CommunicationLedger
from flbench.engine.cross_evaluation import cross_evaluate, features_of, logits_of
from flbench.engine.sequential import Sequential
from flbench.errors import Undefined, UserError


@dataclass
class RunServices:
    """What a context can do: cross-evaluate, count, note, warn; and the run's stop-watch.

    It holds visible samples only.
    """

    ledger: CommunicationLedger
    say: Callable[[str], None]
    store: RowStore
    executor: Sequential | None = None
    draw: Callable[[int], Tensor] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _notes: dict[str, Plain] = field(default_factory=dict)
    _warnings: list[str] = field(default_factory=list)

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Add the block's wall time to a part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[part] = self.seconds.get(part, 0.0) + spent

    def evaluate(self, models: Tensor, clients: Tensor, split: str) -> Tensor:
        """See `Context.evaluate`."""
        executor = self._executor()
        sums = cross_evaluate(executor.workspace, models, executor.samples, split, clients)
        if not bool((sums[..., 2] > 0).all()):
            raise UserError(f"a client has no {split} samples: raise validation_fraction")
        return (sums[..., 0] / sums[..., 2]).cpu()

    def data(self, owner: int, split: str) -> tuple[Tensor, Tensor]:
        """See `Context.client_data` and `Context.server_data`."""
        samples = self._executor().samples
        if split not in samples.splits:
            raise Undefined("the server owns no samples: set `server_samples` of the suite")
        rows = samples.splits[split][owner]
        return samples.x[rows], samples.y[rows]

    def logits(self, models: Tensor, x: Tensor) -> Tensor:
        """See `Context.logits`."""
        return logits_of(self._executor().workspace, models, x)

    def features(self, models: Tensor, x: Tensor) -> Tensor:
        """See `Context.features`."""
        return features_of(self._executor().workspace, models, x)

    def fresh(self, index: int) -> Tensor:
        """See `Context.fresh_initial`."""
        if self.draw is None:
            raise UserError("fresh weights can be drawn from `setup` on, not in `client_module`")
        return self.draw(index)

    def repeated(self, row: Tensor, times: int) -> Tensor:
        """See `Context.repeated`."""
        return ModelBank.repeated(row, times, self.store)

    def train(self, models: Tensor, clients: Tensor, epochs: int, round_: int) -> Tensor:
        """See `Context.train`."""
        executor = self._executor()
        everything = torch.ones(models.shape, dtype=torch.bool)
        start = Dispatched(
            params=models[:, None],
            active=everything[:, :1],
            rows=None,
            sent_mask=everything,
            returned_mask=everything,
        )
        return executor.fit(start, Stage("join", clients, epochs), (), round_).selected()

    def _executor(self) -> Sequential:
        if self.executor is None:
            raise UserError("models can be evaluated from `setup` on, not in `client_module`")
        return self.executor

    def send(self, direction: Direction, clients: Tensor, item: str, scalars: Tensor | int) -> None:
        """See `Context.send`."""
        self.ledger.send(direction, clients, item, scalars)

    def send_models(self, clients: Tensor, models: Tensor) -> None:
        """See `Context.send_models`."""
        self.ledger.send_models(clients, models)

    def note(self, name: str, value: Plain) -> None:
        """See `Context.note`."""
        self._notes[name] = value

    def warn(self, message: str) -> None:
        """See `Context.warn`."""
        self._warnings.append(message)
        self.say(message)

    def drain(self) -> tuple[dict[str, Plain], list[str]]:
        """Notes and warnings since the last call."""
        drained = (dict(self._notes), list(self._warnings))
        self._notes.clear()
        self._warnings.clear()
        return drained
