"""Saved predictions: what served models say of the test samples, as `--save-predictions` writes it.

found = fl.read_predictions("flbench-results/.../seed-0.predictions.safetensors")
right = found.log_probabilities.argmax(-1) == found.target
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from flbench.errors import UserError
from flbench.metrics import Floats, Ints
from flbench.results.files import user_path
from flbench.run.saved_files import PredictionsAbout, read_saved
from flbench.run.saving import Served
from flbench.tasks import TaskName

GIVES: Mapping[TaskName, str] = {
    "classes": "log_probabilities", "numbers": "values", "labels": "log_probabilities",
}  # fmt: skip
"""Task -> the name of what is predicted, in a file and for who reads it."""


@dataclass(frozen=True)
class SavedPredictions:
    """What the models of a run's clients say of their test samples, at the round of its result.

    A sample that several clients have occurs once for each of them.

    Attributes:
        path: of the file.
        about: suite, method, seed, fingerprints and task.
        client: whose sample it is, shape (m,), int64.
        index: place of the sample in the data set, shape (m,), int64.
        target: its class, shape (m,), int64; of text the next tokens, shape (m, T); of numbers,
            these in deviations, shape (m, k), float64; of labels 0 or 1, shape (m, C), int64. -100
            or NaN = there is none.
        predicted: what `log_probabilities` or `values` return.
    """

    path: Path
    about: PredictionsAbout
    client: Ints
    index: Ints
    target: Ints | Floats
    predicted: Floats

    @property
    def log_probabilities(self) -> Floats:
        """Of the classes, in nats, shape (m, C), float64; of text (m, T, C); of each label (m, C).

        Raises:
            UserError: numbers are predicted.
        """
        return self._given("log_probabilities")

    @property
    def values(self) -> Floats:
        """Numbers, in deviations from `about.target_mean` as `target`, shape (m, k), float64.

        Raises:
            UserError: classes or labels are predicted.
        """
        return self._given("values")

    def _given(self, name: str) -> Floats:
        given = GIVES[self.about.task]
        if name != given:
            raise UserError(f"{self.path}: it has {given} of {self.about.task}, no {name}")
        return self.predicted

    def in_units(self) -> tuple[Floats, Floats]:
        """Values and targets in the units of the data set, shape (m, k) each.

        Raises:
            UserError: classes or labels are predicted.
        """
        mean, deviation = map(np.array, (self.about.target_mean, self.about.target_deviation))
        return self.values * deviation + mean, self.target * deviation + mean

    def of(self, client: int) -> SavedPredictions:
        """Those of one client; none where the result does not judge it."""
        own = self.client == client
        some = {
            name: getattr(self, name)[own] for name in ("client", "index", "target", "predicted")
        }
        return replace(self, **some)

    def accuracies(self) -> dict[int, float]:
        """Accuracy of each client, as in the result.

        Raises:
            UserError: numbers, or any number of labels, are predicted.
        """
        if self.about.task == "labels":
            raise UserError(
                f"{self.path}: a sample has any number of labels, so it is not right or wrong:"
                " compare log_probabilities with target, a column for each label"
            )
        right, counted = self.log_probabilities.argmax(axis=-1) == self.target, self.target != -100
        found = {}
        for client in np.unique(self.client).tolist():
            own = self.client == client
            found[client] = float(right[own].sum() / counted[own].sum())
        return found


def predictions_of(
    served: Served, about: Mapping[str, Any]
) -> tuple[PredictionsAbout, dict[str, Tensor]]:
    """What a file of predictions holds; `about` is what it says of the run."""
    assert served.outputs is not None, "predictions are asked for"
    task, outputs = about["task"], served.outputs.double()
    given = outputs
    if task == "classes":
        given = outputs.log_softmax(dim=-1)
    elif task == "labels":
        given = F.logsigmoid(outputs)
    targets = served.targets.double() if task == "numbers" else served.targets.long()
    tensors = {
        "client": served.clients.repeat_interleave(served.samples),
        "index": served.places,
        "target": targets,
        GIVES[task]: given,
    }
    return PredictionsAbout(**about), tensors


def read_predictions(path: str | Path) -> SavedPredictions:
    """The predictions that `--save-predictions` wrote; nothing of the file is executed.

    Args:
        path: of the file, `seed-<n>.predictions.safetensors` beside the result.

    Raises:
        UserError: it is no such file, or its parts do not fit each other.
        MachineError: it cannot be read.
    """
    found = user_path(path)
    about, tensors = read_saved(found, PredictionsAbout)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    given, task = GIVES[about.task], about.task
    expected = {"client", "index", "target", given}
    if other := sorted(expected ^ arrays.keys()):
        names = ", ".join(sorted(expected))
        what = "is missing" if other[0] in expected else "is none of them"
        raise UserError(f"{found}: {names} expected: '{other[0]}' {what}")
    said = arrays.pop(given)
    is_text = task == "classes" and arrays["target"].ndim == 2
    if said.dtype != np.float64 or said.ndim != (3 if is_text else 2):
        got = f"{said.dtype} of shape {said.shape}"
        raise UserError(f"{found}: '{given}': float64 of shape (m, C) expected, got {got}")
    shapes = {"target": said.shape[:-1] if task == "classes" else said.shape}
    for name, array in arrays.items():
        kind = np.float64 if name == "target" and task == "numbers" else np.int64
        shape = shapes.get(name, said.shape[:1])
        if array.dtype != kind or array.shape != shape:
            got = f"{array.dtype} of shape {array.shape}"
            wanted = f"{np.dtype(kind)} of shape {shape}"
            raise UserError(f"{found}: '{name}': {wanted} expected, got {got}")
    if task == "numbers" and not (
        len(about.target_mean) == len(about.target_deviation) == said.shape[1]
    ):
        raise UserError(f"{found}: 'target_mean': {said.shape[1]} numbers expected")
    return SavedPredictions(found, about, **arrays, predicted=said)
