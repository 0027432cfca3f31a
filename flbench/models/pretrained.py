"""Pretrained weights: read a file safely, compare names and shapes, copy them into a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from flbench.errors import MissingData, UserError


@dataclass(frozen=True)
class PretrainedWeights:
    """The source of a network's pretrained weights, and the errors of its files."""

    model: str
    expected: str
    """What the file must hold."""
    parameter: str
    """The parameter of the network that names the file."""

    def message(self, path: Path, came: str) -> str:
        """One line: what was expected, what came, what to type."""
        return (
            f"{self.model} expects {self.expected} in {path}, got {came};"
            f" name it with --set model.{self.parameter}=PATH, or none for random weights"
        )

    def missing(self, path: Path, came: str = "no such file") -> MissingData:
        """The error for a missing file."""
        return MissingData(self.message(path, came))

    def unfit(self, path: Path, came: str) -> UserError:
        """The error for a file that holds something else."""
        return UserError(self.message(path, came))

    def read(self, path: Path) -> dict[str, Tensor]:
        """Read named tensors from a .safetensors or torch file; no code in the file is executed.

        Raises:
            MissingData: there is no such file.
            UserError: the file holds something else.
        """
        if not path.is_file():
            raise self.missing(path)
        try:
            held: Any = (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, map_location="cpu", weights_only=True)
            )
        except Exception as error:  # the unpickler raises anything where a file is none of its own
            raise self.unfit(path, f"a file that cannot be read ({type(error).__name__})") from None
        if not isinstance(held, Mapping):
            raise self.unfit(path, f"a {type(held).__name__}")
        return {str(name): value for name, value in held.items() if isinstance(value, Tensor)}

    def copy(
        self, path: Path, given: Mapping[str, Tensor], net: nn.Module, fresh: tuple[str, ...] = ()
    ) -> None:
        """Copy tensors of a file into a network, in place, but for names with a prefix in `fresh`.

        Raises:
            UserError: names or shapes differ.
        """
        own = {k: v for k, v in net.state_dict().items() if not k.startswith(fresh)}
        given = {k: v for k, v in given.items() if not k.startswith(fresh)}
        wrong = [
            f"'{name}' of shape {_shape(given, name)} where {_shape(own, name)} belongs"
            for name in dict.fromkeys([*own, *given])
            if _shape(given, name) != _shape(own, name)
        ]
        if wrong:
            more = f" and {len(wrong) - 1} more that differ" if len(wrong) > 1 else ""
            raise self.unfit(path, wrong[0] + more)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(given[name])


def _shape(tensors: Mapping[str, Tensor], name: str) -> str:
    return str(tuple(tensors[name].shape)) if name in tensors else "nothing"
