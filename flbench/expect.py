"""Small expectations about what a plugin answered; each failure is one line that names it.

`round 20: pfedlia.cluster returned shape (10,), expected (20,): one group per client`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from flbench.core.model_bank import all_finite
from flbench.core.state import State
from flbench.errors import PluginError

if TYPE_CHECKING:
    from flbench.core.context import Context
    from flbench.plugins import Answer

T = TypeVar("T")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def in_round(ctx: Context | None, message: str) -> PluginError:
    """A plugin's error, with the round it happened in."""
    return PluginError(f"round {ctx.round}: {message}" if ctx and ctx.round else message)


def need(answer: Answer | None, hook: str) -> Answer:
    """An answer to a hook that somebody must answer."""
    if answer is None:
        raise PluginError(f"nobody answered the hook '{hook}'")
    return answer


def of_type(hook: str, answer: Answer, expected: type[T], ctx: Context | None) -> T:
    """The answer as the type its hook promises."""
    if not isinstance(answer.value, expected):
        raise in_round(
            ctx,
            f"{answer.plugin}.{hook} returned {type(answer.value).__name__},"
            f" expected {expected.__name__}",
        )
    return answer.value


def shape(
    who: str, tensor: object, expected: tuple[int | None, ...], meaning: str, ctx: Context
) -> None:
    """Check a tensor's shape; None stands for any length."""
    came = tuple(tensor.shape) if isinstance(tensor, Tensor) else None
    fits = came is not None and len(came) == len(expected)
    if not fits or any(e not in (None, c) for e, c in zip(expected, came or (), strict=True)):
        wanted = tuple("any" if length is None else length for length in expected)
        text = f"({', '.join(map(str, wanted))}{',' if len(wanted) == 1 else ''})"
        got = f"shape {came}" if came is not None else type(tensor).__name__
        raise in_round(ctx, f"{who} returned {got}, expected {text}: {meaning}")


def indices(
    who: str, tensor: object, expected: tuple[int | None, ...], meaning: str, ctx: Context
) -> None:
    """Check a tensor of row numbers or client ids."""
    shape(who, tensor, expected, meaning, ctx)
    if isinstance(tensor, Tensor) and tensor.dtype not in INTEGERS:
        raise in_round(ctx, f"{who} returned {tensor.dtype}, expected int64: {meaning}")


def bank(
    who: str, rows: object, expected: tuple[int | None, ...], meaning: str, ctx: Context
) -> None:
    """Check model rows: shape, float32, finite."""
    shape(who, rows, expected, meaning, ctx)
    if isinstance(rows, Tensor) and rows.dtype != torch.float32:
        raise in_round(ctx, f"{who} returned {rows.dtype}, expected float32: {meaning}")
    if isinstance(rows, Tensor) and not all_finite(rows):
        raise in_round(ctx, f"{who} returned models that are not finite")


def memory(who: str, kept: Mapping[str, Tensor], state: State, rows: int, ctx: Context) -> None:
    """What a hook wants remembered was declared in `setup` and keeps its scope's length."""
    lengths = {"model": rows, "client": ctx.clients}
    for name, value in kept.items():
        if name not in state.memory:
            raise in_round(ctx, f"{who}: memory '{name}' was not declared in setup")
        scope = state.scopes.get(name, "run")
        if scope in lengths and len(value) != lengths[scope]:
            raise in_round(
                ctx,
                f"{who}: memory '{name}' has {len(value)} entries, expected {lengths[scope]}:"
                f" one per {scope}",
            )
