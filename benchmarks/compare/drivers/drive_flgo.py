"""Drives the algorithms of FLGo (package flgo)."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from play import Exchange, Played, flat, main, network, samples  # first: it prepares torchvision
from torch.utils.data import TensorDataset

import flgo  # isort: skip
from flgo.benchmark.base import BasicTaskPipe  # isort: skip
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator  # isort: skip
from flgo.experiment.logger import BasicLogger  # isort: skip

PATCHED = [
    "benchmark: the given samples, in their order (`get_dataloader` does not shuffle)",
    "sample: the given cohorts",
    "iterate: keeps the models after each round",
]
ARRIVALS = "the simulator's clock: uploads reach `package_handler` in the given order, one by one"


class Calculator(GeneralCalculator):  # type: ignore[misc]
    """Theirs for classification, with the samples in their order."""

    def get_dataloader(self, dataset: Any, **given: Any) -> Any:  # noqa: ANN401 - theirs
        """A loader that does not shuffle."""
        return super().get_dataloader(dataset, **{**given, "shuffle": False})


def play(exchange: Exchange) -> Played:
    """Play the module `facts["algorithm"]` with `facts["settings"]`.

    `settings`: `para`: parameters of the algorithm, by name; `aggregate`: how the server weights
    models, where the algorithm sets this itself; `lambdas`: AFL starts from the shares of samples;
    `candidates`: those of power-of-choice, for each round. With `arrivals` in the facts the server
    is asynchronous.
    """
    facts, settings = exchange.facts, exchange.facts["settings"]
    local, cohorts = facts["local"], facts["cohorts"]
    algorithm: Any = importlib.import_module(f"flgo.algorithm.{facts['algorithm']}")
    server = flgo.init(
        task(exchange),
        algorithm,
        {
            "num_rounds": len(cohorts),
            "proportion": len(cohorts[0]) / facts["clients"],
            "num_epochs": local["epochs"],
            "batch_size": local["batch_size"],
            "learning_rate": local["lr"],
            "momentum": local["momentum"],
            "train_holdout": 0.0,
            "eval_interval": -1,
            "no_log_console": True,
        },
        model=flgo.convert_model(lambda: network(exchange)),
        Logger=BasicLogger,
    )
    server.init_algo_para(settings.get("para", {}))
    patched = list(PATCHED)
    if "aggregate" in settings:
        server.aggregation_option = settings["aggregate"]
        patched.append(
            "aggregation_option: weights by samples, where the settings have `aggregate`"
        )
    if settings.get("lambdas"):
        counts = np.array([client.datavol for client in server.clients])
        server.dynamic_lambdas = counts / counts.sum()  # their own code makes a list of them
    if "arrivals" in facts:
        return one_by_one(exchange, server), [PATCHED[0], ARRIVALS]
    if "candidates" in settings:
        algorithm.np = Drawn(iter(settings["candidates"]))
        patched[1] = "numpy.random.choice, for power-of-choice: the given candidates"
    else:
        given = iter(cohorts)
        server.sample = lambda: list(next(given))
    played: dict[str, torch.Tensor] = {}
    iterate = server.iterate

    def kept() -> object:
        found = iterate()
        if "server" in facts["models"]:
            played[f"{server.current_round}/server"] = flat(server.model)
        if "clients" in facts["models"]:
            for i, client in enumerate(server.clients):
                own = server.model if client.model is None else client.model
                played[f"{server.current_round}/client-{i}"] = flat(own)
        return found

    server.iterate = kept
    server.run()
    return played, patched


def one_by_one(exchange: Exchange, server: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401 - theirs
    """Play with a server that takes uploads as they arrive; clients get the model of the moment."""
    played: dict[str, torch.Tensor] = {}
    everybody = list(range(exchange.facts["clients"]))
    server.gv.simulator.update_client_completeness(everybody)

    def current() -> Any:  # noqa: ANN401 - theirs
        model = copy.deepcopy(server.model)
        model._round = server.current_round
        return model

    given = {i: current() for i in everybody}
    for round_, arrivals in enumerate(exchange.facts["arrivals"], 1):
        for i in arrivals:
            package = server.clients[i].reply({"model": given[i]})
            server.received_clients = [i]
            if server.package_handler({"__cid": [i], **server.unpack([package])}):
                server.current_round += 1
            given[i] = current()
        played[f"{round_}/server"] = flat(server.model)
    return played


class Drawn:
    """NumPy, whose random choice is the next of the given ones."""

    def __init__(self, draws: Any) -> None:  # noqa: ANN401 - an iterator of lists
        self.draws, self.random = draws, self

    def choice(self, *_: object, **__: object) -> np.ndarray:
        """The next."""
        return np.array(next(self.draws))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - theirs
        return getattr(np, name)


def task(exchange: Exchange) -> str:
    """A task of the given samples, in the working directory, and its benchmark."""
    clients = [f"Client{i}" for i in range(exchange.facts["clients"])]

    class Pipe(BasicTaskPipe):  # type: ignore[misc]
        """Hands the samples out."""

        def save_task(self, generator: object) -> None:
            """It is there already."""

        def load_task(self, *_: object, **__: object) -> None:
            """It is loaded by `load_data`."""

        def load_data(self, running_time_option: object) -> dict[str, Any]:
            """The samples of each client."""
            return {
                name: {"train": TensorDataset(*samples(exchange, i))}
                for i, name in enumerate(clients)
            }

    benchmark, core = ModuleType("given"), ModuleType("given.core")
    vars(core).update(TaskPipe=Pipe, TaskCalculator=Calculator)
    sys.modules.update({"given": benchmark, "given.core": core})
    folder = Path("task")
    folder.mkdir()
    (folder / "info").write_text(json.dumps({"benchmark": "given"}), encoding="utf-8")
    (folder / "data.json").write_text(json.dumps({"client_names": clients}), encoding="utf-8")
    return str(folder)


if __name__ == "__main__":
    main("flgo", play)
