"""A small part of `python tests/faults soak`; and that it finds what grows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import soak
from soak import SOAKS, Sample, soaked


@pytest.mark.parametrize(
    ("more", "grown"),
    [
        ({}, 0),
        ({"resident": 0.3}, 1),
        ({"threads": 0.1}, 1),
        ({"files": 0.1, "processes": 0.1}, 2),
    ],
)
def test_what_grows_is_found(more: dict[str, float], grown: int) -> None:
    first = {"resident": 400.0, "threads": 3, "files": 7, "processes": 0}
    samples = [
        Sample(**{key: one + int(number * more.get(key, 0)) for key, one in first.items()})
        for number in range(100)
    ]
    found = soaked(samples, every=50, seconds=1, file=0)
    assert found.count == 5000
    assert len(found.growing(limit=1.0)) == grown


def test_growth_is_measured_after_the_first_fifth() -> None:
    """Until then libraries are loaded; 0.1 MB for each 50 rounds are 2 MB for 1,000."""
    samples = [Sample(100.0 + 10 * min(n, 20) + 0.1 * n, 1, 1, 0) for n in range(100)]
    assert soaked(samples, every=50, seconds=1, file=0).slope == pytest.approx(2)


@pytest.mark.slow
def test_a_command_is_sampled() -> None:
    words = ("run", "-p", "fedavg", "--rounds", "6")
    found = soak.soak(replace(SOAKS["a run of fedavg"], words=words, count=6, every=1))
    assert found.count == 6
    assert found.growing(limit=1e9) == []
    assert found.last.resident > 100
    assert found.file > 10
