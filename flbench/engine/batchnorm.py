"""What happens to BatchNorm statistics: `global`, `local` or `reset`.

`global`: they are averaged like parameters and nothing here does anything. `local`: every client
keeps its own, in the memory "buffers.own", and they never cross. `reset`: every round starts from
the initial ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from flbench.core.layout import ParameterLayout
from flbench.core.model_bank import ModelBank, RowStore
from flbench.core.state import Dispatched, Memory, Personal, State, Upload

Policy = Literal["global", "local", "reset"]


OWN = "buffers.own"


def declare(
    policy: Policy, layout: ParameterLayout, initial: Tensor, clients: int, store: RowStore
) -> dict[str, Memory]:
    """The memory the policy needs, shape (N, B)."""
    if policy != "local" or not layout.buffers:
        return {}
    own = ModelBank.repeated(initial[layout.parameters :], clients, store)
    return {OWN: Memory(own, "client")}


def before_training(
    policy: Policy,
    start: Dispatched,
    state: State,
    ids: Tensor,
    layout: ParameterLayout,
    initial: Tensor,
) -> Dispatched:
    """Put the buffers into the start that the policy says."""
    if policy == "global" or not layout.buffers:
        return start
    params = start.params.clone()
    if policy == "reset":
        params[..., layout.parameters :] = initial[layout.parameters :]
        return replace(start, params=params)
    params[..., layout.parameters :] = state.memory[OWN][ids][:, None, :]
    only = layout.trainable
    return replace(
        start,
        params=params,
        sent_mask=start.sent_mask & only,
        returned_mask=start.returned_mask & only,
    )


def after_training(policy: Policy, state: State, upload: Upload, layout: ParameterLayout) -> State:
    """Let each client keep its own buffers."""
    if policy != "local" or not layout.buffers:
        return state
    own = state.memory[OWN].clone()
    own[upload.ids] = upload.selected()[:, layout.parameters :]
    return state.remember({OWN: own})


def when_judged(
    policy: Policy, personal: Personal, state: State, ids: Tensor, layout: ParameterLayout
) -> Personal:
    """Judge each client with its own buffers."""
    if policy != "local" or not layout.buffers:
        return personal
    rows = personal.models(state).clone()
    rows[:, layout.parameters :] = state.memory[OWN][ids]
    others = {
        name: when_judged(policy, other, state, ids, layout)
        for name, other in personal.others.items()
    }
    return replace(personal, row=None, params=rows, others=others)
