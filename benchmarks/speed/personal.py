"""Personal models: each evaluated on the samples of its client, in lanes against one by one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

from .interleaved import Row, paired_ratios, single_thread_environment
from .part import PartRequest
from .workload import Workload, dataset, run_spec

TITLE = (
    "Personal models: each on the samples of its client, in lanes against one by one (`ratio`: as"
    " many times as long)"
)
GOAL = "at most a fifth of the time for a perceptron, 100 clients and ten samples each"


def run(request: PartRequest) -> list[Row]:
    """A 64-64-10 perceptron, clients of few and of more samples; a process for each."""
    works = [(20, 10)] if request.quick else [(100, 10), (100, 40), (100, 200), (1000, 10)]
    rows: list[Row] = []
    for clients, samples in works:
        request.say(f"{clients} clients of {samples} samples")
        command = [sys.executable, "-m", __name__, str(clients), str(samples)]
        text = subprocess.run(
            [*command, "3" if request.quick else "40", str(request.folder)],
            env=single_thread_environment(),
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        rows += json.loads(text)
    return rows


def probe(clients: int, samples: int, times: int, folder: Path) -> list[Row]:
    """Evaluate the clients' models on two splits of so many samples, both ways in turn."""
    work = Workload(
        model="mlp", shape=(1, 8, 8), clients=clients, cohort=clients, samples=2 * samples,
        batch=10, lr=0.05, momentum=0.0,
    )  # fmt: skip
    alone, lanes = seconds_of(work, "cpu", times, folder)
    about = {"clients": clients, "samples": samples, "times": times}
    return [
        {**about, "evaluated": "one by one", "seconds": round(median(alone), 5)},
        {**about, "evaluated": "lanes", "seconds": round(median(lanes), 5),
         **paired_ratios("ratio", lanes, alone)},
    ]  # fmt: skip


def seconds_of(
    work: Workload, accelerator: str, times: int, folder: Path
) -> tuple[list[float], list[float]]:
    """How long evaluating a model for each client takes, each on half of its client's samples.

    Returns:
        Seconds one by one, and in lanes.
    """
    from flbench.core.client_module import LocalWork
    from flbench.core.state import Personal
    from flbench.engine.lanes.evaluation import OWN
    from flbench.engine.options import EngineOptions
    from flbench.federation.federation import Samples
    from flbench.run.evaluation import evaluate
    from flbench.run.setup import prepare

    engine = EngineOptions("vectorised", accelerator)
    run, state = prepare(run_spec(work, folder, engine, validation=0.5), dataset(work))
    executor, visible = run.executor, run.executor.samples
    draw = torch.Generator().manual_seed(0)
    noise = 0.01 * torch.randn(work.clients, state.models.shape[1], generator=draw)
    start = state.models[:1].clone()
    personal = Personal(params=start + noise.to(start))
    held_out = Samples(visible.x, visible.y, {"test": visible.splits["validation"]})
    everybody = torch.arange(work.clients)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for again in range(times + 1):
        for lanes, found in seconds.items():
            executor.workspace.compared = {OWN} if lanes else None
            began = time.perf_counter()
            evaluate(executor, personal, state, held_out, everybody, lambda stage: LocalWork())
            if again:  # the first time gathers the samples
                found.append(time.perf_counter() - began)
            assert (executor.workspace.compared is not None) is lanes, "lanes failed"
    return seconds[False], seconds[True]


if __name__ == "__main__":
    torch.set_num_threads(1)
    one, other, count, where = sys.argv[1:]
    print(json.dumps(probe(int(one), int(other), int(count), Path(where))))
