"""The small federations of the kit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from mentions import mention
from toy import composition

from flbench.core.hookspecs import hookimpl
from flbench.errors import UnknownName
from flbench.testing.federations import FEDERATIONS, federation_of
from flbench.testing.small_run import run_small, small_suite


@pytest.mark.parametrize("name", FEDERATIONS)
def test_labels_and_domains_take_turns(name: str) -> None:
    data, again = (federation_of(name).samples(samples) for samples in (108, 72))
    assert data.name == name
    assert len(data.x) == len(data.y) == 108
    assert torch.equal(data.x[:72], again.x) or name == "small-text", "more of the same"
    strata = len(data.labels.unique())
    assert data.labels.tolist() == [sample % strata for sample in range(108)]


def test_an_image_is_of_its_label() -> None:
    """The mean images of two halves are nearest where the label is the same."""
    data = federation_of("small-images").samples(72)
    assert data.x.shape == (72, 1, 8, 8)
    halves = data.x.flatten(1).view(2, 9, 4, 64).mean(dim=1)
    assert torch.cdist(*halves).argmin(dim=1).tolist() == [0, 1, 2, 3]


def test_the_languages_differ_in_what_follows() -> None:
    data = federation_of("small-text").samples(200)
    step = (data.y - data.x) % data.classes
    for language, shift in ((0, 1), (1, 3)):
        assert (step[data.labels == language] == shift).double().mean() > 0.7


def test_another_federation_is_refused_by_name() -> None:
    with pytest.raises(UnknownName, match=mention("digits", "unknown")):
        federation_of("digits")


@dataclass(frozen=True)
class Nothing:
    """FedAvg."""

    @hookimpl
    def setup(self) -> None:
        """Nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FEDERATIONS)
def test_its_network_learns(name: str) -> None:
    suite = small_suite(dataset=name, rounds=6, participation=1.0)
    losses = run_small(composition(("nothing", Nothing())), suite).run.history.curves["loss"]
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < losses[0]
