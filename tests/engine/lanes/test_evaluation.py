"""Models that are evaluated in lanes, each on its own samples, give the table of one by one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from evaluated_modules import Fails, Looks, Other, different, module_of
from mentions import mention
from torch import Tensor, nn
from toy import CLIENTS, Play, Played, plain_work, same_evaluations

from flbench import ClientModule, Personal
from flbench.engine.client_metrics import ClientMetrics, find_metric
from flbench.engine.lanes import evaluation as lane_evaluation
from flbench.engine.lanes.evaluation import (
    OWN,
    PREDICTIONS,
    SAME,
    TOGETHER,
    PooledLanes,
    call_of_many,
    evaluate_many,
    on_their_own_samples,
    passes,
)
from flbench.engine.model_evaluation import CHUNK, Judged, Judging, evaluate_model
from flbench.engine.options import EngineOptions
from flbench.engine.recording.program import USES
from flbench.errors import PluginError
from flbench.federation.federation import Samples
from flbench.federation.pooled import Pooled
from flbench.federation.row_lists import RowLists
from flbench.run import evaluation
from flbench.run.evaluation import evaluate
from flbench.run.history import Evaluation
from flbench.suite import Component


class Counts:
    """Counts the models that are evaluated one by one."""

    alone = 0


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*args: Any, **kwargs: Any) -> Judged:
        Counts.alone += 1
        return evaluate_model(*args, **kwargs)

    monkeypatch.setattr(evaluation, "evaluate_model", count)


def ragged(pool: Samples) -> Samples:
    """The test samples, of which clients have one, two or three."""
    lists = [rows[: 1 + i % 3] for i, rows in enumerate(pool.splits["test"])]
    return Samples(pool.x, pool.y, {"test": RowLists.of(lists)})


def judged(
    played: Played, personal: Personal, *, lanes: bool | None = None, **more: Any
) -> Evaluation:
    """An evaluation of all clients, in lanes or one by one; None = as the last one."""
    run, space = played.run, played.run.executor.workspace
    if lanes is not None:
        space.compared = set() if lanes else None
    Counts.alone = 0
    held, clients = ragged(run.held_out), torch.arange(CLIENTS)
    return evaluate(run.executor, personal, played.state, held, clients, plain_work, **more)


def alike(played: Played, personal: Personal, **more: Any) -> Evaluation:
    """The evaluation in lanes, which is that of models one by one up to rounding."""
    alone = judged(played, personal, lanes=False, **more)
    assert Counts.alone == 2 * len(personal.params if personal.params is not None else [])
    found = judged(played, personal, lanes=True, **more)
    assert played.run.executor.workspace.compared
    assert Counts.alone == 1, "one is a check"
    assert found.loss == pytest.approx(alone.loss, rel=1e-5)
    assert len(set(found.loss)) == CLIENTS, "all models differ"
    assert found.ece == pytest.approx(alone.ece, rel=1e-5)
    same = {"loss": [], "ece": 0.0, "client_metrics": {}}
    assert replace(found, **same) == replace(alone, **same)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("predictions", [PREDICTIONS, 8])
def test_models_in_lanes_are_judged_as_one_by_one(
    play_toy: Play, predictions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have different numbers of samples, so some are filled up; once in several passes."""
    monkeypatch.setattr(lane_evaluation, "PREDICTIONS", predictions)
    played = play_toy("local-only", executor="vectorised", rounds=1)
    alike(played, Personal(params=different(played.run, CLIENTS)))


