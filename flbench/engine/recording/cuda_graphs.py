"""CUDA graphs of a recorded step: the device gets its kernels in one launch, not one by one.

On CUDA the step of a small network takes as long as launching its operations. A captured graph
launches the same kernels at once, but always on the same memory. So its inputs are copied to
tensors of its own, and its outputs are tensors that the next call overwrites: a caller must have
used them by then, on the same stream, and must not write to them. `PhaseSteps.make` does so: the
optimiser's kernels read the gradients and keep none of them, losses are added to a table, and
buffers are written to one, all before the next step.

What cannot be captured: copies from or to pageable memory of the host; waiting for the device
(`.item()`, shapes that depend on values; a program has neither); memory of another pool than the
graph's. Capturing these raises an error. A number in the host's memory is captured as it is now,
which raises none; so programs that read tensors there that others may change have no graphs, nor
have those that write to what they are given, as a graph would write to its copy.

Nothing is believed: the first calls of a graph must give the bits of the program. If they do not,
or if capturing fails, the program has no graphs from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from flbench.engine.recording.program import LaneProgram, same_bits

CALLS = 3
"""A call is captured when it is made for this time: capturing takes as long as several calls."""
CHECKED = 2
"""First calls of a graph that are compared; in the second one the inputs are others."""
GRAPHS = 64
"""Graphs that exist at once: each keeps memory of its own."""
LARGEST = 2**23
"""Bytes of inputs for each operation, beyond which copying them takes longer than launches."""
ROOM = 0.5
"""Share of a device's memory that must be free for a graph to be captured."""
WARM_UP = 3
"""Calls before capturing, in which libraries allocate what they need."""

Program = Callable[[int, Sequence[Tensor]], list[Tensor]]
"""Gives outputs for a number of lanes and inputs."""


class Captured(Protocol):
    """A function of no arguments that was captured.

    Attributes:
        outputs: of the function; `replay` overwrites them.
    """

    outputs: list[Tensor]

    def replay(self) -> None:
        """Compute the outputs again from what is now in the tensors that the function reads."""


Capture = Callable[[Callable[[], list[Tensor]]], Captured]
"""Captures a function, whose outputs may be undefined until they are replayed."""


class CudaGraph:
    """A captured function on the current CUDA device; see `Captured`."""

    def __init__(self, function: Callable[[], list[Tensor]]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream()
        side = torch.cuda.Stream()
        try:
            side.wait_stream(before)
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    function()
            before.wait_stream(side)
            with torch.cuda.graph(self._graph, pool=_pool()):
                self.outputs = function()
            _CAPTURED.add(self._graph)
        finally:
            torch.cuda.set_stream(before)  # torch stays on its own stream if capturing fails

    def replay(self) -> None:
        """Launch the graph."""
        self._graph.replay()


_CAPTURED: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
"""The CUDA graphs that exist."""


def _pool() -> Any:  # noqa: ANN401 - torch names no type of it
    """The memory that all graphs share, as no graph's results are needed after another's replay.

    It is freed with the last graph, and then torch takes its handle no more.
    """
    one = next(iter(_CAPTURED), None)
    return None if one is None else one.pool()


CAPTURES: dict[str, Capture] = {"cuda": CudaGraph}
"""What captures a function, by type of device."""


def with_graphs(program: LaneProgram, device: torch.device) -> Program:
    """The program, with graphs on a device that has them."""
    on_device = all(tensor.device == device for tensor in program.outside)
    if device.type not in CAPTURES or program.writes or not on_device:
        return program
    return GraphedProgram(program, CAPTURES[device.type])


def without_graphs(program: Program) -> Program:
    """The program without its graphs, as a function that is captured itself must call it."""
    return program.program if isinstance(program, GraphedProgram) else program


class GraphedProgram:
    """A program whose frequent calls are replayed; the outputs are overwritten by the next call.

    Attributes:
        program: what it repeats.
        has_failed: a graph gave other bits, or could not be captured.

    Args:
        program: may be called more often than this is; it changes nothing.
        capture: captures a function.
    """

    def __init__(self, program: LaneProgram, capture: Capture) -> None:
        self.program, self._capture = program, capture
        self._calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, _Graph] = {}
        self.has_failed = False

    @torch.no_grad()
    def __call__(self, lanes: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs for a number of lanes."""
        if self.has_failed:
            return self.program(lanes, inputs)
        places = [tensor.data_ptr() for tensor in self.program.outside]  # a graph reads them there
        key = lanes, *places, *((tensor.shape, tensor.dtype) for tensor in inputs)
        graph = self._graphs.get(key)
        if graph is not None and graph.checked == CHECKED:
            return graph(inputs)
        outputs = self.program(lanes, inputs)
        self._calls[key] += 1
        try:
            if graph is None and self._is_worth_it(key, inputs):
                graph = self._graphs[key] = _Graph(self.program, lanes, inputs, self._capture)
            if graph is not None:
                self.has_failed = not same_bits(graph(inputs), outputs)
                graph.checked += 1
        except Exception:  # whatever cannot be captured: the program computes it
            self.has_failed = True
        if self.has_failed:
            self._graphs.clear()
        return outputs

    def _is_worth_it(self, key: Hashable, inputs: Sequence[Tensor]) -> bool:
        """Whether to capture a call."""
        if self._calls[key] < CALLS or len(_ALIVE) >= GRAPHS:
            return False
        size = sum(inputs[number].nbytes for number in self.program.reads)
        return size <= LARGEST * self.program.operations and has_room(inputs[0].device)


def has_room(device: torch.device) -> bool:
    """Whether a device has memory for another graph."""
    if device.type != "cuda":
        return True
    free, whole = torch.cuda.mem_get_info(device)
    return free >= ROOM * whole


class _Graph:
    """A captured call of a program.

    Attributes:
        checked: calls that were compared with the program.
    """

    def __init__(
        self, program: LaneProgram, lanes: int, inputs: Sequence[Tensor], capture: Capture
    ) -> None:
        own = [tensor[:0] for tensor in inputs]  # of those that it does not read
        numbers: dict[torch.dtype, list[int]] = {}
        for number in sorted(program.reads):
            own[number] = inputs[number].clone(memory_format=torch.contiguous_format)
            numbers.setdefault(own[number].dtype, []).append(number)
        self._copies = [([own[i] for i in alike], alike) for alike in numbers.values()]
        self._captured = capture(lambda: program(lanes, own))
        self.checked = 0
        _ALIVE.add(self)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, which the next call overwrites."""
        for own, alike in self._copies:  # tensors of one type are copied in one launch
            torch._foreach_copy_(own, [inputs[i] for i in alike])
        self._captured.replay()
        return self._captured.outputs


_ALIVE: WeakSet[_Graph] = WeakSet()
"""All graphs; they are freed with their programs."""
