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
from flbench.engine.ledger import BITS
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
        PluginError: a coder fails, it keeps something where clients train several candidates, or
            what it adds to `extras` does not fit together.
    """
    if not coders:
        return upload, state
    params, bits = upload.params.clone(), torch.zeros(upload.active.shape, dtype=torch.int64)
    samples, device = upload.samples.clone(), params.device
    extras: list[Extras] = []
    kept: dict[str, Tensor] = {}
    for i, client in enumerate(upload.ids.tolist()):
        beside: Extras = {name: table[i] for name, table in upload.extras.items()}
        returned = start.returned_mask[i].to(device, copy=True)
        own = client_entries(state, client)
        buffers = BITS * int(returned[parameters:].sum())
        returned[parameters:] = False
        for candidate in upload.active[i].nonzero()[:, 0].tolist():
            message = plain = Message(
                client=client,
                start=start.params[i, candidate].to(device),
                params=upload.params[i, candidate],
                mask=returned,
                extras={name: table[i] for name, table in upload.extras.items()},
                memory=own,
                samples=int(upload.samples[i]),
            )
            for coder in coders:
                message = coder(message)
            sent = returned & message.mask
            row = torch.where(sent, message.params, plain.start)
            params[i, candidate] = torch.where(returned, row, plain.params)
            samples[i], beside = message.samples, message.extras
            bits[i, candidate] = int(sent.sum()) * message.bits + message.overhead + buffers
            new = {name: one for name, one in message.memory.items() if one is not own[name]}
            keep(new, client, state, kept, candidates=upload.params.shape[1])
        extras.append(beside)
    known = {name: table.dtype for name, table in upload.extras.items()}
    tables = {
        name: table.to(device, known.get(name, table.dtype))
        for name, table in stacked(extras, upload.ids.tolist()).items()
    }
    coded = replace(upload, params=params, samples=samples, bits=bits, extras=tables)
    return coded, state.remember(kept)


def keep(
    new: Extras, client: int, state: State, kept: dict[str, Tensor], *, candidates: int
) -> None:
    """Write what a client keeps after coding to copies of the memories, `kept`.

    Raises:
        PluginError: it trained several candidates, so that nobody knows which one it is of.
    """
    for name, value in new.items():
        if candidates > 1:
            raise PluginError(
                f"memory '{name}' cannot be kept by `encode` where clients train several candidates"
            )
        kept.setdefault(name, state.memory[name].clone())[client] = value


def stacked(extras: Sequence[Extras], clients: Sequence[int]) -> dict[str, Tensor]:
    """What clients send beside their models: name -> (n, ...); NaN where one does not send it.

    Raises:
        PluginError: clients send tensors of different shapes, or only some of them one that cannot
            hold NaN.
    """
    tables = {}
    for name in sorted({name for one in extras for name in one}):
        senders = [client for client, one in zip(clients, extras, strict=True) if name in one]
        found = [one[name] for one in extras if name in one]
        shapes = sorted({tuple(table.shape) for table in found})
        if len(shapes) > 1:
            raise PluginError(
                f"encode: extra '{name}': expected one shape for all clients, got"
                f" {' and '.join(map(str, shapes))}: fill up with NaN, which is not sent"
            )
        if len(found) < len(clients) and not found[0].is_floating_point():
            silent = sorted(set(clients) - set(senders))
            raise PluginError(
                f"encode: extra '{name}': expected of all clients, client {silent[0]} does not send"
                f" it: send floating-point numbers, of which NaN is not sent, got {found[0].dtype}"
            )
        table = torch.full((len(clients), *shapes[0]), torch.nan).to(found[0])
        places = [place for place, client in enumerate(clients) if client in senders]
        table[places] = torch.stack(found)
        tables[name] = table
    return tables


def client_entries(state: State, client: int) -> Extras:
    """A client's own entries of the memories of scope "client"."""
    names = [name for name, scope in state.scopes.items() if scope == "client"]
    return {name: state.memory[name][client] for name in names}
