"""Build the result of a run from its history, ledger and environment."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from flbench.core.state import State
from flbench.core.targets import is_text, tokens_of
from flbench.engine.machine.processor import processor
from flbench.engine.processes.process_group import ProcessGroup
from flbench.errors import BadParameter
from flbench.metrics import computed, flis_compat
from flbench.results.schema import (
    MOST_LABELS,
    Change,
    ClientMetricValues,
    Clients,
    Energy,
    Own,
    Result,
    SavedFile,
    SavedKind,
    ScoreMatrix,
    Skip,
    SourceChange,
    Unseen,
    problem_text,
    unfit,
)
from flbench.results.score_encoding import encode
from flbench.run.composition import plugins_of
from flbench.run.evaluation import selection_quality
from flbench.run.history import KeptScores
from flbench.run.rounds import Run
from flbench.run.spec import RunSpec
from flbench.toolbox.heterogeneity import mean_kld

_version = cache(version)
"""The version of an installed package; its metadata are read once."""


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


def refuse_unfit(job: RunSpec) -> None:
    """Refuse a run that no result file could hold, before it begins.

    Raises:
        BadParameter: the first thing that does not fit.
    """
    suite = job.suite
    asked = [{"name": one.name, "params": one.params} for one in suite.metrics]
    unknown: dict[str, Any] = {"package": "", "higher_is_better": None, "values": []}
    parts = {
        "suite": {"name": suite.name, "paper": suite.paper, **suite.settings()},
        "dataset": suite.dataset,
        "method": job.method.described,
        "seed": job.seed,
        "client_metrics": {
            metric.label: {**one, **unknown}
            for metric, one in zip(suite.metrics, asked, strict=True)
        },
        "tuning": job.tuning,
    }
    for field, what in unfit(parts):
        raise BadParameter(f"no result file could hold this run: {problem_text(field, what)}")


def build_result(
    job: RunSpec,
    run: Run,
    state: State,
    unseen: Unseen | None = None,
    energy: Energy | None = None,
    saved: Mapping[SavedKind, SavedFile] | None = None,
) -> Result:
    """The result of a finished run."""
    history, suite = run.history, job.suite
    history.add_reads(run.hooks.read)  # newcomers were served after the last round
    found = _client_metrics(run)
    return Result(
        suite={"name": suite.name, "paper": suite.paper, **suite.settings()},
        dataset=suite.dataset,
        task=None if run.task == "classes" else run.task,
        method=job.method.described,
        seed=job.seed,
        fingerprint=run.marks,
        summary=_summary(run, state, unseen),
        curves=history.curves,
        clients=_clients(run),
        client_metrics=found or None,
        unseen=unseen,
        own=_own(run),
        membership=[Change(**change) for change in history.changes()],
        scores=None if history.scores is None else _encoded(history.scores),
        tuning=job.tuning,
        source_changes=[SourceChange(**change) for change in history.source_changes] or None,
        suite_plugins=plugins_of(suite) or None,
        reads=history.reads,
        saved=dict(saved) if saved else None,
        bytes={way: dict(items) for way, items in run.ledger.totals.items()},
        notes=history.notes,
        warnings=history.warnings + run.services.drain()[1] + _undefined(run, found),
        seconds={part: round(spent, 3) for part, spent in run.services.seconds.items()},
        energy=energy,
        environment={
            "flbench": _version("flbench"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            **_computed_by(job, run),
            **run.origin.environment,
        },
    )


def _groups(run: Run) -> list[int] | None:
    """The true group of each client, if there are some."""
    return None if run.groups is None else run.groups.tolist()


def _summary(run: Run, state: State, unseen: Unseen | None) -> dict[str, Any]:
    """Metrics at the round that is reported, and of the whole run."""
    history, suite, context = run.history, run.suite, run.context
    outcome = history.outcome(
        suite.headline,
        _groups(run),
        suite.target,
        None if unseen is None else unseen.headline_values(run.task),
        is_text(run.held_out.y),
        suite.period_starts,
    )
    summary = {**computed(outcome), **history.measured_in_run(suite.headline)}
    summary |= selection_quality(state.membership, run.groups, context.counted)
    if (cost := summary.get("megabits_to_target")) is not None:
        summary["megabits_to_target_flis"] = flis_compat(cost, context.layout.parameters)
    if run.task == "classes":
        summary["kld"] = mean_kld(context.counted.numpy())
    return summary


def _clients(run: Run) -> Clients:
    """What is known of each client, at the round that is reported."""
    shown, sizes = run.history.shown(run.suite.headline), run.executor.samples.sizes
    moved = torch.stack(list(run.ledger.per_client.values())).sum(dim=0)
    return Clients(
        train=sizes("train").tolist(),
        validation=_validation(run, sizes("validation").tolist()),
        test=shown.tested,
        correct=shown.correct if run.task == "classes" else None,
        values=shown.values,
        loss=[round(loss, 6) for loss in shown.loss],
        group=_groups(run),
        bytes=moved.tolist(),
        labels=_labels(run),
    )


def _own(run: Run) -> Own | None:
    """How clients are judged with their own models, at the round that is reported."""
    shown = run.history.shown(run.suite.headline)
    if shown.own_trained is None:
        return None
    return Own(
        trained=shown.own_trained,
        test=shown.tested,
        correct=shown.own_correct,
        values=shown.own_values,
    )


def _client_metrics(run: Run) -> dict[str, ClientMetricValues]:
    """What was asked for beside accuracy, at the round that the summary reports."""
    measured = run.history.shown(run.suite.headline).client_metrics
    asked = {} if run.metrics is None else run.metrics.metrics
    return {
        label: ClientMetricValues(
            name=asked[label].name,
            params=dict(asked[label].params),
            package=asked[label].package,
            plugin=asked[label].plugin,
            higher_is_better=found.higher_is_better,
            values=list(found.values),
        )
        for label, found in measured.items()
        if label in asked
    }


def _undefined(run: Run, found: Mapping[str, ClientMetricValues]) -> list[str]:
    """What a person should know of metrics: for whom they are undefined, where they are missing."""
    lines: list[str] = []
    judged = run.suite.judged if run.judged is None else run.judged.tolist()
    headline = () if run.metrics is None or run.metrics.headline is None else run.metrics.labels[:1]
    values = dict.fromkeys(headline, run.history.shown(run.suite.headline).values)
    values |= {label: one.values for label, one in found.items()}
    for label in () if run.metrics is None else run.metrics.labels:
        if label not in values:
            shown = run.history.shown(run.suite.headline).round
            lines.append(f"{label} is not reported: it was not asked for yet in round {shown}")
            continue
        without = [client for client in judged if (values[label] or ())[client] is None]
        if without:
            ids = ", ".join(map(str, without[:10])) + (", ..." if len(without) > 10 else "")
            count = len(judged) - len(without)
            lines.append(
                f"{label} is undefined for clients {ids}: its mean counts {count} of {len(judged)}"
            )
    return lines


def _validation(run: Run, sizes: Sequence[int]) -> list[int]:
    """Validation samples of each client, for text their tokens; also of clients not judged."""
    shown = run.history.shown(run.suite.headline)
    tokens = tokens_of(run.held_out.y)
    pairs = zip(shown.tested, shown.validation_tested, sizes, strict=True)
    return [known if tested else size * tokens for tested, known, size in pairs]


def _encoded(scores: KeptScores) -> ScoreMatrix:
    """A score matrix as the file holds it."""
    cells, low, high = encode(scores.values.numpy())
    about = {name: value for name, value in vars(scores).items() if name != "values"}
    return ScoreMatrix(**about, low=low, high=high, cells=cells)


def _labels(run: Run) -> list[dict[int, int]] | None:
    """Training samples of each client by label; None for text, and where labels are too many."""
    if run.task != "classes" or is_text(run.held_out.y) or run.context.classes > MOST_LABELS:
        return None
    counts: list[list[int]] = run.context.counted[: run.suite.training_clients].tolist()
    return [{label: count for label, count in enumerate(row) if count} for row in counts]


def _computed_by(job: RunSpec, run: Run) -> dict[str, str]:
    """Device, processor, executor, number of processes and precision; see `environment_of`."""
    device = run.executor.workspace.device
    return {
        "device": str(device),
        "processor": processor(device),
        "executor": run.executor.name,
        "ranks": str(ProcessGroup.of(run.executor.workspace.fabric).size),
        "precision": job.engine.precision,
    }
