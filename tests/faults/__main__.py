"""Inject faults, and report what came of them.

    python tests/faults checkpoints [--each N] [--results FILE]
    python tests/faults kills [--count N] [--results FILE]
    python tests/faults results [--count N] [--results FILE]
    python tests/faults inputs [--count N] [--results FILE]
    python tests/faults determinism [--python PATH ...] [--results FILE]
    python tests/faults random [--count N] [--results FILE]
    python tests/faults answers [--count N] [--results FILE]
    python tests/faults commands [--count N] [--results FILE]
    python tests/faults soak [--results FILE]

Results are appended to FILE, so a harness that was stopped goes on; its report lies beside it. The
exit code is 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import platform
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parent / "support" / "light")]

MODULES = {
    "checkpoints": "damaged_checkpoints",
    "kills": "killed_runs",
    "results": "damaged_results",
    "inputs": "hostile_inputs",
    "determinism": "determinism",
    "random": "random_runs",
    "answers": "random_answers",
    "commands": "random_commands",
    "soak": "soak",
}
COUNTS = {
    "kills": 300,
    "results": 5_000,
    "inputs": 100_000,
    "random": 2_000,
    "answers": 1_000,
    "commands": 500,
}


def main() -> int:
    """Inject what has no result yet, and print the report."""
    parser = argparse.ArgumentParser("python tests/faults", description=__doc__)
    parser.add_argument("what", choices=tuple(MODULES))
    parser.add_argument("--each", type=int, default=6, help="checkpoints: of each kind and method")
    parser.add_argument("--count", type=int, help=f"of others: how many {COUNTS}")
    parser.add_argument("--results", type=Path, help="default: build/faults/<what>.jsonl")
    parser.add_argument("--python", action="append", default=[], help="determinism: another Python")
    given = parser.parse_args()
    file = given.results or Path("build") / "faults" / f"{given.what}.jsonl"
    from fault_record import injected, report

    harness = import_module(MODULES[given.what])
    asked = {"checkpoints": (given.each,), "determinism": (given.python,), "soak": ()}
    count = given.count or COUNTS.get(given.what, 0)
    if given.what == "inputs":
        from coverage_guided import guided

        faults = guided(count, list(harness.KINDS), harness.inject, file)
    else:
        faults = injected(harness.names(*asked.get(given.what, (count,))), harness.inject, file)
    found = []
    for number, fault in enumerate(faults, start=1):
        found.append(fault)
        if fault.wrong or number % 100 == 0:
            wrong = f": {fault.name}: {fault.wrong}: {fault.message}" if fault.wrong else ""
            print(f"{number}{wrong}", flush=True)
    text = report(f"python tests/faults {given.what}", found)
    if given.what == "soak":
        text += "".join(f"\n- {fault.name}: {fault.message}." for fault in found) + "\n"
    text += computed_by()
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text, end="")
    return int(any(fault.wrong for fault in found))


def computed_by() -> str:
    """What the faults were injected into, in one line."""
    packages = [f"{name} {version(name)}" for name in ("flbench", "torch", "safetensors")]
    python = f"Python {platform.python_version()}"
    return f"\n{', '.join([*packages, python, platform.system()])}.\n"


if __name__ == "__main__":
    sys.exit(main())
