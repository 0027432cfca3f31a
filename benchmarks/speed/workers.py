"""Workers of a sweep: the same sweep with one worker, and with as many as the machine holds."""

from __future__ import annotations

import sys

from .interleaved import Row, paired_ratios
from .part import PartRequest
from .startup import seconds_until, spread

TITLE = "Workers: the whole command `flbench sweep` of 24 cells (`ratio`: as many times as fast)"
GOAL = "on two cores at least 1.8 times as fast as with one worker"
SWEEP = ("-p", "pfedlia,fedavg,oracle", "-s", "pathological-noniid,noisy-noniid", "--seeds", "4")
QUICK = ("-p", "fedavg,oracle", "-s", "noisy-noniid", "--seeds", "2", "--rounds", "20")


def run(request: PartRequest) -> list[Row]:
    """Measure both alternately."""
    times, asked = (1, QUICK) if request.quick else (3, SWEEP)
    seconds: dict[str, list[float]] = {"1": [], "auto": []}
    for turn in range(times):
        for workers, spent in seconds.items():
            request.say(f"--workers {workers}")
            out = request.folder / f"workers-{workers}-{turn}"
            command = ["sweep", *asked, "--workers", workers, "--out", str(out)]
            spent.append(seconds_until([sys.executable, "-m", "flbench", *command], ""))
    rows: list[Row] = [
        {"workers": f"--workers {workers}", **spread("seconds", spent), "times": times}
        for workers, spent in seconds.items()
    ]
    rows[1] |= paired_ratios("ratio", seconds["1"], seconds["auto"])
    return rows
