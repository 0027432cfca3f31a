"""Metrics of clients: numbers by hand, streams of samples, what is asked for, what is brought."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from every import run_of
from mentions import mention, mentioning, mentions
from torch import Tensor
from torchmetrics.metric import Metric
from toy import (
    CLIENTS,
    Play,
    Played,
    Typed,
    bad,
    composition,
    install,
    player,
    refused,
    toy_dataset,
)

import flbench as fl
from flbench.client_metrics import classification, torchmetrics_classes
from flbench.core.seeding import rng
from flbench.engine import client_metrics
from flbench.engine.client_metrics import ClientMetric, ClientMetrics, Stream, find_metric
from flbench.engine.model_evaluation import Judging, evaluate_model
from flbench.errors import BadParameter, PluginError, UnknownName, UserError
from flbench.federation.pooled import Pooled
from flbench.metrics import ClientValues, Measurements, computed, is_taken, measured, metrics_of
from flbench.results.schema import VOLATILE
from flbench.run.rounds import round_context, run_rounds
from flbench.run.setup import prepare
from flbench.suite import Component, load_suite, metric_of
from flbench.sweeps.request import RunRequest, resolve
from flbench.terminal.console import SweepProgress

BUILT_IN = ("auroc", "balanced-accuracy", "ece", "top-k:k=1")
"""Those that do not import all of torchmetrics."""


def one(*labels: str, classes: int = 2) -> ClientMetrics:
    """The metrics of these names."""
    found = {label: find_metric(metric_of(label)) for label in labels}
    return ClientMetrics(found, classes, torch.device("cpu"))


def valued(metrics: ClientMetrics, *batches: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The values of one client whose samples come in batches."""
    instances = metrics.taken()
    for logits, y in batches:
        metrics.add(instances, logits, y)
    found = dict(zip(metrics.labels, metrics.values(instances), strict=True))
    metrics.given_back(instances)
    return found


# --- by hand -----------------------------------------------------------------------------------

# label 0 at .6; label 1 at .9; label 1 at .25, so it is taken for a 0 with confidence .75
THREE = torch.tensor([[0.6, 0.4], [0.1, 0.9], [0.75, 0.25]]).log()
LABELS = torch.tensor([0, 1, 1])
EXPECTED = {
    "auroc": 0.5,  # of the pairs (.9, .4) and (.25, .4) one is in order
    "balanced-accuracy": 0.75,  # 1 of 1 and 1 of 2
    "ece": (0.4 + 0.1 + 0.75) / 3,  # each is alone in its bin
    "top-k:k=1": 2 / 3,
    "top-k:k=2": 1.0,
}


@pytest.mark.parametrize("label", EXPECTED)
def test_metrics_of_three_samples_by_hand(label: str) -> None:
    assert valued(one(label), (THREE, LABELS))[label] == pytest.approx(EXPECTED[label])


@pytest.mark.slow  # imports all of torchmetrics
def test_metrics_of_torchmetrics_by_hand() -> None:
    """Both labels: 1 right, 1 wrong or missing, F1 = 2 / 3; the paths name the same class."""
    names = ("f1", "MulticlassF1Score", "F1Score:average=macro", "f1:average=micro")
    found = valued(one(*names), (THREE, LABELS))
    assert found == dict.fromkeys(names, pytest.approx(2 / 3))
    long = "torchmetrics.classification.MulticlassF1Score"
    assert find_metric(Component(name=long, top_k=1)).label == "MulticlassF1Score:top_k=1"


def test_equal_scores_are_half_right_and_weights_count_samples() -> None:
    """Label 0 has one sample, label 1 two: for 1, (2 + 1/2) of 3 classes' pairs are in order."""
    p = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
    y = torch.tensor([0, 1, 1, 2])
    # 0: its .5 against .25, .5, .25; 1: .5 and .25 against .25, .25; 2: .5 against .25, .25, .25
    areas = np.array([2.5 / 3, 3 / 4, 1.0])
    found = valued(one("auroc", "auroc:average=weighted", classes=3), (p.log(), y))
    assert found["auroc"] == pytest.approx(areas.mean())
    assert found["auroc:average=weighted"] == pytest.approx(np.average(areas, weights=[1, 2, 1]))


@pytest.mark.parametrize(
    ("odds", "labels", "expected"),
    [
        ([0.08, 0.14], [0, 1], 1.0),  # however near they are
        ([0.14, 0.08], [0, 1], 0.0),
        ([0.1, 0.1], [0, 1], 0.5),
        ([15.5, 20.0], [0, 1], 1.0),  # and however far out
        ([40.0, 41.0], [0, 1], 1.0),  # where 1 - p is below the precision of p
        ([-40.0, -39.0, 39.0, 40.0], [0, 1, 0, 1], 0.75),
        # pairs of 1 against 0: 2 > 1, 2 = 2, 3 > 1, 3 > 2
        ([1.0, 2.0, 2.0, 3.0], [0, 0, 1, 1], 3.5 / 4),
        ([math.nan, math.nan], [0, 1], 0.5),
        ([math.nan, 0.0], [0, 1], 0.5),  # lowest for both labels: right for 1, wrong for 0
        ([-math.inf, 0.0], [0, 1], 1.0),
    ],
)
def test_ranks_are_exact(odds: list[float], labels: list[int], expected: float) -> None:
    """Of two labels; sample by sample, too. Both labels have the same area, as p_0 = 1 - p_1."""
    logits = torch.tensor([[0.0, value] for value in odds])
    y = torch.tensor(labels)
    batches = zip(logits.split(1), y.split(1), strict=True)
    assert valued(one("auroc"), (logits, y))["auroc"] == expected
    assert valued(one("auroc"), *batches)["auroc"] == expected


