"""The toolbox: scorers, clusterers and means by hand, against brute force, and as documented."""

from __future__ import annotations

import inspect
import itertools
import operator
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from torch import Tensor
from toy import GROUPS, Play, install

import flbench as fl
from flbench.toolbox import clustering
from flbench.toolbox import similarity as scoring

NAN = float("nan")


def close(found: Any, expected: Any) -> None:
    found, expected = torch.as_tensor(found), torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12, equal_nan=True)


def random_matrix(seed: int, n: int, symmetric: bool = True) -> Any:
    values = np.random.default_rng(seed).uniform(-1, 1, (n, n))
    return (values + values.T) / 2 if symmetric else values


def partitions(n: int, k: int) -> list[tuple[int, ...]]:
    """Every labelling of n points by first appearance with at most k groups."""
    found = itertools.product(range(k), repeat=n)
    return [
        one
        for one in found
        if list(one) == clustering.relabel_by_first_seen(np.array(one)).tolist()
    ]


# --- scorers ----------------------------------------------------------------------------------


def test_cosine_by_hand() -> None:
    rows = torch.tensor([[3.0, 4.0], [-6.0, -8.0], [4.0, -3.0], [1e30, 0.0], [0.0, 0.0]])
    expected = [[1, -1, 0, 0.6, 0], [-1, 1, 0, -0.6, 0], [0, 0, 1, 0.8, 0]]
    close(scoring.cosine(rows)[:3], expected)
    close(scoring.cosine(rows)[4], [0] * 5)
    close(scoring.cosine(rows, rows[:1] * 7), [[1], [-1], [0], [0.6], [0]])
    close(scoring.cosine(rows[:1], rows), [expected[0]])


@pytest.mark.parametrize("length", [1e-40, 1e-15, 1e-12, 1.0, 1e30])
def test_cosine_does_not_depend_on_the_lengths(length: float) -> None:
    """Also of float32 vectors that are shorter than 1e-12, the bound of F.normalize."""
    rows = torch.tensor([[3.0, 4.0], [-6.0, -8.0], [4.0, -3.0]]) * length
    found = scoring.cosine(torch.cat([rows, torch.zeros(1, 2)]))
    expected = torch.tensor([[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0.0]]).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert scoring.cosine(rows.double(), rows.double() * 7)[0, 0] == pytest.approx(1, abs=1e-5)


def test_cosine_of_a_short_and_a_long_vector() -> None:
    found = scoring.cosine(torch.tensor([[3e-14, 4e-14]]).double(), torch.tensor([[4.0, 3.0]]))
    assert float(found) == pytest.approx(0.96)
    assert scoring.cosine(torch.tensor([[NAN, 1.0], [1.0, 0.0]])).isnan().tolist() == [
        [True, True],
        [True, False],
    ]


def test_cosine_stays_within_one_and_keeps_silence() -> None:
    rows = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    rows[3] = NAN
    found = scoring.cosine(torch.cat([rows, rows * 3]))
    assert found.dtype == torch.float64
    heard = ~found.isnan()
    assert heard.sum(dim=1).tolist() == [0 if i in (3, 23) else 38 for i in range(40)]
    assert torch.equal(heard, heard.T)
    assert found[heard].abs().max() <= 1


def test_distances_by_hand_and_without_cancellation() -> None:
    rows, centres = torch.tensor([[0.0, 0], [3, 0]]), torch.tensor([[3.0, 4], [0, 0], [3, 0]])
    close(scoring.neg_distance(rows, centres), [[-5, 0, -3], [-4, -3, 0]])
    far = torch.full((1, 30), 1e4)
    near = far.clone()
    near[0, 0] += 0.5
    close(scoring.neg_distance(far, torch.cat([far, near])), [[0, -0.5]])


