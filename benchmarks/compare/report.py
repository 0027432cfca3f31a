"""Play a pair on both sides and say what was found, as the content of one JSON file."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flbench.core
from flbench.errors import FlbenchError

from . import ours
from .comparison import TOLERANCE, Verdict, compare, unmoved
from .environments import FRAMEWORKS, last
from .exchange import Exchange, read, write
from .pairs import Explanation, Pair

DRIVERS = Path(__file__).parent / "drivers"
LIMIT_S = 600


def examine(pair: Pair, python: Path) -> dict[str, Any]:
    """Play a pair, and once more with its explanation if it has one.

    Raises:
        FlbenchError: the driver failed, or a play did not train anything.
    """
    verdict, played = both_sides(pair, python, Explanation(""))
    report = {
        "framework": pair.framework,
        "version": played.facts["version"],
        "method": pair.method,
        "variant": pair.variant,
        "params": dict(pair.params),
        "algorithm": pair.algorithm,
        "settings": dict(pair.settings),
        "models": list(pair.models),
        "local": dict(played.facts["local"]),
        "cohorts": played.facts["cohorts"],
        "patched": played.facts["patched"],
        "tolerance": TOLERANCE,
        **as_data(verdict),
        "reason": "" if verdict.equal else pair.reason,
        "defect": bool(pair.mend) and not verdict.equal,
        "mend": "" if verdict.equal else pair.mend,
    }
    if pair.explanation is not None and not verdict.equal:
        changed, _ = both_sides(pair, python, pair.explanation)
        report["explanation"] = {"change": pair.explanation.text, **as_data(changed)}
    return report


def both_sides(pair: Pair, python: Path, change: Explanation) -> tuple[Verdict, Exchange]:
    """Play both sides and compare them; also what the other side played."""
    params = {**pair.params, **change.params}
    share = change.participation or pair.participation
    mine = ours.play(
        pair.method, params, pair.models, pair.local, change.change, share, pair.seconds
    )
    facts = {
        **mine.facts,
        "algorithm": pair.algorithm,
        "settings": {**pair.settings, **change.settings},
        "models": list(pair.models),
    }
    given = {name: array for name, array in mine.arrays.items() if not name[0].isdigit()}
    theirs = drive(FRAMEWORKS[pair.framework].driver, python, Exchange(facts, given))
    if unmoved(mine):
        raise FlbenchError(
            f"{pair.name}: expected models that move (of K centres, two of them), ours did not:"
            " the comparison would show nothing"
        )
    return compare(mine, theirs), theirs


def drive(driver: str, python: Path, given: Exchange) -> Exchange:
    """Play with a driver, in another Python."""
    compat = Path(flbench.core.__file__).parent / "torchvision_compat.py"
    settings: Mapping[str, str] = {
        "FLBENCH_TORCHVISION_COMPAT": str(compat),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryDirectory(prefix="flbench-compare-") as name:
        source, target = Path(name) / "given.safetensors", Path(name) / "played.safetensors"
        write(source, given)
        program = [str(python), str(DRIVERS / f"{driver}.py"), str(source), str(target)]
        try:
            subprocess.run(
                program,
                cwd=name,
                env={**os.environ, **settings},
                capture_output=True,
                text=True,
                check=True,
                timeout=LIMIT_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise FlbenchError(f"{driver} failed: {last(error)}") from error
        return read(target)


def as_data(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain data; differences with two digits, so that files stay the same."""
    parts: Mapping[str, Any] = {}
    if not verdict.equal:
        assert verdict.difference is not None
        parts = {
            "round": verdict.round,
            "model": verdict.model,
            "tensor": verdict.tensor,
            "difference": float(f"{verdict.difference:.2g}"),
        }
    return {"equal": verdict.equal, "compared": verdict.compared, "first_difference": dict(parts)}
