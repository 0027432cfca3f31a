"""Figures of results: pure functions that return an SVG file, or None if there is nothing to draw.

Their last argument is a title, one line. `rows` are pairs of a name and its results over seeds;
what shows single runs takes each row's first result. The same results give the same bytes.
Importing this package imports neither matplotlib nor torch.
"""

from flbench.figures.accuracy_curves import curves as curves
from flbench.figures.client_accuracy import clients as clients
from flbench.figures.clustering_gain import clustering_gain as clustering_gain
from flbench.figures.critical_difference import critical_difference as critical_difference
from flbench.figures.memberships import memberships as memberships
from flbench.figures.noted_lists import notes as notes
from flbench.figures.pareto import pareto as pareto
from flbench.figures.partition import partition as partition
from flbench.figures.score_matrix import scores as scores
from flbench.figures.stacking import stacked as stacked
from flbench.figures.study_rows import bars as bars
from flbench.figures.study_rows import lines as lines
from flbench.figures.study_rows import matrices as matrices
from flbench.figures.study_rows import pairs as pairs
