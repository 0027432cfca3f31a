"""What a client did not send must reach nobody else: plants at every hook, and honest methods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mentions import mention
from planted_secrets import HONEST, SECRETS
from toy import install

from flbench.testing import CHECKS
from flbench.testing.check import CheckFailed, MethodUnderTest


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All of them, installed."""
    folder = tmp_path_factory.mktemp("secrets")
    points = [
        f"secret-{one.__name__} = planted_secrets:{one.__name__}" for one in (*SECRETS, *HONEST)
    ]
    install(folder, "secrets", "\n".join(["[flbench.methods]", *points]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.parametrize("kind", SECRETS, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("planted")
def test_what_was_not_sent_reaches_nobody(kind: type) -> None:
    method = f"secret-{kind.__name__}"
    with pytest.raises(CheckFailed, match=mention(method, "depends")):
        CHECKS["bytes-add-up"].function(MethodUnderTest(method))


@pytest.mark.parametrize("kind", HONEST, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("planted")
def test_honest_counting_passes(kind: type) -> None:
    CHECKS["bytes-add-up"].function(MethodUnderTest(f"secret-{kind.__name__}"))
