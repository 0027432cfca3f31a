"""Laws of all partitions, on data sets that hypothesis makes up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flbench.core.dataset import Indices, Partition
from flbench.errors import UserError
from flbench.partitions.balanced_dirichlet import balanced_dirichlet
from flbench.partitions.by_domain import by_domain
from flbench.partitions.dirichlet import dirichlet
from flbench.partitions.extended_dirichlet import extended_dirichlet
from flbench.partitions.iid import iid
from flbench.partitions.label_groups import label_groups, label_groups_noisy
from flbench.partitions.label_skew import label_skew
from flbench.partitions.natural import natural
from flbench.partitions.primary_secondary import in_band, primary_secondary
from flbench.partitions.quantity_skew import quantity_skew
from flbench.plugin.registry import entries, load_entry
from flbench.toolbox.heterogeneity import earth_movers, kld, label_overlap_truth, mean_kld

Settings = Mapping[str, Any]
law = settings(deadline=None, derandomize=True, max_examples=12, database=None)

GROUPS = st.integers(1, 6)
ORDERS = st.sampled_from(["shuffled", "natural", "domains"])
PARAMETERS: dict[Callable[..., Partition], st.SearchStrategy[Settings]] = {
    iid: st.just({}),
    label_groups: st.one_of(
        st.fixed_dictionaries({"groups": GROUPS, "order": ORDERS}),
        st.fixed_dictionaries({"groups": GROUPS, "classes": st.integers(1, 8)}),
    ),
    label_groups_noisy: st.fixed_dictionaries(
        {
            "groups": GROUPS,
            "order": ORDERS,
            "extra_labels": st.integers(0, 3),
            "extra_probability": st.floats(0, 1),
        }
    ),
    by_domain: st.one_of(st.just({}), st.fixed_dictionaries({"per_label": st.integers(1, 5)})),
    natural: st.fixed_dictionaries({"least": st.integers(2, 6)}),
    label_skew: st.fixed_dictionaries({"share": st.floats(0.01, 1)}),
    dirichlet: st.fixed_dictionaries(
        {
            "alpha": st.sampled_from([0.05, 0.3, 2.0, 1e6]),
            "min_samples": st.integers(1, 12),
        }
    ),
    balanced_dirichlet: st.fixed_dictionaries({"alpha": st.sampled_from([1e-9, 0.05, 2.0, 1e6])}),
    extended_dirichlet: st.fixed_dictionaries(
        {
            "classes": st.integers(1, 8),
            "alpha": st.sampled_from([1e-9, 0.3, 1e6]),
            "least": st.integers(0, 2),
        }
    ),
    quantity_skew: st.fixed_dictionaries(
        {"beta": st.sampled_from([1e-9, 0.5, 1e6]), "min_samples": st.integers(1, 12)}
    ),
    primary_secondary: st.fixed_dictionaries(
        {
            "sigma_p": st.sampled_from([0.5, (0.4, 0.6), 0.98, (0.01, 0.02)]),
            "sigma_s": st.sampled_from([0.3, (0.2, 0.4), 0.98]),
            "per": st.sampled_from(["dataset", "client"]),
            "overlap": st.sampled_from(["allow", "balanced"]),
            "band": st.sampled_from([None, "low"]),
        }
    ),
}
ALL = list(PARAMETERS)
every = pytest.mark.parametrize("partition", ALL, ids=lambda function: function.__name__)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Indices, Indices, int, int]:
    """Labels in any order, a superclass of each, a number of clients and a seed."""
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=8))
    seed = draw(st.integers(0, 1000))
    kinds = np.random.default_rng(seed).permutation(50)[: len(sizes)]
    labels = np.random.default_rng(seed).permutation(np.repeat(kinds, sizes))
    return labels, labels % 3, draw(st.integers(1, 14)), seed


def divided(
    partition: Callable[..., Partition],
    world: tuple[Indices, Indices, int, int],
    given_: Settings,
) -> Partition | None:
    """The partition; None where it says in one line what it cannot do."""
    labels, domains, clients, seed = world
    try:
        return partition(labels, domains, clients, np.random.default_rng(seed), **given_)
    except UserError as error:
        said = str(error)
    assert said.strip()
    assert "\n" not in said
    return None


def test_the_laws_are_of_every_installed_partition() -> None:
    ours = [e for e in entries("partitions").values() if e.distribution == "flbench"]
    assert {load_entry(entry) for entry in ours} <= set(ALL)


@pytest.mark.slow
@every
@law
@given(st.data(), worlds())
def test_everybody_gets_samples_and_nobody_one_twice(
    partition: Callable[..., Partition],
    data: st.DataObject,
    world: tuple[Indices, Indices, int, int],
) -> None:
    chosen = data.draw(PARAMETERS[partition])
    found = divided(partition, world, chosen)
    assume(found is not None)
    assert found is not None
    labels, _, clients, _ = world
    if partition is not iid:  # deals nothing to those that come after the last sample
        assert min(len(mine) for mine in found.clients) >= 1
    assert len(found.clients) == clients
    for mine in found.clients:
        assert mine.dtype == np.int64
        assert (np.diff(mine) > 0).all(), "ascending, none twice"
        assert not len(mine) or 0 <= mine[0] <= mine[-1] < len(labels)
    if chosen.get("overlap") != "allow":
        everything = np.concatenate(found.clients)
        assert len(np.unique(everything)) == len(everything), "a sample is one client's"
    if found.groups is not None:
        assert found.groups.shape == (clients,)
        assert (np.diff(found.groups) >= 0).all()


@pytest.mark.slow
@every
@law
@given(st.data(), worlds())
def test_equal_generators_give_equal_partitions(
    partition: Callable[..., Partition],
    data: st.DataObject,
    world: tuple[Indices, Indices, int, int],
) -> None:
    chosen = data.draw(PARAMETERS[partition])
    before = world[0].copy(), world[1].copy()
    one, same = (divided(partition, world, chosen) for _ in range(2))
    assert np.array_equal(before, world[:2]), "what it is given is left alone"
    assert (one is None) == (same is None)
    if one is not None and same is not None:
        assert all(np.array_equal(a, b) for a, b in zip(one.clients, same.clients, strict=True))


@pytest.mark.slow
@every
@law
@given(st.data(), worlds())
def test_names_of_labels_and_domains_do_not_matter_only_their_order_does(
    partition: Callable[..., Partition],
    data: st.DataObject,
    world: tuple[Indices, Indices, int, int],
) -> None:
    chosen = data.draw(PARAMETERS[partition])
    labels, domains, clients, seed = world
    one = divided(partition, world, chosen)
    other = divided(partition, (labels * 3 + 7, domains * 2 + 1, clients, seed), chosen)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert all(np.array_equal(a, b) for a, b in zip(one.clients, other.clients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    [iid, label_groups_noisy, by_domain, dirichlet, balanced_dirichlet, quantity_skew],
)
@law
@given(st.data(), worlds())
def test_every_sample_is_dealt(
    partition: Callable[..., Partition],
    data: st.DataObject,
    world: tuple[Indices, Indices, int, int],
) -> None:
    chosen = data.draw(PARAMETERS[partition])
    found = divided(partition, world, chosen)
    assume(found is not None and "per_label" not in chosen)
    assert found is not None
    assert np.sort(np.concatenate(found.clients)).tolist() == list(range(len(world[0])))


# --- what the skewed ones promise -------------------------------------------------------------


@law
@given(worlds(), st.floats(0.01, 1))
def test_label_skew_gives_everybody_equally_many_labels(
    world: tuple[Indices, Indices, int, int], share: float
) -> None:
    found = divided(label_skew, world, {"share": share})
    assume(found is not None)
    assert found is not None
    labels, _, clients, _ = world
    kinds = np.unique(labels)
    for client, mine in enumerate(found.clients):
        held = set(labels[mine].tolist())
        assert len(held) == max(1, int(share * len(kinds) + 0.5))
        assert kinds[client % len(kinds)] in held
    if clients >= len(kinds):
        assert sum(map(len, found.clients)) == len(labels)


@pytest.mark.slow
@law
@given(worlds(), PARAMETERS[dirichlet])
@example((np.zeros(30, dtype=np.int64), np.zeros(30, dtype=np.int64), 10, 0),
         {"alpha": 1e-9, "min_samples": 3})  # fmt: skip
def test_dirichlet_answers_exactly_when_there_are_enough_samples(
    world: tuple[Indices, Indices, int, int], chosen: Settings
) -> None:
    found = divided(dirichlet, world, chosen)
    labels, _, clients, _ = world
    assert (found is not None) == (len(labels) >= clients * chosen["min_samples"])
    if found is not None:
        assert min(map(len, found.clients)) >= chosen["min_samples"]


@pytest.mark.slow
@law
@given(worlds(), PARAMETERS[primary_secondary])
def test_primary_secondary_clients_are_of_one_size_and_hold_a_third_label(
    world: tuple[Indices, Indices, int, int], chosen: Settings
) -> None:
    found = divided(primary_secondary, world, chosen)
    assume(found is not None)
    assert found is not None
    labels, _, clients, _ = world
    sizes = {len(mine) for mine in found.clients}
    assert len(sizes) == 1
    assert 3 <= min(sizes) <= len(labels) // clients
    assert chosen["overlap"] == "balanced" or sizes == {len(labels) // clients}
    assert all(len(np.unique(labels[mine])) >= 3 for mine in found.clients)


# --- statistics -------------------------------------------------------------------------------

COUNTS = st.integers(1, 8).flatmap(
    lambda labels: st.lists(
        st.lists(st.integers(0, 50), min_size=labels, max_size=labels).map(
            lambda row: [row[0] + (not any(row)), *row[1:]]
        ),
        min_size=1,
        max_size=9,
    ).map(np.array)
)


@law
@given(COUNTS, st.sampled_from([0.5, 1e-3, 2.0]))
def test_divergence_is_symmetric_and_its_mean_that_of_the_pairs(
    counts: np.ndarray, smoothing: float
) -> None:
    found = kld(counts, smoothing)
    assert (found >= 0).all()
    assert np.array_equal(found, found.T)
    pairs = found[np.triu_indices(len(counts), 1)]
    mean = pairs.mean() if len(pairs) else 0.0
    assert mean_kld(counts, smoothing) == pytest.approx(mean, abs=1e-9)


@law
@given(COUNTS, st.randoms(use_true_random=False))
def test_the_order_of_clients_and_labels_does_not_matter(counts: np.ndarray, random: Any) -> None:
    clients, labels = (random.sample(range(k), k) for k in counts.shape)
    other = counts[clients][:, labels]
    assert mean_kld(other) == pytest.approx(mean_kld(counts), abs=1e-9)
    assert kld(other) == pytest.approx(kld(counts)[clients][:, clients], abs=1e-9)
    assert earth_movers(other) == pytest.approx(earth_movers(counts)[clients], abs=1e-9)
    truth = label_overlap_truth(counts)[clients][:, clients]
    assert np.array_equal(label_overlap_truth(other), truth)


@law
@given(COUNTS)
def test_distances_lie_between_0_and_1_and_everybody_overlaps_with_themselves(
    counts: np.ndarray,
) -> None:
    distance = earth_movers(counts)
    assert ((distance >= 0) & (distance <= 1)).all()
    assert np.diag(label_overlap_truth(counts)).all()


@law
@given(st.lists(st.floats(0, 9, width=32), min_size=2, max_size=30, unique=True).map(np.array))
def test_bands_are_in_order_and_the_outer_ones_never_empty(values: np.ndarray) -> None:
    low, high = (values[in_band(values, band)] for band in ("low", "high"))
    assert low < high
    try:
        mid = values[in_band(values, "mid")]
    except UserError:
        return
    assert low < mid < high


# --- large ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "chosen"),
    [
        (label_skew, {}),
        (dirichlet, {"alpha": 0.01, "min_samples": 2}),
        (balanced_dirichlet, {"alpha": 0.01}),
        (quantity_skew, {"beta": 0.1, "min_samples": 1}),
    ],
)
def test_a_hundred_thousand_clients_get_an_answer(
    partition: Callable[..., Partition], chosen: Settings
) -> None:
    labels = np.arange(400_000, dtype=np.int64) % 10
    found = divided(partition, (labels, labels, 100_000, 0), chosen)
    assert found is not None
    assert sum(map(len, found.clients)) == 400_000
    assert min(map(len, found.clients)) >= 1


@pytest.mark.parametrize("partition", [label_skew, dirichlet, primary_secondary])
def test_a_label_with_one_sample_gets_an_answer_or_one_line(
    partition: Callable[..., Partition],
) -> None:
    labels = np.append(np.arange(5000) % 9, 9)
    found = divided(partition, (labels, labels, 40, 0), {})
    assert (found is None) == (partition is not dirichlet)
