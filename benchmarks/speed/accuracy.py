"""Accuracy with each option of the engine: the same runs with and without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

from .interleaved import Row, single_thread_environment
from .part import PartRequest

TITLE = "Accuracy under the options: `noisy-noniid` on digits, mean over seeds"
GOAL = "the same accuracy within the spread of seeds"
OPTIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "--precision bf16-mixed": ("--precision", "bf16-mixed"),
    "--compile": ("--compile",),
    "--executor vectorised": ("--executor", "vectorised"),
}


def run(request: PartRequest) -> list[Row]:
    """Return a row per method and option."""
    methods, seeds = (["fedavg"], 2) if request.quick else (["fedavg", "pfedlia"], 4)
    rounds = ["--rounds", "2"] if request.quick else []
    found: dict[tuple[str, str], list[float]] = {}
    for number, (option, words) in enumerate(OPTIONS.items()):
        request.say(option)
        out = request.folder / f"accuracy-{number}"
        command = ["run", "-p", ",".join(methods), "-s", "noisy-noniid", "--seeds", str(seeds)]
        subprocess.run(
            [sys.executable, "-m", "flbench", *command, *rounds, *words, "--out", str(out)],
            env=single_thread_environment(),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for method in methods:
            files = sorted(out.glob(f"*/*/{method}/*/seed-*.json"))
            found[method, option] = [_accuracy(path) for path in files]
    return [
        {
            "method": method,
            "option": option,
            "seeds": len(values),
            "accuracy": round(mean(values), 4),
            "std": round(stdev(values), 4),
            "more_than_none": round(mean(values) - mean(found[method, "none"]), 4),
        }
        for (method, option), values in sorted(found.items(), key=lambda item: item[0][0])
    ]


def _accuracy(path: Path) -> float:
    summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
    return float(summary["accuracy_mean"])
