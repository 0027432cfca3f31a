"""The data set is found by its name, is what it says, and plays."""

from pathlib import Path

import torch
from flbench_my_dataset import load

from flbench.testing import try_out


def test_it_is_what_it_says(tmp_path: Path) -> None:
    data = load(tmp_path)
    assert data.name == "my-dataset"
    assert data.x.shape == (569, 30)
    assert data.x.dtype == torch.float32
    assert data.x.isfinite().all()
    assert data.y.unique().tolist() == list(range(data.classes))


def test_it_plays() -> None:
    assert try_out(dataset="my-dataset").dataset == "my-dataset"
