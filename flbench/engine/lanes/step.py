"""The gradients of a step of many lanes: by the module's Python, or by a program made of it.

`torch.func.vmap` runs the ClientModule's own `training_step` over the lanes. A step that was made
`USES` times is recorded (`recording.program`). What a step computes may change from stage to
stage: a method may give other terms, or its hooks may set attributes. So each program has a
question, tensors for two lanes, and the operations by which the step answers it, which is asked
again whenever a phase starts; if the answer is another, or an operation takes another number or
another tensor of the module's, the programs are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from flbench.core.client_module import (
    TRAINING,
    ClientModule,
    LocalWork,
    ModuleCall,
    Received,
    mean_cross_entropy,
)
from flbench.core.networks import has_forward_hooks, is_linear
from flbench.core.targets import no_target
from flbench.engine.lanes.convolution import LaneConvolutions
from flbench.engine.lanes.group import Sizes
from flbench.engine.local_trainer import loss_of
from flbench.engine.recording.cuda_graphs import Program, with_graphs, without_graphs
from flbench.engine.recording.in_place import InPlaceCalls
from flbench.engine.recording.program import (
    FEWER,
    USES,
    Index,
    LaneProgram,
    WatchedCall,
    same_bits,
    same_objects,
)
from flbench.engine.workspace import Workspace

CHANGES = 3
"""So many other answers, and the step is not recorded again."""
LARGEST_FILLED = 64
"""Batches of more samples are not filled up."""
METHODS = "training_step", "batch_loss", "forward"
"""What makes a step of a module; if they are ClientModule's, a step is that of its network."""
Named = dict[str, Tensor]
Question = tuple[list[Tensor], WatchedCall]
"""Inputs for two lanes, and a step that was made of them."""


@dataclass
class Programs:
    """The recorded steps of one kind of phase, by the sizes of their batches.

    Attributes:
        known: the programs; None = the step cannot be recorded.
        reads: numbers of the inputs that each program reads.
        reached: names of the parameters that the loss of each program reaches.
        uses: how often each step was made by the module's Python.
        question: inputs for two lanes, and the step that was made of them.
        attributes: what the module's hooks had set when it gave that answer.
        changes: how often the answer was another one.
        fills: whether batches may be filled up; None = it is not known.
        numbered: whether the step may depend on its number in the epoch; None = it is not known.
        phases: phases of these steps in one call (`lanes.phase`).
    """

    known: dict[Sizes, Program | None] = field(default_factory=dict)
    reads: dict[Sizes, Set[int]] = field(default_factory=dict)
    reached: dict[Sizes, set[str]] = field(default_factory=dict)
    uses: dict[Sizes, int] = field(default_factory=dict)
    question: Question | None = None
    attributes: dict[str, object] = field(default_factory=dict)
    changes: int = 0
    fills: bool | None = None
    numbered: bool | None = None
    phases: InPlaceCalls = field(default_factory=InPlaceCalls)

    def forget(self) -> None:
        """Forget the programs, as a step is another one now."""
        self.changes += 1
        self.known, self.reads, self.reached, self.uses = {}, {}, {}, {}
        self.question, self.attributes = None, {}
        self.fills = self.numbered = None
        self.phases = InPlaceCalls()


