"""The picture of a partition of results."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from mentions import mentioning, mentions

from flbench.figures.partition import COLUMNS, _binned, description, draw_partition, ticks

SVG = "{http://www.w3.org/2000/svg}"


def some_counts(clients: int, labels: int = 10) -> np.ndarray:
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 90, (clients, labels)) * (rng.random((clients, labels)) < 0.3)
    counts[:, 0] += 1
    return counts


def dots(svg: bytes) -> list[tuple[float, float, float]]:
    """Centre and width of each dot, from left to right."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if group.get("id") == "PathCollection_1":
            for path in group.iter(f"{SVG}path"):
                points = re.findall(r"[-\d.]+ [-\d.]+", path.get("d", ""))
                corners = np.array([[float(part) for part in point.split()] for point in points])
                x, y = (corners.min(axis=0) + corners.max(axis=0)) / 2
                found.append((float(x), float(y), float(np.ptp(corners[:, 0]))))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, pytest.param(30, marks=pytest.mark.long), 51])
@pytest.mark.parametrize("known", [True, False])
def test_equal_counts_give_equal_bytes(clients: int, known: bool) -> None:
    counts = some_counts(clients)
    groups = np.arange(clients) % 3 if known else None
    once = draw_partition(counts, groups, "a title")
    with mpl.rc_context({"axes.grid": True, "svg.hashsalt": "other", "axes.edgecolor": "red"}):
        again = draw_partition(counts, groups, "a title")
        assert mpl.rcParams["svg.hashsalt"] == "other", "the person's settings are left alone"
    assert once == again, "whatever the person's settings are"
    assert once != draw_partition(counts + 1, groups, "a title")


@pytest.mark.slow
def test_it_is_an_svg_with_title_and_description_and_no_date() -> None:
    svg = draw_partition(some_counts(20), np.arange(20) % 4, "a < b & c")
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == "a < b & c"
    told = root.findtext(f"{SVG}desc")
    assert told is not None
    assert mentions(told, "20 clients", "10 labels", "4 true groups")
    assert b"<dc:date" not in svg
    assert b"Matplotlib" not in svg, "another version of it may give the same bytes"


@pytest.mark.slow
def test_no_ground_is_painted_and_every_ink_reads_on_white_and_on_black() -> None:
    svg = draw_partition(some_counts(20), np.arange(20) % 4, "title").decode()
    colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert colours
    for colour in colours:
        red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
        ]
        light = float(np.dot([0.2126, 0.7152, 0.0722], linear))
        assert 1.05 / (light + 0.05) > 3, f"{colour} on white"
        assert (light + 0.05) / 0.05 > 3, f"{colour} on black"


@pytest.mark.slow
def test_a_dot_stands_for_every_label_held_and_clients_for_their_groups() -> None:
    counts = np.array([[5, 0], [0, 5], [5, 0], [0, 20]])
    (_, a, _), (_, b, _), (_, c, _), (_, d, _) = dots(
        draw_partition(counts, np.array([0, 1, 0, 1]), "t")
    )
    assert a == pytest.approx(b)
    assert c == pytest.approx(d)
    assert a > c, "group 0 holds label 0, which stands below label 1"
    (_, a, _), (_, b, _), (_, c, _), (_, d, _) = dots(draw_partition(counts, None, "t"))
    assert a == pytest.approx(c)
    assert b == pytest.approx(d)
    assert a > b, "as they come where no group is known"


def test_the_area_of_a_dot_is_the_number_of_samples() -> None:
    widths = [width for *_, width in dots(draw_partition(np.array([[5], [20], [80]]), None, "t"))]
    assert widths[1] / widths[0] == pytest.approx(2, rel=1e-3)
    assert widths[2] / widths[0] == pytest.approx(4, rel=1e-3)


@pytest.mark.slow
def test_groups_known_or_not_change_the_bands_only_where_known() -> None:
    counts = some_counts(12)
    known, unknown = (draw_partition(counts, groups, "t") for groups in (np.arange(12) // 6, None))
    assert known.count(b"opacity: 0.18") == 1, "every other of two groups"
    assert unknown.count(b"opacity: 0.18") == 0


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "image"), [(50, False), (51, True)])
def test_more_than_fifty_clients_are_a_heat_map(clients: int, image: bool) -> None:
    svg = draw_partition(some_counts(clients), None, "t")
    assert (b"<image" in svg) == image
    assert (b"PathCollection" in svg) == (not image)


def test_a_heat_map_has_at_most_four_hundred_columns_and_keeps_the_mean() -> None:
    counts = some_counts(2 * COLUMNS)
    binned = _binned(counts)
    assert binned.shape == (COLUMNS, 10)
    assert binned[0] == pytest.approx(counts[:2].mean(axis=0))
    assert _binned(counts[:300]).tolist() == counts[:300].tolist()


@pytest.mark.parametrize(("count", "step"), [(1, 1), (40, 1), (41, 2), (100, 5), (100_000, 5000)])
def testticks_stand_at_round_distances(count: int, step: int) -> None:
    assert ticks(count, 40) == list(range(0, count, step))


def test_the_description_counts() -> None:
    assert description(np.array([[3, 0], [1, 4]]), None) == mentioning(
        "2 clients", "2 labels:", "3 to 5 samples", "1 to 2 labels"
    )


@pytest.mark.slow
def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = "torch", "numpy", "matplotlib", "pydantic"
    code = f"import sys, flbench.cli.main; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "named"), [(5, "group 903"), (6, "903"), (16, "903"), (17, None)]
)
def test_groups_are_named_where_there_is_room(count: int, named: str | None) -> None:
    groups = 900 + np.repeat(np.arange(count), 2)
    svg = draw_partition(some_counts(2 * count, 3), groups, "title")
    found = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert [text for text in found if text.endswith("903")] == ([named] if named else [])
