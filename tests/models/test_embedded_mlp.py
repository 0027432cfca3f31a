"""The perceptron of tables: embeddings of one-hot codes by hand, and its executors."""

from __future__ import annotations

import pytest
import torch
from mentions import mention

from flbench.core.networks import head_of, is_linear
from flbench.errors import UserError
from flbench.models.embedded_mlp import EmbeddedCategories, build


def test_a_code_becomes_the_row_of_its_value() -> None:
    part = EmbeddedCategories(2, (3, 2), 2)
    x = torch.tensor([[0.5, -1.0, 0, 1, 0, 1, 0], [2.0, 3.0, 0, 0, 1, 0, 1]])
    first, second = (table.weight.detach().T for table in part.tables)
    expected = [[0.5, -1, *first[1], *second[0]], [2, 3, *first[2], *second[1]]]
    torch.testing.assert_close(part(x), torch.tensor(expected))
    assert part.width == 2 + 2 + 2


def test_a_small_category_keeps_its_width() -> None:
    assert EmbeddedCategories(1, (2, 20), 8).width == 1 + 2 + 8


def test_its_last_layer_is_the_head_and_all_are_linear() -> None:
    """So lanes take it, and methods of a head find one."""
    net = build((7,), 4, categories=(3, 2), hidden=5)
    assert head_of(net) == "head"
    assert is_linear(net)
    assert net(torch.zeros(6, 7)).shape == (6, 4)
    assert build((3,), 2)(torch.zeros(1, 3)).shape == (1, 2), "a table of numbers alone"


@pytest.mark.parametrize("shape", [(4,), (1, 8, 8)])
def test_samples_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=mention("embedded-mlp", 5, "model.categories")):
        build(shape, 2, categories=(3, 2))
