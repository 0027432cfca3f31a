"""Whole runs where numbers or labels are predicted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import pytest
import torch
from mentions import mention
from toy import composition

import flbench as fl
from flbench.core.dataset import Dataset
from flbench.engine.options import EngineOptions
from flbench.errors import BadParameter, Undefined, UserError
from flbench.federation.loading import check
from flbench.federation.target_scale import SCALE, SUMS
from flbench.results.schema import Result
from flbench.run.composition import compose
from flbench.run.setup import refuse_target
from flbench.submission.consistency import faults
from flbench.tasks import TASKS, TaskName
from flbench.testing.federations import labels, numbers
from flbench.testing.small_run import SmallRun, run_small, small_suite

OTHERS = ("small-numbers", "small-labels")
FEDAVG = compose("fedavg")


def played(
    dataset: str, method: str = "fedavg", executor: str = "sequential", **changes: object
) -> SmallRun:
    engine = EngineOptions(executor=executor, accelerator="cpu")
    return run_small(compose(method), small_suite(dataset=dataset, **changes), engine=engine)


# --- one round by hand ------------------------------------------------------------------------


def test_a_round_of_fedavg_is_that_of_numpy() -> None:
    """A linear model, one step of all samples of each client, averaged by samples."""
    local = {"epochs": 1, "batch_size": 1000, "lr": 0.1, "momentum": 0.0}
    run = played(
        "small-numbers", model={"name": "logistic-regression"}, rounds=1, participation=1.0,
        local=local,
    )  # fmt: skip
    samples, layout = run.run.executor.samples, run.run.context.layout
    w, b = (
        run.run.context.initial[slot.start : slot.stop].double().numpy() for slot in layout.slots
    )
    x, y = samples.x.double().numpy(), samples.y[:, 0].double().numpy()
    moved, counts = [], []
    for rows in samples.splits["train"]:
        own, wanted = x[rows.numpy()], y[rows.numpy()]
        error = own @ w + b - wanted
        moved.append(np.append(w - 0.1 * 2 * error @ own / len(own), b - 0.1 * 2 * error.mean()))
        counts.append(len(own))
    mean = np.average(moved, axis=0, weights=counts)
    assert run.state.models[0].tolist() == pytest.approx(mean.tolist(), abs=1e-6)

    held = run.run.held_out
    x, y = held.x.double().numpy(), held.y[:, 0].double().numpy()
    expected = []
    for rows in held.splits["test"]:
        error = x[rows.numpy()] @ mean[:-1] + mean[-1] - y[rows.numpy()]
        expected.append(np.sqrt((error**2).mean()))
    result = run.result
    assert result.clients.values == pytest.approx(expected, abs=1e-5)
    assert result.clients.headline_values().tolist() == pytest.approx(expected, abs=1e-5)
    assert result.summary["rmse_mean"] == pytest.approx(np.mean(expected), abs=1e-5)
    assert result.summary["rmse_worst"] == pytest.approx(np.max(expected), abs=1e-5)
    assert result.curves["rmse"] == pytest.approx([np.mean(expected)], abs=1e-5)
    assert result.summary["loss_mean"] == pytest.approx(np.mean(np.square(expected)), abs=1e-5)


# --- results ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", OTHERS)
def test_a_result_says_its_task_and_has_its_headline(dataset: str) -> None:
    run = played(dataset, unseen=0.34, unseen_epochs=1, own_models=True, ft_epochs=1)
    result = Result.model_validate_json(run.result.canonical())
    task = result.headline
    assert result.task == task.name == run.run.task
    assert result.canonical() == run.result.canonical()
    assert '"correct"' not in result.canonical()
    names = [task.named(name) for name in (
        "accuracy_mean", "accuracy_own_mean", "accuracy_fine_tuned", "accuracy_last",
        "accuracy_chosen", "unseen_accuracy", "unseen_accuracy_tuned", "accuracy_worst_decile",
    )]  # fmt: skip
    assert all(result.summary[name] is not None for name in names)
    assert not {"ece", "kld", "accuracy_mean", "accuracy_micro"} & result.summary.keys()
    assert not {name for name in result.curves if name.startswith("accuracy")}
    assert {task.headline, task.named("accuracy_validation")} <= result.curves.keys()
    assert list(faults(result)) == []
    assert result.client_metrics is not None
    assert list(result.client_metrics) == list(
        {"numbers": ["r2"], "labels": ["micro-f1"]}[task.name]
    )
    assert result.metrics()[task.named("accuracy_mean")] == result.summary[names[0]]


@pytest.mark.parametrize("dataset", OTHERS)
def test_a_model_learns(dataset: str) -> None:
    curve = played(dataset, rounds=8, participation=1.0).run.history.curves[
        {"small-numbers": "rmse", "small-labels": "map"}[dataset]
    ]
    task = TASKS["numbers" if dataset == "small-numbers" else "labels"]
    assert task.gain(curve[-1], curve[0]) > 0.05


def test_the_best_on_validation_is_the_lowest_error() -> None:
    """A learning rate that grows spoils the last rounds."""
    run = played("small-numbers", rounds=6, participation=1.0, **{"local.lr": 0.3})
    curve = run.run.history.curves["rmse_validation"]
    chosen = run.run.history.chosen
    assert chosen is not None
    assert chosen.round == curve.index(min(curve)) + 1


def test_what_tells_the_scale_is_counted() -> None:
    run = played("small-numbers")
    totals = run.run.ledger.totals
    assert (totals["up"][SUMS], totals["down"][SCALE]) == (6 * 2 * 4, 6 * 2 * 4)
    scale = run.run.scale
    assert scale is not None
    (note,) = run.result.notes
    assert note == {
        "round": 1,
        "name": SCALE,
        "value": {"mean": scale.mean.tolist(), "deviation": scale.deviation.tolist()},
    }
    alone = played("small-numbers", method="local-only").run.ledger.totals
    assert alone == {"up": {SUMS: 48, "model": 0}, "down": {SCALE: 48, "model": 0}, "peer": {}}
    assert SUMS not in played("small-labels").run.ledger.totals["up"]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", OTHERS)
def test_lanes_and_one_by_one_agree(dataset: str) -> None:
    more = {"rounds": 4, "unseen": 0.34, "unseen_epochs": 1, "own_models": True}
    one, other = (
        played(dataset, "fedavg", executor, **more) for executor in ("sequential", "vectorised")
    )
    assert other.run.executor.name == "vectorised"
    moved = (one.state.models - one.run.context.initial).norm()
    assert (one.state.models - other.state.models).norm() < 1e-4 * moved
    for name in ("values", "validation_values", "own_values", "loss"):
        assert getattr(one.last, name) == pytest.approx(getattr(other.last, name), abs=1e-4)
    assert one.result.unseen.values == pytest.approx(other.result.unseen.values, abs=1e-4)


@pytest.mark.slow
def test_a_resumed_run_is_the_same() -> None:
    suite = small_suite(dataset="small-numbers")
    whole = run_small(FEDAVG, suite)
    half = run_small(FEDAVG, suite, last=1)
    rest = run_small(FEDAVG, suite, checkpoint=half.checkpoint)
    assert rest.stable == whole.stable


# --- methods, partitions, metrics that need classes -------------------------------------------


@dataclass(frozen=True)
class Reads:
    """Reads what samples without classes do not have."""

    what: Annotated[str, "an attribute of the context"] = "classes"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> None:
        """Read it."""
        {
            "classes": lambda: ctx.classes,
            "label_counts": lambda: ctx.label_counts,
            "own_label_counts": lambda: ctx.own_label_counts(ctx.everybody),
            "logits": lambda: ctx.logits(ctx.initial[None], ctx.client_data(0)[0]),
        }[self.what]()


@pytest.mark.parametrize("what", ["classes", "label_counts", "own_label_counts", "logits"])
def test_who_looks_at_classes_is_undefined_without_them(what: str) -> None:
    suite = small_suite(dataset="small-numbers")
    with pytest.raises(Undefined, match=mention("reads", "numbers")):
        run_small(composition(("reads", Reads(what))), suite, last=0)
    run_small(composition(("reads", Reads(what))), small_suite(), last=0)


@dataclass(frozen=True)
class Declares:
    """FedAvg that is for classes alone."""

    tasks: ClassVar[tuple[str, ...]] = ("classes",)

    @fl.hookimpl
    def setup(self) -> None:
        """Nothing."""


def test_a_method_that_declares_classes_is_undefined_on_others() -> None:
    for name, refused in (("small-labels", True), ("small", False)):
        method = replace(composition(("own", Declares())), tasks=(("own", ("classes",)),))
        suite = small_suite(dataset=name)
        if refused:
            with pytest.raises(Undefined, match=mention("own", "classes", "labels")):
                run_small(method, suite, last=0)
        else:
            run_small(method, suite, last=0)


def test_the_declaration_is_read_from_the_class() -> None:
    assert compose("fedem+fedprox").tasks == (("fedem", ("classes",)),)
    assert compose("fedavg").tasks == ()


@pytest.mark.parametrize(
    "partition",
    [
        {"name": "dirichlet"}, {"name": "label-skew"}, {"name": "label-groups", "groups": 2},
        {"name": "primary-secondary"}, {"name": "by-domain", "per_label": 3},
    ],
)  # fmt: skip
def test_partitions_by_classes_say_so(partition: dict[str, object]) -> None:
    with pytest.raises(UserError, match=mention(str(partition["name"]), "numbers", "iid")):
        run_small(FEDAVG, small_suite(dataset="small-numbers", partition=partition), last=0)


@pytest.mark.parametrize("partition", ["iid", "by-domain"])
@pytest.mark.parametrize("dataset", OTHERS)
def test_other_partitions_divide_them(dataset: str, partition: str) -> None:
    run = run_small(FEDAVG, small_suite(dataset=dataset, partition={"name": partition}), last=0)
    assert run.run.context.clients == 6


def test_clients_that_are_domains_divide_them() -> None:
    suite = small_suite(dataset="small-numbers", clients=2, partition={"name": "natural"})
    assert run_small(FEDAVG, suite, last=0).run.context.samples.tolist() == [22, 22]


def test_metrics_are_those_of_the_task() -> None:
    asked = {"metrics": ["mae", "PearsonCorrCoef", "R2Score"]}
    result = played("small-numbers", **asked).result
    assert list(result.client_metrics) == ["r2", "mae", "PearsonCorrCoef", "R2Score"]
    pairs = zip(*(result.client_metrics[one].values for one in ("r2", "R2Score")), strict=True)
    assert all(own == pytest.approx(other, abs=1e-4) for own, other in pairs)
    found = played("small-labels", metrics=["F1Score:average=micro"]).result.client_metrics
    assert found["F1Score:average=micro"].values == pytest.approx(
        found["micro-f1"].values, abs=1e-6
    )
    with pytest.raises(BadParameter, match=mention("f1", "classes", "numbers")):
        played("small-numbers", metrics=["f1"])
    with pytest.raises(UserError, match=mention("MulticlassF1Score")):
        played("small-numbers", metrics=["MulticlassF1Score"])


@pytest.mark.parametrize(
    ("y", "classes", "task", "facts"),
    [
        (torch.tensor([1.0, float("nan"), 2.0]), 1, "numbers", ("sample 1", "finite")),
        (torch.tensor([1.0, 1.0, 1.0]), 1, "numbers", ("1", "all samples")),
        (torch.zeros(3, 2), 1, "numbers", ("(3, 2)", "(m, 1)")),
        (torch.zeros(3).long(), 1, "numbers", ("torch.int64", "torch.float32")),
        (torch.tensor([[1, 0], [0, 2], [0, 0]]), 2, "labels", ("0..2", "0 or 1")),
        (torch.tensor([[1, 0], [0, 0], [0, 0]]), 2, "labels", ("'1'", "no sample")),
        (torch.tensor([[1, 1], [0, 1], [0, 1]]), 2, "labels", ("'1'", "all samples")),
        (torch.tensor([1, 0, 1]), 2, "labels", ("(3,)", "(m, 2)")),
        (torch.tensor([1, 0, 1]), 2, "ranks", ("ranks", "classes, numbers, labels")),
    ],
)
def test_wrong_targets_are_refused(
    y: torch.Tensor, classes: int, task: str, facts: tuple[str, ...]
) -> None:
    data = Dataset("made", torch.zeros(3, 2), y, classes, task=task)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=mention("made", *facts)):
        check("made", data)


def test_right_targets_pass() -> None:
    for data in (numbers(), labels(), replace(labels(), y=labels().y.bool())):
        check("made", data)
    pair = torch.stack([numbers().y, -numbers().y], dim=1)
    check("made", replace(numbers(), y=pair, classes=2))


def test_several_numbers_and_true_or_false_are_learnt() -> None:
    pair = torch.stack([numbers().y, -3 * numbers().y + 1], dim=1)
    data = replace(numbers(), y=pair, classes=2)
    run = run_small(FEDAVG, small_suite(dataset="small-numbers"), data)
    assert run.run.context.outputs == 2
    assert run.result.summary["rmse_mean"] > 0
    same = run_small(
        FEDAVG, small_suite(dataset="small-labels"), replace(labels(), y=labels().y.bool())
    )
    plain = run_small(FEDAVG, small_suite(dataset="small-labels"))
    assert torch.equal(same.state.models, plain.state.models)


def test_periods_change_numbers_too() -> None:
    change = [{"change": "exchange", "start": 2}]
    run = played("small-numbers", rounds=3, participation=1.0, periods=change)
    assert run.result.summary["rmse_period_2"] is not None
    swap = [{"change": "swap-labels", "start": 2, "labels": [[0, 1]]}]
    with pytest.raises(UserError, match=mention("periods", "classes")):
        played("small-numbers", periods=swap)


@pytest.mark.parametrize(
    ("task", "target", "refused"),
    [("classes", 1.0, 0), ("classes", 1.2, 1), ("labels", 1.2, 1), ("numbers", 1.2, 0)],
)
def test_a_target_is_a_headline_that_there_can_be(
    task: TaskName, target: float, refused: int
) -> None:
    with pytest.raises(BadParameter, match="at most 1") if refused else nullcontext():
        refuse_target(task, target)
