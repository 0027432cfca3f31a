"""What the table of methods over kinds says, in sentences that are computed from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from flbench.leaderboard.table import WITHIN_COUNT
from flbench.leaderboard.who_wins import Improvability, Standing, WhoWins, listed, ratio

BEST = 3
"""Methods that are named."""


class Sentence(NamedTuple):
    """A sentence, and the kind of federation whose tables it is about; "" = several."""

    text: str
    kind: str


def sentences(wins: WhoWins) -> list[Sentence]:
    """Who leads, who leads at no cost, and per kind whether anything beats training alone."""
    return [*_leaders(wins), *_at_no_cost(wins), *_against_lines(wins)]


def _leaders(wins: WhoWins) -> Iterator[Sentence]:
    best = wins.ranked[:BEST]
    if not best:
        return
    first, *rest = [f"{one.name} {_number(one.score)}" for one in best]
    then = f", then {' and '.join(rest)}" if rest else ""
    yield Sentence(
        f"Of {len(wins.ranked)} methods over {listed(wins.scored)}, the best score is that of"
        f" {first}{then}.",
        "" if len(wins.scored) > 1 else wins.scored[0],
    )


def _at_no_cost(wins: WhoWins) -> Iterator[Sentence]:
    """The best of those that cost no more than the anchor does."""
    anchor = next((one for one in wins.ranked if one.anchor), None)
    cheap = [one for one in wins.ranked if _costs_nothing(one) and not one.anchor]
    if anchor is None or not cheap:
        return
    best = cheap[0]
    yield Sentence(
        f"At no more bytes and work than {anchor.name} {_number(anchor.score)}, the best score is"
        f" that of {best.name} {_number(best.score)}: bytes times {ratio(best.bytes)}, work times"
        f" {ratio(best.work)}.",
        "" if len(wins.scored) > 1 else wins.scored[0],
    )


def _costs_nothing(one: Standing) -> bool:
    """Whether bytes and work are no more than those of one model for all, within a margin."""
    return all(cost is not None and cost <= WITHIN_COUNT for cost in (one.bytes, one.work))


def _against_lines(wins: WhoWins) -> Iterator[Sentence]:
    """Per kind: how many methods are better than training alone, and by how much the best is.

    Training alone is the best line of what needs nobody else and was run on all of these tables.
    """
    for kind, known in wins.kinds.items():
        known_alone = [one for one in wins.lines if one.alone and kind in one.cells]
        whole = [one for one in known_alone if one.cells[kind].whole]
        if not whole:
            continue
        alone = min(whole, key=lambda one: one.cells[kind].value)
        best = ", the best that clients did alone on all of them" if len(whole) > 1 else ""
        base = alone.cells[kind]
        fewer = sum(known.numbers[name].value < base.value for name in known.methods)
        count, every = len(known.compared), len(known.tables)
        of = "" if count == every else f" of {every}"
        tables = f"{count}{of} table{'' if every == 1 else 's'}"
        yield Sentence(
            f"On {kind} ({tables}), {fewer} of {len(known.methods)} methods"
            f" make{'s' if fewer == 1 else ''} less error on average than {alone.name}{best};"
            f" {_saved(base)}.",
            kind,
        )


def _saved(base: Improvability) -> str:
    """What the best methods save of the error of training alone, or make more of it."""
    if base.value >= 0:
        return f"the best of each table would save {_percent(base)} of its error"
    ends = (-base.ends[1], -base.ends[0]) if base.ends else None
    more = replace(base, value=-base.value, ends=ends)
    return f"the best of each table makes {_percent(more)} more error"


def _percent(number: Improvability) -> str:
    ends = f" ({number.ends[0]:.0f} to {number.ends[1]:.0f})" if number.ends else ""
    return f"{number.value:.0f} %{ends}"


def _number(number: Improvability | None) -> str:
    """A score in brackets, with its interval."""
    assert number is not None, "it is ranked"
    ends = f", {number.ends[0]:.1f} to {number.ends[1]:.1f}" if number.ends else ""
    return f"({number.value:.1f}{ends})"
