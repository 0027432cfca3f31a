"""What a hook's answer must look like, and the one line that says it does not.

Every message names plugin, hook and round: `round 20: pfedlia.cluster returned shape (10,),
expected (20,): one group per client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from flbench.client import ClientModule
from flbench.errors import PluginError
from flbench.state import (
    Dispatched,
    Membership,
    Models,
    Partition,
    Personal,
    Scores,
    Setup,
    Stage,
    Start,
    State,
)

if TYPE_CHECKING:
    from flbench.context import Context
    from flbench.plugins import Answer

T = TypeVar("T")


def in_round(ctx: Context | None, message: str) -> PluginError:
    """A plugin's error, with the round it happened in."""
    return PluginError(f"round {ctx.round}: {message}" if ctx and ctx.round else message)


def _need(answer: Answer | None, hook: str) -> Answer:
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


def _shape(
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


def partition(answer: Answer | None, clients: int, samples: int) -> Partition:
    """One list of valid, distinct indices per client; groups for all or none."""
    answer = _need(answer, "partition")
    value = of_type("partition", answer, Partition, None)
    who = f"{answer.plugin}.partition"
    if len(value.clients) != clients:
        raise PluginError(
            f"{who} returned {len(value.clients)} lists, expected {clients}: one per client"
        )
    for client, rows in enumerate(value.clients):
        if len(rows) and not 0 <= int(np.min(rows)) <= int(np.max(rows)) < samples:
            raise PluginError(f"{who} gave client {client} a sample outside 0..{samples - 1}")
        if len(np.unique(rows)) != len(rows):
            raise PluginError(f"{who} gave client {client} a sample twice")
    if value.groups is not None and value.groups.shape != (clients,):
        raise PluginError(
            f"{who} returned groups of shape {value.groups.shape}, expected ({clients},):"
            " one true group per client"
        )
    return value


def setup(answer: Answer, ctx: Context) -> Setup:
    """Rows of the right width, memories named and shaped by their scope."""
    value = of_type("setup", answer, Setup, ctx)
    who = f"{answer.plugin}.setup"
    if value.models is not None:
        _shape(who, value.models, (None, ctx.layout.width), "one row per model", ctx)
    for name, memory in value.memory.items():
        if name.count(".") != 1:
            raise PluginError(f"{who}: memory '{name}' must be named '<method>.<name>'")
        if memory.scope == "client" and len(memory.value) != ctx.clients:
            raise PluginError(
                f"{who}: memory '{name}' has {len(memory.value)} entries, expected {ctx.clients}:"
                " one per client"
            )
    return value


def fits(merged: Setup, ctx: Context) -> None:
    """First bank and first membership belong together."""
    assert merged.models is not None and merged.membership is not None, "the defaults answer"
    _membership("setup", merged.membership, len(merged.models), ctx)
    for name, memory in merged.memory.items():
        if memory.scope == "model" and len(memory.value) != len(merged.models):
            raise PluginError(
                f"setup: memory '{name}' has {len(memory.value)} entries,"
                f" expected {len(merged.models)}: one per model"
            )


def plan(answer: Answer | None, ctx: Context) -> Sequence[Stage]:
    """At least one stage; ids ascending and distinct; labels distinct."""
    answer = _need(answer, "plan")
    stages: Sequence[Stage] = tuple(answer.value)
    who = f"{answer.plugin}.plan"
    if not stages or not all(isinstance(stage, Stage) for stage in stages):
        raise in_round(ctx, f"{who} returned {answer.value!r}, expected a sequence of Stage")
    for stage in stages:
        ids = stage.clients
        if len(ids) and (ids.min() < 0 or ids.max() >= ctx.clients or (ids.diff() <= 0).any()):
            raise in_round(
                ctx,
                f"{who}: stage '{stage.label}' expects ascending client ids in"
                f" 0..{ctx.clients - 1}, got {ids.tolist()}",
            )
    labels = [stage.label for stage in stages]
    if len(set(labels)) < len(labels):
        raise in_round(ctx, f"{who}: two stages of one round need different names, got {labels}")
    return stages


def extra(answer: Answer, kind: str, name: str, tensor: Tensor, acting: int, ctx: Context) -> None:
    """Extras are per acting client."""
    who = f"{answer.plugin}.dispatch"
    if not isinstance(tensor, Tensor) or len(tensor) != acting:
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise in_round(
            ctx, f"{who}: {kind} '{name}' is {got}, expected {acting} rows: one per acting client"
        )


def dispatch(start: Start, stage: Stage, ctx: Context) -> Dispatched:
    """A start with every field filled in."""
    acting, width = len(stage.clients), ctx.layout.width
    _shape("dispatch", start.params, (acting, None, width), "clients, candidates, scalars", ctx)
    assert start.params is not None and start.crosses is not None, "the defaults answer"
    candidates = start.params.shape[1]
    active = torch.ones(acting, candidates, dtype=torch.bool)
    returns = start.crosses if start.returns is None else start.returns
    return Dispatched(
        params=start.params,
        active=active if start.active is None else start.active,
        rows=start.rows,
        crosses=start.crosses.expand(acting, width),
        returns=returns.expand(acting, width),
        extras=start.extras,
        own=start.own,
    )


def client_module(answer: Answer | None, ctx: Context) -> ClientModule:
    """A ClientModule."""
    return of_type("client_module", _need(answer, "client_module"), ClientModule, ctx)


def score(answer: Answer, ctx: Context) -> Scores:
    """Finite or NaN, one row per judge, one column per judged."""
    value = of_type("score", answer, Scores, ctx)
    who = f"{answer.plugin}.score"
    shape = (len(value.row_ids), len(value.column_ids))
    _shape(who, value.values, shape, "judging clients x judged", ctx)
    if torch.isinf(value.values).any():
        raise in_round(ctx, f"{who} returned infinite scores, expected finite or NaN (= not asked)")
    return value


def _membership(who: str, value: Membership, rows: int, ctx: Context) -> None:
    _shape(who, value.home, (ctx.clients,), "one group per client", ctx)
    low, high = int(value.home.min()), int(value.home.max())
    if low < -1 or high >= rows:
        raise in_round(
            ctx, f"{who} sent clients to row {low if low < -1 else high}, expected -1..{rows - 1}"
        )
    if value.weights is not None:
        _shape(who, value.weights, (rows, ctx.clients), "share of each client in each row", ctx)
        if not bool((value.weights >= 0).all()):
            raise in_round(ctx, f"{who} returned negative shares, expected >= 0")


def cluster(answer: Answer, state: State, ctx: Context) -> Membership:
    """One home per client, in the rows that are there or that `parent` makes."""
    value = of_type("cluster", answer, Membership, ctx)
    who = f"{answer.plugin}.cluster"
    rows = len(state.models)
    if value.parent is not None:
        if len(value.parent) == 0 or value.parent.min() < 0 or value.parent.max() >= rows:
            raise in_round(
                ctx, f"{who}: parent expects old rows in 0..{rows - 1}, got {value.parent.tolist()}"
            )
        rows = len(value.parent)
    _membership(who, value, rows, ctx)
    return value


def aggregate(answer: Answer | None, state: State, ctx: Context) -> Models:
    """As many rows as the membership speaks of, all finite."""
    answer = _need(answer, "aggregate")
    value = of_type("aggregate", answer, Models, ctx)
    who = f"{answer.plugin}.aggregate"
    _shape(who, value.rows, tuple(state.models.shape), "one row per model", ctx)
    for name in value.memory:
        if name not in state.memory:
            raise in_round(ctx, f"{who}: memory '{name}' was not declared in setup")
    return value


def personalise(answer: Answer | None, state: State, clients: Tensor, ctx: Context) -> Personal:
    """Either a row of the bank or a model per asked client."""
    answer = _need(answer, "personalise")
    value = of_type("personalise", answer, Personal, ctx)
    who = f"{answer.plugin}.personalise"
    if (value.row is None) == (value.params is None):
        raise in_round(ctx, f"{who} must give either `row` or `params`")
    if value.row is not None:
        _shape(who, value.row, (len(clients),), "one row per client", ctx)
        if value.row.min() < 0 or value.row.max() >= len(state.models):
            lost: Any = clients[(value.row < 0) | (value.row >= len(state.models))]
            raise in_round(ctx, f"{who} names no row for clients {lost.tolist()[:5]}")
    else:
        _shape(who, value.params, (len(clients), ctx.layout.width), "one model per client", ctx)
    return value
