"""The checks of the conformance kit, which hold for every method of flbench."""

from flbench.testing import Check, parametrize_with_checks


@parametrize_with_checks("apfl", "ditto", "fedamp")
def test_it_conforms(check: Check) -> None:
    """One test for each law and method."""
    check()
