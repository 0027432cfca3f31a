"""What an answer to each hook must look like; `expect` says it in one line if it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from flbench.core.client import ClientModule
from flbench.core.dataset import Partition
from flbench.core.model_bank import all_finite
from flbench.core.state import (
    Membership,
    Memory,
    Models,
    Personal,
    Scores,
    Setup,
    Stage,
    Start,
    State,
)
from flbench.core.types import STAGE_KINDS
from flbench.errors import PluginError, in_one_line
from flbench.plugin import validation

if TYPE_CHECKING:
    from flbench.core.context import Context
    from flbench.plugin.hook_guard import HookResult

T = TypeVar("T")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def in_round(ctx: Context | None, message: str) -> PluginError:
    """A plugin's error, with the round it happened in."""
    return PluginError(f"round {ctx.round}: {message}" if ctx and ctx.round else message)


def need(answer: HookResult | None, hook: str) -> HookResult:
    """An answer to a hook that must be answered."""
    if answer is None:
        raise PluginError(f"no plugin answered the hook '{hook}'")
    return answer


def of_type(hook: str, answer: HookResult, expected: type[T], ctx: Context | None) -> T:
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


START_SHAPES = {
    "sent_mask": "one flag per scalar, or one row of flags per acting client",
    "returned_mask": "one flag per scalar, or one row of flags per acting client",
    "active": "one flag per acting client and candidate",
    "rows": "the row of the bank each candidate is for",
}


def partition(answer: HookResult | None, clients: int, samples: int) -> Partition:
    """One list of valid, distinct indices per client; groups for all or none."""
    answer = validation.need(answer, "partition")
    value = validation.of_type("partition", answer, Partition, None)
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


def setup(answer: HookResult, ctx: Context) -> Setup:
    """Rows of the right width, memories named and shaped by their scope."""
    value = validation.of_type("setup", answer, Setup, ctx)
    who = f"{answer.plugin}.setup"
    if value.models is not None:
        validation.bank(who, value.models, (None, ctx.layout.width), "one row per model", ctx)
    for name, memory in value.memory.items():
        if name.count(".") != 1:
            raise PluginError(f"{who}: memory '{name}' must be named '<method>.<name>'")
        if memory.scope == "client" and len(memory.value) != ctx.clients:
            raise PluginError(
                f"{who}: memory '{name}' has {len(memory.value)} entries, expected {ctx.clients}:"
                " one per client"
            )
    return value


def fits(answer: HookResult, merged: Setup, ctx: Context) -> None:
    """One plugin's share of `setup` fits the bank that all of them together make."""
    value: Setup = answer.value
    who = f"{answer.plugin}.setup"
    assert merged.models is not None, "the defaults answer"
    if value.membership is not None and value.membership is merged.membership:
        _membership(who, value.membership, len(merged.models), ctx)
    for name, memory in value.memory.items():
        if memory.scope == "model" and len(memory.value) not in (1, len(merged.models)):
            raise PluginError(
                f"{who}: memory '{name}' has {len(memory.value)} entries,"
                f" expected {len(merged.models)}: one per model"
            )


def per_row(memory: Memory, rows: int) -> Memory:
    """Memory of scope "model" with one entry is meant for every row alike."""
    if memory.scope != "model" or len(memory.value) == rows:
        return memory
    return Memory(memory.value.expand(rows, *memory.value.shape[1:]).clone(), "model")


