"""`python -m flbench_benchmarks.speed.measure PART FOLDER`: measure one part in this process."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench import __version__
from flbench.engine.processes.own_process import defer_imports
from flbench.errors import Interrupted
from flbench.results.files import write_atomically

if TYPE_CHECKING:
    from .part import PartRequest


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """The machine; `load` is the load average of the last minute."""
    import torch

    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flbench": __version__,
    }


def measure(name: str, module: Any, out: Path, request: PartRequest) -> None:  # noqa: ANN401 - a part
    """Run a part and write its file, `out/NAME.json`, unless it could not be measured here."""
    began, environment, file = time.time(), machine(), out / f"{name}.json"
    rows = module.run(request)
    if file.is_file() and all(row.keys() == {"note"} for row in rows):
        request.say(f"{name}: {rows[0]['note']}; {file} is left as it was")
        return
    content = {
        "part": name,
        "title": module.TITLE,
        "goal": module.GOAL,
        "about": getattr(module, "ABOUT", ""),
        "quick": request.quick,
        "peers": request.peers,
        "machine": environment,
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime(began)),
        "rows": rows,
        "took": round(time.time() - began),
    }
    write_atomically(file, f"{json.dumps(content, indent=1)}\n".encode())


def main() -> None:
    """Parse the arguments and measure the part with one thread."""
    parser = argparse.ArgumentParser(description="Measure one part in this process.")
    parser.add_argument("part")
    parser.add_argument("out", type=Path)
    parser.add_argument("--env-root", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    arguments = parser.parse_args()
    defer_imports()  # as `flbench run` does, so that times and memory are those of a run
    import torch  # here, so that an interruption is caught

    from .part import PartRequest

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="flbench-speed-") as folder:
        request = PartRequest(
            folder=Path(folder),
            env_root=arguments.env_root,
            quick=arguments.quick,
            peers=not arguments.no_peers,
        )
        module = importlib.import_module(f"flbench_benchmarks.speed.{arguments.part}")
        measure(arguments.part, module, arguments.out, request)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # whoever started it says so
        sys.exit(Interrupted.exit_code)
