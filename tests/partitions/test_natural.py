"""The natural partition by hand."""

from __future__ import annotations

import numpy as np
import pytest
from mentions import mention

from flbench.errors import UserError
from flbench.partitions.natural import natural

DOMAINS = np.array([1, 0, 1, 2, 1, 2, 2, 3])
LABELS = np.zeros(8, dtype=np.int64)


def test_every_client_is_a_domain() -> None:
    """Domain 0 and 3 have one sample: too few."""
    found = natural(LABELS, DOMAINS, 2, np.random.default_rng(0), least=2)
    assert [one.tolist() for one in found.clients] == [[0, 2, 4], [3, 5, 6]]
    assert found.groups is None


def test_of_more_domains_some_are_drawn() -> None:
    domains = np.repeat(np.arange(20), 3)
    labels = np.zeros(60, dtype=np.int64)
    drawn = [natural(labels, domains, 5, np.random.default_rng(s), least=3) for s in (0, 0, 1)]
    taken = [[int(domains[one[0]]) for one in found.clients] for found in drawn]
    assert taken[0] == taken[1] != taken[2]
    assert taken[0] == sorted({*taken[0]})
    assert all(len(one) == 3 for found in drawn for one in found.clients)


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match=mention("needs", "domains")):
        natural(LABELS, None, 2, np.random.default_rng(0))
    with pytest.raises(UserError, match="at most 2 clients"):
        natural(LABELS, DOMAINS, 3, np.random.default_rng(0), least=2)
    with pytest.raises(UserError, match=mention("3 samples", "largest")):
        natural(LABELS, DOMAINS, 1, np.random.default_rng(0), least=9)
