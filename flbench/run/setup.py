"""Prepare a run: divide the data, build the executor, put the run together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from flbench.core.bank_budget import RowStore
from flbench.core.client_module import ClientModule
from flbench.core.dataset import Dataset
from flbench.core.layout import ParameterLayout
from flbench.core.seeding import seed_torch, torch_seed
from flbench.core.state import Memory, State
from flbench.core.targets import is_text
from flbench.datasets.status import spread
from flbench.engine import batchnorm
from flbench.engine.client_metrics import (
    ClientMetric,
    ClientMetrics,
    find_metric,
    metrics_of_task,
)
from flbench.engine.clock import SimulatedClock
from flbench.engine.distributed import DistributedExecutor
from flbench.engine.lanes.automatic import automatic
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.ledger import CommunicationLedger
from flbench.engine.machine.processor import lacks_bfloat16
from flbench.engine.options import EXACT, FELL_BACK
from flbench.engine.processes.fabric import open_fabric
from flbench.engine.processes.process_group import ProcessGroup
from flbench.engine.processes.shared_samples import made_once
from flbench.engine.sequential import Sequential
from flbench.engine.workspace import Workspace
from flbench.errors import BadParameter, Undefined, UserError
from flbench.federation import feature_scale, target_scale
from flbench.federation.build import divide
from flbench.federation.federation import Federation, Gather, Samples, label_counts
from flbench.federation.loading import opens_argument
from flbench.federation.periods import Periods, periods_of
from flbench.metrics import is_taken
from flbench.plugin.hooks import HookCaller
from flbench.plugin.registry import entries, find
from flbench.plugin.source_inspection import loaded_source
from flbench.results.schema import Fingerprint
from flbench.run import idle_clients
from flbench.run.checkpoint import Origin, Resumed, expect_state, load_checkpoint
from flbench.run.checkpoint_file import generations
from flbench.run.composition import MethodStack, joined, plugins_of
from flbench.run.context import RunContext, RunServices
from flbench.run.continued import Ended
from flbench.run.core_digest import core, core_parts
from flbench.run.demand import refuse_too_large
from flbench.run.history import History
from flbench.run.networks import build_network as build_network
from flbench.run.networks import (
    draw_networks,
    refuse_other_answers,
    refuse_other_samples,
    refuse_within_one_network,
)
from flbench.run.own_models import OwnModels
from flbench.run.rounds import Run, cohort, names_there
from flbench.run.saving import Saving, refuse_too_many
from flbench.run.spec import RunSpec
from flbench.suite import Suite, cohort_size, unused_settings
from flbench.tasks import TASKS, TaskName

if TYPE_CHECKING:
    from lightning.fabric import Fabric

ROUNDED = 0.05
"""Share by which a cohort may differ from the suite's share of the clients without a word."""
FEW = 4
"""A last batch of so many samples or fewer is told of where there is BatchNorm."""


def prepare(
    spec: RunSpec,
    dataset: Dataset | Callable[[], Dataset],
    order: Sequence[int] | None = None,
    shorter: Ended | None = None,
) -> tuple[Run, State]:
    """Prepare a run in three steps: the federation, the executor, the run.

    Args:
        dataset: all samples, or what loads them. Of several processes that share memory one
            loads them; the federation has copies of what it needs.
        order: relabel the clients (`Federation.relabelled`); None = leave them as they are.
        shorter: a finished run with fewer rounds, whose last round this one goes on from.

    Returns:
        The run, and its State(0) or the checkpoint's.
    """
    spec = replace(spec, method=joined(spec.suite, spec.method))
    refuse_within_one_network(spec.suite, spec.method)
    hooks = HookCaller((spec.suite.name, spec.suite), spec.method.layers, spec.sinks, spec.say)
    fabric = open_fabric(spec.engine)
    if spec.engine.precision != EXACT and lacks_bfloat16(fabric.device):
        spec.say(
            f"--precision {spec.engine.precision}: torch has no AVX-512 here, so it takes"
            f" longer than {EXACT}, with large networks many times as long"
        )

    def divided(gather: Gather) -> Federation:
        samples = dataset if isinstance(dataset, Dataset) else dataset()
        return divide(spec.suite, hooks, samples, spec.seed, gather, spec.say)

    federation = made_once(ProcessGroup.of(fabric), divided, spec.say)
    refuse_other_tasks(federation.task, spec.method)
    refuse_target(federation.task, spec.suite.target)
    if opens_argument(spec.suite.dataset):
        spec.say(described(federation))
    owned, wanted = federation.visible.splits.get("server", ((),))[0], spec.suite.server_samples
    if len(owned) < wanted:
        spec.say(
            f"the server owns {len(owned)} samples, not {wanted} (server_samples): as many of each"
            " label, at most half of its samples, and at most a tenth of all samples or a quarter"
            " of the test pool"
        )
    if order is not None:
        federation = federation.relabelled(order)
    context, weights = build_executor(spec, hooks, federation, fabric)
    run = build_run(spec, hooks, federation, context, weights)
    shorter = ProcessGroup.of(fabric).broadcast_object(shorter)
    earlier = None if shorter is None else (shorter, origin_of(run, spec.of_rounds(shorter.rounds)))
    state = first_state(
        run, resume=spec.resume, changed_source=spec.changed_source, earlier=earlier
    )
    if not ProcessGroup.of(fabric).is_rank_zero:
        run.checkpoint = None  # rank 0 keeps it
    return run, state


