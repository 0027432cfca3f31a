"""The conformance kit: for tests of methods, and for `flbench check METHOD`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from flbench.errors import UnknownName
from flbench.testing import edge_cases, executors, isolation, registration, reproducibility
from flbench.testing import ledger_check as communication
from flbench.testing.check import Check, CheckFailed, CheckResult, MethodUnderTest

if TYPE_CHECKING:
    import pytest

CHECKS: dict[str, Check] = {
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
        reproducibility.judged_singly,
        executors.vectorised_clients,
        executors.trained_by_adam,
        executors.images_and_convolutions,
        executors.other_tasks,
        reproducibility.two_processes,
        reproducibility.resumed_run,
        reproducibility.seeds_apart,
        reproducibility.declared_equal,
        isolation.inputs_untouched,
        isolation.absent_clients_untouched,
        isolation.partition_untouched,
        isolation.test_labels_unseen,
        isolation.steady_memory,
        isolation.process_state_untouched,
        communication.bytes_add_up,
        edge_cases.normed_network,
        edge_cases.newcomers_served,
        edge_cases.one_client,
        edge_cases.one_sample,
        edge_cases.missing_class,
        edge_cases.missing_clients,
        edge_cases.everyone_sampled,
        edge_cases.empty_group,
    )
}
"""All checks by name, in the order in which they are run."""


@lru_cache(maxsize=64)
def method_under_test(method: str) -> MethodUnderTest:
    """A method with its runs, which are made once in a process."""
    return MethodUnderTest(method)


def run_check(method: str, check: str) -> CheckResult:
    """Run one check of `CHECKS` on an installed method.

    Raises:
        UnknownName: there is no such method or check, or the method's `Conformance.fails` names a
            check that does not exist.
    """
    return _run(method_under_test(method), check)


def _run(tested: MethodUnderTest, check: str) -> CheckResult:
    """Run one check; see `run_check`."""
    if check not in CHECKS:
        raise UnknownName("check", check, CHECKS, listed="there are")
    result = tested.run_check(CHECKS[check])
    for name in sorted(tested.declared_failures.keys() - CHECKS.keys()):
        what = f"check in {tested.name}.conformance.fails"
        raise UnknownName(what, name, CHECKS, listed="there are")
    return result


def check_results(
    method: str, checks: Sequence[str] = (), settings: Mapping[str, object] | None = None
) -> Iterator[CheckResult]:
    """Run the checks of a method, in order.

    Where a check is skipped because another one did not pass, that one comes first, whether it was
    asked for or not.

    Args:
        method: name of an installed method.
        checks: names; none = all.
        settings: as `--set` takes them: parameters of the method, fields of the small suite. They
            go before what the author declares.

    Raises:
        UnknownName: there is no such method or check, or no such setting.
    """
    tested = MethodUnderTest(method, settings) if settings else method_under_test(method)
    if settings:
        tested.suite()  # what is wrong with them is said once
    shown: set[str] = set()
    for name in checks or CHECKS:
        result = _run(tested, name)
        if result.blocked_by and result.blocked_by not in {*shown, *(checks or CHECKS)}:
            shown.add(result.blocked_by)
            yield _run(tested, result.blocked_by)
        yield result


@dataclass(frozen=True)
class MethodCheck:
    """One check of one method; a call passes, skips, or raises `CheckFailed`.

    Attributes:
        method: name of an installed method.
        check: a name of `CHECKS`.
    """

    method: str
    check: str

    def __call__(self) -> None:
        """Run the check inside a pytest test."""
        import pytest

        result = run_check(self.method, self.check)
        if result.state == "skipped":
            pytest.skip(result.reason)
        if result.state == "xfailed":
            pytest.xfail(result.reason)
        if not result.ok:
            raise CheckFailed(result.reason)


def parametrize_with_checks(*methods: str) -> pytest.MarkDecorator:
    """Make a test of every check of every method: the test function takes `check` and calls it.

    A check that is declared to fail (`Conformance.fails`) is an expected failure with its reason.

    Args:
        methods: names of installed methods.

    Example:
        >>> @parametrize_with_checks("fedprox")
        ... def test_it_conforms(check):
        ...     check()
    """
    import pytest

    checks = [MethodCheck(method, name) for method in methods for name in CHECKS]
    params = [pytest.param(one, id=f"{one.method}-{one.check}") for one in checks]
    return pytest.mark.parametrize("check", params)
