"""Four seeds of the main job in lanes, in one process and in two workers.

Of `flbench run`, what the time went into: the parts that result files have, and all else: start-up,
imports, the other hooks, checkpoints, result files. How much faster the whole command could get if
lanes trained in no time is the last row of a network.
"""

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
IN_TURN, IN_LANES = list(WAYS)[:2]
WHOLE, TRAINING = "whole command", "training"
PARTS = {
    TRAINING: ("train",),
    "evaluation": ("evaluate",),
    "scores and groups": ("score", "cluster"),
}
"""Parts of a command, and their names in result files."""


def run(request: PartRequest) -> list[Row]:
    """Measure all ways alternately, with each network."""
    times, cells = (1, QUICK) if request.quick else (7, CELLS)
    rows: list[Row] = []
    for model in ("mlp", "logistic-regression"):
        spent: dict[str, dict[str, list[float]]] = {WHOLE: {name: [] for name in WAYS}}
        for turn in range(times):
            for number, (name, words) in enumerate(WAYS.items()):
                request.say(f"{model}: {name}")
                out = request.folder / f"seeds-{model}-{number}-{turn}"
                asked = [*words, *cells, "--set", f"model={model}", "--out", str(out)]
                whole = seconds_until([sys.executable, "-m", "flbench", *asked], "")
                spent[WHOLE][name].append(whole)
                if name in (IN_TURN, IN_LANES):
                    for part, seconds in seconds_of_parts(out, whole).items():
                        spent.setdefault(part, {}).setdefault(name, []).append(seconds)
        for part, ways in spent.items():
            for name, some in ways.items():
                in_turn = None if name == IN_TURN else ways[IN_TURN]
                rows.append(row_of(model, part, name, some, in_turn))
        pairs = zip(spent[WHOLE][IN_LANES], spent[TRAINING][IN_LANES], strict=True)
        left = [seconds - trained for seconds, trained in pairs]
        rows.append(row_of(model, "whole without training", IN_LANES, left, spent[WHOLE][IN_TURN]))
    return rows


def row_of(
    model: str, part: str, command: str, seconds: list[float], in_turn: list[float] | None
) -> Row:
    """A row of the table; with the ratio to one client after the other, if it is not that."""
    row: Row = {"model": model, "part": part, "command": command, "times": len(seconds)}
    ratio = {} if in_turn is None else paired_ratios("ratio", in_turn, seconds)
    return row | spread("seconds", seconds) | ratio


def seconds_of_parts(out: Path, whole: float) -> dict[str, float]:
    """Seconds that the runs of a folder took for each of PARTS, all together, and the rest."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in out.rglob("seed-*.json")]
    parts = {
        part: sum(float(file["seconds"].get(name, 0)) for file in files for name in names)
        for part, names in PARTS.items()
    }
    return parts | {"all else": whole - sum(parts.values())}