def test_a_run_evaluates_in_lanes(play_toy: Play) -> None:
    """It has the accuracies of the other executor."""
    alone = play_toy("local-only", executor="sequential", rounds=2)
    assert Counts.alone > 0
    Counts.alone = 0
    lanes = play_toy("local-only", executor="vectorised", rounds=2)
    assert Counts.alone == 1
    same_evaluations(lanes, alone)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def test_a_cpu_evaluates_other_networks_one_by_one(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_toy("local-only", net=normed, executor="vectorised", rounds=1)
    personal = Personal(params=different(played.run, CLIENTS))
    judged(played, personal, lanes=True)
    assert Counts.alone == 2 * CLIENTS
    monkeypatch.setitem(TOGETHER, "cpu", 3)
    alike(played, personal)


@pytest.mark.slow
def test_one_by_one_is_the_rule_of_the_other_executor(play_toy: Play) -> None:
    played = play_toy("local-only", executor="sequential", rounds=1)
    judged(played, Personal(params=different(played.run, CLIENTS)), lanes=True)
    assert Counts.alone == 2 * CLIENTS


class Mixed(ClientModule):
    """Predicts and measures with all that a module knows of its client and its model."""

    def predict(self, x: Tensor) -> Tensor:
        bias = (self.start[0] + self.row()[2]) * torch.eye(4)[1]
        return self(x) * self.received["scale"] + bias * x[:, :1].abs()

    def measure(self, logits: Tensor, y: Tensor) -> Tensor:
        table = super().measure(logits, y)
        return table + torch.eye(3)[0] * next(self.parameters()).square().sum()


class WithScale(Mixed):
    """Without a scale it is 1, as in the run itself."""

    def predict(self, x: Tensor) -> Tensor:
        if "scale" not in self.received:
            self.received["scale"] = torch.ones(())
        return super().predict(x)


def test_each_model_has_what_its_client_received(play_toy: Play) -> None:
    played = play_toy(module_of(WithScale), executor="vectorised", rounds=1)
    scale = 1 + torch.arange(CLIENTS) / 7
    alike(played, Personal(params=different(played.run, CLIENTS), extras={"scale": scale}))
    module = played.run.executor.workspace.module
    assert dict(module.received) == {"scale": scale[-1]}
    assert torch.equal(module.row(), module.start)


def test_a_bank_and_labels_of_ones_own(play_toy: Play) -> None:
    """Two groups share a model each; what counts is another label, and some samples do not."""
    played = play_toy("local-only", executor="vectorised", rounds=1)
    bank = different(played.run, 2)
    state = replace(played.state, models=bank)
    played = replace(played, state=state)

    def wanted(y: Tensor) -> Tensor:
        return torch.where(y == 0, -100, (y + 1) % 4)

    row = torch.arange(CLIENTS) % 2
    other = Personal(row=row, labels=wanted)
    personal = Personal(params=bank[row], others={"other": other})
    alone = judged(played, personal, lanes=False)
    found = judged(played, personal, lanes=True)
    assert Counts.alone == 1
    assert found.others == alone.others
    assert 0 < (found.others["other"] or 0) < 1


def test_metrics_of_each_client(play_toy: Play) -> None:
    played = play_toy("local-only", executor="vectorised", rounds=1)
    asked = find_metric(Component(name="MulticlassF1Score", average="macro"))
    metrics = ClientMetrics({"f1": asked}, 4, torch.device("cpu"))
    personal = Personal(params=different(played.run, CLIENTS))
    alone = judged(played, personal, lanes=False, metrics=metrics)
    found = judged(played, personal, lanes=True, metrics=metrics)
    assert Counts.alone == 1
    assert found.client_metrics == alone.client_metrics
    assert len(set(found.client_metrics["f1"].values)) > 1


def test_samples_of_several_clients_count_for_each(play_toy: Play) -> None:
    """A model of two clients that share samples, one of none, and one of one."""
    played = play_toy("local-only", rounds=1)
    space, pool = played.run.executor.workspace, played.run.held_out
    first, second, *_ = pool.splits["test"]
    none = first[:0]
    lists = [first, torch.cat([second, first[:2]]), none, second]
    samples = Samples(pool.x, pool.y, {"test": RowLists.of(lists)})
    clients = [torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([3])]
    rows = different(played.run, 3)
    lanes = PooledLanes.of(samples, "test", torch.cat(clients), [2, 1, 1])
    found = on_their_own_samples(space, rows, lanes, {}, judging := Judging(bins=5))
    for one, row, ids in zip(found, rows, clients, strict=True):
        alone = evaluate_model(space, row, Pooled.of(samples, "test", ids), judging=judging)
        torch.testing.assert_close(one.sums, alone.sums, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(one.calibration, alone.calibration, rtol=1e-6, atol=1e-6)
    assert [int(n) for one in found for n in one.sums[:, 2]] == [len(rows) for rows in lists]


@pytest.fixture
def python_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an entry for each pass that is made by the module's Python."""
    calls: list[int] = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return call_of_many(*args, **kwargs)

    monkeypatch.setattr(lane_evaluation, "call_of_many", counting)
    return calls


class Scale(nn.Module):
    """Its output depends on a number that is no tensor."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def test_passes_that_come_often_are_programs(play_toy: Play, python_calls: list[int]) -> None:
    """They say the same to the last bit, and follow what a hook sets."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), Scale())

    played = play_toy("local-only", net=net, executor="vectorised", rounds=1)
    personal = [Personal(params=different(played.run, CLIENTS)) for _ in range(2)]
    personal[1].params.mul_(1.1)  # type: ignore[union-attr]
    by_python = [judged(played, one, lanes=True) for one in personal]
    for _ in range(USES):
        judged(played, personal[0])
    python_calls.clear()
    assert [judged(played, one) for one in personal] == by_python
    assert not python_calls
    layer = list(played.run.executor.workspace.module.modules())[-1]
    assert isinstance(layer, Scale)
    layer.scale = 2.0
    alone = judged(played, personal[0], lanes=False)
    assert judged(played, personal[0], lanes=True).loss == pytest.approx(alone.loss, rel=1e-5)
    assert python_calls, "what was recorded is forgotten"


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_hook_of_torch_changes_what_is_predicted(play_toy: Play, register: str) -> None:
    played = play_toy("local-only", executor="vectorised", rounds=1)
    space = played.run.executor.workspace
    personal = Personal(params=different(played.run, CLIENTS))
    for _ in range(USES):
        before = judged(played, personal)
    assert any(space.lane_passes.known.values())
    layer = list(space.module.modules())[-1]
    getattr(layer, register)(lambda module, inputs, *output: (output or inputs)[0] * 2)
    alone = judged(played, personal, lanes=False)
    space.compared = {OWN}
    found = judged(played, personal)
    assert found.loss == pytest.approx(alone.loss, rel=1e-5)
    assert found.loss != pytest.approx(before.loss, rel=1e-2)


def test_a_module_with_a_prediction_of_its_own_is_not_recorded(
    play_toy: Play, python_calls: list[int]
) -> None:
    played = play_toy(module_of(WithScale), executor="vectorised", rounds=1)
    scale = 1 + torch.arange(CLIENTS) / 7
    personal = Personal(params=different(played.run, CLIENTS), extras={"scale": scale})
    for _ in range(USES + 1):
        judged(played, personal)
    assert len(python_calls) == 2 * (USES + 1)


class Draws(ClientModule):
    def predict(self, x: Tensor) -> Tensor:
        return self(x) + 0 * torch.rand(1)


@pytest.mark.parametrize("kind", [Looks, Draws, Other])
def test_a_module_that_cannot_be_called_for_many_is_called_for_each(
    play_toy: Play, kind: type[ClientModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_toy(module_of(kind), executor="vectorised", rounds=1)
    personal = Personal(params=different(played.run, CLIENTS))
    alone, found = (judged(played, personal, lanes=lanes) for lanes in (False, True))
    assert found == alone
    assert not played.run.executor.evaluates_in_lanes
    tries: list[int] = []
    monkeypatch.setattr(PooledLanes, "of", lambda *_: tries.append(1))
    assert judged(played, personal) == alone
    assert not tries, "nothing is prepared for it again"


class Exits(ClientModule):
    def predict(self, x: Tensor) -> Tensor:
        raise SystemExit("'absent'")


@pytest.mark.parametrize("kind", [Fails, Exits])
def test_an_error_of_the_module_names_the_client(play_toy: Play, kind: type[ClientModule]) -> None:
    played = play_toy("local-only", executor="vectorised", rounds=1)
    module = played.run.executor.workspace.module
    module.predict = kind.predict.__get__(module)  # type: ignore[method-assign]
    with pytest.raises(PluginError, match=mention("client 0", "failed", "absent")):
        judged(played, Personal(params=different(played.run, CLIENTS)), lanes=True)


def test_wide_models_share_no_pass(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    played = play_toy("local-only", executor="vectorised", rounds=1)
    personal = Personal(params=different(played.run, CLIENTS))
    whole = judged(played, personal, lanes=True)
    width = played.run.context.layout.width
    monkeypatch.setitem(lane_evaluation.SCALARS, "cpu", 4 * width)
    judged(played, personal, lanes=True)
    assert Counts.alone == 1, "passes of four and two"
    monkeypatch.setitem(lane_evaluation.SCALARS, "cpu", width - 1)
    alone = judged(played, personal, lanes=True)
    assert Counts.alone == 2 * CLIENTS
    assert alone.correct == whole.correct


def test_a_predictor_is_called_for_each_model(play_toy: Play) -> None:
    played = play_toy("local-only", executor="vectorised", rounds=1)
    personal = Personal(
        params=different(played.run, CLIENTS), predictor=lambda module, x: 2 * module(x)
    )
    judged(played, personal, lanes=True)
    assert Counts.alone == 2 * CLIENTS


class Many:
    """Evaluates models that each say a number of their own, and writes down how."""

    def __init__(self, apart: float = 0.0, error: type[BaseException] | None = None) -> None:
        self.space: Any = SimpleNamespace(compared=set())
        self.apart, self.error = apart, error
        self.calls: list[Any] = []

    def said(self, number: int, more: float = 0.0) -> Judged:
        sums = torch.tensor([[number + more, 0.0, 1.0]], dtype=torch.float64)
        return Judged(sums, torch.zeros(0, 3), torch.zeros(1, 0))

    def together(self, numbers: list[int]) -> list[Judged]:
        self.calls.append(numbers)
        if self.error is not None:
            raise self.error
        return [self.said(number, self.apart) for number in numbers]

    def alone(self, number: int) -> Judged:
        self.calls.append(number)
        return self.said(number)

    def asked(self, *numbers: int, kind: str = OWN) -> list[Any]:
        """How models are evaluated; what they say must be their own numbers."""
        self.calls.clear()
        found = evaluate_many(self.space, kind, numbers, self.together, self.alone)
        assert {number: float(one.sums[0, 0]) for number, one in found.items()} == {
            number: number for number in numbers
        }
        return list(self.calls)


def test_the_first_pass_of_a_kind_is_compared_with_its_first_model_alone() -> None:
    many = Many()
    assert many.asked(7) == [7], "a model by itself shares no pass"
    assert many.asked(5, 3, 4) == [5, [5, 3, 4]]
    assert many.asked(2, 9) == [[2, 9]]
    assert many.asked(2, 9, kind=SAME) == [2, [2, 9]], "samples are given otherwise"
    assert many.space.compared == {OWN, SAME}


@pytest.mark.parametrize(
    ("apart", "error"), [(1.0, None), (0.0, ValueError), (0.0, SystemExit)], ids=str
)
def test_a_pass_that_says_something_else_or_fails_is_the_last_one(
    apart: float, error: type[BaseException] | None
) -> None:
    """There is one flag: no pass of another kind is tried either."""
    many = Many()
    many.asked(1, 2)
    many.apart, many.error = apart, error
    assert many.asked(5, 3, 4, kind=SAME) == [5, [5, 3, 4], 3, 4, 5], "in ascending order"
    assert many.space.compared is None
    assert many.asked(1, 2) == [1, 2]


def test_a_user_may_stop_a_pass() -> None:
    with pytest.raises(KeyboardInterrupt):
        Many(error=KeyboardInterrupt).asked(1, 2)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([3, 5, 4], 9, [[1, 2, 0]]),
        ([3, 5, 4], 2, [[1, 2], [0]]),
        ([CHUNK + 1, 1, 2], 9, [[0], [2, 1]]),
        ([0, 0, 7], 9, [[2, 0, 1]]),
        ([0, 0], 9, [[0], [1]]),
        ([CHUNK] * (PREDICTIONS // CHUNK + 1), 99, [list(range(PREDICTIONS // CHUNK)), [8]]),
        ([], 9, []),
    ],
)
def test_how_models_are_divided(sizes: list[int], most: int, expected: list[list[int]]) -> None:
    assert passes(range(len(sizes)), sizes, most) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_judges_in_lanes_as_one_by_one(play_toy: Play) -> None:
    played = play_toy("local-only", engine=EngineOptions("vectorised", "cuda"), rounds=1)
    personal = Personal(params=different(played.run, CLIENTS).cuda())
    alone = judged(played, personal, lanes=False)
    found = judged(played, personal, lanes=True)
    assert played.run.executor.workspace.compared
    assert found.loss == pytest.approx(alone.loss, rel=1e-4)
