"""W6: on a CUDA device, lanes against clients one by one and a hand-written loop."""

from __future__ import annotations

from dataclasses import replace

import torch

from .interleaved import Program, Row
from .part import PartRequest, compare, flbench_program, floor_program
from .workload import Workload

TITLE = "W6: W1 on a CUDA device, cohorts of 10 and 100, and ResNet-18"
GOAL = (
    "lanes at least 50 times as fast as one by one with 100 clients; a round of 10 clients in 1 ms;"
    " ResNet-18 faster in lanes than one by one"
)
WARM = 8
"""Rounds of lanes before they are measured, in which their steps are recorded and captured."""


def run(request: PartRequest) -> list[Row]:
    """Measure two cohort sizes and a large network; without a CUDA device nothing is measured."""
    if not torch.cuda.is_available():
        return [{"note": "not run: no CUDA device"}]
    small = Workload()
    large = replace(small, model="resnet18", clients=20)

    def program(work: Workload, name: str, executor: str, **engine: object) -> Program:
        engine = {"accelerator": "cuda", "executor": executor, **engine}
        made = flbench_program(work, request, name, **engine)
        return replace(made, warm=WARM) if executor == "vectorised" else made

    rows: list[Row] = []
    for title, work in (
        ("LeNet-5, 10 clients", small),
        ("LeNet-5, 100 clients", replace(small, cohort=100)),
        ("ResNet-18, 10 clients", large),
    ):
        programs = [
            program(work, "lanes", "vectorised"),
            program(work, "one by one", "sequential"),
            floor_program(work, 1, "cuda"),
        ]
        if work.cohort == 100 or work is large:
            programs.append(program(work, "lanes, bfloat16", "vectorised", precision="bf16-mixed"))
        rounds = 3 if request.quick else 6
        rows += compare(programs, rounds, request, inverse=True, workload=title)
    return rows
