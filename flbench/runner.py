"""From a job to a result on disk: load the data set, play the run, write it down."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flbench.assembly import prepare
from flbench.core.dataset import Dataset
from flbench.core.state import State
from flbench.engine.communication import DIRECTIONS
from flbench.engine.distributed import Sharded
from flbench.engine.fabric import meet
from flbench.engine.process_group import Ranks
from flbench.errors import MissingData, Undefined
from flbench.evaluation import selection_quality
from flbench.federation.loading import load_dataset as load_dataset
from flbench.job import Job
from flbench.joining import welcome
from flbench.metrics import flis_compat
from flbench.orchestrator import Run, play
from flbench.results.events import RunInfo
from flbench.results.files import read_result, skip_path, write_atomically
from flbench.results.schema import Change, Clients, Result, ScoreMatrix, Skip, Unseen
from flbench.toolbox.heterogeneity import mean_kld


def settle(
    job: Job, load: Callable[[str, Path], Dataset] = load_dataset
) -> tuple[Job, Callable[[str, Path], Dataset]]:
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
        twin = f"; its twin needs no files: --dataset {suite.twin}" if suite.twin else ""
        raise MissingData(f"{error}{twin}") from None
    if dataset.name != suite.dataset and dataset.name.startswith(f"{suite.dataset}["):
        there = suite.clients if dataset.domains is None else len(dataset.domains.unique())
        part = {"dataset": dataset.name, "clients": min(suite.clients, there)}
        job.say(f"{suite.name} runs on {dataset.name} with {part['clients']} clients")
        job = replace(job, suite=suite.model_copy(update=part))
    return job, lambda name, root: dataset


def is_complete(job: Job) -> bool:
    """Whether the result is there and will do; of several processes the first one looks for all."""
    return meet(job.engine).agree(job.path.is_file() and not job.force)


def run_job(job: Job, load: Callable[[str, Path], Dataset] = load_dataset) -> Result:
    """Run a job, or read its result if it is complete already.

    Args:
        load: gives the suite's data set, if it is needed.

    Raises:
        UserError: something the person can mend.
        Undefined: the method has no meaning on this suite; the reason is kept in a file.
        Diverged: a client's parameters left the finite numbers.
    """
    first = meet(job.engine).first
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


def skipped(job: Job, reason: str) -> Skip:
    """What is kept of a run that has no meaning."""
    suite = job.suite
    return Skip(
        suite={"name": suite.name, "paper": suite.paper, **suite.settings()},
        suite_hash=suite.hash(),
        dataset=suite.dataset,
        method=job.method.described,
        reason=reason,
    )


def _played(job: Job, dataset: Dataset) -> Result:
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
    state = play(run, state)
    result = conclude(job, run, state, welcome(run, state))
    if meet(job.engine).first:
        write_atomically(job.path, result.canonical().encode())
    run.hooks.listen("run_finished", result=result, path=str(job.path))
    return result


def conclude(job: Job, run: Run, state: State, unseen: Unseen | None = None) -> Result:
    """Everything the run leaves behind."""
    history, suite = run.history, job.suite
    groups = None if run.groups is None else run.groups.tolist()
    shown = history.shown(suite.headline)
    sizes = {name: run.executor.samples.sizes(name).tolist() for name in ("train", "validation")}
    summary = history.summary(suite.headline, groups, suite.training_clients, suite.target)
    moved = torch.stack(list(run.ledger.per_client.values())).sum(dim=0)
    return Result(
        suite={"name": suite.name, "paper": suite.paper, **suite.settings()},
        dataset=suite.dataset,
        method=job.method.described,
        seed=job.seed,
        fingerprint=run.marks,
        summary={
            **summary,
            **({"perplexity": _perplexity(shown.mean_loss())} if run.held_out.y.ndim > 1 else {}),
            **selection_quality(state.membership, run.groups, run.context.label_counts),
            **_as_flis_counts(summary, run.context.layout.parameters),
            "kld": mean_kld(run.context.label_counts.numpy()),
            **_unseen_quality(unseen),
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
            labels=_labels(run),
        ),
        unseen=unseen,
        membership=[Change(**change) for change in history.changes()],
        scores=None if history.scores is None else ScoreMatrix(**history.scores),
        tuning=job.tuning,
        bytes={way: dict(run.ledger.totals[way]) for way in DIRECTIONS},
        notes=history.notes,
        warnings=history.warnings + run.services.drain()[1],
        seconds={part: round(spent, 3) for part, spent in run.services.seconds.items()},
        environment={
            **{name: version(name) for name in ("flbench", "lightning", "numpy")},
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.machine(),
            "device": str(run.executor.workspace.device),
            **_computed_by(job, run),
            "threads": str(torch.get_num_threads()),
        },
    )


def _labels(run: Run) -> list[dict[int, int]] | None:
    """Training samples of each client by label."""
    if run.held_out.y.ndim > 1:
        return None
    counts: list[list[int]] = run.context.label_counts[: run.suite.training_clients].tolist()
    return [{label: count for label, count in enumerate(row) if count} for row in counts]


def _computed_by(job: Job, run: Run) -> dict[str, str]:
    """The executor, the number of processes and the precision."""
    executor = run.executor.inner if isinstance(run.executor, Sharded) else run.executor
    return {
        "executor": type(executor).__name__.lower(),
        "ranks": str(Ranks.of(run.executor.workspace.fabric).size),
        "precision": job.engine.precision,
        "compile": "yes" if job.engine.compile else "no",
    }


def _perplexity(loss: float) -> float | None:
    """Of text, the exponential of the mean loss; None where it is no number any more."""
    return float(np.exp(loss)) if loss < 700 else None


def _as_flis_counts(summary: Mapping[str, Any], parameters: int) -> dict[str, float]:
    """The cost of the target as FLIS's table counts it, where there is one."""
    cost = summary.get("megabits_to_target")
    return {} if cost is None else {"megabits_to_target_flis": flis_compat(cost, parameters)}


def _unseen_quality(unseen: Unseen | None) -> dict[str, float | None]:
    """Unweighted mean accuracy of the newcomers, as they came and after their local epochs."""
    if unseen is None:
        return {}
    return {
        name: float(np.mean(np.divide(correct, unseen.test)))
        for name, correct in (
            ("unseen_accuracy", unseen.correct),
            ("unseen_accuracy_tuned", unseen.correct_tuned),
        )
    }
