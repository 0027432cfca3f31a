"""A step of W1's lanes: `python -m flbench_benchmarks.speed.step_graph WAY DEVICE WORK`.

By the Python of `vmap(grad)` or by its recording (`engine/recording`), each called, or captured as
a CUDA graph and replayed. If both graphs take equally long, the recording serves CPUs alone. A
round is `STEPS` steps on the same tensors. Without a device a graph is called like its function.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import sha256

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from flbench.engine.lanes.convolution import LaneConvolutions
from flbench.engine.machine.deterministic import turn_on
from flbench.engine.recording.cuda_graphs import CAPTURES
from flbench.engine.recording.program import LaneProgram

from .floor import network
from .turns import Turns
from .workload import Workload, images

WAYS = "vmap(grad)", "graph of vmap(grad)", "recording", "graph of the recording"
STEPS = 20


def main() -> None:
    """Make steps until standard input is closed."""
    way, device = sys.argv[1], torch.device(sys.argv[2])
    torch.set_num_threads(1)
    turns, work = Turns(), Workload.read(sys.argv[3])
    turn_on(device)
    net = network(work).to(device)
    names = [name for name, _ in net.named_parameters()]

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, parameters, (x,)), y)

    def step(*inputs: Tensor) -> list[Tensor]:
        *tables, x, y = inputs
        with LaneConvolutions():
            slopes, losses = vmap(grad_and_value(loss))(dict(zip(names, tables, strict=True)), x, y)
        return [*(slopes[name] for name in names), losses]

    def inputs(lanes: int) -> list[Tensor]:
        x, y = (table[:lanes, : work.batch].to(device) for table in images(work))
        tables = [one.detach()[None].repeat(lanes, *[1] * one.dim()) for one in net.parameters()]
        return [*tables, x, y]

    given = inputs(work.cohort)
    program = LaneProgram(step, inputs(2), inputs(3)) if "recording" in way else None

    def call() -> list[Tensor]:
        return step(*given) if program is None else program(work.cohort, given)

    capture = CAPTURES.get(device.type)
    if "graph of" in way and capture is not None:
        captured = capture(call)

        def play() -> list[Tensor]:
            captured.replay()
            return captured.outputs
    else:
        play = call
    turns.report_and_wait(bits=digest(play()))
    while True:
        for _ in range(STEPS):
            play()
        turns.report_and_wait(steps=STEPS)


def digest(tables: Sequence[Tensor]) -> str:
    """A name of the bits of tables, so that the ways can be compared."""
    parts = [table.contiguous().numpy(force=True).tobytes() for table in tables]
    return sha256(b"".join(parts)).hexdigest()[:8]


if __name__ == "__main__":
    main()
