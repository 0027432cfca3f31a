"""What an answer to each hook must look like; an answer that does not ends the run in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from flbench.core.client_module import (
    ClientModule,
    LocalWork,
    Report,
    Reporter,
    mean_cross_entropy,
    module_phases,
)
from flbench.core.dataset import Partition
from flbench.core.model_bank import all_finite
from flbench.core.state import (
    Membership,
    Memory,
    Message,
    Models,
    Needs,
    Personal,
    Scores,
    Setup,
    Stage,
    Start,
    State,
    Upload,
)
from flbench.errors import PluginError, Undefined, in_one_line
from flbench.metrics import metrics_for
from flbench.plugin.field_types import misfit
from flbench.plugin.registry import NAMES
from flbench.tasks import TASKS, TaskName

if TYPE_CHECKING:
    from flbench.core.context import Context

T = TypeVar("T")
Shape = tuple[int | None, ...]
"""Lengths; None stands for any."""
INTEGERS = (torch.int64, torch.int32)
"""Types of row numbers; torch takes no smaller ones, and uint8 for a mask."""


class HookResult(NamedTuple):
    """What a plugin answered, and its name."""

    plugin: str
    value: Any


def in_round(ctx: Context | None, message: str) -> PluginError:
    """A plugin's error, with the round it happened in."""
    return PluginError(f"round {ctx.round}: {message}" if ctx and ctx.round else message)


def entries(value: Tensor) -> int:
    """Length of the first dimension; 0 where there is none."""
    return len(value) if value.dim() else 0


@dataclass(frozen=True)
class Expect:
    """Checks parts of an answer.

    Attributes:
        who: plugin and hook, or a part of the hook's answer, in messages.
        ctx: gives the round in messages; None = there is no round yet.
    """

    who: str
    ctx: Context | None

    def failure(self, message: str) -> PluginError:
        """The error that names who answered, and the round."""
        return in_round(self.ctx, f"{self.who}{message}")

    def part(self, name: str) -> Expect:
        """The same for a part of the answer."""
        return Expect(f"{self.who}{name}", self.ctx)

    def fields(self, value: object) -> None:
        """The fields of a dataclass have the types that it declares; other values pass."""
        typed = is_dataclass(value) and not isinstance(value, (type, Partition))
        if typed and (wrong := misfit(value)):
            raise self.failure(f": {wrong}")

    def shape(self, tensor: Tensor | None, expected: Shape, meaning: str) -> None:
        """A tensor has a shape; one that is missing has none."""
        came = None if tensor is None else tuple(tensor.shape)
        fits = came is not None and len(came) == len(expected)
        if not fits or any(e not in (None, c) for e, c in zip(expected, came or (), strict=True)):
            wanted = tuple("any" if length is None else length for length in expected)
            text = f"({', '.join(map(str, wanted))}{',' if len(wanted) == 1 else ''})"
            got = "None" if came is None else f"shape {came}"
            raise self.failure(f" returned {got}, expected {text}: {meaning}")

    def one_row_each(self, tensor: Tensor, rows: int, of: str) -> None:
        """A tensor has one row for each client."""
        if tensor.dim() == 0 or len(tensor) != rows:
            got = tuple(tensor.shape)
            raise self.failure(f" is {got}, expected {rows} rows: one per {of}")

    def indices(self, tensor: Tensor, expected: Shape, meaning: str) -> None:
        """A tensor holds row numbers or client ids."""
        self.shape(tensor, expected, meaning)
        if tensor.dtype not in INTEGERS:
            raise self.failure(f" returned {tensor.dtype}, expected int64: {meaning}")

    def places(self, tensor: Tensor, count: int) -> None:
        """Indices of a list of so many are in it, each once."""
        found = tensor.tolist()
        if len(set(found)) < len(found) or any(not 0 <= one < count for one in found):
            raise self.failure(f" expects each once, in 0..{count - 1}, got {found[:10]}")

    def rows(self, rows: Tensor, expected: Shape, meaning: str) -> None:
        """Rows of models: shape, float32, finite."""
        self.shape(rows, expected, meaning)
        if rows.dtype != torch.float32:
            raise self.failure(f" returned {rows.dtype}, expected float32: {meaning}")
        if not all_finite(rows):
            raise self.failure(" returned models that are not finite")

    def flags(self, mask: Tensor, expected: Shape, meaning: str) -> None:
        """A tensor holds truth values."""
        self.shape(mask, expected, meaning)
        if mask.dtype != torch.bool:
            raise self.failure(f" returned {mask.dtype}, expected bool: {meaning}")

    def memory(self, kept: Mapping[str, Tensor], state: State, rows: int, clients: int) -> None:
        """What a hook wants remembered was declared in `setup` and keeps its scope's length."""
        lengths = {"model": rows, "client": clients}
        for name, value in kept.items():
            if name not in state.memory:
                raise self.failure(f": memory '{name}' was not declared in setup")
            scope = state.scopes.get(name, "run")
            if scope in lengths and entries(value) != lengths[scope]:
                raise self.failure(
                    f": memory '{name}' has {entries(value)} entries, expected {lengths[scope]}:"
                    f" one per {scope}"
                )

    def membership(self, value: Membership, rows: int, clients: int) -> None:
        """A home for each client, in rows that are there; shares that are not negative."""
        self.indices(value.home, (clients,), "one group per client")
        low, high = int(value.home.min()), int(value.home.max())
        if low < -1 or high >= rows:
            wrong = low if low < -1 else high
            raise self.failure(f" sent clients to row {wrong}, expected -1..{rows - 1}")
        if value.weights is not None:
            self.shape(value.weights, (rows, clients), "share of each client in each row")
            if not bool((value.weights >= 0).all()):
                raise self.failure(" returned negative shares, expected >= 0")


