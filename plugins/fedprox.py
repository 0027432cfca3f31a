"""FedProx: FedAvg with a proximal term that keeps clients near the model that they downloaded.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous networks",
MLSys 2020.

    client i minimises  f_i(u) + mu/2 ||u - w||^2,  w = the downloaded model
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class FedProx:
    """FedAvg with a proximal term that keeps clients near the model that they downloaded."""

    paper: ClassVar[str] = "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "global"
    across_networks: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"fedc2i": {"mu": 0.01}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"mu": 0.0}})

    mu: Annotated[float, Ge(0), "weight of the proximal term"] = 0.01

    @fl.hookimpl
    def local_term(self) -> Callable[[fl.ClientModule], Tensor]:
        """Half mu times the squared distance of the trainable scalars from the start."""

        def term(module: fl.ClientModule) -> Tensor:
            u = module.flat()
            return self.mu / 2 * (u - module.start[: len(u)]).square().sum()

        return term
