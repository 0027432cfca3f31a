"""W2: a large network, against a hand-written loop."""

from __future__ import annotations

from .interleaved import Row
from .part import PartRequest, compare, flbench_program, floor_program
from .workload import Workload

TITLE = "W2: ResNet-18, 10 clients, all of them in every round, 150 samples each, batches of 32"
GOAL = "at most 1.05 times as long as the floor, in one process and in two"


def run(request: PartRequest) -> list[Row]:
    """Measure one process and two."""
    work, rounds = Workload(model="resnet18", clients=10), 5
    if request.quick:
        work, rounds = Workload(model="resnet18", clients=2, cohort=2, samples=34), 2
    rows: list[Row] = []
    for processes in (1, 2):
        programs = [
            flbench_program(work, request, devices=processes, accelerator="cpu"),
            floor_program(work, processes),
        ]
        rows += compare(programs, rounds, request, processes=processes)
    return rows
