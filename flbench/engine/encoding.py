"""Encoding: what each client sends of what it made, as the `encode` hooks of a method say.

Coders are functions of one client's message. What others make is known to a coder only where its
hook asks for `upload`: that of an attack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from flbench.core.state import Dispatched, Message, State, Upload
from flbench.core.types import Extras
from flbench.engine.communication import BITS
from flbench.errors import PluginError

Coder = Callable[[Message], Message]


def encoded(
    upload: Upload, start: Dispatched, coders: Sequence[Coder], state: State, parameters: int
) -> tuple[Upload, State]:
    """The upload as the server receives it, and the state with what the clients keep.

    Scalars outside `returned_mask` are not part of a message: they stay as they were trained.
    Buffers (BatchNorm statistics) are sent as they are. Of scalars that a coder takes out of the
    mask, the server has the values of the start.

    Args:
        coders: are applied in turn to the message of each client and trained candidate.
        parameters: P, the number of trainable scalars of a row.

    Raises:
        PluginError: a coder fails, or it keeps something where clients train several candidates.
    """
    if not coders:
        return upload, state
    params, bits = upload.params.clone(), torch.zeros(upload.active.shape, dtype=torch.int64)
    extras = {name: table.clone() for name, table in upload.extras.items()}
    samples = upload.samples.clone()
    kept: dict[str, Tensor] = {}
    device = params.device
    for i, client in enumerate(upload.ids.tolist()):
        returned = start.returned_mask[i].to(device, copy=True)
        own = client_entries(state, client)
        buffers = BITS * int(returned[parameters:].sum())
        returned[parameters:] = False
        for candidate in upload.active[i].nonzero()[:, 0].tolist():
            first = start.params[i, candidate].to(device)
            message = Message(
                client=client,
                start=first,
                params=upload.params[i, candidate],
                mask=returned,
                extras={name: table[i] for name, table in upload.extras.items()},
                memory=own,
                samples=int(upload.samples[i]),
            )
            for coder in coders:
                message = coder(message)
            sent = returned & message.mask
            row = torch.where(sent, message.params, first)
            params[i, candidate] = torch.where(returned, row, upload.params[i, candidate])
            samples[i] = message.samples
            bits[i, candidate] = int(sent.sum()) * message.bits + message.overhead + buffers
            for name, table in extras.items():
                table[i] = message.extras[name]
            for name, value in message.memory.items():
                if value is not own[name]:
                    if upload.params.shape[1] > 1:
                        raise PluginError(
                            f"memory '{name}' cannot be kept by `encode` where clients train"
                            " several candidates"
                        )
                    kept.setdefault(name, state.memory[name].clone())[client] = value
    coded = replace(upload, params=params, samples=samples, bits=bits, extras=extras)
    return coded, state.remember(kept)


def client_entries(state: State, client: int) -> Extras:
    """A client's own entries of the memories of scope "client"."""
    names = [name for name, scope in state.scopes.items() if scope == "client"]
    return {name: state.memory[name][client] for name in names}
