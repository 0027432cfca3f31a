"""Models that are evaluated in one pass give the table of models one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from evaluated_modules import Fails, Looks, Other, different, module_of
from mentions import mention
from torch import Tensor, nn
from toy import Play

from flbench import ClientModule
from flbench.core.client_module import Received
from flbench.core.dataset import Dataset
from flbench.engine import cross_evaluation, model_evaluation
from flbench.engine.cross_evaluation import cross_evaluate, features_of, logits_of
from flbench.engine.lanes import evaluation as lane_evaluation
from flbench.engine.lanes.evaluation import TOGETHER
from flbench.engine.model_evaluation import Judged, evaluate_model, mean_loss
from flbench.engine.options import EngineOptions
from flbench.federation.pooled import Pooled
from flbench.run.setup import Run

CLIENTS = torch.tensor([4, 0, 2])


class Counts:
    """Counts the models that are evaluated one by one."""

    alone = 0


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*args: Any, **kwargs: Any) -> Judged:
        Counts.alone += 1
        return evaluate_model(*args, **kwargs)

    monkeypatch.setattr(cross_evaluation, "evaluate_model", count)


def evaluated(run: Run, rows: Tensor, clients: Tensor = CLIENTS) -> Tensor:
    Counts.alone = 0
    space = run.executor.workspace
    return cross_evaluate(space, rows, run.executor.samples, "validation", clients)


def pair(
    played: Any, monkeypatch: pytest.MonkeyPatch, count: int = 6, clients: Tensor = CLIENTS
) -> tuple[Tensor, Tensor]:
    """The table of models one by one, and in passes of three; both leave the same in the module."""
    run = played.run
    space, rows = run.executor.workspace, different(run, count)
    monkeypatch.setitem(TOGETHER, space.device.type, 1)
    one_by_one, left = evaluated(run, rows, clients), state_of(run)
    assert Counts.alone == count
    monkeypatch.setitem(TOGETHER, space.device.type, 3)
    checked = evaluated(run, rows, clients)
    assert Counts.alone == (1 if space.compared else 1 + count), "one is a check"
    space.module.train()
    space.module.received = Received({"scale": rows[0]})
    together = evaluated(run, rows, clients)
    assert torch.equal(checked, together)
    assert all(torch.equal(*both) for both in zip(left, state_of(run), strict=True))
    return one_by_one, together


def state_of(run: Run) -> list[Tensor]:
    """What an evaluation leaves in the module."""
    module = run.executor.workspace.module
    assert not module.training
    assert "in evaluation" in module.received.where
    return [run.executor.workspace.snapshot(), module.start.clone()]


def agree(run: Run, one_by_one: Tensor, together: Tensor) -> None:
    """They are equal up to rounding, and no model of the second was evaluated alone."""
    assert run.executor.workspace.compared
    assert Counts.alone == 0
    torch.testing.assert_close(together, one_by_one, rtol=1e-6, atol=1e-6)
    assert torch.equal(together[..., 1:], one_by_one[..., 1:])
    assert len(one_by_one[..., 0].unique()) == one_by_one[..., 0].numel(), "all pairs differ"


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("net", [None, normed], ids=["mlp", "batchnorm"])
@pytest.mark.parametrize("chunk", [2, 256])
def test_models_together_are_judged_as_one_by_one(
    play_toy: Play, net: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_evaluation, "CHUNK", chunk)
    played = play_toy("local-only", net=net, rounds=1)
    agree(played.run, *pair(played, monkeypatch))


def test_samples_of_several_clients_count_for_each(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the clients are one: `Pooled` has its samples once, at two positions."""
    played = play_toy("local-only", rounds=1)
    one_by_one, together = pair(played, monkeypatch, clients=torch.tensor([4, 0, 4]))
    assert played.run.executor.workspace.compared
    assert torch.equal(together[0], together[2])
    torch.testing.assert_close(together, one_by_one, rtol=1e-6, atol=1e-6)


