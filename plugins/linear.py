"""Linear models on tables, of each client alone or of all samples with slopes of each client.

McCullagh, Nelder, "Generalized Linear Models", 1989; here the logistic regression and the ridge
regression of scikit-learn, with a squared penalty. References.

    linear-alone    logit p_i(y = c | x) = w_ic x + b_ic, fitted to D_i alone
    random-slopes   logit p_i(y = c | x) = (w_c + u_ic) x + b_c + v_ic, fitted to all D_i at once

For numbers the left side is y. A network of 60 rounds on ten samples is no good measure of what a
client can learn alone: a linear model says what little takes. `random-slopes` is what
`random-intercept` lacks: clients may weigh the features differently. Departure: its u and v have
the variance of the penalty, the same for all, where a mixed model (Laird, Ware, Biometrics 1982)
estimates it.

Neither is federated. They are fitted when clients are evaluated, to what these train on, so they
take no part in the rounds. A client with one label alone predicts its own shares of labels, as
labels that a client never had are improbable, not impossible. A newcomer of `random-slopes` has no
slopes of its own. The samples of the pooled model are sent once and counted in scalars; it is never
ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

import flbench as fl

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class LinearAlone:
    """A linear model of each client alone, with a squared penalty; a reference, nothing is sent."""

    paper: ClassVar[str] = "McCullagh, Nelder, Generalized Linear Models, 1989"
    year: ClassVar[int] = 1989
    kind: ClassVar[str] = "personalised"
    baseline: ClassVar[bool] = True
    pools_data: ClassVar[bool] = False
    conformance: ClassVar[fl.Conformance] = fl.Conformance()

    inverse_penalty: Annotated[
        float, Gt(0), "C of scikit-learn: the larger, the less weights are pulled to 0"
    ] = 1.0

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """A stage in which nobody trains, as a round has one."""
        if ctx.round == 1 and self.pools_data:
            size = ctx.client_data(0)[0][0].numel()
            ctx.send("up", ctx.everybody, "samples", ctx.samples * (size + 1))
        return (fl.Stage("probe", ctx.cohort, 0),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """No model is sent."""
        return fl.Start(sent_mask=ctx.layout.none_mask, returned_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The weights of each client's own samples."""
        found = []
        for client in clients.tolist():
            x, y = _rows(*ctx.client_data(client), ctx)
            found.append(fitted(x.tobytes(), y.tobytes(), (*x.shape, ctx.outputs),
                                ctx.task == "classes", self.inverse_penalty))  # fmt: skip
        return served(clients, np.stack(found))

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The same of newcomers."""
        return self.personalise(state, clients, ctx)


@dataclass(frozen=True)
class RandomSlopes(LinearAlone):
    """A linear model of all samples, with a level and slopes of each client; a reference."""

    baseline: ClassVar[bool] = False
    pools_data: ClassVar[bool] = True

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The weights of all, and with them those of each client that trained."""
        data = [ctx.client_data(client) for client in range(ctx.clients)]
        x, y = _rows(torch.cat([one for one, _ in data]), torch.cat([one for _, one in data]), ctx)
        owners = np.repeat(np.arange(ctx.clients), [len(own) for _, own in data])
        found = pooled(x.tobytes(), y.tobytes(), owners.tobytes(), (*x.shape, ctx.outputs),
                       ctx.task == "classes", self.inverse_penalty)  # fmt: skip
        return served(clients, found[clients.clamp(max=ctx.clients).numpy()])


def served(clients: Tensor, weights: np.ndarray) -> fl.Personal:
    """The models of some clients, shape (n, K, d + 1)."""
    return fl.Personal(
        row=torch.zeros_like(clients),
        extras={"linear.weights": torch.from_numpy(weights).float()},
        predictor=predicted,
    )


