"""Values that are remembered up to a number of bytes; those that were used last stay."""

from __future__ import annotations

from collections.abc import Hashable

OVERHEAD = 2**10
"""Bytes that a value takes beside its content, about."""


class Remembered:
    """Values by their keys.

    Args:
        most: bytes of all values together, with their overhead.
    """

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._values: dict[Hashable, tuple[object, int]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> object | None:
        """The value of a key, which is now the last one used; None = it is not known."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self._values[key] = found
        return found[0]

    def put(self, key: Hashable, value: object, size: int) -> None:
        """Remember a value of so many bytes under a new key, and forget those not used longest."""
        self._values[key] = value, size + OVERHEAD
        self.total += size + OVERHEAD
        while self.total > self.most:
            first = next(iter(self._values))
            self.total -= self._values.pop(first)[1]
