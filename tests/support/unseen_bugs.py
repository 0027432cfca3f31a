"""Plugins with one mistake each that no check of the kit sees: the list of docs/conformance.md.

A check that learns to see one makes its test fail; then it moves to `planted_bugs.py`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class OtherFormula:
    """Says that it is FedAvg with a step of a half, and steps by a third."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(torch.lerp(state.models, rows, 1 / 3))


@dataclass(frozen=True)
class LaterThanTheKit:
    """Draws from nowhere once hundred rounds are over."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(rows + torch.rand(()) if ctx.round > 100 else rows)


@dataclass(frozen=True)
class LargerThanTheKit:
    """Takes positions for ids where there are many clients."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        if ctx.clients > 20:
            upload = replace(upload, ids=torch.arange(len(upload.ids)))
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class SeldomTrue:
    """Leaves a round out if the clock of the machine says so, which it seldom does."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(rows if time.time_ns() % 10**9 else state.models.clone())


@dataclass(frozen=True)
class OnlyOnCuda:
    """Takes the wrong mean where models are on an accelerator."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        return fl.Models(2 * rows if rows.is_cuda else rows)


@dataclass(frozen=True)
class BreaksOthers:
    """Undoes what a method aggregates that is named beside it."""

    @fl.hookimpl(wrapper=True)
    def aggregate(self, state: fl.State) -> Generator[None, fl.Models, fl.Models]:
        models = yield
        return replace(models, rows=state.models.clone()) if state.memory else models


def remembered(value: float, seen: list[float] = []) -> float:  # noqa: B006 - the mistake
    """The mean of all values so far."""
    seen.append(value)
    return sum(seen) / len(seen)


@dataclass(frozen=True)
class GrowsInAClosure:
    """Keeps a number of every round where nobody looks."""

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, membership: fl.Membership) -> fl.Models:
        remembered(float(upload.loss.mean()))
        return fl.Models(fl.member_mean(state.models, upload, membership))


@dataclass(frozen=True)
class KeepsInAFile:
    """Steps by the change of the last round, which it keeps in a file."""

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        rows = fl.member_mean(state.models, upload, membership)
        home = next(Path(one) for one in sys.path if (Path(one) / "unseen-1.0.dist-info").is_dir())
        last = float((home / f"{ctx.round - 1}.txt").read_text("utf-8")) if ctx.round > 1 else 0.0
        own = home / f"{os.getpid()}.txt"  # two processes may write
        own.write_text(repr(float((rows - state.models).mean())), "utf-8")
        own.replace(home / f"{ctx.round}.txt")
        return fl.Models(rows + last)


@dataclass(frozen=True)
class CountsOneScalar:
    """Averages over all others; says that they send each other something, and not how much."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.one_model_per_client(ctx)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        return fl.Start(sent_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        ctx.send("peer", upload.ids, "model", 1)
        rows, sent = state.models.clone(), upload.selected()
        rows[state.membership.home[upload.ids]] = (sent + sent.mean(dim=0)) / 2
        return fl.Models(rows)

    @fl.hookimpl
    def join(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=torch.zeros_like(clients))


@dataclass(frozen=True)
class SendsTwelveBits:
    """Says that a scalar takes twelve bits, and sends it whole."""

    @fl.hookimpl
    def encode(self) -> Callable[[fl.Message], fl.Message]:
        return lambda message: replace(message, bits=12)


@dataclass(frozen=True)
class ReadsInDispatch:
    """Sends the model that is better on a client's samples, of which nobody told the server."""

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        return fl.Setup(models=torch.stack([ctx.initial, ctx.fresh_initial(1)]))

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        best = ctx.evaluate(state.models, stage.clients).argmin(dim=1)
        return fl.Start(params=state.models[best][:, None])

    @fl.hookimpl
    def join(self, clients: Tensor) -> fl.Personal:
        return fl.Personal(row=torch.zeros_like(clients))


UNSEEN: dict[type, str] = {
    OtherFormula: "usual-run",
    LaterThanTheKit: "same-seed-same-bytes",
    LargerThanTheKit: "relabelled-clients",
    SeldomTrue: "same-seed-same-bytes",
    OnlyOnCuda: "usual-run",
    BreaksOthers: "every-hook-answers",
    GrowsInAClosure: "steady-memory",
    KeepsInAFile: "resumed-run",
    CountsOneScalar: "bytes-add-up",
    SendsTwelveBits: "bytes-add-up",
    ReadsInDispatch: "bytes-add-up",
}
"""The check that should see each of them, or that comes nearest."""
