"""Build the result of a run from its history, ledger and environment."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

from flbench.core.state import State
from flbench.engine.communication import DIRECTIONS
from flbench.engine.distributed import DistributedExecutor
from flbench.engine.process_group import ProcessGroup
from flbench.metrics import computed, flis_compat
from flbench.results.schema import Change, Clients, Result, ScoreMatrix, Skip, Unseen
from flbench.results.score_encoding import encode
from flbench.run.evaluation import selection_quality
from flbench.run.history import KeptScores
from flbench.run.rounds import Run
from flbench.run.spec import RunSpec
from flbench.toolbox.heterogeneity import mean_kld


def skipped(job: RunSpec, reason: str) -> Skip:
    """What is kept of a run that has no meaning."""
    suite = job.suite
    return Skip(
        suite={"name": suite.name, "paper": suite.paper, **suite.settings()},
        suite_hash=suite.hash(),
        dataset=suite.dataset,
        method=job.method.described,
        reason=reason,
    )


def build_result(job: RunSpec, run: Run, state: State, unseen: Unseen | None = None) -> Result:
    """The result of a finished run."""
    history, suite = run.history, job.suite
    groups = None if run.groups is None else run.groups.tolist()
    shown = history.shown(suite.headline)
    sizes = {name: run.executor.samples.sizes(name).tolist() for name in ("train", "validation")}
    newcomers = None if unseen is None else unseen.accuracies()
    is_text = run.held_out.y.ndim > 1
    outcome = history.outcome(suite.headline, groups, suite.target, newcomers, is_text)
    summary = {**computed(outcome), **history.measured_in_run(suite.headline)}
    cost, parameters = summary.get("megabits_to_target"), run.context.layout.parameters
    moved = torch.stack(list(run.ledger.per_client.values())).sum(dim=0)
    return Result(
        suite={"name": suite.name, "paper": suite.paper, **suite.settings()},
        dataset=suite.dataset,
        method=job.method.described,
        seed=job.seed,
        fingerprint=run.marks,
        summary={
            **summary,
            **selection_quality(state.membership, run.groups, run.context.label_counts),
            **({} if cost is None else {"megabits_to_target_flis": flis_compat(cost, parameters)}),
            "kld": mean_kld(run.context.label_counts.numpy()),
        },
        curves=history.curves,
        clients=Clients(
            train=sizes["train"],
            validation=shown.validation_tested,
            test=shown.tested,
            correct=shown.correct,
            loss=[round(loss, 6) for loss in shown.loss],
            group=groups,
            bytes=moved.tolist(),
            labels=_labels(run),
        ),
        unseen=unseen,
        membership=[Change(**change) for change in history.changes()],
        scores=None if history.scores is None else _encoded(history.scores),
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


def _encoded(scores: KeptScores) -> ScoreMatrix:
    """A score matrix as the file holds it."""
    cells, low, high = encode(scores.values.numpy())
    about = {name: value for name, value in vars(scores).items() if name != "values"}
    return ScoreMatrix(**about, low=low, high=high, cells=cells)


def _labels(run: Run) -> list[dict[int, int]] | None:
    """Training samples of each client by label."""
    if run.held_out.y.ndim > 1:
        return None
    counts: list[list[int]] = run.context.label_counts[: run.suite.training_clients].tolist()
    return [{label: count for label, count in enumerate(row) if count} for row in counts]


def _computed_by(job: RunSpec, run: Run) -> dict[str, str]:
    """The executor, the number of processes and the precision."""
    executor = run.executor.inner if isinstance(run.executor, DistributedExecutor) else run.executor
    return {
        "executor": type(executor).__name__.lower(),
        "ranks": str(ProcessGroup.of(run.executor.workspace.fabric).size),
        "precision": job.engine.precision,
        "compile": "yes" if job.engine.compile else "no",
    }
