"""What a suite may say of its periods."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from toy import toy_suite

from flbench.core.period_settings import PeriodSettings, starts_of
from flbench.errors import BadParameter
from flbench.suite import Suite


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"start": 1, "change": "leave"}, "greater than or equal to 2"),
        ({"start": 3, "change": "go"}, "'exchange', 'swap-labels', 'rotate', 'leave' or 'come'"),
        ({"start": 3, "change": "exchange", "share": 0}, "greater than 0"),
        ({"start": 3, "change": "swap-labels"}, "'labels' expected: pairs such as"),
        ({"start": 3, "change": "swap-labels", "labels": [[0, 1], [1, 2]]}, "each label once"),
        ({"start": 3, "change": "rotate"}, "'degrees' expected: 90, 180 or 270"),
        ({"start": 3, "change": "come", "until": 5}, "no 'until' expected, as the change is"),
        ({"start": 3, "change": "leave", "labels": [[0, 1]]}, "no 'labels' expected"),
        ({"start": 3, "change": "leave", "until": 3}, "'until' expected after 'start', 3"),
    ],
)
def test_a_change_that_cannot_be_is_refused_in_one_line(
    fields: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValidationError, match=expected):
        PeriodSettings(**fields)
    with pytest.raises(BadParameter, match=r"suite 'small': 'periods\.0") as refused:
        toy_suite(periods=[fields])
    assert "\n" not in str(refused.value)


def test_periods_begin_where_something_changes() -> None:
    leave = PeriodSettings(start=4, change="leave", until=6)
    swap = PeriodSettings(start=4, change="swap-labels", labels=((0, 1),))
    late = PeriodSettings(start=9, change="come")
    assert starts_of((leave, swap, late), rounds=8) == [4, 6]
    assert toy_suite(rounds=8, periods=[leave, late]).period_starts == [4, 6]


def test_a_suite_without_periods_has_the_hash_it_had() -> None:
    suite = toy_suite()
    assert "periods" not in suite.settings()
    changed = toy_suite(periods=[{"start": 2, "change": "exchange"}])
    assert changed.settings()["periods"] == [{"start": 2, "change": "exchange"}]
    assert changed.hash() != suite.hash()
    assert Suite.model_validate({**changed.settings(), "summary": ""}).hash() == changed.hash()


def test_no_round_is_chosen_among_rounds_with_other_data() -> None:
    with pytest.raises(BadParameter, match=r"none expected .* headline is 'validation'"):
        toy_suite(headline="validation", periods=[{"start": 2, "change": "exchange"}])
