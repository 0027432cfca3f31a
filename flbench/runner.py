"""From names to a result on disk: build a run, play it, write it down."""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flbench import buffers
from flbench.checkpoint import checkpoint_path, load_checkpoint
from flbench.client import ClientModule
from flbench.context import Context
from flbench.engine.ledger import DIRECTIONS, Ledger
from flbench.engine.sequential import Sequential
from flbench.engine.workspace import Workspace
from flbench.errors import UserError
from flbench.federation import Federation, federate, server_indices
from flbench.history import History
from flbench.layout import ParameterLayout
from flbench.methods import Composition
from flbench.metrics import clustering_error
from flbench.orchestrator import Run, RunServices, cohort, play
from flbench.parameters import checked
from flbench.plugins import Hooks
from flbench.registry import find
from flbench.results import (
    Clients,
    Fingerprint,
    Result,
    RunInfo,
    read_result,
    result_path,
    write_atomically,
)
from flbench.seeding import rng, torch_seed
from flbench.state import Dataset, Memory, State
from flbench.suite import Suite, fingerprint


@dataclass(frozen=True)
class Job:
    """One run as asked for: everything is named and checked, nothing is loaded.

    Attributes:
        out: folder of the result files.
        resume: continue from the checkpoint, if there is one.
        force: recompute even if the result is there.
        sinks: listeners, by name.
    """

    suite: Suite
    method: Composition
    seed: int
    data_root: Path
    out: Path
    executor: str = "auto"
    accelerator: str = "auto"
    devices: int = 1
    resume: bool = False
    force: bool = False
    sinks: Sequence[tuple[str, object]] = ()
    say: Callable[[str], None] = field(default=lambda message: None)

    @property
    def fingerprint(self) -> str:
        """Hash of suite, method and parameters; the same for all seeds."""
        method = self.method.described.model_dump(mode="json")
        return fingerprint({"suite": self.suite.settings(), "method": method})

    @property
    def path(self) -> Path:
        """Where the result will lie."""
        return result_path(
            self.out,
            self.suite.name,
            self.suite.dataset,
            self.method.described.name,
            self.fingerprint,
            self.seed,
        )


def run_job(job: Job, dataset: Dataset | None = None) -> Result:
    """Run a job, or read its result if it is complete already.

    Args:
        dataset: the suite's data set, where the caller has loaded it.

    Raises:
        UserError: something the person can mend.
        Diverged: a client's parameters left the finite numbers.
    """
    if job.path.is_file() and not job.force:
        job.say(f"{job.path} is complete; --force computes it again")
        return read_result(job.path)
    run, state, marks = prepare(job, dataset or load_dataset(job.suite.dataset, job.data_root))
    described = job.method.described
    info = RunInfo(
        method=described.name,
        params=described.params,
        suite=job.suite.name,
        dataset=job.suite.dataset,
        seed=job.seed,
        rounds=job.suite.rounds,
        first=state.round + 1,
        settings=job.suite.settings(),
        fingerprint=job.fingerprint,
        groups=None if run.groups is None else run.groups.tolist(),
    )
    run.hooks.listen("run_started", info=info)
    state = play(run, state)
    result = conclude(job, run, state, marks)
    write_atomically(job.path, result.canonical().encode())
    checkpoint_path(job.path).unlink(missing_ok=True)
    run.hooks.listen("run_finished", result=result, path=str(job.path))
    return result


def load_dataset(name: str, root: Path) -> Dataset:
    """Load a data set by name.

    Raises:
        UnknownName: nobody offers it.
        MissingData: its files are not under the root.
    """
    dataset: Dataset = find("datasets", name).load()(root)
    return dataset


def prepare(job: Job, dataset: Dataset) -> tuple[Run, State, Fingerprint]:
    """Build a run: partition, federation, network, hooks, State(0) or the checkpoint's."""
    suite, seed = job.suite, job.seed
    if job.executor not in ("auto", "sequential"):
        raise UserError(f"executor '{job.executor}' is not available: choose auto or sequential")
    if job.devices != 1:
        raise UserError(f"--devices {job.devices}: expected 1, one process on one device")
    said: list[Callable[[str], None]] = []
    hooks = Hooks(
        (suite.name, suite),
        job.method.layers,
        job.sinks,
        warn=lambda message: said[0](message) if said else job.say(message),
    )
    federation = divide(suite, hooks, dataset, seed)
    net = build_network(suite, tuple(dataset.x.shape[1:]), dataset.classes, seed)
    fabric = _fabric(job)
    counts = torch.stack(
        [
            torch.bincount(federation.visible.y[rows], minlength=dataset.classes)
            for rows in federation.visible.splits["train"]
        ]
    )
    trained_on = federation.leaky() if job.method.paper_leak else federation
    samples = trained_on.visible.to(fabric.device)
    ledger, history = Ledger(suite.clients), History()
    context = Context(
        seed=seed,
        round=0,
        rounds=suite.rounds,
        clients=suite.clients,
        cohort=torch.empty(0, dtype=torch.int64),
        samples=federation.visible.sizes("train"),
        label_counts=counts,
        classes=dataset.classes,
        layout=ParameterLayout.of(net),
        initial=ParameterLayout.of(net).flatten(net),
        local=suite.local,
        services=None,  # type: ignore[arg-type]  # set below: the engine needs the module first
        truth=_door(federation.groups) if job.method.uses_true_groups else None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "init-added"))
        module: ClientModule = hooks.client_module(net, context)
    layout = ParameterLayout.of(module)
    marks = Fingerprint(
        config=job.fingerprint,
        suite=suite.hash(),
        initial_weights=_hash(context.initial),
        cohorts=_hash(*[cohort(suite, seed, r + 1) for r in range(suite.rounds)]),
        **federation.fingerprint,
    )
    initial = layout.flatten(module).to(fabric.device)
    executor = Sequential(Workspace(fabric, module, layout), samples, seed)
    services = RunServices(executor, ledger, job.say)
    said.append(services.warn)
    context = replace(context, layout=layout, initial=initial, services=services)
    checkpoint = checkpoint_path(job.path)
    for message in hooks.overridden():
        services.warn(message)
    if job.resume and checkpoint.is_file():
        state, ledger, history = load_checkpoint(checkpoint, fabric.device)
        services.ledger = ledger
        services.seconds.update(history.seconds)
        services.drain()
    else:
        state = first_state(hooks, context, suite)
    run = Run(
        suite=suite,
        seed=seed,
        hooks=hooks,
        executor=executor,
        context=context,
        services=services,
        held_out=federation.held_out.to(fabric.device),
        groups=federation.groups,
        ledger=ledger,
        history=history,
        checkpoint=checkpoint,
    )
    return run, state, marks