def answered(
    hook: str, answer: HookResult | None, expected: type[T], ctx: Context | None
) -> tuple[T, Expect]:
    """The answer as the type that its hook promises, and what checks its parts."""
    if answer is None:
        raise PluginError(
            f"no plugin answered the hook '{hook}': a wrapper that returns nothing hides the answer"
        )
    expect = Expect(f"{answer.plugin}.{hook}", ctx)
    if not isinstance(answer.value, expected):
        raise expect.failure(
            f" returned {type(answer.value).__name__}, expected {expected.__name__}"
        )
    expect.fields(answer.value)
    return answer.value, expect


def partition(answer: HookResult | None, clients: int, samples: int) -> Partition:
    """One list of valid, distinct indices per client; groups for all or none."""
    value, expect = answered("partition", answer, Partition, None)
    if len(value.clients) != clients:
        raise expect.failure(
            f" returned {len(value.clients)} lists, expected {clients}: one per client"
        )
    for client, rows in enumerate(value.clients):
        if np.ndim(rows) != 1 or (len(rows) and np.asarray(rows).dtype.kind not in "iu"):
            raise expect.failure(f" gave client {client} no list of whole numbers")
        if len(rows) and not 0 <= int(np.min(rows)) <= int(np.max(rows)) < samples:
            raise expect.failure(f" gave client {client} a sample outside 0..{samples - 1}")
        if len(np.unique(rows)) != len(rows):
            raise expect.failure(f" gave client {client} a sample twice")
    if value.groups is not None and np.shape(value.groups) != (clients,):
        raise expect.failure(
            f" returned groups of shape {np.shape(value.groups)}, expected ({clients},):"
            " one true group per client"
        )
    groups = None if value.groups is None else np.asarray(value.groups)
    if groups is not None and (groups.dtype.kind not in "iu" or int(groups.min()) < -1):
        lowest = f", {groups.min()} the lowest" if groups.dtype.kind in "iu" else ""
        expected = "whole numbers from 0, -1 = in none"
        raise expect.failure(f" returned groups of {groups.dtype}{lowest}, expected {expected}")
    return value


def needs(answer: HookResult, ctx: Context) -> Needs:
    """Numbers that are not negative."""
    value, expect = answered("needs", answer, Needs, ctx)
    for name, number in vars(value).items():
        if not 0 <= number < float("inf"):
            raise expect.failure(f": {name} is {number}, expected a number >= 0")
    return value


def setup(answer: HookResult, ctx: Context) -> Setup:
    """Rows of the right width, memories named and shaped by their scope."""
    value, expect = answered("setup", answer, Setup, ctx)
    if value.models is not None:
        expect.rows(value.models, (None, ctx.layout.width), "one row per model")
    for name, memory in value.memory.items():
        if name.count(".") != 1:
            raise expect.failure(f": memory '{name}' must be named '<method>.<name>'")
        if memory.scope == "client" and entries(memory.value) != ctx.clients:
            raise expect.failure(
                f": memory '{name}' has {entries(memory.value)} entries, expected {ctx.clients}:"
                " one per client"
            )
    return value


