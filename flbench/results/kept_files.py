"""What a run keeps beside its result where it is asked to: names of the files, and their digests.

The options of commands are made of it, so it imports little: `run/saving.py` writes models and
predictions, `run/saved_models.py` and `run/saved_predictions.py` read them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.errors import UserError, naming

if TYPE_CHECKING:
    from flbench.results.schema import Result, SavedFile, SavedKind


@dataclass(frozen=True)
class KeepOptions:
    """What a run keeps beside its result; nothing of it is in a hash.

    Attributes:
        models: the models that serve clients at the round that the summary reports.
        predictions: what these models say of the test samples.
        checkpoint: the last round that a longer run has too, so that more rounds can follow.
    """

    models: bool = False
    predictions: bool = False
    checkpoint: bool = False

    @property
    def saved(self) -> list[SavedKind]:
        """The files that the result names."""
        wanted: dict[SavedKind, bool] = {"models": self.models, "predictions": self.predictions}
        return [kind for kind, is_wanted in wanted.items() if is_wanted]


def saved_path(result: Path, kind: SavedKind, seed: int) -> Path:
    """Where a saved file lies: beside the result."""
    from flbench.results.schema import saved_name

    return result.with_name(saved_name(kind, seed))


def last_checkpoint_path(result: Path) -> Path:
    """Where the checkpoint lies that a finished run has kept.

    Example:
        >>> last_checkpoint_path(Path("seed-0.json")).name
        'seed-0.last.safetensors'
    """
    return result.with_suffix(".last.safetensors")


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file, in hex.

    Raises:
        MachineError: it cannot be read.
    """
    with naming(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def saved_file(path: Path) -> SavedFile:
    """How a result names a file that was saved beside it."""
    from flbench.results.schema import SavedFile

    return SavedFile(name=path.name, sha256=digest_of_file(path))


def said_of_saved(path: Path, result: Result) -> str:
    """What there is of the files that a result names: which are as the run wrote them; "" = none.

    Raises:
        UserError: one of them has another digest than the result says.
        MachineError: one cannot be read.
    """
    said = []
    for kind, saved in (result.saved or {}).items():
        file = path.with_name(saved.name)
        if not file.is_file():
            said.append(f"{saved.name} is not beside it")
        elif digest_of_file(file) == saved.sha256:
            said.append(f"{saved.name} is as the run wrote it")
        else:
            raise UserError(
                f"{file}: its SHA-256 is not the one in {path.name}: the {kind} were damaged or"
                " edited, or are of another run; take those that the run wrote, or move them away"
            )
    return ", ".join(said)