def refuse_target(task: TaskName, target: float | None) -> None:
    """Refuse a target that the headline of a task cannot reach.

    Raises:
        BadParameter: it is beyond the headline's limits.
    """
    one = TASKS[task]
    if target is not None and target > one.limits[1]:
        raise BadParameter(
            f"target={target:g}: expected at most {one.limits[1]:g}, as {one.headline} is the"
            f" headline of {task}"
        )


def refuse_other_tasks(task: TaskName, method: MethodStack) -> None:
    """Refuse a method on a data set of a task that it does not know.

    Raises:
        Undefined: a plugin of the method declares other `tasks`.
    """
    for name, known in method.tasks:
        if task not in known:
            raise Undefined(
                f"{name}: it is defined for {', '.join(known)}, and the task of the data set is"
                f" '{task}'"
            )


def described(federation: Federation) -> str:
    """How many samples the clients have, and how many they are tested on."""
    parts = [federation.visible.sizes("train"), federation.visible.sizes("validation")]
    tests = federation.held_out.sizes("test")
    sizes = torch.stack([*parts, tests]).sum(dim=0).tolist()
    train, validation, test = (f"{int(part.sum()):,}" for part in (*parts, tests))
    visible = federation.visible
    server = int(visible.sizes("server").sum()) if "server" in visible.splits else 0
    kept = f", {server:,} at the server" if server else ""
    return (
        f"{federation.clients} clients with {spread(sizes)} samples: {train} to train,"
        f" {validation} to validate, {test} to test on{kept}"
    )


def build_executor(
    spec: RunSpec, hooks: HookCaller, federation: Federation, fabric: Fabric
) -> tuple[RunContext, str]:
    """Build the network for the samples, its ClientModule and the executor that trains it.

    Returns:
        The context of round 0, with its executor; and a hash of the network's own weights.
    """
    shape = tuple(federation.visible.x.shape[1:])
    store = build_store(spec, fabric.device)
    ledger = CommunicationLedger(spec.suite.training_clients)
    classes, tokens = federation.classes, vocabulary(federation)
    build = partial(build_network, spec.suite, shape, classes, spec.seed)
    build = partial(build, tokens=tokens) if tokens else build
    net = build()
    refuse_other_samples(spec.suite, net, federation.visible.x[:1])
    leaks = spec.method.paper_leak
    seen = federation.with_test_as_validation() if leaks else federation
    visible = seen.visible.to(fabric.device)
    clock = simulated_clock(spec, federation)
    services = RunServices(ledger, spec.say, store, visible, clock, buffers=spec.suite.buffers)
    context = first_context(spec, federation, net, services)
    module = build_module(hooks, net, context)
    if type(module) is ClientModule and not spec.suite.further_models:
        pool, name = federation.visible, spec.suite.model.name
        refuse_other_answers(net, name, pool.x[:1], pool.y[:1], classes)
    layout = ParameterLayout.of(module, head=context.layout.head_name)
    tell_of_unused(spec, layout)
    tell_of_rounding(spec)
    space = Workspace(fabric, module, layout)
    tell_of_few_samples(spec, space, visible.sizes("train"))
    tell_of_idle_clients(spec, space, visible.sizes("train"))
    services.executor = shared(choose_executor(spec, space, visible, store))
    initial = space.row.clone()
    services.draw = partial(fresh_row, build, initial, layout)
    complete = replace(context, layout=layout, initial=initial)
    return complete, _hash([context.initial])