def same_bank(first: HookResult, other: HookResult) -> None:
    """Two plugins begin with as many models.

    Raises:
        Undefined: they do not, so that one would get a bank that it does not know.
    """
    here, there = len(first.value.models), len(other.value.models)
    if here != there:
        both = f"{first.plugin} begins with {here} models, {other.plugin} with {there}"
        raise Undefined(f"{both}; name one of them")


def fits(answer: HookResult, merged: Setup, ctx: Context) -> None:
    """One plugin's share of `setup` fits the bank that all of them together make."""
    value, expect = answered("setup", answer, Setup, ctx)
    assert merged.models is not None, "the defaults answer"
    rows = len(merged.models)
    if value.membership is not None and value.membership is merged.membership:
        expect.membership(value.membership, rows, ctx.clients)
    for name, memory in value.memory.items():
        if memory.scope == "model" and entries(memory.value) not in (1, rows):
            raise expect.failure(
                f": memory '{name}' has {entries(memory.value)} entries, expected {rows}:"
                " one per model"
            )


def per_row(memory: Memory, rows: int) -> Memory:
    """Memory of scope "model" with one entry is meant for every row alike."""
    if memory.scope != "model" or len(memory.value) == rows:
        return memory
    return Memory(memory.value.expand(rows, *memory.value.shape[1:]).clone(), "model")


def plan(answer: HookResult | None, ctx: Context) -> Sequence[Stage]:
    """At least one stage, none without clients; ids ascending; names of a client's distinct."""
    found, expect = answered("plan", answer, object, ctx)
    stages = found if isinstance(found, Sequence) else ()
    if not stages or not all(isinstance(stage, Stage) for stage in stages):
        raise expect.failure(f" returned {found!r}, expected a sequence of Stage")
    for stage in stages:
        of_stage = expect.part(f": stage '{stage.label}'")
        of_stage.fields(stage)
        stage_fits(stage, of_stage, ctx)
        ids = stage.clients
        if not len(ids) or ids.min() < 0 or ids.max() >= ctx.clients or (ids.diff() <= 0).any():
            raise of_stage.failure(
                f" expects ascending client ids in 0..{ctx.clients - 1}, at least one,"
                f" got {ids.tolist()}"
            )
        if stage.started is not None:
            called = of_stage.part(": started")
            called.shape(stage.started, (len(ids),), "seconds at which each client was called")
            if not bool((stage.started >= 0).all()) or bool(stage.started.isinf().any()):
                raise called.failure(f" expects seconds >= 0, got {stage.started.tolist()}")
        if stage.edges is not None:
            near = of_stage.part(": edges")
            near.indices(stage.edges, (len(ids),), "the edge server of each client")
            if bool(((stage.edges < 0) | (stage.edges >= ctx.clients)).any()):
                expected = f"numbers of edges in 0..{ctx.clients - 1}"
                raise near.failure(f" expects {expected}, got {stage.edges.tolist()}")
    labels = [stage.label for stage in stages]
    if len(set(labels)) < len(labels):
        turns = [(stage.label, client) for stage in stages for client in stage.clients.tolist()]
        if len(set(turns)) < len(turns):
            raise expect.failure(
                ": two stages of one round need different names, or no client in common, got"
                f" {labels}"
            )
    return tuple(stages)


def stage_fits(stage: Stage, of_stage: Expect, ctx: Context) -> None:
    """Data pooled only where the method says so, ids, and a schedule."""
    if stage.pooled and not ctx.pools_data:
        raise of_stage.failure(
            " pools all clients' data; a method says so with `pools_data = True`"
        )
    of_stage.part(" of clients").indices(stage.clients, (None,), "ids of the acting clients")
    schedule(stage, of_stage)


