"""W3: the cross-evaluation of an influence probe against plain forward passes.

The probe judges N models on the samples of N clients. Some models at a time, its rate is compared
with that of the bare network over the same samples in batches of the best size, which is sought
just before.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from .part import Asked
from .race import Row, paired, quiet
from .work import Work, dataset, job

TITLE = "W3: cross-evaluation of N models on N clients, 30 samples each"
GOAL = "at least 0.9 of the rate of plain forward passes at the best batch size"
SIZES = (32, 64, 128, 256, 512, 1024, 2048)


def run(asked: Asked) -> list[Row]:
    """LeNet-5 at N = 100, ResNet-18 at N = 20; each in a process of its own."""
    works = [("lenet5", 100, 20), ("resnet18", 20, 4)]
    if asked.quick:
        works = [("lenet5", 8, 4)]
    rows: list[Row] = []
    for model, clients, blocks in works:
        asked.say(f"{model}, N = {clients}")
        command = [sys.executable, "-m", __name__, model, str(clients), str(blocks)]
        text = subprocess.run(
            [*command, str(asked.folder)], env=quiet(), check=True, stdout=subprocess.PIPE
        ).stdout
        rows.append(json.loads(text))
    return rows


def probe(model: str, clients: int, blocks: int, folder: Path) -> Row:
    """One row; the models are judged in `blocks` blocks."""
    from flbench.engine.cross_evaluation import cross_evaluate
    from flbench.engine.options import EngineOptions
    from flbench.run.setup import prepare

    work = Work(model=model, clients=clients, cohort=clients, samples=60)
    asked = job(work, folder, EngineOptions(accelerator="cpu"), validation=0.5)
    run, state = prepare(asked, dataset(work))
    space, samples = run.executor.workspace, run.executor.samples
    everybody = torch.arange(clients)
    models = state.models[:1].repeat(clients, 1)
    pooled = samples.x[torch.cat(list(samples.splits["validation"]))]

    def plain(size: int, times: int) -> float:
        """Seconds of the bare network over all samples, `times` over."""
        began = time.perf_counter()
        with torch.inference_mode():
            for _ in range(times):
                for part in pooled.split(size):
                    space.module.net(part)
        return time.perf_counter() - began

    space.module.eval()
    plain(SIZES[0], 1)
    tried = {size: min(plain(size, 1) for _ in range(2)) for size in SIZES}
    best = min(tried, key=lambda size: tried[size])
    bare, judged = [], []
    for block in models.chunk(blocks):
        bare.append(plain(best, len(block)))
        began = time.perf_counter()
        cross_evaluate(space, block, samples, "validation", everybody)
        judged.append(time.perf_counter() - began)
    seen = len(pooled) * clients
    return {
        "model": model,
        "N": clients,
        "samples": seen,
        "seconds": round(sum(judged), 3),
        "rate": round(seen / sum(judged)),
        "plain_rate": round(seen / sum(bare)),
        "best_batch": best,
        **paired("share", bare, judged),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, count, pieces, where = sys.argv[1:]
    print(json.dumps(probe(name, int(count), int(pieces), Path(where))))