def test_confidence_one_half_and_nine_tenths_are_in_two_bins() -> None:
    """A right answer of .9 and a wrong one of .5; in one bin the gaps would cancel."""
    logits = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    found = valued(one("ece:bins=2"), (logits, torch.tensor([0, 1])))
    assert found["ece:bins=2"] == pytest.approx((0.1 + 0.5) / 2)


def test_labels_that_a_client_does_not_have_are_left_out() -> None:
    """Of three labels the client has two; one label alone has no AUROC."""
    logits = torch.cat([THREE, torch.full((3, 1), -20.0)], dim=1)
    found = valued(one("auroc", "balanced-accuracy", classes=3), (logits, LABELS))
    assert found == pytest.approx({"auroc": 0.5, "balanced-accuracy": 0.75})
    alone = valued(one("auroc", "balanced-accuracy"), (THREE[1:], LABELS[1:]))
    assert math.isnan(alone["auroc"])
    assert alone["balanced-accuracy"] == 0.5


def test_the_area_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score

    draw = rng(0, "test")
    logits = torch.tensor(draw.normal(size=(200, 4)) * 2, dtype=torch.float64)
    y = torch.tensor(draw.integers(4, size=200))
    logits[100:] = logits[:100]  # each score twice, mostly with another label
    expected = roc_auc_score(y, logits.softmax(dim=1), multi_class="ovr")
    (found,) = valued(one("auroc", classes=4), (logits, y)).values()
    assert found == pytest.approx(expected, abs=1e-12)
    (weighted,) = valued(one("auroc:average=weighted", classes=4), (logits, y)).values()
    expected = roc_auc_score(y, logits.softmax(dim=1), multi_class="ovr", average="weighted")
    assert weighted == pytest.approx(expected, abs=1e-12)


def outcome(*values: float | None, higher_is_better: bool | None = True) -> Measurements:
    ones = np.ones(len(values), dtype=np.int64)
    found = {"f1": ClientValues(values, higher_is_better)}
    return Measurements(ones, ones, ones.astype(float), client_metrics=found)


def test_the_summary_of_a_metric_by_hand() -> None:
    found = computed(outcome(0.5, None, 1.0, 0.0))
    assert (found["f1_mean"], found["f1_clients"]) == (0.5, 3)
    assert found["f1_std_clients"] == pytest.approx((1 / 6) ** 0.5)
    assert found["f1_worst_decile"] == pytest.approx(0.1), "a fifth of the way from 0 to .5"
    assert computed(outcome(0, 1, higher_is_better=False))["f1_worst_decile"] == pytest.approx(0.9)
    assert computed(outcome(0, 1, higher_is_better=None))["f1_worst_decile"] is None
    nobody = computed(outcome(None, None))
    assert (nobody["f1_mean"], nobody["f1_worst_decile"], nobody["f1_clients"]) == (None, None, 0)
    assert measured(outcome(0, 1))["f1"] == 0.5


def test_names_of_other_numbers_are_taken() -> None:
    others = ("accuracy", "loss", "ari", "accuracy_generic", "bytes_up", "train_loss")
    assert all(map(is_taken, others))
    assert not any(map(is_taken, (*BUILT_IN, "f1", "nll", "MulticlassAccuracy")))
    assert [metric.tables != () for metric in metrics_of("f1", True)] == [True, False, True, False]


# --- streams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5])
def test_batches_give_the_value_of_one_batch(classes: int) -> None:
    draw = rng(classes, "test")
    logits = torch.tensor(draw.random(size=(60, classes)), dtype=torch.float32)  # all in [0, 1]
    y = torch.tensor(draw.integers(classes, size=60))
    metrics = one(*BUILT_IN, classes=classes)
    whole = valued(metrics, (logits, y))
    parts = zip(logits.split([1, 20, 39]), y.split([1, 20, 39]), strict=True)
    assert valued(metrics, *parts) == pytest.approx(whole, abs=1e-12)
    assert valued(metrics, (logits, y)) == whole, "nothing is left of other samples"


@pytest.mark.slow  # imports all of torchmetrics
def test_logits_are_never_taken_for_probabilities() -> None:
    """torchmetrics looks at the range of a batch: the first has logits in [0, 1], all have not."""
    logits = torch.tensor([[0.0, 1.0], [0.1, 0.9], [4.0, -4.0]])
    y = torch.tensor([1, 0, 0])
    metrics = one("MulticlassCalibrationError", "ece", "MulticlassAUROC")
    parts = zip(logits.split([2, 1]), y.split([2, 1]), strict=True)
    whole = valued(metrics, (logits, y))
    assert valued(metrics, *parts) == pytest.approx(whole)
    assert whole["ece"] == pytest.approx(whole["MulticlassCalibrationError"])


