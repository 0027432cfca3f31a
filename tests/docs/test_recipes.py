"""The recipes of docs/data.md are typed, on files that are written here."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forked import typed
from mentions import mentions
from PIL import Image

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
DRAW = np.random.default_rng(0)
SITES = "north", "south", "west"
SIZE = 40


def visits(folder: Path) -> None:
    ages = DRAW.normal(size=3 * SIZE)
    rows = [f"{'ill' if a > 0 else 'well'},{SITES[k % 3]},{a}" for k, a in enumerate(ages)]
    (folder / "visits.csv").write_text("\n".join(["label,client,age", *rows]))


def photos(folder: Path) -> None:
    for site in SITES:
        for shade, label in ((0, "cat"), (150, "dog")):
            home = folder / "photos" / site / label
            home.mkdir(parents=True)
            for k in range(12):
                pixels = DRAW.integers(shade, shade + 100, (20, 24)).astype(np.uint8)
                Image.fromarray(pixels).save(home / f"{k}.png")


def novels(folder: Path) -> None:
    (folder / "novels").mkdir()
    for site in SITES:
        words = DRAW.choice(["one", "two", "three", site], 3000)
        (folder / "novels" / f"{site}.txt").write_text(" ".join(words))


def sales(folder: Path) -> None:
    rows = ["label,client,day,sold"]
    for site in SITES:
        sold = DRAW.normal(size=2 * SIZE)
        days = np.datetime64("2026-01-01") + np.arange(2 * SIZE)
        rows += [f"{int(s > 0)},{site},{day},{s}" for s, day in zip(sold, days, strict=True)]
    (folder / "sales.csv").write_text("\n".join(rows))


def leaf(folder: Path) -> None:
    (folder / "femnist" / "all_data").mkdir(parents=True)
    users = {
        site: {"x": DRAW.random((SIZE, 64)).tolist(), "y": (np.arange(SIZE) % 4).tolist()}
        for site in SITES
    }
    table = {"users": list(users), "num_samples": [SIZE] * 3, "user_data": users}
    (folder / "femnist" / "all_data" / "a.json").write_text(json.dumps(table))
    if importlib.util.find_spec("datasets") is None:
        return
    import datasets

    x = DRAW.normal(size=(3 * SIZE, 4)).tolist()
    y = [k // 3 % 2 for k in range(3 * SIZE)]
    stored = {"x": x, "label": y, "writer": [SITES[k % 3] for k in range(3 * SIZE)]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(stored)}).save_to_disk(
        str(folder / "stored")
    )


RECIPES: tuple[tuple[str, Callable[[Path], None], tuple[object, ...]], ...] = (
    ("A table", visits, ("labels", "ill", "well")),
    ("Folders of images", photos, ("labels", "cat 36", "dog 36")),
    ("Text by author", novels, ("tested", "in time")),
    ("A time series", sales, ("tested", "in time", 7)),
    ("LEAF's files", leaf, ("labels", "0 30")),
)


def recipes() -> dict[str, list[list[str]]]:
    """Commands of each recipe, by its first words."""
    page = PAGE.read_text(encoding="utf-8").partition("## Five recipes")[2].partition("\n## ")[0]
    found = re.findall(r"^\*\*([^*]+)\*\*.*?^```console\n(.*?)^```", page, re.M | re.S)
    return {
        name: [shlex.split(line.removeprefix("$ flbench")) for line in text.splitlines()]
        for name, text in found
    }


def test_the_page_opens_with_these_recipes() -> None:
    assert list(recipes()) == [name for name, *_ in RECIPES]
    page = PAGE.read_text(encoding="utf-8")
    assert page.index("\n## Five recipes") == page.index("\n## ")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("name", "files", "facts"), RECIPES)
def test_a_recipe_is_typed(
    tmp_path: Path, name: str, files: Callable[[Path], None], facts: tuple[object, ...]
) -> None:
    files(tmp_path)
    for words in recipes()[name]:
        if any(word.startswith("hub:") for word in words) and not (tmp_path / "stored").is_dir():
            continue
        code, output, errors = typed(words, tmp_path)
        assert code == 0, errors
        if not any(word.startswith("hub:") for word in words):
            assert mentions(output + errors, *facts)
        if words[0] == "run":
            assert mentions(output + errors, "3 clients", "to train", "to test on")
            no_server = "nordic-text" in words  # its suite leaves it no sample
            assert ("at the server" in " ".join(errors.split())) != no_server
