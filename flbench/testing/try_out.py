"""Trying out: one short run of whatever a test is about, played as the command line plays it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from flbench.engine.options import EngineOptions
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
    """Play a few rounds with installed parts, as `flbench run` would, on one CPU thread.

    What the run says to the person is printed.

    Args:
        plugin: a method, or several joined by "+"; None = the defaults, which average all.
        suite: a suite or TOML file; None = six clients with handwritten digits, from no files.
        dataset: instead of the suite's.
        model: instead of the suite's.
        sinks: who is told.
        rounds: instead of the suite's.
        seed: of everything that is drawn.
        data_root: where data sets lie; None = an empty folder.
        out: folder of the result files; None = one that is gone afterwards.
        settings: as `--set` takes them: a parameter of the method or a field of the suite.

    Returns:
        what the result file holds.

    Raises:
        UserError: a name that is not installed, or a setting that does not fit.

    Example:
        >>> len(try_out(rounds=2, clients=3).curves["accuracy"])
        2
    """
    asked = {**settings, "suite.rounds": rounds, **({"suite.model": model} if model else {})}
    method = load_method(plugin) if plugin else None
    overrides = suite_overrides(asked, [method] if method else [])
    with tempfile.TemporaryDirectory(prefix="flbench-") as folder:
        job = RunSpec(
            suite=load_suite(suite or str(Path(__file__).with_suffix(".toml")), dataset, overrides),
            method=method.compose(settings) if method else DEFAULTS,
            seed=seed,
            data_root=data_root or Path(folder),
            out=out or Path(folder),
            engine=EngineOptions(executor="sequential", accelerator="cpu"),
            force=True,
            sinks=tuple((name, load_entry(find("sinks", name))()) for name in sinks),
            say=print,
        )
        return execute(*resolve_dataset(job))
