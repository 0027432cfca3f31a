"""State: who uses which row."""

from __future__ import annotations

import torch

from flbench import Membership, Upload


def test_clients_whose_rows_average_the_same_are_one_group() -> None:
    """Every client has a row of its own, so its row tells nothing; the weights do."""
    pairs = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    labels = Membership(home=torch.arange(3), weights=pairs).labels().tolist()
    assert labels[0] == labels[1] != labels[2]


def test_a_client_without_a_row_has_no_group() -> None:
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert Membership(home=torch.tensor([1, -1]), weights=weights).labels()[1] == -1
    assert Membership(home=torch.tensor([1, -1])).labels().tolist() == [1, -1]


def test_an_upload_has_the_candidate_that_each_client_keeps() -> None:
    params = torch.arange(6.0).reshape(3, 2, 1)
    none, zeros = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    active = torch.ones(3, 2, dtype=torch.bool)
    chosen = torch.tensor([1, 0, 1])
    upload = Upload(torch.arange(3), params, active, zeros, zeros, none[:, 0], none, none, chosen)
    assert upload.selected().tolist() == [[1.0], [2.0], [5.0]]
