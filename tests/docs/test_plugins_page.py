"""The page of known plugins, from metadata that are written here."""

from __future__ import annotations

from pathlib import Path

import plugins_page
import pytest
from plugins_page import Plugin

ROOT = Path(__file__).parents[2]


def package(folder: Path, name: str, points: str, more: str = "") -> None:
    home = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    home.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n{more}"
    (home / "METADATA").write_text(text, encoding="utf-8")
    (home / "entry_points.txt").write_text(points, encoding="utf-8")


def test_the_page_is_that_of_the_notes() -> None:
    found = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert found == plugins_page.page(plugins_page.noted())
    assert "| `flbench-kindred` | 0.1.0 | methods: `kindred` |" in found


def test_a_plugin_is_known_by_its_name_and_by_what_it_offers(tmp_path: Path) -> None:
    """Nothing of it is imported: there is no module."""
    points = "[flbench.methods]\nz = a:Z\na = a:A\n[flbench.suites]\ns = a:s\n[other]\nx = a:x\n"
    urls = (
        "Summary: Two methods.\nProject-URL: flbench kit, https://x.org/badge.svg\n"
        "Project-URL: Homepage, https://x.org\n"
    )
    package(tmp_path, "flbench_two", points, urls)
    package(tmp_path, "two-more", points)
    package(tmp_path, "flbench-tools", "[console_scripts]\nx = a:x\n")
    offers = {"methods": ["a", "z"], "suites": ["s"]}
    (one,) = plugins_page.installed([str(tmp_path)])
    assert one == Plugin(
        "flbench-two", "1.2", "Two methods.", offers, "https://x.org/badge.svg", "https://x.org"
    )
    assert plugins_page.row(one) == (
        "| [`flbench-two`](https://x.org) | 1.2 | methods: `a`, `z`; suites: `s`"
        " | [says so](https://x.org/badge.svg) | Two methods. |\n"
    )


@pytest.mark.parametrize("url", ["javascript:alert(1)", "https://x.org/)[y](z", "http://x.org"])
def test_what_a_package_says_is_text(url: str) -> None:
    odd = Plugin("flbench-x", "1", "a|b <script>\n# [c](d) `e`", {"methods": ["x"]}, url, url)
    line = plugins_page.row(odd)
    assert line.count("\n") == 1 and url not in line
    assert r"a\|b \<script\> \# \[c\](d) \`e\`" in line


def test_newer_notes_take_the_place_of_older_ones() -> None:
    old = [Plugin("flbench-b", "1", "", {}), Plugin("flbench-a", "1", "", {})]
    found = plugins_page.together(old, [Plugin("flbench-b", "2", "", {})])
    assert [(one.name, one.version) for one in found] == [("flbench-a", "1"), ("flbench-b", "2")]
