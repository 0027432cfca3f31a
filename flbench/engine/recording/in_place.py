"""Functions that change tables in place, on tables of their own, so that a graph can repeat them.

A captured graph works on the same memory always. A function of many operations that changes its
arguments is therefore given tables of its own once; each call copies the arguments there, plays
the function, and copies what it changed back. Where a device has graphs, playing is one launch
(`cuda_graphs`); elsewhere the function is called, with the same bits.

Nothing is believed: what the first calls change must have the bits of the usual way. If it has not,
or if capturing fails, there are no such calls from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flbench.engine.recording import cuda_graphs
from flbench.engine.recording.cuda_graphs import CHECKED, Capture
from flbench.engine.recording.program import same_bits

KEPT = 4
"""Functions of one table that exist at once: each keeps tables of its own."""


class InPlace:
    """A function on tables of its own.

    Attributes:
        given: its tables; a call copies others there.
        checked: calls that were compared with the usual way.

    Args:
        function: changes some of `given`; it begins anew whenever it is called.
        given: the tables that it reads.
        changed: those of them that it changes.
        capture: captures a function; None = it is called.
    """

    def __init__(
        self,
        function: Callable[[], object],
        given: Sequence[Tensor],
        changed: Sequence[Tensor],
        capture: Capture | None,
    ) -> None:
        self.given, self._changed, self._function = given, list(changed), function
        self._captured = None if capture is None else capture(self._outputs)
        self.checked = 0

    def _outputs(self) -> list[Tensor]:
        self._function()
        return self._changed

    def play(self) -> list[Tensor]:
        """Change the tables that it was given; return those that are changed."""
        if self._captured is None:
            return self._outputs()
        self._captured.replay()
        return self._captured.outputs


@dataclass
class InPlaceCalls:
    """Calls that may be made in place, by what they depend on beside their tables.

    Attributes:
        known: the functions.
        calls: how often each call was made the usual way.
        has_failed: one of them gave other bits, or could not be captured.
    """

    known: dict[Hashable, InPlace] = field(default_factory=dict)
    calls: Counter[Hashable] = field(default_factory=Counter)
    has_failed: bool = False

    @torch.no_grad()
    def __call__(
        self,
        key: Hashable,
        make: Callable[[], InPlace],
        given: Sequence[Tensor],
        changed: Sequence[Tensor],
        usual: Callable[[], None],
    ) -> bool:
        """Make a call in place, or the usual way.

        Args:
            key: a call of another key needs another function.
            make: makes the function; its tables have the shapes of `given`.
            given: the tables that the call reads.
            changed: those of them that it changes.
            usual: makes the call the usual way.

        Returns:
            Whether it was made in place alone; `usual` was not called then.
        """
        one = self.known.get(key)
        if one is not None and one.checked == CHECKED:
            copy_all(one.given, given)
            copy_all(changed, one.play())
            return True
        self.calls[key] += 1
        if one is None and self._is_worth_it(key, given[0].device):
            one = self._made(key, make)
        if one is not None:
            copy_all(one.given, given)
        usual()
        if one is not None and not self._is_like(one, changed):
            self.has_failed = True
            self.known.clear()
        return False

    def _is_worth_it(self, key: Hashable, device: torch.device) -> bool:
        """Whether to make the function of a call."""
        often = self.calls[key] >= cuda_graphs.CALLS and len(self.known) < KEPT
        return often and not self.has_failed and cuda_graphs.has_room(device)

    def _made(self, key: Hashable, make: Callable[[], InPlace]) -> InPlace | None:
        """The function of a call; None if it cannot be made."""
        try:
            self.known[key] = make()
        except Exception:  # whatever cannot be captured: the usual way does it
            self.has_failed = True
        return self.known.get(key)

    def _is_like(self, one: InPlace, changed: Sequence[Tensor]) -> bool:
        """Whether a function gives what a call changed the usual way."""
        one.checked += 1
        try:
            return same_bits(one.play(), changed)
        except Exception:
            return False


def copy_all(into: Sequence[Tensor], tables: Sequence[Tensor]) -> None:
    """Copy tables; those of one type are copied in one launch."""
    alike: dict[torch.dtype, list[int]] = {}
    for number, table in enumerate(into):
        alike.setdefault(table.dtype, []).append(number)
    for numbers in alike.values():
        torch._foreach_copy_([into[i] for i in numbers], [tables[i] for i in numbers])