def test_large_models_are_compared_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    rows[1], rows[3] = 0, NAN
    others = rows[[4, 0]] + 1
    whole = scoring.cosine(rows), scoring.cosine(rows, others), scoring.neg_distance(rows, others)
    widths: list[int] = []
    real = Tensor.double

    def double(tensor: Tensor) -> Tensor:
        widths.append(tensor.shape[1])
        return real(tensor)

    monkeypatch.setattr(scoring, "WIDE", 7)
    monkeypatch.setattr(Tensor, "double", double)
    parts = scoring.cosine(rows), scoring.cosine(rows, others), scoring.neg_distance(rows, others)
    assert set(widths) == {7, 1}
    for one, other in zip(parts, whole, strict=True):
        assert not torch.equal(one, other), "added in another order"
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14, equal_nan=True)


def test_answers_by_hand() -> None:
    logits = torch.tensor([[[0.0, np.log(3.0)], [2.0, -5.0]]], dtype=torch.float32)
    assert scoring.predictions(logits).tolist() == [[[0, 1], [1, 0]]]
    soft = scoring.predictions(logits, "softmax")
    torch.testing.assert_close(soft[0, 0], torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(soft.sum(dim=2), torch.ones(1, 2))


@pytest.mark.parametrize("kind", ["onehot", "softmax"])
def test_a_token_of_a_text_is_a_sample_of_predictions(kind: Any) -> None:
    logits = torch.randn(2, 5, 3, 7, generator=torch.Generator().manual_seed(0))
    tokens = scoring.predictions(logits.view(2, 15, 7), kind)
    assert torch.equal(scoring.predictions(logits, kind), tokens)


@pytest.mark.parametrize(
    ("other", "expected"), [([0, 1, 2, 0], 1.0), ([0, 1, 0, 1], 0.5), ([1, 2, 0, 1], 0.0)]
)
def test_agreement_is_the_share_of_equal_answers(other: list[int], expected: float) -> None:  # T19
    said = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 0], other]), 3)
    assert scoring.prediction_agreement(said).tolist() == [[1.0, expected], [expected, 1.0]]


def test_half_of_all_answers_is_exactly_a_half() -> None:
    """A threshold that is reached is reached: no rounding stands in between."""
    for samples in range(2, 60, 2):
        one = torch.zeros(samples, dtype=torch.int64)
        said = torch.stack([one, torch.arange(samples) % 2])
        agreed = scoring.prediction_agreement(torch.nn.functional.one_hot(said))
        assert agreed[0, 1] == 0.5, samples


@pytest.mark.parametrize("kind", ["onehot", "softmax"])
def test_agreement_is_symmetric_between_zero_and_one(kind: Any) -> None:  # T19
    logits = torch.randn(9, 7, 4, generator=torch.Generator().manual_seed(1)) * 3
    said = scoring.predictions(logits, kind)
    found = scoring.prediction_agreement(said)
    assert torch.equal(found, found.T)
    assert found.diagonal().tolist() == [1.0] * 9
    assert 0 <= float(found.min()) < float(found.max()) <= 1
    one, other = said[0].double(), said[5].double()
    close(found[0, 5], (one * other).sum() / (one.norm() * other.norm()))
    assert scoring.prediction_agreement(said[:1]).tolist() == [[1.0]]


def test_the_best_group_is_the_one_with_the_best_mean() -> None:
    scores = torch.tensor([[1.0, 0.0, 0.6], [0.9, 0.5, 0.6], [0.5, 0.5, 0.5]])
    labels = torch.tensor([0, 0, 1])
    assert scoring.best_group(scores, labels).tolist() == [1, 0, 0], "the first of equals"
    assert scoring.best_group(-scores, labels).tolist() == [0, 1, 0]
    gap = torch.tensor([1, 1, 3])
    assert scoring.best_group(-1 - scores, gap).tolist() == [1, 3, 1], "never an empty one"


def test_min_max_scales_rows_apart() -> None:
    rows = torch.tensor([[2.0, 4.0, 3.0], [5.0, 5.0, 5.0], [-1.0, 0.0, 3.0]])
    assert scoring.min_max(rows).tolist() == [[0, 1, 0.5], [0, 0, 0], [0, 0.25, 1]]
    assert scoring.min_max(rows).dtype == torch.float64
    assert scoring.min_max(rows[0]).tolist() == [0, 1, 0.5], "a single vector too"


