"""From a job to a result on disk: load the data set, play the run, write it down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flbench.core.dataset import Dataset
from flbench.engine.fabric import join_process_group
from flbench.errors import MissingData, Undefined
from flbench.federation.loading import load_dataset as load_dataset
from flbench.results.events import RunInfo
from flbench.results.files import read_result, skip_path, write_atomically
from flbench.results.schema import Result
from flbench.run.newcomers import evaluate_newcomers
from flbench.run.result import build_result, skipped
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec


def resolve_dataset(
    job: RunSpec, load: Callable[[str, Path], Dataset] = load_dataset
) -> tuple[RunSpec, Callable[[str, Path], Dataset]]:
    """The job on the data that are there, and how to get at them.

    A part of a data set comes under a name of its own, as `digit-5[mnist,usps]`: the suite then
    runs on that name with one client per domain, and never meets results of the whole.

    Raises:
        MissingData: nothing is there; names the suite's twin that needs no files.
    """
    suite = job.suite
    if is_complete(job):
        return job, load
    try:
        dataset = load(suite.dataset, job.data_root)
    except MissingData as error:
        twin = (
            f"; its twin needs no files: --dataset {suite.offline_dataset}"
            if suite.offline_dataset
            else ""
        )
        raise MissingData(f"{error}{twin}") from None
    if dataset.name != suite.dataset and dataset.name.startswith(f"{suite.dataset}["):
        there = suite.clients if dataset.domains is None else len(dataset.domains.unique())
        part = {"dataset": dataset.name, "clients": min(suite.clients, there)}
        job.say(f"{suite.name} runs on {dataset.name} with {part['clients']} clients")
        job = replace(job, suite=suite.model_copy(update=part))
    return job, lambda name, root: dataset


def is_complete(job: RunSpec) -> bool:
    """Whether the result is there and will do; of several processes the first one looks for all."""
    return join_process_group(job.engine).broadcast_object(job.path.is_file() and not job.force)


def execute(job: RunSpec, load: Callable[[str, Path], Dataset] = load_dataset) -> Result:
    """Run a job, or read its result if it is complete already.

    Args:
        load: gives the suite's data set, if it is needed.

    Raises:
        UserError: something the person can mend.
        Undefined: the method has no meaning on this suite; the reason is kept in a file.
        Diverged: a client's parameters left the finite numbers.
    """
    first = join_process_group(job.engine).is_rank_zero
    if not first:
        job = replace(job, sinks=(), say=lambda message: None)
    if is_complete(job):
        result = read_result(job.path)
        code = [plugin.source for plugin in result.method.plugins]
        changed = code != [plugin.source for plugin in job.method.described.plugins] and all(code)
        state = "complete, but its method's code has changed since" if changed else "complete"
        job.say(f"{job.path} is {state}; --force computes it again")
        return result
    if job.checkpoint.is_file() and not job.resume:
        job.say(f"{job.title}: starts over; --resume would go on from its checkpoint")
    dataset = load(job.suite.dataset, job.data_root)
    try:
        result = _played(job, dataset)
    except Undefined as error:
        if first:
            job.checkpoint.unlink(missing_ok=True)
            write_atomically(skip_path(job.path), skipped(job, str(error)).canonical().encode())
        raise
    if first:
        job.checkpoint.unlink(missing_ok=True)
        skip_path(job.path).unlink(missing_ok=True)
    return result


def _played(job: RunSpec, dataset: Dataset) -> Result:
    """Play the job's rounds, tell the sinks, write the result."""
    run, state = prepare(job, dataset)
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
        path=str(job.path),
    )
    run.hooks.listen("run_started", info=info)
    state = run_rounds(run, state)
    result = build_result(job, run, state, evaluate_newcomers(run, state))
    if join_process_group(job.engine).is_rank_zero:
        write_atomically(job.path, result.canonical().encode())
    run.hooks.listen("run_finished", result=result, path=str(job.path))
    return result
