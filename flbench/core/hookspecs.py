"""The hooks: the functions through which plugins take part in a run.

    partition            samples -> clients                          once
    client_module        loss and prediction of a client             once
    metrics              metrics of each client's test samples       once
    needs                what grows with the pairs of clients        once
    setup                first models, membership, memory            once
    run_started          sinks hear of the run
    │
    ├─ round 1..R ────────────────────────────────────────────────────────────────────┐
    │   plan             the stages of this round                                     │
    │   ├─ for each stage ──────────────────────────────────────────────────────┐     │
    │   │   score, cluster   phase "before" training                            │     │
    │   │   dispatch         what each acting client starts from and receives   │     │
    │   │   batch_loss       the loss of a batch                                │     │
    │   │   local_term       added to every batch's loss                        │     │
    │   │   phases           which scalars are trained in which epochs          │     │
    │   │   report           what clients send and keep beside the model        │     │
    │   │   ... local training of the stage's clients ...                       │     │
    │   │   encode           what each client sends of what it made             │     │
    │   │   decode           what the server makes of what arrived              │     │
    │   │   score, cluster   phase "after" training                             │     │
    │   │   weights          how much each client counts in means               │     │
    │   │   aggregate        the new models (see `Stage.aggregates`)            │     │
    │   └───────────────────────────────────────────────────────────────────────┘     │
    │   personalise      the model with which each client is evaluated                │
    │   round_finished   sinks record the round                                       │
    └─────────────────────────────────────────────────────────────────────────────────┘
    │
    ├─ if newcomers join (`unseen` of the suite) ─────────────────────────────────────┐
    │   join             the model of each                                            │
    │   batch_loss       of its training, as above                                    │
    │   phases                                                                        │
    │   report           what it finds is not used                                    │
    └─────────────────────────────────────────────────────────────────────────────────┘
    run_finished         sinks hear of the result

Order: pluggy calls the plugin named last first, then the earlier ones, then the suite, then the
defaults, which are FedAvg. "First" below means that the first result that is not None is used;
"all" means that all results are merged. A hook may take any subset of its arguments. Hooks are
called once per round or stage, never per batch, and must not change their arguments; what
`batch_loss`, `local_term`, `phases`, `report` and `encode` return is called in local training, by
client and step. A hook marked
`hookimpl(wrapper=True)` wraps the others of its name: it yields once, gets their answer (of an
"all" hook a list), and returns the answer that counts.

Who may answer what: a method every hook, a suite `partition`, a sink the last three, which return
nothing. The mark of each specification says so, and a plugin with another hook is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import getattr_static
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import pluggy

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from flbench.core.client_module import BatchLoss, ClientModule, PhaseRule, Reporter
    from flbench.core.context import Context
    from flbench.core.dataset import Indices, Partition
    from flbench.core.state import (
        Membership,
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
    from flbench.core.types import Phase
    from flbench.results.events import RoundRecord, RunInfo
    from flbench.results.schema import Result

F = TypeVar("F", bound=Callable[..., Any])
Audience = Literal["method", "suite", "sink"]
"""Who answers hooks."""
hookimpl = pluggy.HookimplMarker("flbench")
"""Marks a method of a plugin as its implementation of the hook of that name, or of `specname`."""


def hookspec(*others: Audience, firstresult: bool = False) -> Callable[[F], F]:
    """Mark a function as the specification of a hook.

    Args:
        others: who may answer it beside methods.
        firstresult: whether the first answer is the only one that counts.
    """

    def marked(function: F) -> F:
        vars(function).update(flbench_audiences=("method", *others))
        return pluggy.HookspecMarker("flbench")(function, firstresult=firstresult)

    return marked


@lru_cache(maxsize=len(get_args(Audience)))
def hooks_for(audience: Audience) -> tuple[str, ...]:
    """The names of the hooks that an audience may answer, in the order of a run.

    Example:
        >>> hooks_for("suite"), hooks_for("sink")
        (('partition',), ('run_started', 'round_finished', 'run_finished'))
    """
    found = globals().items()
    return tuple(name for name, it in found if audience in getattr(it, "flbench_audiences", ()))


def implemented_hooks(kind: type, *, wrappers: bool = True) -> dict[str, str]:
    """The hooks that a plugin's class implements: name of the hook -> name of the method.

    Args:
        wrappers: whether hooks count that only wrap those of other plugins.
    """
    return {
        mark.get("specname") or name: name
        for name, mark in hook_marks(kind)
        if wrappers or not mark.get("wrapper")
    }


def unmarked_hooks(kind: type, audience: Audience = "method") -> list[str]:
    """Functions of a class that have the name of a hook and no mark, so that nobody calls them."""
    named = {name for one in kind.__mro__ for name in vars(one) if callable(vars(one)[name])}
    return sorted(named & {*hooks_for(audience)} - implemented_hooks(kind).keys())


@lru_cache(maxsize=128)
def hook_marks(home: type | ModuleType) -> tuple[tuple[str, dict[str, Any]], ...]:
    """The names in a class or module that `hookimpl` marks, each with its mark."""
    names = vars(home) if isinstance(home, ModuleType) else dir(home)
    marks = ((name, _mark(getattr_static(home, name))) for name in names)
    return tuple((name, mark) for name, mark in marks if isinstance(mark, dict))


def _mark(found: object) -> object:
    """The mark of a function, or of a static or class method, in which it may be either way."""
    inner = getattr(found, "__func__", None)
    return getattr(found, "flbench_impl", None) or getattr(inner, "flbench_impl", None)


@hookspec("suite", firstresult=True)
def partition(
    labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
) -> Partition | None:
    """Divide the samples among the clients. First; default: the suite's partition.

    Args:
        labels: label of each pooled sample, shape (m,).
        domains: domain of each sample, shape (m,), or None.
        clients: number of clients, N.
        rng: the only source of randomness to use.
    """


@hookspec()
def needs(ctx: Context) -> Needs | None:
    """Say what of the method's work grows faster than the number of clients. All.

    It is asked before `setup`, with the context of round 1. The memory is compared with what is
    free; where evaluations and operations are many, how long they take here is measured. A run that
    the memory does not hold, or that would take more than 100 hours, is undefined then; so the
    numbers are the least that it takes.
    """


@hookspec()
def setup(ctx: Context) -> Setup | None:
    """Declare the first model bank, the first membership and the memory of the method.

    All, merged: memories are joined (a name used twice is an error); the bank and the membership
    come from the plugin named last; memory of scope "model" with one entry is copied to every row.
    Default: one row with the common initial weights, used by all clients.
    """


@hookspec(firstresult=True)
def plan(state: State, ctx: Context) -> Sequence[Stage] | None:
    """Return the stages of this round, in order. First; default: the cohort trains.

    A plugin whose memory belongs to averaged models leaves it as it is in a stage that is not
    (`Stage.aggregates`). For a learning rate that falls over rounds, suites have `local.lr_decay`.
    """


@hookspec()
def dispatch(state: State, stage: Stage, ctx: Context) -> Start | None:
    """Return what each acting client starts from and receives.

    For each field of `Start` the first result is used (where two methods give `params`, the run
    warns of it); `extras` and `client_memory` of all are merged. Default: the client's home model,
    of which every scalar is sent.
    """


@hookspec(firstresult=True)
def client_module(net: nn.Module, ctx: Context) -> ClientModule | None:
    """Return the LightningModule that clients train. First; default: cross-entropy.

    A run has one module, so two methods that bring one cannot be composed. `ctx.layout` is that of
    a plain module with the network.
    """


@hookspec()
def metrics(ctx: Context) -> Mapping[str, Callable[[int], Any]] | None:
    """Return metrics of each client's test samples beside accuracy. All, merged.

    Label -> `make(classes)`, which returns a new `torchmetrics.Metric`. It is updated with logits
    (b, C), which are log-probabilities, and labels (b,) of one client at a time; of text there is a
    row for each token. `compute` returns one number, NaN = undefined for the client. The same label
    twice is an error.
    """


@hookspec()
def local_term(state: State, stage: Stage, ctx: Context) -> Callable[[ClientModule], Tensor] | None:
    """Return a function `term(module) -> scalar` added to every batch's loss. All, added up."""


