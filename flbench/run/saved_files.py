"""The files of saved models and predictions: safetensors, with what they are of in the header.

Nothing of a file is executed: it holds numbers, and JSON in its header. What it names of installed
packages is looked up by name, as that of a result file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flbench.errors import UserError, naming
from flbench.federation.target_scale import TargetScale
from flbench.results.files import atomic_write
from flbench.results.schema import (
    Count,
    Fingerprint,
    Method,
    Name,
    Number,
    Positive,
    SavedKind,
    StoredValue,
    first_problem,
    problem_text,
)
from flbench.run.spec import RunSpec
from flbench.suite import Suite
from flbench.tasks import TaskName

HEADER = "flbench"
"""Key of the header that holds everything but tensors, as JSON; one key, so that its place in the
file, and so the file's bytes, are the same each time."""

NET, OTHER = "net.", "client_module."
"""How a ClientModule names the tensors of its network, and how a file names the others."""
Predicts = Literal["network", "module", "predictor"]
"""See `ModelsAbout`."""
RECEIVED, CONTEXT = "received.", "context."
"""Beginnings of the names of what clients receive to predict with, and of what the server knows."""


class About(BaseModel):
    """What a saved file is of.

    Attributes:
        holds: "models" or "predictions".
        version: of the format.
        suite: its settings, as in the result.
        round: whose models they are: the round that the summary reports.
        task: what is predicted.
        target_mean, target_deviation: of numbers that are predicted, the mean and the deviation of
            all training targets: outputs are deviations from the mean, in units of the deviation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    holds: SavedKind
    version: Literal[1] = 1
    suite: dict[Name, StoredValue]
    dataset: Name
    method: Method
    seed: Count
    fingerprint: Fingerprint
    round: Positive
    task: TaskName = "classes"
    target_mean: list[Number] = []
    target_deviation: list[Number] = []


class ModelsAbout(About):
    """What a file of models says beside the tensors.

    Attributes:
        clients: ids of the clients that have a model in the file, ascending.
        rows: for each of them the place of its model in every tensor.
        shape: of a sample.
        outputs: C, outputs of the network: classes, numbers or labels.
        tokens: number of different tokens of samples with one label each; 0 for other samples.
        predicts: what turns samples into logits: the "network" alone, the "module" of the method,
            or a "predictor" that lives in its run.
        common: names of tensors that all models share: weights that nobody trains.
    """

    holds: Literal["models"] = "models"
    clients: list[Count] = Field(min_length=1)
    rows: list[Count] = Field(min_length=1)
    shape: list[Count]
    outputs: Positive
    tokens: Count = 0
    predicts: Predicts
    common: list[str] = []

    @property
    def asked(self) -> Suite:
        """The suite of the run."""
        return Suite.model_validate({**self.suite, "summary": "", "dataset": self.dataset})


class PredictionsAbout(About):
    """What a file of predictions says beside the tensors."""

    holds: Literal["predictions"] = "predictions"


AboutKind = TypeVar("AboutKind", bound=About)


def about_run(
    spec: RunSpec, marks: Fingerprint, round_: int, task: TaskName, scale: TargetScale | None
) -> dict[str, Any]:
    """What every saved file of a run says of it; `round_` is the one that the summary reports."""
    return {
        "target_mean": [] if scale is None else scale.mean.tolist(),
        "target_deviation": [] if scale is None else scale.deviation.tolist(),
        "task": task,
        "suite": {"name": spec.suite.name, **spec.suite.settings()},
        "dataset": spec.suite.dataset,
        "method": spec.method.described,
        "seed": spec.seed,
        "fingerprint": marks,
        "round": round_,
    }


def write_saved(path: Path, about: About, tensors: Mapping[str, Tensor]) -> None:
    """Write a saved file, whole or not at all.

    Raises:
        MachineError: it cannot be written.
    """
    owned = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = {HEADER: json.dumps(about.model_dump(), sort_keys=True, allow_nan=False)}
    atomic_write(path, lambda temporary: save_file(owned, temporary, metadata=header))


def read_saved(path: Path, kind: type[AboutKind]) -> tuple[AboutKind, dict[str, Tensor]]:
    """What a saved file is of, and its tensors by name.

    Raises:
        UserError: it is no such file, or one of another version.
        MachineError: it cannot be read.
    """
    wanted = kind.model_fields["holds"].default
    try:
        with naming(path), safe_open(path, framework="pt") as file:
            table = json.loads((file.metadata() or {})[HEADER])
            about = kind.model_validate(table)
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except ValidationError as error:
        found: Any = table if isinstance(table, dict) else {}
        held = found.get("holds")
        if held in ("models", "predictions") and held != wanted:
            raise UserError(f"{path}: expected saved {wanted}, found {held}") from None
        what = problem_text(*first_problem(error, table))
        raise UserError(f"{path}: no file of saved {wanted}: {what}") from None
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: no file of saved {wanted}, as --save-{wanted} writes it ({error})"
        ) from None
    return about, tensors