def _rows(x: Tensor, y: Tensor, ctx: fl.Context) -> tuple[np.ndarray, np.ndarray]:
    """Samples as a table (m, d) and targets, (m,) or (m, k).

    Raises:
        Undefined: they are no rows of numbers, or have other targets than a class or numbers.
    """
    if ctx.task == "labels" or not x.is_floating_point():
        raise fl.Undefined("a linear model is of tables with a class or numbers for each sample")
    kind = np.int64 if ctx.task == "classes" else np.float64
    return (
        x.flatten(1).numpy(force=True).astype(np.float64),
        y.numpy(force=True).astype(kind),
    )


@lru_cache(maxsize=4096)
def fitted(
    table: bytes, targets: bytes, sizes: tuple[int, int, int], classes: bool, inverse_penalty: float
) -> np.ndarray:
    """The model of a table of `sizes` (m, d, K) in float64: weights and constant, (K, d + 1)."""
    rows, columns, outputs = sizes
    x = np.frombuffer(table).reshape(rows, columns)
    return _solved(x, _targets(targets, rows, classes), outputs, classes, inverse_penalty)


@lru_cache(maxsize=2)
def pooled(
    table: bytes, targets: bytes, owners: bytes, sizes: tuple[int, int, int], classes: bool,
    inverse_penalty: float,
) -> np.ndarray:  # fmt: skip
    """The models of N clients, and last that of a newcomer, shape (N + 1, K, d + 1).

    Every row of the table stands once among the columns of all clients, and once, with a 1 for the
    level, among those of its owner.
    """
    from scipy.sparse import csr_matrix, hstack

    rows, columns, outputs = sizes
    x = np.frombuffer(table).reshape(rows, columns)
    who = np.frombuffer(owners, dtype=np.int64)
    wide, clients = columns + 1, int(who.max()) + 1
    own = np.concatenate([x, np.ones((rows, 1))], axis=1)
    places = who[:, None] * wide + np.arange(wide)
    starts = np.arange(0, own.size + 1, wide)
    apart = csr_matrix((own.ravel(), places.ravel(), starts), shape=(rows, clients * wide))
    design = hstack([csr_matrix(x), apart], format="csr")
    found = _solved(design, _targets(targets, rows, classes), outputs, classes, inverse_penalty)
    common = np.concatenate([found[:, :columns], found[:, -1:]], axis=1)
    of_clients = found[:, columns:-1].reshape(outputs, clients, wide).swapaxes(0, 1)
    return np.concatenate([common + of_clients, common[None]])


def _targets(targets: bytes, rows: int, classes: bool) -> np.ndarray:
    found = np.frombuffer(targets, dtype=np.int64 if classes else np.float64)
    return found if classes else found.reshape(rows, -1)


def _solved(
    x: np.ndarray | csr_matrix, y: np.ndarray, outputs: int, classes: bool, inverse_penalty: float
) -> np.ndarray:
    """Weights and constant of every output, shape (K, d + 1)."""
    from sklearn.linear_model import LogisticRegression, Ridge

    found = np.zeros((outputs, x.shape[1] + 1))
    if not classes:
        model = Ridge(alpha=1 / inverse_penalty).fit(x, y)
        found[:, :-1], found[:, -1] = model.coef_, model.intercept_
        return found
    counts = np.bincount(y, minlength=outputs)
    known = np.flatnonzero(counts)
    found[:, -1] = np.log((counts + 1 / outputs) / (len(y) + 1))
    if len(known) < 2:
        return found
    model = LogisticRegression(C=inverse_penalty, max_iter=1000).fit(x, y)
    weights = np.concatenate([model.coef_, model.intercept_[:, None]], axis=1)
    # of two labels scikit-learn has the odds of the second; of labels it never saw, little is left
    found[known] = np.concatenate([-weights, weights]) / 2 if len(known) == 2 else weights
    return found


def predicted(module: fl.ClientModule, x: Tensor) -> Tensor:
    """The outputs for one client's samples, shape (b, K)."""
    weights = module.received["linear.weights"].to(x)
    return x.flatten(1) @ weights[:, :-1].T + weights[:, -1]