def tell_of_unused(spec: RunSpec, layout: ParameterLayout) -> None:
    """Tell of what the suite says and what has no effect; what a person sets so is refused."""
    for _, why in unused_settings(spec.suite):
        spec.say(f"suite '{spec.suite.name}': {why}")
    policy, name = spec.suite.buffers, spec.suite.model.name
    if policy != "global" and not layout.buffers:
        spec.say(f"buffers={policy} has no effect: '{name}' has no BatchNorm")


def tell_of_rounding(spec: RunSpec) -> None:
    """Tell how many clients are called in a round where that is not the share asked for."""
    share, clients = spec.suite.participation, spec.suite.training_clients
    called = cohort_size(share, clients)
    if abs(called - share * clients) > ROUNDED * called:
        spec.say(
            f"participation={share:g} of {clients} clients is {share * clients:.4g}: {called}"
            f" {'is' if called == 1 else 'are'} called in a round, as by {called / clients:.4g}"
        )


def vocabulary(federation: Federation) -> int:
    """Number of tokens in samples with one label each; 0 for other samples."""
    pools = [federation.visible, federation.held_out]
    if federation.newcomers is not None:
        pools += [federation.newcomers.visible, federation.newcomers.held_out]
    if pools[0].x.is_floating_point() or is_text(pools[0].y):
        return 0
    return max(int(pool.x.max()) + 1 for pool in pools)


def build_store(spec: RunSpec, device: torch.device) -> RowStore:
    """Where the models of a run are.

    The processes of a machine share the memory, unless each has a GPU.
    """
    processes = spec.engine.devices if device.type == "cpu" else 1
    budget = spec.engine.bank_budget
    return RowStore(budget, spec.path.parent, device, processes)


def tell_of_few_samples(spec: RunSpec, space: Workspace, owned: Tensor) -> None:
    """Tell of last batches whose statistics BatchNorm learns little from.

    Args:
        owned: number of training samples of each client, shape (N,).
    """
    local = space.module.local
    if not space.has_batchnorm or local.drop_last:
        return
    last = owned % local.batch_size
    few = int(((owned > local.batch_size) & (last > 1) & (last <= FEW)).sum())
    if few:
        spec.say(
            f"{few} of {len(owned)} clients end each epoch with a batch of {FEW} samples or"
            " fewer, from which BatchNorm learns little: local.drop_last=true leaves it out"
        )


def tell_of_idle_clients(spec: RunSpec, space: Workspace, owned: Tensor) -> None:
    """Tell of clients that never make a step; `owned` as in `tell_of_few_samples`.

    Raises:
        Undefined: most of them make none.
    """
    idle = idle_clients.of_sizes(space, owned)
    if text := idle_clients.message(idle, len(owned), "train", space):
        spec.say(text)


def simulated_clock(spec: RunSpec, federation: Federation) -> SimulatedClock | None:
    """The clock of the suite, if it has one."""
    if spec.suite.clock is None:
        return None
    names = federation.visible.names or range(federation.clients)
    return SimulatedClock.of(spec.suite.clock, spec.seed, names)


def build_run(
    spec: RunSpec, hooks: HookCaller, federation: Federation, context: RunContext, weights: str
) -> Run:
    """Put together what the round loop needs; `weights` is a hash of the initial weights.

    Raises:
        UserError: a metric that is asked for is not there, or gives no number for each client.
    """
    suite, seed = spec.suite, spec.seed
    device, samples = context.executor.workspace.device, context.executor.samples
    held_out = federation.held_out.to(device)
    judged = samples.called(torch.tensor(suite.judged))
    periods = build_periods(suite, seed, federation, samples, held_out)
    refuse_periods_of_nobody(periods, judged)
    tell_of_late_periods(spec)
    marks = Fingerprint(
        config=spec.fingerprint,
        suite=suite.hash(),
        initial_weights=weights,
        cohorts=_hash(cohorts(suite, seed, samples, periods)),
        **federation.fingerprint,
    )
    return Run(
        suite=suite,
        seed=seed,
        hooks=hooks,
        executor=context.executor,
        context=context,
        services=context.services,
        held_out=held_out,
        newcomers=federation.newcomers,
        groups=federation.groups,
        scaled=federation.scaled,
        ledger=context.services.ledger,
        history=History(own=own_models(suite, context)),
        origin=Origin(
            method=spec.method.described.name,
            seed=seed,
            marks=marks,
            sources=code_of(spec),
            device=device.type,
            environment=environment_of(spec),
            core_parts=core_parts(),
        ),
        checkpoint=spec.checkpoint,
        judged=judged,
        periods=periods,
        metrics=client_metrics(spec, hooks, context),
        scale=federation.scale,
        saving=saving_of(spec, federation, judged),
    )


