"""The checks that every method must pass, and what is special about this one."""

from flbench.testing import MethodCheck, parametrize_with_checks, try_out


@parametrize_with_checks("my-method")
def test_it_conforms(check: MethodCheck) -> None:
    check()


def test_smoothing_changes_where_training_leads() -> None:
    plain, smoothed = (try_out(plugin="my-method", smoothing=value) for value in (0.0, 0.2))
    assert plain.curves["loss"] != smoothed.curves["loss"]
