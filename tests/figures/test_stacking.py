"""Several figures in one file: placed one below the other, with ids of their own."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from flbench.figures.stacking import GAP, SVG, XLINK, stacked

PART = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
 width="{0}pt" height="{1}pt" viewBox="0 0 {0} {1}"><title>{2}</title><metadata/>
 <clipPath id="c"/><g id="g" style="clip-path: url(#c); fill: none"/><use xlink:href="#g"/></svg>"""


def test_parts_are_below_each_other_and_share_no_id() -> None:
    svg = stacked([PART.format(30, 20, "a").encode(), PART.format(50, 10.5, "b").encode()])
    assert svg is not None
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") == f"0 0 50 {20 + GAP + 10.5:g}"
    assert [(part.get("y"), part.get("width"), part.get("height")) for part in root] == [
        ("0", "30", "20"), (f"{20 + GAP:g}", "50", "10.5"),
    ]  # fmt: skip
    assert [part.findtext(f"{{{SVG}}}title") for part in root] == ["a", "b"]
    assert [one.get("id") for one in root.iter() if one.get("id")] == [
        "part1-c", "part1-g", "part2-c", "part2-g",
    ]  # fmt: skip
    used = [one.get(f"{{{XLINK}}}href") for one in root.iter(f"{{{SVG}}}use")]
    assert used == ["#part1-g", "#part2-g"]
    styles = [one.get("style") for one in root.iter(f"{{{SVG}}}g")]
    assert styles == [f"clip-path: url(#part{n}-c); fill: none" for n in (1, 2)]


@pytest.mark.parametrize("parts", [[], ()])
def test_nothing_to_draw_is_no_figure(parts: list[bytes]) -> None:
    assert stacked(parts) is None