def test_discrepancy_by_hand() -> None:  # T22
    rows = torch.tensor([[0.0, 1, 2], [2, 1, 0], [10, 20, 30]])
    close(scoring.neg_discrepancy(rows), [[0, -2 / 3, 0], [-2 / 3, 0, -2 / 3], [0, -2 / 3, 0]])
    rows = torch.tensor([[0.0, 1, 5, 5, 9], [1, 0, 5, 9, 5]])
    close(scoring.neg_discrepancy(rows, [2, 3])[0, 1], -(1 + 1 + 0 + 1 + 1) / 5)
    whole = (1 / 9 + 1 / 9 + 0 + 4 / 9 + 4 / 9) / 5
    close(scoring.neg_discrepancy(rows)[0, 1], -whole)


def test_discrepancy_is_symmetric_and_blind_to_scale_and_shift() -> None:
    rows = torch.randn(6, 11, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = scoring.neg_discrepancy(rows)
    assert torch.equal(found, found.T)
    assert not found.diagonal().any()
    assert -1 <= float(found.min()) < float(found.max()) == 0
    moved = rows * torch.rand(6, 1).clamp(min=0.1) + torch.arange(6)[:, None]
    close(scoring.neg_discrepancy(moved), found)
    assert float((scoring.neg_discrepancy(-rows[:1] * torch.tensor([[1], [-1]])))[0, 1]) < 0


def test_layer_discrepancy_scales_layer_by_layer() -> None:
    layers = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], dtype=torch.bool)
    rows = torch.tensor([[0.0, 1, 0, 50, 100], [7, 7, 1, 2, 3]])
    others = torch.tensor([[1.0, 0, 0, 1, 4], [2, 3, 10, 20, 30]])
    close(scoring.layer_discrepancy(rows, others, layers), [[1, 0.25 / 3], [0.5, 0]])
    assert scoring.layer_discrepancy(rows[:1], others[:1], layers[:1]).shape == (1, 1)


# --- clusterers -------------------------------------------------------------------------------


