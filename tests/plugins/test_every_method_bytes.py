"""The ledger equals the formula of the method, item by item, on a short run with half the clients.

A method without a formula in `ledger_formulas.py` fails here: say there what it moves.
"""

from __future__ import annotations

from typing import Any

import pytest
from every import HAPPENED, METHODS, Film, run_of
from ledger_formulas import COUNTED_BY_HAND, FORMULAS, NORMED, PLAIN, VARIANTS, Case, Formula, Net
from toy import Play

BYTES = 4

pytestmark = pytest.mark.slow  # every method, played once or more


def moved(play_toy: Play, method: str, net: Net, formula: Formula, **changes: Any) -> Case:
    """Play it, and compare what moved."""
    film = Film()
    played = run_of(play_toy, method, net=net.build, sinks=(("film", film),), **changes)
    case = Case(played, film, net)
    expected = {"down": {}, "up": {}, "peer": {}, **formula(case)}
    expected = {
        way: {item: BYTES * scalars for item, scalars in items.items() if scalars}
        for way, items in expected.items()
    }
    found = {
        way: {item: count for item, count in items.items() if count}
        for way, items in played.run.ledger.totals.items()
    }
    assert found == expected
    total = sum(sum(items.values()) for items in expected.values())
    assert sum(played.result.clients.bytes) == total, "each byte has a client"
    assert played.result.summary["mb_per_client"] == pytest.approx(total / 6e6)
    return case


@pytest.mark.parametrize("method", [name for name in METHODS if name not in COUNTED_BY_HAND])
def test_a_run_moves_what_the_formula_says(method: str, play_toy: Play) -> None:  # T24
    """With BatchNorm, so that P stands for P + B where its statistics travel with a model."""
    assert method in FORMULAS, f"say in ledger_formulas.py what {method} moves"
    case = moved(play_toy, method, NORMED, FORMULAS[method])
    assert HAPPENED.get(method, lambda played: True)(case.played), "what it is about took place"


@pytest.mark.parametrize("method", ["dc-pfl", "fedavg", "fedproto", "fedrep", "lg-fedavg"])
def test_without_buffers_p_is_p(method: str, play_toy: Play) -> None:  # T24
    moved(play_toy, method, PLAIN, FORMULAS[method])


@pytest.mark.parametrize(("method", "settings", "formula"), VARIANTS)
def test_variants_move_what_their_formula_says(
    method: str, settings: dict[str, object], formula: Formula, play_toy: Play
) -> None:  # T24
    moved(play_toy, method, PLAIN, formula, settings=settings)
