"""What third parties test their plugins with: the conformance kit, and a very small federation."""

from flbench.testing.check import Check, CheckFailed, CheckResult
from flbench.testing.kit import CHECKS, MethodCheck, check_results, parametrize_with_checks
from flbench.testing.try_out import try_out

__all__ = [
    "CHECKS",
    "Check",
    "CheckFailed",
    "CheckResult",
    "MethodCheck",
    "check_results",
    "parametrize_with_checks",
    "try_out",
]
