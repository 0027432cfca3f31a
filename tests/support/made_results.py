"""Results of methods that never ran, and folders of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from operator import truediv
from pathlib import Path
from typing import Any

from flbench.leaderboard.markdown import section
from flbench.leaderboard.table import tables
from flbench.results.files import result_path, skip_path, write_atomically
from flbench.results.schema import (
    Clients,
    Fingerprint,
    Method,
    Plugin,
    Result,
    Skip,
    Tuning,
    digest_of,
    file_text,
)

SUITE = {
    "name": "toy",
    "version": 1,
    "dataset": "toy",
    "clients": 4,
    "participation": 0.5,
    "rounds": 3,
    "local": {"epochs": 2},
    "model": {"name": "mlp"},
}


def described(method: str, version: str = "1.0", **params: Any) -> Method:
    """A method of one plugin, or of several joined by "+"."""
    plugins = [
        Plugin(name=one, distribution="flbench", version=version) for one in method.split("+")
    ]
    return Method(name=method, params=params, plugins=plugins)


def made(
    accuracy: float = 0.5,
    *,
    method: str = "fedavg",
    seed: int = 0,
    config: str | None = None,
    mark: str = "5u1te000",
    dataset: str = "toy",
    correct: Sequence[int] | None = None,
    test: Sequence[int] | None = None,
    params: dict[str, Any] | None = None,
    version: str = "1.0",
    plugin: dict[str, Any] | None = None,
    suite: dict[str, Any] | None = None,
    tuning: Tuning | None = None,
    alone: bool = False,
    status: str = "self-reported",
    seconds: float = 1.0,
    **summary: Any,
) -> Result:
    """A result; four clients of 100 test samples each get the accuracy unless `correct` is given.

    `plugin` are fields such as `uses_true_groups`; `alone` = nothing was exchanged.
    """
    test = list(test or [100] * len(correct or range(4)))
    correct = list(correct or [round(accuracy * count) for count in test])
    if all(test):
        accuracy = sum(map(truediv, correct, test)) / len(test)
    told = described(method, version, **(params or {}))
    plugins = [one.model_copy(update=plugin or {}) for one in told.plugins]
    n = len(test)
    return Result(
        status=status,
        suite={**SUITE, "clients": n, **(suite or {})},
        dataset=dataset,
        method=told.model_copy(update={"plugins": plugins}),
        seed=seed,
        fingerprint=Fingerprint(
            config=config or f"c-{method}-{mark}", suite=mark, data="d", partition=f"p{seed}",
            initial_weights=f"w{seed}", cohorts=f"k{seed}",
        ),
        summary={
            "accuracy_mean": accuracy, "accuracy_worst_decile": accuracy, "ari": None,
            "groups": 1, "mb_per_client": 1.0, **summary,
        },
        curves={"accuracy": [0.1, accuracy], "loss": [2.0, 1.0]},
        clients=Clients(
            train=[10] * n, validation=[2] * n, test=test, correct=correct, loss=[1.0] * n,
            group=None, bytes=[5] * n,
        ),
        membership=[],
        tuning=tuning,
        bytes={} if alone else {"down": {"model": 10}, "up": {"model": 10}, "peer": {}},
        notes=[],
        warnings=[],
        seconds={"total": seconds},
        environment={},
    )  # fmt: skip


def twice(*found: Result) -> list[Result]:
    """Results, and the same for the next seed: enough for ranks."""
    again = []
    for one in found:
        seed = one.seed + 1
        marks = {"partition": f"p{seed}", "initial_weights": f"w{seed}", "cohorts": f"k{seed}"}
        changed = one.fingerprint.model_copy(update=marks)
        again.append(one.model_copy(update={"seed": seed, "fingerprint": changed}))
    return [*found, *again]


def skip(method: str, reason: str, mark: str = "5u1te000", dataset: str = "toy") -> Skip:
    """Why a method was not run."""
    return Skip(
        suite={**SUITE, "paper": ""}, suite_hash=mark, dataset=dataset, method=described(method),
        reason=reason,
    )  # fmt: skip


def write(folder: Path, *found: Result | Skip) -> Path:
    """Put results and skips where runs would put them."""
    for one in found:
        named = isinstance(one, Result)
        mark = one.fingerprint.suite if isinstance(one, Result) else one.suite_hash
        config = one.fingerprint.config if isinstance(one, Result) else "none"
        seed = one.seed if isinstance(one, Result) else 0
        place = result_path(
            folder / mark, one.suite["name"], one.dataset, one.method.name, config, seed
        )
        place = place if named else skip_path(place)
        assert not place.exists()
        write_atomically(place, one.canonical().encode())
    return folder


def page(folder: Path) -> str:
    """All tables of a folder of result files as one text, without links, signs and pictures."""
    lines = [line for table in tables(folder) for line in ("", *section(table, "R"))]
    text = "\n".join(["# Leaderboard", *lines]) + "\n"
    return re.sub(r"(?<!\\)\[((?:\\.|[^\]\\])*)\]\(R/[^)]*\)( [†‡§¶]+)?", r"\1", text)


def sealed(table: dict[str, Any]) -> str:
    """The text of a result file with a digest that fits, whatever it holds."""
    parts = {
        key: json.dumps(one, sort_keys=True, separators=(",", ":")) for key, one in table.items()
    }
    text = file_text({**parts, "digest": '""'})
    return file_text({**parts, "digest": json.dumps(digest_of(text))})
