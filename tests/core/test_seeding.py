"""Seeding: the same address, the same numbers; any other address, other numbers."""

from __future__ import annotations

import copy
import hashlib
import pickle
from itertools import combinations

import numpy as np
import pytest
import torch

from flbench.core.seeding import rng, torch_seed

ADDRESSES: list[tuple[int | str, ...]] = [
    (0, "cohort"),
    (1, "cohort"),
    (10, "cohort"),
    (0, "batches"),
    (0, "cohort", 0),
    (0, "cohort", 3),
    (0, "cohort", 30),
    (0, "cohort", 3, 0),
    (0, "cohort", 0, 3),
    (0, "cohort", "train", 3),
    (0, "cohort", "1", "23"),
    (0, "cohort", "12", "3"),
    (0, "cohort", "123"),
    (0, "cohort1", "23"),
    (0, "", "cohort"),
]


def numbers(address: tuple[int | str, ...]) -> list[int]:
    seed, purpose, *rest = address
    drawn: list[int] = rng(int(seed), str(purpose), *rest).integers(2**62, size=4).tolist()
    return drawn


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_the_same_address_gives_the_same_numbers(address: tuple[int | str, ...]) -> None:
    assert numbers(address) == numbers(address)
    seed, purpose, *rest = address
    assert torch_seed(int(seed), str(purpose), *rest) == torch_seed(int(seed), str(purpose), *rest)


def test_another_part_of_the_address_gives_other_numbers() -> None:
    for one, other in combinations(ADDRESSES, 2):
        assert not set(numbers(one)) & set(numbers(other)), (one, other)


def test_parts_of_an_address_do_not_run_together() -> None:
    assert numbers((0, "x", "1", "23")) != numbers((0, "x", "12", "3"))
    assert torch_seed(0, "x", "1", "23") != torch_seed(0, "x", "12", "3")
    assert torch_seed(1, "2") != torch_seed(12, "")


def test_a_generator_owes_nothing_to_the_ones_before() -> None:
    expected = numbers((0, "cohort", 7))
    rng(0, "cohort", 6).random(1000)
    torch.manual_seed(5)
    assert numbers((0, "cohort", 7)) == expected


def test_numbers_are_the_same_for_ever() -> None:
    assert torch_seed(0, "init") == 1519069808562059438
    assert rng(0, "cohort", 3).integers(1000, size=3).tolist() == [881, 785, 858]


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_the_numbers_are_those_of_philox_with_the_address_as_key(
    address: tuple[int | str, ...],
) -> None:
    """All kinds of draws, so that the key and the state beside it are as numpy sets them."""
    text = "/".join(map(str, address))
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
    expected = np.random.Generator(np.random.Philox(key=key))
    seed, purpose, *rest = address
    generator = rng(int(seed), str(purpose), *rest)
    for one in (generator, copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        np.testing.assert_equal(one.bit_generator.state, expected.bit_generator.state)
    assert np.array_equal(generator.permutation(50), expected.permutation(50))
    assert np.array_equal(generator.normal(size=5), expected.normal(size=5))
    assert generator.integers(7, dtype=np.int32) == expected.integers(7, dtype=np.int32)
    np.testing.assert_equal(generator.bit_generator.state, expected.bit_generator.state)


def test_a_key_is_given_as_two_words_of_64_bits_only() -> None:
    key = rng(0, "cohort").bit_generator.seed_seq
    assert key.generate_state(2, np.uint64).dtype == np.uint64
    with pytest.raises(ValueError, match="two words"):
        key.generate_state(4, np.uint32)


def test_torch_seeds_are_in_the_range_torch_takes_and_use_it() -> None:
    seeds = [torch_seed(seed, "init", client) for seed in range(20) for client in range(20)]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62, "63 bits, not fewer"
    for seed in seeds[:20]:
        assert torch.Generator().manual_seed(seed).initial_seed() == seed
