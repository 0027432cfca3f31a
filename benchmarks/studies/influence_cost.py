"""Lazy against exact influence: speed-up and agreement (pFedLIA, Fig. 3a).

Rokvic, Danassis, Faltings, IJCNN 2025, arXiv 2505.02540. A network M_0 is trained on D_0 until it
converges. The exact influence of a batch B is loss(M_0) - loss(M_1) on test samples, where M_1 is
trained anew on D_0 and B until it converges; the lazy influence takes for M_1 the model
M_0 after a few epochs on B alone. A batch that helps has a positive influence in both.

Converged: in three consecutive epochs, the mean training loss fell by less than a share q.
One training gives M_1 for every q, each with the time until then. M_0 is not timed. Half of the
batches have their labels shuffled, so that influences differ. All networks start
from the same weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

from flbench.core.client import ClientModule
from flbench.core.local_training import LocalTraining
from flbench.core.seeding import rng, torch_seed
from flbench.errors import Diverged, UserError
from flbench.federation.loading import load_dataset
from flbench.plugin.registry import find, load_entry
from flbench.sweeps.request import RunRequest
from flbench.sweeps.study import StudyTable, correlations

Positive = Annotated[int, Ge(1)]


def run(
    request: RunRequest,
    say: Callable[[str], None],
    samples: Positive = 990,
    batch: Positive = 10,
    test: Positive = 100,
    batches: Positive = 50,
    model: str = "mlp",
    lr: Annotated[float, Gt(0)] = 0.05,
    batch_size: Positive = 32,
    epochs: Positive = 20,
    most: Positive = 200,
) -> StudyTable:
    """Speed and agreement of lazy and exact influence over many batches (pFedLIA, Fig. 3a).

    Args:
        request: seeds and data set (digits unless another is named).
        say: shows a line of progress.
        samples: size of D_0.
        batch: size of each batch.
        test: size of the test set.
        batches: how many batches; the labels of every other one are shuffled.
        model: network.
        lr: learning rate of plain SGD.
        batch_size: mini-batch.
        epochs: of the lazy influence, the paper's k.
        most: largest number of epochs of an exact training.

    Returns:
        A row per seed and q: seconds of both, their ratio, share of equal signs, rank and linear
        correlation.

    Raises:
        UserError: the data set has too few samples, or is text.
    """
    dataset = load_dataset(request.dataset or "digits", request.root)
    if dataset.y.ndim > 1:
        raise UserError(
            f"study 'influence-cost' expects samples with a label each, got {dataset.name}, which"
            " is text: choose another --dataset"
        )
    needed, have = samples + test + batch * batches, len(dataset.y)
    if needed > have:
        raise UserError(
            f"study 'influence-cost' expects at most {have} samples, all of {dataset.name}; samples"
            f" + test + batch * batches are {needed}"
        )
    rows: StudyTable = []
    for seed in request.seeds:
        order = torch.as_tensor(rng(seed, "influence-cost").permutation(len(dataset.y)))
        base, tested = order[:samples], order[samples : samples + test]
        rest = order[samples + test :][: batch * batches].reshape(-1, batch)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "init"))
            net = load_entry(find("models", model))(tuple(dataset.x.shape[1:]), dataset.classes)
        local = LocalTraining(epochs=epochs, batch_size=batch_size, lr=lr)
        trainer = Trainer(ClientModule(net, local), dataset.x[tested], dataset.y[tested], most)
        start = trainer.weights()
        first = trainer.until_converged(start, dataset.x[base], dataset.y[base], seed)
        exact = {q: list[tuple[float, float, int]]() for q in QS}
        lazy = {q: list[tuple[float, float]]() for q in QS}
        for number, own in enumerate(rest):
            x, y = dataset.x[own], dataset.y[own]
            if number % 2:
                y = y[torch.as_tensor(rng(seed, "shuffled", number).permutation(len(y)))]
            both = torch.cat([dataset.x[base], x]), torch.cat([dataset.y[base], y])
            second = trainer.until_converged(start, *both, seed)
            for q in QS:
                weights, loss = first[q].weights, first[q].loss
                exact[q].append((loss - second[q].loss, second[q].seconds, second[q].epochs))
                after, seconds = trainer.some_epochs(weights, x, y, epochs, seed)
                lazy[q].append((loss - after, seconds))
            say(f"influence-cost, seed {seed}: batch {number + 1}/{len(rest)}")
        for q in QS:
            one, other = np.array(exact[q]), np.array(lazy[q])
            rows.append(
                {
                    "seed": seed,
                    "dataset": dataset.name,
                    "q": q,
                    "exact_epochs": round(float(one[:, 2].mean()), 1),
                    "exact_seconds": round(float(one[:, 1].mean()), 5),
                    "lazy_seconds": round(float(other[:, 1].mean()), 5),
                    "speedup": round(float(one[:, 1].sum() / other[:, 1].sum()), 2),
                    "sign_agreement": float((np.sign(one[:, 0]) == np.sign(other[:, 0])).mean()),
                    **correlations(one[:, 0], other[:, 0]),
                    "exact": [round(float(value), 6) for value in one[:, 0]],
                    "lazy": [round(float(value), 6) for value in other[:, 0]],
                }
            )
    return rows


QS = (1e-2, 1e-3, 1e-4)
"""Shares q; a smaller decrease of the loss in an epoch counts as none."""


@dataclass(frozen=True)
class Converged:
    """A trained model: weights and buffers, test loss, seconds and epochs of its training."""

    weights: list[Tensor]
    loss: float
    seconds: float
    epochs: int


class Trainer:
    """Trains one network from given weights, and evaluates it on the test samples.

    Args:
        module: holds the network.
        x: test samples.
        y: their labels.
        most: largest number of epochs of a training.
    """

    def __init__(self, module: ClientModule, x: Tensor, y: Tensor, most: int) -> None:
        self.module, self.x, self.y, self.most = module, x, y, most

    def weights(self) -> list[Tensor]:
        """A copy of the weights and buffers."""
        return [value.detach().clone() for value in self.module.state_dict().values()]

    def loss(self) -> float:
        """Mean loss on the test samples, in nats.

        Raises:
            Diverged: it is not finite.
        """
        self.module.eval()
        with torch.inference_mode():
            table = self.module.measure(self.module(self.x), self.y)
        mean = float(table[:, 0].double().mean())
        if not math.isfinite(mean):
            raise Diverged("test loss is not finite: lower lr")
        return mean

    def epochs(self, start: list[Tensor], x: Tensor, y: Tensor, seed: int) -> Iterator[float]:
        """Train from given weights; yield the mean training loss of each epoch, without end."""
        for value, kept in zip(self.module.state_dict().values(), start, strict=True):
            value.copy_(kept)
        optimizer, size = self.module.configure_optimizers(), self.module.local.batch_size
        generator = rng(seed, "influence-cost", len(y))
        while True:
            self.module.train()
            total = torch.zeros(())
            order = torch.as_tensor(generator.permutation(len(y)))
            for number, rows in enumerate(order.split(size)):
                loss = self.module.training_step((x[rows], y[rows]), number)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach() * len(rows)
            yield float(total) / len(y)

    def some_epochs(
        self, start: list[Tensor], x: Tensor, y: Tensor, epochs: int, seed: int
    ) -> tuple[float, float]:
        """Test loss after some epochs, and the seconds of training and evaluation."""
        began = time.perf_counter()
        for done, _ in enumerate(self.epochs(start, x, y, seed), start=1):
            if done == epochs:
                break
        return self.loss(), time.perf_counter() - began

    def until_converged(
        self, start: list[Tensor], x: Tensor, y: Tensor, seed: int
    ) -> dict[float, Converged]:
        """The model at the epoch where training has converged, for each q."""
        found: dict[float, Converged] = {}
        calm_epochs, before, spent = dict.fromkeys(QS, 0), float("inf"), 0.0
        began = time.perf_counter()
        for done, now in enumerate(self.epochs(start, x, y, seed), start=1):
            for q in QS:
                calm_epochs[q] = calm_epochs[q] + 1 if before - now < q * before else 0
            before, spent = now, spent + time.perf_counter() - began
            for q in QS:
                if q not in found and (calm_epochs[q] == 3 or done == self.most):
                    began = time.perf_counter()
                    loss = self.loss()
                    seconds = spent + time.perf_counter() - began
                    found[q] = Converged(self.weights(), loss, seconds, done)
            if len(found) == len(QS):
                break
            began = time.perf_counter()
        return found