def schedule(stage: Stage, of_stage: Expect) -> None:
    """Epochs and steps are 0 or more, learning rates above 0; one number, or one per client.

    Steps and samples are whole numbers.
    """
    samples = stage.samples
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise of_stage.failure(f" has samples of {samples!r}, expected a whole number above 0")
    for name, least in (("epochs", "0 or more"), ("steps", "0 or more"), ("lr", "above 0")):
        value = getattr(stage, name)
        if value is None:
            continue
        if isinstance(value, Tensor):
            of_stage.part(f": {name}").shape(value, (len(stage.clients),), "one per client")
        numbers = torch.as_tensor(value).double()
        lowest = float(numbers.min())
        # a NaN is neither
        if not (lowest >= 0 if least == "0 or more" else lowest > 0):
            raise of_stage.failure(f" has {name} of {lowest:g}, expected {least}")
        odd = numbers != numbers.floor() if name == "steps" else numbers.isinf()
        if bool(odd.any()):
            expected = "a whole number" if name == "steps" else "a finite number"
            raise of_stage.failure(
                f" has {name} of {float(numbers[odd][0]):g}, expected {expected}"
            )


def start(answer: HookResult, stage: Stage, ctx: Context) -> Start:
    """One plugin's share of a start: models, masks and extras of the right shapes."""
    value, expect = answered("dispatch", answer, Start, ctx)
    acting = len(stage.clients)
    if value.params is not None:
        shape = acting, None, ctx.layout.width
        expect.shape(value.params, shape, "clients, candidates, scalars")
    for kind in ("extras", "client_memory"):
        for name, tensor in getattr(value, kind).items():
            expect.part(f": {kind} '{name}'").one_row_each(tensor, acting, "acting client")
    return value


def start_field(
    plugin: str, name: str, tensor: Tensor, candidates: int, bank: int, stage: Stage, ctx: Context
) -> None:
    """A mask of a start fits the models that were dispatched; its rows are rows of the bank."""
    acting, width = len(stage.clients), ctx.layout.width
    expect = Expect(f"{plugin}.dispatch: {name}", ctx)
    if name == "rows":
        expect.indices(tensor, (candidates,), "the row of the bank each candidate is for")
        if tensor.min() < 0 or tensor.max() >= bank:
            raise expect.failure(f" expects rows in 0..{bank - 1}, got {tensor.tolist()}")
        return
    shape: Shape
    if name == "active":
        shape, meaning = (acting, candidates), "one flag per acting client and candidate"
    else:
        shape = (width,) if tensor.dim() == 1 else (acting, width)
        meaning = "one flag per scalar, or one row of flags per acting client"
    expect.flags(tensor, shape, meaning)
    if name == "server_mask" and (cut := ctx.layout.cut_tensor(tensor)):
        raise expect.failure(f" divides '{cut}': a tensor lives at one end, whole")


def own_network(who: str, models: Tensor, wanted: Tensor, clients: Tensor, ctx: Context) -> None:
    """Each client gets models of its own network: models of shape (n, ..., W), networks (n,)."""
    got = ctx.layout.network_of(models).reshape(len(clients), -1)
    for client, network, numbers in zip(clients.tolist(), wanted, got, strict=True):
        if bool((numbers != network).any()):
            raise Expect(who, ctx).failure(
                f" gave client {client} a model of network {int(numbers[numbers != network][0])},"
                f" but it has network {int(network)}"
            )


def client_module(answer: HookResult | None, ctx: Context) -> ClientModule:
    """A ClientModule."""
    return answered("client_module", answer, ClientModule, ctx)[0]


def metrics(answer: HookResult, ctx: Context) -> Mapping[str, Callable[[int], Any]]:
    """Names that can be typed, with factories."""
    found, expect = answered("metrics", answer, object, ctx)
    if not isinstance(found, Mapping):
        raise expect.failure(f" returned {type(found).__name__}, expected names with functions")
    for label, make in found.items():
        if not isinstance(label, str) or not NAMES.fullmatch(label):
            raise expect.failure(f": expected names of letters, digits and . _ -, got {label!r}")
        if not callable(make):
            got = type(make).__name__
            raise expect.failure(f": '{label}': expected a function of the classes, got {got}")
    return found