@hookspec(firstresult=True)
def batch_loss(state: State, stage: Stage, ctx: Context) -> BatchLoss | None:
    """Return a function `loss(batch) -> scalar`, the loss of a `Batch`. First.

    A method that adds something which depends on the batch wraps the hook, so that it adds to
    another method's loss (MOON to FedLC). Also asked for newcomers and for training before an
    evaluation. Default: cross-entropy.
    """


@hookspec(firstresult=True)
def phases(state: State, stage: Stage, ctx: Context) -> PhaseRule | None:
    """Return a function `phases(module, epochs) -> LocalPhases`: what is trained when. First.

    Also asked for newcomers and for training before an evaluation. Default: `module.phases`.
    """


@hookspec()
def report(state: State, stage: Stage, ctx: Context) -> Reporter | None:
    """Return a function `report(module, x, y) -> Report`: what a client sends and keeps. All.

    It is called after a client's training with its training samples and labels. A name that two
    methods send is an error.
    """


@hookspec()
def encode(
    state: State, stage: Stage, upload: Upload, ctx: Context
) -> Callable[[Message], Message] | None:
    """Return a function that turns what a client would send into what it sends. All, in turn.

    The function of the plugin named first is applied first, to each client alone: compression,
    clipping, noise, an attack. It draws random numbers from `ctx.rng(..., client=message.client)`
    and keeps what it needs again in `Message.memory`. A scalar that it takes out of the mask keeps
    its value at the server. Default: the trained model as it is.

    Args:
        upload: what the clients of the stage would send, for attackers who know that of others; a
            method whose clients do not know each other must not look at it.
    """


