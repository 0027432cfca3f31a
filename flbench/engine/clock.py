"""The simulated clock: how long clients take, which of them answer, and when a stage ends.

Nothing here is measured. Times follow from the suite's `[clock]`, the optimiser steps and the
bits on the ledger, so every machine and executor computes the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan

import torch
from torch import Tensor

from flbench.core.clock_settings import LINKS, SPEEDS, ClockSettings, drawn
from flbench.core.seeding import rng
from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.ledger import OF_CLIENTS, CommunicationLedger
from flbench.errors import BadParameter


@dataclass(frozen=True)
class SimulatedClock:
    """The speeds of all clients, and who answers in which round.

    Attributes:
        seconds_per_step: seconds for an optimiser step, shape (N,), float64.
        up: bits per second that each client sends, shape (N,), float64; infinite = at once.
        down: bits per second that each client receives, shape (N,), float64.
        client_edge: bits per second between each client and its edge, shape (N,), float64.
        edge_cloud: bits per second between each edge and the server, shape (N,), float64; NaN = a
            list says nothing of it.
        dropout: probability that a client does not answer in a round.
        absent: probability that a client cannot be called in a round.
        deadline: seconds after the start of a stage from which on uploads are not used.
        seed: of the run.
        names: number of each client in the addresses of random generators, shape (N,), int64.
    """

    seconds_per_step: Tensor
    up: Tensor
    down: Tensor
    dropout: float
    absent: float
    deadline: float
    seed: int
    names: Tensor
    client_edge: Tensor
    edge_cloud: Tensor

    @classmethod
    def of(cls, settings: ClockSettings, seed: int, names: Sequence[int]) -> SimulatedClock:
        """The clock of a suite; a client's numbers belong to its name, whatever its id.

        Raises:
            BadParameter: a list of numbers is shorter than the federation.
        """
        count, order = len(names), torch.tensor(names)
        tables = {}
        for name in (*SPEEDS, *LINKS):
            speed = getattr(settings, name)
            if name == "edge_cloud" and isinstance(speed, tuple):
                speed = (*speed, *[nan] * (count - len(speed)))  # there are fewer edges
            try:
                table = drawn(speed, rng(seed, "clock", name), count)
            except BadParameter as error:
                raise BadParameter(f"suite: 'clock.{name}': {error}") from None
            tables[name] = torch.as_tensor(table)
        seconds = tables["seconds_per_step"]
        seconds[seconds.isinf()] = 0.0
        if settings.stragglers is not None:
            slow = settings.stragglers.of(count)
            chosen = rng(seed, "clock", "stragglers").permutation(count)[:slow]
            seconds[torch.as_tensor(chosen)] *= settings.stragglers.factor
        return cls(
            **{name: table[order] for name, table in tables.items() if name != "edge_cloud"},
            edge_cloud=tables["edge_cloud"],  # an edge's number is no client's
            dropout=settings.dropout,
            absent=settings.absent,
            deadline=inf if settings.deadline is None else settings.deadline,
            seed=seed,
            names=order,
        )

    def durations(
        self, clients: Tensor, steps: Tensor, down: Tensor, up: Tensor, edge: Tensor | int = 0
    ) -> Tensor:
        """Seconds that clients receive, train and send, shape (n,), float64.

        Args:
            clients: ids, shape (n,).
            steps: optimiser steps, shape (n,).
            down: bits that they receive, shape (n,).
            up: bits that they send, shape (n,).
            edge: bits that they exchange with their edge servers, shape (n,).
        """
        receiving, sending = down / self.down[clients], up / self.up[clients]
        near = edge / self.client_edge[clients]
        return receiving + steps * self.seconds_per_step[clients] + sending + near

    def answering(self, clients: Tensor, round_: int) -> Tensor:
        """Which clients answer when they are called in a round, shape (n,), bool."""
        return self._drawn("dropout", clients, round_) >= self.dropout

    def present(self, clients: Tensor, round_: int) -> Tensor:
        """Which clients can be called in a round, shape (n,), bool."""
        return self._drawn("absent", clients, round_) >= self.absent

    def _drawn(self, what: str, clients: Tensor, round_: int) -> Tensor:
        """A number of each client's own in [0, 1), shape (n,)."""
        draws = rng(self.seed, "clock", what, round_).random(len(self.names))
        return torch.as_tensor(draws)[self.names[clients]]

    def arrivals(self, stage: Stage, durations: Tensor, now: float) -> Tensor:
        """When the uploads of a stage arrive, seconds, shape (n,), float64; not before `now`."""
        called = torch.full_like(durations, now)
        if stage.started is not None:
            called = torch.minimum(called, stage.started.double())
        return (called + durations).clamp(min=now)

    def used(self, stage: Stage, arrivals: Tensor, answered: Tensor, now: float) -> Tensor:
        """Which uploads of a stage the server uses, shape (n,), bool."""
        return answered & (arrivals <= now + self._patience(stage))

    def end(self, stage: Stage, arrivals: Tensor, answered: Tensor, now: float) -> float:
        """When a stage ends: at the last upload that is used, or at the deadline if one is missing.

        Without a deadline a missing upload takes no time; if all of them are missing, it ends when
        the last of them would have come.
        """
        used, patience = self.used(stage, arrivals, answered, now), self._patience(stage)
        if not bool(used.all()) and isfinite(patience):
            return now + patience
        if stage.started is not None or not bool(used.any()):
            return float(arrivals.max())
        return float(arrivals[used].max())

    def _patience(self, stage: Stage) -> float:
        """How long the server waits for the uploads of a stage."""
        return self.deadline if stage.aggregates and stage.started is None else inf


