"""CSV: a run's curves as a table with a row per round, written by Lightning's logger."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.core.hookspecs import hookimpl
from flbench.results.events import RoundRecord, RunInfo
from flbench.sinks.rows import Row, row_of

if TYPE_CHECKING:
    from lightning.fabric.loggers.csv_logs import CSVLogger


class CSV:
    """A CSV file beside the result file, `seed-<n>/csv/metrics.csv`; column `step` is the round."""

    def __init__(self) -> None:
        self._logger: CSVLogger | None = None

    @hookimpl
    def run_started(self, info: RunInfo) -> None:
        """Start the file; a resumed run keeps the rounds before it."""
        from flbench.core import torchvision_compat as torchvision_compat  # lightning needs it

        # isort: split
        from lightning.fabric.loggers.csv_logs import CSVLogger

        self._logger = None
        result = Path(info.path)
        file = result.with_suffix("") / "csv" / "metrics.csv"
        kept = rows_before(info.first, file)
        file.unlink(missing_ok=True)  # Lightning deletes it too, but warns
        self._logger = CSVLogger(
            root_dir=result.parent, name=result.stem, version="csv", flush_logs_every_n_steps=1
        )
        for step, row in kept:
            self._logger.log_metrics({**row}, step)

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        """Append the round's numbers."""
        if self._logger is not None:
            self._logger.log_metrics({**row_of(record)}, record.round)


def rows_before(first: int, file: Path) -> list[tuple[int, Row]]:
    """The rounds of a CSV file before `first`, without empty cells and half-written lines."""
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    found: list[tuple[int, Row]] = []
    for row in rows:
        with suppress(TypeError, ValueError):
            step = int(row.pop("step"))
            if step < first:
                found.append((step, {name: float(value) for name, value in row.items() if value}))
    return found