class LaneStep:
    """The loss of one lane as a function of its tensors, to which `vmap` and `grad` are applied.

    The gradient is taken for each tensor, not for the row of which the tensors are slices: its
    backward pass would write a complete row for every slice.

    Attributes:
        reads_index: whether it gets the positions of samples (`Batch.index`), which a plain loss
            does not look at.
        has_graphs: whether a recorded step may be a graph; not while another graph is captured.

    Args:
        space: holds the module.
        work: what the methods add to it.
        names: of the tensors that the clients received.
        programs: what was recorded in such phases before.
        attributes: gives what the module's hooks may set.
        uses: a step is recorded when it is made for this time.
    """

    def __init__(
        self,
        space: Workspace,
        work: LocalWork,
        names: Sequence[str],
        programs: Programs,
        attributes: Callable[[ClientModule], dict[str, object]],
        uses: int = USES,
    ) -> None:
        self.cut = space.layout.parameters
        self.parameters = [slot for slot in space.layout.slots if slot.kind == "parameter"]
        self.buffers = [slot for slot in space.layout.slots if slot.kind != "parameter"]
        self.received = list(names)
        self.space = space
        self.module = space.module
        self.terms = work.terms
        self.programs = programs
        self.attributes = attributes
        self.uses = uses
        kind = type(space.module)
        self.has_plain_loss = work.loss is mean_cross_entropy and all(
            getattr(kind, name) is getattr(ClientModule, name) for name in METHODS
        )
        self.is_plain = (
            self.has_plain_loss and not work.terms and not has_forward_hooks(space.module)
        )
        self.reads_index = not self.has_plain_loss
        self.has_graphs = True
        self.index: Any = 0
        self.take = space.trainer.training_step
        self.reached: set[str] = set()
        self.call = ModuleCall(space.module, self._training_loss)
        self.gradients = vmap(grad_and_value(self._loss, has_aux=True))
        if not self._is_answered_alike():
            programs.forget()

    def is_recorded(self, sizes: Sizes) -> bool:
        """Whether there is a program of the step, which serves lanes at other steps, too."""
        return self.programs.known.get(sizes) is not None

    def reads(self, sizes: Sizes) -> Set[int] | None:
        """The numbers of the inputs that a recorded step reads; None = it is not recorded."""
        return self.programs.reads[sizes] if self.is_recorded(sizes) else None

    def fills(self, inputs: Callable[[], list[Tensor]]) -> bool:
        """Whether a batch may be filled up with samples without a label.

        Then lanes whose last batches are of several sizes share a step. Their numbers are the same
        up to the order of float sums. It is done for networks of linear layers only, whose calls
        take longer than their arithmetic, if trying it shows that samples do not influence one
        another. Nothing of it depends on other lanes.

        Args:
            inputs: gives those of one lane with a full batch, shapes (1, ...); see `__call__`.
        """
        if not self.has_plain_loss:
            return False
        if self.programs.fills is None:
            self.programs.fills = self._may_fill() and self._is_filled_alike(inputs())
        return self.programs.fills

    def _may_fill(self) -> bool:
        """Whether the network is such that it is worth to try."""
        return (
            1 < self.module.local.batch_size <= LARGEST_FILLED
            and not self.space.lane_randomness.layers
            and is_linear(self.module)
        )

    def _is_filled_alike(self, inputs: list[Tensor]) -> bool:
        """Whether the step of half a batch is that of the batch with labels for one half."""
        *rest, x, y = inputs
        half = (y.shape[1] + 1) // 2
        filled = y.clone()
        filled[:, half:] = no_target(y)
        try:
            ones = self._by_python([*rest, x[:, :half], y[:, :half]], Index())
            others = self._by_python([*rest, x, filled], Index())
        except Exception:  # whatever it is, it comes again in the step itself
            return False
        pairs = zip(ones, others, strict=True)
        return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in pairs)

    def is_numbered(self, inputs: Callable[[], list[Tensor]]) -> bool:
        """Whether it may depend on its number within the epoch, or draws random numbers.

        Others serve lanes that have made unequal numbers of steps, by Python and recorded alike:
        which lanes share a call must not depend on what is recorded, as it decides the last bits,
        and a run that is resumed records its steps anew.

        Args:
            inputs: gives those of one lane, shapes (1, ...); see `__call__`.
        """
        if self.has_plain_loss and not self.space.lane_randomness.layers:
            return False
        if self.programs.numbered is None:
            self.space.lane_randomness.generators = []
            try:
                self._by_python(inputs(), Index())
            except Exception:  # whatever it is, it comes again in the step itself
                self.programs.numbered = True
            else:
                self.programs.numbered = False
        return self.programs.numbered

    def __call__(
        self, sizes: Sizes, lanes: int, inputs: list[Tensor], index: int | Index
    ) -> tuple[Named, Tensor, Tensor]:
        """Return gradients, losses and buffers of lanes after a step.

        Parameters that the loss does not reach have no gradient: an optimiser leaves them alone.
        They must be used before the next step, which may overwrite them (`recording.cuda_graphs`).

        Args:
            sizes: samples of each batch of the step.
            lanes: number of lanes, G.
            inputs: the parameters' tensors, each (G, ...), buffers (G, B), start (G, W), what the
                clients received, and samples and labels of each batch, (G, b, ...), with the
                samples' positions, (G, b), where the step `reads_index`.
            index: number of the step within its epoch; `Index()` if lanes have several.
        """
        program = self.programs.known.get(sizes)
        if program is not None:
            program = program if self.has_graphs else without_graphs(program)
            outputs, reached = program(lanes, inputs), self.programs.reached[sizes]
        else:
            outputs, reached = self._by_python(inputs, index), self.reached
            self._count(sizes, inputs, outputs)
        *gradients, loss, buffers = outputs
        names = [slot.name for slot in self.parameters]
        slopes = {n: slope for n, slope in zip(names, gradients, strict=True) if n in reached}
        return slopes, loss, buffers

    def _by_python(self, inputs: Sequence[Tensor], index: object) -> list[Tensor]:
        """Gradient of each parameter's tensor, losses and buffers, by the module's Python."""
        self.index, self.reached = index, set[str]()
        with self.space.fabric.autocast(), LaneConvolutions():
            outputs = self._outputs(*inputs)
        if not self.reached:  # as a backward pass of one client would say
            raise RuntimeError("the loss of a batch does not require grad: it reaches no parameter")
        return outputs

    def _outputs(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs as a function of tensors only."""
        rest = iter(inputs)
        parameters = {slot.name: next(rest) for slot in self.parameters}
        buffers, start = next(rest), next(rest)
        received = {name: next(rest) for name in self.received}
        columns = [rest] * (3 if self.reads_index else 2)
        batches = tuple(zip(*columns, strict=True))
        gradients, (loss, after) = self.gradients(parameters, buffers, start, received, batches)
        return [*(gradients[slot.name] for slot in self.parameters), loss, after]

    def _loss(
        self,
        parameters: Named,
        buffers: Tensor,
        start: Tensor,
        received: Named,
        batches: Sequence[tuple[Tensor, ...]],
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one lane and its buffers after the step."""
        numbering, pairs = self.module.numbering, tuple((x, y) for x, y, *_ in batches)
        for name, tensor in parameters.items():
            tensor.register_hook(partial(self._reach, name))
        named_buffers = {}
        for slot in self.buffers:
            values = buffers[slot.start - self.cut : slot.stop - self.cut].clone().view(slot.shape)
            named_buffers[slot.name] = values.long() if slot.kind == "counter" else values
        self.module.start, self.module.received = start, Received(received, TRAINING)
        self.space.lane_randomness.lane_marker = start[:0].sum()
        if self.reads_index:
            numbering.batches, numbering.index = pairs, lambda number: batches[number][2]
        batch = pairs[0] if len(pairs) == 1 else pairs
        loss = self.call.with_tensors({**parameters, **named_buffers}, batch)
        numbering.batches, numbering.index = (), None
        if not named_buffers:
            return loss, buffers.clone()
        after = [tensor.reshape(-1).to(buffers.dtype) for tensor in named_buffers.values()]
        return loss, torch.cat(after)

    def _reach(self, name: str, gradient: Tensor | None) -> None:
        """Note that the loss reaches a parameter; `grad` gives zeros for those that it does not."""
        if gradient is not None:
            self.reached.add(name)

    def _training_loss(self, batch: Any) -> Tensor:  # noqa: ANN401 - a batch, or a tuple of them
        """The loss of one batch and its terms."""
        held = self.space.held()
        output = self.take(batch, self.index)
        loss = output if isinstance(output, Tensor) else loss_of(output)
        if loss is None:
            raise TypeError("training_step returned None for a batch")
        for term in self.terms:
            loss = loss + term(self.module)
        for name, tensor in self.space.held().items():
            if tensor is not held[name]:
                raise self.space.was_replaced(name)
        return loss

    def _count(self, sizes: Sizes, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Count a step made by Python, and record it when it is made for the `USES`th time."""
        memory = self.programs
        memory.uses[sizes] = memory.uses.get(sizes, 0) + 1
        if sizes in memory.known or memory.uses[sizes] < self.uses or memory.changes >= CHANGES:
            return
        memory.known[sizes] = None
        try:
            memory.known[sizes] = self._record(sizes, inputs, outputs)
            memory.reached[sizes] = self.reached
        except Exception:  # whatever a module does that a program cannot: its Python goes on
            return

    def _record(self, sizes: Sizes, inputs: list[Tensor], outputs: list[Tensor]) -> Program | None:
        """The program of a step that gave these outputs; None if it gives others."""
        lanes = len(outputs[-1])
        self.space.lane_randomness.generators = []  # a step that draws cannot be recorded
        question = self._question([tensor[:1] for tensor in inputs])
        before = dict(self.attributes(self.module))
        program = LaneProgram(
            lambda *tensors: self._by_python(tensors, Index()),
            question,
            [torch.cat([tensor, tensor[:1]]) for tensor in question],
        )
        now = self.attributes(self.module)
        if not same_objects(before, now) or not same_bits(program(lanes, inputs), outputs):
            return None
        answer = self._answer(question)
        if not same_bits(program(FEWER, question), answer.outputs):
            return None
        memory = self.programs
        if memory.question is None:
            memory.question = question, answer
        memory.attributes = now
        memory.reads[sizes] = program.reads
        return with_graphs(program, inputs[0].device)

    def _question(self, inputs: list[Tensor]) -> list[Tensor]:
        """Inputs for two lanes near those of one.

        Parameters differ from `start`, so that no term of their distance is zero.
        """
        generator = torch.Generator(inputs[0].device).manual_seed(0)
        changed = len(self.parameters), len(self.parameters) + 2 + len(self.received)
        question = []
        for number, tensor in enumerate(inputs):
            two = torch.cat([tensor] * FEWER)
            if number < changed[1] and number != changed[0] and two.is_floating_point():
                noise = torch.empty_like(two).normal_(0, 0.1, generator=generator)
                two = two + noise
            question.append(two)
        return question

    def _answer(self, question: list[Tensor]) -> WatchedCall:
        """What the module's Python makes of a question."""
        return WatchedCall(lambda *tensors: self._by_python(tensors, Index()), question)

    def _is_answered_alike(self) -> bool:
        """Whether the step answers the programs' question as when they were recorded."""
        memory, now = self.programs, self.attributes(self.module)
        if memory.question is None or (self.is_plain and same_objects(memory.attributes, now)):
            return True
        question, answer = memory.question
        try:
            same = self._answer(question).is_like(answer)
        except Exception:
            same = False
        if same:
            memory.attributes = now
        return same
