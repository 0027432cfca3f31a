"""What methods need with so many clients: a run that cannot be is refused before its first round.

The hook `needs` counts; here is what a count takes on this machine, which is measured only where a
method needs so much of it that it matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from flbench.core.context import Context
from flbench.core.free_memory import free_memory
from flbench.core.state import Needs
from flbench.engine.processes.process_group import ProcessGroup
from flbench.errors import Undefined, UserError
from flbench.run.rounds import Run, round_context

LONGEST = 100.0
"""Hours beside local training from which on a run is refused."""
LONG = 0.1
"""Hours from which on a person is told."""
MANY = Needs(evaluations=1e6, operations=1e11)
"""Of fewer, nobody asks how long they take."""
FEW = 64
"""Clients on whose samples the speed of evaluations is measured."""
FACTORS = 2**22
"""Scalars with which the speed of operations is measured."""


def refuse_too_large(run: Run) -> None:
    """Refuse a run that the memory does not hold, or that would take too long.

    Args:
        run: the run, before `setup`.

    Raises:
        Undefined: names the method, memory and hours.
    """
    ctx = round_context(run, 1)
    for plugin, needs in run.hooks.needs(ctx):
        group = ProcessGroup.of(run.executor.workspace.fabric)
        hours, free = group.broadcast_object((hours_of(needs, ctx), free_bytes(run)))
        size = 4 * needs.scalars
        known = "" if free is None else f", of which {free / 1e9:.3g} GB are free"
        text = (
            f"{plugin} needs {size / 1e9:.3g} GB of memory{known}, and {hours:.3g} hours beside"
            f" local training (at most {LONGEST:g}), with {ctx.clients} models of"
            f" {ctx.layout.width} scalars"
        )
        if (free is not None and size > free) or hours > LONGEST:
            raise Undefined(
                f"{text}: lower clients, participation or rounds, or take a smaller network"
            )
        if hours > LONG:
            run.services.say(text)


def free_bytes(run: Run) -> int | None:
    """Memory that is free for one run: of its device, or of this machine; None = unknown."""
    device = run.executor.workspace.device
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_memory()


def hours_of(needs: Needs, ctx: Context) -> float:
    """Hours that evaluations and operations take here; few take none."""
    seconds = 0.0
    if needs.evaluations > MANY.evaluations:
        seconds += needs.evaluations * seconds_per_evaluation(ctx)
    if needs.operations > MANY.operations:
        seconds += needs.operations * seconds_per_operation(ctx.initial.device)
    return seconds / 3600


def seconds_per_evaluation(ctx: Context) -> float:
    """Seconds for the loss of one model on one client's validation samples."""
    some = ctx.everybody[:FEW]
    try:
        return _timed(lambda: ctx.evaluate(ctx.initial[None], some)) / len(some)
    except UserError:  # there are no such samples: the method says so where it asks for them
        return 0.0


def seconds_per_operation(device: torch.device) -> float:
    """Seconds for a multiplication with an addition, of two long rows on a device."""
    one, other = torch.ones(2, FACTORS, device=device)
    return _timed(lambda: float(one @ other)) / FACTORS


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the faster of two calls."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