def test_threshold_sets_reach_the_threshold_and_oneself() -> None:
    scores = np.array([[0.2, 0.5, 0.499], [0.9, 1.0, NAN], [0.1, 0.2, 0.3]])
    expected = [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert clustering.threshold_sets(scores, 0.5).astype(int).tolist() == expected
    assert clustering.threshold_sets(scores[[0, 2]][:, [0, 2]], 0.0).all()
    assert clustering.threshold_sets(scores, 1.5).tolist() == np.eye(3, dtype=bool).tolist()


LINE = np.abs(np.subtract.outer([0.0, 1, 3, 6], [0.0, 1, 3, 6]))


@pytest.mark.parametrize(
    ("method", "heights"),
    [("single", [1, 2, 3]), ("complete", [1, 3, 6]), ("average", [1, 2.5, 14 / 3])],
)
def test_a_dendrogram_by_hand(method: str, heights: list[float]) -> None:
    merges = clustering.dendrogram(LINE, method)
    assert merges.shape == (3, 4)
    close(merges[:, 2], heights)
    for height, labels in zip(heights, ([0, 0, 1, 2], [0, 0, 0, 1], [0] * 4), strict=True):
        assert clustering.cut(merges, height).tolist() == labels, "a merge at the height counts"
        assert len(set(clustering.cut(merges, height - 1e-7))) == len(set(labels)) + 1


@pytest.mark.parametrize("towards", [0.0, np.inf])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_equal_distances_are_merged_in_the_order_of_clients(towards: float, scale: float) -> None:
    """Clients on a line, each as far from the next; the last bit must not decide who is first."""
    distances = 0.3 * scale * LINE_OF_THREE
    distances[0, 1] = distances[1, 0] = np.nextafter(distances[0, 1], towards)
    for method in ("average", "complete"):
        merges = clustering.dendrogram(distances, method)
        assert clustering.cut(merges, 0.3 * scale).tolist() == [0, 0, 1]
    assert clustering.bipartition(-distances, "complete").tolist() == [False, False, True]


LINE_OF_THREE = np.abs(np.subtract.outer([0.0, 1, 2], [0.0, 1, 2]))


def test_a_merge_at_the_height_counts_whatever_its_last_bit() -> None:
    thirds = np.array([[0, 0.1, 0.3], [0.1, 0, 0.1 + 0.2], [0.3, 0.1 + 0.2, 0]])
    merges = clustering.dendrogram(thirds)
    assert clustering.cut(merges, 0.3).tolist() == [0, 0, 0], "0.1 + 0.2 is above 0.3 in floats"
    assert clustering.cut(merges, 0.3 - 1e-6).tolist() == [0, 0, 1]
    two_thirds = clustering.dendrogram(np.array([[0, 2 / 3], [2 / 3, 0]]))
    assert clustering.cut(two_thirds, 2 / 3).tolist() == [0, 0], "rounding up is no distance"


def test_a_dendrogram_of_what_is_not_finite_is_refused() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            clustering.dendrogram(np.full((3, 3), value))


def test_a_dendrogram_reads_distances_off_the_diagonal_only() -> None:
    other = LINE + np.diag([9.0, 8, 7, 6])
    assert np.array_equal(clustering.dendrogram(other), clustering.dendrogram(LINE))


@pytest.mark.parametrize("method", ["average", "complete", "single"])
def test_cuts_are_nested_from_everybody_alone_to_all_in_one(method: str) -> None:  # T22
    distances = 1 - random_matrix(3, 12)
    merges = clustering.dendrogram(distances, method)
    before = list(range(12))
    for height in [0.0, *merges[:, 2]]:
        labels = clustering.cut(merges, height).tolist()
        assert len(set(zip(before, labels, strict=True))) == len(set(before)), "groups only grow"
        before = labels
    assert before == [0] * 12
    assert clustering.cut(merges, 0.0).tolist() == list(range(12))


def test_a_dendrogram_of_one_or_of_equals() -> None:
    assert clustering.dendrogram(np.zeros((1, 1))).shape == (0, 4)
    assert clustering.cut(clustering.dendrogram(np.zeros((1, 1))), 0.5).tolist() == [0]
    pair = clustering.dendrogram(np.array([[0, 0.3], [0.3, 0]]))
    assert [clustering.cut(pair, height).tolist() for height in (0.2, 0.3)] == [[0, 1], [0, 0]]
    same = clustering.dendrogram(np.full((5, 5), 0.25))
    assert [clustering.cut(same, height).tolist() for height in (0.2, 0.25)] == [
        [*range(5)],
        [0] * 5,
    ]


def test_blocks_are_found_whatever_their_order() -> None:  # T20
    truth = np.array([2, 0, 1, 1, 0, 2, 2, 0])
    distances = np.where(truth[:, None] == truth, 0.1, 0.8)
    labels = clustering.cut(clustering.dendrogram(distances), 0.5)
    assert labels.tolist() == [0, 1, 2, 2, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([7, 2, 7, -1], [0, 1, 0, 2]), ([3], [0]), ([], []), ([0.5, 0.25, 0.5], [0, 1, 0])],
)
def test_labels_are_renumbered_by_first_appearance(labels: Any, expected: Any) -> None:
    found = clustering.relabel_by_first_seen(np.array(labels))
    assert found.tolist() == expected
    assert found.dtype == np.int64


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_no_other_halves_are_less_alike(n: int) -> None:  # T13 (h) 4
    for seed in range(20):
        similarity = random_matrix(seed, n)

        def across(second: Any, similarity: Any = similarity) -> float:
            return float(similarity[~second][:, second].max())

        second = clustering.bipartition(similarity)
        assert not second[0], "the first client is in the first group"
        every = [np.array(one, bool) for one in itertools.product([0, 1], repeat=n) if any(one)]
        best = min(across(one) for one in every if not one[0])
        assert second.any()
        assert across(second) == best


