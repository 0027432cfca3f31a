"""The hashes of all committed suites, on each data set that they have settings for.

    python tests/support/suite_hashes.py > tests/suite_hashes.json

is typed after a suite was added or its version was raised; nothing else may move one.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from flbench.suite import load_suite

SUITES = Path(__file__).parents[2] / "benchmarks"


def suite_hashes() -> dict[str, dict[str, str]]:
    """Suite and version -> data set -> hash."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(SUITES.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        names = [table["dataset"], *table.get("on", {}), table.get("offline_dataset", "")]
        title = f"{path.stem}, version {table['version']}"
        found[title] = {one: load_suite(str(path), one).hash() for one in names if one}
    return found


if __name__ == "__main__":
    print(json.dumps(suite_hashes(), indent=1))
