"""Clients that a training stage leaves as they are: said when it starts, refused where most are.

A client makes no step if its only batch is left out, as one of a single sample is before BatchNorm,
or if its batches do not fill a step that takes several.
"""

from __future__ import annotations

from torch import Tensor

from flbench.core.state import Stage, Upload
from flbench.engine.batches import steps
from flbench.engine.workspace import Workspace
from flbench.errors import Undefined


def of_sizes(space: Workspace, owned: Tensor) -> int:
    """How many clients have no batch in an epoch of the suite's training.

    Args:
        owned: number of training samples of each client, shape (N,).
    """
    local = space.module.local
    return sum(
        not steps(
            size,
            local.batch_size,
            1,  # of steps that take several, methods speak first
            skip_single=space.has_batchnorm,
            drop_last=local.drop_last,
        )
        for size in owned.tolist()
    )


def of_upload(stage: Stage, upload: Upload) -> int:
    """How many clients were to train in a stage and made no step."""
    schedules = stage.schedules(len(upload.ids))
    asked = [schedule.epochs > 0 and schedule.limit != 0 for schedule in schedules]
    return sum(step == 0 and it for step, it in zip(upload.steps.tolist(), asked, strict=True))


def message(idle: int, clients: int, stage: str, space: Workspace) -> str:
    """What to say of clients that make no step; "" where all make one.

    Raises:
        Undefined: they are more than half of the clients.
    """
    if not idle:
        return ""
    why, remedy = "their epochs hold no whole step", "more epochs"
    if (batches := space.module.batches_per_step) > 1:
        why = f"a step takes {batches} batches, and they have fewer"
        remedy = f"--set suite.local.batch_size={max(1, space.module.local.batch_size // 2)}"
    elif space.has_batchnorm:
        why = f"{why}, as BatchNorm cannot take a batch of one sample"
        remedy = "a network without BatchNorm"
    text = (
        f"{idle} of {clients} clients make no training step in stage '{stage}' and stay as they"
        f" are: {why}; take {remedy}, fewer clients, or more samples for each"
    )
    if 2 * idle > clients:
        raise Undefined(text)
    return text
