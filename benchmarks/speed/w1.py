"""W1: a small network and many clients, against a hand-written loop and other frameworks."""

from __future__ import annotations

from .interleaved import Row
from .part import PartRequest, compare, flbench_program, floor_program, peer_programs
from .workload import Workload

TITLE = "W1: LeNet-5, 100 clients, 10 per round, 150 samples each, batches of 32"
GOAL = (
    "at most 1.05 times as long as the floor, the same rounds as a loop by hand, in one process"
    " and in two, and no longer than any other framework"
)


def run(request: PartRequest) -> list[Row]:
    """Measure one and five local epochs, in one process and in two."""
    rows: list[Row] = []
    for epochs, rounds in ((1, 30), (5, 12)):
        work = Workload(epochs=epochs)
        if request.quick:
            work, rounds = Workload(epochs=epochs, clients=10, cohort=4, samples=64), 2
        for processes in (1, 2):
            programs = [
                flbench_program(work, request, devices=processes, accelerator="cpu"),
                floor_program(work, processes),
                *peer_programs(work, request, processes, rounds, ("pfl", "flower")),
            ]
            rows += compare(programs, rounds, request, epochs=epochs, processes=processes)
    return rows
