"""A suite's fields, beside one another."""

from __future__ import annotations

import pytest
from toy import toy_suite

from flbench.errors import UserError
from flbench.suite import load_suite


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": 6, "unseen": 2}])
def test_fields_are_not_compared_with_one_that_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError) as caught:
        toy_suite(**wrong, not_judged=[9])
    assert f"'{list(wrong)[-1]}'" in str(caught.value)
    assert "not_judged" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"partition.alpha": 0.5, "partition": "dirichlet"},
        {"partition.alpha": 0.5, "partition.name": "dirichlet"},
        {"model.hidden": 8, "model": "mlp"},
        {
            "clock.up.median": 1e6,
            "clock.up.sigma": 0.5,
            "clock.up.distribution": "lognormal",
        },
    ],
)
def test_settings_hold_in_any_order(settings: dict[str, object]) -> None:
    suite = load_suite("iid", None, settings)
    assert suite == load_suite("iid", None, dict(reversed(settings.items())))
    found = suite.model_dump()
    for name in next(iter(settings)).split("."):
        found = found[name]
    assert found == next(iter(settings.values()))
