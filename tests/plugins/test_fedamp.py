"""The weights of FedAMP and of HeurFedAMP by hand."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import create

MODELS = torch.tensor([[0.0, 1.0], [3.0, 5.0], [0.0, 1.0]])
"""Squared distances 25, 25 and 0."""


@pytest.mark.parametrize("sigma", [25.0, None])
def test_the_weights_of_fedamp_by_hand(sigma: float | None) -> None:
    """alpha_k / sigma = .5 / 2; the mean squared distance is 50 / 3."""
    far = 0.25 * math.exp(-25 / (sigma or 50 / 3))
    found = create("fedamp", sigma=sigma).attention(MODELS)
    expected = [
        [1 - far - 0.25, far, 0.25], [far, 1 - 2 * far, far], [0.25, far, 1 - far - 0.25],
    ]  # fmt: skip
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_equal_models_are_mixed_evenly() -> None:
    found = create("fedamp", own=0.0).attention(torch.ones(3, 2))
    torch.testing.assert_close(found, (0.5 * (1 - torch.eye(3))).double())
    assert (found >= 0).all()


def test_the_weights_of_heurfedamp_by_hand() -> None:
    """Cosines of client 0: 5 / sqrt(34) and 1."""
    found = create("fedamp", weights="cosine", own=0.2, sigma=2.0).attention(MODELS)
    near, far = math.exp(2.0), math.exp(10 / math.sqrt(34))
    expected = [0.2, 0.8 * far / (near + far), 0.8 * near / (near + far)]
    torch.testing.assert_close(
        found[0], torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_who_keeps_to_itself_keeps_its_model_exactly() -> None:
    for weights in ("distance", "cosine"):
        found = create("fedamp", weights=weights, own=1.0).attention(MODELS)
        assert torch.equal(found, torch.eye(3, dtype=torch.float64))
