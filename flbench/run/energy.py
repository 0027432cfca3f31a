"""The energy of a run, estimated by codecarbon where it is installed and asked for.

Nothing is sent or looked up, and no file is written: the tracker is the offline one, without
outputs. Its data are those of this process, not of the whole machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from flbench.engine.options import EngineOptions
from flbench.errors import UserError
from flbench.results.schema import Energy

METER = "codecarbon"
WATT_HOURS = 1000
"""Watt-hours of a kilowatt-hour."""


@dataclass
class EnergyMeter:
    """What was measured; `energy` is None until the end, and where nothing could be measured."""

    energy: Energy | None = None


def refuse_without_meter(engine: EngineOptions) -> None:
    """Refuse to measure where it is not possible.

    Raises:
        UserError: codecarbon is not installed, or several processes would share the run.
    """
    if not engine.energy:
        return
    if find_spec(METER) is None:
        raise UserError("--energy needs codecarbon: pip install 'flbench[energy]'")
    if engine.devices * engine.nodes > 1:
        raise UserError("--energy measures one process: leave out --devices and --nodes")


@contextmanager
def metered(
    engine: EngineOptions, resumed: bool, say: Callable[[str], None]
) -> Iterator[EnergyMeter]:
    """Measure the energy of the block, if that is asked for; the result is there after it.

    A part of a run says nothing about the whole, so nothing is measured of one that is resumed.
    """
    meter = EnergyMeter()
    if not engine.energy:
        yield meter
        return
    refuse_without_meter(engine)
    if resumed:
        say("the energy is not measured: the run was resumed")
        yield meter
        return
    from codecarbon import OfflineEmissionsTracker

    logging.getLogger(METER).setLevel(logging.CRITICAL)
    tracker = OfflineEmissionsTracker(
        output_methods=[],
        allow_multiple_runs=True,
        tracking_mode="process",
        log_level="critical",
        electricitymaps_api_token=None,
        country_iso_code="USA",  # some country is needed for emissions, which are not kept
    )
    tracker.start()
    try:
        yield meter
    finally:
        tracker.stop()
    data = getattr(tracker, "final_emissions_data", None)
    if data is None:
        say(f"the energy is not known: {METER} found nothing to measure")
        return
    meter.energy = Energy(
        meter=f"{METER} {version(METER)}",
        cpu=round(WATT_HOURS * data.cpu_energy, 6),
        gpu=round(WATT_HOURS * data.gpu_energy, 6),
        memory=round(WATT_HOURS * data.ram_energy, 6),
    )
