"""Where curves turn, how models differ and how groups nest (T22): by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import flbench as fl


def exponential(rounds: int, base: float = 0.8) -> torch.Tensor:
    return base ** torch.arange(1, rounds + 1).double()


def test_the_radius_of_a_curve_by_hand() -> None:  # T22
    falling = torch.tensor([2.0, 1.25, 0.75], dtype=torch.float64)
    assert fl.elbow.radii(falling, 1).tolist() == [1.25**1.5 / 0.25]  # l' = -.5, l'' = .25
    assert float(fl.elbow.radii(falling, 1)) == pytest.approx(5.590, abs=5e-4)
    pairs = torch.tensor([2.5, 1.5, 1.0, 0.5], dtype=torch.float64)  # means 2, 1.25, .75
    assert fl.elbow.radii(pairs, 2).tolist() == [1.25**1.5 / 0.25]
    more = fl.elbow.radii(torch.tensor([2.0, 1.25, 0.75, 0.5, 0.5]).double(), 1)
    assert more.tolist() == [1.25**1.5 / 0.25, 1.0625**1.5 / 0.25, 4.0]


def test_a_curve_that_does_not_bend_upwards_has_no_radius() -> None:
    assert fl.elbow.radii(torch.tensor([3.0, 2.0, 1.0]), 1).tolist() == [torch.inf]
    assert fl.elbow.radii(torch.tensor([3.0, 2.5, 1.0]), 1).tolist() == [torch.inf]
    for length, found in ((0, 0), (6, 0), (7, 1), (9, 3)):
        assert len(fl.elbow.radii(exponential(length), 5)) == found, "the first needs s + 2 losses"


def test_a_smallest_radius_must_hold() -> None:
    radii = fl.elbow.radii(exponential(10), 5)
    assert (radii.diff() > 0).all(), "an exponential bends most where it begins"
    assert [n for n in range(15) if fl.elbow.turned(exponential(n), 5, 3)] == [10, 11, 12, 13, 14]
    late = torch.tensor([6.0, 5, 4, 3, 1, 1, 1, 1]).double()  # radii: inf, inf, inf, 2, inf, inf
    assert fl.elbow.radii(late, 1).isfinite().tolist() == [False] * 3 + [True] + [False] * 2
    assert [held for held in range(1, 6) if fl.elbow.turned(late, 1, held)] == [2]
    assert not fl.elbow.turned(torch.ones(9), 1, 3), "nothing is smaller than nothing"
    wavy = torch.tensor([10.0, 8, 6.25, 4.625, 3.5]).double()  # bends by .25, .125, .5
    assert not fl.elbow.turned(wavy, 1, 2), "smaller than the next alone"


def test_the_discrepancy_of_models_by_hand() -> None:  # T22
    rows = torch.tensor([[0.0, 1, 2], [2.0, 1, 0], [7.0, 7, 7]])
    found = -fl.similarity.neg_discrepancy(rows)
    # scaled: (0, .5, 1), (1, .5, 0), and a constant is 0
    expected = torch.tensor([[0, 2 / 3, 0.5], [2 / 3, 0, 0.5], [0.5, 0.5, 0]])
    torch.testing.assert_close(found, expected.double())
    other = torch.tensor([[0.0, 2, 9, 5], [0.0, 2, 5, 9]])
    apart = [float(-fl.similarity.neg_discrepancy(other, parts)[0, 1]) for parts in (None, (2, 2))]
    assert apart == pytest.approx([2 * (4 / 9) / 4, 2 / 4])


def test_the_discrepancy_knows_no_scale_no_shift_and_no_order() -> None:  # T22
    rows = torch.randn(7, 20, generator=torch.Generator().manual_seed(0))
    found = -fl.similarity.neg_discrepancy(rows)
    assert torch.equal(found, found.T)
    assert not found.diagonal().any()
    assert (found >= 0).all()
    assert (found <= 1).all()
    scale = torch.arange(1.0, 8.0)[:, None]
    torch.testing.assert_close(-fl.similarity.neg_discrepancy(rows * scale - 5 * scale), found)


def test_the_discrepancy_of_layers_by_hand() -> None:
    layers = torch.tensor([[True, True, True, False, False], [False, False, False, True, True]])
    rows = torch.tensor([[0.0, 1, 2, 5, 6], [4.0, 4, 4, 0, 1]])
    others = torch.tensor([[0.0, 4, 4, 6, 5], [0.0, 1, 2, 0, 9]])
    found = fl.similarity.layer_discrepancy(rows, others, layers)
    torch.testing.assert_close(found, torch.tensor([[0.5 / 3, 1.0], [0.5, 0.0]]).double())


@pytest.mark.parametrize("seed", range(5))
def test_finer_groups_lie_inside_coarser_ones(seed: int) -> None:  # T22
    points = np.random.default_rng(seed).normal(size=(9, 4))
    distances = np.abs(points[:, None] - points).mean(axis=2)
    merges = fl.clustering.dendrogram(distances)
    top = merges[-1, 2]
    cuts = [fl.clustering.cut(merges, step / 5 * top) for step in range(6)]
    assert cuts[0].tolist() == [*range(9)], "g = 0: everybody alone"
    assert cuts[5].tolist() == [0] * 9, "g = 1: one group"
    for fine, coarse in pairwise(cuts):
        assert len(set(zip(fine, coarse, strict=True))) == len(set(fine))
