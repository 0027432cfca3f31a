"""The ledger: every scalar that crosses between server and clients is counted here, once.

Four bytes a scalar, whatever its type; NaN in an extra is a scalar that is not sent. A model that
a client already received in this round is not sent to it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from flbench.core.state import Dispatched, Stage, Upload
from flbench.core.types import Direction
from flbench.errors import UserError

BYTES = 4


DIRECTIONS: tuple[Direction, ...] = ("down", "up", "peer")


@dataclass
class CommunicationLedger:
    """Bytes by direction and item, and by client.

    Attributes:
        clients: N.
        totals: direction -> item -> bytes since the run began.
        per_client: direction -> bytes at each client's end, shape (N,), int64.
    """

    clients: int
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    per_client: dict[str, Tensor] = field(default_factory=dict)
    _before: dict[str, Tensor] = field(default_factory=dict)
    _received: dict[int, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for direction in DIRECTIONS:
            self.totals.setdefault(direction, {})
            self.per_client.setdefault(direction, torch.zeros(self.clients, dtype=torch.int64))

    def open_round(self) -> None:
        """Forget which models the clients hold: a new round begins."""
        self._received.clear()
        self._before = {way: moved.clone() for way, moved in self.per_client.items()}

    def slowest(self, direction: Direction) -> int:
        """Most bytes at one client's end in this round: what parallel links wait for."""
        return int((self.per_client[direction] - self._before[direction]).max())

    def send(self, direction: Direction, clients: Tensor, item: str, scalars: Tensor | int) -> None:
        """Count `scalars[i]` scalars (or one number for all) at the end of `clients[i]`."""
        if direction not in DIRECTIONS:
            raise UserError(
                f"direction: expected one of {', '.join(DIRECTIONS)}, got '{direction}'"
            )
        if isinstance(scalars, int):
            scalars = torch.full(clients.shape, scalars)
        if scalars.shape != clients.shape or bool((scalars < 0).any()):
            raise UserError(
                f"scalars: expected {len(clients)} numbers >= 0, one per client, got {scalars}"
            )
        sizes = scalars.long() * BYTES
        self.per_client[direction].index_add_(0, clients, sizes)
        table = self.totals[direction]
        table[item] = table.get(item, 0) + int(sizes.sum())

    def send_models(self, clients: Tensor, models: Tensor) -> None:
        """Send whole models, shape (m, W), to each of some clients."""
        self.send("down", clients, "model", models.numel())
        for client in clients.tolist():
            self._received.setdefault(client, []).extend(models)

    def start(self, start: Dispatched, stage: Stage) -> None:
        """Count what the acting clients receive at the start of a stage."""
        scalars, widths = [], count(start.sent_mask)
        for place, client in enumerate(stage.clients.tolist()):
            width = int(widths[place])
            held = self._received.setdefault(client, [])
            rows = [
                row for row, on in zip(start.params[place], start.active[place], strict=True) if on
            ]
            news = [row for row in rows if not any(torch.equal(row, old) for old in held)]
            if width == len(start.sent_mask[place]):
                held.extend(news)
            scalars.append(width * len(news))
        self.send("down", stage.clients, "model", torch.tensor(scalars, dtype=torch.int64))
        for name, tensor in start.extras.items():
            self.send("down", stage.clients, name, _each(tensor))

    def upload(self, upload: Upload, start: Dispatched) -> None:
        """Count what the acting clients send back: the extras, and the candidate they keep.

        Candidates that are for different rows of the bank are all sent.
        """
        models = 1 if upload.rows is None else upload.active.sum(dim=1)
        self.send("up", upload.ids, "model", models * count(start.returned_mask))
        for name, tensor in upload.extras.items():
            self.send("up", upload.ids, name, _each(tensor))

    def total(self, direction: Direction) -> int:
        """Bytes since the run began."""
        return sum(self.totals[direction].values())


def count(masks: Tensor) -> Tensor:
    """True scalars of each mask, shape (n, W) -> (n,); one that was expanded is counted once."""
    if len(masks) and masks.stride(0) == 0:
        return masks[:1].count_nonzero().expand(len(masks)).cpu()
    return torch.tensor([int(mask.count_nonzero()) for mask in masks], dtype=torch.int64)


def _each(tensor: Tensor) -> Tensor:
    """Scalars per client of a tensor whose first dimension is the clients; NaN = not sent."""
    return (~tensor.isnan()).reshape(len(tensor), -1).sum(dim=1).cpu()
