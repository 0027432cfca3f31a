"""CommunicationLedger: counts what is sent between server and clients, once, in bits.

A scalar has 32 bits, independent of its type, unless a plugin codes it (`encode`); NaN in an extra
is a scalar that is not sent. A complete model that a client already received in this round is not
sent to it again; scalars that no message to it has, as buffers of its own, are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from flbench.core.state import Dispatched, Stage, Upload
from flbench.core.types import Direction
from flbench.errors import UserError

BITS = 32
"""Size of a scalar."""
Size = TypeVar("Size", int, Tensor)
DIRECTIONS: tuple[Direction, ...] = ("down", "up", "peer")
"""What every run has an entry of."""
EDGES: tuple[Direction, ...] = ("client-edge", "edge-cloud")
"""Where there are edge servers, both ways; a run without them has no entry of these."""
OF_CLIENTS: tuple[Direction, ...] = (*DIRECTIONS, "client-edge")
"""What clients send or receive; edges talk to the server."""


@dataclass
class CommunicationLedger:
    """Bits by direction and item, and by client.

    Attributes:
        clients: N.
        bits: direction -> item -> bits since the start of the run.
        client_bits: direction -> bits that each client (of "edge-cloud", each edge) sends or
            receives, shape (N,), int64.
    """

    clients: int
    bits: dict[str, dict[str, int]] = field(default_factory=dict)
    client_bits: dict[str, Tensor] = field(default_factory=dict)
    _round_start: dict[str, Tensor] = field(default_factory=dict)
    _received: dict[int, list[Tensor]] = field(default_factory=dict)  # tables of models, (m, W)

    def __post_init__(self) -> None:
        for direction in DIRECTIONS:
            self.bits.setdefault(direction, {})
        for direction in (*DIRECTIONS, *EDGES):
            self.client_bits.setdefault(direction, torch.zeros(self.clients, dtype=torch.int64))

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Direction -> item -> bytes since the start of the run, rounded up."""
        return {
            direction: {item: in_bytes(bits) for item, bits in items.items()}
            for direction, items in self.bits.items()
        }

    @property
    def per_client(self) -> dict[str, Tensor]:
        """Direction -> bytes that each client sends or receives, rounded up, shape (N,), int64."""
        return {direction: in_bytes(self.client_bits[direction]) for direction in OF_CLIENTS}

    def open_round(self) -> None:
        """Start a new round: the clients hold no model of it yet."""
        self._received.clear()
        self._round_start = {way: count.clone() for way, count in self.client_bits.items()}

    def slowest(self, direction: Direction) -> int:
        """Largest number of bytes of one client in this round; parallel links wait for it."""
        return in_bytes(int((self.client_bits[direction] - self._round_start[direction]).max()))

    def send(
        self,
        direction: Direction,
        clients: Tensor,
        item: str,
        scalars: Tensor | int,
        bits: int = BITS,
    ) -> None:
        """Count scalars that clients send or receive; the arguments are those of `Context.send`.

        Raises:
            UserError: an unknown direction or client, not one whole number >= 0 per client, or an
                item or bits that cannot be.
        """
        refuse_unknown(direction)
        if not isinstance(item, str) or not item.isprintable() or not item:
            raise UserError(f"item: expected a name in one line, got {item!r:.60}")
        if isinstance(bits, bool) or not isinstance(bits, int) or bits < 0:
            raise UserError(f"bits: expected a whole number >= 0 of each scalar, got {bits!r}")
        if isinstance(scalars, int):
            scalars = torch.full(clients.shape, scalars)
        whole = isinstance(scalars, Tensor) and bool((scalars == scalars.long()).all())
        if not whole or scalars.shape != clients.shape or bool((scalars < 0).any()):
            expected = f"{len(clients)} whole numbers >= 0, one per client"
            raise UserError(f"scalars: expected {expected}, got {scalars}")
        if not all(0 <= one < self.clients for one in clients.tolist()):
            who = "edges" if direction == "edge-cloud" else "clients"
            expected = f"numbers of {who} in 0..{self.clients - 1}"
            raise UserError(f"{direction}: expected {expected}, got {clients.tolist()}")
        sizes = scalars.long() * bits
        self.client_bits[direction].index_add_(0, clients, sizes)
        table = self.bits.setdefault(direction, {})
        table[item] = table.get(item, 0) + int(sizes.sum())

    def sent(self, direction: Direction) -> frozenset[str]:
        """Names of the items of which something was sent since the start of the run.

        Raises:
            UserError: an unknown direction.
        """
        refuse_unknown(direction)
        return frozenset(item for item, bits in self.bits.get(direction, {}).items() if bits)

    def send_models(self, clients: Tensor, models: Tensor, scalars: int | None = None) -> None:
        """Count complete models, shape (m, W), that each of some clients receives.

        `scalars` is how many of all of them are sent; None = all.
        """
        self.send("down", clients, "model", models.numel() if scalars is None else scalars)
        for client in clients.tolist():
            self._received.setdefault(client, []).append(models)

    def start(self, start: Dispatched, stage: Stage, complete: Tensor | None = None) -> None:
        """Count what the acting clients receive at the start of a stage.

        Args:
            start: what they receive.
            stage: the stage.
            complete: number of scalars of a complete model of each client, shape (n,); None = W.
        """
        scalars, full = [], start.sent_mask.shape[1]
        whole = [full] * len(stage.clients) if complete is None else complete.tolist()
        widths, active = count_true(start.sent_mask).tolist(), start.active.tolist()
        for i, client in enumerate(stage.clients.tolist()):
            width, received = widths[i], self._received.setdefault(client, [])
            candidates = [start.params[i, number] for number, on in enumerate(active[i]) if on]
            part = start.sent_mask[i].to(start.params.device) if width < full else slice(None)
            new = [row for row in candidates if not any(_has(one, row, part) for one in received)]
            if width == whole[i]:  # only complete models count as received
                received.extend(_sent_part(row, part)[None] for row in new)
            scalars.append(width * len(new))
        way: Direction = "down" if stage.edges is None else "client-edge"
        self.send(way, stage.clients, "model", torch.tensor(scalars, dtype=torch.int64))
        for name, tensor in start.extras.items():
            self.send(way, stage.clients, name, _sent_scalars(tensor))

    def upload(self, upload: Upload, start: Dispatched, stage: Stage | None = None) -> None:
        """Count what the acting clients send back: the extras, and the candidate they keep.

        Candidates that belong to different rows of the bank are all sent. Where the clients of the
        stage have edges, it goes to these.
        """
        way: Direction = "up" if stage is None or stage.edges is None else "client-edge"
        if upload.bits is None:
            models = 1 if upload.rows is None else upload.active.sum(dim=1)
            self.send(way, upload.ids, "model", models * count_true(start.returned_mask))
        else:
            sizes = upload.bits.amax(dim=1) if upload.rows is None else upload.bits.sum(dim=1)
            self.send(way, upload.ids, "model", sizes, bits=1)
        for name, tensor in upload.extras.items():
            self.send(way, upload.ids, name, _sent_scalars(tensor))

    def total(self, direction: str) -> int:
        """Bytes since the start of the run."""
        return sum(self.totals.get(direction, {}).values())


