"""A plugin that is right but for what it imports."""

from __future__ import annotations

from dataclasses import dataclass

import flbench as fl
from flbench_plugins.fedprox import FedProx as FedProx


@dataclass(frozen=True)
class DiscoveredAlone:
    """Builds on somebody else's plugin, so that both must be installed, in the right version."""

    @fl.hookimpl
    def setup(self) -> None:
        """Nothing."""
