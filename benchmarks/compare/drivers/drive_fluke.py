"""Drives the algorithms of fluke (package fluke-fl)."""

from __future__ import annotations

import importlib
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
from play import Exchange, Played, flat, main, parts, samples  # first: it prepares torchvision

from fluke import DDict, FlukeENV  # isort: skip
from fluke.data import FastDataLoader  # isort: skip
from fluke.evaluation import ClassificationEval  # isort: skip
from fluke.nets import EncoderHeadNet  # isort: skip

PATCHED = [
    "get_eligible_clients: the given cohorts",
    "data_splitter: the given samples, shuffle=False",
    "every client has a copy of the initial network",
    "rounds are driven one by one, without the evaluation between them and `finalize`",
]


class Net(EncoderHeadNet):  # type: ignore[misc]
    """The given network."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = self.head(self.encoder(x))
        return logits


def play(exchange: Exchange) -> Played:
    """Play `facts["algorithm"]` = "module:class" with `facts["settings"]`.

    `settings`: `client`, `server`, `optimizer` have arguments of their classes; `personal` says
    where the personal model of a client is: "own" in `personalized_model`, "head" or "body" in the
    part of `model` that stays local; `server_model`: the part that the server has; `moments`: start
    of v in FedOpt; `sent`: the attribute of the server with the model that clients receive;
    `forget`: drop the optimisers of all clients after each round.
    """
    facts, settings = exchange.facts, exchange.facts["settings"]
    local, clients = facts["local"], facts["clients"]
    module, name = facts["algorithm"].split(":")
    algorithm = getattr(importlib.import_module(f"fluke.algorithms.{module}"), name)
    env = FlukeENV()
    env.set_device("cpu")
    env.set_evaluator(ClassificationEval(eval_every=1, n_classes=facts["classes"]))
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)

    def loader(client: int) -> FastDataLoader:
        x, y = samples(exchange, client)
        size = local["batch_size"]
        return FastDataLoader(x, y, num_labels=facts["classes"], batch_size=size, shuffle=False)

    loaders = [loader(client) for client in range(clients)]
    splitter = SimpleNamespace(assign=lambda n, size: ((loaders, [None] * n), None))
    optimiser = {"name": "SGD", "lr": local["lr"], "momentum": local["momentum"]}
    if not local["momentum"]:
        del optimiser["momentum"]
    optimiser |= settings.get("optimizer", {})
    client = {
        "batch_size": local["batch_size"],
        "local_epochs": local["epochs"],
        "loss": "CrossEntropyLoss",
        "optimizer": optimiser,
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
        "model": Net(*parts(exchange)),
        **settings.get("client", {}),
    }
    personalised = importlib.import_module("fluke.algorithms").PersonalizedFL
    if not issubclass(algorithm, personalised) and name != "FedRep":
        del client["model"]
    body, head = parts(exchange)
    shared = {"whole": Net(body, head), "body": body, "head": head}
    model = shared[settings.get("server_model", "whole")]
    given = {"client": client, "server": settings.get("server", {}), "model": model}
    federation = algorithm(clients, splitter, DDict(given))
    server = federation.server
    for one in federation.clients:
        if one.model is not None:
            one.model = deepcopy(one.model)
    moments = settings.get("moments")
    if moments is not None:
        server.v_t = {key: torch.full_like(value, moments) for key, value in server.v_t.items()}
    played: dict[str, torch.Tensor] = {}
    federation._round_zero()
    for round_, cohort in enumerate(facts["cohorts"], 1):
        eligible = [federation.clients[i] for i in cohort]
        server.broadcast_model(eligible)
        for one in eligible:
            one.local_update(round_)
        server.aggregate(eligible, server.receive_client_models(eligible, state_dict=False))
        if settings.get("forget"):
            for one in federation.clients:
                one.optimizer = one.scheduler = None
        if "server" in facts["models"]:
            played[f"{round_}/server"] = flat(getattr(server, settings.get("sent", "model")))
        if "clients" in facts["models"]:
            for i, one in enumerate(federation.clients):
                played[f"{round_}/client-{i}"] = personal(one, server, settings["personal"])
    return played, PATCHED


def personal(client: Any, server: Any, where: str) -> torch.Tensor:  # noqa: ANN401 - theirs
    """The model with which a client predicts, shape (W,)."""
    model = getattr(client.model, "model", client.model)
    chosen = {
        "own": lambda: flat(client.personalized_model),
        "head": lambda: flat(server.model, model.head),
        "body": lambda: flat(model.encoder, server.model),
    }
    vector: torch.Tensor = chosen[where]()
    return vector


if __name__ == "__main__":
    main("fluke-fl", play)
