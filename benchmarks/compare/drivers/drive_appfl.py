"""Drives the aggregators and trainers of APPFL (package appfl)."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import torch
from play import (  # first: it prepares torchvision
    Exchange,
    Played,
    main,
    network,
    samples,
    vector,
)
from torch.utils.data import TensorDataset

from appfl.algorithm import aggregator as aggregators  # isort: skip
from appfl.algorithm import trainer as trainers  # isort: skip
from omegaconf import OmegaConf  # isort: skip

PATCHED = [
    "schedulers and communicators are left out: the driver hands models from trainers to the"
    " aggregator, for the given cohorts",
    "the logger of the trainer: none",
]
State = dict[str, torch.Tensor]


def play(exchange: Exchange) -> Played:
    """Play `facts["algorithm"]` = "aggregator:trainer" with `facts["settings"]`.

    `settings`: `aggregator` and `trainer` have entries of their configurations. With `arrivals` in
    the facts clients arrive one by one, and are given the model of that moment.
    """
    facts, settings = exchange.facts, exchange.facts["settings"]
    logging.disable(logging.ERROR)
    kind, name = facts["algorithm"].split(":")
    configuration = OmegaConf.create({"client_weights_mode": "sample_size"})
    configuration.update(settings.get("aggregator", {}))
    server = getattr(aggregators, kind)(network(exchange), configuration)
    clients = {i: trainer(exchange, i, name) for i in range(facts["clients"])}
    for i, client in clients.items():
        server.set_client_sample_size(i, len(client.train_dataset))
    played: dict[str, torch.Tensor] = {}
    given = {i: server.get_parameters() for i in clients}
    for round_, cohort in enumerate(facts.get("arrivals", facts["cohorts"]), 1):
        if "arrivals" in facts:
            for i in cohort:
                given[i] = server.aggregate(i, trained(clients[i], given[i]))
        else:
            given = dict.fromkeys(clients, server.get_parameters())
            server.aggregate({i: trained(clients[i], given[i]) for i in cohort})
        played[f"{round_}/server"] = vector(server.get_parameters())
    return played, PATCHED


def trainer(exchange: Exchange, client: int, name: str) -> Any:  # noqa: ANN401 - theirs
    """The trainer of a client."""
    local = exchange.facts["local"]
    configuration = {
        "mode": "epoch",
        "num_local_epochs": local["epochs"],
        "optim": "SGD",
        "optim_args": {"lr": local["lr"], "momentum": local["momentum"]},
        "train_batch_size": local["batch_size"],
        "train_data_shuffle": False,
        **exchange.facts["settings"].get("trainer", {}),
    }
    silent = SimpleNamespace(**dict.fromkeys(("log_title", "set_title", "log_content"), ignore))
    return getattr(trainers, name)(
        model=network(exchange),
        loss_fn=torch.nn.CrossEntropyLoss(),
        metric=lambda true, predicted: 0.0,
        train_dataset=TensorDataset(*samples(exchange, client)),
        train_configs=OmegaConf.create(configuration),
        logger=silent,
    )


def ignore(*_: object) -> None:
    """Log nothing."""


def trained(client: Any, given: State) -> State:  # noqa: ANN401 - theirs
    """What a client sends after training from the given model."""
    client.load_parameters(given)
    client.train()
    found = client.get_parameters()
    state: State = found[0] if isinstance(found, tuple) else found
    return state


if __name__ == "__main__":
    main("appfl", play)