def test_samples_of_clients_that_are_mixed_go_to_their_owners() -> None:
    """Client 0 owns samples 0, 2, 4, client 1 owns 3, 4, and client 2 owns 1 twice."""
    draw = rng(0, "test")
    logits = torch.tensor(draw.normal(size=(5, 3)))
    y = torch.tensor([0, 1, 2, 1, 0])
    owned = [[0, 2, 4], [3, 4], [1, 1]]
    positions = torch.tensor([row for rows in owned for row in rows])
    metrics = one(*BUILT_IN, classes=3)
    stream = Stream(metrics, positions, torch.tensor([3, 2, 2]))
    for at in (0, 2, 4):
        stream.add(at, logits[at : at + 2], y[at : at + 2])
    for client, rows in enumerate(owned):
        alone = valued(metrics, (logits[rows], y[rows]))
        torch.testing.assert_close(
            stream.values[client], torch.tensor([*alone.values()], dtype=torch.float64),
            equal_nan=True, rtol=0, atol=1e-9,
        )  # fmt: skip


def test_tokens_are_samples() -> None:
    """Text: logits (b, T, C), labels (b, T)."""
    metrics = one(*BUILT_IN)
    text = THREE[:2].reshape(1, 2, 2), LABELS[:2].reshape(1, 2)
    assert valued(metrics, text) == valued(metrics, (THREE[:2], LABELS[:2]))


# --- on the test samples of all clients ---------------------------------------------------------


def test_accuracy_on_common_samples_by_hand() -> None:
    """Two of three are right; a token without a label does not count."""
    found = valued(one("common-accuracy"), (THREE, LABELS))
    assert found == {"common-accuracy": pytest.approx(2 / 3)}
    text = THREE.reshape(1, 3, 2), torch.tensor([[0, -100, 1]])
    assert valued(one("common-accuracy"), text)["common-accuracy"] == 0.5
    both = one("auroc", "common-accuracy")
    assert (both.own and both.own.labels, both.common and both.common.labels) == (
        ["auroc"],
        ["common-accuracy"],
    )
    assert one("auroc").common is None
    assert one("common-accuracy").own is None


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
@pytest.mark.parametrize(("method", "settings"), [("local-only", {}), ("apfl", {}), ("ditto", {})])
def test_each_clients_model_is_asked_on_the_samples_of_all(
    method: str, settings: dict[str, Any], executor: str, play_toy: Play
) -> None:
    """Its accuracy on them is the mean of its accuracies on the clients', weighted by samples."""
    asked = {"metrics": ("ece", "common-accuracy"), "executor": executor, "not_judged": [2]}
    played = play_toy(method, settings=settings, **asked)
    found = (played.result.client_metrics or {})["common-accuracy"]
    run, space = played.run, played.run.executor.workspace
    context = round_context(run, played.state.round)
    personal = run.hooks.personalise(played.state, context.everybody, context)
    judged = [0, 1, 3, 4, 5]
    pooled = Pooled.of(run.held_out, "test", torch.tensor(judged))
    for client in judged:
        row = personal.models(played.state)[client]
        received = {name: tensor[client] for name, tensor in personal.extras.items()}
        sums = evaluate_model(space, row, pooled, received).sums.sum(dim=0)
        assert found.values[client] == pytest.approx(float(sums[1] / sums[2]), abs=1e-6)
    assert found.values[2] is None
    assert found.higher_is_better is True
    assert len({*found.values}) > 2, "models differ"


def test_one_model_for_all_has_the_accuracy_over_all_samples(play_toy: Play) -> None:
    played = play_toy("fedavg", metrics=("common-accuracy",), eval_every=2)
    summary, curves = played.result.summary, played.result.curves
    assert summary["common-accuracy_mean"] == pytest.approx(summary["accuracy_micro"], abs=1e-6)
    assert summary["common-accuracy_std_clients"] == 0
    assert [value is None for value in curves["common-accuracy"]] == [True, False, False]
    assert played.job.suite.hash() == play_toy("fedavg", eval_every=2).job.suite.hash()


# --- in a run ----------------------------------------------------------------------------------

ASKED = ("auroc", "ece")


def stable(played: Any) -> dict[str, Any]:
    """What of a result does not differ from machine to machine."""
    table = json.loads(played.result.canonical())
    return {key: value for key, value in table.items() if key not in VOLATILE}


def without(table: dict[str, Any], label: str) -> dict[str, Any]:
    """A result without what one metric adds."""
    own = {metric.name for metric in metrics_of(label, True)}
    found = {**table, "warnings": [line for line in table["warnings"] if label not in line]}
    found["summary"] = {k: v for k, v in table["summary"].items() if k not in own}
    found["curves"] = {k: v for k, v in table["curves"].items() if k != label}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedlia"])
def test_metrics_change_nothing_else(method: str, tmp_path: Path) -> None:
    plain = run_of(player(tmp_path / "plain"), method)
    asked = run_of(player(tmp_path / "asked"), method, metrics=ASKED)
    assert torch.equal(plain.state.models, asked.state.models)
    assert plain.job.fingerprint == asked.job.fingerprint
    assert plain.job.suite.hash() == asked.job.suite.hash()
    table = stable(asked)
    assert table.pop("client_metrics").keys() == set(ASKED)
    for label in ASKED:
        table = without(table, label)
    assert table == stable(plain)


