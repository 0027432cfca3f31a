"""Start-up: the seconds that commands need until their first output."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from .interleaved import Row, single_thread_environment
from .part import PartRequest

TITLE = "Start-up of whole processes"
GOAL = (
    "`flbench --help` and `flbench list` at most 0.4 s; `flbench run` to its first round at most"
    " 2 s more than importing torch and lightning"
)
# flbench.core.torchvision_compat must be imported before lightning
IMPORTS = "import flbench.core.torchvision_compat, torch, lightning"
LIBRARY = "import flbench; flbench.ClientModule"
RUN = ("run", "-p", "fedavg", "-s", "noisy-noniid", "--rounds", "1")


def run(request: PartRequest) -> list[Row]:
    """Measure the commands alternately, several times."""
    flbench = [sys.executable, "-m", "flbench"]
    imports, first = "importing torch and lightning", f"flbench {' '.join(RUN)}, to its first round"
    two, whole = f"{first}, in two processes", f"flbench {' '.join(RUN)}, to its end"
    commands = {
        "flbench --help": [*flbench, "--help"],
        "flbench list": [*flbench, "list"],
        imports: [sys.executable, "-c", IMPORTS],
        LIBRARY: [sys.executable, "-c", LIBRARY],
        two: [*flbench, *RUN, "--devices", "2"],
        whole: [*flbench, *RUN],
        first: [*flbench, *RUN],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(2 if request.quick else 6):
        for name, command in commands.items():
            out = ["--out", str(request.folder / f"{turn}-{len(name)}")] if "run" in command else []
            spent = seconds_until([*command, *out], "1 rounds" if name in (first, two) else "")
            if turn:  # the first is a warm-up: files are read into memory
                seconds[name].append(spent)
    rows = [
        {"command": name, **spread("seconds", spent), "times": len(spent)}
        for name, spent in seconds.items()
    ]
    more = [a - b for a, b in zip(seconds[first], seconds[imports], strict=True)]
    rows[-1] |= spread("more_than_importing", more)
    return rows


def spread(name: str, values: list[float]) -> Row:
    """Median, lowest and highest."""
    return {
        name: round(median(values), 3),
        f"{name}_low": round(min(values), 3),
        f"{name}_high": round(max(values), 3),
    }


def seconds_until(command: list[str], words: str) -> float:
    """Seconds until a process writes `words` to standard error; "" = until it ends."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=single_thread_environment(),
        text=True,
        cwd=Path.cwd(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    spent, last_line = 0.0, ""
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            last_line = line.strip() or last_line
            if words and words in line and not spent:
                spent = time.perf_counter() - began
    if process.returncode != 0 or (words and not spent):
        raise RuntimeError(f"{' '.join(command)}: {last_line}")
    return spent or time.perf_counter() - began
