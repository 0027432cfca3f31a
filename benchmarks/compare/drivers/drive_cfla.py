"""Drives the algorithms of CFLA (package cfla)."""

from __future__ import annotations

import importlib
import tempfile
from typing import Any

import numpy as np
import torch
from play import Exchange, Played, flat, load, main, parts, samples, vector  # first
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PATCHED = [
    "select_clients: the given cohorts",
    "train_loader of every client: the given samples, in their order; test split: not used",
    "_eval_and_log: keeps the models with which clients are evaluated",
]


def play(exchange: Exchange) -> Played:
    """Play `facts["algorithm"]` = "server module:class:client module:class".

    `settings`: `server` has arguments; `clusters` is their number; `start`: they start from the
    given models, which differ, in place of copies of one.
    """
    facts, settings = exchange.facts, exchange.facts["settings"]
    local, clients = facts["local"], facts["clients"]
    server_module, server_name, client_module, client_name = facts["algorithm"].split(":")
    package = "cfla.framework"
    server_class = getattr(
        importlib.import_module(f"{package}.server.{server_module}"), server_name
    )
    client_class = getattr(
        importlib.import_module(f"{package}.client.{client_module}"), client_name
    )

    class Net(nn.Module):
        """The given network, made anew without arguments, as the package asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = parts(exchange)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Logits."""
            logits: torch.Tensor = self.head(self.embed(x))
            return logits

    played: dict[str, torch.Tensor] = {}
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "device": "cpu",
            "output_dir": folder,
            "rounds": exchange.rounds(),
            "num_clusters": settings.get("clusters", 1),
            "local_epochs": local["epochs"],
            "learning_rate": local["lr"],
            "batch_size": local["batch_size"],
            "criterion": nn.CrossEntropyLoss(),
            "optimizer": None,
            "fraction": 1.0,
            "train_fraction": 0.8,
            **settings.get("server", {}),
        }
        everybody = []
        for client in range(clients):
            x, y = samples(exchange, client)
            pairs = list(zip(x, y, strict=True))
            one = client_class(client, pairs, given, folder)
            one.train_loader = DataLoader(TensorDataset(x, y), local["batch_size"], shuffle=False)
            everybody.append(one)
        if server_name == "ServerFLHC":
            return in_groups(server_class(Net(), [samples(exchange, 0)], given), everybody)
        server = server_class(Net(), [], given)
        server.set_clients(everybody)
        patched = list(PATCHED)
        if settings.get("start"):
            server.cluster_centers = [state(Net(), row) for row in exchange.arrays["start"]]
            patched.append("cluster_centers: the given models, where the variant says so")
        cohorts = iter(facts["cohorts"])
        server.select_clients = lambda: [everybody[i] for i in next(cohorts)]

        def keep(round_: int, selected: set[int]) -> None:
            if "centres" in facts["models"]:
                for k, centre in enumerate(server.cluster_centers):
                    played[f"{round_ + 1}/centre-{k}"] = vector(centre)
                return
            for client, one in enumerate(everybody):
                played[f"{round_ + 1}/client-{client}"] = personal(server, one)

        server._eval_and_log = keep
        server.train(verbose=False)
    return played, patched


def in_groups(server: Any, everybody: list[Any]) -> Played:  # noqa: ANN401 - theirs
    """Play the server that groups clients once, and then trains one group after the other."""
    played: dict[str, torch.Tensor] = {}
    theirs = server.federated_learning

    def keep(model: nn.Module, members: list[Any], round: int) -> tuple[nn.Module, float]:
        found, loss = theirs(model, members, round=round)
        number = server.initial_rounds + round + 1
        for one in members:
            played[f"{number}/client-{one.client_id}"] = flat(found)
        return found, loss

    server.federated_learning = keep
    server.set_clients(everybody)
    server.train()
    return played, [PATCHED[1], "federated_learning: keeps the models that it returns"]


def state(net: nn.Module, row: np.ndarray) -> dict[str, torch.Tensor]:
    """The state of a network with the given parameters, shape (W,)."""
    load(net, torch.from_numpy(row.copy()))
    return net.state_dict()


def personal(server: Any, client: Any) -> torch.Tensor:  # noqa: ANN401 - theirs
    """The model with which a client is evaluated, shape (W,)."""
    if hasattr(client, "build_personalized_model"):
        state = client.build_personalized_model(server.global_model).state_dict()
    else:
        state = server.cluster_centers[server.R[client.client_id]]
    found: torch.Tensor = vector(state)
    return found


if __name__ == "__main__":
    main("cfla", play)