@pytest.mark.slow
def test_values_are_those_of_each_client_alone(play_toy: Play) -> None:
    played = play_toy("fedavg", metrics=BUILT_IN, eval_every=2)
    run, space = played.run, played.run.executor.workspace
    found = played.result.client_metrics
    assert found is not None
    assert run.metrics is not None
    for client in range(CLIENTS):
        pooled = Pooled.of(run.held_out, "test", torch.tensor([client]))
        judging = Judging(metrics=run.metrics)
        values = evaluate_model(space, played.personal[client], pooled, judging=judging).values[0]
        for label, value in zip(run.metrics.labels, values.tolist(), strict=True):
            kept = found[label].values[client]
            assert kept == (None if math.isnan(value) else pytest.approx(value, abs=1e-6))
    top = found["top-k:k=1"]
    assert top.values == pytest.approx(list(played.result.clients.headline_values()), abs=1e-6)
    assert (top.name, top.params, top.plugin, top.higher_is_better) == ("top-k", {"k": 1}, "", True)
    assert top.package.startswith("flbench ")
    curve = played.result.curves["top-k:k=1"]
    assert [value is None for value in curve] == [True, False, False]
    assert curve[-1] == played.result.curves["accuracy"][-1]


def test_clients_without_a_value_are_named_and_left_out(play_toy: Play) -> None:
    """On the toy a client holds two labels; the test samples of some are of one label alone."""
    played = play_toy("fedavg", metrics=("auroc",), test_fraction=0.1)
    held = played.run.held_out
    single = [i for i, rows in enumerate(held.splits["test"]) if len(held.y[rows].unique()) == 1]
    assert single, "there is such a client"
    result = played.result
    assert result.client_metrics is not None
    values = result.client_metrics["auroc"].values
    assert [i for i, value in enumerate(values) if value is None] == single
    assert result.summary["auroc_clients"] == CLIENTS - len(single)
    told = ", ".join(map(str, single))
    count = f"its mean counts {CLIENTS - len(single)} of {CLIENTS}"
    assert f"auroc is undefined for clients {told}: {count}" in result.warnings


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "flhc"])
def test_executors_agree_on_metrics(method: str, tmp_path: Path) -> None:
    """With flhc one model is evaluated at first, and several in lanes later."""
    found = [
        run_of(
            player(tmp_path / name), method, metrics=BUILT_IN, executor=name
        ).result.client_metrics
        for name in ("sequential", "vectorised")
    ]
    for label in BUILT_IN:
        one, other = (np.array(kept[label].values, dtype=float) for kept in found)
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_same_metrics(play_toy: Play, tmp_path: Path) -> None:
    from small import resumed

    whole = play_toy("fedavg", metrics=ASKED, headline="validation")
    again = resumed(whole, tmp_path, 2)
    assert stable(again) == stable(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("checkpoint_every_round")
def test_a_metric_that_comes_too_late_is_named(play_toy: Play, tmp_path: Path) -> None:
    whole = play_toy("fedavg", headline="validation")
    assert whole.run.history.chosen is not None
    assert whole.run.history.chosen.round == 2, "validation chooses a round before the last"
    job = replace(whole.job, out=tmp_path / "again")
    run_rounds(*prepare(job, toy_dataset()), last=2)
    suite = job.suite.model_copy(update={"metrics": (metric_of("ece"),)})
    later = replace(job, suite=suite, resume=True)
    run, state = prepare(later, toy_dataset())
    again = Played(run, run_rounds(run, state), later)
    assert again.result.curves["ece"][:2] == [None, None]
    assert again.result.client_metrics is None
    line = "ece is not reported: it was not asked for yet in round 2"
    assert again.result.warnings == [line]


# --- what methods bring -----------------------------------------------------------------------


class Confidence(Metric):
    """Mean probability of the prediction."""

    higher_is_better = None
    total: Tensor
    count: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), "sum")
        self.add_state("count", torch.zeros(()), "sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        self.total += logits.softmax(dim=-1).max(dim=-1).values.sum()
        self.count += len(y)

    def compute(self) -> Tensor:
        return self.total / self.count


@dataclass(frozen=True)
class Confident:
    @fl.hookimpl
    def metrics(self) -> Any:
        return {"confidence": Confidence}


def test_a_method_brings_a_metric_of_its_own(play_toy: Play) -> None:
    played = play_toy(composition(("confident", Confident())), metrics=("ece",))
    found = played.result.client_metrics
    assert found is not None
    assert [*found] == ["ece", "confidence"]
    kept = found["confidence"]
    assert (kept.plugin, kept.package, kept.higher_is_better) == ("confident", "test 0", None)
    assert all(value is not None and 0.25 < value <= 1 for value in kept.values)
    assert played.result.summary["confidence_worst_decile"] is None


class Writes(Confidence):
    """Writes to what it gets."""

    def update(self, logits: Tensor, y: Tensor) -> None:
        super().update(logits.exp_(), y)
        y.zero_()


@dataclass(frozen=True)
class WritesFirst:
    @fl.hookimpl
    def metrics(self) -> Any:
        return {"a": Writes, "b": Confidence}


def test_a_metric_that_writes_to_its_inputs_changes_no_other(play_toy: Play) -> None:
    alone = play_toy(composition(("confident", Confident())), metrics=("f1",)).result
    beside = play_toy(composition(("writes", WritesFirst())), metrics=("f1",)).result
    assert alone.client_metrics is not None
    assert beside.client_metrics is not None
    found = beside.client_metrics
    assert found["b"].values == alone.client_metrics["confidence"].values != found["a"].values
    assert found["f1"].values == alone.client_metrics["f1"].values


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"ece": Confidence}, "metric 'ece' is asked for, and bad brings its own"),
        ({"loss": Confidence}, "metric 'loss': a result has another number of this name"),
        (
            {"a b": Confidence},
            "bad.metrics: expected names of letters, digits and . _ -, got 'a b'",
        ),
        ({"x": 3}, "bad.metrics: 'x': expected a function of the classes, got int"),
        (["x"], "bad.metrics returned list, expected names with functions"),
        ({"x": lambda classes: 3}, "expected a torchmetrics.Metric (update, compute, reset)"),
        ({"x": lambda classes: 1 / 0}, "metric 'x' of 'bad': ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_method_may_not_bring(answer: Any, said: str, play_toy: Play) -> None:
    method = bad(metrics=lambda self: answer)
    with pytest.raises(UserError) as caught:
        play_toy(method, metrics=("ece",))
    assert said in str(caught.value)


def test_two_methods_bring_different_names(play_toy: Play) -> None:
    method = composition(("one", Confident()), ("two", Confident()))
    assert "two.metrics" not in (said := refused(play_toy, method))
    assert said == mentioning("one.metrics", "confidence")


def odd(**changes: Callable[..., Any]) -> ClientMetric:
    """A metric of which some functions are others."""
    kind = type("Odd", (Confidence,), changes)
    return ClientMetric("odd", "odd", {}, "test 0", kind)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (odd(compute=lambda self: torch.ones(4)), "a tensor of shape (4,)"),
        (odd(compute=lambda self: {"x": 1}), "got dict"),
        (odd(update=lambda self, logits, y: 1 / 0), "ZeroDivisionError"),
        (odd(reset=lambda self: None), None),
    ],
)
def test_a_metric_is_tried_before_the_run(metric: ClientMetric, said: str | None) -> None:
    if said is None:  # what is not reset does not change a mean of equal samples: keep a count
        metric = odd(reset=lambda self: None, compute=lambda self: self.count)
        said = "after reset the same samples give 8, before 4"
    with pytest.raises(PluginError, match=r"metric 'odd'") as caught:
        ClientMetrics({"odd": metric}, 4, torch.device("cpu"))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_metric_is_tried_twice_and_the_instance_is_used() -> None:
    made, updated = [], []

    class Counted(Confidence):
        def __init__(self, classes: int) -> None:
            super().__init__(classes)
            made.append(classes)

        def update(self, logits: Tensor, y: Tensor) -> None:
            updated.append(len(y))
            super().update(logits, y)

    metric = ClientMetric("x", "x", {}, "test 0", Counted)
    metrics = ClientMetrics({"x": metric}, 20, torch.device("cpu"))
    assert (made, updated) == ([20], [8, 8]), "as many samples as there are classes, at most 8"
    valued(metrics, (torch.zeros(3, 20), torch.arange(3)))
    assert (made, updated) == ([20], [8, 8, 3])


