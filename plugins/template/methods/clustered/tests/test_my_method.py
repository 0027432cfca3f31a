"""The checks that every method must pass, and what is special about this one."""

from flbench.testing import MethodCheck, parametrize_with_checks, try_out


@parametrize_with_checks("my-method")
def test_it_conforms(check: MethodCheck) -> None:
    check()


def test_the_limit_decides_how_many_groups_there_are() -> None:
    one, all_apart = (try_out(plugin="my-method", alike=value) for value in (-1.0, 1.0))
    assert one.summary["groups"] == 1
    assert all_apart.summary["groups"] == 6
