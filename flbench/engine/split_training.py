"""What crosses between clients and server where a part of the model lives at the server.

Scalars of `Start.server_mask` are never sent as scalars of a model. Clients train through them: at
each step activations go to the other end, and their gradients come back. A method does not declare
what that is: a training step is followed (`Ends`), once in a stage for each different mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from flbench.core.client_module import TRAINING, ClientModule, LocalWork, Received
from flbench.core.state import Dispatched, Stage, Upload
from flbench.core.types import Direction
from flbench.engine.ledger import CommunicationLedger
from flbench.engine.sequential import Sequential, local_settings
from flbench.engine.workspace import Workspace
from flbench.errors import Undefined

End = Literal["client", "server", "both"]
Way = tuple[Direction, str]
"""A direction, and an item of the ledger."""
Located = tuple[Tensor, End, bool]
"""A tensor, where it is, and whether it is a weight: computed of parameters and buffers alone."""
GRADIENTS = "gradients"
SIZES = (2, 3)
"""Samples of the steps that are followed; BatchNorm cannot be trained on one."""
LEAVING = frozenset({
    "__array__", "__bool__", "__complex__", "__contains__", "__dlpack__", "__float__", "__index__",
    "__int__", "__reduce_ex__", "allclose", "data_ptr", "equal", "is_nonzero", "item", "numpy",
    "storage", "tolist", "untyped_storage",
})  # fmt: skip
"""Functions of tensors by which values leave torch, so that nobody sees where they go."""


@dataclass(frozen=True)
class Crossing:
    """Scalars that a training step sends, by way: for each of its samples, and beside them."""

    per_sample: Mapping[Way, int]
    per_step: Mapping[Way, int]

    def scalars(self, way: Way, *, samples: int, steps: int, measured: int = 0) -> int:
        """Scalars of a client that go one way.

        Args:
            way: the way.
            samples: of all its steps.
            steps: optimiser steps.
            measured: samples that only the loss was measured of, without gradients.
        """
        passed = samples if way[1] == GRADIENTS else samples + measured
        return self.per_sample.get(way, 0) * passed + self.per_step.get(way, 0) * steps


def follow(
    executor: Sequential, start: Dispatched, stage: Stage, work: LocalWork, round_: int
) -> dict[int, Crossing]:
    """What a training step of each client sends, by id; empty where nothing is at the server.

    Args:
        executor: its module makes the steps; it loads each client's model before it trains.
        start: what the clients of the stage start from.
        stage: the stage.
        work: what the methods add to training.
        round_: number of the round.

    Raises:
        Undefined: a step cannot be divided between client and server.
    """
    if start.server_mask is None:
        return {}
    known: dict[tuple[bytes, int], Crossing] = {}
    found: dict[int, Crossing] = {}
    networks = executor.workspace.layout.network_of(start.params[:, 0]).tolist()
    is_common = start.server_mask.stride(0) == 0
    for at, client in enumerate(stage.clients.tolist()):
        mask = b"" if is_common else start.server_mask[at].cpu().numpy().tobytes()
        key = mask, networks[at]
        if key not in known:
            known[key] = _crossing(executor, start, at, stage, work, round_)
        found[client] = known[key]
    return found


def count(
    ledger: CommunicationLedger, crossings: Mapping[int, Crossing], upload: Upload, stage: Stage
) -> None:
    """Count what clients sent and received in training; see `crossed`."""
    for (direction, item), scalars in crossed(crossings, upload, stage).items():
        way = direction if stage.edges is None else "client-edge"
        ledger.send(way, upload.ids, item, scalars)


def crossed(crossings: Mapping[int, Crossing], upload: Upload, stage: Stage) -> dict[Way, Tensor]:
    """Scalars that crossed while the clients of an upload trained: way -> shape (n,), int64."""
    found = crossings.values()
    ways = sorted({way for one in found for way in (*one.per_sample, *one.per_step)})
    if not ways:
        return {}
    assert upload.seen is not None, "every executor says it"
    models = upload.active.sum(dim=1).cpu()
    measured = 2 * upload.samples if stage.losses else torch.zeros_like(upload.samples)
    numbers = [
        upload.ids.tolist(), upload.seen.tolist(), upload.steps.tolist(), measured.tolist()
    ]  # fmt: skip
    return {
        way: models
        * torch.tensor(
            [
                crossings[client].scalars(way, samples=seen, steps=steps, measured=more)
                for client, seen, steps, more in zip(*numbers, strict=True)
            ],
            dtype=torch.int64,
        )
        for way in ways
    }


def _crossing(
    executor: Sequential, start: Dispatched, at: int, stage: Stage, work: LocalWork, round_: int
) -> Crossing:
    """What a training step of the client at a position sends, from steps of two sizes."""
    space, module = executor.workspace, executor.workspace.module
    device, schedule = space.device, stage.schedule(at)
    row = start.params[at, int(start.active[at].long().argmax())].to(device)
    own = {name: tensor[at].to(device) for name, tensor in start.client_memory.items()}
    sent = {name: tensor[at].to(device) for name, tensor in start.extras.items()}
    ends = ends_of(space, start.at_server[at].cpu())
    ends |= {id(one): (one, "client", False) for one in own.values()}
    lengths = space.layout.width, space.layout.parameters
    wholes = [row, *(one for one in (*own.values(), *sent.values()) if is_whole(one, lengths))]
    ends |= {id(one): (one, "both", True) for one in wholes}
    items = {id(one): name for name, one in own.items()}
    cuda = [device] if device.type == "cuda" else []
    counts = []
    with (
        torch.random.fork_rng(devices=cuda),
        local_settings(module, schedule, round_),
        executor.using(work),
        space.trainer.client(()),
        not_compiled(module),
        torch.enable_grad(),
    ):
        space.load(row)
        space.training_mode()
        module.start, module.received = row, Received({**own, **sent}, TRAINING)
        refuse_several_batches(space, work, schedule.whole_epochs)
        for size in SIZES:
            rows = torch.zeros(size, dtype=torch.int64, device=device)
            x, y = executor.samples.x[rows], executor.samples.y[rows]
            counts.append(Ends(dict(ends), dict(items)).step(space, x, y))
    few, more = counts
    by_sample = {way: more[way] - few[way] for way in more}
    beside = {way: few[way] - SIZES[0] * by_sample.get(way, 0) for way in few}
    return Crossing(by_sample, beside)


@contextmanager
def not_compiled(module: ClientModule) -> Iterator[None]:
    """Let a module call its own forward, not the compiled one."""
    compiled = vars(module).pop("forward", None)
    try:
        yield
    finally:
        if compiled is not None:
            vars(module)["forward"] = compiled


def is_whole(tensor: Tensor, lengths: tuple[int, int]) -> bool:
    """Whether a tensor has whole rows, or all trainable scalars of them: lengths W and P."""
    return tensor.dim() > 0 and tensor.shape[-1] in lengths


def ends_of(space: Workspace, own: Tensor) -> dict[int, Located]:
    """Where each parameter and buffer of the module lives, by its number (`id`).

    Args:
        space: holds the module.
        own: mask of what lives at the server, shape (W,), bool.
    """
    module = space.module
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    found: dict[int, Located] = {}
    for slot in space.layout.slots:
        end: End = "server" if bool(own[slot.start]) else "client"
        found[id(tensors[slot.name])] = tensors[slot.name], end, True
    return found


def refuse_several_batches(space: Workspace, work: LocalWork, epochs: int) -> None:
    """Refuse what cannot be followed: steps of several batches, or made by hand.

    Raises:
        Undefined: says what it is.
    """
    module = space.module
    each = [
        module.batches_per_step,
        *(p.batches_per_step or 1 for p in work.phases(module, epochs)),
    ]
    if max(each) > 1:
        raise Undefined("a part of the model is at the server, and a step takes several batches")
    if not space.trainer.automatic:
        raise Undefined(
            "a part of the model is at the server, and the module optimises by hand"
            " (automatic_optimization = False)"
        )


class Ends(TorchFunctionMode):
    """Follows where each operation of a training step runs, and what crosses for it.

    An operation runs where its weights are. Without weights it runs at the server if one of its
    inputs is there, else at the client. An input that is at the other end crosses, once; where it
    has a gradient, that crosses back. Samples, labels and what the client itself stores are at the
    client. What is not known to be anywhere, such as constants, is at both ends.

    Args:
        known: where tensors are, by their number (`id`).
        items: what they are called in the ledger, by the same; others are activations.
    """

    def __init__(self, known: dict[int, Located], items: dict[int, str]) -> None:
        super().__init__()
        self.known, self.items = known, items
        self.sent: set[tuple[int, End]] = set()
        self.crossed: Counter[Way] = Counter()

    def step(self, space: Workspace, x: Tensor, y: Tensor) -> Counter[Way]:
        """Follow a training step on samples and labels; returns the scalars that cross.

        Raises:
            Undefined: where its loss is computed is not known.
        """
        for item, tensor in (("samples", x), ("labels", y)):
            self.known[id(tensor)] = tensor, "client", False
            self.items[id(tensor)] = item
        module, trainer = space.module, space.trainer
        vars(module)["_current_fx_name"] = "training_step"
        trainer.batch = x, y
        module.numbering.batches = ((x, y),)
        module.numbering.index = lambda number: torch.arange(len(y), device=y.device)
        with self:
            output = trainer.training_step((x, y), 0)
        module.numbering.batches, module.numbering.index = (), None
        losses = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
        if not any(id(one) in self.known for one in losses):
            raise self._lost(f"the training_step of {module.provided_by}")
        return self.crossed

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        kwargs = kwargs or {}
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        result = func(*args, **kwargs)
        made = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        name = getattr(func, "__name__", str(func))
        if made and given:
            self._run(name, given, made)
        elif name in LEAVING:
            self._refuse_leaving(name, given)
        return result

    def _run(self, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        """An operation of a name computes tensors from others."""
        if any(one.grad_fn is not None and id(one) not in self.known for one in given):
            raise self._lost(name)
        inputs = [self.known[id(one)] for one in given if id(one) in self.known]
        if not inputs:
            return
        weights = {end for _, end, is_weight in inputs if is_weight}
        if len(weights) > 1 or "both" in weights:
            raise Undefined(
                f"a part of the model is at the server, and '{name}' in the training step takes"
                " weights of both ends"
            )
        at_server = any(end == "server" for _, end, _ in inputs)
        end: End = next(iter(weights)) if weights else "server" if at_server else "client"
        for tensor, where, is_weight in inputs:
            if where != end and not is_weight:
                self._cross(tensor, end)
        is_weight = all(own for *_, own in inputs)
        self.known |= {id(one): (one, end, is_weight) for one in made}

    def _refuse_leaving(self, name: str, given: list[Tensor]) -> None:
        """Refuse a function that takes values of activations, samples or labels out of torch."""
        if any(id(one) in self.known and not self.known[id(one)][2] for one in given):
            raise Undefined(
                f"a part of the model is at the server, and '{name}' in the training step takes"
                " numbers out of torch, where it cannot be followed to which end they go"
            )

    def _cross(self, tensor: Tensor, end: End) -> None:
        """A tensor is sent to an end, and its gradient comes back."""
        if (id(tensor), end) in self.sent:
            return
        self.sent.add((id(tensor), end))
        there: Direction = "up" if end == "server" else "down"
        back: Direction = "down" if end == "server" else "up"
        self.crossed[there, self.items.get(id(tensor), "activations")] += tensor.numel()
        if tensor.requires_grad:
            self.crossed[back, GRADIENTS] += tensor.numel()

    @staticmethod
    def _lost(what: str) -> Undefined:
        return Undefined(
            f"a part of the model is at the server, and what {what} computes cannot be followed"
        )
