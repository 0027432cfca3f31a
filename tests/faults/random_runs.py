"""Random methods under random suites, and whether their laws hold.

- resumed: a run that is cut after any round and goes on ends with the same state and result, and
  its result follows from itself (`submission/consistency.py`);
- together: seeds that share lanes end with the states that each has alone.

A suite that makes no sense is refused in one line; anything else that is raised is wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from every import METHODS, Film, declared, resumed, run_of, same_state, settings_of, stable
from fault_record import Fault
from toy import player, toy_dataset, toy_suite

from flbench.core.state import State
from flbench.engine.options import EngineOptions
from flbench.errors import FlbenchError
from flbench.run import checkpoint
from flbench.run.composition import compose
from flbench.run.rounds import running_rounds
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.run.training import alone, together
from flbench.submission.consistency import faults

LAWS = ("resumed", "resumed", "together")
SEEDS = range(3)
CLOCK: dict[str, list[Any]] = {
    "dropout": [0.2, 0.5, 0.8],
    "absent": [0.2, 0.5, 0.8],
    "seconds_per_step": [1.0, {"distribution": "uniform", "low": 1.0, "high": 9.0}],
    "deadline": [5.0, 20.0, 60.0],
    "up": [1000.0],
    "stragglers": [{"share": 0.3, "factor": 5.0}],
}
SUITE: dict[str, list[Any]] = {
    "clients": [2, 5, 6, 8, 12],
    "unseen": [0, 0, 0.25, 0.5],
    "unseen_epochs": [0, 1],
    "participation": [0.3, 0.5, 1.0],
    "model": [
        {"name": "mlp", "hidden": 3},
        {"name": "mlp", "hidden": 3, "norm": True},
        {"name": "logistic-regression"},
    ],
    "buffers": ["global", "global", "local", "reset"],
    "eval_every": [1, 1, 2, 3],
    "ft_epochs": [0, 0, 1],
    "validation_fraction": [0.2, 0.2, 0.0, 0.4],
    "test_set": ["own", "own", "labels"],
    "partition": [
        {"name": "label-groups", "groups": 2},
        {"name": "iid"},
        {"name": "dirichlet", "alpha": 0.5, "min_samples": 4},
    ],
    "metrics": [(), (), ("ece", "auroc"), ("f1", "balanced-accuracy")],
    "server_samples": [0, 4, 8],
    "rounds": [3, 4, 5, 6],
}
LOCAL: dict[str, list[Any]] = {
    "epochs": [1, 2],
    "batch_size": [1, 2, 3, 4, 64],
    "lr": [0.01, 0.1],
    "momentum": [0.0, 0.0, 0.9],
    "weight_decay": [0.0, 0.0, 0.01],
    "drop_last": [False, False, True],
    "lr_decay": [1.0, 1.0, 0.9],
}
RAISED = ("Error:", " raised ", "Traceback")
"""What a line has that speaks of an error of Python."""


def names(count: int) -> list[str]:
    """The cases; each number has a law, a method, a suite and a seed of its own."""
    return [f"{LAWS[number % len(LAWS)]}/{number}" for number in range(count)]


def one_of_each(rng: Random, choices: dict[str, list[Any]], share: float = 1.0) -> dict[str, Any]:
    """A value of each key, or of a share of the keys."""
    return {key: rng.choice(values) for key, values in choices.items() if rng.random() < share}


def random_suite(rng: Random) -> dict[str, Any]:
    """Fields of a suite."""
    suite = one_of_each(rng, SUITE)
    suite["local"] = one_of_each(rng, LOCAL)
    if rng.random() < 0.2:
        suite["local"] |= {"optimizer": "adam", "momentum": 0.0}
    clock = one_of_each(rng, CLOCK, 0.3) if rng.random() < 0.4 else {}
    return {**suite, "clock": clock} if clock else suite


def resumed_as_whole(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """What is wrong with a run that is cut and goes on; "" = nothing."""
    film, executor = Film(folder), rng.choice(["sequential", "vectorised"])
    sinks, seed = (("film", film),), rng.randrange(1000)
    with patch.object(checkpoint, "pause", lambda writing: 0.0):
        whole = run_of(
            player(folder), method, settings=settings, seed=seed, executor=executor,
            sinks=sinks, **suite,
        )  # fmt: skip
    again = resumed(whole, film.checkpoint(rng.randrange(1, suite["rounds"])), folder / "again")
    if not same_state(again.state, whole.state):
        return "another state"
    if stable(again) != stable(whole):
        return "another result"
    return next(iter(faults(whole.result)), "")


def together_as_alone(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """What is wrong with seeds that share lanes; "" = nothing."""
    lanes = EngineOptions("vectorised", "cpu")

    def runs() -> list[Any]:
        specs = [
            RunSpec(toy_suite(**suite), compose(method, settings), seed, folder, folder, lanes)
            for seed in SEEDS
        ]
        return [
            running_rounds(*prepare(spec, toy_dataset(seed=seed)))
            for seed, spec in zip(SEEDS, specs, strict=True)
        ]

    single: list[State] = [alone(run) for run in runs()]
    shared = dict(together(runs()))
    unlike = [seed for seed in SEEDS if not same_state(shared[seed], single[seed])]
    return f"another state of seeds {unlike}" if unlike else ""


CHECKS: dict[str, Callable[..., str]] = {
    "resumed": resumed_as_whole,
    "together": together_as_alone,
}


def inject(name: str) -> Fault:
    """Play one case."""
    law, _, _ = name.partition("/")
    rng = Random(name)
    parts = [rng.choice(METHODS)]
    settings = settings_of(parts[0]) if rng.random() < 0.5 else {}
    if not settings and rng.random() < 0.6:
        parts.append(rng.choice([other for other in METHODS if other != parts[0]]))
    suite: dict[str, Any] = {}
    for part in parts:
        suite |= declared(part).suite
    suite |= random_suite(rng)
    kind, wrong, outcome, message = f"{law}, {len(parts)} methods", "", "as it should be", ""
    with tempfile.TemporaryDirectory(prefix="flbench-faults-") as folder:
        try:
            wrong = CHECKS[law]("+".join(parts), settings, suite, rng, Path(folder))
        except FlbenchError as error:
            outcome, message = "refused", str(error)
            if "\n" in message or any(word in message for word in RAISED):
                wrong = "an error of Python"
        except Exception as error:
            outcome, wrong, message = "refused", "a traceback", repr(error)
    return Fault(name, kind, outcome, wrong, message=f"{'+'.join(parts)}: {message}")
