"""TensorBoard: a run's curves, parameters and summary, written by Lightning's logger."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.core.hookspecs import hookimpl
from flbench.errors import UserError
from flbench.results.events import RoundRecord, RunInfo
from flbench.results.schema import Result
from flbench.sinks.rows import row_of, rows_of

if TYPE_CHECKING:
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger


class TensorBoard:
    """TensorBoard event files beside the result file, in `seed-<n>/tensorboard/`.

    Raises:
        UserError: neither tensorboard nor tensorboardX is installed.
    """

    def __init__(self) -> None:
        if not any(find_spec(package) for package in ("tensorboard", "tensorboardX")):
            raise UserError(
                "sink tensorboard expects a package that is not installed; type:"
                " pip install 'flbench[tensorboard]'"
            )
        self._logger: TensorBoardLogger | None = None
        self._parameters: dict[str, object] = {}

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Open an event file; a resumed run removes the rounds that it repeats."""
        from flbench.core import torchvision_compat as torchvision_compat  # lightning needs it

        # isort: split
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        self._close("failed")
        result = Path(info.path)
        names = ("method", "suite", "dataset", "seed")
        self._parameters = {**{name: getattr(info, name) for name in names}, **info.params}
        wait_for_a_new_second(result.with_suffix("") / "tensorboard")
        self._logger = TensorBoardLogger(
            result.parent, result.stem, version="tensorboard", purge_step=info.first
        )

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Log the round's numbers."""
        if self._logger is not None:
            self._logger.log_metrics(row_of(record), step=record.round)
            self._logger.save()

    @hookimpl
    def run_finished(self, result: Result) -> None:
        """Log the parameters beside the summary and close the file."""
        if self._logger is None:
            return
        summary = {f"summary/{k}": v for k, v in result.summary.items() if v is not None}
        rounds = len(rows_of(result))
        self._logger.log_hyperparams(self._parameters, metrics=summary, step=rounds)
        self._close("success")

    def _close(self, status: str) -> None:
        """Close the file, if one is open."""
        logger, self._logger = self._logger, None
        if logger is not None:
            logger.finalize(status)


def wait_for_a_new_second(folder: Path) -> None:
    """Wait until no event file of a folder is of this second.

    Names of event files begin with the second in which they were opened, and are read in the order
    of their names; what follows the second has no order. A resumed run must be read last.
    """
    while any(folder.glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
        time.sleep(0.05)
