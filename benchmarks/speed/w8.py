"""W8: the CIFAR-10 benchmark of pfl-research, against pfl and BlazeFL."""

from __future__ import annotations

from dataclasses import replace

from .interleaved import Row
from .part import PartRequest, compare_with_peers
from .workload import Workload

TITLE = "W8: the CIFAR-10 benchmark of pfl-research: its CNN, 1,000 clients, 50 per round"
GOAL = "no longer than any other framework, in one process and in two"
ABOUT = (
    "50 samples per client, one epoch, batches of 10, SGD without momentum at a rate of 0.1, as in"
    " [its benchmark](https://github.com/apple/pfl-research/tree/develop/benchmarks/"
    "image_classification). Random images in place of CIFAR-10. Its evaluation after every tenth"
    " round is left out for all. To its advantage SGD is fused. pfl does not shuffle a client's"
    " samples, the others do. BlazeFL as in W7."
)
WORK = Workload(
    model="fedopt-cnn", clients=1000, cohort=50, samples=50, batch=10, lr=0.1, momentum=0.0
)


def run(request: PartRequest) -> list[Row]:
    """Measure one process and two."""
    work = WORK
    if request.quick:
        work = replace(WORK, clients=20, cohort=4)
    return compare_with_peers(work, 2 if request.quick else 10, request, ("pfl", "blazefl"))
