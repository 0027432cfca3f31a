"""A suite's fields, beside one another."""

from __future__ import annotations

import pytest
from toy import toy_suite

from flbench.errors import UserError


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": 6, "unseen": 2}])
def test_fields_are_not_compared_with_one_that_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError) as caught:
        toy_suite(**wrong, not_judged=[9])
    assert f"'{list(wrong)[-1]}'" in str(caught.value)
    assert "not_judged" not in str(caught.value)
