"""Influence vectors of every client in some rounds (FedC2I, Fig. 3).

Tan, Long, Jiang, Zhang, arXiv 2410.03315 (2024): in the first rounds clients influence each other
alike, then each is influenced by itself and by clients whose domains look alike. A result keeps the
vector of client 0 in every round, and the losses of all clients in the last one; here all are read
from what the method scores.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from flbench.core.context import Context
from flbench.core.hookspecs import hookimpl
from flbench.core.state import Scores
from flbench.federation.loading import load_dataset
from flbench.run.composition import compose
from flbench.run.rounds import run_rounds
from flbench.run.runner import resolve_dataset
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import load_suite
from flbench.sweeps.request import RunRequest
from flbench.sweeps.study import StudyTable

SUITES = ("feature-shift", "office-10-surf", "digit-5")
"""In the place of Digit-5 and of the images of Office-10; and three domains of Digit-5."""
OF_SUITES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "digit-5": ("digit-5[mnist,usps,mnist-m]", {"clients": 3, "eval_every": 20, "model.size": 32})
}
"""Data set and settings of a suite that are not its own: the domains that are at hand, smaller."""
ROUNDS = {20: (1, 2, 10, 20), 40: (1, 4, 10, 40)}
"""Rounds of a run -> those that the paper's figure shows."""


def run(
    request: RunRequest,
    say: Callable[[str], None],
    suites: tuple[str, ...] = SUITES,
    gamma: Annotated[float, Ge(0)] = 5.0,
) -> StudyTable:
    """Influence vectors of every client in four rounds (FedC2I, Fig. 3).

    Args:
        request: seeds and data set.
        say: shows a line of progress.
        suites: names of suites.
        gamma: how sharply losses become weights.

    Returns:
        A row per suite, seed and round: how much clients weight themselves, and the strongest
        other, means over the clients; and all weights, a row per client.
    """
    rows: StudyTable = []
    for suite, seed in product(suites, request.seeds):
        method, found = compose("fedc2i", {"gamma": gamma}), Recorded(gamma)
        dataset, settings = OF_SUITES.get(suite, (None, {}))
        job = RunSpec(
            suite=load_suite(suite, request.dataset or dataset, settings),
            method=replace(method, layers=(*method.layers, ("recorded", found))),
            seed=seed,
            data_root=request.root,
            out=request.out,
            engine=request.engine,
            say=say,
        )
        job, load = resolve_dataset(job, load_dataset)
        played, state = prepare(job, load(job.suite.dataset, job.data_root))
        played.checkpoint = None
        run_rounds(played, state)
        for number in ROUNDS.get(job.suite.rounds, (1, job.suite.rounds)):
            place = {"suite": suite, "dataset": job.suite.dataset, "seed": seed, "round": number}
            rows.append(place | described(found.weights[number]))
    return rows


@dataclass(frozen=True)
class Recorded:
    """Listens to the scores of FedC2I: row m has the losses of client m without each client.

    Attributes:
        gamma: the method's.
        weights: round -> lambda of every client, shape (N, N).
    """

    gamma: float
    weights: dict[int, Tensor] = field(default_factory=dict)

    @hookimpl(wrapper=True)
    def score(self, ctx: Context) -> Generator[None, Scores | None, Scores | None]:
        """Pass the scores on, and keep what they say."""
        scores = yield
        if scores is not None:
            self.weights[ctx.round] = influences(scores.values, self.gamma)
        return scores


def influences(losses: Tensor, gamma: float) -> Tensor:
    """lambda_m = l_m^gamma / sum l_m^gamma (Eq. 5) for every row, shape (N, N), float64."""
    return (gamma * losses.double().clamp(min=1e-12).log()).softmax(dim=1)


def described(weights: Tensor) -> dict[str, object]:
    """What a row says of the weights of one round."""
    others = weights.clone().fill_diagonal_(0.0)
    return {
        "own": round(float(weights.diagonal().mean()), 4),
        "strongest_other": round(float(others.amax(dim=1).mean()), 4),
        "influence": [[round(float(one), 4) for one in row] for row in weights],
    }
