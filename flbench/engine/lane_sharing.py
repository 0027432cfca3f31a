"""One call of a recorded step for the lanes of several runs, with the bits of a call for each run.

Libraries choose how to multiply matrices by their shapes, the number of lanes among them, and some
choices give other last bits. Training makes them large within a few rounds. So before runs share
calls of so many lanes, the calls of each run by itself are made too, once, and compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from flbench.engine.lane_graph import Program
from flbench.engine.lane_program import same_bits


class LaneCounts:
    """Which numbers of lanes give a lane the same bits in a call of one recorded step."""

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}
        self._unlike: set[frozenset[int]] = set()

    def are_alike(self, one: int, other: int) -> bool | None:
        """Whether two numbers of lanes give the same bits; None = it is not known."""
        kinds = frozenset({self._kind(one), self._kind(other)})
        return True if len(kinds) == 1 else False if kinds in self._unlike else None

    def note(self, one: int, other: int, *, same: bool) -> None:
        """Note whether two numbers of lanes gave the same bits in a call."""
        mine, its = self._kind(one), self._kind(other)
        if same:
            self._kinds = {count: mine if k == its else k for count, k in self._kinds.items()}
            self._unlike = {frozenset(mine if k == its else k for k in two) for two in self._unlike}
        else:
            self._unlike.add(frozenset({mine, its}))

    def _kind(self, count: int) -> int:
        return self._kinds.setdefault(count, count)


def call_for_runs(
    program: Program,
    lanes: int,
    inputs: Sequence[Tensor],
    shares: Sequence[slice],
    counts: LaneCounts,
) -> list[Tensor]:
    """The outputs that lanes have if each run's lanes make a call of their own.

    One call serves all runs if it is known to give the same bits.

    Args:
        program: the recorded step.
        lanes: number of lanes, G.
        inputs: shapes (G, ...).
        shares: the part of the lanes that each run has.
        counts: what is known of this program, which is completed.

    Returns:
        Tensors of shapes (G, ...), which the next call may overwrite.
    """
    known = [counts.are_alike(lanes, share.stop - share.start) for share in shares]
    if all(known):
        return program(lanes, inputs)
    outputs: list[Tensor] = []
    for share in shares:
        own = program(share.stop - share.start, [tensor[share] for tensor in inputs])
        outputs = outputs or [tensor.new_empty((lanes, *tensor.shape[1:])) for tensor in own]
        for whole, part in zip(outputs, own, strict=True):
            whole[share] = part
    if False not in known:
        together = program(lanes, inputs)
        same: dict[int, bool] = {}
        for share in shares:  # one run's may have the same bits by chance
            count, alone = share.stop - share.start, [tensor[share] for tensor in outputs]
            alike = same_bits([tensor[share] for tensor in together], alone)
            same[count] = same.get(count, True) and alike
        for count, alike in same.items():
            counts.note(lanes, count, same=alike)
    return outputs
