"""What running a result file again would run and open: the file may be anybody's.

It runs installed packages alone, and a person is told which. What a file names outside of the
folder of the data sets (a path, a data set of the hub) is opened where the person names it as well
(`flbench verify --open NAME`).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from flbench.client_metrics.torchmetrics_classes import LIBRARY, is_class
from flbench.core.parameters import declared
from flbench.errors import UserError
from flbench.federation.loading import chain, opens_argument
from flbench.plugin.registry import entries, load_entry, one_of
from flbench.results.schema import Result

SKIPPED = {"methods": 0, "metrics": 1, "models": 2, "partitions": 4}
"""Arguments of what is called with parameters of a file that the core fills in, by its kind."""


def will_run(results: Iterable[Result]) -> str:
    """The line that says whose code runs where results are run again; nothing is imported.

    Parts of flbench itself are not named one by one.
    """
    found: dict[str, set[str]] = {}
    asked = {(kind, name) for result in results for kind, name, _ in named(result)}
    for kind, name in asked:
        entry = entries(kind).get(name)
        if entry is not None:
            of = found.setdefault(f"{entry.distribution} {entry.version}", set())
            if entry.distribution != "flbench":
                of.add(f"{one_of(kind)} {name}")
        elif kind == "metrics" and is_class(name):
            found.setdefault(LIBRARY, set())
    texts = [f"{one} ({', '.join(sorted(of))})" if of else one for one, of in found.items()]
    listed = ", ".join(sorted(texts)) or "none"
    return f"installed packages run now, as trusted code with all your rights: {listed}"


def named(result: Result) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Everything installed that a result names: kind, name, and the file's parameters for it."""
    plugins = result.method.name.split("+")
    for plugin in plugins:
        prefix = f"{plugin}." if len(plugins) > 1 else ""
        own = {
            key.removeprefix(prefix): value
            for key, value in result.method.params.items()
            if key.startswith(prefix)
        }
        yield "methods", plugin, own
    suite = result.suite
    parts = [("models", suite["model"]), ("partitions", suite.get("partition"))]
    parts += [("models", one) for one in suite.get("further_models", ())]
    parts += [("methods", one) for one in suite.get("plugins", ())]
    for kind, one in parts:
        table = one if isinstance(one, Mapping) else {"name": one}
        yield kind, str(table.get("name")), table
    for name in chain(result.dataset):
        yield "datasets", name, {}
    for metric in (result.client_metrics or {}).values():
        if not metric.plugin:
            yield "metrics", metric.name, metric.params


def outside(result: Result) -> list[str]:
    """Paths and data sets elsewhere that running a result would open, as the file has them.

    What is not installed opens nothing.
    """
    found = [result.dataset] if opens_argument(result.dataset) else []
    for kind, name, params in named(result):
        if kind in SKIPPED and name in entries(kind):
            found += [
                str(params[key])
                for key, usual in _opening(kind, name).items()
                if params.get(key) not in (None, usual)
            ]
    return found


@cache
def _opening(kind: str, name: str) -> dict[str, object]:
    """The parameters of something installed that name files, with their defaults."""
    target = load_entry(entries(kind)[name])
    known = declared(target, skip=SKIPPED[kind])
    return {key: one.default for key, one in known.items() if one.opens_file}


def refuse_outside(result: Result, opened: Collection[str]) -> None:
    """Refuse what a result would open beside what a person names.

    Raises:
        UserError: says what to type where it is meant.
    """
    for name in outside(result):
        if name not in opened:
            raise UserError(
                f"the file names {name!r}, which lies outside the folder of the data sets: nothing"
                f" was opened; where it is yours, add --open {shlex.quote(name)}"
            )
