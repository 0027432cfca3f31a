"""Correlation of model discrepancy with label divergence of clients (DC-PFL, section III).

Liu, Huang, He, Cao, arXiv 2508.01580 (2025): over the first rounds, in which all clients share one
model, the discrepancy of two clients' trained models correlates with the Kullback-Leibler
divergence of their labels; the paper prints .895 for 30 clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from annotated_types import Ge

from flbench.federation.loading import load_dataset
from flbench.run.composition import compose
from flbench.run.rounds import run_rounds
from flbench.run.runner import resolve_dataset
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import load_suite
from flbench.sweeps.request import RunRequest
from flbench.sweeps.study import StudyTable, correlations
from flbench.toolbox.heterogeneity import kld

AtLeastThree = Annotated[int, Ge(3)]


def run(
    request: RunRequest,
    say: Callable[[str], None],
    suite: str = "primary-secondary-mid",
    clients: AtLeastThree = 30,
    rounds: Annotated[int, Ge(2)] = 5,
) -> StudyTable:
    """Correlation of model discrepancy with label divergence, with two ways to scale (DC-PFL).

    Args:
        request: seeds and data set.
        say: shows a line of progress.
        suite: name of the suite.
        clients: number of clients.
        rounds: the discrepancy is averaged over these first rounds.

    Returns:
        A row per seed and scale: linear and rank correlation over all pairs of clients, and the
        pairs.
    """
    rows: StudyTable = []
    for seed in request.seeds:
        for scale in ("model", "tensor"):
            overrides = {"clients": clients, "rounds": rounds, "participation": 1.0}
            job = RunSpec(
                suite=load_suite(suite, request.dataset, overrides),
                method=compose("dc-pfl", {"t_start": rounds, "scale": scale}),
                seed=seed,
                data_root=request.root,
                out=request.out,
                engine=request.engine,
                say=say,
            )
            job, load = resolve_dataset(job, load_dataset)
            run, state = prepare(job, load(job.suite.dataset, job.data_root))
            run.checkpoint = None
            state = run_rounds(run, state)
            upper = np.triu_indices(run.context.clients, 1)
            discrepancy = state.memory["dc-pfl.discrepancy"].numpy()[upper]
            labels = kld(run.context.label_counts.numpy())[upper]
            rows.append(
                {
                    "seed": seed,
                    "dataset": job.suite.dataset,
                    "scale": scale,
                    **correlations(labels, discrepancy),
                    "kld": [round(float(value), 4) for value in labels],
                    "discrepancy": [round(float(value), 6) for value in discrepancy],
                }
            )
    return rows
