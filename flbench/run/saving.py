"""Saving: what serves clients, and what it says of their test samples, kept for the end of a run.

The evaluation hands over what it has judged; after the last round it is written beside the result
(`saved_models.py`, `saved_predictions.py`). So the files are of the very round that the summary
reports, and their predictions give its accuracies again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flbench.core.model_bank import plain, take
from flbench.core.state import Personal, State
from flbench.core.targets import tokens_of
from flbench.errors import BadParameter
from flbench.federation.federation import Samples
from flbench.results.kept_files import KeepOptions

MOST = 2**33
"""Bytes of predictions that are kept; the file is made in memory."""


@dataclass(frozen=True)
class Served:
    """The models that were judged in a round, and what they say.

    Attributes:
        clients: ids of those that were judged, shape (n,).
        models: different models, shape (k, W), on the CPU.
        rows: the model of each client, shape (n,), int64.
        personal: how they predict; its own models do not count.
        outputs: logits of the clients' test samples, one client after the other, shape (m, ...), or
            numbers; None = they are not asked for.
        samples: test samples of each of them, shape (n,).
        places: places of the samples in the data set, shape (m,), int64.
        targets: what is to be predicted of them, as `core.targets` says.
    """

    round: int
    clients: Tensor
    models: Tensor
    rows: Tensor
    personal: Personal
    outputs: Tensor | None
    samples: Tensor
    places: Tensor
    targets: Tensor


@dataclass
class Saving:
    """What a run saves, and what it has of it so far.

    Attributes:
        keep: what was asked for.
        tokens: number of different tokens of samples with one label each, else 0.
        taken: what the last evaluation has judged.
        shown: what the evaluation has judged that the summary reports so far.
    """

    keep: KeepOptions
    tokens: int = 0
    taken: Served | None = None
    shown: Served | None = None

    def take(
        self,
        state: State,
        clients: Tensor,
        personal: Personal,
        held_out: Samples,
        outputs: Tensor | None,
    ) -> None:
        """Take what an evaluation has judged; arguments as of `evaluate`."""
        lists = held_out.splits["test"]
        samples = torch.cat([lists[client] for client in clients.tolist()])
        known = torch.arange(len(held_out.y)) if held_out.places is None else held_out.places
        models, rows = distinct(personal, state)
        self.taken = Served(
            round=state.round,
            clients=clients,
            models=models,
            rows=rows,
            personal=personal,
            outputs=outputs,
            samples=held_out.sizes("test")[clients],
            places=known[samples],
            targets=held_out.y[samples].cpu(),
        )

    def show(self) -> None:
        """The summary reports the evaluation that was taken last."""
        self.shown = self.taken


def distinct(personal: Personal, state: State) -> tuple[Tensor, Tensor]:
    """The models that serve clients, shape (k, W), on the CPU; the model of each client, (n,)."""
    if personal.params is not None:
        models: Tensor = plain(personal.params)
        return models.detach().cpu().clone(), torch.arange(len(models))
    assert personal.row is not None, "one of the two is given"
    rows, index = personal.row.unique(return_inverse=True)
    found: Tensor = plain(take(state.models, rows))
    return found.detach().cpu().clone(), index


def refuse_too_many(keep: KeepOptions, samples: int, y: Tensor, outputs: int) -> None:
    """Refuse predictions that no file is to hold, before the first round.

    Args:
        keep: what was asked for.
        samples: test samples of all clients together.
        y: targets of some samples.
        outputs: of the network, C.

    Raises:
        BadParameter: they are too many.
    """
    numbers = samples * tokens_of(y) * outputs
    if keep.predictions and 8 * numbers > MOST:
        raise BadParameter(
            f"--save-predictions: {numbers:,} numbers for {samples:,} test samples: at most"
            f" {MOST // 8:,} expected; drop the option, or set fewer clients"
        )