class Plain:
    """Share of samples of label 0; it is no Module and stays on its device."""

    higher_is_better = 1

    def __init__(self, classes: int) -> None:
        self.counts = [0, 0]

    def update(self, logits: Tensor, y: Tensor) -> None:
        self.counts[0] += int((y == 0).sum())
        self.counts[1] += len(y)

    def compute(self) -> float:
        return self.counts[0] / self.counts[1]

    def reset(self) -> None:
        self.counts = [0, 0]


def test_a_metric_may_be_any_object_with_the_three_functions() -> None:
    metrics = ClientMetrics({"x": ClientMetric("x", "x", {}, "", Plain)}, 3, torch.device("cpu"))
    assert valued(metrics, (THREE, LABELS)) == {"x": pytest.approx(1 / 3)}
    assert metrics.directions == {"x": None}, "neither True nor False"


def test_a_metric_may_be_undefined_for_the_samples_it_is_tried_on() -> None:
    metric = odd(compute=lambda self: torch.tensor(torch.nan))
    metrics = ClientMetrics({"odd": metric}, 4, torch.device("cpu"))
    assert math.isnan(valued(metrics, (torch.zeros(1, 4), torch.zeros(1).long()))["odd"])


def test_a_client_s_samples_are_not_gathered_from_other_processes() -> None:
    def gather(*_: object, **__: object) -> list[Tensor]:
        raise RuntimeError("another process has no samples of this client")

    class Eager(Confidence):
        def __init__(self, classes: int) -> None:
            super().__init__(classes)
            self.dist_sync_fn, self.distributed_available_fn = gather, lambda: True

    metrics = ClientMetrics({"x": ClientMetric("x", "x", {}, "", Eager)}, 2, torch.device("cpu"))
    assert valued(metrics, (THREE, LABELS))["x"] == pytest.approx(2.25 / 3)


def test_random_numbers_that_a_metric_draws_are_its_own(tmp_path: Path) -> None:
    def update(self: Any, logits: Tensor, y: Tensor) -> None:
        torch.manual_seed(3)
        Confidence.update(self, logits, y)

    @dataclass(frozen=True)
    class Draws:
        @fl.hookimpl
        def metrics(self) -> Any:
            return {"odd": type("Odd", (Confidence,), {"update": update})}

    torch.manual_seed(1)
    expected = torch.random.get_rng_state()
    played = player(tmp_path)(composition(("draws", Draws())))
    assert torch.equal(torch.random.get_rng_state(), expected)
    assert any(mentions(line, "torch", "generator") for line in played.said)