def saving_of(spec: RunSpec, federation: Federation, judged: Tensor) -> Saving | None:
    """What takes what is saved beside the result; None = nothing is to be.

    Raises:
        BadParameter: the predictions would be too many.
    """
    if not spec.keep.saved:
        return None
    samples = int(federation.held_out.sizes("test")[judged].sum())
    refuse_too_many(spec.keep, samples, federation.held_out.y, federation.classes)
    if federation.newcomers is not None:
        count = len(federation.newcomers)
        spec.say(f"of {count} clients that join after the last round nothing is saved")
    return Saving(spec.keep, vocabulary(federation))


def own_models(suite: Suite, context: RunContext) -> OwnModels | None:
    """The clients' own models before round 1; None = the suite does not ask for them."""
    if not suite.own_models:
        return None
    store = context.services.store
    return OwnModels.of_nobody(context.initial, context.clients, store)


def build_periods(
    suite: Suite, seed: int, federation: Federation, visible: Samples, held_out: Samples
) -> Periods | None:
    """How the data change; None where they do not, or not within the suite's rounds."""
    if not suite.periods:
        return None
    names = visible.names or range(federation.clients)
    changes, rounds = suite.periods, suite.rounds
    classes = federation.classes if federation.task == "classes" else 0
    held = labels_held(federation.clients, visible, held_out) if classes else None
    table = periods_of(changes, rounds, seed, federation.groups, names, classes, held)
    return Periods(table, visible, held_out)


def labels_held(clients: int, *pools: Samples) -> list[set[int]]:
    """The labels of each client's samples in all parts, by id."""
    found: list[set[int]] = [set() for _ in range(clients)]
    for pool in pools:
        for lists in pool.splits.values():
            for client in range(min(clients, len(lists))):
                found[client].update(pool.y[lists[client]].unique().tolist())
    return found


def tell_of_late_periods(spec: RunSpec) -> None:
    """Tell of changes that the run ends before; who would come is then never there."""
    rounds = spec.suite.rounds
    for one in spec.suite.periods:
        if one.start > rounds:
            spec.say(
                f"periods: {one.change} from round {one.start} on: the run has {rounds} rounds"
            )


def refuse_periods_of_nobody(periods: Periods | None, judged: Tensor) -> None:
    """Refuse a period in which no client is there that is judged."""
    for period in () if periods is None else periods.table:
        if not bool(period.present[judged].any()):
            raise UserError(f"periods: nobody is there to be judged from round {period.first} on")


def cohorts(suite: Suite, seed: int, samples: Samples, periods: Periods | None) -> Iterator[Tensor]:
    """The names of the clients that are sampled in each round."""
    for round_ in range(1, suite.rounds + 1):
        present = None if periods is None else names_there(samples, periods.at(round_))
        yield cohort(suite, seed, round_, present)


def code_of(spec: RunSpec) -> dict[str, str]:
    """Hashes of the code of method, suite, and of networks and metrics of other packages."""
    plugins = (*spec.method.described.plugins, *plugins_of(spec.suite))
    found = {one.name: one.source for one in plugins}
    for network in spec.suite.networks:
        entry = find("models", network.name)
        if not entry.is_core:
            found[f"network {network.name}"] = loaded_source(entry.module())
    known = entries("metrics")
    for metric in spec.suite.metrics:
        if metric.name in known and not known[metric.name].is_core:
            found[f"metric {metric.name}"] = loaded_source(known[metric.name].module())
    return found


def environment_of(spec: RunSpec) -> dict[str, str]:
    """What else decides the bits of a run, by the keys of a result's environment.

    The processor and the executor are not among them: they change rounding alone, and a result says
    from which round on another one computed.
    """
    return {
        "core": core(),
        "torch": torch.__version__,
        **{name: installed(name) for name in ("lightning", "numpy")},
        "threads": str(spec.engine.threads),
        "compile": "yes" if spec.engine.compile else "no",
    }


installed = cache(version)
"""The version of an installed package; its metadata are read once."""


