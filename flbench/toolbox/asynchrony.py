"""Asynchrony: which uploads arrive next where clients are called again as soon as they arrive."""

from __future__ import annotations

import heapq

from torch import Tensor


def next_arrivals(
    called: Tensor, durations: Tensor, count: int, now: float = 0.0
) -> list[tuple[int, float]]:
    """The next uploads in the order of their arrival; of equal times the lower id is first.

    A client is called again at the moment at which its upload arrives, so it may be there several
    times. An upload that should have arrived before `now` was lost, and its client was called
    again then.

    Args:
        called: when each client was called last, seconds, shape (N,); infinite = it is not.
        durations: seconds from a call to the arrival (`ctx.durations`), shape (N,), > 0.
        count: number of uploads.
        now: the simulated time (`state.seconds`).

    Returns:
        Client and time of its call.

    Example:
        >>> import torch
        >>> next_arrivals(torch.zeros(2), torch.tensor([1.0, 3.0]), 4)
        [(0, 0.0), (0, 1.0), (0, 2.0), (1, 0.0)]
    """
    seconds, queue = durations.tolist(), []
    for client, at in enumerate(called.tolist()):
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
