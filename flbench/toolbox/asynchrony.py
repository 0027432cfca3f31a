"""Asynchrony: what methods share whose server does not wait for a cohort.

Every client trains all the time: when its upload arrives, it is called again with the model of that
moment. Each upload is a stage of its own, so `aggregate` gets the uploads one by one. The memories
are named after the method:

- "<method>.version", scope "run": number of updates that the server has made.
- "<method>.seen", scope "client": that number when the client was called last.
- "<method>.called", scope "client": the simulated time of this call.
- "<method>.given", scope "client": the model that it was given, shape (N, W).
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import torch
from torch import Tensor

from flbench.core.context import Context
from flbench.core.state import Memory, Stage, Start, State, Upload
from flbench.core.types import Extras
from flbench.errors import Undefined


def memories(ctx: Context, method: str) -> dict[str, Memory]:
    """What a method declares in `setup`: everybody is called at second 0 with the initial model."""
    called = torch.zeros(ctx.clients, dtype=torch.float64)
    return {
        f"{method}.version": Memory(torch.zeros((), dtype=torch.int64)),
        f"{method}.seen": Memory(torch.zeros(ctx.clients, dtype=torch.int64), "client"),
        f"{method}.called": Memory(called, "client"),
        f"{method}.given": Memory(ctx.repeated(ctx.initial), "client"),
    }


def stages(state: State, ctx: Context, method: str) -> list[Stage]:
    """What a method plans: as many uploads as the cohort has clients, in order of their arrival.

    Raises:
        Undefined: the suite has no clock, or one by which nothing takes time; or there are several
            models.
    """
    if len(state.models) > 1:
        raise Undefined(f"{method} has one model, and groups have several")
    everyone = Stage("train", ctx.everybody, ctx.local.epochs)
    durations, called = ctx.durations(everyone), state.memory[f"{method}.called"]
    if not bool((durations > 0).all()):
        raise Undefined(
            f"{method} takes uploads in the order of their times, and some clients take none: set"
            " `clock.seconds_per_step`, `clock.up` or `clock.down`"
        )
    return [
        replace(
            everyone.select(torch.tensor([client])),
            name=f"upload {number}",
            started=torch.tensor([at], dtype=torch.float64),
        )
        for number, (client, at) in enumerate(
            next_arrivals(called, durations, len(ctx.cohort), state.seconds), start=1
        )
    ]


def start(state: State, stage: Stage, method: str) -> Start:
    """What the clients of a stage started from when they were called."""
    return Start(params=state.memory[f"{method}.given"][stage.clients][:, None])


def staleness(state: State, upload: Upload, method: str) -> Tensor:
    """Updates of the server since the clients of an upload were called, shape (n,), int64.

    Raises:
        Undefined: uploads come together, or there are several models.
    """
    if len(upload.ids) > 1 or len(state.models) > 1:
        raise Undefined(f"{method} has one model, and takes uploads one by one")
    return state.memory[f"{method}.version"] - state.memory[f"{method}.seen"][upload.ids]


def call_again(
    state: State, upload: Upload, model: Tensor, method: str, *, updated: bool = True
) -> Extras:
    """The memories of a method after an upload: its client is called again, with a model.

    Args:
        model: the server's model now, shape (W,).
        updated: whether this upload made the server update its model.
    """
    assert upload.arrivals is not None, "planned with the durations of a clock"
    version = state.memory[f"{method}.version"] + int(updated)
    found = {f"{method}.version": version}
    for name, value in (("seen", version), ("called", upload.arrivals), ("given", model)):
        table = state.memory[f"{method}.{name}"].clone()
        table[upload.ids] = value
        found[f"{method}.{name}"] = table
    return found


def next_arrivals(
    called: Tensor, durations: Tensor, count: int, now: float = 0.0
) -> list[tuple[int, float]]:
    """The next uploads in the order of their arrival; of equal times the lower id is first.

    A client is called again at the moment at which its upload arrives, so it may be there several
    times. An upload that should have arrived before `now` was lost, and its client was called
    again then.

    Args:
        called: when each client was called last, seconds, shape (N,); infinite = it is not.
        durations: seconds from a call to the arrival (`ctx.durations`), shape (N,).
        count: number of uploads.
        now: the simulated time (`state.seconds`).

    Returns:
        Client and time of its call.

    Example:
        >>> next_arrivals(torch.zeros(2), torch.tensor([1.0, 3.0]), 4)
        [(0, 0.0), (0, 1.0), (0, 2.0), (1, 0.0)]
    """
    seconds, queue = durations.tolist(), []
    for client, at in enumerate(called.tolist()):
        if seconds[client] > 0:
            while at + seconds[client] < now:
                at += seconds[client]
        queue.append((at + seconds[client], client, at))
    heapq.heapify(queue)
    found = []
    for _ in range(count):
        arrival, client, at = queue[0]
        found.append((client, at))
        heapq.heapreplace(queue, (arrival + seconds[client], client, arrival))
    return found
