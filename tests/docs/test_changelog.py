"""Fragments of the changelog are found by towncrier, which ignores other files without a word."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
KINDS = {one["directory"] for one in SETTINGS["type"]}
FOLDER = ROOT / SETTINGS["directory"]


def misnamed(folder: Path) -> list[str]:
    """Files that no release would find."""
    pattern = re.compile(rf"\+[A-Za-z0-9-]+\.({'|'.join(sorted(KINDS))})\.md|README\.md")
    return sorted(one.name for one in folder.iterdir() if not pattern.fullmatch(one.name))


def test_every_fragment_has_a_kind_and_says_something() -> None:
    assert misnamed(FOLDER) == []
    assert [
        one.name for one in FOLDER.iterdir() if not one.read_text(encoding="utf-8").strip()
    ] == []


@pytest.mark.parametrize(
    "name", ["x.added.md", "+x.new.md", "+x.md", "+x.added.txt", "+a b.fixed.md"]
)
def test_another_name_is_noticed(name: str, tmp_path: Path) -> None:
    for one in ("+x.added.md", "+x-2.plugins.md", name):
        (tmp_path / one).touch()
    assert misnamed(tmp_path) == [name]


def test_a_release_is_put_where_readers_look_for_it() -> None:
    text = (ROOT / SETTINGS["filename"]).read_text(encoding="utf-8")
    before, _, after = text.partition(SETTINGS["start_string"])
    assert "## [Unreleased]" in before
    assert re.match(r"\n*## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d\n", after)


def test_what_breaks_plugins_is_told_first() -> None:
    first = SETTINGS["type"][0]
    assert (first["directory"], first["name"]) == ("plugins", "For authors of plugins")
