"""Replay single-line mutations: does a test fail when the line is changed?

    python tests/mutations/replay.py mutations.jsonl results.jsonl [ID ...]

Each mutation changes one line of a copy of the repository. The tests of its module and then those
of its package run in the copy, without slow ones; the mutation is killed if one fails. Results are
appended, so a replay that was stopped goes on. First the tests run without a mutation: what fails
then would kill anything. `baseline` in the file is the verdict of the tree before version 0.2.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "flbench", "plugins", "benchmarks", "leaderboard", "docs", "tests", ".ci", "pyproject.toml",
    "README.md", "CHANGELOG.md",
)  # fmt: skip
MORE = {
    "engine": ["tests/engine", "tests/run", "tests/plugins"],
    "run": ["tests/run", "tests/core/test_model_bank.py", "tests/plugins"],  # it keeps banks
    "toolbox": ["tests/toolbox", "tests/plugins"],
    "core": ["tests/core", "tests/run", "tests/plugins"],
    "federation": ["tests/federation", "tests/run"],
    "partitions": ["tests/partitions"],
    "metrics": ["tests/test_metrics.py", "tests/run"],
}
"""Package of a mutated file -> tests that may notice it."""

SECONDS = 900
"""A test that does not end counts as failed."""


def mutate(copy: Path, mutation: dict[str, Any]) -> None:
    """Change the line; the scope chooses among equal lines."""
    file = copy / mutation["file"]
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if line.strip() == mutation["before"]]
    if not found:
        raise SystemExit(f"{mutation['id']}: {mutation['file']} has no line {mutation['before']!r}")
    place = found[0]
    for candidate in found if len(found) > 1 else ():
        above = [line for line in lines[:candidate] if line.lstrip().startswith(("def ", "class "))]
        if above and mutation["scope"].rpartition(".")[2] in above[-1]:
            place = candidate
    lines[place] = lines[place].replace(mutation["before"], mutation["after"])
    file.write_text("".join(lines), encoding="utf-8")


def tests_of(file: str) -> list[str]:
    """The tests that may notice a change of a file, those of its module first."""
    package, module = Path(file).parts[1].removesuffix(".py"), Path(file).stem
    own = f"tests/{package}/test_{module}.py"
    return [*([own] if (ROOT / own).is_file() else []), *MORE[package]]


def verdict(mutation: dict[str, Any], *, mutated: bool = True) -> str:
    """ "killed" or "survived"."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in PARTS:
            source = ROOT / part
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / part)
        (copy / "flbench_plugins").symlink_to("plugins")
        (copy / "flbench_benchmarks").symlink_to("benchmarks")
        if mutated:
            mutate(copy, mutation)
        words = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--cpu-limit", "0"]
        words += tests_of(mutation["file"])
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *words],
                cwd=copy, env=environment, capture_output=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "killed"
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"{mutation['id']}: pytest ended with {done.returncode}")
    return "killed" if done.returncode else "survived"


def main() -> None:
    """Replay what has no result yet, and count."""
    mutations, results, *chosen = sys.argv[1:]
    rows = [json.loads(line) for line in Path(mutations).read_text(encoding="utf-8").splitlines()]
    target = Path(results)
    known = dict[str, str]()
    if target.is_file():
        known = {one["id"]: one["verdict"] for one in map(json.loads, target.open())}
    sound = set[str]()
    for row in rows:
        if row["id"] in known or (chosen and row["id"] not in chosen):
            continue
        package = Path(row["file"]).parts[1]
        if package not in sound and verdict(row, mutated=False) == "killed":
            raise SystemExit(f"a test of {package} fails without a mutation: mend it first")
        sound.add(package)
        known[row["id"]] = verdict(row)
        with target.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"id": row["id"], "verdict": known[row["id"]]}) + "\n")
        print(f"{row['id']}: {known[row['id']]}, {row['baseline']} before", flush=True)
    killed = sum(one == "killed" for one in known.values())
    print(f"{killed} of {len(known)} killed")


if __name__ == "__main__":
    main()
