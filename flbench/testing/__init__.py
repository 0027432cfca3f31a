"""What third parties test their plugins with: the conformance kit, and a very small federation."""

from flbench.testing.check import Check as Check
from flbench.testing.check import CheckFailed as CheckFailed
from flbench.testing.check import CheckResult as CheckResult
from flbench.testing.kit import CHECKS as CHECKS
from flbench.testing.kit import MethodCheck as MethodCheck
from flbench.testing.kit import check_results as check_results
from flbench.testing.kit import parametrize_with_checks as parametrize_with_checks
from flbench.testing.try_out import try_out as try_out

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