def plan(answer: HookResult | None, ctx: Context) -> Sequence[Stage]:
    """At least one stage, none without clients; ids ascending and distinct; names distinct."""
    answer = validation.need(answer, "plan")
    who = f"{answer.plugin}.plan"
    stages = answer.value
    is_sequence = isinstance(stages, Sequence) and len(stages) > 0
    if not is_sequence or not all(isinstance(stage, Stage) for stage in stages):
        raise validation.in_round(ctx, f"{who} returned {stages!r}, expected a sequence of Stage")
    for stage in stages:
        where = f"{who}: stage '{stage.label}'"
        if stage.kind not in STAGE_KINDS:
            kinds = ", ".join(STAGE_KINDS)
            raise validation.in_round(
                ctx, f"{where} is of kind '{stage.kind}', expected one of {kinds}"
            )
        if stage.pooled and not ctx.pools_data:
            raise validation.in_round(
                ctx, f"{where} pools all clients' data; a method says so with `pools_data = True`"
            )
        if stage.epochs < 0:
            raise validation.in_round(ctx, f"{where} has {stage.epochs} epochs, expected 0 or more")
        validation.indices(
            f"{where} of clients", stage.clients, (None,), "ids of the acting clients", ctx
        )
        ids = stage.clients
        if not len(ids) or ids.min() < 0 or ids.max() >= ctx.clients or (ids.diff() <= 0).any():
            raise validation.in_round(
                ctx,
                f"{where} expects ascending client ids in 0..{ctx.clients - 1}, at least one,"
                f" got {ids.tolist()}",
            )
    labels = [stage.label for stage in stages]
    if len(set(labels)) < len(labels):
        raise validation.in_round(
            ctx, f"{who}: two stages of one round need different names, got {labels}"
        )
    return tuple(stages)


def start(answer: HookResult, stage: Stage, ctx: Context) -> Start:
    """One plugin's share of a start: models, masks and extras of the right shapes."""
    value = validation.of_type("dispatch", answer, Start, ctx)
    who, acting, width = f"{answer.plugin}.dispatch", len(stage.clients), ctx.layout.width
    if value.params is not None:
        validation.shape(
            who, value.params, (acting, None, width), "clients, candidates, scalars", ctx
        )
    for kind in ("extras", "client_memory"):
        for name, tensor in getattr(value, kind).items():
            if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) != acting:
                got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise validation.in_round(
                    ctx,
                    f"{who}: {kind} '{name}' is {got}, expected {acting} rows: one per acting"
                    " client",
                )
    return value


def start_field(
    plugin: str, name: str, tensor: Tensor, candidates: int, stage: Stage, ctx: Context
) -> None:
    """A mask of a start fits the models that were dispatched."""
    acting, width = len(stage.clients), ctx.layout.width
    shapes: dict[str, tuple[int, ...]] = {
        "sent_mask": (width,) if getattr(tensor, "ndim", 1) == 1 else (acting, width),
        "returned_mask": (width,) if getattr(tensor, "ndim", 1) == 1 else (acting, width),
        "active": (acting, candidates),
        "rows": (candidates,),
    }
    who = f"{plugin}.dispatch: {name}"
    if name == "rows":
        validation.indices(who, tensor, shapes[name], START_SHAPES[name], ctx)
        return
    validation.shape(who, tensor, shapes[name], START_SHAPES[name], ctx)
    if tensor.dtype != torch.bool:
        raise validation.in_round(
            ctx, f"{who} returned {tensor.dtype}, expected bool: {START_SHAPES[name]}"
        )


def start_rows(plugin: str, rows: Tensor, bank: int, ctx: Context) -> None:
    """The rows that candidates are for exist."""
    if rows.min() < 0 or rows.max() >= bank:
        raise validation.in_round(
            ctx, f"{plugin}.dispatch: rows expects rows in 0..{bank - 1}, got {rows.tolist()}"
        )


def client_module(answer: HookResult | None, ctx: Context) -> ClientModule:
    """A ClientModule."""
    return validation.of_type(
        "client_module", validation.need(answer, "client_module"), ClientModule, ctx
    )


def local_term(answer: HookResult, ctx: Context) -> Callable[[ClientModule], Tensor]:
    """A function; what it raises names its plugin."""
    term = answer.value
    if not callable(term):
        raise validation.in_round(
            ctx,
            f"{answer.plugin}.local_term returned {type(term).__name__},"
            " expected a function of the module",
        )

    def named(module: ClientModule) -> Tensor:
        try:
            value: Tensor = term(module)
        except (Exception, SystemExit) as error:
            text = f"{answer.plugin}.local_term raised {in_one_line(error)}"
            raise validation.in_round(ctx, text) from error
        return value

    return named


