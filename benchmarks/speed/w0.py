"""W0: the local training of the main job, a tiny network and tiny clients, against a loop."""

from __future__ import annotations

from .interleaved import Row
from .part import PartRequest, compare, flbench_program, floor_program
from .workload import Workload

TITLE = "W0: a 64-64-10 perceptron, 10 clients of 11 samples, 5 epochs in batches of 10"
GOAL = "at most 1.1 times as long as the floor, one client after the other"


def run(request: PartRequest) -> list[Row]:
    """Measure one process; a round is 100 optimiser steps."""
    work = Workload(
        model="mlp", shape=(1, 8, 8), clients=10, samples=11, epochs=5, batch=10, lr=0.05
    )
    programs = [
        flbench_program(work, request, executor="sequential", accelerator="cpu"),
        floor_program(work),
    ]
    return compare(programs, 5 if request.quick else 200, request)