def test_each_model_is_judged_with_its_own_network(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_toy("local-only", rounds=1, further_models=[{"name": "mlp", "hidden": 5}])
    assert different(played.run, 7)[:, played.run.context.layout.which].unique().tolist() == [0, 1]
    agree(played.run, *pair(played, monkeypatch))


@pytest.mark.slow
def test_text_is_judged_together(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randint(4, (40, 7), generator=torch.Generator().manual_seed(0))
    dataset = Dataset("toy", tokens[:, :-1], tokens[:, 1:], 4, domains=torch.arange(40) % 4)
    model = {"name": "gpt2", "dropout": 0.1, "width": 8}
    changes: dict[str, Any] = {"partition": {"name": "iid"}, "clients": 3, "rounds": 1}
    played = play_toy("local-only", dataset=dataset, model=model, **changes)
    agree(played.run, *pair(played, monkeypatch, clients=torch.tensor([2, 0, 1])))


class Mixed(ClientModule):
    """Predicts and measures with all that a module knows of its model."""

    def predict(self, x: Tensor) -> Tensor:
        assert not self.received
        bias = 0.1 * (self.start[0] + self.row()[2])
        return self(x) + self.with_row(2 * self.start, self.forward, x) + bias * x[:, :1].abs()

    def measure(self, logits: Tensor, y: Tensor) -> Tensor:
        table = super().measure(logits, y)
        return table + torch.eye(3)[0] * next(self.parameters()).square().sum()


def test_a_prediction_reads_the_start_and_other_rows(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_toy(module_of(Mixed), rounds=1)
    agree(played.run, *pair(played, monkeypatch))


class Precise(ClientModule):
    """Predicts in mixed precision, and measures without."""

    def predict(self, x: Tensor) -> Tensor:
        assert torch.is_autocast_enabled("cpu")
        return super().predict(x)

    def measure(self, logits: Tensor, y: Tensor) -> Tensor:
        assert logits.dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
        return super().measure(logits, y)


def test_precision_is_that_of_models_one_by_one(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass rounds otherwise, and bfloat16 has eight bits."""
    engine = EngineOptions("sequential", "cpu", precision="bf16-mixed")
    played = play_toy(module_of(Precise), engine=engine, rounds=1)
    one_by_one, together = pair(played, monkeypatch)
    assert played.run.executor.workspace.compared
    torch.testing.assert_close(together, one_by_one, rtol=0.02, atol=0.02)


class Flat(ClientModule):
    """Reads the parameters that take a gradient, of which there are none in such a pass."""

    def predict(self, x: Tensor) -> Tensor:
        return self(x) * self.flat().norm()


@pytest.mark.parametrize("kind", [Looks, Flat, Other])
def test_a_module_that_cannot_be_called_for_many_is_called_for_each(
    play_toy: Play, kind: type[ClientModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_toy(module_of(kind), rounds=1)
    one_by_one, together = pair(played, monkeypatch)
    assert torch.equal(one_by_one, together)
    assert Counts.alone == 6
    tries: list[int] = []
    monkeypatch.setattr(cross_evaluation, "on_the_same_samples", lambda *_: tries.append(1))
    assert torch.equal(one_by_one, evaluated(played.run, different(played.run, 6)))
    assert not tries, "it is not tried again"
    assert not played.said


def test_an_error_of_the_module_is_its_own(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    played = play_toy("local-only", rounds=1)
    space = played.run.executor.workspace
    space.module.predict = Fails.predict.__get__(space.module)  # type: ignore[method-assign]
    monkeypatch.setitem(TOGETHER, "cpu", 3)
    with pytest.raises(KeyError, match=mention("received", "absent")):
        evaluated(played.run, different(played.run, 4))


def test_cpus_evaluate_one_by_one(play_toy: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    played = play_toy("local-only", rounds=1)
    evaluated(played.run, different(played.run, 7))
    assert Counts.alone == 7
    monkeypatch.setitem(TOGETHER, "cpu", 7)
    width = played.run.context.layout.width
    monkeypatch.setitem(lane_evaluation.SCALARS, "cpu", 2 * width + 1)
    sizes: list[int] = []
    together = cross_evaluation.on_the_same_samples

    def watched(space: Any, rows: Tensor, pooled: Any) -> list[Judged]:
        sizes.append(len(rows))
        return together(space, rows, pooled)

    monkeypatch.setattr(cross_evaluation, "on_the_same_samples", watched)
    evaluated(played.run, different(played.run, 7))
    assert sizes == [2, 2, 2], "wide models share a pass with few, and the last one is alone"


def test_a_method_goes_on_with_what_it_is_told(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IFCA chooses models by their losses."""
    plain = play_toy("ifca", rounds=2)
    monkeypatch.setitem(TOGETHER, "cpu", 3)
    together = play_toy("ifca", rounds=2)
    assert together.run.executor.workspace.compared
    assert plain.run.history.membership == together.run.history.membership
    assert torch.equal(plain.state.models, together.state.models)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_judges_models_together_as_one_by_one(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play_toy("local-only", engine=EngineOptions("sequential", "cuda"), rounds=1)
    one_by_one, together = pair(played, monkeypatch)
    assert played.run.executor.workspace.compared
    torch.testing.assert_close(together, one_by_one, rtol=1e-4, atol=1e-4)


def test_all_passes_are_in_the_precision_of_the_run(play_toy: Play) -> None:
    engine = EngineOptions("sequential", accelerator="cpu", precision="bf16-mixed")
    played = play_toy("fedavg", rounds=1, engine=engine)
    space, samples = played.run.executor.workspace, played.run.executor.samples
    row, x = played.state.models[0], samples.x[:8]
    pooled = Pooled.of(samples, "validation", CLIENTS[:1])
    loss, _, count = evaluate_model(space, row, pooled).sums[0].tolist()
    assert mean_loss(space, pooled.x, pooled.y) == pytest.approx(loss / count)
    features, logits = features_of(space, row[None], x), logits_of(space, row[None], x)[0]
    assert features.dtype is logits.dtype is torch.float32
    assert torch.equal(features, features.bfloat16().float())
    exact = space.module.predict(x)
    assert not torch.equal(logits, exact)
    torch.testing.assert_close(logits, exact, rtol=0, atol=0.02)
