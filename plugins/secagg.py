"""Secure aggregation: clients hide what they send, so that the server learns sums alone.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth, "Practical secure
aggregation for privacy-preserving machine learning", CCS 2017, Section 4: masks of pairs of clients
that cancel in the sum. Of the clients of a stage whose model is the same, i sends

    y_i = v_i + sum_{j > i} m_ij - sum_{j < i} m_ij   mod 2^24
    v_i = round(n_i (u_i - w) / (n g)),   g = 2 bound / 2^24

m_ij are uniform integers from a key that i and j agree on for the round, n_i are samples, and n
those of all clients of the sum. The sum of all y_i modulo 2^24 is that of all v_i, exactly; times g
it is the mean of the updates, to the rounding of the v_i: no more than g / 2 for each client. 2^24
is the largest ring whose numbers float32 holds; a scalar takes 24 bits. An update that is not
within `bound` ends the run, because the sum would be another one modulo 2^24.

A client that fails after the keys were agreed on leaves its masks in the sum. Each client that came
then sends the seeds of its pairs with those that did not, 128 bits each, and the server takes the
masks out. A sum of fewer than `least` clients is not asked for: their uploads are lost, and their
model stays. What the server gets for each client is the model that results: the mean of all.

Counted are the keys (256 bits up for each client, one down for each other client of its sum) and
the seeds. Departures: clients follow the protocol, so there are no second masks for uploads that
come after their seeds were given away, no secret shares and no signatures; a mask takes the time of
a pair, so a stage of n clients that of n^2. What goes beside models (losses, extras, numbers of
samples) is not hidden. Networks with BatchNorm, probes and overlapping groups are undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor

import flbench as fl

BITS = 24
RING = 2**BITS
SCALAR = 32
"""Bits of a scalar that is not coded."""
KEY, SEED = 8, 4
"""Scalars of 32 bits of a public key, and of the seed of a pair."""


@dataclass(frozen=True)
class SecAgg:
    """Clients hide what they send, so that the server learns sums alone."""

    paper: ClassVar[str] = (
        "Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth, CCS 2017"
    )
    year: ClassVar[int] = 2017
    kind: ClassVar[str] = "client"
    reveals: ClassVar[str] = "sum"
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        equals={"fedavg": {}}, within={"fedavg": 1e-4}
    )

    bound: Annotated[float, Gt(0), "largest change of a scalar in a round"] = 4.0
    least: Annotated[int, Ge(2), "clients without whom a sum is not asked for"] = 2

    @fl.hookimpl
    def encode(
        self, state: fl.State, stage: fl.Stage, ctx: fl.Context
    ) -> Callable[[fl.Message], fl.Message]:
        """Agree on keys, and hide what each client sends in masks of its pairs."""
        self.require_sums(state, stage, ctx)
        homes = state.membership.home[stage.clients]
        mates = (homes[:, None] == homes).sum(dim=1) - 1
        ctx.send("up", stage.clients, "keys", KEY)
        ctx.send("down", stage.clients, "keys", KEY * mates)

        def hidden(message: fl.Message) -> fl.Message:
            row = int(state.membership.home[message.client])
            if message.bits != SCALAR or message.overhead or not bool(message.mask.all()):
                raise fl.Undefined("it hides whole models, which no plugin before codes")
            if not torch.equal(message.start, state.models[row]):
                raise fl.Undefined("clients of one sum must start from one model")
            members = stage.clients[homes == row]
            share = message.samples / int(ctx.samples[members].sum())
            value = self.fixed(message.update, share).cpu()
            for other in members[members != message.client].tolist():
                value += mask(message.client, other, stage, ctx)
            sent = (value % RING).to(message.params)
            return replace(message, params=sent, bits=BITS)

        return hidden

    def require_sums(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> None:
        """Refuse what no sum is made of."""
        if ctx.clients < self.least:
            raise fl.Undefined(f"a sum needs {self.least} clients, there are {ctx.clients}")
        if not stage.aggregates:
            raise fl.Undefined(f"the models of stage '{stage.label}' are looked at one by one")
        if state.membership.weights is not None:
            raise fl.Undefined("it needs disjoint groups: a client is in one sum")
        if bool((state.membership.home[stage.clients] < 0).any()):
            raise fl.Undefined("a client without a model is in no sum")
        if ctx.layout.buffers:
            raise fl.Undefined("statistics of BatchNorm would be sent without masks")

    def fixed(self, update: Tensor, share: float) -> Tensor:
        """A share of an update, shape (W,), in steps of g: int64.

        Raises:
            UserError: a scalar is not within the bound.
        """
        far = float(update.abs().max())
        if not far <= self.bound:
            raise fl.UserError(f"a scalar changed by {far:.3g}: raise secagg.bound={self.bound:g}")
        steps: Tensor = update.double() * (share * RING / (2 * self.bound))
        return steps.round().long()

    @fl.hookimpl
    def decode(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload, ctx: fl.Context
    ) -> fl.Upload:
        """The mean of each sum, without the masks of pairs of whom one has failed."""
        if upload.params.shape[1] > 1:
            raise fl.Undefined("a client sends one model; here it trains several")
        home, models = state.membership.home, upload.params.clone()
        known = torch.zeros(len(upload.ids), dtype=torch.bool)
        for row in home[upload.ids].unique().tolist():
            came = home[upload.ids] == row
            if int(came.sum()) < self.least:
                lost = f"{int(came.sum())} of a sum came, fewer than {self.least}"
                ctx.warn(f"round {ctx.round}: secagg: {lost}: they are not used")
                continue
            members = stage.clients[home[stage.clients] == row]
            total = upload.params[came, 0].long().sum(dim=0).cpu()
            total -= self.left_over(upload.ids[came], members, stage, ctx)
            total = (total + RING // 2) % RING - RING // 2
            scale = 2 * self.bound / RING * int(ctx.samples[members].sum())
            mean = total.double() * (scale / int(upload.samples[came].sum()))
            models[came] = (state.models[row].cpu().double() + mean).to(models)
            known |= came
        return replace(upload, params=models).select(known.nonzero()[:, 0])

    def left_over(self, came: Tensor, members: Tensor, stage: fl.Stage, ctx: fl.Context) -> Tensor:
        """The masks that do not cancel, shape (W,), int64: those of pairs of whom one failed."""
        failed = members[~torch.isin(members, came)].tolist()
        total: Tensor = torch.zeros(ctx.layout.width, dtype=torch.int64)
        if failed:
            ctx.send("up", came, "seeds of failed pairs", SEED * len(failed))
        for client in came.tolist():
            for other in failed:
                total += mask(client, other, stage, ctx)
        return total


def mask(client: int, other: int, stage: fl.Stage, ctx: fl.Context) -> Tensor:
    """What a client adds for its pair with another, shape (W,), int64; the other takes it off."""
    rng = ctx.rng("secagg", ctx.round, stage.label, client=(client, other))
    drawn: Tensor = torch.from_numpy(rng.integers(RING, size=ctx.layout.width))
    return drawn if client < other else -drawn
