"""Types that several modules of the contract share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

Direction = Literal["down", "up", "peer"]
"""Direction of communication: server to clients, clients to server, client to client."""


Scope = Literal["run", "model", "client"]
"""Whether a memory has one entry per run, per row of the model bank or per client."""


Kind = Literal["train", "probe", "trial", "join"]
"""The kind of a stage: see `Stage`."""


Phase = Literal["before", "after"]
"""Whether `score` and `cluster` are called before a stage's training or after it."""


Extras = Mapping[str, Tensor]
"""Tensors by name that clients receive, remember or upload beside the model."""


Plain = bool | int | float | str | None | list[Any] | dict[str, Any]
"""Data that JSON can hold."""
