"""Lanes: the clients of a round trained at once against one after the other."""

from __future__ import annotations

from .interleaved import Row
from .part import PartRequest, compare, flbench_program
from .workload import Workload

TITLE = (
    "Lanes: clients trained at once, against one after the other (`ratio`: as many times as long)"
)
GOAL = (
    "a tenth of the time for a perceptron in cohorts of 40 or more, and at most 0.7 for LeNet-5 in"
    " batches of 10"
)


def run(request: PartRequest) -> list[Row]:
    """Whole rounds of a 64-64-10 perceptron on clients of 11 samples, and of LeNet-5."""
    works = [
        Workload(
            model="mlp", shape=(1, 8, 8), clients=cohort, cohort=cohort, samples=11, epochs=5,
            batch=4, lr=0.05, momentum=0.0,
        )
        for cohort in ((10,) if request.quick else (10, 40, 100))
    ]  # fmt: skip
    pairs = [(work, 3 if request.quick else 60) for work in works]
    pairs.append((Workload(clients=10, batch=10), 2 if request.quick else 10))
    rows: list[Row] = []
    for work, rounds in pairs:
        programs = [
            flbench_program(work, request, name, executor=name, accelerator="cpu")
            for name in ("sequential", "vectorised")
        ]
        for row in compare(
            programs, rounds, request, inverse=True, model=work.model, cohort=work.cohort
        ):
            model, cohort = row.pop("model"), row.pop("cohort")
            row.pop("steps", None)  # counted from optimisers, which lanes do not call
            rows.append({"model": model, "cohort": cohort, "executor": row.pop("program"), **row})
    return rows
