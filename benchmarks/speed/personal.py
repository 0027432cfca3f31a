"""Personal models: each evaluated on the samples of its client, in lanes against one by one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

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
    from flbench.core.client import LocalWork
    from flbench.core.state import Personal
    from flbench.engine.options import EngineOptions
    from flbench.federation.federation import Samples
    from flbench.run.evaluation import evaluate
    from flbench.run.setup import prepare

    work = Workload(
        model="mlp", shape=(1, 8, 8), clients=clients, cohort=clients, samples=2 * samples,
        batch=10, lr=0.05, momentum=0.0,
    )  # fmt: skip
    engine = EngineOptions("vectorised", "cpu")
    run, state = prepare(run_spec(work, folder, engine, validation=0.5), dataset(work))
    executor, visible = run.executor, run.executor.samples
    noise = 0.01 * torch.randn(clients, state.models.shape[1])
    personal = Personal(params=state.models[:1].clone() + noise)
    held_out = Samples(visible.x, visible.y, {"test": visible.splits["validation"]})
    everybody = torch.arange(clients)
    seconds: dict[str, list[float]] = {"one by one": [], "lanes": []}
    for again in range(times + 1):
        for name, found in seconds.items():
            executor.workspace.evaluates_lanes = name == "lanes"
            began = time.perf_counter()
            evaluate(executor, personal, state, held_out, everybody, lambda stage: LocalWork())
            if again:  # the first time gathers the samples
                found.append(time.perf_counter() - began)
    alone, lanes = seconds.values()
    about = {"clients": clients, "samples": samples, "times": times}
    median = {name: round(sorted(found)[times // 2], 5) for name, found in seconds.items()}
    return [
        {**about, "evaluated": "one by one", "seconds": median["one by one"]},
        {**about, "evaluated": "lanes", "seconds": median["lanes"],
         **paired_ratios("ratio", lanes, alone)},
    ]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    one, other, count, where = sys.argv[1:]
    print(json.dumps(probe(int(one), int(other), int(count), Path(where))))