def test_bipartition_by_hand_and_with_ties() -> None:
    assert clustering.bipartition(np.eye(2)).tolist() == [False, True]
    groups = np.array([0, 1, 1, 0, 1])
    two = np.where(groups[:, None] == groups, 1.0, -1.0)
    for method in ("single", "complete"):
        assert clustering.bipartition(two, method).tolist() == (groups > 0).tolist()
        constant = clustering.bipartition(np.full((5, 5), 0.5), method)
        assert 0 < constant.sum() < 5, "two groups even of equals"
        again = clustering.bipartition(np.full((5, 5), 0.5), method)
        assert constant.tolist() == again.tolist()
    chain = -np.abs(np.subtract.outer([0.0, 1, 2.1, 3.3], [0.0, 1, 2.1, 3.3]))
    assert clustering.bipartition(chain).tolist() == [False, False, False, True], "widest gap"
    assert clustering.bipartition(chain, "complete").tolist() == [False, False, True, True]


@pytest.mark.slow
def test_k_means_is_the_best_of_all_partitions() -> None:
    for seed in range(3):
        rows = np.random.default_rng(seed).normal(size=(7, 2))

        def scatter(labels: Any, rows: Any = rows) -> float:
            groups = [rows[np.array(labels) == k] for k in set(labels)]
            return sum(float(((group - group.mean(axis=0)) ** 2).sum()) for group in groups)

        labels = clustering.k_means(rows, 3, np.random.default_rng(seed)).tolist()
        assert scatter(labels) == pytest.approx(min(scatter(one) for one in partitions(7, 3)))
        assert labels == clustering.relabel_by_first_seen(np.array(labels)).tolist()


def test_k_means_is_told_its_randomness() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3))  # no groups: starts matter
    found = [clustering.k_means(rows, 8, np.random.default_rng(s)).tolist() for s in (1, 1, 2, 3)]
    assert found[0] == found[1]
    assert any(other != found[0] for other in found[2:])
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    clustering.k_means(rows, 8, np.random.default_rng(1))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr]


def test_k_means_takes_one_seed_of_31_bits_and_the_best_of_ten_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sklearn.cluster import KMeans

    starts = []

    def kept(*args: Any, **kwargs: Any) -> KMeans:
        starts.append(kwargs["n_init"])
        return KMeans(*args, **kwargs)

    rows = np.random.default_rng(0).normal(size=(60, 3))
    for seed in range(3):
        drawn = np.random.default_rng(seed)
        model = KMeans(8, n_init=10, random_state=int(drawn.integers(2**31)))
        expected = clustering.relabel_by_first_seen(model.fit_predict(rows))
        given = np.random.default_rng(seed)
        monkeypatch.setattr("sklearn.cluster.KMeans", kept)
        assert clustering.k_means(rows, 8, given).tolist() == expected.tolist()
        assert given.random() == drawn.random()
    assert starts == [10] * 3


