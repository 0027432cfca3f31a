"""More rounds for a finished run: what it keeps for them, and where a longer run goes on.

Rounds of a run are those of a longer one where nothing looked at the number of rounds. The core
looks at it in the last round alone: it is evaluated in any case, and may fine-tune. Of methods it
is noted (`run/context.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flbench.errors import UserError
from flbench.results.files import read_result
from flbench.results.kept_files import last_checkpoint_path
from flbench.run.checkpoint_file import generations
from flbench.run.spec import RunSpec
from flbench.suite import Suite


def round_to_keep(suite: Suite) -> int:
    """The last round that a longer run has too: the last one, or the one before a special last one.

    Example:
        >>> round_to_keep(Suite.model_construct(rounds=5, eval_every=2, ft_epochs=0))
        4
    """
    is_special = suite.rounds % suite.eval_every or suite.ft_epochs
    return suite.rounds - 1 if is_special else suite.rounds


def kept_by(spec: RunSpec) -> tuple[int, Path] | None:
    """The round that a run keeps when it has ended, and where; None = it keeps none."""
    if not spec.keep.checkpoint:
        return None
    return round_to_keep(spec.suite), last_checkpoint_path(spec.path)


@dataclass(frozen=True)
class Ended:
    """A finished run that differs from another in the number of rounds alone.

    Attributes:
        rounds: how many it has.
        path: of its result.
    """

    rounds: int
    path: Path

    @property
    def checkpoint(self) -> Path:
        """Where its last checkpoint is, if it has kept it."""
        return last_checkpoint_path(self.path)


def ended_runs(spec: RunSpec) -> list[Ended]:
    """The finished runs that differ in the number of rounds alone, the shortest first."""

    def found() -> Iterator[Ended]:
        for path in sorted(spec.path.parent.parent.glob(f"*/{spec.path.name}")):
            with suppress(UserError, ValueError):
                rounds = int(read_result(path).suite["rounds"])
                if spec.of_rounds(rounds).path == path:
                    yield Ended(rounds, path)

    return sorted(found(), key=lambda one: one.rounds)


def shorter_run(spec: RunSpec) -> Ended | None:
    """The run with whose last checkpoint a run may begin; says so where there is none of a use.

    Only a run that is to be resumed and has no checkpoint of its own looks for one.
    """
    if not spec.resume or generations(spec.checkpoint) or not (ended := ended_runs(spec)):
        return None
    fewer = [one for one in ended if one.rounds < spec.suite.rounds]
    usable = [one for one in fewer if generations(one.checkpoint)]
    if usable:
        return usable[-1]
    last = ended[-1]
    if last.rounds < spec.suite.rounds:
        why = f"has ended and keeps none ({last.path}): --keep-checkpoint lets a run keep it"
    else:
        why = f"is longer ({last.path})"
    spec.say(
        f"{spec.title}: --resume finds no checkpoint of fewer than {spec.suite.rounds} rounds and"
        f" starts at round 1: the run of {last.rounds} rounds {why}"
    )
    return None
