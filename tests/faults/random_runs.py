"""Random methods under random suites, and whether their laws hold.

- resumed: a run that is cut after any round and goes on ends with the same state and result, and
  its result follows from itself (`submission/consistency.py`);
- processes: several processes end with the state and result of one, one client after the other;
- budget: with all models and uploads in files a run ends with the same state and result;
- executors: after the first round, models trained in lanes are those trained one by one;
- judged: what is evaluated, how and when changes no state;
- clocked: how long clients take changes no model, where the server waits for all of them;
- neutral: a plugin whose parameter takes its effect away changes no model.

A suite that makes no sense is refused in one line; anything else that is raised is wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import in_threads
import torch
from every import (
    METHODS,
    Film,
    declared,
    other_value,
    resumed,
    run_of,
    same_state,
    settings_of,
    stable,
)
from fault_record import Fault
from toy import Played, player

from flbench.core.state import State
from flbench.engine.options import EngineOptions
from flbench.engine.processes.process_group import ProcessGroup
from flbench.errors import FlbenchError
from flbench.run import checkpoint
from flbench.submission.consistency import faults

LAWS = (
    "resumed", "processes", "budget", "executors", "judged", "clocked", "neutral",
)  # fmt: skip
APART = 1e-3
"""How far models trained in lanes and one by one may be apart."""
AMPLIFY = {"ef-signsgd", "feddf", "qsgd", "signsgd"}
"""Methods that make something of scalars that are nothing but rounding: signs, or Adam's steps."""
CLOCK: dict[str, list[Any]] = {
    "dropout": [0.2, 0.5, 0.8],
    "absent": [0.2, 0.5, 0.8],
    "seconds_per_step": [1.0, {"distribution": "uniform", "low": 1.0, "high": 9.0}],
    "deadline": [5.0, 20.0, 60.0],
    "up": [1000.0],
    "stragglers": [{"share": 0.3, "factor": 5.0}],
}
CLOCKS: tuple[dict[str, Any], ...] = (
    {},
    {"up": 1000.0},
    {"stragglers": {"share": 0.3, "factor": 5.0}},
)
"""Clocks under which all who are sampled arrive."""
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
    "own_models": [False, False, True],
    "validation_fraction": [0.2, 0.2, 0.0, 0.4],
    "test_set": ["own", "own", "labels", "proportional"],
    "partition": [
        {"name": "label-groups", "groups": 2},
        {"name": "iid"},
        {"name": "dirichlet", "alpha": 0.5, "min_samples": 4},
    ],
    "metrics": [(), (), ("ece", "auroc"), ("f1", "balanced-accuracy")],
    "server_samples": [0, 4, 8],
    "rounds": [3, 4, 5, 6],
}
SOMETIMES: dict[str, list[Any]] = {
    "headline": ["validation"],
    "not_judged": [(0,), (0, 1)],
    "further_models": [({"name": "mlp", "hidden": 5},)],
    "plugins": [("label-flip",), ("median",), ({"name": "norm-bound", "bound": 0.5},), ("top-k",)],
}
JUDGED: dict[str, list[Any]] = {
    "eval_every": [1, 2, 3, 7],
    "metrics": [(), ("ece", "auroc"), ("f1",)],
    "ft_epochs": [0, 1],
    "own_models": [False, True],
    "unseen_epochs": [0, 1],
    "target": [0.3, 0.9],
    "not_judged": [(), (0,)],
}
NEUTRAL: dict[str, dict[str, object]] = {
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0},
    "fedlc": {"tau": 0.0},
    "knn-per": {"share": 0.0},
    "label-flip": {"share": 0.0},
    "sign-flip": {"share": 0.0},
    "norm-bound": {"bound": 1e9},
}
"""Plugins, and a value with which each changes nothing."""
LOCAL: dict[str, list[Any]] = {
    "epochs": [1, 2],
    "batch_size": [1, 2, 3, 4, 64],
    "lr": [0.01, 0.1],
    "momentum": [0.0, 0.0, 0.9],
    "weight_decay": [0.0, 0.0, 0.01],
    "drop_last": [False, False, True],
    "lr_decay": [1.0, 1.0, 0.9],
    "clip_norm": [0.0, 0.0, 0.5],
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
    suite = one_of_each(rng, SUITE) | one_of_each(rng, SOMETIMES, 0.1)
    suite["local"] = one_of_each(rng, LOCAL)
    if rng.random() < 0.2:
        suite["local"] |= {"optimizer": "adam", "momentum": 0.0}
    clock = one_of_each(rng, CLOCK, 0.3) if rng.random() < 0.4 else {}
    return with_effect({**suite, "clock": clock} if clock else suite)


def with_effect(suite: dict[str, Any]) -> dict[str, Any]:
    """The fields of a suite without those that would be refused, as they have no effect."""
    kept = dict(suite)
    if not any(one.get("norm") for one in (suite["model"], *suite.get("further_models", ()))):
        kept["buffers"] = "global"
    if not suite["unseen"]:
        kept["unseen_epochs"] = 0
    clock = dict(suite.get("clock", {}))
    if "seconds_per_step" not in clock:
        clock.pop("stragglers", None)
    if not clock.keys() & {"seconds_per_step", "up", "down"}:
        clock.pop("deadline", None)
    return {**kept, "clock": clock} if clock else {k: v for k, v in kept.items() if k != "clock"}


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


def shared_as_alone(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """What is wrong with a run of several processes; "" = nothing."""
    seed, size = rng.randrange(1000), rng.choice([2, 2, 3])

    def play(where: str) -> Played:
        return run_of(
            player(folder / where), method, settings=settings, seed=seed, executor="sequential",
            **suite,
        )  # fmt: skip

    def shared(group: ProcessGroup) -> tuple[Played, dict[str, Any]]:
        played = play("several")
        return played, stable(played)

    one = play("one")
    for rank, (other, result) in enumerate(in_threads.together(size, shared)):
        if not same_state(other.state, one.state):
            return f"another state in process {rank} of {size}"
        if result != stable(one):
            return f"another result in process {rank} of {size}"
    return ""


def in_files_as_in_memory(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """What is wrong with a run whose models and uploads are in files; "" = nothing."""
    seed, executor = rng.randrange(1000), rng.choice(["sequential", "vectorised"])
    lean, usual = (
        run_of(
            player(folder / str(budget)), method, settings=settings, seed=seed,
            engine=EngineOptions(executor, "cpu", bank_budget=budget), **suite,
        )
        for budget in (1, None)
    )  # fmt: skip
    if not same_state(lean.state, usual.state):
        return "another state"
    return "" if stable(lean) == stable(usual) else "another result"


def lanes_as_one_by_one(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """How far models are apart that were trained in lanes and one by one; "" = not far.

    With SGD: where a gradient is nothing but rounding, as that of a bias before BatchNorm, Adam
    still makes a step of its own size.
    """
    seed, local = rng.randrange(1000), {**suite["local"], "optimizer": "sgd"}
    lanes, single = (
        run_of(
            player(folder / executor), method, settings=settings, seed=seed, executor=executor,
            **{**suite, "rounds": 1, "local": local},
        ).state.models[:]
        for executor in ("vectorised", "sequential")
    )  # fmt: skip
    apart = float((lanes - single).abs().nan_to_num().max()) if lanes.numel() else 0.0
    return f"models are {apart:.2g} apart" if apart > APART else ""


def judged_otherwise(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """What is wrong where the same run is evaluated otherwise; "" = nothing."""
    other = with_effect({**suite, **one_of_each(rng, JUDGED, 0.6)})
    one, two = ends([(method, settings, suite), (method, settings, other)], rng, folder)
    return "" if same_state(one, two) else "another state"


def clocked_otherwise(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """What is wrong where clients take other times and all arrive; "" = nothing."""
    clocks = [{"seconds_per_step": rng.choice(CLOCK["seconds_per_step"]), **it} for it in CLOCKS]
    first, second = ({**suite, "clock": clock} for clock in rng.sample(clocks, 2))
    one, two = ends([(method, settings, first), (method, settings, second)], rng, folder)
    return "" if same_models(one, two) else "other models"


def with_a_neutral_plugin(
    method: str, settings: dict[str, object], suite: dict[str, Any], rng: Random, folder: Path
) -> str:
    """What is wrong where a plugin joins that has no effect; "" = nothing.

    One client after the other: the operations that lanes record may be others with the plugin.
    """
    plugin, values = rng.choice([it for it in NEUTRAL.items() if it[0] not in method.split("+")])
    joined = settings | {f"{plugin}.{key}": value for key, value in values.items()}
    jobs = [(method, settings, suite), (f"{method}+{plugin}", joined, suite)]
    one, two = ends(jobs, rng, folder, ("sequential",))
    return "" if same_models(one, two) else f"other models with {plugin}"


def ends(
    jobs: list[tuple[str, dict[str, object], dict[str, Any]]],
    rng: Random,
    folder: Path,
    executors: Sequence[str] = ("sequential", "vectorised"),
) -> list[State]:
    """The last states of runs of one seed; each is a method, its settings and a suite."""
    seed, executor = rng.randrange(1000), rng.choice(executors)
    return [
        run_of(
            player(folder / str(number)), method, settings=settings, seed=seed, executor=executor,
            **suite,
        ).state
        for number, (method, settings, suite) in enumerate(jobs)
    ]  # fmt: skip


def same_models(one: State, other: State) -> bool:
    """Bit for bit: the models, and whom each serves."""
    return torch.equal(one.models[:].nan_to_num(7), other.models[:].nan_to_num(7)) and torch.equal(
        one.membership.home, other.membership.home
    )


CHECKS: dict[str, Callable[..., str]] = {
    "resumed": resumed_as_whole,
    "processes": shared_as_alone,
    "budget": in_files_as_in_memory,
    "executors": lanes_as_one_by_one,
    "judged": judged_otherwise,
    "clocked": clocked_otherwise,
    "neutral": with_a_neutral_plugin,
}


def fits(law: str, method: str) -> bool:
    """Whether a law is one of a method: some wait for nobody, or amplify rounding."""
    if law == "clocked":
        return "clock" not in declared(method).suite
    return law != "executors" or method not in AMPLIFY


def inject(name: str) -> Fault:
    """Play one case."""
    law, _, _ = name.partition("/")
    rng = Random(name)
    methods = [one for one in METHODS if fits(law, one)]
    parts = [rng.choice(methods)]
    settings = settings_of(parts[0]) if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        settings |= {f"{parts[0]}.{key}": value for key, value in other_value(rng, parts[0])}
    if not settings and rng.random() < 0.6:
        parts.append(rng.choice([other for other in methods if other != parts[0]]))
    suite: dict[str, Any] = {}
    for part in parts:
        suite |= declared(part).suite
    suite |= random_suite(rng)
    kind = f"{law}, {len(parts)} method{'s'[: len(parts) - 1]}"
    wrong, outcome, message = "", "as it should be", ""
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
