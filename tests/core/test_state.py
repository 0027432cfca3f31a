"""State: who uses which row."""

from __future__ import annotations

import torch

from flbench import Membership


def test_clients_whose_rows_average_the_same_are_one_group() -> None:
    """Every client has a row of its own, so its row tells nothing; the weights do."""
    pairs = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    labels = Membership(home=torch.arange(3), weights=pairs).labels().tolist()
    assert labels[0] == labels[1] != labels[2]


def test_a_client_without_a_row_has_no_group() -> None:
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert Membership(home=torch.tensor([1, -1]), weights=weights).labels()[1] == -1
    assert Membership(home=torch.tensor([1, -1])).labels().tolist() == [1, -1]
