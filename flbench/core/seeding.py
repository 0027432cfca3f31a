"""Randomness with an address instead of a history.

Every generator is derived from `(run seed, purpose, *address)`, never drawn from another one and
never shared. The method's name is no part of any address, so all methods of one seed see the same
partition, initial weights, cohorts and batch orders, and neither the executor nor the number of
processes nor the order of the clients can change a number.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _digest(seed: int, purpose: str, address: tuple[int | str, ...]) -> int:
    text = "/".join(str(part) for part in (seed, purpose, *address))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def rng(seed: int, purpose: str, *address: int | str) -> np.random.Generator:
    """Return the generator that lives at one address.

    Args:
        seed: the run's seed.
        purpose: what the numbers are for: "partition", "cohort", "batches", ...
        *address: where: round, client, stage, epoch, ...

    Example:
        >>> int(rng(0, "cohort", 3).integers(100)) == int(rng(0, "cohort", 3).integers(100))
        True
    """
    return np.random.Generator(np.random.Philox(key=_digest(seed, purpose, address)))


def torch_seed(seed: int, purpose: str, *address: int | str) -> int:
    """Return a 63-bit seed for torch's own generator (weight initialisation, dropout)."""
    return _digest(seed, purpose, address) >> 65