# --- what is asked for -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "error", "said"),
    [
        ("eec", UnknownName, "unknown metric 'eec'; did you mean 'ece'?"),
        ("ece:bin=3", UnknownName, "parameter of metric 'ece' 'bin'; did you mean 'bins'?"),
        ("ece:bins=x", BadParameter, "'bins' expects int, default 15; got 'x'"),
        ("ece:bins=0", BadParameter, "'bins'"),
        ("ece:15", BadParameter, "expected NAME:KEY=VALUE, as in top-k:k=3"),
        ("ece:name=x", BadParameter, "expected NAME:KEY=VALUE, as in top-k:k=3"),
    ],
)
def test_a_name_that_is_none_is_one_line(label: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        find_metric(metric_of(label))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("label", "error", "said"),
    [
        ("MulticlassF2Score", UnknownName, "unknown class of torchmetrics 'MulticlassF2Score'"),
        ("F1Scores", UnknownName, "did you mean 'F1Score'?"),
        ("Metric", UnknownName, "unknown class of torchmetrics"),
        ("ConfusionMatrix", UnknownName, "unknown class of torchmetrics"),
        ("torchmetrics.nowhere.F1Score", UnknownName, "unknown class of torchmetrics"),
        ("torchmetrics.multimodal.CLIPScore", UnknownName, "unknown class of torchmetrics"),
        ("torchmetrics.multimodal", UnknownName, "unknown class of torchmetrics"),
        ("torchmetrics.classification.F1Score.F1Score", UnknownName, "unknown class of"),
        ("other.far.F1Score", UnknownName, "unknown class of torchmetrics"),
        ("MulticlassF1Score:averag=macro", UnknownName, "did you mean 'average'?"),
        ("F1Score:task=binary", UnknownName, "parameter of metric 'F1Score' 'task'"),
        ("F1Score:dist_sync_fn=print", UnknownName, "(it takes: average, ignore_index, top_k)"),
        ("F1Score:average=none", BadParameter, "'average' expects 'micro' | 'macro'"),
        ("F1Score:top_k=9999", BadParameter, "less than or equal to 1000"),
        ("F1Score:top_k=true", BadParameter, "'top_k' expects int"),
        ("F1Score:top_k=x", BadParameter, "'top_k' expects a number, got 'x'"),
        ("AUROC:thresholds=1000000000", BadParameter, "less than or equal to 1000"),
        ("AUROC:thresholds=[0.1, 0.2]", BadParameter, "'thresholds' expects"),
        ("FBetaScore:beta=inf", BadParameter, "'beta' expects float"),
        ("FBetaScore:beta=nan", BadParameter, "'beta' expects float"),
        ("top-k:k=1000000000", BadParameter, "'k'"),
        ("ece:bins=1000000000", BadParameter, "'bins'"),
    ],
)
def test_only_classes_of_the_table_with_bounded_parameters_are_taken(
    label: str, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_metrics, "import_module", lambda name: pytest.fail(name))
    with pytest.raises(error) as caught:
        one(label)
    assert said in str(caught.value)


class Fine(Plain):
    """It takes what torchmetrics' classes take."""

    def __init__(self, task: str, num_classes: int, top_k: int = 1, **kwargs: object) -> None:
        super().__init__(num_classes)
        self.given = task, num_classes, top_k