class StageTimer:
    """Follows the clients of a round through its stages; without a clock it does nothing.

    It reads the bits of each client from the ledger. What a method sends beside a stage (`ctx.send`
    to clients that do not train, or after the training) takes its own time after it.
    """

    def __init__(
        self, clock: SimulatedClock | None, ledger: CommunicationLedger, round_: int
    ) -> None:
        self.clock = clock
        self.ledger = ledger
        self.round = round_
        self._counted = {way: bits.clone() for way, bits in ledger.client_bits.items()}
        self._answered = torch.empty(0, dtype=torch.bool)
        self._steps = torch.empty(0, dtype=torch.int64)

    def called(self, stage: Stage) -> Stage:
        """The stage for the clients that are there; who was called before is there.

        Nobody is absent from a stage that is not aggregated (a probe), which waits for everybody.
        """
        if self.clock is None or not stage.aggregates or stage.started is not None:
            return stage
        present = self.clock.present(stage.clients, self.round)
        return stage if bool(present.all()) else stage.select(present.nonzero()[:, 0])

    def answers(self, stage: Stage, upload: Upload, start: Dispatched) -> tuple[Upload, Dispatched]:
        """The uploads of the clients that answer, and what these clients started from."""
        if self.clock is None:
            return upload, start
        everyone = torch.ones(len(stage.clients), dtype=torch.bool)
        answers = self.clock.answering(stage.clients, self.round)
        self._answered = answers if stage.aggregates else everyone
        self._steps = upload.model_steps
        if bool(self._answered.all()):
            return upload, start
        positions = self._answered.nonzero()[:, 0]
        return upload.select(positions), start.select(positions)

    def arrive(self, stage: Stage, upload: Upload, now: float) -> tuple[Stage, Upload, float]:
        """The stage and the uploads that the server uses, with their arrivals, and the time then.

        The upload is that of the clients that answer; what they send is on the ledger.
        """
        if self.clock is None:
            return stage, upload, now
        spent = {way: bits[stage.clients] for way, bits in self._uncounted().items()}
        for way in OF_CLIENTS:
            self._counted[way][stage.clients] = self.ledger.client_bits[way][stage.clients]
        seconds = self._seconds(stage.clients, self._steps, spent)
        arrivals = self.clock.arrivals(stage, seconds, now)
        used = self.clock.used(stage, arrivals, self._answered, now)
        end = self.clock.end(stage, arrivals, self._answered, now)
        left = stage.select(used.nonzero()[:, 0])
        positions = used[self._answered].nonzero()[:, 0]
        if len(positions) < len(upload.ids):
            upload = upload.select(positions)
        return left, replace(upload, arrivals=arrivals[used]), end

    def afterwards(self, now: float) -> float:
        """The time after everything was sent that the stages did not account for.

        Edges talk to the server when their clients are done.

        Raises:
            BadParameter: the list of their speeds has none for one of them.
        """
        if self.clock is None:
            return now
        spent = self._uncounted()
        self._counted = {way: bits.clone() for way, bits in self.ledger.client_bits.items()}
        everyone = torch.arange(self.ledger.clients)
        nothing = torch.zeros_like(everyone)
        above = spent["edge-cloud"].nonzero()[:, 0]
        speeds = self.clock.edge_cloud[above]
        if bool(speeds.isnan().any()):
            listed = int((~self.clock.edge_cloud.isnan()).sum())
            raise BadParameter(
                f"suite: 'clock.edge_cloud': expected {int(above.max()) + 1} numbers, one per edge,"
                f" got {listed}"
            )
        seconds = spent["edge-cloud"][above] / speeds
        last = float(seconds.max()) if len(seconds) else 0.0
        return now + float(self._seconds(everyone, nothing, spent).max()) + last

    def _seconds(self, clients: Tensor, steps: Tensor, spent: dict[str, Tensor]) -> Tensor:
        """Seconds that clients take for steps and bits by direction, shape (n,)."""
        assert self.clock is not None, "there is one"
        received = spent["down"] + spent["peer"]
        return self.clock.durations(clients, steps, received, spent["up"], spent["client-edge"])

    def _uncounted(self) -> dict[str, Tensor]:
        """Bits of each client whose time is not yet accounted for, by direction."""
        return {way: bits - self._counted[way] for way, bits in self.ledger.client_bits.items()}