def score(answer: HookResult, state: State, ctx: Context) -> Scores:
    """Finite or NaN, one row per judge, one column per judged."""
    value = validation.of_type("score", answer, Scores, ctx)
    who = f"{answer.plugin}.score"
    validation.indices(f"{who}: row_ids", value.row_ids, (None,), "ids of the judging clients", ctx)
    validation.indices(
        f"{who}: column_ids", value.column_ids, (None,), "who or what is judged", ctx
    )
    shape = (len(value.row_ids), len(value.column_ids))
    validation.shape(who, value.values, shape, "judging clients x judged", ctx)
    if torch.isinf(value.values).any():
        raise validation.in_round(
            ctx, f"{who} returned infinite scores, expected finite or NaN (= not asked)"
        )
    validation.memory(who, value.memory, state, len(state.models), ctx)
    return value


def _membership(who: str, value: Membership, rows: int, ctx: Context) -> None:
    validation.indices(who, value.home, (ctx.clients,), "one group per client", ctx)
    low, high = int(value.home.min()), int(value.home.max())
    if low < -1 or high >= rows:
        wrong = low if low < -1 else high
        raise validation.in_round(
            ctx, f"{who} sent clients to row {wrong}, expected -1..{rows - 1}"
        )
    if value.weights is not None:
        validation.shape(
            who, value.weights, (rows, ctx.clients), "share of each client in each row", ctx
        )
        if not bool((value.weights >= 0).all()):
            raise validation.in_round(ctx, f"{who} returned negative shares, expected >= 0")


def cluster(answer: HookResult, state: State, ctx: Context) -> Membership:
    """One home per client, in the rows that are there or that `parent` makes."""
    value = validation.of_type("cluster", answer, Membership, ctx)
    who = f"{answer.plugin}.cluster"
    rows = len(state.models)
    if value.parent is not None:
        meaning = "the old row that each new one starts from"
        validation.indices(f"{who}: parent", value.parent, (None,), meaning, ctx)
        if len(value.parent) == 0 or value.parent.min() < 0 or value.parent.max() >= rows:
            raise validation.in_round(
                ctx,
                f"{who}: parent expects old rows in 0..{rows - 1}, got {value.parent.tolist()}",
            )
        rows = len(value.parent)
    _membership(who, value, rows, ctx)
    validation.memory(who, value.memory, state, rows, ctx)
    return value


def aggregate(answer: HookResult | None, state: State, ctx: Context) -> Models:
    """As many rows as the membership speaks of, all finite."""
    answer = validation.need(answer, "aggregate")
    value = validation.of_type("aggregate", answer, Models, ctx)
    who = f"{answer.plugin}.aggregate"
    validation.bank(who, value.rows, tuple(state.models.shape), "one row per model", ctx)
    validation.memory(who, value.memory, state, len(state.models), ctx)
    return value


def personalise(answer: HookResult | None, state: State, clients: Tensor, ctx: Context) -> Personal:
    """Either a row of the bank or a model per asked client."""
    answer = validation.need(answer, "personalise")
    value = validation.of_type("personalise", answer, Personal, ctx)
    who = f"{answer.plugin}.personalise"
    for name, other in value.others.items():
        if name == "validation":
            raise validation.in_round(ctx, f"{who}: others '{name}' is the name of another curve")
        personalise(type(answer)(answer.plugin, other), state, clients, ctx)
    if (value.row is None) == (value.params is None):
        raise validation.in_round(ctx, f"{who} must give either `row` or `params`")
    if value.row is None:
        validation.bank(
            who, value.params, (len(clients), ctx.layout.width), "one model per client", ctx
        )
        return value
    validation.indices(who, value.row, (len(clients),), "one row per client", ctx)
    lost = clients[(value.row < 0) | (value.row >= len(state.models))]
    if len(lost) and ctx.joining and answer.plugin == "defaults":
        raise PluginError(
            "the method has no rule for newcomers: answer `personalise` where ctx.joining is true"
        )
    if len(lost):
        raise validation.in_round(ctx, f"{who} names no row for clients {lost.tolist()[:5]}")
    return value
