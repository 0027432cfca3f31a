"""FedAvg: one global model, averaged by sample counts.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-efficient learning of deep networks
from decentralized data", AISTATS 2017.

    w <- sum_{i in S_t} n_i w_i / sum_{i in S_t} n_i

flbench's defaults are FedAvg (`flbench/plugin/fedavg_defaults.py`), so this class has no hooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class FedAvg:
    """One global model, averaged by sample counts."""

    paper: ClassVar[str] = "McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017"
    year: ClassVar[int] = 2017
    kind: ClassVar[str] = "global"
    baseline: ClassVar[bool] = True
    across_networks: ClassVar[bool] = True