def client_metrics(spec: RunSpec, hooks: HookCaller, context: RunContext) -> ClientMetrics | None:
    """The metrics of the task, and those that suite, person and methods ask for.

    None = no others than accuracy.
    """
    task = context.task
    own = [find_metric(one, task) for one in spec.suite.metrics]
    found = {one.label: one for one in (*metrics_of_task(task), *own)}
    packages = {
        one.name: f"{one.distribution} {one.version}" for one in spec.method.described.plugins
    }
    for label, (plugin, make) in hooks.metrics(context).items():
        if label in found:
            raise UserError(f"metric '{label}' is asked for, and {plugin} brings its own")
        package = packages.get(plugin, plugin)
        found[label] = ClientMetric(label, label, {}, package, make, plugin)
    for label in found:
        if is_taken(label, task) and label != TASKS[task].headline:
            raise UserError(f"metric '{label}': a result has another number of this name")
    if not found:
        return None
    device = context.executor.workspace.device
    return ClientMetrics(found, context.outputs, device, spec.say, task=task)


def fresh_row(
    build: Callable[[int], nn.Module], row: Tensor, layout: ParameterLayout, index: int
) -> Tensor:
    """The initial row with other weights in the network's part; what a method added stays.

    Raises:
        Undefined: no weight of the network is in a row.
    """
    net = build(index)
    tensors = {f"net.{name}": tensor for name, tensor in net.named_parameters()}
    fresh, own = row.clone(), [slot for slot in layout.slots if slot.name in tensors]
    if not own:
        raise Undefined("all weights of the network are frozen, so it has no other initial weights")
    for slot in own:
        fresh[slot.start : slot.stop] = tensors[slot.name].detach().reshape(-1)
    return fresh


def first_context(
    spec: RunSpec, federation: Federation, net: nn.Module, services: RunServices
) -> RunContext:
    """The context before round 1; its layout is that of a plain ClientModule with the network."""
    samples, plain = federation.visible, ClientModule(net, spec.local)
    layout = ParameterLayout.of(plain)
    counts = label_counts(samples, federation.classes)
    groups = federation.groups
    return RunContext(
        seed=spec.seed,
        round=0,
        rounds=spec.suite.rounds,
        clients=federation.clients,
        cohort=torch.empty(0, dtype=torch.int64),
        samples=samples.sizes("train"),
        label_counts=counts,
        classes=federation.classes,
        layout=layout,
        initial=layout.flatten(plain),
        local=spec.local,
        services=services,
        truth=(lambda: groups) if spec.method.uses_true_groups else None,
        newcomers=0 if federation.newcomers is None else len(federation.newcomers),
        row_per_client=spec.method.row_per_client,
        pools_data=spec.method.pools_data,
        names=samples.names,
        networks=draw_networks(spec.suite, spec.seed, samples.names or range(federation.clients)),
        task=federation.task,
    )


def choose_executor(
    spec: RunSpec, space: Workspace, visible: Samples, store: RowStore
) -> Sequential:
    """The executor asked for; its uploads are where the store has room for them.

    Raises:
        UserError: there is no executor of that name.
    """
    name = named_executor(spec, space.module, visible.x, space.device)
    if name == "sequential":
        if spec.engine.compile:
            space.compile()
        return Sequential(space, visible, spec.seed, store)
    if name != "vectorised":
        raise UserError(f"unknown executor '{name}': expected auto, sequential or vectorised")
    if spec.engine.compile:
        raise UserError("--compile goes with --executor sequential: lanes cannot be compiled")
    return Vectorised(space, visible, spec.seed, spec.say, store=store)


def named_executor(spec: RunSpec, module: nn.Module, x: Tensor, device: torch.device) -> str:
    """The executor that is asked for; `automatic` says what `auto` stands for.

    Args:
        module: what is trained.
        x: samples, shape (m, ...).
        device: on which it is trained.
    """
    if spec.engine.executor != "auto":
        return spec.engine.executor
    if spec.engine.compile:
        return "sequential"
    shape, batch = tuple(x.shape[1:]), spec.local.batch_size
    return automatic(module, shape, batch, device, spec.engine.precision)


def shared(executor: Sequential) -> Sequential:
    """The executor, dealt to the processes of the run if there are several."""
    ranks = ProcessGroup.of(executor.workspace.fabric)
    return executor if ranks.size == 1 else DistributedExecutor(executor, ranks)


