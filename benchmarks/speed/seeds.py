"""Four seeds of the main job in the same lanes, against one client and one seed after the other."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .interleaved import Row, paired_ratios
from .part import PartRequest
from .startup import seconds_until, spread

TITLE = (
    "Seeds: `flbench run -p pfedlia -s noisy-noniid --seeds 4` in lanes (`ratio`: as many times as"
    " fast as one client after the other)"
)
GOAL = "with networks of linear layers, training 10 times as fast and the whole command 4 times"
COMMAND = ("run", "-p", "pfedlia", "-s", "noisy-noniid", "--seeds", "4")
QUICK = (*COMMAND, "--rounds", "5", "--set", "warmup=1", "--set", "probe_epochs=1")
EXECUTORS = ("sequential", "vectorised")


def run(request: PartRequest) -> list[Row]:
    """Measure both executors alternately, with each network."""
    times, command = (1, QUICK) if request.quick else (3, COMMAND)
    rows: list[Row] = []
    for model in ("mlp", "logistic-regression"):
        whole: dict[str, list[float]] = {name: [] for name in EXECUTORS}
        training: dict[str, list[float]] = {name: [] for name in EXECUTORS}
        for turn in range(times):
            for executor in EXECUTORS:
                request.say(f"{model} {executor}")
                out = request.folder / f"seeds-{model}-{executor}-{turn}"
                words = [*command, "--set", f"model={model}", "--executor", executor]
                words += ["--out", str(out)]
                whole[executor].append(seconds_until([sys.executable, "-m", "flbench", *words], ""))
                training[executor].append(seconds_of_training(out))
        for part, spent in (("whole command", whole), ("training", training)):
            pair: list[Row] = [
                {"model": model, "part": part, "executor": name, **spread("seconds", spent[name])}
                for name in EXECUTORS
            ]
            pair[1] |= paired_ratios("ratio", spent[EXECUTORS[0]], spent[EXECUTORS[1]])
            rows += [{**row, "times": times} for row in pair]
    return rows


def seconds_of_training(out: Path) -> float:
    """Seconds that the runs of a folder have trained, all together."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in out.rglob("seed-*.json")]
    return float(sum(file["seconds"]["train"] for file in files))
