"""From a job to a result on disk: load the data set, play the run, write it down."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from flbench.assembly import prepare
from flbench.dataset import Dataset
from flbench.engine.ledger import DIRECTIONS
from flbench.job import Job
from flbench.metrics import clustering_error
from flbench.orchestrator import Run, play
from flbench.registry import find
from flbench.results import (
    Clients,
    Result,
    RunInfo,
    read_result,
    write_atomically,
)
from flbench.state import State

SELECTION = ("selection_error", "selection_false_positives", "selection_false_negatives")


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
    """Wrong and missing members per client, where rows overlap."""
    chosen = state.membership.weights
    if chosen is None or groups is None:
        return dict.fromkeys(SELECTION)
    truth = (groups[:, None] == groups).numpy()
    quality = clustering_error(truth, (chosen[state.membership.home] > 0).numpy())
    return {name: quality[name.removeprefix("selection_")] for name in SELECTION}
