"""What all drivers share: read what is given, build the network, write what was played."""

from __future__ import annotations

import os
import runpy
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))
from exchange import Exchange, read, write

COMPAT = "FLBENCH_TORCHVISION_COMPAT"
"""Path of flbench's torchvision_compat.py, which makes torchvision importable."""
KEPT = runpy.run_path(os.environ[COMPAT]) if COMPAT in os.environ else None

Played = tuple[dict[str, torch.Tensor], list[str]]
"""Models by `r/server` or `r/client-i`, each of shape (W,); and what was patched."""


def main(package: str, play: Callable[[Exchange], Played]) -> None:
    """Read the file named first, play, write the file named second."""
    given, target = Path(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    exchange = read(given)
    models, patched = play(exchange)
    facts = {**exchange.facts, "version": version(package), "patched": patched}
    arrays = {name: model.detach().numpy() for name, model in models.items()}
    initial = {"initial": exchange.arrays["initial"]}
    write(target, Exchange(facts, {**initial, **arrays}))


def parts(exchange: Exchange) -> tuple[nn.Module, nn.Module]:
    """Body and head of the network, with the initial weights."""
    shapes = [shape for _, shape in exchange.facts["parameters"]]
    (hidden, inputs), classes = shapes[0], shapes[2][0]
    body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU())
    head = nn.Linear(hidden, classes)
    load(nn.ModuleList([body, head]), torch.from_numpy(exchange.arrays["initial"].copy()))
    return body, head


def network(exchange: Exchange) -> nn.Sequential:
    """The network with the initial weights."""
    body, head = parts(exchange)
    return nn.Sequential(OrderedDict(body=body, head=head))


def load(module: nn.Module, vector: torch.Tensor) -> None:
    """Copy a flat vector of shape (W,) into the parameters, in their order."""
    nn.utils.vector_to_parameters(vector, module.parameters())


def flat(*modules: nn.Module) -> torch.Tensor:
    """The parameters of modules, one after the other, copied, shape (W,)."""
    vectors = [p.detach().reshape(-1) for module in modules for p in module.parameters()]
    return torch.cat(vectors).clone()


def vector(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The parameters of a state, one after the other, copied, shape (W,)."""
    return torch.cat([value.reshape(-1) for value in state.values()]).clone()


def samples(exchange: Exchange, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (n, d) and labels (n,) of a client, in the order in which every epoch uses them."""
    x, y = exchange.arrays[f"x/{client}"], exchange.arrays[f"y/{client}"]
    return torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y))


def train(net: nn.Module, exchange: Exchange, client: int) -> None:
    """Train a network on a client's samples: plain SGD, for frameworks that leave this to users."""
    local = exchange.facts["local"]
    x, y = samples(exchange, client)
    optimiser = torch.optim.SGD(net.parameters(), local["lr"], local["momentum"])
    for _ in range(local["epochs"]):
        for a, b in zip(x.split(local["batch_size"]), y.split(local["batch_size"]), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(a), b).backward()
            optimiser.step()
