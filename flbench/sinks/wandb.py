"""Weights & Biases: curves, membership and score matrices, and the result file as an artifact.

Online when the person is logged in, offline without a question otherwise (WANDB_MODE overrules);
`wandb sync` pushes an offline run later. The leaderboard never depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flbench.hookspecs import hookimpl
from flbench.results import Result, RoundRecord, RunInfo
from flbench.state import State


class WandB:
    """Weights & Biases: online when logged in, offline otherwise."""

    def __init__(self) -> None:
        self._run: Any = None
        self._groups: list[int] | None = None
        self._labels: list[int] | None = None
        self._shown: set[str] = set()

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Open a run; its group is the suite and its name the method and seed."""
        import wandb

        self._groups, self._labels, self._shown = info.groups, None, set()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "flbench"),
            name=f"{info.method}-seed{info.seed}",
            group=f"{info.suite}/{info.dataset}",
            job_type=info.method,
            tags=[info.fingerprint],
            config={
                "method": info.method,
                "params": dict(info.params),
                "suite": dict(info.settings),
                "seed": info.seed,
            },
            mode=_mode(),
            reinit="finish_previous",
            settings=wandb.Settings(silent=True, init_timeout=30),
        )

    @hookimpl
    def round_finished(self, record: RoundRecord, state: State) -> None:
        """Log the round's numbers, and matrices and membership where they changed."""
        import wandb

        if self._run is None:
            return
        table: dict[str, Any] = {k: v for k, v in record.metrics.items() if v is not None}
        table |= {k: v for k, v in record.notes.items() if isinstance(v, (int, float))}
        if record.labels is not None and record.labels != self._labels:
            self._labels = record.labels
            truth: Sequence[int | None] = self._groups or [None] * len(record.labels)
            rows: list[list[Any]] = [
                [client, label, group]
                for client, (label, group) in enumerate(zip(record.labels, truth, strict=True))
            ]
            table["membership"] = wandb.Table(columns=["client", "label", "true group"], data=rows)
        for name, value in state.memory.items():
            square = value.dim() == 2 and value.shape[0] == value.shape[1] == len(
                state.membership.home
            )
            if square and name not in self._shown and bool(value.any()):
                self._shown.add(name)
                matrix = value.cpu().numpy()
                table[name] = wandb.Image(heat_map(matrix), caption=f"{name}, row = judging client")
                columns: list[str | int] = [str(client) for client in range(len(matrix))]
                table[f"{name} (table)"] = wandb.Table(columns=columns, data=matrix.tolist())
        self._run.log(table, step=record.round)

    @hookimpl
    def run_finished(self, result: Result, path: str) -> None:
        """Attach the result file and close the run."""
        import wandb

        if self._run is None:
            return
        self._run.summary.update({k: v for k, v in result.summary.items() if v is not None})
        name = f"{result.suite['name']}-{result.method.name}-seed{result.seed}".replace("+", "-")
        artifact = wandb.Artifact(name, type="result")
        artifact.add_file(path)
        self._run.log_artifact(artifact)
        self._run.finish()
        self._run = None


def heat_map(matrix: npt.NDArray[np.float64], cell: int = 4) -> npt.NDArray[np.uint8]:
    """A matrix as a picture: blue below zero, white at zero, red above; shape (n, m, 3), uint8.

    Args:
        matrix: shape (n, m); NaN is grey.
        cell: pixels a side per entry.
    """
    largest = float(np.nan_to_num(np.abs(matrix)).max()) or 1.0
    share = np.clip(np.nan_to_num(matrix) / largest, -1, 1)
    red, blue = 1 - share.clip(max=0) * -1, 1 - share.clip(min=0)
    picture = np.stack([red, np.minimum(red, blue), blue], axis=-1)
    picture[np.isnan(matrix)] = 0.5
    return (picture * 255).astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)


def _mode() -> Literal["online", "offline"] | None:
    """Online when logged in, offline otherwise; None leaves it to WANDB_MODE."""
    import wandb

    if os.environ.get("WANDB_MODE"):
        return None
    try:
        return "online" if wandb.login(prompt=False) else "offline"
    except wandb.Error:
        return "offline"  # credentials that cannot be used, or no way to ask
