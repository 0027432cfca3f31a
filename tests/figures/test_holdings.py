"""The picture of who has what."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from mentions import mentions

from flbench.figures.holdings import draw_holdings

SVG = "{http://www.w3.org/2000/svg}"


def drawn(clients: int = 12, newcomers: int = 0, groups: bool = True, kinds: bool = True) -> bytes:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 50, (clients, 3))
    counts = generator.integers(0, 9, (clients, 4))
    named = [("label", counts, ("cat", "dog", "a very long name of a label", "x"))]
    known = np.arange(clients) % 3 if groups else None
    return draw_holdings(sizes, named if kinds else [], known, newcomers, "a < b")


def texts(svg: bytes) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 12, 60, 900])
def test_equal_holdings_give_equal_bytes(clients: int) -> None:
    once = drawn(clients)
    assert once == drawn(clients)
    root = ElementTree.fromstring(once)
    assert root.findtext(f"{SVG}title") == "a < b"
    assert mentions(str(root.findtext(f"{SVG}desc")), f"{clients} clients", "4 labels")


@pytest.mark.slow
def test_names_groups_and_parts_are_written() -> None:
    found = texts(drawn(newcomers=2))
    assert {"cat", "dog", "train", "validate", "test", "group 0", "group 2"} <= set(found)
    assert mentions(found, "client, by true group", "join late")
    assert not [text for text in found if "very long name" in text and "…" not in text]


@pytest.mark.slow
def test_newcomers_stand_on_the_right_of_a_line() -> None:
    with_line, without = (drawn(groups=False, newcomers=newcomers) for newcomers in (3, 0))
    assert with_line.count(b"stroke-dasharray") > without.count(b"stroke-dasharray")
    ticks = [text for text in texts(drawn(newcomers=3)) if text.isdecimal()]
    assert ticks[:12][-3:] == ["9", "10", "11"] or {"9", "10", "11"} <= set(ticks)


@pytest.mark.slow
def test_where_there_are_no_classes_sizes_alone_are_drawn() -> None:
    found = texts(drawn(kinds=False, groups=False))
    assert "label" not in found
    assert "samples" in found
