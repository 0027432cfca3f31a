"""W6: on a CUDA device, vectorised against sequential clients and a hand-written loop."""

from __future__ import annotations

import torch

from .interleaved import Row
from .part import PartRequest, compare, flbench_program, floor_program
from .workload import Workload

TITLE = "W6: W1 on a CUDA device, cohorts of 10 and 100"
GOAL = "vectorised at least 10 times as fast as sequential in cohorts of 100"


def run(request: PartRequest) -> list[Row]:
    """Measure two cohort sizes; without a CUDA device nothing is measured."""
    if not torch.cuda.is_available():
        return [{"note": "not run: no CUDA device"}]
    rows: list[Row] = []
    for cohort in (10, 100):
        work = Workload(cohort=cohort)
        programs = [
            flbench_program(work, request, executor, executor=executor, accelerator="cuda")
            for executor in ("vectorised", "sequential")
        ]
        rounds = 3 if request.quick else 10
        rows += compare([*programs, floor_program(work, 1, "cuda")], rounds, request, cohort=cohort)
    return rows
