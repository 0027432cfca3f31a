"""Data sets that the library `datasets` reads, from folders on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention
from PIL import Image

from flbench.core.dataset import Dataset
from flbench.datasets.hub import as_samples, names_of, same_columns
from flbench.errors import BadParameter, MissingData, UserError
from flbench.federation.loading import load_dataset

SHAPE = (2, 3)


def palette(place: int, colours: list[int]) -> Image.Image:
    """A picture whose palette is upside down: index 0 is white, 1 is black or a colour."""
    picture = Image.fromarray(np.full(SHAPE, 1 - place, np.uint8)).convert("P")
    picture.putdata([1 - place] * 6)
    picture.putpalette(colours)
    return picture


def filled(mode: str, dark: object, light: object, place: int) -> Image.Image:
    return Image.new(mode, SHAPE[::-1], light if place else dark)  # type: ignore[arg-type]


PICTURES: dict[str, Any] = {
    "L": lambda place: filled("L", 0, 255, place),
    "RGB": lambda place: filled("RGB", (0, 0, 0), (255, 255, 255), place),
    "RGBA": lambda place: filled("RGBA", (0, 0, 0, 255), (255, 255, 255, 255), place),
    "LA": lambda place: filled("LA", (0, 255), (255, 255), place),
    "1": lambda place: filled("1", 0, 1, place),
    "CMYK": lambda place: filled("CMYK", (0, 0, 0, 255), (0, 0, 0, 0), place),
    "I;16": lambda place: Image.fromarray(np.full(SHAPE, 65535 * place, np.uint16)),
    "greys": lambda place: palette(place, [255, 255, 255, 0, 0, 0]),
    "colours": lambda place: palette(place, [255, 255, 255, 200, 0, 0]),
}
"""Mode, or what a palette holds -> a dark picture (0) or a light one (1)."""


def loaded(argument: str) -> Dataset:
    return load_dataset(f"hub:{argument}", Path("nowhere"))


def test_the_library_is_named_if_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingData, match=r"pip install flbench\[hub\]"):
        loaded("flwrlabs/femnist")


def test_an_option_that_is_not_known() -> None:
    with pytest.raises(
        BadParameter, match=mention("label, client, group, x, size, kind", "got user")
    ):
        loaded("flwrlabs/femnist?user=writer_id")


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """Writes columns to a folder."""
    library = pytest.importorskip("datasets", reason="the extra `hub` is not installed")

    def store(**splits: dict[str, Any]) -> Path:
        tables = {name: library.Dataset.from_dict(table) for name, table in splits.items()}
        library.DatasetDict(tables).save_to_disk(str(tmp_path / "set"))
        return tmp_path / "set"

    return store


@pytest.mark.slow
@pytest.mark.parametrize("brightest", [16, 255])
def test_pictures_that_are_dark_throughout_are_noted(stored: Any, brightest: int) -> None:
    grey = [Image.fromarray(np.full((2, 3), v, dtype=np.uint8)) for v in (0, brightest)]
    notes = loaded(str(stored(train={"image": grey, "label": [0, 1]}))).notes
    assert ["0..16 and are divided by 255" in one for one in notes] == [True] * (brightest < 64)


@pytest.mark.slow
def test_numbers_labels_and_clients_by_hand(stored: Any) -> None:
    train = {"x": [[1.0, 2.0], [3.0, 4.0]], "label": ["b", "a"], "hospital": [7, 3]}
    test = {"x": [[5.0, 6.0]], "label": ["b"], "hospital": [7]}
    found = loaded(f"{stored(train=train, test=test)}?client=hospital")
    assert found.x.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert (found.y.tolist(), found.classes) == ([1, 0, 1], 2)
    assert found.domains is not None and found.domains.tolist() == [1, 0, 1]
    assert found.test is not None and found.test.tolist() == [False, False, True]


def test_lists_of_whole_numbers_are_what_the_person_says() -> None:
    lists = [[3, 0, 7], [1, 2, 5]]
    with pytest.raises(UserError, match=mention("column 'ids'", "?kind=tokens", "?kind=numbers")):
        as_samples("mine", "ids", lists, {})
    for kind, dtype in (("tokens", torch.int64), ("numbers", torch.float32)):
        found = as_samples("mine", "ids", lists, {}, kind)
        assert (found.dtype, found.tolist()) == (dtype, lists)
    assert as_samples("mine", "ids", [[0.5, 1], [2, 3]], {}).dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "options", "kind", "named"),
    [
        ([[0.5, 1.0], [2.0, 3.0]], {}, "tokens", ("?kind=tokens", "no whole numbers")),
        ([[3, 0], [1, 2]], {"size": "5"}, "numbers", ("?size=5", "no pictures")),
        ([PICTURES["L"](0)], {}, "numbers", ("?kind=numbers", "pictures")),
    ],
)
def test_an_option_without_effect_is_refused(
    values: list[Any], options: dict[str, str], kind: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(BadParameter, match=mention(*named, "leave it out")):
        as_samples("mine", "x", values, options, kind)


def test_pictures_of_any_kind_are_read_as_from_folders(tmp_path: Path) -> None:
    """The hub and `images:` give the same numbers for palettes, CMYK, one bit and 16 bits."""
    for kind, picture in PICTURES.items():
        folder = tmp_path / kind
        suffix = "tif" if kind in ("CMYK", "I;16") else "png"
        for place, label in ((0, "a"), (1, "b")):
            (folder / label).mkdir(parents=True)
            picture(place).save(folder / label / f"one.{suffix}")
        by_folder = load_dataset(f"images:{folder}", Path("nowhere")).x
        by_hub = as_samples("mine", "image", [picture(0), picture(1)], {})
        assert torch.equal(by_hub, by_folder), kind
        assert by_hub.shape[1] == (3 if kind in ("RGB", "RGBA", "CMYK", "colours") else 1), kind


def test_sixteen_bits_of_grey_are_scaled() -> None:
    found = as_samples("mine", "image", [PICTURES["I;16"](0), PICTURES["I;16"](1)], {})
    assert found.shape == (2, 1, 2, 3)
    assert found.flatten(1).unique(dim=1).flatten().tolist() == [-1.0, 1.0]


def test_one_picture_in_colour_makes_all_of_three_channels() -> None:
    grey, colour = PICTURES["L"](1), PICTURES["RGB"](1)
    for order in ([grey, colour], [colour, grey]):
        found = as_samples("mine", "image", order, {})
        assert found.shape == (2, 3, 2, 3)
        assert found.unique().tolist() == [1.0]


def test_pictures_of_other_sizes_are_resized_or_refused() -> None:
    pictures = [PICTURES["L"](0), PICTURES["L"](1).resize((4, 4))]
    with pytest.raises(UserError, match=r"row 2 is 4x4, row 1 is 3x2: .*size=PIXELS"):
        as_samples("mine", "image", pictures, {})
    assert as_samples("mine", "image", pictures, {"size": "5"}).shape == (2, 1, 5, 5)


@pytest.mark.slow
def test_images_become_channels_first(stored: Any) -> None:
    grey = [Image.fromarray(np.full((2, 3), v, dtype=np.uint8)) for v in (0, 255)]
    found = loaded(f"{stored(train={'image': grey, 'label': [0, 1]})}")
    assert found.x.shape == (2, 1, 2, 3)
    assert found.x[1].unique().tolist() == [1.0]
    assert (found.domains, found.test) == (None, None)
    assert found.x.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "query", "why"),
    [
        ({"x": [[1.0]], "label": [0]}, "?client=who", "no column 'who'"),
        ({"x": [[1.0]], "y": [0]}, "", "no column 'label'"),
        ({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]}, "", "of one shape"),
        ({"x": [[1.0]], "z": [[1.0]], "label": [0]}, "", "got x, z: say x=COLUMN"),
        ({"x": [[float("nan")], [1.0]], "label": [0, 1]}, "", "not finite"),
        ({"x": [[0.0], [1.0], [2.0]], "label": [0, 1, -1]}, "", "-1 in row 3"),
        ({"x": [[0.0], [1.0], [2.0]], "label": [0, 1, None]}, "", "no label in 1 of 3 rows"),
        ({"x": [[0.0], [1.0]], "label": [0.0, float("nan")]}, "", "no label in 1 of 2 rows"),
        ({"x": [[0.0], [1.0]], "label": ["a", "NA"]}, "", "no label in 1 of 2 rows"),
        ({"x": [[0.0], [1.0]], "label": [[0], [1]]}, "", "holds list in row 1"),
        ({"age": [1.0, 2.0], "label": [0, 1]}, "", "as a table.*--dataset csv:mine.csv"),
        ({"age": [1.0, 2.0], "label": [0, 1]}, "?x=age", "as a table.*--dataset csv:mine.csv"),
        ({"x": [[0.0], [1.0]], "label": [0.5, 0.7]}, "", "decimals such as 0.5"),
        ({"x": [[0.0], [1.0]], "label": [1, 1]}, "", "one label only, 1"),
        ({"x": [[0.0], None], "label": [0, 1]}, "?x=x", "no sample in 1 of 2 rows"),
        ({"x": [[1e9, 0.0], [1e9 + 1, 1.0]], "label": [0, 1]}, "", "float32"),
        (
            {"x": [[i, i * i % 5] for i in map(float, range(9))], "label": [0, 1, 0] * 3},
            "",
            "column 0 of column 'x' numbers the rows",
        ),
        ({"x": [[0.0], [1.0]], "label": [0, 1], "w": [1, None]}, "?client=w", "no client in 1"),
    ],
)
def test_what_does_not_fit(stored: Any, columns: Any, query: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        loaded(f"{stored(train=columns)}{query}")


@pytest.mark.slow
def test_what_is_not_in_the_cache_is_not_downloaded(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra `hub` is not installed")
    with pytest.raises(MissingData, match="is not in the cache"):
        loaded("flbench/there-is-none")


class Numbered:
    """Labels 0 and 1 as the library has them, with their names."""

    def __init__(self, *names: str) -> None:
        self.features = {"label": self} if names else {}
        self.names = list(names)
        self.column_names = [*self.features]


def test_labels_of_all_splits_are_numbered_alike() -> None:
    alike = {"train": Numbered("no", "yes"), "test": Numbered("no", "yes")}
    same_columns("mine", alike, ["label"])
    assert names_of(alike["train"], "label", ("0", "1")) == ("no", "yes")
    for other, why in ((Numbered("yes", "no"), "in another way"), (Numbered(), "no column")):
        with pytest.raises(UserError, match=mention("split test", why)):
            same_columns("mine", {**alike, "test": other}, ["label"])
