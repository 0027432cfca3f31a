"""The checks that every method must pass, and what is special about this one."""

from flbench.testing import MethodCheck, parametrize_with_checks, try_out


@parametrize_with_checks("my-method")
def test_it_conforms(check: MethodCheck) -> None:
    check()


def test_only_the_shared_part_is_sent() -> None:
    head, body = (try_out(plugin="my-method", own=own) for own in ("head", "body"))
    whole = try_out(plugin="fedavg")
    sent = [one.bytes["up"]["model"] for one in (head, body, whole)]
    assert sent[0] + sent[1] == sent[2]
