"""What third parties test their plugins with: the conformance kit, and a very small federation."""

from flbench.testing.check import Broken as Broken
from flbench.testing.check import Law as Law
from flbench.testing.check import Verdict as Verdict
from flbench.testing.kit import LAWS as LAWS
from flbench.testing.kit import Check as Check
from flbench.testing.kit import parametrize_with_checks as parametrize_with_checks
from flbench.testing.kit import verdicts as verdicts
from flbench.testing.try_out import try_out as try_out

__all__ = [
    "LAWS",
    "Broken",
    "Check",
    "Law",
    "Verdict",
    "parametrize_with_checks",
    "try_out",
    "verdicts",
]
