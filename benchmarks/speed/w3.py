"""W3: the cross-evaluation of an influence probe against plain forward passes.

The probe evaluates N models on the samples of N clients. For one block of models at a time, its
rate is compared with that of the bare network over the same samples, in batches of the size that
was the fastest in a trial just before.
"""

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

TITLE = "W3: cross-evaluation of N models on N clients, 30 samples each"
GOAL = "at least 0.9 of the rate of plain forward passes at the best batch size"
SIZES = (32, 64, 128, 256, 512, 1024, 2048)


def run(request: PartRequest) -> list[Row]:
    """LeNet-5 at N = 100, ResNet-18 at N = 20; each in a process of its own."""
    works = [("lenet5", 100, 20), ("resnet18", 20, 4)]
    if request.quick:
        works = [("lenet5", 8, 4)]
    rows: list[Row] = []
    for model, clients, blocks in works:
        request.say(f"{model}, N = {clients}")
        command = [sys.executable, "-m", __name__, model, str(clients), str(blocks)]
        text = subprocess.run(
            [*command, str(request.folder)],
            env=single_thread_environment(),
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        rows.append(json.loads(text))
    return rows


def probe(model: str, clients: int, blocks: int, folder: Path) -> Row:
    """Measure one row; the models are evaluated in `blocks` blocks."""
    from flbench.engine.cross_evaluation import cross_evaluate
    from flbench.engine.options import EngineOptions
    from flbench.run.setup import prepare

    work = Workload(model=model, clients=clients, cohort=clients, samples=60)
    spec = run_spec(work, folder, EngineOptions(accelerator="cpu"), validation=0.5)
    run, state = prepare(spec, dataset(work))
    workspace, samples = run.executor.workspace, run.executor.samples
    everybody = torch.arange(clients)
    models = state.models[:1].repeat(clients, 1)
    pooled = samples.x[torch.cat(list(samples.splits["validation"]))]

    def plain(size: int, times: int) -> float:
        """Seconds of `times` passes of the bare network over all samples."""
        began = time.perf_counter()
        with torch.inference_mode():
            for _ in range(times):
                for part in pooled.split(size):
                    workspace.module.net(part)
        return time.perf_counter() - began

    workspace.module.eval()
    plain(SIZES[0], 1)
    tried = {size: min(plain(size, 1) for _ in range(2)) for size in SIZES}
    best = min(tried, key=lambda size: tried[size])
    bare, evaluated = [], []
    for block in models.chunk(blocks):
        bare.append(plain(best, len(block)))
        began = time.perf_counter()
        cross_evaluate(workspace, block, samples, "validation", everybody)
        evaluated.append(time.perf_counter() - began)
    seen = len(pooled) * clients
    return {
        "model": model,
        "N": clients,
        "samples": seen,
        "seconds": round(sum(evaluated), 3),
        "rate": round(seen / sum(evaluated)),
        "plain_rate": round(seen / sum(bare)),
        "best_batch": best,
        **paired_ratios("share", bare, evaluated),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, count, pieces, where = sys.argv[1:]
    print(json.dumps(probe(name, int(count), int(pieces), Path(where))))
