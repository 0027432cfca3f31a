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
    """Whole rounds of a 64-64-10 perceptron on clients of 11 samples, and of LeNet-5.

    LeNet-5 has images as of Fashion-MNIST, with which the suites of FLIS train it in batches of 10,
    also in batches of 32, and as of CIFAR-10.
    """
    works = [
        Workload(
            model="mlp", shape=(1, 8, 8), clients=cohort, cohort=cohort, samples=11, epochs=5,
            batch=4, lr=0.05, momentum=0.0,
        )
        for cohort in ((10,) if request.quick else (10, 40, 100))
    ]  # fmt: skip
    pairs = [(work, 3 if request.quick else 60) for work in works]
    for shape, batch in (((1, 28, 28), 10), ((1, 28, 28), 32), ((3, 32, 32), 10)):
        lenet = Workload(shape=shape, clients=10, batch=batch)
        pairs.append((lenet, 2 if request.quick else 30))
    rows: list[Row] = []
    for work, rounds in pairs:
        programs = [
            flbench_program(work, request, name, executor=name, accelerator="cpu")
            for name in ("sequential", "vectorised")
        ]
        size = f" {'x'.join(map(str, work.shape))}, batches of {work.batch}"
        label = work.model if work.model == "mlp" else work.model + size
        for row in compare(
            programs, rounds, request, inverse=True, model=label, cohort=work.cohort
        ):
            model, cohort = row.pop("model"), row.pop("cohort")
            row.pop("steps", None)  # counted from optimisers, which lanes do not call
            rows.append({"model": model, "cohort": cohort, "executor": row.pop("program"), **row})
    return rows
