"""Which methods go together: every pair of installed methods, composed and run.

A pair runs on the small federation of the conformance checks, with what both declare for it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Annotated, Any

from annotated_types import Ge

from flbench.core.conformance import Conformance
from flbench.errors import FlbenchError, Undefined, UserError, text_of
from flbench.plugin.registry import entries, find, load_entry
from flbench.run.composition import MethodStack, compose
from flbench.sweeps.request import RunRequest
from flbench.sweeps.study import StudyTable
from flbench.testing.small_run import run_small, small_suite

OUTCOMES = ("runs", "refused", "undefined", "fails")


def run(
    request: RunRequest, say: Callable[[str], None], rounds: Annotated[int, Ge(1)] = 2
) -> StudyTable:
    """Which methods go together: each pair, composed and run for two rounds.

    Args:
        request: not used: the federation is small and fixed.
        say: shows a line of progress.
        rounds: number of rounds of each run.

    Returns:
        A row per method: the methods with which it runs; those that decide the same, so that the
        pair is refused; those with which it is undefined; and those with which it fails, and how.
    """
    names = list(entries("methods"))
    found: dict[str, dict[str, list[str]]] = {
        name: {outcome: [] for outcome in OUTCOMES} for name in names
    }
    for number, first in enumerate(names):
        say(f"compositions: {first} ({number + 1} of {len(names)})")
        for one, other in ((a, b) for a, b in combinations(names, 2) if a == first):
            outcome, why = outcome_of(one, other, rounds)
            found[one][outcome].append(f"{other}: {why}" if outcome == "fails" else other)
            found[other][outcome].append(f"{one}: {why}" if outcome == "fails" else one)
    return [
        {"method": name, **{f"n_{what}": len(lists[what]) for what in OUTCOMES}, **lists}
        for name, lists in found.items()
    ]


def outcome_of(one: str, other: str, rounds: int) -> tuple[str, str]:
    """What becomes of a pair, and why."""
    declared = [conformance(name) for name in (one, other)]
    settings = {
        f"{name}.{field}": value
        for name, own in zip((one, other), declared, strict=True)
        for field, value in own.params.items()
    }
    try:
        method = composed(one, other, settings)
    except UserError as error:
        return "refused", text_of(error)
    changes: dict[str, Any] = {"rounds": rounds}
    for own in declared:
        changes |= own.suite
    try:
        run_small(method, small_suite(**changes), record_states=False)
    except Undefined as error:
        return "undefined", text_of(error)
    except FlbenchError as error:
        return "fails", text_of(error)
    return "runs", ""


def composed(one: str, other: str, settings: dict[str, object]) -> MethodStack:
    """The pair in the order in which it can be composed; that of the names comes first."""
    try:
        return compose(f"{one}+{other}", settings)
    except UserError:
        return compose(f"{other}+{one}", settings)


def conformance(name: str) -> Conformance:
    """What the author of a method declares for the checks."""
    found: Conformance = getattr(load_entry(find("methods", name)), "conformance", Conformance())
    return found