@pytest.mark.parametrize("weighted", [False, True])
def test_k_means_of_wide_rows_looks_at_their_coordinates(
    weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sklearn.cluster import KMeans

    asked: list[tuple[tuple[int, ...], float]] = []
    real = KMeans.fit_predict

    def fit_predict(model: KMeans, x: Any, **kwargs: Any) -> Any:
        asked.append((x.shape, model.tol))
        return real(model, x, **kwargs)

    monkeypatch.setattr(KMeans, "fit_predict", fit_predict)
    for seed in range(5):
        drawn = np.random.default_rng(seed)
        rows = drawn.normal(size=(12, 90))
        rows[7] = rows[2]
        weights = drawn.uniform(1, 9, size=12) if weighted else None
        found = []
        for wide in (90, 89):
            monkeypatch.setattr(clustering, "WIDE", wide)
            given = np.random.default_rng(seed)
            found.append(clustering.k_means(rows, 4, given, weights).tolist())
        assert found[0] == found[1]
    assert asked[:2] == [((12, 90), 1e-4), ((12, 12), pytest.approx(1e-4 * 12 / 90))]


@pytest.mark.parametrize("block", [1, 7, 2**16])
def test_coordinates_have_the_distances_of_the_points(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "BLOCK", block)
    rows = np.random.default_rng(0).normal(size=(6, 40))
    rows[4] = rows[1]
    found = clustering._coordinates(rows)
    assert found.shape == (6, 6)
    assert cdist(found, found) == pytest.approx(cdist(rows, rows), abs=1e-7)
    assert (found[4] == found[1]).all()
    assert not clustering._coordinates(np.zeros((3, 5))).any()


@pytest.mark.parametrize(
    ("rows", "k", "expected"),
    [
        ([[1.0], [1.0], [1.0]], 2, [0, 0, 0]),
        ([[1.0], [5.0]], 2, [0, 1]),
        ([[2.0], [4.0], [2.0]], 1, [0, 0, 0]),
        ([[9.0, 0], [0, 0], [9, 1], [0, 1]], 2, [0, 1, 0, 1]),
    ],
)
def test_k_means_by_hand(rows: Any, k: int, expected: list[int]) -> None:
    assert clustering.k_means(np.array(rows), k, np.random.default_rng(0)).tolist() == expected


def test_k_means_with_weights_by_hand() -> None:
    """{0}, {3, 5} costs 2 if all weigh 1, and 1000 if 3 and 5 weigh 1000; {0, 3}, {5} almost 9."""
    rows = np.array([[0.0], [3.0], [5.0]])
    for weights, expected in (([1, 1, 1], [0, 1, 1]), ([1, 1000, 1000], [0, 0, 1])):
        drawn, given = np.random.default_rng(0), np.array(weights, float)
        assert clustering.k_means(rows, 2, drawn, given).tolist() == expected


# --- as documented ----------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[2] / "docs" / "toolbox.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_documented_method_finds_the_groups(
    play_toy: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"^```python\n(.+?)^```$", DOCUMENT, flags=re.DOTALL | re.MULTILINE)
    (point,) = re.findall(r"^same-way = .+$", DOCUMENT, flags=re.MULTILINE)
    folder = tmp_path / "site"
    install(folder, "my-package", f"[flbench.methods]\n{point}\n".replace('"', ""))
    (folder / "my_package").mkdir()
    (folder / "my_package" / "same_way.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    played = play_toy("same-way")
    assert played.said == []
    assert played.run.history.membership[-1] == {"round": 1, "labels": [0, 0, 0, 1, 1, 1]}
    assert played.result.summary["ari"] == 1.0
    assert len(played.state.models) == GROUPS
    assert not torch.equal(*played.state.models)
    assert play_toy("same-way", settings={"height": 2.0}).result.summary["groups"] == 1


def test_the_document_names_what_there_is() -> None:
    """Every tool by its name or its module; the generated reference has their arguments."""
    tools = {f"fl.{name}": getattr(fl, name) for name in fl.__all__}
    tools = {name: tool for name, tool in tools.items() if inspect.isfunction(tool)}
    # they run suites and read what runs leave, or mark parameters
    others = ("flbench.run", "flbench.sweeps", "flbench.core.effect")
    tools = {name: tool for name, tool in tools.items() if not tool.__module__.startswith(others)}
    for module in (scoring, clustering):
        own = {name: tool for name, tool in vars(module).items() if inspect.isfunction(tool)}
        own = {name: tool for name, tool in own.items() if not name.startswith("_")}
        tools |= {name: tool for name, tool in own.items() if tool.__module__ == module.__name__}
    named = set(re.findall(r"`([\w.]+)", DOCUMENT))
    leaves = {name.rpartition(".")[2] for name in named}
    parts = {"optics", "distance_between_clients", "euclidean_distances", "adopt_noise"}
    parts |= {"default_min_samples", "standardised_rows", "relabel_by_first_seen", "min_max"}
    parts |= {"predictions", "two_means"}
    assert {name.rpartition(".")[2] for name in tools} - leaves <= parts
    for name in named:
        home, _, tool = name.partition(".")
        if home == "fl":
            operator.attrgetter(tool)(fl)
