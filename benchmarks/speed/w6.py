"""W6: on an accelerator, clients side by side against one after the other, and a loop by hand."""

from __future__ import annotations

import torch

from .part import Asked, compare, floor, ours
from .race import Row
from .work import Work

TITLE = "W6: W1 on a CUDA device, cohorts of 10 and 100"
GOAL = "vectorised at least 10 times as fast as sequential in cohorts of 100"


def run(asked: Asked) -> list[Row]:
    """Two cohorts; on the CPU nothing is run."""
    if not torch.cuda.is_available():
        return [{"note": "not run: no CUDA device"}]
    rows: list[Row] = []
    for cohort in (10, 100):
        work = Work(cohort=cohort)
        programs = [
            ours(work, asked, executor, executor=executor, accelerator="cuda")
            for executor in ("vectorised", "sequential")
        ]
        rounds = 3 if asked.quick else 10
        rows += compare([*programs, floor(work, 1, "cuda")], rounds, asked, cohort=cohort)
    return rows
