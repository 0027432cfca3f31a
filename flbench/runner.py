"""From names to a result on disk: build a run, play it, write it down."""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from flbench import buffers
from flbench.checkpoint import checkpoint_path, load_checkpoint
from flbench.client import ClientModule
from flbench.context import Context
from flbench.engine.ledger import DIRECTIONS, Ledger
from flbench.engine.sequential import Sequential
from flbench.engine.vectorised import Vectorised
from flbench.engine.workspace import Workspace
from flbench.errors import UserError
from flbench.federation import Federation, Samples, federate, server_indices
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

# isort: split
from lightning.fabric import Fabric  # after flbench.client, which makes torchvision importable
from lightning.fabric.utilities.exceptions import MisconfigurationException


@dataclass(frozen=True)
class Job:
    """One run as asked for: everything is named and checked, nothing is loaded.

    Attributes:
        out: folder of the result files.
        resume: continue from the checkpoint, if there is one.
        force: recompute even if the result is there.
        threads: CPU threads of torch. One is fastest for small networks, and keeps sums in the
            same order on every machine.
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
    threads: int = 1
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

    @property
    def checkpoint(self) -> Path:
        """Where the last whole round is kept until the result is there."""
        return checkpoint_path(self.path)

    @property
    def title(self) -> str:
        """What it is called in messages."""
        suite = self.suite
        return f"{self.method.described.name} on {suite.name} ({suite.dataset}), seed {self.seed}"


def load_dataset(name: str, root: Path) -> Dataset:
    """Load a data set by name.

    Raises:
        UnknownName: nobody offers it.
        MissingData: its files are not under the root.
    """
    dataset: Dataset = find("datasets", name).load()(root)
    return dataset


def run_job(job: Job, load: Callable[[str, Path], Dataset] = load_dataset) -> Result:
    """Run a job, or read its result if it is complete already.

    Args:
        load: gives the suite's data set, if it is needed.

    Raises:
        UserError: something the person can mend.
        Diverged: a client's parameters left the finite numbers.
    """
    if job.path.is_file() and not job.force:
        job.say(f"{job.path} is complete; --force computes it again")
        return read_result(job.path)
    if job.checkpoint.is_file() and not job.resume:
        job.say(f"{job.title}: starts over; --resume would go on from its checkpoint")
    run, state = prepare(job, load(job.suite.dataset, job.data_root))
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
    result = conclude(job, run, state)
    write_atomically(job.path, result.canonical().encode())
    job.checkpoint.unlink(missing_ok=True)
    run.hooks.listen("run_finished", result=result, path=str(job.path))
    return result


def prepare(job: Job, dataset: Dataset) -> tuple[Run, State]:
    """Build a run: partition, federation, network, hooks, State(0) or the checkpoint's."""
    suite, seed = job.suite, job.seed
    services = RunServices(Ledger(suite.clients), job.say)
    hooks = Hooks((suite.name, suite), job.method.layers, job.sinks, services.warn)
    federation = divide(suite, hooks, dataset, seed)
    fabric = open_fabric(job)
    net = build_network(suite, tuple(dataset.x.shape[1:]), dataset.classes, seed)
    context = first_context(job, federation, net, services)
    module = build_module(hooks, net, context)
    layout = ParameterLayout.of(module)
    visible = (federation.leaky() if job.method.paper_leak else federation).visible
    space = Workspace(fabric, module, layout)
    services.executor = choose_executor(job, space, visible.to(fabric.device))
    marks = Fingerprint(
        config=job.fingerprint,
        suite=suite.hash(),
        initial_weights=_hash(context.initial),
        cohorts=_hash(*[cohort(suite, seed, r + 1) for r in range(suite.rounds)]),
        **federation.fingerprint,
    )
    run = Run(
        suite=suite,
        seed=seed,
        hooks=hooks,
        executor=services.executor,
        context=replace(context, layout=layout, initial=space.row.clone()),
        services=services,
        held_out=federation.held_out.to(fabric.device),
        groups=federation.groups,
        ledger=services.ledger,
        history=History(),
        marks=marks,
        checkpoint=job.checkpoint,
    )
    return run, first_state(run, resume=job.resume)


