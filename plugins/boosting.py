"""Boosting: trees on tables, of all samples in one place or of each client's alone; references.

Friedman, "Greedy function approximation: a gradient boosting machine", Annals of Statistics 2001;
here the histogram trees of scikit-learn (Ke et al., "LightGBM", NeurIPS 2017).

    boosting        one model of the union of all D_i, without the client's id
    boosting-alone  a model of each D_i

Trees are the usual answer to a table, and what a network in a federation is to be compared with.
They are not federated. They are fitted when clients are evaluated, to what these train on, so they
take no part in the rounds; the same data give the same trees, which are kept between evaluations.
A client with one label alone predicts its own shares of labels. Departures: no validation samples
are used to stop; leaves hold 5 samples or more where the client has fewer than 200, as 20, the
default, would leave it without a tree.

The samples of the pooled model are sent once and counted in scalars. It is never ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

import flbench as fl

SMALL, LEAVES = 200, (5, 20)
"""Samples below which leaves may hold fewer samples, and how many at least."""


@dataclass(frozen=True)
class Boosting:
    """Gradient boosted trees on the union of all samples; a reference, never ranked."""

    paper: ClassVar[str] = "Friedman, Annals of Statistics 2001"
    year: ClassVar[int] = 2001
    kind: ClassVar[str] = "global"
    pools_data: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(params={"trees": 3})

    trees: Annotated[int, Ge(1), "boosting rounds"] = 100
    rate: Annotated[float, Gt(0), "learning rate of the trees"] = 0.1

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
        """The trees of all samples, for everybody."""
        data = [ctx.client_data(client) for client in range(ctx.clients)]
        x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
        return self._served(clients, [self._fitted(x, y, ctx)] * len(clients))

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The same of newcomers."""
        return self.personalise(state, clients, ctx)

    def _fitted(self, x: Tensor, y: Tensor, ctx: fl.Context) -> Trees:
        """The trees of some samples, shape (m, ...).

        Raises:
            Undefined: they are no rows of numbers, or have other targets than a class or numbers.
        """
        if ctx.task == "labels" or not x.is_floating_point():
            raise fl.Undefined("trees are of tables with a class or numbers for each sample")
        kind = np.int64 if ctx.task == "classes" else np.float64
        table = x.flatten(1).numpy(force=True).astype(np.float32)
        targets = y.numpy(force=True).astype(kind)
        sizes = (*table.shape, ctx.outputs)
        fit = classifier if ctx.task == "classes" else regressors
        return fit(table.tobytes(), targets.tobytes(), sizes, self.trees, self.rate)

    def _served(self, clients: Tensor, models: Sequence[Trees]) -> fl.Personal:
        return fl.Personal(
            row=torch.zeros_like(clients),
            extras={"boosting.client": torch.arange(len(clients))},
            predictor=partial(predicted, models=tuple(models)),
        )


@dataclass(frozen=True)
class BoostingAlone(Boosting):
    """Gradient boosted trees of each client alone; a reference, nothing is sent."""

    kind: ClassVar[str] = "personalised"
    pools_data: ClassVar[bool] = False
    baseline: ClassVar[bool] = True

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The trees of a client's own samples."""
        data = (ctx.client_data(client) for client in clients.tolist())
        return self._served(clients, [self._fitted(x, y, ctx) for x, y in data])


class Trees(Protocol):
    """What predicts the targets of rows."""

    def outputs(self, table: np.ndarray) -> np.ndarray:
        """What a network would answer, (b, d) -> (b, C)."""


@dataclass(frozen=True)
class Classifier:
    """Trees for classes.

    Attributes:
        model: a classifier of scikit-learn; None = there is one label alone.
        labels: that it knows, shape (k,).
        shares: logarithm of the share of each of all labels, shape (C,).
    """

    model: Any
    labels: np.ndarray
    shares: np.ndarray

    def outputs(self, table: np.ndarray) -> np.ndarray:
        """Logarithms of probabilities; of labels that it does not know, small."""
        found = np.tile(self.shares, (len(table), 1))
        if self.model is not None:
            known = self.model.predict_proba(table)
            found[:, self.labels] = np.log(np.maximum(known, np.exp(self.shares.min())))
        return found


@dataclass(frozen=True)
class Regressors:
    """Trees for numbers: a regressor of scikit-learn for each."""

    models: tuple[Any, ...]

    def outputs(self, table: np.ndarray) -> np.ndarray:
        """The numbers."""
        return np.stack([model.predict(table) for model in self.models], axis=1)


def settings(rows: int, trees: int, rate: float) -> dict[str, Any]:
    """Arguments of scikit-learn's trees."""
    return {
        "learning_rate": rate,
        "max_iter": trees,
        "min_samples_leaf": LEAVES[rows >= SMALL],
        "early_stopping": False,
        "random_state": 0,
    }


@lru_cache(maxsize=4096)
def classifier(
    table: bytes, labels: bytes, sizes: tuple[int, int, int], trees: int, rate: float
) -> Classifier:
    """The trees of a table of `sizes` (m, d, C) in float32 with labels in int64."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows, columns, classes = sizes
    x = np.frombuffer(table, dtype=np.float32).reshape(rows, columns)
    y = np.frombuffer(labels, dtype=np.int64)
    counts = np.bincount(y, minlength=classes)
    shares = np.log((counts + 1 / classes) / (rows + 1))
    if (counts > 0).sum() < 2:
        return Classifier(None, np.flatnonzero(counts), shares)
    model = HistGradientBoostingClassifier(**settings(rows, trees, rate)).fit(x, y)
    return Classifier(model, model.classes_, shares)


@lru_cache(maxsize=4096)
def regressors(
    table: bytes, targets: bytes, sizes: tuple[int, int, int], trees: int, rate: float
) -> Regressors:
    """The trees of a table of `sizes` (m, d, k) in float32 with targets in float64, (m, k)."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    rows, columns, numbers = sizes
    x = np.frombuffer(table, dtype=np.float32).reshape(rows, columns)
    y = np.frombuffer(targets).reshape(rows, numbers)
    known = settings(rows, trees, rate)
    return Regressors(tuple(HistGradientBoostingRegressor(**known).fit(x, one) for one in y.T))


def predicted(module: fl.ClientModule, x: Tensor, models: Sequence[Trees]) -> Tensor:
    """The outputs for one client's samples, shape (b, C)."""
    trees = models[int(module.received["boosting.client"])]
    return torch.from_numpy(trees.outputs(x.flatten(1).numpy(force=True))).to(x)
