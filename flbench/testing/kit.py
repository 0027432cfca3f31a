"""The kit as authors use it: in their tests, and as `flbench check METHOD`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from flbench.errors import UnknownName
from flbench.testing import communication, edge_cases, isolation, registration, reproducibility
from flbench.testing.check import Broken, Case, Law, Verdict

if TYPE_CHECKING:
    import pytest

LAWS: dict[str, Law] = {
    one.name: one
    for one in (
        registration.discovered_alone,
        registration.plain_parameters,
        edge_cases.usual_run,
        edge_cases.every_hook_answers,
        edge_cases.clear_errors,
        reproducibility.same_seed_same_bytes,
        reproducibility.trained_alone,
        reproducibility.relabelled_clients,
        reproducibility.vectorised_clients,
        reproducibility.two_processes,
        reproducibility.resumed_run,
        reproducibility.declared_equal,
        isolation.inputs_untouched,
        isolation.absent_clients_untouched,
        isolation.partition_untouched,
        isolation.test_labels_unseen,
        isolation.steady_memory,
        isolation.world_untouched,
        communication.bytes_add_up,
        edge_cases.normed_network,
        edge_cases.newcomers_served,
        edge_cases.one_client,
        edge_cases.one_sample,
        edge_cases.missing_class,
        edge_cases.everyone_sampled,
        edge_cases.empty_group,
    )
}
"""All laws by name, in the order in which they are judged."""


@lru_cache(maxsize=64)
def case(method: str) -> Case:
    """A method before the laws; its runs are played once in a process."""
    return Case(method)


def judge(method: str, law: str) -> Verdict:
    """What becomes of one law for one method.

    Args:
        method: an installed name.
        law: a name of `LAWS`.

    Raises:
        UnknownName: no such method or law, or the author speaks of one that is not there.
    """
    mine = case(method)
    if law not in LAWS:
        raise UnknownName("law", law, LAWS, listed="there are")
    verdict = mine.judge(LAWS[law])
    for name in mine.told.fails if "kind" in vars(mine) else ():
        if name not in LAWS:
            raise UnknownName(f"law in {method}.conformance.fails", name, LAWS, listed="there are")
    return verdict


def verdicts(method: str, laws: Sequence[str] = ()) -> Iterator[Verdict]:
    """Judge a method law by law, in order.

    Args:
        method: an installed name.
        laws: names; none = all.

    Raises:
        UnknownName: no such method or law.
    """
    return (judge(method, name) for name in laws or LAWS)


@dataclass(frozen=True)
class Check:
    """One law for one method; calling it passes, skips or raises `Broken`.

    Attributes:
        method: name of an installed method.
        law: name of a law, one of `LAWS`.
    """

    method: str
    law: str

    def __call__(self) -> None:
        """Judge."""
        import pytest

        verdict = judge(self.method, self.law)
        if verdict.outcome == "not judged":
            pytest.skip(verdict.why)
        if verdict.outcome == "known":
            pytest.xfail(verdict.why)
        if not verdict.good:
            raise Broken(verdict.why)


def parametrize_with_checks(*methods: str) -> pytest.MarkDecorator:
    """Make a test of every law for every method: the test function takes `check` and calls it.

    A law that is declared to fail (`Conformance.fails`) is an expected failure with its reason.

    Args:
        methods: installed names.

    Example:
        >>> @parametrize_with_checks("fedprox")
        ... def test_it_conforms(check):
        ...     check()
    """
    import pytest

    cases = [Check(method, name) for method in methods for name in LAWS]
    named = [pytest.param(one, id=f"{one.method}-{one.law}") for one in cases]
    return pytest.mark.parametrize("check", named)
