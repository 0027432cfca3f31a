"""Saved predictions: what served models say of the test samples, as `--save-predictions` writes it.

found = fl.read_predictions("flbench-results/.../seed-0.predictions.safetensors")
right = found.log_probabilities.argmax(-1) == found.target
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from flbench.errors import UserError
from flbench.metrics import Floats, Ints
from flbench.results.files import user_path
from flbench.run.saved_files import PredictionsAbout, read_saved
from flbench.run.saving import Served

TYPES = {"client": np.int64, "index": np.int64, "target": np.int64}
"""Of the arrays beside the predictions, which are float64."""


@dataclass(frozen=True)
class SavedPredictions:
    """What the models of a run's clients say of their test samples, at the round of its result.

    A sample that several clients have occurs once for each of them.

    Attributes:
        path: of the file.
        about: suite, method, seed and fingerprints.
        client: whose sample it is, shape (m,).
        index: place of the sample in the data set, shape (m,).
        target: its label, shape (m,); of text those of its tokens, shape (m, T), -100 = none.
        log_probabilities: of the classes, in nats, shape (m, C), float64; of text (m, T, C).
    """

    path: Path
    about: PredictionsAbout
    client: Ints
    index: Ints
    target: Ints
    log_probabilities: Floats

    def of(self, client: int) -> SavedPredictions:
        """Those of one client; none where the result does not judge it."""
        own = self.client == client
        return SavedPredictions(
            self.path,
            self.about,
            self.client[own],
            self.index[own],
            self.target[own],
            self.log_probabilities[own],
        )

    def accuracies(self) -> dict[int, float]:
        """Accuracy of each client, as in the result."""
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
    tensors = {
        "client": served.clients.repeat_interleave(served.samples),
        "index": served.places,
        "target": served.targets,
        "log_probabilities": served.outputs.double().log_softmax(dim=-1),
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
    if wanted := sorted({*TYPES, about.gives} ^ arrays.keys()):
        raise UserError(f"{found}: expected {', '.join(TYPES)} and {about.gives}: '{wanted[0]}'")
    said, target = arrays.pop(about.gives), arrays["target"]
    for name, array in arrays.items():
        shape = (len(said),) if name != "target" else said.shape[:-1]
        if array.dtype != TYPES[name] or array.shape != shape:
            got = f"{array.dtype} of shape {array.shape}"
            raise UserError(f"{found}: '{name}': int64 of shape {shape} expected, got {got}")
    if said.dtype != np.float64 or said.ndim not in (2, 3) or len(target) == 0:
        got = f"{said.dtype} of shape {said.shape}"
        raise UserError(f"{found}: '{about.gives}': float64 of shape (m, C) expected, got {got}")
    return SavedPredictions(
        found, about, arrays["client"], arrays["index"], target, log_probabilities=said
    )
