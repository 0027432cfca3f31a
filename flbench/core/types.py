"""Types that several parts of the contract share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

Direction = Literal["down", "up", "peer"]


Scope = Literal["run", "model", "client"]


Kind = Literal["train", "probe", "trial", "join"]
"""What a stage is for: see `Stage`."""


Phase = Literal["before", "after"]
"""Whether `score` and `cluster` are asked before a stage's training or after it."""


Extras = Mapping[str, Tensor]


Plain = bool | int | float | str | None | list[Any] | dict[str, Any]
