"""The exchange file: what both sides are given, and what each of them computed.

One safetensors file; a JSON text in its metadata holds what is not a tensor. Both sides write the
same kind of file, so the comparison knows nothing of frameworks. Drivers import this module from
its folder, in the environment of another framework, so it needs numpy and safetensors only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

Array = NDArray[np.generic]
KEY = "flbench"
"""Name of the metadata entry."""


@dataclass(frozen=True)
class Exchange:
    """A federation to play, or one that was played.

    Attributes:
        facts: what is not a tensor. `parameters`: name and shape of each tensor of the model, in
            the order of the flat vector. `cohorts`: the clients of each round, ascending. If the
            server does not wait for cohorts, `arrivals`: whose upload comes next, for each round.
            `local`: `epochs`, `batch_size`, `lr`, `momentum`. `clients`, `classes`: numbers.
            `algorithm`, `settings`: what the driver runs. In a played file also `version` and
            `patched`.
        arrays: `x/i` (n_i, d) float32 and `y/i` (n_i,) int64: the training samples of client i, in
            the order in which every epoch uses them; `initial` (W,) float32: the model before the
            first round; `start` (K, W) float32, if K centres are compared: those models.
            In a played file `r/server`, `r/client-i` and `r/centre-k` (W,) float32: models after
            round r = 1, 2, ...
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.facts["cohorts"])


def write(path: Path, exchange: Exchange) -> None:
    """Write an exchange file; the same content gives the same bytes."""
    arrays = {name: np.ascontiguousarray(array) for name, array in exchange.arrays.items()}
    save_file(arrays, path, {KEY: json.dumps(exchange.facts, sort_keys=True)})


def read(path: Path) -> Exchange:
    """Read an exchange file.

    Raises:
        ValueError: it is not one.
    """
    with safe_open(path, framework="numpy") as file:
        facts = (file.metadata() or {}).get(KEY)
        if facts is None:
            raise ValueError(f"{path}: expected an exchange file with the metadata '{KEY}'")
        return Exchange(json.loads(facts), {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no dict


def split(vector: Array, parameters: list[tuple[str, list[int]]]) -> dict[str, Array]:
    """The tensors of a flat vector of shape (W,), by name.

    Raises:
        ValueError: the vector has another length.
    """
    sizes = [int(np.prod(shape)) for _, shape in parameters]
    if vector.shape != (sum(sizes),):
        raise ValueError(f"expected a vector of {sum(sizes)} scalars, got shape {vector.shape}")
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(parameters, parts, strict=True)
    }
