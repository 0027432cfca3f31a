"""Four seeds of the main job in the same lanes, in one process and in two workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .interleaved import Row, paired_ratios
from .part import PartRequest
from .startup import seconds_until, spread

TITLE = (
    "Seeds: four seeds of pfedlia on noisy-noniid in lanes (`ratio`: as many times as fast as one"
    " client after the other by `flbench run`)"
)
GOAL = "with networks of linear layers, training 10 times as fast and the whole command 4 times"
CELLS = ("-p", "pfedlia", "-s", "noisy-noniid", "--seeds", "4")
QUICK = (*CELLS, "--rounds", "5", "--set", "warmup=1", "--set", "probe_epochs=1")
SWEEP = ("sweep", "--workers", "2")
WAYS = {
    "flbench run": ("run", "--executor", "sequential"),
    "flbench run --executor vectorised": ("run", "--executor", "vectorised"),
    "flbench sweep --workers 2": (*SWEEP, "--executor", "sequential"),
    "flbench sweep --workers 2 --executor vectorised": (*SWEEP, "--executor", "vectorised"),
}


def run(request: PartRequest) -> list[Row]:
    """Measure all ways alternately, with each network."""
    times, cells = (1, QUICK) if request.quick else (3, CELLS)
    rows: list[Row] = []
    for model in ("mlp", "logistic-regression"):
        whole: dict[str, list[float]] = {name: [] for name in WAYS}
        training: dict[str, list[float]] = {name: [] for name in list(WAYS)[:2]}
        for turn in range(times):
            for number, (name, words) in enumerate(WAYS.items()):
                request.say(f"{model}: {name}")
                out = request.folder / f"seeds-{model}-{number}-{turn}"
                asked = [*words, *cells, "--set", f"model={model}", "--out", str(out)]
                whole[name].append(seconds_until([sys.executable, "-m", "flbench", *asked], ""))
                if name in training:
                    training[name].append(seconds_of_training(out))
        for part, spent in (("whole command", whole), ("training", training)):
            first = next(iter(spent.values()))
            for name, seconds in spent.items():
                row: Row = {"model": model, "part": part, "command": name, "times": times}
                ratio = {} if seconds is first else paired_ratios("ratio", first, seconds)
                rows.append(row | spread("seconds", seconds) | ratio)
    return rows


def seconds_of_training(out: Path) -> float:
    """Seconds that the runs of a folder have trained, all together."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in out.rglob("seed-*.json")]
    return float(sum(file["seconds"]["train"] for file in files))
