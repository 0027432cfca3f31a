"""One call of a recorded step for the lanes of several runs, with the bits of a call for each run.

Libraries choose how to multiply matrices by their shapes, the number of lanes among them, and some
choices give other last bits. Training makes them large within a few rounds. So before runs share
calls of so many lanes, the calls of each run by itself are made too, once, and compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from flbench.engine.recording.cuda_graphs import Program
from flbench.engine.recording.program import same_bits


class LaneCounts:
    """Which numbers of lanes give a lane the same bits in a call of one recorded step.

    Numbers that are like a third are alike. Bits may also be the same by chance, so numbers are
    unlike where it was otherwise once, or is by other comparisons.
    """

    def __init__(self) -> None:
        self._alike: set[frozenset[int]] = set()
        self._unlike: set[frozenset[int]] = set()
        self._answers: dict[tuple[int, int], bool | None] = {}

    def are_alike(self, one: int, other: int) -> bool | None:
        """Whether two numbers of lanes give the same bits; None = it is not known."""
        asked = one, other
        if asked not in self._answers:
            self._answers[asked] = self._compared(one, other)
        return self._answers[asked]

    def note(self, one: int, other: int, *, same: bool) -> None:
        """Note whether two numbers of lanes gave the same bits in a call."""
        (self._alike if same else self._unlike).add(frozenset({one, other}))
        self._answers.clear()

    def _compared(self, one: int, other: int) -> bool | None:
        mine, its = self._like(one), self._like(other)
        if one == other:
            return True
        if any({a, b} in self._unlike for a in mine for b in its):
            return False
        return True if mine == its else None

    def _like(self, count: int) -> set[int]:
        """The numbers that are like one, or like one of these."""
        found, more = set[int](), {count}
        while more:
            found |= more
            more = {n for pair in self._alike if pair & found for n in pair} - found
        return found


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
