"""Random intercept: a linear model of all data with a level of its own for each client, shrunk.

The mixed model of Laird, Ware, "Random-effects models for longitudinal data", Biometrics 1982, for
numbers (statsmodels' MixedLM, restricted likelihood); for classes as in Breslow, Clayton,
"Approximate inference in generalized linear mixed models", JASA 1993, fitted by variational Bayes
(statsmodels' BinomialBayesMixedGLM).

    numbers   y_i(x) = w x + b + u_i
    classes   logit p_i(y = c | x) = w_c x + b_c + u_ic        u ~ N(0, s^2)

What a statistician does with such data before anything federated: one slope for all, and a level of
each client, pulled towards that of all the more, the fewer samples the client has. Each class is
fitted against all others, and the probabilities are scaled to sum to one; of two classes, one is
fitted. A newcomer has the level of all. Not federated: the clients' samples are sent once and
counted in scalars, and the method is never ranked. Needs the extra `mixed`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class RandomIntercept:
    """A linear model with a random level of each client, on all samples; a reference."""

    paper: ClassVar[str] = "Laird, Ware, Biometrics 1982"
    year: ClassVar[int] = 1982
    kind: ClassVar[str] = "personalised"
    pools_data: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance()

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """A stage in which nobody trains, as a round has one."""
        if ctx.round == 1:
            size = ctx.client_data(0)[0][0].numel()
            ctx.send("up", ctx.everybody, "samples", ctx.samples * (size + 1))
        return (fl.Stage("probe", ctx.cohort, 0),)

    @fl.hookimpl
    def dispatch(self, ctx: fl.Context) -> fl.Start:
        """No model is sent."""
        return fl.Start(sent_mask=ctx.layout.none_mask, returned_mask=ctx.layout.none_mask)

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The slopes of all, with the level of each client; a newcomer has that of all."""
        data = [ctx.client_data(client) for client in range(ctx.clients)]
        x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
        if ctx.task == "labels" or not x.is_floating_point():
            raise fl.Undefined(
                "a linear model is of tables with a class or numbers for each sample"
            )
        owners = np.repeat(np.arange(ctx.clients), [len(own) for _, own in data])
        table = x.flatten(1).numpy(force=True).astype(np.float64)
        kind = np.int64 if ctx.task == "classes" else np.float64
        sizes = (*table.shape, ctx.outputs, ctx.clients)
        targets = y.numpy(force=True).astype(kind)
        fit = fitted_classes if ctx.task == "classes" else fitted_numbers
        weights, levels = fit(table.tobytes(), targets.tobytes(), owners.tobytes(), sizes)
        known = np.concatenate([levels, np.zeros((1, levels.shape[1]))])
        own = torch.from_numpy(known[clients.clamp(max=ctx.clients).numpy()]).float()
        return fl.Personal(
            row=torch.zeros_like(clients),
            extras={
                "intercept.own": own,
                "intercept.weights": torch.from_numpy(weights).float().expand(len(clients), -1, -1),
            },
            predictor=predicted if ctx.task == "classes" else linear,
        )

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The same of newcomers."""
        return self.personalise(state, clients, ctx)


Fit = tuple[np.ndarray, np.ndarray]
"""Weights of features and constant, shape (K, d + 1), and levels of clients, shape (N, K)."""


def missing() -> fl.UserError:
    """The error where statsmodels is not installed."""
    return fl.UserError(
        "random-intercept fits its model by statsmodels: pip install 'flbench[mixed]'"
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings: where levels do not differ, the best deviation is 0, on the boundary."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@lru_cache(maxsize=2)
def fitted_classes(
    table: bytes, labels: bytes, owners: bytes, sizes: tuple[int, int, int, int]
) -> Fit:
    """The model of classes; K is C, of two classes 1, the odds of the second.

    Args:
        table: float64, shape (m, d).
        labels: int64, shape (m,).
        owners: the client of each sample, int64, shape (m,).
        sizes: m, d, C, N.
    """
    try:
        from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM
    except ImportError:
        raise missing() from None
    from scipy.sparse import csr_matrix

    rows, columns, classes, clients = sizes
    x = np.frombuffer(table).reshape(rows, columns)
    y, who = (np.frombuffer(one, dtype=np.int64) for one in (labels, owners))
    design = np.concatenate([x, np.ones((rows, 1))], axis=1)
    levels = csr_matrix((np.ones(rows), (np.arange(rows), who)), shape=(rows, clients))
    kinds = np.zeros(clients, dtype=np.int64)
    found = []
    for label in [1] if classes == 2 else range(classes):
        share = float((y == label).mean())
        if share in (0.0, 1.0):  # nobody has it, or everybody
            constant = np.zeros(columns + 1)
            constant[-1] = np.sign(share - 0.5) * np.log(2 * rows + 1)
            found.append((constant, np.zeros(clients)))
            continue
        model = BinomialBayesMixedGLM((y == label).astype(float), design, levels, kinds)
        start = np.zeros(model.k_fep + model.k_vcp + model.k_vc)
        with quietly():
            fit = model.fit_vb(mean=start, sd=np.ones_like(start))
        found.append((fit.fe_mean, fit.vc_mean))
    weights, own = (np.stack(parts) for parts in zip(*found, strict=True))
    return weights, own.T


@lru_cache(maxsize=2)
def fitted_numbers(
    table: bytes, targets: bytes, owners: bytes, sizes: tuple[int, int, int, int]
) -> Fit:
    """The model of numbers; K is how many there are. Arguments as of `fitted_classes`.

    Columns that depend on others, as the codes of a category and the constant do, are taken
    together: the model is fitted in a basis of the features, which changes no prediction.
    """
    try:
        from statsmodels.regression.mixed_linear_model import MixedLM
    except ImportError:
        raise missing() from None
    rows, columns, numbers, clients = sizes
    x = np.frombuffer(table).reshape(rows, columns)
    y = np.frombuffer(targets).reshape(rows, numbers)
    who = np.frombuffer(owners, dtype=np.int64)
    design = np.concatenate([x, np.ones((rows, 1))], axis=1)
    _, spread, directions = np.linalg.svd(design.T @ design)
    basis = directions[spread > spread[0] * 1e-10].T
    found = []
    for column in y.T:
        with quietly():
            fit = MixedLM(column, design @ basis, groups=who).fit()
        levels = [float(fit.random_effects[client].iloc[0]) for client in range(clients)]
        found.append((basis @ fit.fe_params, np.array(levels)))
    weights, own = (np.stack(parts) for parts in zip(*found, strict=True))
    return weights, own.T


def linear(module: fl.ClientModule, x: Tensor) -> Tensor:
    """The linear model of one client's samples, (b, ...) -> (b, K)."""
    weights, own = (module.received[f"intercept.{name}"] for name in ("weights", "own"))
    return x.flatten(1) @ weights[:, :-1].T + weights[:, -1] + own


def predicted(module: fl.ClientModule, x: Tensor) -> Tensor:
    """Logarithms of probabilities of one client's samples, shape (b, C)."""
    odds = linear(module, x)
    if odds.shape[1] == 1:
        return torch.cat([torch.zeros_like(odds), odds], dim=1)
    return torch.nn.functional.logsigmoid(odds).log_softmax(dim=1)
