"""Inputs follow from their names, and those that reach something new are changed further."""

from __future__ import annotations

from pathlib import Path

from coverage_guided import Draws, Reached, guided
from fault_record import Fault

from flbench.engine.options import size


def numbers(name: str) -> list[float]:
    rng = Draws(name)
    return [rng.random(), rng.randrange(1000), rng.choice(range(1000)), rng.random()]


def test_a_place_is_drawn_anew_and_the_others_are_the_same() -> None:
    one, other = numbers("kind/3"), numbers("kind/3~1")
    assert one == numbers("kind/3")
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, True, True]
    assert numbers("kind/3~1~3")[:3] == other[:3]
    assert numbers("kind/3~1~1")[1] != other[1]


def test_lines_are_counted_once() -> None:
    reached = Reached()
    for text in ("12", "13"):
        with reached.watching():
            size(text)
        lines = reached.lines
    size("x" if lines == 0 else "14")
    with reached.watching():
        size("15")
    assert reached.lines == lines > 2


def test_what_reached_something_is_changed_and_a_stopped_harness_goes_on(tmp_path: Path) -> None:
    """Only the first input reaches something, then one with another number at place 3, and 1."""
    asked: list[str] = []

    def inject(name: str, reached: Reached | None) -> Fault:
        asked.append(name)
        places = name.split("~")[1:]
        new = name.endswith("/0") or places in (["3"], ["3", "1"])
        return Fault(name, name.split("/")[0], "refused", drawn=5, reached=int(new))

    file = tmp_path / "faults.jsonl"
    found = list(guided(150, ["a", "b"], inject, file))
    assert len({one.name for one in found}) == 150
    assert any(one.name.endswith("~3~1") for one in found)
    corpus = [one.name for one in found if one.reached]
    asked.clear()
    more = list(guided(160, ["a", "b"], inject, file))
    assert [one.name for one in more[:150]] == [one.name for one in found]
    assert asked == corpus + [one.name for one in more[150:]]


def test_what_went_wrong_is_injected_again(tmp_path: Path) -> None:
    wrong = ["traceback"]

    def inject(name: str, reached: Reached | None) -> Fault:
        return Fault(name, "a", "refused", wrong[0], drawn=1)

    file = tmp_path / "faults.jsonl"
    assert {one.wrong for one in guided(3, ["a"], inject, file)} == {"traceback"}
    wrong[0] = ""
    assert {one.wrong for one in guided(3, ["a"], inject, file)} == {""}
