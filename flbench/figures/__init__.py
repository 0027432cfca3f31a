"""Figures of results: pure functions that return SVG files, or None where nothing can be drawn.

A row is a name and its results over seeds. The same results give the same bytes. Importing this
imports neither matplotlib nor torch.
"""

from flbench.figures.cost import pareto
from flbench.figures.divided import partition
from flbench.figures.grids import scores
from flbench.figures.groups import memberships
from flbench.figures.lines import curves
from flbench.figures.rivals import critical_difference
from flbench.figures.spread import clients

__all__ = [
    "clients",
    "critical_difference",
    "curves",
    "memberships",
    "pareto",
    "partition",
    "scores",
]
