"""W2: a large network, against a hand-written loop."""

from __future__ import annotations

from .interleaved import Row
from .part import PartRequest, compare, flbench_program, floor_program
from .workload import Workload

TITLE = "W2: ResNet-18, 10 clients, all of them in every round, 150 samples each, batches of 32"
GOAL = (
    "at most 1.05 times as long as the floor, in one process and in two; peak memory at most 1.25"
    " times the floor's"
)
SMALL = 2**27
"""Bytes of models in memory, where uploads shall be in a file."""


def run(request: PartRequest) -> list[Row]:
    """Measure one process and two."""
    work, rounds = Workload(model="resnet18", clients=10), 5
    if request.quick:
        work, rounds = Workload(model="resnet18", clients=2, cohort=2, samples=34), 2
    rows: list[Row] = []
    for processes in (1, 2):
        programs = [
            flbench_program(work, request, devices=processes, accelerator="cpu"),
            flbench_program(
                work,
                request,
                "flbench, uploads in a file",
                devices=processes,
                accelerator="cpu",
                bank_budget=SMALL,
            ),
            floor_program(work, processes),
        ]
        rows += compare(programs, rounds, request, processes=processes)
    return rows
