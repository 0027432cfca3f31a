"""Each option of the engine against none: precision, compilation, executor, memory format."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional as F

from .interleaved import Row, paired_ratios, single_thread_environment
from .part import PartRequest, compare, flbench_program
from .workload import Workload

TITLE = "Options, each against none, rounds in turn (`ratio`: as many times as long as without)"
GOAL = "no option is on by default that costs time"
OPTIONS: dict[str, dict[str, object]] = {
    "none": {"executor": "sequential"},
    "--precision bf16-mixed": {"executor": "sequential", "precision": "bf16-mixed"},
    "--compile": {"executor": "sequential", "compile": True},
    "--executor vectorised": {"executor": "vectorised"},
    "--portable": {"executor": "sequential", "portable": True},
}


def run(request: PartRequest) -> list[Row]:
    """Every option on three networks; then steps of two networks in both memory formats."""
    works = [
        (Workload(model="mlp", shape=(1, 8, 8), samples=24, batch=4, clients=50), 12),
        (Workload(), 12),
        (Workload(model="resnet18", clients=4, cohort=4, samples=64), 3),
    ]
    formats = [("lenet5", 50, 20), ("resnet18", 4, 10)]
    if request.quick:
        works, formats = [(Workload(clients=4, cohort=2, samples=32), 2)], [("lenet5", 5, 4)]
    rows: list[Row] = []
    for work, rounds in works:
        programs = [
            flbench_program(work, request, name, accelerator="cpu", **engine)
            for name, engine in OPTIONS.items()
        ]
        for row in compare(programs, rounds, request, inverse=True, model=work.model):
            rows.append({"model": row.pop("model"), "option": row.pop("program"), **row})
    for model, steps, pairs in formats:
        request.say(f"{model}: channels last")
        command = [sys.executable, "-m", __name__, model, str(steps), str(pairs)]
        done = subprocess.run(
            command, env=single_thread_environment(), check=True, stdout=subprocess.PIPE
        )
        rows.append(json.loads(done.stdout))
    return rows


def channels_last(model: str, steps: int, pairs: int) -> Row:
    """StepCounter of fused SGD on batches of 32 in both memory formats, alternately."""
    work = Workload(model=model)
    usual, last = (
        _steps(work, format) for format in (torch.contiguous_format, torch.channels_last)
    )
    usual(steps)
    last(steps)
    one: list[float] = []
    other: list[float] = []
    for number in range(pairs):
        for play, into in ((usual, one), (last, other)) if number % 2 else (
            (last, other), (usual, one)
        ):  # fmt: skip
            into.append(play(steps))
    return {
        "model": model,
        "option": f"channels last, {steps} steps",
        "seconds": round(median(other), 5),
        **paired_ratios("ratio", other, one),
        "rounds": pairs,
        "note": f"without: {median(one):.4f} s",
    }


def _steps(work: Workload, format: torch.memory_format) -> Callable[[int], float]:
    """A function that trains a network for some steps and returns the seconds."""
    from .floor import network

    net = network(work).train().to(memory_format=format)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=work.lr, momentum=work.momentum, fused=True)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(work.batch, *work.shape, generator=draw).to(memory_format=format)
    y = torch.randint(work.classes, (work.batch,), generator=draw)

    def play(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - began

    return play


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, count, times = sys.argv[1:]
    print(json.dumps(channels_last(name, int(count), int(times))))
