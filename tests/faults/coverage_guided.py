"""Choose inputs by what they reach: one that reached new lines of flbench is changed further.

An input is made of random numbers that are drawn one after the other, and these come from its name:
`KIND/NUMBER` seeds them, and every `~PLACE` after it draws the number at that place anew. So what
was changed can be made again from its name alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any
from zlib import crc32

from fault_record import Fault, append, recorded

import flbench

OWN = str(Path(flbench.__file__).parent)
SHARE = 0.6
"""Of the inputs, how many are changed ones."""
ALL_WATCHED = 20_000
"""So many inputs are watched, and then every fourth one, which is twice as fast."""
DEEPEST = 24
"""Changes of an input, at most."""


class Draws(Random):
    """The random numbers of a name; `drawn` counts them."""

    def __init__(self, name: str) -> None:
        head, *places = name.split("~")
        super().__init__(crc32(head.encode()))
        self.drawn = 0
        self.anew = {
            int(place): Random(crc32("~".join([head, *places[: at + 1]]).encode()))
            for at, place in enumerate(places)
        }

    def random(self) -> float:
        """The next number, in [0, 1)."""
        return self.getrandbits(53) / 2**53

    def getrandbits(self, k: int, /) -> int:
        """The next number, of k bits; the others are the same if it is drawn anew."""
        usual, anew = super().getrandbits(k), self.anew.get(self.drawn)
        self.drawn += 1
        return usual if anew is None else anew.getrandbits(k)


class Reached:
    """The lines of flbench that were executed while it was watching."""

    def __init__(self) -> None:
        self.lines = 0
        self._left: dict[CodeType, set[int]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count lines that are executed for the first time."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OWN):
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = {line for *_, line in code.co_lines() if line}
            left.discard(code.co_firstlineno)

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_lineno in left:
                left.discard(frame.f_lineno)
                self.lines += 1
            return line

        return line if left else None


def guided(
    count: int, kinds: Sequence[str], inject: Callable[[str, Reached | None], Fault], file: Path
) -> Iterator[Fault]:
    """Inject `count` inputs, those that `file` holds among them; new ones are appended to it.

    What went wrong is injected again: it may have been mended.
    """
    reached = Reached()
    known = recorded(file)
    corpus: dict[str, list[Fault]] = {kind: [] for kind in kinds}
    for fault in list(known.values()):
        if fault.reached:
            corpus[fault.kind].append(fault)
            inject(fault.name, reached)
        if fault.wrong:
            known[fault.name] = inject(fault.name, reached)
            append(known[fault.name], file)
    yield from known.values()
    number = len(known)
    while len(known) < count:
        kind = kinds[number % len(kinds)]
        name = proposed(number, f"{kind}/{number // len(kinds)}", corpus[kind])
        number += 1
        if name in known:
            continue
        watched = len(known) < ALL_WATCHED or number % 4 == 0
        fault = known[name] = inject(name, reached if watched else None)
        append(fault, file)
        if fault.reached:
            corpus[kind].append(fault)
        yield fault


def proposed(number: int, fresh: str, corpus: Sequence[Fault]) -> str:
    """The next input: a fresh one, or one of the corpus, newer ones more often, with changes."""
    rng = Random(number)
    if not corpus or rng.random() > SHARE:
        return fresh
    parent = max(rng.choices(range(len(corpus)), k=2))
    name = corpus[parent].name
    for _ in range(rng.choice([1, 1, 2, 4])):
        name += f"~{rng.randrange(corpus[parent].drawn)}"
    return name if name.count("~") <= DEEPEST else fresh
