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
from flbench.datasets.hub import as_samples
from flbench.errors import BadParameter, MissingData, UserError
from flbench.federation.loading import load_dataset


def loaded(argument: str) -> Dataset:
    return load_dataset(f"hub:{argument}", Path("nowhere"))


def test_the_library_is_named_if_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingData, match=r"pip install flbench\[hub\]"):
        loaded("flwrlabs/femnist")


def test_an_option_that_is_not_known() -> None:
    with pytest.raises(BadParameter, match=mention("label, client, x", "got user")):
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
def test_numbers_labels_and_clients_by_hand(stored: Any) -> None:
    train = {"x": [[1.0, 2.0], [3.0, 4.0]], "label": ["b", "a"], "hospital": [7, 3]}
    test = {"x": [[5.0, 6.0]], "label": ["b"], "hospital": [7]}
    found = loaded(f"{stored(train=train, test=test)}?client=hospital")
    assert found.x.tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert (found.y.tolist(), found.classes) == ([1, 0, 1], 2)
    assert found.domains is not None and found.domains.tolist() == [1, 0, 1]
    assert found.test is not None and found.test.tolist() == [False, False, True]


def test_sixteen_bits_of_grey_are_scaled() -> None:
    found = as_samples("mine", "image", [np.full((2, 3), v, np.uint16) for v in (0, 65535)])
    assert found.shape == (2, 1, 2, 3)
    assert found.flatten(1).unique(dim=1).flatten().tolist() == [0.0, 1.0]


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
        ({"x": [[float("nan")]], "label": [0]}, "", "not finite"),
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
