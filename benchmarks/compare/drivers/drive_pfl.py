"""Drives the algorithms of pfl-research (package pfl)."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
from play import Exchange, Played, flat, main, network, samples  # first
from torch import nn

from pfl.aggregate.simulate import SimulatedBackend  # isort: skip
from pfl.algorithm.base import NNAlgorithmParams  # isort: skip
from pfl.callback.base import TrainingProcessCallback  # isort: skip
from pfl.data.federated_dataset import FederatedDataset  # isort: skip
from pfl.data.pytorch import PyTorchTensorDataset  # isort: skip
from pfl.data.user_state import InMemoryUserStateStorage  # isort: skip
from pfl.hyperparam.base import NNTrainHyperParams  # isort: skip
from pfl.metrics import Metrics  # isort: skip
from pfl.model.pytorch import PyTorchModel  # isort: skip

PATCHED = [
    "nothing: cohorts come from the user sampler, which is an argument, and a callback keeps the"
    " model after each round"
]


def play(exchange: Exchange) -> Played:
    """Play `facts["algorithm"]` = "module:class", perhaps with ":class of its parameters".

    `settings`: `params` of the algorithm; `central`: class and arguments of the server's optimiser,
    SGD with a learning rate of 1 if there is none; `postprocessors`: "module:class" and arguments,
    in their order.
    """
    facts, settings = exchange.facts, exchange.facts["settings"]
    local, cohorts = facts["local"], facts["cohorts"]
    module, name, *rest = facts["algorithm"].split(":")
    code = importlib.import_module(f"pfl.algorithm.{module}")
    params = dict(settings.get("params", {}))
    if name == "SCAFFOLD":
        params["user_state_storage"] = InMemoryUserStateStorage()
    net: Any = network(exchange)
    net.loss = lambda x, y: nn.functional.cross_entropy(net(x), y)
    net.metrics = lambda x, y: {}
    central = {"name": "SGD", "lr": 1.0, **settings.get("central", {})}
    server = getattr(torch.optim, central.pop("name"))(net.parameters(), **central)
    calls = iter([client for cohort in cohorts for client in cohort])
    users = FederatedDataset(
        lambda i: PyTorchTensorDataset(samples(exchange, i), user_id=str(i)), lambda: next(calls)
    )
    given = settings.get("postprocessors", [])
    played: dict[str, torch.Tensor] = {}

    class Keep(TrainingProcessCallback):  # type: ignore[misc]
        """Keeps the model after each round."""

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            """Called by the algorithm; it goes on."""
            played[f"{central_iteration + 1}/server"] = flat(net)
            return False, Metrics()

    getattr(code, name)().run(
        algorithm_params=(getattr(code, rest[0]) if rest else NNAlgorithmParams)(
            central_num_iterations=len(cohorts),
            evaluation_frequency=len(cohorts) + 1,
            train_cohort_size=len(cohorts[0]),
            val_cohort_size=None,
            **params,
        ),
        backend=SimulatedBackend(users, users, [made(*one) for one in given]),
        model=PyTorchModel(net, partial(torch.optim.SGD, momentum=local["momentum"]), server),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=local["epochs"],
            local_learning_rate=local["lr"],
            local_batch_size=local["batch_size"],
        ),
        callbacks=[Keep()],
    )
    return played, PATCHED


def made(name: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - theirs
    """A postprocessor of the backend."""
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(f"pfl.{module}"), kind)(**arguments)


if __name__ == "__main__":
    main("pfl", play)