def first_context(
    job: Job, federation: Federation, net: nn.Module, services: RunServices
) -> Context:
    """The context before round 1; layout and weights are the network's alone."""
    samples, layout = federation.visible, ParameterLayout.of(net)
    train = samples.splits["train"]
    counts = [torch.bincount(samples.y[rows], minlength=federation.classes) for rows in train]
    groups = federation.groups
    return Context(
        seed=job.seed,
        round=0,
        rounds=job.suite.rounds,
        clients=job.suite.clients,
        cohort=torch.empty(0, dtype=torch.int64),
        samples=samples.sizes("train"),
        label_counts=torch.stack(counts),
        classes=federation.classes,
        layout=layout,
        initial=layout.flatten(net),
        local=job.suite.local,
        services=services,
        truth=(lambda: groups) if job.method.uses_true_groups else None,
    )


def choose_executor(job: Job, space: Workspace, visible: Samples) -> Sequential:
    """The executor asked for.

    `auto` is sequential: on CPUs it is the faster one (docs/performance.md), and on accelerators
    the other has not been measured yet.

    Raises:
        UserError: there is no executor of that name.
    """
    if job.executor in ("auto", "sequential"):
        return Sequential(space, visible, job.seed)
    if job.executor != "vectorised":
        raise UserError(
            f"unknown executor '{job.executor}': expected auto, sequential or vectorised"
        )
    executor = Vectorised(space, visible, job.seed)
    reason = executor.why_not()
    if reason is not None:
        job.say(f"clients are trained one by one: {reason}")
    return executor


def build_module(hooks: Hooks, net: nn.Module, context: Context) -> ClientModule:
    """The run's one ClientModule; what a method adds to the network is seeded apart from it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(context.seed, "init-added"))
        return hooks.client_module(net, context)


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


def first_state(run: Run, *, resume: bool = False) -> State:
    """State(0), from the merged answers of `setup`; or the checkpoint's, ledger and history too."""
    for message in run.hooks.overridden():
        run.services.warn(message)
    if resume and run.checkpoint is not None and run.checkpoint.is_file():
        device = run.executor.workspace.device
        state, ledger, history = load_checkpoint(run.checkpoint, device, run.marks)
        run.ledger = run.services.ledger = ledger
        run.history = history
        run.services.seconds.update(history.seconds)
        run.services.drain()
        return state
    setup = run.hooks.setup(run.context)
    assert setup.models is not None and setup.membership is not None, "checked by the hooks"
    layout, initial = run.context.layout, run.context.initial
    own = buffers.declare(run.suite.buffers, layout, initial, run.context.clients)
    kept: dict[str, Memory] = {**setup.memory, **own}
    return State(
        round=0,
        models=setup.models,
        membership=setup.membership,
        memory={name: memory.value for name, memory in kept.items()},
        scopes={name: memory.scope for name, memory in kept.items()},
    )


def conclude(job: Job, run: Run, state: State) -> Result:
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
        fingerprint=run.marks,
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
            "executor": type(run.executor).__name__.lower(),
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


def _hash(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def open_fabric(job: Job) -> Fabric:
    """The run's one Fabric.

    Raises:
        UserError: an accelerator or a number of devices that cannot be had.
    """
    if job.devices != 1:
        raise UserError(f"--devices {job.devices}: expected 1, one process on one device")
    torch.set_num_threads(job.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about Trainer features that are not used here
        try:
            fabric = Fabric(accelerator=job.accelerator, devices=job.devices)
        except (MisconfigurationException, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise UserError(f"--accelerator {job.accelerator}: {text}") from None
        fabric.launch()
    return fabric