@hookspec(firstresult=True)
def decode(state: State, stage: Stage, upload: Upload, ctx: Context) -> Upload | None:
    """Turn what arrived of `encode`'s messages into what the server knows. First.

    Nobody sees the upload before. The answer may leave clients out, whose uploads nobody gets then.
    Default: as it arrived.

    Args:
        stage: its clients are all that were called, so that one sees who has failed.
    """


@hookspec(firstresult=True)
def score(
    state: State, stage: Stage, phase: Phase, upload: Upload | None, ctx: Context
) -> Scores | None:
    """Measure how useful models or other clients are to each client. First; default: no scores.

    Args:
        phase: "before" local training (`upload` is None) or "after" it.
    """


@hookspec(firstresult=True)
def cluster(
    state: State, stage: Stage, phase: Phase, scores: Scores | None, ctx: Context
) -> Membership | None:
    """Assign clients to models. First; default: unchanged.

    Where the number of rows changes, `Membership.parent` names the old row from which each new row
    is copied.
    """


@hookspec(firstresult=True)
def weights(state: State, stage: Stage, upload: Upload, ctx: Context) -> Tensor | None:
    """Return how much each client counts when uploads are averaged, shape (n,), float64, >= 0.

    First. It is asked once for each stage that is aggregated; `aggregate` has the answer as
    `Upload.weights`. Only their ratio counts; a row whose members all have weight 0 keeps its
    values. A method that changes the weights of any other wraps the hook; one that averages
    otherwise than by samples answers it. Default: the numbers of samples.
    """


@hookspec(firstresult=True)
def aggregate(
    state: State, stage: Stage, upload: Upload, membership: Membership, ctx: Context
) -> Models | None:
    """Compute the new model bank from the uploads of a stage. First.

    Default: each row is the mean of its members' uploads, weighted as `weights` says; a row without
    uploads keeps its values.

    Args:
        stage: the stage; its clients are those whose uploads arrived.
    """


@hookspec(firstresult=True)
def personalise(state: State, clients: Tensor, ctx: Context) -> Personal | None:
    """Return the model with which each client is evaluated. First; default: its home model.

    Args:
        clients: ids, shape (n,), 0..N-1; for newcomers `join` is asked.
    """


@hookspec(firstresult=True)
def join(state: State, clients: Tensor, ctx: Context) -> Personal | None:
    """Return the model of each newcomer, after the last round. First.

    Default: the only model; of a method that declares `row_per_client`, what all models have in
    common, and the initial weights elsewhere; of a method with several models, the one with the
    least loss on the newcomer's validation samples.

    Args:
        state: the last one, in which newcomers are undecided (-1) unless there is one model. Its
            memories do not know them.
        clients: ids of the newcomers, N..N+M-1, shape (M,).
    """


@hookspec("sink")
def run_started(info: RunInfo) -> None:
    """Called for sinks when a run starts."""


@hookspec("sink")
def round_finished(record: RoundRecord, state: State) -> None:
    """Called for sinks at the end of each round; `record` is plain data, both are copies."""


@hookspec("sink")
def run_finished(result: Result, path: str) -> None:
    """Called for sinks when the run is over; its result file is at `path`."""
