"""ClientModule and Batch: what they know, and when."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flbench.core.client_module import Batch, ClientModule, LocalTraining
from flbench.errors import Undefined


def module() -> ClientModule:
    return ClientModule(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), LocalTraining())


def batch(**known: torch.Tensor) -> Batch:
    return Batch(module(), torch.ones(5, 3), torch.zeros(5, dtype=torch.int64), **known)


def test_features_and_logits_of_a_batch_are_computed_together() -> None:
    asked = batch()
    features, logits = asked.features, asked.logits
    head = asked.module.net[2]
    assert torch.equal(head(features), logits)
    assert asked.features is features, "the network is asked once"


def test_a_network_that_is_its_own_head_gives_logits_and_features_together() -> None:
    module = ClientModule(nn.Linear(3, 4), LocalTraining())
    module.loss_function = lambda batch: batch.logits.sum()
    x = torch.randn(5, 3)
    asked = Batch(module, x, torch.zeros(5, dtype=torch.int64))
    assert torch.equal(asked.logits, module(x))
    assert torch.equal(asked.features, x)


def test_features_of_tokens_are_none_of_a_sample() -> None:
    """A distance over their second axis would be one over time."""
    module = ClientModule(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7)), LocalTraining())
    module.loss_function = lambda batch: batch.logits.sum()
    x = torch.randint(7, (5, 3))
    asked = Batch(module, x, x)
    assert asked.logits.shape == (5, 3, 7), "a loss on logits needs no features"
    for ask in (lambda: asked.features, lambda: Batch(module, x, x).features):
        with pytest.raises(Undefined, match="features of each token"):
            ask()
    with pytest.raises(Undefined, match="features of each token"):
        module.features(x)
    assert module.head_inputs(x)[0].shape == (5, 3, 4)


def test_logits_that_were_given_have_no_features() -> None:
    given = torch.zeros(5, 2)
    asked = batch(logits=given)
    assert asked.logits is given
    with pytest.raises(Undefined, match="features of these logits"):
        _ = asked.features


def test_before_the_first_stage_a_module_has_no_row() -> None:
    with pytest.raises(Undefined, match="layout"):
        module().row()
    with pytest.raises(Undefined, match="layout"):
        module().with_row(torch.zeros(26), lambda: torch.zeros(()))
