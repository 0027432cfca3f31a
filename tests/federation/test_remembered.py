"""What is remembered stays within its bytes, and goes in the order of its last use."""

from __future__ import annotations

from itertools import product

import torch
from toy import CLIENTS, Play

from flbench.federation.pooled import Pooled
from flbench.federation.remembered import OVERHEAD, Remembered


def test_those_used_last_stay() -> None:
    memory = Remembered(2 * OVERHEAD + 10)
    memory.put("a", 1, 5)
    memory.put("b", 2, 5)
    assert memory.get("a") == 1
    memory.put("c", 3, 5)
    assert [memory.get(key) for key in "abc"] == [1, None, 3]
    assert len(memory) == 2
    assert memory.total == 2 * OVERHEAD + 10


def test_a_value_that_is_too_large_leaves_nothing() -> None:
    memory = Remembered(OVERHEAD)
    memory.put("a", 1, 0)
    memory.put("b", 2, 1)
    assert len(memory) == memory.total == 0


def test_the_batches_of_all_clients_are_gathered_once(play_toy: Play) -> None:
    """More than a number of them: what counts are their bytes."""
    samples = play_toy("local-only", rounds=1).run.held_out
    several = list(product(range(CLIENTS), repeat=3))
    first, again = (
        [Pooled.of(samples, "test", torch.tensor(clients)) for clients in several] for _ in range(2)
    )
    assert [id(one) for one in again] == [id(one) for one in first]
    assert len({id(one) for one in again}) == len(several) == 216
