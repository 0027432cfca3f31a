from flbench.testing import parametrize_with_checks


@parametrize_with_checks("kindred")
def test_it_conforms(check):
    check()
