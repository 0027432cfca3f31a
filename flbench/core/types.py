"""Types that several modules of the contract share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Direction = Literal["down", "up", "peer", "client-edge", "edge-cloud"]
"""Direction of communication: server to clients, clients to server, client to client; and, where
edge servers stand between, both ways between clients and their edges, and edges and server."""
Scope = Literal["run", "model", "client"]
"""Whether a memory has one entry per run, per row of the model bank or per client."""
Kind = Literal["train", "probe", "trial", "join"]
"""What a stage is for: see `STAGE_KINDS`, which has an entry for each."""


@dataclass(frozen=True)
class StageKind:
    """What the round loop does with a stage of some kind.

    Attributes:
        aggregates: whether `aggregate` is asked for new models after the training.
        uses_local_terms: whether `local_term` is asked for terms of the training loss.
        doc: what such a stage is for.
    """

    aggregates: bool
    uses_local_terms: bool
    doc: str


STAGE_KINDS: dict[str, StageKind] = {
    "train": StageKind(True, True, "trains one model per client"),
    "probe": StageKind(False, True, "trains copies that are measured and then dropped"),
    "trial": StageKind(True, True, "trains several candidate models per client"),
    "join": StageKind(False, False, "trains newcomers after the last round; the state is frozen"),
}
"""Every kind of stage. A new kind is an entry here and a value of `Kind`."""
Phase = Literal["before", "after"]
"""Whether `score` and `cluster` are called before a stage's training or after it."""
Extras = Mapping[str, Tensor]
"""Tensors by name that clients receive, remember or upload beside the model."""
Plain = bool | int | float | str | None | list[Any] | dict[str, Any]
"""Data that JSON can hold."""