def refuse_unknown(direction: str) -> None:
    """Refuse a direction that there is not.

    Raises:
        UserError: names those that there are.
    """
    if direction not in (*DIRECTIONS, *EDGES):
        expected = ", ".join((*DIRECTIONS, *EDGES))
        raise UserError(f"direction: expected one of {expected}, got '{direction}'")


def in_bytes(bits: Size) -> Size:
    """Bits as whole bytes, rounded up.

    Example:
        >>> in_bytes(8), in_bytes(9)
        (1, 2)
    """
    return -(-bits // 8)


def count_true(masks: Tensor) -> Tensor:
    """Number of True scalars of each mask, shape (n, W) -> (n,); an expanded mask is read once."""
    if len(masks) and masks.stride(0) == 0:
        return masks[:1].count_nonzero().expand(len(masks)).cpu()
    return torch.tensor([int(mask.count_nonzero()) for mask in masks], dtype=torch.int64)


def _has(table: Tensor, row: Tensor, part: Tensor | slice) -> bool:
    """Whether a table of models, shape (m, W), has a part of a model, shape (W,)."""
    wanted = row[part]
    if not len(wanted):
        return False
    first = int(part.nonzero()[0]) if isinstance(part, Tensor) else 0
    places = (table[:, first] == wanted[0]).nonzero()[:, 0].tolist()
    return any(torch.equal(table[place][part], wanted) for place in places)


def _sent_part(row: Tensor, part: Tensor | slice) -> Tensor:
    """A model, shape (W,), with NaN, which equals nothing, in the place of what is not sent."""
    return torch.where(part, row, torch.nan) if isinstance(part, Tensor) else row


def _sent_scalars(tensor: Tensor) -> Tensor:
    """Number of scalars per client, shape (n, ...) -> (n,); NaN = not sent."""
    each = prod(tensor.shape[1:])
    return (~tensor.isnan()).reshape(len(tensor), each).sum(dim=1).cpu()
