"""`python -m flbench_benchmarks.speed PART FOLDER`: measure one part."""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path

import torch

from .part import Asked, measure

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure one part.")
    parser.add_argument("part")
    parser.add_argument("out", type=Path)
    parser.add_argument("--env-root", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="flbench-speed-") as folder:
        asked = Asked(Path(folder), given.env_root, given.quick, not given.no_peers)
        module = importlib.import_module(f"flbench_benchmarks.speed.{given.part}")
        measure(given.part, module, given.out, asked)
