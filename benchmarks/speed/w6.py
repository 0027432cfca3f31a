"""W6: on a CUDA device, clients in lanes against clients one by one.

All is measured in one process, one program after the other: a device is often lent for minutes,
of which starting a process for each program would take most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

from flbench.engine.cross_evaluation import cross_evaluate
from flbench.engine.lanes.evaluation import TOGETHER
from flbench.engine.options import EngineOptions
from flbench.run.rounds import run_rounds
from flbench.run.setup import prepare

from .interleaved import Row
from .part import PartRequest
from .personal import seconds_of
from .workload import Workload, dataset, run_spec

TITLE = "W6: W1 on a CUDA device, cohorts of 10 and 100, and ResNet-18"
GOAL = (
    "lanes at least 50 times as fast as one by one with 100 clients; a round of 10 clients in 1 ms;"
    " ResNet-18 faster in lanes than one by one"
)
WARM = 10
"""Rounds of lanes before they are measured, in which their steps are recorded and captured."""
LANES, ALONE = "vectorised", "sequential"


@dataclass(frozen=True)
class Measured:
    """Rounds of a run.

    Attributes:
        seconds: of each round that was measured.
        first: seconds of the first round.
        device: seconds of a round in which the device computes, summed over its kernels.
        kernels: that a round launches.
        peak_mb: most memory of the device that tensors took, MiB.
    """

    seconds: list[float]
    first: float
    device: float | None = None
    kernels: int | None = None
    peak_mb: float | None = None


def run(request: PartRequest) -> list[Row]:
    """Measure two cohort sizes and a large network; without a CUDA device nothing is measured."""
    if not torch.cuda.is_available():
        return [{"note": "not run: no CUDA device"}]
    small = Workload()
    large = replace(small, model="resnet18", clients=20)
    rows: list[Row] = []
    for title, work in (
        ("LeNet-5, 10 clients", small),
        ("LeNet-5, 100 clients", replace(small, cohort=100)),
        ("ResNet-18, 10 clients", large),
    ):
        rows += compared(request, work, title, "cuda")
    rows += evaluated(request, large, "cuda")
    return rows + cross_evaluated(request, replace(small, clients=64, samples=60), "cuda")


def compared(request: PartRequest, work: Workload, title: str, accelerator: str) -> list[Row]:
    """Lanes and clients one by one on a workload, in both precisions."""
    rows: list[Row] = []
    alone = 0.0
    for name, executor, precision in (
        ("one by one", ALONE, "32-true"),
        ("lanes", LANES, "32-true"),
        ("one by one, bfloat16", ALONE, "bf16-mixed"),
        ("lanes, bfloat16", LANES, "bf16-mixed"),
    ):
        request.say(f"{title}: {name}")
        found = play(request, work, EngineOptions(executor, accelerator, precision=precision))
        seconds = median(found.seconds)
        alone = alone or seconds
        rows.append(
            {
                "workload": title,
                "program": name,
                "seconds": round(seconds, 5),
                "times_as_fast": round(alone / seconds, 2),
                "first": round(found.first, 3),
                "kernels_seconds": None if found.device is None else round(found.device, 5),
                "kernels": found.kernels,
                "device_mb": found.peak_mb,
            }
        )
    return rows


def evaluated(request: PartRequest, work: Workload, accelerator: str) -> list[Row]:
    """A model for each client, evaluated on half of its samples: one by one, and in lanes."""
    title = f"evaluation of {work.clients} models, each on {work.samples // 2} samples"
    request.say(title)
    ways = seconds_of(work, accelerator, 10, request.folder)
    alone = median(ways[0])
    return [
        {
            "workload": title,
            "program": name,
            "seconds": round(median(seconds), 5),
            "times_as_fast": round(alone / median(seconds), 2),
        }
        for name, seconds in zip(("one by one", "lanes"), ways, strict=True)
    ]


def cross_evaluated(request: PartRequest, work: Workload, accelerator: str) -> list[Row]:
    """As many models as clients, each evaluated on the samples of all: one by one, and together."""
    spec = run_spec(work, request.folder, EngineOptions(ALONE, accelerator))
    run, _ = prepare(spec, dataset(work))
    space, start = run.executor.workspace, run.context.initial
    clients = torch.arange(work.clients)
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(work.clients, len(start), generator=draw).to(start)
    title = f"cross-evaluation of {work.clients} models, {work.clients * work.samples:,} samples"
    rows: list[Row] = []
    for at_once in (1, TOGETHER["cuda"]):
        seconds: list[float] = []
        with patch.dict(TOGETHER, {space.device.type: at_once}):
            for _ in range(4):  # the first one is not measured
                began = perf_counter()
                cross_evaluate(
                    space, start + 0.01 * noise, run.executor.samples, "train", clients
                ).cpu()
                seconds.append(perf_counter() - began)
        rows.append(
            {
                "workload": title,
                "program": "one by one" if at_once == 1 else f"{at_once} at once",
                "seconds": round(median(seconds[1:]), 5),
                "first": round(seconds[0], 3),
            }
        )
    for row in rows:
        row["times_as_fast"] = round(rows[0]["seconds"] / row["seconds"], 2)
    return rows


def play(request: PartRequest, work: Workload, options: EngineOptions) -> Measured:
    """Play rounds of a workload in this process."""
    run, state = prepare(run_spec(work, request.folder, options), dataset(work))
    run.checkpoint = None
    seconds: list[float] = []
    warm, measured = (1, 2) if options.executor == ALONE or request.quick else (WARM, 10)
    on_device = run.executor.workspace.device.type == "cuda"
    if on_device:
        torch.cuda.reset_peak_memory_stats()
    for last in range(1, warm + measured + 1):
        began = perf_counter()
        state = run_rounds(run, state, last)
        if on_device:
            torch.cuda.synchronize()
        seconds.append(perf_counter() - began)
    if not on_device:
        return Measured(seconds[warm:], seconds[0])
    peak = round(torch.cuda.max_memory_allocated() / 2**20)
    if options.executor == ALONE:
        return Measured(seconds[warm:], seconds[0], peak_mb=peak)
    with torch.profiler.profile() as profiled:
        run_rounds(run, state, state.round + 1)
        torch.cuda.synchronize()
    events: list[Any] = [
        event for event in profiled.key_averages() if str(event.device_type).endswith("CUDA")
    ]
    device = sum(event.self_device_time_total for event in events) / 1e6
    kernels = sum(event.count for event in events)
    return Measured(seconds[warm:], seconds[0], device, kernels, peak)
