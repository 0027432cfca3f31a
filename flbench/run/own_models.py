"""Own models: what each client had after its last local training, kept from its upload.

They stay with the clients: no byte is counted, no hook sees them, and they cost no training. Rows
are stored as those of a `ModelBank`, so clients that have not trained take no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank
from flbench.core.state import Stage, Upload


@dataclass(frozen=True)
class OwnModels:
    """The own model of each client of a federation.

    Attributes:
        rows: shape (N, W); of a client that has not trained it means nothing.
        trained: whether a client has trained, shape (N,), bool.
    """

    rows: ModelBank
    trained: Tensor

    @classmethod
    def of_nobody(cls, initial: Tensor, clients: int, store: RowStore) -> OwnModels:
        """Before round 1; `initial` has shape (W,)."""
        untrained = torch.zeros(clients, dtype=torch.bool)
        return cls(ModelBank.repeated(initial, clients, store), untrained)

    def after(self, stage: Stage, upload: Upload) -> OwnModels:
        """The same after local training, as clients have it: before anything is encoded.

        Of several candidates a client has the chosen one. What is dropped (a probe), or trained on
        the samples of others (`Stage.pooled`), is no own model; nor is that of a client that made
        no step.
        """
        moved = (upload.steps > 0).nonzero()[:, 0].tolist()
        if stage.pooled or not stage.aggregates or not moved:
            return self
        rows, trained = self.rows.clone(), self.trained.clone()
        for place in moved:
            one, candidate = upload.ids[place : place + 1], int(upload.chosen[place])
            rows[one] = upload.params[place, candidate][None]
            trained[one] = True
        return replace(self, rows=rows, trained=trained)
