"""W9: the shape of FLUTE's benchmark on Federated EMNIST, against frameworks that can be had."""

from __future__ import annotations

from dataclasses import replace

from .interleaved import Row
from .part import PartRequest, compare_with_peers
from .workload import Workload

TITLE = "W9: the shape of FLUTE's benchmark on Federated EMNIST: CNN, 3,400 clients, 10 per round"
GOAL = "no longer than any other framework, in one process and in two"
ABOUT = (
    "One epoch in batches of 20, SGD without momentum at a rate of 0.1, 62 classes, as in [its"
    " benchmark](https://github.com/microsoft/msrflute#benchmarking). FLUTE itself is in no package"
    " index and needs torch 1.11, so it is not measured: other frameworks have its shape. 100"
    " random images per client in place of Federated EMNIST, whose clients have 198 on average:"
    " half of them, so that all programs fit in memory. pfl does not shuffle a client's samples,"
    " the others do. BlazeFL as in W7."
)
WORK = Workload(
    model="fedopt-cnn", shape=(1, 28, 28), classes=62, clients=3400, samples=100, batch=20,
    lr=0.1, momentum=0.0,
)  # fmt: skip


def run(request: PartRequest) -> list[Row]:
    """Measure one process and two."""
    work = WORK
    if request.quick:
        work = replace(WORK, clients=20, cohort=4)
    names = ("pfl", "flower", "blazefl")
    return compare_with_peers(work, 2 if request.quick else 20, request, names)