def divide(suite: Suite, hooks: Hooks, dataset: Dataset, seed: int) -> Federation:
    """Partition the data set and split every client's share."""
    labels = dataset.y.numpy()
    domains = None if dataset.domains is None else dataset.domains.numpy()
    server = np.arange(0)
    if suite.server_samples:
        server = server_indices(labels, suite.server_samples, rng(seed, "server-samples"))
    left = np.setdiff1d(np.arange(len(labels)), server)
    partition = hooks.partition(
        labels[left],
        None if domains is None else domains[left],
        suite.clients,
        rng(seed, "partition"),
    )
    owned = replace(partition, clients=tuple(left[rows] for rows in partition.clients))
    return federate(
        dataset,
        owned,
        seed,
        test_fraction=suite.test_fraction,
        validation_fraction=suite.validation_fraction,
        server=server,
    )


def build_network(suite: Suite, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The suite's network with the seed's initial weights, the same for every method."""
    build = find("models", suite.model.name).load()
    params = checked(f"model '{suite.model.name}'", build, suite.model.params, skip=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "init"))
        net: nn.Module = build(shape, classes, **params)
    return net


def first_state(hooks: Hooks, context: Context, suite: Suite) -> State:
    """State(0), from the merged answers of `setup`."""
    setup = hooks.setup(context)
    assert setup.models is not None and setup.membership is not None
    kept: dict[str, Memory] = {
        **setup.memory,
        **buffers.declare(suite.buffers, context.layout, context.initial, suite.clients),
    }
    return State(
        round=0,
        models=setup.models,
        membership=setup.membership,
        memory={name: memory.value for name, memory in kept.items()},
        scopes={name: memory.scope for name, memory in kept.items()},
    )


def conclude(job: Job, run: Run, state: State, marks: Fingerprint) -> Result:
    """Everything the run leaves behind."""
    history, suite = run.history, job.suite
    groups = None if run.groups is None else run.groups.tolist()
    shown = history.shown(suite.headline)
    sizes = {name: run.executor.samples.sizes(name).tolist() for name in ("train", "validation")}
    moved = torch.stack(list(run.ledger.per_client.values())).sum(dim=0)
    return Result(
        suite={"name": suite.name, "paper": suite.paper, **suite.settings()},
        dataset=suite.dataset,
        method=job.method.described,
        seed=job.seed,
        fingerprint=marks,
        summary={
            **history.summary(suite.headline, groups, suite.clients),
            **_selection_quality(state, run.groups),
        },
        curves=history.curves,
        clients=Clients(
            train=sizes["train"],
            validation=shown.validation_judged,
            test=shown.judged,
            correct=shown.correct,
            loss=[round(loss, 6) for loss in shown.loss],
            group=groups,
            bytes=moved.tolist(),
        ),
        membership=history.membership,
        bytes={way: dict(run.ledger.totals[way]) for way in DIRECTIONS},
        notes=history.notes,
        warnings=history.warnings,
        seconds={part: round(spent, 3) for part, spent in history.seconds.items()},
        environment={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "device": str(run.executor.workspace.device),
            "executor": "sequential",
            "threads": str(torch.get_num_threads()),
        },
    )


def _selection_quality(state: State, groups: Tensor | None) -> dict[str, float | None]:
    """Wrong and missing members per client, where rows overlap (methods.md 10.3)."""
    chosen = state.membership.weights
    if chosen is None or groups is None:
        return {"error": None, "false_positives": None, "false_negatives": None}
    truth = (groups[:, None] == groups).numpy()
    return {**clustering_error(truth, (chosen[state.membership.home] > 0).numpy())}


def _door(groups: Tensor | None) -> Callable[[], Tensor | None]:
    return lambda: groups


def _hash(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _fabric(job: Job) -> Any:  # noqa: ANN401 - lightning's Fabric
    """The run's one Fabric."""
    from lightning.fabric import Fabric

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fabric = Fabric(accelerator=job.accelerator, devices=job.devices)
        fabric.launch()
    return fabric
