"""Try the learning rates of the natural suites again: a third of it, itself and three times it.

    python docs/tools/natural_rates.py SUITE[=RATE] ...   # writes natural_rates.json

RATE is what the suite had before, if it has another one by now.

Every suite is run by FedAvg and by training alone on seeds 100-103, which no row is scored on. A
run is scored as those of `flbench tune`: the mean validation headline of its last ten evaluations.
The file keeps the score of every seed, so `natural_page.py` says how far the best rate lies from
that of the suite.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import cache
from pathlib import Path
from statistics import mean

from flbench.federation.loading import load_dataset
from flbench.results.schema import Result
from flbench.run.composition import compose
from flbench.run.runner import execute
from flbench.run.spec import RunSpec
from flbench.suite import load_suite
from flbench.sweeps.tuning import LATEST, SCORE

RATES = Path(__file__).with_name("natural_rates.json")
METHODS, SEEDS, TIMES = ("fedavg", "local-only"), (100, 101, 102, 103), (1 / 3, 1.0, 3.0)
load = cache(load_dataset)


def score(result: Result) -> float:
    """The mean of the last validation headlines."""
    curve = result.curves[result.headline.named(SCORE)]
    return mean([value for value in curve if value is not None][-LATEST:])


def tried(suite: str, method: str, rate: float) -> list[float]:
    """The scores of a method at a learning rate, by seed."""
    found = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            asked = load_suite(suite, None, {"local.lr": rate})
            spec = RunSpec(asked, compose(method), seed, Path(folder), Path(folder))
            found.append(round(score(execute(spec, load)), 5))
    return found


def rates_of(suite: str, usual: float) -> dict[str, dict[str, list[float]]]:
    """The scores of a suite about a rate: method -> learning rate -> one for each seed."""
    rates = [float(f"{usual * factor:.3g}") for factor in TIMES]
    return {method: {f"{lr:g}": tried(suite, method, lr) for lr in rates} for method in METHODS}


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        name, _, rate = asked.partition("=")
        known = json.loads(RATES.read_text(encoding="utf-8")) if RATES.is_file() else {}
        known[name] = rates_of(name, float(rate or load_suite(name).local.lr))
        text = json.dumps(dict(sorted(known.items())), indent=1)
        RATES.write_text(f"{text}\n", encoding="utf-8")
