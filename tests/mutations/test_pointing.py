"""Pieces of code are found by symbol, however they are laid out."""

from __future__ import annotations

import ast

import pytest
from pointing import mutated

SOURCE = '''
LIMIT = 3


class Box:
    """Holds values."""

    @property
    def total(self) -> int:
        values = [
            one  # a comment
            for one in self.values
            if (one > LIMIT)
        ]
        return sum(values)

    def empty(self) -> bool:
        if self.values:
            return False
        elif self.total > LIMIT:
            return False
        return not self.values


def outer(count: int = 1) -> int:
    def inner(count: int) -> int:
        return count + 1

    return inner(count) + 1
'''


def line_of(source: str, symbol: str, before: str, after: str, nth: int | None = None) -> str:
    """The changed line, of a module in which all other lines are where they were."""
    changed, line = mutated(source, symbol, before, after, nth)
    ast.parse(changed)
    lines, new = source.splitlines(), changed.splitlines()
    assert len(lines) == len(new)
    assert lines[: line - 1] == new[: line - 1]
    return new[line - 1].strip()


@pytest.mark.parametrize(
    ("symbol", "before", "after", "line"),
    [
        ("", "3", "4", "LIMIT = 4"),
        ("Box.total", "one > LIMIT", "True", "values = [one for one in self.values if True]"),
        ("Box.empty", "if self.values:", "if True:", "if True:"),
        ("Box.empty", "self.total > LIMIT", "True", "elif True:"),
        ("Box.empty", "return not self.values", "pass", "pass"),
        ("outer", "count: int=1", "count: int=2", "def outer(count: int=2) -> int:"),
        ("outer", "+ 1", "+ 2", "return inner(count) + 2"),
        ("outer.inner", "+ 1", "+ 2", "return count + 2"),
    ],
)
def test_a_piece_is_replaced_in_its_symbol(symbol: str, before: str, after: str, line: str) -> None:
    assert line_of(SOURCE, symbol, before, after) == line


def test_line_breaks_comments_and_other_symbols_do_not_matter() -> None:
    (laid_out,) = [line for line in SOURCE.splitlines() if "return inner" in line]
    other = SOURCE.replace(
        laid_out, "    return (\n        inner(count)  # why\n        + 1\n    )"
    )
    other = "import os\n\n\ndef first() -> int:\n    return 1 + 1\n" + other
    assert line_of(other, "outer", "inner(count) + 1", "0") == "return 0"


def test_one_of_several_is_chosen_by_its_number() -> None:
    source = "def f(a, b):\n    a = a + 1\n    return b + (a + 1)\n"
    with pytest.raises(LookupError, match=r"2 times.*nth"):
        mutated(source, "f", "a + 1", "a")
    assert line_of(source, "f", "a + 1", "a", 1) == "a = a"
    assert line_of(source, "f", "a + 1", "a", 2) == "return b + (a)"
    with pytest.raises(LookupError, match=r"a \+ 1"):
        mutated(source, "f", "a + 1", "a", 3)


@pytest.mark.parametrize(
    ("symbol", "before", "near"),
    [
        ("outer", "return inner(counts) + 1", "return inner(count) + 1"),
        ("Box", "sum(values)", "Box.total"),
        ("Box.totals", "no such", "Box.total"),
        ("outer", "coun", "count"),
    ],
)
def test_what_is_not_there_is_an_error_that_names_the_nearest(
    symbol: str, before: str, near: str
) -> None:
    with pytest.raises(LookupError) as told:
        mutated(SOURCE, symbol, before, "pass")
    assert near in str(told.value)
    assert before in str(told.value)


def test_what_takes_its_place_must_be_python() -> None:
    with pytest.raises(SyntaxError):
        mutated(SOURCE, "outer", "inner(count) + 1", "inner(count")