def promised(
    hook: str, answer: HookResult, of: str, ctx: Context
) -> tuple[Callable[..., Any], Expect]:
    """The function that a hook promises; what it raises names its plugin."""
    function, expect = answered(hook, answer, object, ctx)
    if not callable(function):
        raise expect.failure(f" returned {type(function).__name__}, expected a function of {of}")

    def named(*arguments: object) -> object:
        try:
            value: object = function(*arguments)
        except Undefined as error:
            raise Undefined(f"{expect.who}: {error}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise expect.failure(f" raised {in_one_line(error)}") from error
        return value

    return named, expect


def local_work(
    loss: HookResult,
    phases: HookResult,
    terms: Sequence[HookResult],
    reports: Sequence[HookResult],
    state: State,
    ctx: Context,
) -> LocalWork:
    """Functions; what they raise names their plugin. The defaults stay what they are."""
    work = LocalWork(
        terms=[promised("local_term", answer, "the module", ctx)[0] for answer in terms],
        reports=[reporter(answer, state, ctx) for answer in reports],
    )
    if loss.value is not mean_cross_entropy:
        named, _ = promised("batch_loss", loss, "a Batch", ctx)
        work = replace(work, loss=named, provided_by=loss.plugin)
    if phases.value is not module_phases:
        named, _ = promised("phases", phases, "the module and a number of epochs", ctx)
        work = replace(work, phases=named)
    return work


def reporter(answer: HookResult, state: State, ctx: Context) -> Reporter:
    """A function that gives a Report, which keeps what was declared in `setup`."""
    function, expect = promised("report", answer, "the module, samples and labels", ctx)

    def named(*arguments: object) -> Report:
        value = function(*arguments)
        if not isinstance(value, Report):
            raise expect.failure(f" returned {type(value).__name__}, expected Report")
        expect.fields(value)
        for name in value.kept:
            if state.scopes.get(name) != "client":
                raise expect.failure(
                    f": memory '{name}' was not declared in setup with the scope 'client'"
                )
        return value

    return named


def encode(answer: HookResult, state: State, ctx: Context) -> Callable[[Message], Message]:
    """A function of messages; what it raises or returns wrongly names its plugin."""
    coder, expect = promised("encode", answer, "a Message", ctx)

    def named(message: Message) -> Message:
        coded = coder(message)
        if not isinstance(coded, Message):
            raise expect.failure(f" returned {type(coded).__name__}, expected Message")
        expect.fields(coded)
        expect.part(": params").rows(coded.params, tuple(message.params.shape), "one model")
        expect.part(": mask").flags(coded.mask, tuple(message.mask.shape), "one flag per scalar")
        if coded.bits < 1:
            raise expect.failure(f": bits is {coded.bits}, expected 1 bit or more per scalar")
        if coded.overhead < 0:
            raise expect.failure(f": overhead is {coded.overhead}, expected 0 bits or more")
        if coded.samples < 1:
            raise expect.failure(f": samples is {coded.samples}, expected 1 or more")
        for name, value in coded.memory.items():
            if name not in message.memory:
                raise expect.failure(
                    f": memory '{name}' was not declared in setup with the scope 'client'"
                )
            shape = tuple(message.memory[name].shape)
            expect.part(f": memory '{name}'").shape(value, shape, "the client's entry")
        for name, value in message.extras.items():
            coded_extra, meaning = coded.extras.get(name), "as the client made it"
            expect.part(f": extras '{name}'").shape(coded_extra, tuple(value.shape), meaning)
        return coded

    return named


def decode(answer: HookResult, came: Upload, ctx: Context) -> Upload:
    """The uploads of clients whose messages came: finite models, one entry per client."""
    value, expect = answered("decode", answer, Upload, ctx)
    expect.part(": ids").indices(value.ids, (None,), "ids of the clients")
    if not set(value.ids.tolist()) <= set(came.ids.tolist()) or (value.ids.diff() <= 0).any():
        raise expect.failure(
            f": ids expects some of {came.ids.tolist()}, ascending, got {value.ids.tolist()}"
        )
    shape = (len(value.ids), *came.params.shape[1:])
    if value.params is not came.params:
        expect.part(": params").shape(value.params, shape, "clients, candidates, scalars")
        expect.part(": params").rows(value.params.flatten(0, 1), (None, shape[-1]), "models")
    for name, table in vars(value).items():
        if isinstance(table, Tensor) and name != "rows":
            expect.part(f": {name}").one_row_each(table, len(value.ids), "client")
    return value


def score(answer: HookResult, state: State, ctx: Context) -> Scores:
    """Finite or NaN, one row per judge, one column per judged."""
    value, expect = answered("score", answer, Scores, ctx)
    expect.part(": row_ids").indices(value.row_ids, (None,), "ids of the judging clients")
    expect.part(": column_ids").indices(value.column_ids, (None,), "who or what is judged")
    judged = ctx.clients if value.columns == "clients" else len(state.models)
    expect.part(": row_ids").places(value.row_ids, ctx.clients)
    expect.part(": column_ids").places(value.column_ids, judged)
    shape = (len(value.row_ids), len(value.column_ids))
    expect.shape(value.values, shape, "judging clients x judged")
    if torch.isinf(value.values).any():
        raise expect.failure(" returned infinite scores, expected finite or NaN (= not asked)")
    expect.memory(value.memory, state, len(state.models), ctx.clients)
    return value


def cluster(answer: HookResult, state: State, ctx: Context) -> Membership:
    """One home per client, in the rows that are there or that `parent` makes."""
    value, expect = answered("cluster", answer, Membership, ctx)
    rows = len(state.models)
    if value.parent is not None:
        meaning = "the old row that each new one starts from"
        expect.part(": parent").indices(value.parent, (None,), meaning)
        if len(value.parent) == 0 or value.parent.min() < 0 or value.parent.max() >= rows:
            raise expect.failure(
                f": parent expects old rows in 0..{rows - 1}, got {value.parent.tolist()}"
            )
        rows = len(value.parent)
    if value.models is not None:
        expect.part(": models").rows(value.models, (rows, state.models.shape[1]), "the new bank")
    expect.membership(value, rows, ctx.clients)
    expect.memory(value.memory, state, rows, ctx.clients)
    return value


def weights(answer: HookResult | None, upload: Upload, ctx: Context) -> Tensor:
    """A finite number >= 0 for each client that came, in double precision."""
    value, expect = answered("weights", answer, Tensor, ctx)
    expect.shape(value, (len(upload.ids),), "how much each client counts")
    if value.dtype != torch.float64:
        raise expect.failure(f" returned {value.dtype}, expected float64")
    if not bool((value.isfinite() & (value >= 0)).all()):
        raise expect.failure(f" returned {value.tolist()[:10]}, expected finite numbers >= 0")
    return value.cpu()


def aggregate(answer: HookResult | None, state: State, ctx: Context) -> Models:
    """As many rows as the membership speaks of, all finite."""
    value, expect = answered("aggregate", answer, Models, ctx)
    expect.rows(value.rows, tuple(state.models.shape), "one row per model")
    expect.memory(value.memory, state, len(state.models), ctx.clients)
    return value


@cache
def _taken(task: TaskName) -> frozenset[str]:
    """What follows the headline's name in other numbers of results, such as `mean`."""
    begins = f"{TASKS[task].headline}_"
    numbers = {name for metric in metrics_for(task) for name in (metric.name, metric.curve)}
    own = {name.removeprefix(begins) for name in numbers if name.startswith(begins)}
    return frozenset({"validation", "fine_tuned", "own", *own})


def personal(
    hook: str, answer: HookResult | None, state: State, clients: Tensor, ctx: Context
) -> Personal:
    """Either a row of the bank or a model per asked client; an adaptation of these clients."""
    value, expect = answered(hook, answer, Personal, ctx)
    assert answer is not None, "checked by `answered`"
    if value.labels is not None:
        raise expect.failure(" gives `labels`, which only its `others` may have")
    for name, other in value.others.items():
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise expect.failure(f": others expect a name in one line, got {name!r:.60}")
        if name in _taken(ctx.task):
            raise expect.failure(f": others '{name}' is the name of another number of results")
        tested = replace(other, labels=None)
        personal(hook, HookResult(answer.plugin, tested), state, clients, ctx)
    if (value.row is None) == (value.params is None):
        raise expect.failure(" must give either `row` or `params`")
    if value.params is not None:
        expect.rows(value.params, (len(clients), ctx.layout.width), "one model per client")
    if value.row is not None:
        expect.indices(value.row, (len(clients),), "one row per client")
        lost = clients[(value.row < 0) | (value.row >= len(state.models))]
        if len(lost):
            raise expect.failure(f" names no row for clients {lost.tolist()[:5]}")
    if value.adaptation is not None:
        of_stage = expect.part(": adaptation")
        stage_fits(value.adaptation, of_stage, ctx)
        if (ids := value.adaptation.clients.tolist()) != clients.tolist():
            raise of_stage.failure(
                f" expects the {len(clients)} clients that are asked for, got {len(ids)}: {ids[:5]}"
            )
    for name, tensor in value.extras.items():
        expect.part(f": extras '{name}'").one_row_each(tensor, len(clients), "client")
    if ctx.networks is not None:
        own_network(expect.who, value.models(state), ctx.networks[clients], clients, ctx)
    return value
