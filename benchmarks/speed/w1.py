"""W1: small networks, many clients; against a loop by hand and other frameworks."""

from __future__ import annotations

from .part import Asked, compare, floor, others, ours
from .race import Row
from .work import Work

TITLE = "W1: LeNet-5, 100 clients, 10 per round, 150 samples each, batches of 32"
GOAL = (
    "at most 1.05 times as long as the floor, the same rounds as a loop by hand, in one process"
    " and in two, and no longer than any other framework"
)


def run(asked: Asked) -> list[Row]:
    """Local epochs times processes."""
    rows: list[Row] = []
    for epochs, rounds in ((1, 30), (5, 12)):
        work = Work(epochs=epochs)
        if asked.quick:
            work, rounds = Work(epochs=epochs, clients=10, cohort=4, samples=64), 2
        for processes in (1, 2):
            programs = [
                ours(work, asked, devices=processes, accelerator="cpu"),
                floor(work, processes),
                *others(work, asked, processes, rounds),
            ]
            rows += compare(programs, rounds, asked, epochs=epochs, processes=processes)
    return rows
