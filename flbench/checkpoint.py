"""Checkpoints: the State, the ledger and the history in one safetensors file, never pickled.

Written after every round under a temporary name and moved into place, so what lies there is always
a whole round.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from flbench.engine.ledger import Ledger
from flbench.errors import UserError
from flbench.history import History
from flbench.results import Fingerprint, write_atomically
from flbench.state import Membership, State


def save_checkpoint(
    path: Path, state: State, ledger: Ledger, history: History, marks: Fingerprint
) -> None:
    """Write everything the next round needs."""
    tensors = {"models": state.models, "home": state.membership.home}
    if state.membership.weights is not None:
        tensors["weights"] = state.membership.weights
    tensors |= {f"memory/{name}": tensor for name, tensor in state.memory.items()}
    tensors |= {f"bytes/{name}": tensor for name, tensor in ledger.per_client.items()}
    plain = {
        "round": state.round,
        "scopes": dict(state.scopes),
        "bytes": ledger.totals,
        "history": history.plain(),
        "fingerprint": marks.model_dump(),
    }
    owned = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(owned, metadata={"flbench": json.dumps(plain)}))


def load_checkpoint(
    path: Path, device: torch.device, marks: Fingerprint
) -> tuple[State, Ledger, History]:
    """Read a checkpoint; models and memory go to the device.

    Raises:
        UserError: the file is no checkpoint, or one of another run.
    """
    try:
        with safe_open(path, framework="pt") as file:
            plain = json.loads(file.metadata()["flbench"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no checkpoint ({error}); delete it to start over") from None
    for name, value in marks.model_dump().items():
        if plain["fingerprint"].get(name) != value:
            raise UserError(f"{path}: its {name} is not this run's; delete it to start over")
    on = {
        name: t.to(device) for name, t in tensors.items() if name.startswith(("models", "memory/"))
    }
    state = State(
        round=plain["round"],
        models=on.pop("models"),
        membership=Membership(tensors["home"], tensors.get("weights")),
        memory={name.removeprefix("memory/"): tensor for name, tensor in on.items()},
        scopes=plain["scopes"],
    )
    per_client = {n.removeprefix("bytes/"): t for n, t in tensors.items() if n.startswith("bytes/")}
    ledger = Ledger(len(state.membership.home), plain["bytes"], per_client)
    return state, ledger, History.of(plain["history"])
