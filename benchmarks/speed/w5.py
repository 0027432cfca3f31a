"""W5: shares of the time of whole runs, from `seconds` of their result files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .interleaved import Row, single_thread_environment
from .part import PartRequest

TITLE = "W5: where the time goes: the main job, and several methods on the same suite"
GOAL = "everything but training, evaluation, scoring and aggregation below 5 % of a run"
WORK = {
    "training": ("train",),
    "evaluation": ("evaluate",),
    "scoring": ("score", "cluster"),
    "aggregation": ("aggregate",),
}
VARIANTS = "-class-global", "-class-local", "-lambda", "-nodc", "-nola"


def run(request: PartRequest) -> list[Row]:
    """Return a row for the main run, one for all methods together, and one per method."""
    from flbench.plugin.registry import entries

    suite, rounds = "noisy-noniid", ["--rounds", "3"] if request.quick else []
    methods = [name for name in sorted(entries("methods")) if not name.endswith(VARIANTS)]
    if request.quick:
        methods = ["fedavg", "pfedlia"]
    found: dict[str, dict[str, float]] = {}
    for plugin in ("pfedlia", ",".join(methods)):
        request.say(f"{plugin} on {suite}")
        out = request.folder / f"w5-{len(found)}"
        command = [sys.executable, "-m", "flbench", "run", "-p", plugin, "-s", suite]
        subprocess.run(
            [*command, *rounds, "--out", str(out)],
            env=single_thread_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        files = sorted(out.rglob("seed-0.json"))
        if not files:
            raise RuntimeError(f"{' '.join(command)}: no result")
        seconds = {path.parts[-3]: _seconds(path) for path in files}
        if not found:
            found["pfedlia, alone"] = seconds["pfedlia"]
        else:
            found[f"all {len(seconds)} methods"] = {
                part: sum(one.get(part, 0.0) for one in seconds.values())
                for part in {part for one in seconds.values() for part in one}
            }
            found |= seconds
    return [{"run": name, **shares(seconds)} for name, seconds in found.items()]


def shares(seconds: dict[str, float]) -> Row:
    """Parts as shares of the total; time that no clock of the run measured is in the rest."""
    total = seconds["total"]
    row: Row = {"total": round(total, 3)}
    spent = 0.0
    for name, parts in WORK.items():
        part = sum(seconds.get(one, 0.0) for one in parts)
        row[name] = round(part / total, 4)
        spent += part
    row["everything_else"] = round((total - spent) / total, 4)
    row["of_it_checkpoints"] = round(seconds.get("checkpoint", 0.0) / total, 4)
    return row


def _seconds(path: Path) -> dict[str, float]:
    table: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))["seconds"]
    return table
