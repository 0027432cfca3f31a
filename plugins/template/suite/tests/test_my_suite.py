"""The suite is found by its name, loads, and plays."""

from flbench.testing import try_out


def test_it_plays() -> None:
    result = try_out(suite="my-suite")
    assert result.suite["name"] == "my-suite"
    assert len(result.clients.train) == 20


def test_every_client_holds_three_labels() -> None:
    labels = try_out(suite="my-suite").clients.labels or []
    assert {len(held) for held in labels} == {3}
