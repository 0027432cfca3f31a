"""W7: the benchmark of BlazeFL, against BlazeFL."""

from __future__ import annotations

from dataclasses import replace

from .interleaved import Row
from .part import PartRequest, compare_with_peers
from .workload import Workload

TITLE = "W7: the benchmark of BlazeFL: LeNet-5, 100 clients, all of them, 500 samples, 5 epochs"
GOAL = "no longer than BlazeFL, in one process and in two"
ABOUT = (
    "Batches of 50 and SGD without momentum, as in [its benchmark]"
    "(https://github.com/kitsuyaazuma/blazefl/tree/main/benchmarks), whose five rounds are the"
    " first and the four that are timed. Random images in place of CIFAR-10. What its benchmark"
    " does beside the rounds is left out for all: it evaluates the model on 10,000 images after"
    " every round, reads and augments images one by one, keeps random states on disk. To its"
    " advantage SGD is fused and its processes are forked, not spawned. They end with each round:"
    " their memory is not in the table. Its threads need a Python without the global interpreter"
    " lock (GIL) to run at once; the note says which Python there was."
)
WORK = Workload(cohort=100, samples=500, epochs=5, batch=50, momentum=0.0)


def run(request: PartRequest) -> list[Row]:
    """Measure one process and two; BlazeFL in two threads as well."""
    work = WORK
    if request.quick:
        work = replace(WORK, clients=4, cohort=4, samples=60, epochs=1)
    return compare_with_peers(work, 2 if request.quick else 4, request, ("blazefl",))
