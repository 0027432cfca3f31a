"""Methods that compare every client with every other, at 300 to 3,000 clients."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

from flbench.engine.processes.own_process import defer_imports

from .interleaved import Row, last_error_line, single_thread_environment
from .part import PartRequest
from .workload import Workload, dataset, run_spec

TITLE = (
    "Everybody with everybody: clients of 10 samples, 64-64-10 perceptron, two rounds in which all"
    " clients train (`exponent`: of the time of comparing, against the row before)"
)
GOAL = "comparing grows with the square of the clients at most, and so does its memory"
METHODS: dict[str, dict[str, Any]] = {
    "pfedlia": {"warmup": 1, "probe_epochs": 1},
    "fedc2i": {},
    "flis-dc": {},
    "clusterfl": {},
    "cfl": {},
}
"""Methods, with settings that let two rounds compare."""
TOO_SHORT = 0.05
"""Seconds of comparing below which an exponent would say nothing."""
LONGEST = 600.0
"""Seconds of comparing; what the exponent lets expect to take longer is not run."""


def run(request: PartRequest) -> list[Row]:
    """Every method in a process of its own, with more and more clients."""
    counts = (20, 40) if request.quick else (300, 1_000, 3_000)
    rows: list[Row] = []
    for method, settings in METHODS.items():
        before: Row | None = None
        for clients in counts:
            expected = seconds_expected(before, clients)
            if expected > LONGEST:
                note = f"not run: {expected:.0f} s of comparing are expected"
                rows.append({"method": method, "clients": clients, "note": note})
                break
            request.say(f"{method}, {clients} clients")
            command = [sys.executable, "-m", __name__, method, json.dumps(settings), str(clients)]
            errors = request.folder / "errors"
            with errors.open("w", encoding="utf-8") as stderr:
                done = subprocess.run(
                    [*command, str(request.folder / f"{method}-{clients}")],
                    env=single_thread_environment(), stdout=subprocess.PIPE, stderr=stderr,
                )  # fmt: skip
            row: Row = {"method": method, "clients": clients}
            if done.returncode:
                rows.append({**row, "note": f"not run: {last_error_line(errors)}"})
                break
            row |= json.loads(done.stdout)
            if before is not None and min(row["comparing"], before["comparing"]) > TOO_SHORT:
                grown = log(row["comparing"] / before["comparing"])
                row["exponent"] = round(grown / log(clients / before["clients"]), 2)
            rows.append(row)
            before = row
    return rows


def seconds_expected(row: Row | None, clients: int) -> float:
    """Seconds of comparing with more clients, if they grow as they did up to a row.

    Example:
        >>> seconds_expected({"clients": 10, "comparing": 2.0, "exponent": 2.0}, 30)
        18.0
    """
    if row is None or "exponent" not in row:
        return 0.0
    return float(row["comparing"] * (clients / row["clients"]) ** row["exponent"])


def main() -> None:
    """Run one method; print seconds and the peak of memory as JSON."""
    defer_imports()  # as `flbench run` does: the memory is that of a run
    import sklearn.cluster  # imports are not comparing
    import sklearn.metrics  # noqa: F401

    from flbench.engine.options import EngineOptions
    from flbench.run.composition import compose
    from flbench.run.runner import execute

    method, settings, clients, folder = sys.argv[1:]
    work = Workload(
        model="mlp", shape=(1, 8, 8), clients=int(clients), cohort=int(clients), samples=10,
        batch=10, lr=0.05,
    )  # fmt: skip
    engine = EngineOptions(accelerator="cpu", executor="vectorised")
    spec = run_spec(work, Path(folder), engine, validation=0.2)
    suite = spec.suite.model_copy(update={"rounds": 2, "eval_every": 2, "server_samples": 20})
    spec = replace(spec, suite=suite, method=compose(method, json.loads(settings)))
    seconds = execute(spec, lambda name, root: dataset(work)).seconds
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parts = {name: seconds.get(name, 0.0) for name in ("train", "evaluate", "aggregate")}
    comparing = seconds.get("score", 0.0) + seconds.get("cluster", 0.0)
    found = {"total": seconds["total"], "comparing": comparing, **parts}
    print(json.dumps({**{k: round(v, 3) for k, v in found.items()}, "peak_mb": round(peak)}))


if __name__ == "__main__":
    main()
