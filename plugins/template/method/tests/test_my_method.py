"""The checks that every method must pass, and what is special about this one."""

from flbench.testing import MethodCheck, parametrize_with_checks, try_out


@parametrize_with_checks("my-method")
def test_it_conforms(check: MethodCheck) -> None:
    check()


def test_the_step_decides_where_training_leads() -> None:
    half, whole = (try_out(plugin="my-method", step=step) for step in (0.5, 1.0))
    assert half.curves["loss"] != whole.curves["loss"]
