"""Weights & Biases: curves during a run, and all of the result file at its end.

Online if the user is logged in, otherwise offline without a question (WANDB_MODE has priority). A
run's id is computed from suite, data set, method, parameters and seed, so that `flbench sync` finds
the run that it pushed before. The leaderboard does not use it.
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

Identity = tuple[str, str, str, str, int]
"""Suite, data set, method, fingerprint (the name of the result file's folder) and seed of a run."""


class WandB:
    """Weights & Biases: online when logged in, offline otherwise."""

    def __init__(self) -> None:
        self._run: wandb.Run | None = None
        self._log_rounds = True

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Open the run, or resume it.

        An offline log cannot be resumed, so a run that is resumed offline is logged at its end; and
        so is one of which W&B lacks earlier rounds, as they cannot be added after later ones.
        """
        unfinished, self._run = self._run, None
        if unfinished is not None:
            unfinished.finish(exit_code=1)
        identity = info.suite, info.dataset, info.method, info.fingerprint, info.seed
        suite = {"name": info.suite, **info.settings}
        config = {"method": info.method, "params": dict(info.params), "suite": suite}
        self._run = begin(identity, config)
        has_all = not self._run.offline and self._run.starting_step >= info.first
        self._log_rounds = info.first == 1 or has_all

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Log the round's numbers."""
        if self._run is not None and self._log_rounds:
            log(self._run, record.round, row_of(record))

    @hookimpl
    def run_finished(self, result: Result, path: str) -> None:
        """Publish the result and close the run."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            if not self._log_rounds:
                replay(run, result)
            publish(run, result, Path(path))
        finally:
            run.finish()


def run_id(suite: str, dataset: str, method: str, fingerprint: str, seed: int) -> str:
    """The id of a run in W&B: 16 hex digits.

    Example:
        >>> run_id("toy", "digits", "fedavg", "0123abcd", 4)
        '6d3f1df15a17fefe'
    """
    text = "\n".join((suite, dataset, method, fingerprint, str(seed)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(result: Result) -> Identity:
    """The identity of a result's run."""
    name, method = result.suite["name"], result.method.name
    return name, result.dataset, method, result.fingerprint.config, result.seed


def begin(
    identity: Identity, config: dict[str, Any], project: str | None = None, offline: bool = False
) -> wandb.Run:
    """Open a run, or resume it if W&B has it.

    Runs of a suite and data set are one group, a method is a job type, fingerprints are tags.

    Args:
        config: the known configuration of the run.
        project: default is WANDB_PROJECT, else "flbench".
        offline: write a local folder, even if the user is logged in.

    Raises:
        wandb.Error: W&B cannot be reached, or refuses the run.
    """
    import wandb

    suite, dataset, method, fingerprint, seed = identity
    return wandb.init(
        project=project or os.environ.get("WANDB_PROJECT") or "flbench",
        id=run_id(*identity),
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
    """Log a round unless W&B has it; logged rounds cannot be changed."""
    if round_ >= run.starting_step:
        run.log(row, step=round_)


def replay(run: wandb.Run, result: Result) -> None:
    """Log all rounds of a result, as they are logged during a run."""
    for number, row in enumerate(rows_of(result), start=1):
        log(run, number, row)


def push(result: Result, path: Path, project: str | None = None, offline: bool = False) -> str:
    """Push a result and the file it was read from to W&B, as `begin` says; a short message."""
    run = begin(identity(result), {}, project, offline)
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
    """Publish a result without its curves: config, tables, figures, summary, file.

    Tables and figures are logged in the last round. If W&B has that round, they are replaced in the
    summary, so that nothing is logged twice.
    """
    import wandb

    marks = result.fingerprint
    run.tags = (marks.config, marks.suite)
    if result.warnings:
        run.notes = "\n".join(result.warnings)
    config: Any = run.config  # its method `update` has no annotations
    config.update(config_of(result), allow_val_change=True)
    media: dict[str, Any] = {}
    for name, columns, rows in tables(result):
        media[f"tables/{name}"] = wandb.Table(columns=columns, data=rows)
    for name, svg in figures(result):
        media[f"figures/{name}"] = wandb.Html(svg.decode(), inject=False)
    last = len(rows_of(result))
    if last >= run.starting_step:
        run.log(media, step=last)
    else:
        run.summary.update(media)
    summary = {name: value for name, value in result.summary.items() if value is not None}
    run.summary.update({**summary, "bytes": result.bytes, "seconds": result.seconds})
    *parts, seed = identity(result)
    name = re.sub(r"[^\w.-]+", "-", "-".join((*map(str, parts), f"seed{seed}")))[-128:]
    artifact = wandb.Artifact(name, type="result")
    artifact.add_file(str(path))
    run.log_artifact(artifact)


def _mode() -> Literal["online", "offline"] | None:
    """The mode: online if logged in, else offline; None if WANDB_MODE is set."""
    import wandb

    if os.environ.get("WANDB_MODE"):
        return None
    try:
        return "online" if wandb.login(prompt=False) else "offline"
    except wandb.Error:
        return "offline"  # the credentials are not valid, or there is no prompt