def test_one_module_is_imported_whatever_the_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capital letter or `torchmetrics.` tells classes from names of installed metrics."""
    asked = []

    def imported(path: str) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(MulticlassF1Score=Fine)

    monkeypatch.setattr(client_metrics, "import_module", imported)
    kind = find_metric(Component(name="MulticlassF1Score", top_k=3))
    assert (kind.label, kind.package.split()[0]) == ("MulticlassF1Score:top_k=3", "torchmetrics")
    assert kind.make(7).given == ("multiclass", 7, 3)
    find_metric(Component(name="torchmetrics.MulticlassF1Score"))
    find_metric(Component(name="torchmetrics.classification.MulticlassF1Score"))
    assert asked == ["torchmetrics.classification"] * 3
    with pytest.raises(UnknownName, match="unknown metric"):
        find_metric(Component(name="fine"))
    with pytest.raises(UnknownName, match=mention("MulticlassF1Score", "torchmetrics")):
        find_metric(Component(name="MulticlassRecall"))
    with pytest.raises(UnknownName, match="parameter of metric 'MulticlassF1Score'"):
        find_metric(Component(name="MulticlassF1Score", average="macro"))


@pytest.mark.parametrize("name", ["F1Score", "Precision", "torchmetrics.Recall", "Accuracy"])
def test_a_short_name_says_how_labels_are_averaged(name: str) -> None:
    """torchmetrics takes micro under the short name and macro under the long one."""
    short = name.rpartition(".")[2]
    asked = RunRequest(methods=("fedavg",), suites=("iid",), metrics=(name,))
    with pytest.raises(BadParameter, match=mention(f"{short}:average=macro", f"Multiclass{short}")):
        resolve(asked, SweepProgress())
    for said in (f"{name}:average=macro", f"Multiclass{short}", "AUROC", "f1"):
        resolve(replace(asked, metrics=(said,)), SweepProgress())
    assert torchmetrics_classes.checked_params(name, {}) == {}, "a stored result may have it"


@pytest.mark.slow  # imports all of torchmetrics
@pytest.mark.filterwarnings("ignore")  # of labels that a sample lacks
def test_every_class_of_the_table_gives_one_number_with_every_word() -> None:
    """And takes each of its parameters by the name in the table."""
    given = {"n_bins": 7, "thresholds": 5, "top_k": 1, "beta": 2.0, "ignore_index": 1}
    x, y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    for name, allowed in torchmetrics_classes.TASKS["classes"].items():
        for key, hint in allowed.kinds.items():
            words = [word for word in get_args(hint) if isinstance(word, str)]
            for value in words or [given.get(key, True)]:
                if key != "weights":
                    beta = ":beta=1" if "beta" in allowed.kinds and key != "beta" else ""
                    asked = name in torchmetrics_classes.UNLIKE and key != "average"
                    label = f"{name}:{key}={value}{beta}{':average=macro' * asked}"
                    (found,) = valued(one(label, classes=3), (x, y)).values()
                    assert math.isfinite(found), (name, key)


def test_a_metric_that_would_fill_the_memory_is_not_made() -> None:
    """2,000 labels and 50,257: a matrix of the first has 4 million entries."""
    with pytest.raises(BadParameter, match="2,525,766,049 numbers for 50,257 labels"):
        torchmetrics_classes.refuse_too_large("CohenKappa", {}, 50_257)
    with pytest.raises(BadParameter, match="201,028,000 numbers"):
        torchmetrics_classes.refuse_too_large("MulticlassAUROC", {"thresholds": 1000}, 50_257)
    torchmetrics_classes.refuse_too_large("CohenKappa", {}, 2000)
    torchmetrics_classes.refuse_too_large("AUROC", {}, 50_257)


def test_more_answers_than_labels_are_refused() -> None:
    with pytest.raises(PluginError, match=mention("top-k", "ValueError", "k is 5, there are 2")):
        one("top-k")


def test_the_metric_of_the_docs_by_hand() -> None:
    """Losses -log .6, -log .9 and -log .25, of which the last is capped."""
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    (code,) = re.findall(r"```python\n(.+?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    names = {"torch": torch, "F": torch.nn.functional, "Metric": Metric}
    exec(code, names)
    make: Any = names["nll"]
    metric = ClientMetric("nll", "nll", {}, "docs 0", lambda classes: make(classes, cap=1.0))
    metrics = ClientMetrics({"nll": metric}, 2, torch.device("cpu"))
    expected = (-math.log(0.6) - math.log(0.9) + 1.0) / 3
    assert valued(metrics, (THREE, LABELS))["nll"] == pytest.approx(expected)
    assert metrics.directions == {"nll": False}


def test_a_suite_names_metrics_and_its_hash_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    lines = ("version = 1", 'summary = "mine"', 'dataset = "digits"', "clients = 6", "rounds = 1")
    text = "\n".join([*lines, 'partition = "iid"', 'model = "mlp"'])
    path.write_text(text, encoding="utf-8")
    plain = load_suite(str(path))
    asked = 'metrics = ["ece:bins=3", { name = "auroc", average = "weighted" }]'
    path.write_text(f"{text}\n{asked}\n", encoding="utf-8")
    suite = load_suite(str(path))
    assert [one.label for one in suite.metrics] == ["ece:bins=3", "auroc:average=weighted"]
    assert suite.hash() == plain.hash()


def test_a_metric_is_written_in_one_way() -> None:
    text = "x:a=weighted:b=none:c=true:d=0.5"
    assert metric_of(text).params == {"a": "weighted", "b": None, "c": True, "d": 0.5}
    assert metric_of(text).label == text


def test_the_built_in_metrics_are_typed() -> None:
    assert isinstance(classification.ece(3), Metric)


# --- clients that are not judged ---------------------------------------------------------------


@pytest.mark.slow
def test_clients_that_are_not_judged_train_and_are_in_no_figure(tmp_path: Path) -> None:
    every = player(tmp_path / "every")("fedavg", metrics=("ece",), target=0.1)
    some = player(tmp_path / "some")("fedavg", metrics=("ece",), target=0.1, not_judged="1, 4")
    assert torch.equal(every.state.models, some.state.models), "they train"
    left = [0, 2, 3, 5]
    one, other = every.result, some.result
    assert other.clients.test == [n if i in left else 0 for i, n in enumerate(one.clients.test)]
    assert [other.clients.correct[i] for i in left] == [one.clients.correct[i] for i in left]
    accuracies = one.clients.headline_values()[left]
    assert other.summary["accuracy_mean"] == pytest.approx(accuracies.mean())
    assert other.summary["accuracy_worst"] == pytest.approx(accuracies.min())
    assert other.curves["accuracy"][-1] == pytest.approx(accuracies.mean(), abs=1e-6)
    pairs = zip(every.last.validation_correct, every.last.validation_tested, strict=True)
    shares = [right / asked for i, (right, asked) in enumerate(pairs) if i in left]
    validated = other.curves["accuracy_validation"][-1]
    assert validated == pytest.approx(np.mean(shares), abs=1e-6), "validation chooses rounds"
    assert one.client_metrics is not None
    assert other.client_metrics is not None
    values = one.client_metrics["ece"].values
    expected = [value if i in left else None for i, value in enumerate(values)]
    assert other.client_metrics["ece"].values == expected
    assert other.clients.validation == one.clients.validation
    assert other.not_judged == other.suite["not_judged"] == [1, 4]
    for name in ("mb_per_client", "megabits_to_target"):
        assert other.summary[name] == one.summary[name], "they are clients all the same"
    assert not [line for line in other.warnings if "undefined" in line]


def test_nobody_is_left_out_by_default(play_toy: Play) -> None:
    played = play_toy("fedavg")
    assert "not_judged" not in played.job.suite.settings()
    assert "not_judged" not in played.result.suite
    assert played.result.client_metrics is None


@pytest.mark.slow
def test_what_is_judged_adapts_alone(tmp_path: Path) -> None:
    """Personal models, their adaptation and further models of those that are judged."""

    @dataclass(frozen=True)
    class Adapts:
        @fl.hookimpl
        def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
            stage = fl.Stage("train", clients, 1, name="adapt")
            home = state.membership.home[clients]
            models = state.models[home]
            other = fl.Personal(row=home)
            return fl.Personal(params=models, adaptation=stage, others={"plain": other})

    method = composition(("adapts", Adapts()))
    every = player(tmp_path / "every")(method, ft_epochs=1).last
    some = player(tmp_path / "some")(method, ft_epochs=1, not_judged=[0]).last
    assert some.correct[1:] == every.correct[1:]
    assert some.correct[0] == some.tested[0] == 0
    assert set(some.others) == {"plain", "fine_tuned"}


def test_a_choice_of_clients_keeps_what_belongs_to_them() -> None:
    stage = fl.Stage("train", torch.arange(3), torch.tensor([7, 8, 9]))
    personal = fl.Personal(
        row=torch.tensor([4, 5, 6]), adaptation=stage, extras={"a": torch.tensor([1, 2, 3])}
    )
    chosen = personal.select(torch.tensor([0, 2]))
    assert chosen.row is not None
    assert chosen.adaptation is not None
    found = chosen.row.tolist(), chosen.adaptation.clients.tolist(), chosen.extras["a"].tolist()
    assert found == ([4, 6], [0, 2], [1, 3])
    assert torch.equal(torch.as_tensor(chosen.adaptation.epochs), torch.tensor([7, 9]))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([6], "clients 0 to 5 expected in training, got 6"),
        ("4-40000000", "clients 0 to 5 expected in training, got 6"),
        ("7-9000000000000000000", "clients 0 to 5 expected in training, got 7"),
        ("0-5", "at least one client that is judged expected"),
        ("first", "client ids expected, such as [0, 1] or '0-3, 7'"),
        ([-1], "greater than or equal to 0"),
    ],
)
def test_ids_that_are_none_are_one_line(value: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    lines = ("version = 1", 'summary = "mine"', 'dataset = "digits"', "clients = 6", "rounds = 1")
    text = "\n".join([*lines, 'partition = "iid"', 'model = "mlp"'])
    path.write_text(text, encoding="utf-8")
    assert load_suite(str(path), overrides={"not_judged": "1-2, 4"}).judged == [0, 3, 5]
    with pytest.raises(BadParameter) as caught:
        load_suite(str(path), overrides={"not_judged": value})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_of_a_data_set_has_fewer_clients(play_toy: Play) -> None:
    from toy import toy_suite

    part = toy_suite(not_judged=[5]).model_copy(update={"clients": 4})
    with pytest.raises(BadParameter, match=mention("toy", "not_judged", "0 to 3")):
        play_toy("fedavg", suite=part, dataset=toy_dataset())


# --- as typed ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_metrics_are_asked_for_on_the_command_line(tmp_path: Path, typed: Typed) -> None:
    site = tmp_path / "site"
    text = (
        "from flbench.client_metrics.classification import TopK\n"
        "def first(classes: int, k: int = 1) -> TopK:\n    'First.'\n    return TopK(k)\n"
    )
    install(site, "mine", "[flbench.metrics]\nfirst = mine_m:first\n", mine_m=text)
    words = ("run", "-p", "fedavg", "-s", "feature-shift", "--rounds", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        asked = (*words, "--metric", "ece,first:k=2", "--metric", "auroc")
        code, out, err = typed(*asked, "--set", "not_judged=0-1")
        assert code == 0, err
        assert "metrics of clients" in out
        assert "first:k=2" in out
        path = next(tmp_path.rglob("seed-0.json"))
        result = json.loads(path.read_text(encoding="utf-8"))
        assert [*result["client_metrics"]] == ["auroc", "ece", "first:k=2"]
        assert result["client_metrics"]["first:k=2"]["package"] == "mine 1.0"
        assert typed("verify", str(path))[0] == 0, "it is played again with its metrics"
        shown = typed("show", "result", str(path))[1]
        assert "first:k=2 of mine 1.0" in shown
        assert "not judged: clients 0, 1" in shown
        again = typed(*asked, "--metric", "balanced-accuracy", "--set", "not_judged=0-1")[2]
        assert mentions(again, "balanced-accuracy", "--force")
    lost = typed("verify", str(path))
    assert lost[0] == 1
    assert "unknown metric 'first'" in lost[2]
