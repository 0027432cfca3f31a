"""Seeding: each random generator is derived from an address, not from earlier draws.

Every generator depends only on `(run seed, purpose, *address)`; generators are never shared. The
name of the method is not part of any address, so all methods with one seed have the same
partition, initial weights, cohorts and batch orders. Neither the executor nor the number of
processes nor the order of the clients changes a draw; in lanes processes change rounding.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def _digest(seed: int, purpose: str, address: tuple[int | str, ...]) -> int:
    text = "/".join(str(part) for part in (seed, purpose, *address))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


class _Key(ISeedSequence):
    """Gives Philox a key of 128 bits as the state of its seed.

    `Philox(key=key)` draws the same numbers, but first makes a SeedSequence from the system's
    entropy, which it does not use and which takes two thirds of the time of `rng`.
    """

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:  # noqa: ANN401
        """The key in words of 64 bits, the low one first, as Philox asks for them."""
        if n_words != 2 or np.dtype(dtype) != np.uint64:
            raise ValueError(f"a key has two words of 64 bits, not {n_words} of {dtype}")
        return np.array([self.key & (2**64 - 1), self.key >> 64], dtype=np.uint64)


def rng(seed: int, purpose: str, *address: int | str) -> np.random.Generator:
    """Return the generator of one address.

    Args:
        seed: the run's seed.
        purpose: what the numbers are used for: "partition", "cohort", "batches", ...
        *address: round, client, stage, epoch, ...

    Example:
        >>> int(rng(0, "cohort", 3).integers(100)) == int(rng(0, "cohort", 3).integers(100))
        True
    """
    key = cast("np.random.SeedSequence", _Key(_digest(seed, purpose, address)))
    return np.random.Generator(np.random.Philox(key))


def late_ones_last(clients: int, late: int, seed: int) -> list[int]:
    """All clients, those that join late last: which these are is drawn; both parts ascend.

    Args:
        clients: their number, N + M.
        late: how many join after the last round, M.
        seed: the run's.
    """
    drawn = rng(seed, "newcomers").permutation(clients)
    away = {*drawn[clients - late :].tolist()}
    return sorted(range(clients), key=lambda client: (client in away, client))


def torch_seed(seed: int, purpose: str, *address: int | str) -> int:
    """Return a 63-bit seed for torch's own generator (weight initialisation, dropout)."""
    return _digest(seed, purpose, address) >> 65


def seed_torch(seed: int) -> None:
    """Seed torch's own generators, on the CPU and on CUDA devices.

    `torch.manual_seed` also queues a call with its stack trace for every accelerator that is not in
    use, which takes longer than to build a small network.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
