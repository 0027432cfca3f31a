"""The policy for BatchNorm statistics: `global`, `local` or `reset`.

`global`: they are averaged like parameters. `local`: every client keeps its own statistics, in the
memory "buffers.own", and they are never sent: the server's models have the initial ones, and models
that a client trains or is judged with, also by `ctx.evaluate`, have its own; `ctx.logits`,
`ctx.forward` and `ctx.features`, which are of no client, compute with those that models have.
`reset`: every round starts from the initial ones, which clients have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from flbench.core.layout import ParameterLayout
from flbench.core.model_bank import ModelBank, RowStore
from flbench.core.state import Dispatched, Memory, Personal, Stage, State, Upload
from flbench.engine.ledger import count_true

Policy = Literal["global", "local", "reset"]
OWN = "buffers.own"


def declare(
    policy: Policy, layout: ParameterLayout, initial: Tensor, clients: int, store: RowStore
) -> dict[str, Memory]:
    """The memory that the policy needs: shape (N, B) for `local`, else none."""
    if policy != "local" or not layout.buffers:
        return {}
    buffers = ModelBank.repeated(initial[layout.parameters :], clients, store)
    return {OWN: Memory(buffers, "client")}


def before_training(
    policy: Policy,
    start: Dispatched,
    state: State,
    ids: Tensor,
    layout: ParameterLayout,
    initial: Tensor,
) -> Dispatched:
    """Put the buffers of the policy into the start."""
    if policy == "global" or not layout.buffers:
        return start
    sent_mask = start.sent_mask & layout.trainable
    if policy == "reset":
        initial_buffers = initial[layout.parameters :]
        params = with_buffers(start.params, initial_buffers, layout)
        return replace(start, params=params, sent_mask=sent_mask)
    own = state.memory[OWN][ids][:, None, :]
    return replace(
        start,
        params=with_buffers(start.params, own, layout),
        sent_mask=sent_mask,
        returned_mask=start.returned_mask & layout.trainable,
    )


def most_received(
    policy: Policy, layout: ParameterLayout, models: Tensor, at_server: Tensor | None = None
) -> Tensor:
    """How many scalars of some models, shape (n, W), clients receive at most, shape (n,), int64.

    `at_server` are those that live at the server, shape (n, W), bool; None = none.
    """
    masks = layout.of_networks
    sent = masks if policy == "global" else masks & layout.trainable
    which = layout.network_of(models)
    if at_server is None:
        return count_true(sent)[which]
    if layout.networks == 1 and at_server.stride(0) == 0:  # one mask for all clients
        return count_true(sent & ~at_server[:1]).expand(len(models))
    return count_true(sent[which] & ~at_server)


def after_training(
    policy: Policy,
    upload: Upload,
    state: State,
    stage: Stage,
    layout: ParameterLayout,
    initial: Tensor,
) -> tuple[Upload, State]:
    """Store each acting client's own buffers; the server's upload has the initial ones instead."""
    if policy != "local" or not layout.buffers:
        return upload, state
    if stage.aggregates:
        buffers = state.memory[OWN].clone()
        buffers[upload.ids] = upload.selected()[:, layout.parameters :]
        state = state.remember({OWN: buffers})
    params = with_buffers(upload.params, initial[layout.parameters :], layout)
    return replace(upload, params=params), state


def before_evaluation(
    policy: Policy, personal: Personal, state: State, ids: Tensor, layout: ParameterLayout
) -> Personal:
    """Put each client's own buffers into the models that are evaluated."""
    if policy != "local" or not layout.buffers:
        return personal
    rows = with_buffers(personal.models(state), state.memory[OWN][ids], layout)
    others = {
        name: before_evaluation(policy, other, state, ids, layout)
        for name, other in personal.others.items()
    }
    return replace(personal, row=None, params=rows, others=others)


def with_buffers(rows: Tensor, buffers: Tensor, layout: ParameterLayout) -> Tensor:
    """Rows, shape (..., W), with other buffers, shape (..., B); each keeps its network."""
    changed = rows.clone()
    changed[..., layout.parameters :] = buffers
    if layout.which is not None:
        changed[..., layout.which] = rows[..., layout.which]
    return changed
