"""W4: 1,000 to 100,000 clients, of whom ten take part in a round."""

from __future__ import annotations

from math import prod

from .interleaved import Row
from .part import PartRequest, compare, flbench_program
from .workload import Workload

TITLE = (
    "W4: 1,000 to 100,000 clients with 10 samples each, 10 per round, LeNet-5 on 1x16x16"
    " (`ratio`: as many times as long as with the fewest)"
)
GOAL = (
    "rounds at most 1.1 times as long as with 1,000 clients; at most 200 bytes beyond its samples"
    " for a client that was never sampled"
)


def run(request: PartRequest) -> list[Row]:
    """Measure one model for all clients (fedavg) and one for each (local-only)."""
    counts, rounds = ((1_000, 10_000, 100_000), 20) if not request.quick else ((20, 40), 2)
    rows: list[Row] = []
    for method in ("fedavg", "local-only"):
        works = {
            str(clients): Workload(shape=(1, 16, 16), clients=clients, samples=10, method=method)
            for clients in counts
        }
        programs = [
            flbench_program(work, request, name, accelerator="cpu") for name, work in works.items()
        ]
        for row in compare(programs, rounds, request, inverse=True, method=method):
            work = works[row.pop("program")]
            data = work.clients * (work.samples + 1) * prod(work.shape) * 4 / 2**20
            about = {"method": row.pop("method"), "clients": work.clients}
            rows.append({**about, **row, "data_mb": round(data, 1)})
    return rows
