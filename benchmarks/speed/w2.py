"""W2: a large network; against a loop by hand."""

from __future__ import annotations

from .part import Asked, compare, floor, ours
from .race import Row
from .work import Work

TITLE = "W2: ResNet-18, 10 clients, all of them in every round, 150 samples each, batches of 32"
GOAL = "at most 1.05 times as long as the floor, in one process and in two"


def run(asked: Asked) -> list[Row]:
    """One process and two."""
    work, rounds = Work(model="resnet18", clients=10), 5
    if asked.quick:
        work, rounds = Work(model="resnet18", clients=2, cohort=2, samples=34), 2
    rows: list[Row] = []
    for processes in (1, 2):
        programs = [
            ours(work, asked, devices=processes, accelerator="cpu"),
            floor(work, processes),
        ]
        rows += compare(programs, rounds, asked, processes=processes)
    return rows
