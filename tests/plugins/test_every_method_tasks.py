"""Every method where numbers are predicted: it trains, or says why it has no meaning there."""

from __future__ import annotations

import pytest
from every import METHODS

from flbench.errors import Undefined
from flbench.testing.check import MethodUnderTest
from flbench.testing.small_run import SERVER_SAMPLES, small_suite

NEED_CLASSES = {
    *("backdoor", "fedc2i", "fedc2i-class-global", "fedc2i-class-local", "fedc2i-lambda", "feddf"),
    *("fedem", "fedgen", "fedgh", "fedlc", "fedmd", "fedpac", "fedphp", "fedproto", "fedrod"),
    *("fedsoft", "flis-dc", "flis-hc", "heterofl", "kld-groups", "knn-per", "label-flip", "pacfl"),
}
"""What they look at: classes, label counts, or logits of classes."""
ONE_VALUE = {"boosting", "boosting-alone", "linear-alone", "random-intercept", "random-slopes"}
"""They predict a class or numbers, not several labels."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("dataset", ["small-numbers", "small-labels"])
@pytest.mark.parametrize("method", METHODS)
def test_it_trains_or_needs_classes(method: str, dataset: str) -> None:
    tested = MethodUnderTest(method)
    settings = {
        name: value
        for name, value in tested.declared_suite.items()
        if name.split(".")[0] not in ("model", "further_models", "common_head", "partition")
    }
    given = {"rounds": tested.conformance.rounds, "server_samples": SERVER_SAMPLES}
    suite = small_suite(**{**given, **settings, "dataset": dataset})
    if method in NEED_CLASSES or (method in ONE_VALUE and dataset == "small-labels"):
        with pytest.raises(Undefined, match="class"):
            tested.run(suite)
        return
    played = tested.run(suite)
    before, after = played.run.context.initial, played.served
    assert played.result.headline.name == played.run.task
    moved = (after != before).any(dim=1)
    trains = played.result.summary["trained_epochs"] > 0
    assert bool(moved.all() if trains else not moved.any()) or method == "lora", "everybody's"
