"""Weights & Biases: curves while a run is played, and at its end all that its result file holds.

Online when the person is logged in, offline without a question otherwise (WANDB_MODE overrules).
A run's id follows from what it is, so that `flbench sync` finds the run it pushed before. The
leaderboard never depends on it.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flbench.core.hookspecs import hookimpl
from flbench.results.events import RoundRecord, RunInfo
from flbench.results.schema import Result
from flbench.sinks.rows import row_of, rows_of
from flbench.sinks.wandb_tables import config_of, figures, tables

if TYPE_CHECKING:
    import wandb


class WandB:
    """Weights & Biases: online when logged in, offline otherwise."""

    def __init__(self) -> None:
        self._run: wandb.Run | None = None
        self._live = True

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Open the run, or go on with it.

        An offline log cannot be gone on with: what goes on offline is written whole at its end.
        """
        died, self._run = self._run, None
        if died is not None:
            died.finish(exit_code=1)
        self._run = begin(
            info.suite,
            info.dataset,
            info.method,
            info.fingerprint,
            info.seed,
            config={
                "method": info.method,
                "params": dict(info.params),
                "suite": {"name": info.suite, **info.settings},
            },
        )
        self._live = info.first == 1 or not self._run.offline

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Log the round's numbers."""
        if self._run is not None and self._live:
            log(self._run, record.round, row_of(record))

    @hookimpl
    def run_finished(self, result: Result, path: str) -> None:
        """Publish the result and close the run."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            if not self._live:
                replay(run, result)
            publish(run, result, Path(path))
        finally:
            run.finish()


def run_id(suite: str, dataset: str, method: str, fingerprint: str, seed: int) -> str:
    """W&B's name of a run: 16 hex digits.

    Args:
        fingerprint: of suite, method and parameters, as the result file's folder is called.

    Example:
        >>> run_id("toy", "digits", "fedavg", "0123abcd", 4)
        '6d3f1df15a17fefe'
    """
    text = "\n".join((suite, dataset, method, fingerprint, str(seed)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(result: Result) -> tuple[str, str, str, str, int]:
    """What a run is, as `run_id` and `begin` take it."""
    name, method = result.suite["name"], result.method.name
    return name, result.dataset, method, result.fingerprint.config, result.seed


def begin(
    suite: str,
    dataset: str,
    method: str,
    fingerprint: str,
    seed: int,
    *,
    config: dict[str, Any],
    project: str | None = None,
    offline: bool = False,
) -> wandb.Run:
    """Open a run, or the one that W&B has already.

    Runs of a suite and data set are one group, a method is a job type, fingerprints are tags.

    Args:
        config: what is known of the run so far.
        project: default is WANDB_PROJECT, else "flbench".
        offline: write a folder for later, whoever is logged in.

    Raises:
        wandb.Error: W&B cannot be reached, or refuses.
    """
    import wandb

    return wandb.init(
        project=project or os.environ.get("WANDB_PROJECT") or "flbench",
        id=run_id(suite, dataset, method, fingerprint, seed),
        resume="allow",
        name=f"{method}-seed{seed}",
        group=f"{suite}/{dataset}",
        job_type=method,
        tags=[fingerprint],
        config={**config, "dataset": dataset, "seed": seed},
        mode="offline" if offline else _mode(),
        reinit="finish_previous",
        settings=wandb.Settings(silent=True, init_timeout=30),
    )


def log(run: wandb.Run, round_: int, row: dict[str, Any]) -> None:
    """Log a round, unless W&B has it already: what is logged there cannot be changed."""
    if round_ >= run.starting_step:
        run.log(row, step=round_)


def replay(run: wandb.Run, result: Result) -> None:
    """Log all rounds of a result, as they were logged while they were played."""
    for number, row in enumerate(rows_of(result), start=1):
        log(run, number, row)


def push(result: Result, path: Path, project: str | None = None, offline: bool = False) -> str:
    """Push a result file to W&B, and say in a few words what became of it.

    Args:
        path: the file the result was read from.
        project, offline: see `begin`.

    Raises:
        wandb.Error: W&B cannot be reached, or refuses.
    """
    run = begin(*identity(result), config={}, project=project, offline=offline)
    try:
        replay(run, result)
        publish(run, result, path)
    finally:
        run.finish()
    if run.settings.mode == "disabled":
        return "not sent, because WANDB_MODE says disabled"
    if run.offline:
        folder = Path(run.dir).parent
        return f"written to {folder}; push it with: wandb sync {folder}"
    return f"{'brought up to date' if run.resumed else 'sent'}: {run.url}"


def publish(run: wandb.Run, result: Result, path: Path) -> None:
    """Publish all that a result holds but its curves: config, tables, figures, summary, file.

    Tables and figures belong to the last round; if W&B has that round already, they are replaced in
    the summary, so that nothing is there twice.
    """
    import wandb

    marks = result.fingerprint
    run.tags = (marks.config, marks.suite)
    if result.warnings:
        run.notes = "\n".join(result.warnings)
    config: Any = run.config  # its update carries no annotations
    config.update(config_of(result), allow_val_change=True)
    told: dict[str, Any] = {
        f"tables/{name}": wandb.Table(columns=columns, data=rows)
        for name, columns, rows in tables(result)
    }
    told |= {
        f"figures/{name}": wandb.Html(svg.decode(), inject=False) for name, svg in figures(result)
    }
    rounds = len(rows_of(result))
    if rounds >= run.starting_step:
        run.log(told, step=rounds)
    else:
        run.summary.update(told)
    run.summary.update(
        {
            **{name: value for name, value in result.summary.items() if value is not None},
            "bytes": result.bytes,
            "seconds": result.seconds,
        }
    )
    *parts, seed = identity(result)
    name = re.sub(r"[^\w.-]+", "-", "-".join((*map(str, parts), f"seed{seed}")))[-128:]
    artifact = wandb.Artifact(name, type="result")
    artifact.add_file(str(path))
    run.log_artifact(artifact)


def _mode() -> Literal["online", "offline"] | None:
    """Online when logged in, offline otherwise; None leaves it to WANDB_MODE."""
    import wandb

    if os.environ.get("WANDB_MODE"):
        return None
    try:
        return "online" if wandb.login(prompt=False) else "offline"
    except wandb.Error:
        return "offline"  # credentials that cannot be used, or no way to ask
