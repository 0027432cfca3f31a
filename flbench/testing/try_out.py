"""`try_out`: one short run of a plugin, suite, data set, model or sink, for a test."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.results.schema import Result
from flbench.sweeps.from_python import run_suite


@dataclass(frozen=True)
class DefaultsAlone:
    """A method that leaves every answer to the defaults (FedAvg)."""

    @hookimpl
    def needs(self) -> None:
        """Need nothing."""


def try_out(
    plugin: object = None,
    suite: str | None = None,
    dataset: str | Dataset | None = None,
    model: object = None,
    sinks: Sequence[str] = (),
    *,
    rounds: int = 1,
    seed: int = 0,
    data_root: Path | None = None,
    out: Path | None = None,
    **settings: object,
) -> Result:
    """Run a few rounds with installed parts, as `flbench run` does, on one CPU thread.

    It is `flbench.run_suite` with the defaults of a test. Messages go to standard error.

    Args:
        plugin: a method as `run_suite` takes one; None = the defaults (FedAvg).
        suite: a suite or TOML file; None = six clients with handwritten digits, without files.
        dataset: instead of the suite's; a name or an object.
        model: instead of the suite's; a name or a function.
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
    with tempfile.TemporaryDirectory(prefix="flbench-") as nothing:
        return run_suite(
            plugin or DefaultsAlone(),
            suite or Path(__file__).with_suffix(".toml"),
            seed=seed,
            rounds=rounds,
            dataset=dataset,
            model=model,
            sinks=sinks,
            settings=settings,
            data_root=data_root or nothing,
            out=out,
            force=True,
            accelerator="cpu",
        )
