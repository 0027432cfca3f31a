"""Seeding: each random generator is derived from an address, not from earlier draws.

Every generator depends only on `(run seed, purpose, *address)`; generators are never shared. The
name of the method is not part of any address, so all methods with one seed have the same
partition, initial weights, cohorts and batch orders. Neither the executor nor the number of
processes nor the order of the clients changes a number.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _digest(seed: int, purpose: str, address: tuple[int | str, ...]) -> int:
    text = "/".join(str(part) for part in (seed, purpose, *address))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


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
    return np.random.Generator(np.random.Philox(key=_digest(seed, purpose, address)))


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