def build_module(hooks: HookCaller, net: nn.Module, context: RunContext) -> ClientModule:
    """The run's one ClientModule; what a method adds to the network is seeded apart from it."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(torch_seed(context.seed, "init-added"))
        return hooks.client_module(net, context)


def first_state(
    run: Run,
    *,
    resume: bool = False,
    changed_source: bool = False,
    earlier: tuple[Ended, Origin] | None = None,
) -> State:
    """State(0), from the merged answers of `setup`; or a checkpoint's, ledger and history too.

    The checkpoint is the run's own, or that of an `earlier` run with fewer rounds.
    """
    for message in run.hooks.overridden():
        run.services.warn(message)
    ranks, path = ProcessGroup.of(run.executor.workspace.fabric), run.checkpoint
    if path is not None and ranks.broadcast_object(resume and bool(generations(path))):
        found = ranks.attempt(lambda: loaded(run, path, run.origin, changed_source))
        if ranks.is_rank_zero and found.file != path:
            path.unlink(missing_ok=True)  # damaged: it must not take the place of the whole one
        return resumed(run, found)
    if earlier is not None:
        ended, origin = earlier
        found = ranks.attempt(lambda: loaded(run, ended.checkpoint, origin, changed_source))
        goes_on = f"the checkpoint of the run of {ended.rounds} rounds ({ended.checkpoint})"
        if found.history.rounds_read is False:
            run.services.say(f"goes on at round {found.state.round + 1}, from {goes_on}")
            return resumed(run, found)
        run.services.say(
            f"starts at round 1, as {run.origin.method} looks at the number of rounds, so the"
            f" rounds of a longer run may be others: {goes_on} is not used"
        )
    rounds_read = run.services.rounds_read
    refuse_too_large(run)
    run.services.rounds_read = rounds_read  # what a method needs is no number of a run
    count_scales(run)
    setup = run.hooks.setup(run.context)
    assert setup.models is not None and setup.membership is not None, "checked by the hooks"
    layout, initial = run.context.layout, run.context.initial
    clients, store = run.context.clients, run.services.store
    own = batchnorm.declare(run.suite.buffers, layout, initial, clients, store)
    kept: dict[str, Memory] = {**setup.memory, **own}
    return State(
        round=0,
        models=setup.models,
        membership=setup.membership,
        memory={name: memory.value for name, memory in kept.items()},
        scopes={name: memory.scope for name, memory in kept.items()},
    )


def count_scales(run: Run) -> None:
    """Count what tells the server the scales of targets and features, and every client these.

    A note keeps that of the targets, so that errors can be said in the unit of the data.
    """
    everybody, ledger = run.context.everybody, run.ledger
    if run.scale is not None:
        mean, deviation = run.scale.mean.tolist(), run.scale.deviation.tolist()
        run.services.notes[target_scale.SCALE] = {"mean": mean, "deviation": deviation}
        scalars = target_scale.SCALARS * run.context.outputs
        ledger.send("up", everybody, target_scale.SUMS, scalars)
        ledger.send("down", everybody, target_scale.SCALE, scalars)
    for item, count in run.scaled.items():
        ledger.send("up" if item == feature_scale.SUMS else "down", everybody, item, count)


def loaded(run: Run, path: Path, origin: Origin, changed_source: bool) -> Resumed:
    """The checkpoint at a path, which must fit the run; errors as of `load_checkpoint`."""
    width, clients = run.context.layout.width, run.context.clients
    fits = partial(expect_state, width=width, clients=clients)
    store = run.services.store
    return load_checkpoint(path, store, origin, changed_source=changed_source, expect=fits)


def resumed(run: Run, found: Resumed) -> State:
    """Let a run go on from a checkpoint; its state."""
    run.ledger = run.services.ledger = found.ledger
    run.history = found.history
    if found.history.executor.startswith(FELL_BACK):
        run.executor.leave_lanes("they failed in earlier rounds")
    run.services.seconds.update(found.history.seconds)
    run.services.drain()
    for message in found.messages:
        run.services.say(message)
    return found.state


def origin_of(run: Run, spec: RunSpec) -> Origin:
    """The origin of a run that differs from this one in the number of rounds alone."""
    rounds = cohorts(spec.suite, run.seed, run.executor.samples, run.periods)
    marks = run.marks.model_copy(
        update={
            "config": spec.fingerprint, "suite": spec.suite.hash(), "cohorts": _hash(rounds),
        }
    )  # fmt: skip
    return replace(run.origin, marks=marks)


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
