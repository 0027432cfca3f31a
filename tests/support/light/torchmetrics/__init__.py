"""torchmetrics, of which nothing is imported before it is asked for.

Lightning imports torchmetrics, and torchmetrics imports transformers, torchvision, scipy.signal and
matplotlib: half of the time that a process of flbench needs to start, for nothing that flbench
uses. Tests and the processes that they start find this package first; its modules are the real
ones. The tests of wheels start processes without it.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.metadata import version
from pkgutil import extend_path

from torch import nn

__path__ = extend_path(__path__, __name__)
__version__ = version(__name__)
_logger = logging.getLogger(__name__)


class Metric(nn.Module):
    """What Lightning compares the type of logged values with; flbench logs none."""


class MetricCollection(nn.ModuleDict):
    """See `Metric`."""


class UtilitiesFirst:
    """`torchmetrics.metric` and `torchmetrics.utilities` import each other; these come first.

    The real package sees to it, and a metric that is asked for is a real one.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name in ("torchmetrics.metric", "torchmetrics.classification"):
            import_module("torchmetrics.utilities")


sys.meta_path.insert(0, UtilitiesFirst)  # type: ignore[arg-type]
