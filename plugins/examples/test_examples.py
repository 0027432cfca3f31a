"""The checks that every method of flbench must pass."""

from flbench.testing import MethodCheck, parametrize_with_checks


@parametrize_with_checks(
    "apfl",
    "ditto",
    "dp-fedavg",
    "fedamp",
    "fedasync",
    "fedbabu",
    "fedbn",
    "fedbuff",
    "feddf",
    "fedgh",
    "fedlc",
    "fedmd",
    "heterofl",
    "knn-per",
    "krum",
    "lora",
    "moon",
    "pfedhn",
    "power-of-choice",
    "q-fedavg",
    "qsgd",
    "sign-flip",
    "top-k",
)
def test_it_conforms(check: MethodCheck) -> None:
    """One test for each check and method."""
    check()
