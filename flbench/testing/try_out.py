"""`try_out`: one short run of a plugin, suite, data set, model or sink, for a test."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from flbench.engine.options import EngineOptions
from flbench.plugin.isolation import produced
from flbench.plugin.registry import find, load_entry
from flbench.results.schema import Result
from flbench.run.composition import load_method, suite_overrides
from flbench.run.runner import execute, resolve_dataset
from flbench.run.spec import RunSpec
from flbench.suite import load_suite
from flbench.testing.small_run import DEFAULTS


def try_out(
    plugin: str | None = None,
    suite: str | None = None,
    dataset: str | None = None,
    model: str | None = None,
    sinks: Sequence[str] = (),
    *,
    rounds: int = 1,
    seed: int = 0,
    data_root: Path | None = None,
    out: Path | None = None,
    **settings: object,
) -> Result:
    """Run a few rounds with installed parts, as `flbench run` does, on one CPU thread.

    Messages of the run are printed.

    Args:
        plugin: a method, or several joined by "+"; None = the defaults (FedAvg).
        suite: a suite or TOML file; None = six clients with handwritten digits, without files.
        dataset: instead of the suite's.
        model: instead of the suite's.
        sinks: names of sinks.
        rounds: instead of the suite's.
        seed: the seed of the run.
        data_root: folder of the data sets; None = an empty folder.
        out: folder of the result files; None = a temporary folder.
        settings: as `--set` takes them: a parameter of the method or a field of the suite.

    Returns:
        The content of the result file.

    Raises:
        UserError: a name is not installed, or a setting is not valid.

    Example:
        >>> len(try_out(rounds=2, clients=3).curves["accuracy"])
        2
    """
    all_settings = {**settings, "suite.rounds": rounds, **({"suite.model": model} if model else {})}
    method = load_method(plugin) if plugin else None
    overrides = suite_overrides(all_settings, [method] if method else [])
    with tempfile.TemporaryDirectory(prefix="flbench-") as folder:
        job = RunSpec(
            suite=load_suite(suite or str(Path(__file__).with_suffix(".toml")), dataset, overrides),
            method=method.compose(settings) if method else DEFAULTS,
            seed=seed,
            data_root=data_root or Path(folder),
            out=out or Path(folder),
            engine=EngineOptions(accelerator="cpu"),
            force=True,
            sinks=tuple((name, built_sink(name)) for name in sinks),
            say=print,
        )
        return execute(*resolve_dataset(job))


def built_sink(name: str) -> object:
    """A sink; its constructor runs as third-party code."""
    return produced(name, f"sink '{name}'", object, load_entry(find("sinks", name)))
