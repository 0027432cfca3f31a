"""The examples of docs/hooks.md and docs/client-module.md, typed and run."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small import Small, uploaded
from torch import nn
from toy import CLIENTS, WIDTH, Play, composition, install, toy_suite, watching

import flbench
from flbench.core.state import Membership, Stage, State
from flbench.run.composition import compose
from flbench.testing import check_results

DOCS = Path(__file__).resolve().parents[2] / "docs"


def documented(name: str) -> Any:
    """A class of the examples."""
    names: dict[str, Any] = {"dataclass": dataclass, "replace": replace, "torch": torch}
    names["fl"] = flbench
    for code in examples():
        exec(code, names)
    return names[name]


def examples() -> list[str]:
    """The Python code of the two pages; that of the first one begins with the imports."""
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ("hooks.md", "client-module.md")]
    return re.findall(r"```python\n(.+?)```", "".join(pages), re.DOTALL)


def test_the_memory_of_the_docs_is_one(play_toy: Play) -> None:
    played = play_toy(composition(("counting", documented("Counting")())), rounds=4)
    assert played.state.memory["counting.times"].sum() == 4 * 3


def test_the_metric_of_the_docs_is_in_the_result(play_toy: Play) -> None:
    result = play_toy(composition(("confident", documented("Confident")()))).result
    assert result.client_metrics is not None
    values = result.client_metrics["confidence"].values
    assert all(value is not None and 1 / 4 < value <= 1 for value in values)
    assert result.curves["confidence"][-1] == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_the_wrapper_of_the_docs_trains_longer(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (("longer", documented("LongerTraining")()), ("watch", watching(uploads)))
    plain: list[Any] = []
    play_toy(composition(*layers), rounds=1)
    play_toy(composition(("watch", watching(plain))), rounds=1)
    assert (uploads[0].steps > plain[0].steps).all()


def test_the_coder_of_the_docs_sends_a_bit_for_each_scalar(play_toy: Play) -> None:
    played = play_toy(composition(("signs", documented("Signs")())), rounds=2)
    assert played.run.ledger.bits["up"]["model"] == 2 * 3 * (WIDTH + 32)


def test_the_frozen_parameters_of_the_docs_are_in_no_row(play_toy: Play) -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))

    played = play_toy(composition(("norms", documented("NormsOnly")())), net=normed, rounds=2)
    assert played.run.context.layout.parameters == 5 + 5, "gain and shift"
    assert played.state.models.shape == (1, 10 + 11), "mean, variance, counter"
    assert played.run.ledger.totals["up"]["model"] == 2 * 3 * 4 * 21
    net, fresh = played.run.executor.workspace.module.net, normed
    plain = play_toy("fedavg", net=fresh, rounds=1).run.context
    start = plain.layout.unflatten(plain.initial)
    assert torch.equal(net[1].weight, start["net.1.weight"])


def test_the_head_of_the_docs_lives_at_the_server(play_toy: Play) -> None:
    played = play_toy(composition(("head", documented("HeadAtServer")())), rounds=1)
    head = int(played.run.context.layout.head.sum())
    assert played.run.ledger.bits["down"]["model"] == 32 * 3 * (WIDTH - head)
    assert played.run.ledger.bits["up"]["activations"] == 3 * played.run.ledger.bits["up"]["labels"]


@pytest.mark.slow
def test_the_penalty_of_the_docs_goes_with_any_loss(play_toy: Play) -> None:
    kind = documented("ConfidencePenalty")
    plain, off, on = (
        play_toy("fedprox", rounds=2).state.models,
        play_toy(composition(("penalty", kind(0.0))), rounds=2).state.models,
        play_toy(composition(("penalty", kind(1.0))), rounds=2).state.models,
    )
    assert torch.equal(off, play_toy("fedavg", rounds=2).state.models)
    assert not torch.allclose(on, off) and plain.shape == on.shape


def test_the_phases_of_the_docs_train_the_head_last(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (("head-last", documented("HeadLast")()), ("watch", watching(uploads)))
    played = play_toy(composition(*layers), rounds=1, local={"epochs": 1, "batch_size": 4})
    moved = (uploads[0].selected() != played.run.context.initial).any(dim=0)
    assert torch.equal(moved, played.run.context.layout.head), "the last epoch is the only one"


def test_the_report_of_the_docs_keeps_rows_of_unequal_length(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (("hard", documented("HardSamples")()), ("watch", watching(uploads)))
    played = play_toy(composition(*layers), rounds=1, participation=1.0)
    kept = [len(flbench.unpadded(entry)) for entry in played.state.memory["hard.z"]]
    assert kept == uploads[0].extras["wrong"].flatten().tolist()
    assert len(set(kept)) > 1


@pytest.mark.slow
def test_the_common_head_of_the_docs_is_that_of_lg_fedavg(play_toy: Play) -> None:
    changes: dict[str, Any] = {
        "further_models": [{"name": "mlp", "hidden": 3, "norm": True}],
        "common_head": True,
    }
    mine = play_toy(composition(("common-head", documented("CommonHead")())), **changes)
    its = play_toy("lg-fedavg", **changes)
    assert torch.equal(mine.state.models, its.state.models)
    assert mine.run.ledger.totals == its.run.ledger.totals


def test_the_hierarchy_of_the_docs_averages_clients_at_their_edge_and_edges_at_the_cloud() -> None:
    """Edge 0 has clients 0 and 1 with 1 and 2 samples, edge 1 has client 2 with 3 samples."""
    home, cohort = torch.tensor([0, 0, 1]), torch.arange(3)
    state = State(0, torch.full((2, 2), 9.0), Membership(home))
    upload = uploaded([[4.0, 0.0], [7.0, 3.0], [1.0, 2.0]])
    ctx: Any = SimpleNamespace(cohort=cohort, samples=Small.samples, layout=Small.layout)
    rule = documented("Hierarchical")(edges=2, times=2)
    rows = [
        rule.aggregate(state, Stage("train", cohort, 1, name), upload, state.membership, ctx).rows
        for name in ("edge-1", "edge-2")
    ]
    assert rows[0].tolist() == [[6.0, 2.0], [1.0, 2.0]], "(1 * 4 + 2 * 7) / 3; client 2 alone"
    assert rows[1].tolist() == [[3.5, 2.0]] * 2, "(3 * 6 + 3 * 1) / 6"


def test_edges_of_the_docs_part_within_a_round_and_agree_at_its_end(play_toy: Play) -> None:
    starts: list[torch.Tensor] = []

    @dataclass(frozen=True)
    class Watch:
        @flbench.hookimpl
        def dispatch(self, state: State) -> None:
            starts.append(state.models)

    hierarchy = documented("Hierarchical")()
    layers = (("hierarchy", hierarchy), ("watch", Watch()))
    played = play_toy(composition(*layers), rounds=2, participation=1.0)
    assert [bool((rows[0] == rows[1]).all()) for rows in starts] == [True, False] * 2
    assert torch.equal(played.state.models[0], played.state.models[1])
    assert played.run.ledger.bits["up"]["model"] == 2 * 2 * CLIENTS * 32 * WIDTH


HEAD = '"""Methods of the docs."""\nfrom dataclasses import dataclass, replace\n'
HEAD += "import torch\nimport flbench as fl\n"


@pytest.mark.slow
def test_the_hierarchy_of_the_docs_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[flbench.methods]\nhierarchy = methods_of_docs:Hierarchical\n"
    install(tmp_path, "of-docs", points, methods_of_docs=HEAD + "\n".join(examples()))
    monkeypatch.syspath_prepend(tmp_path)
    checks = ("relabelled-clients", "bytes-add-up", "missing-clients", "newcomers-served")
    found = check_results("hierarchy", ("usual-run", *checks))
    assert [str(result) for result in found if not result.ok] == []


def test_the_weights_of_the_docs_by_hand() -> None:
    """Three labels; 1, 2 and 3 of 6 samples; labels uniform, of one kind, of two kinds."""
    ctx: Any = Small()
    ctx.classes = 3
    counts = torch.tensor([[1, 1, 1], [2, 0, 0], [2, 2, 0]])
    ctx.own_label_counts = lambda clients: counts[clients]
    ctx.send = lambda *_: None
    hook = documented("FedDisco")(a=0.5, b=0.1).weights(uploaded([[0.0, 0.0]] * 3), ctx)
    next(hook)
    with pytest.raises(StopIteration) as end:
        hook.send(flbench.client_weights(uploaded([[0.0, 0.0]] * 3)))
    far, less = (2 / 3) ** 0.5, (1 / 6) ** 0.5  # |(2/3, -1/3, -1/3)|, |(1/6, 1/6, -1/3)|
    wanted = [1 / 6 + 0.1, max(0.0, 2 / 6 - far / 2 + 0.1), 3 / 6 - less / 2 + 0.1]
    assert end.value.value.tolist() == pytest.approx(wanted)


@pytest.mark.slow
def test_the_weights_of_the_docs_go_with_any_mean(play_toy: Play) -> None:
    disco = ("feddisco", documented("FedDisco")(a=0.9, b=0.3))
    unequal = {"partition": {"name": "dirichlet", "alpha": 0.5}}
    for method in ("fedprox", "fedper", "fedavgm", "per-fedavg"):
        own = compose(method).layers
        plain, changed = (
            play_toy(composition(*layers), rounds=1, participation=1.0, **unequal)
            for layers in (own, (disco, *own))
        )
        assert not torch.equal(plain.state.models, changed.state.models), method


@pytest.mark.slow
def test_the_server_of_the_docs_learns(play_toy: Play) -> None:
    suite = toy_suite(server_samples=12)
    plain = play_toy("fedavg", suite=suite, rounds=1)
    taught = play_toy(
        composition(("taught", documented("ServerTraining")())), suite=suite, rounds=1
    )
    x, y = plain.run.context.server_data()
    losses = [
        flbench.cross_entropy(played.run.context.logits(played.state.models, x)[0], y)
        for played in (plain, taught)
    ]
    assert losses[1] < losses[0]


def test_the_plan_of_the_docs_calls_the_faster_half(play_toy: Play) -> None:
    clock = {"seconds_per_step": [3.0, 1.0, 2.0, 6.0, 5.0, 4.0]}
    uploads: list[Any] = []
    layers = (("faster", documented("FasterHalf")()), ("watch", watching(uploads)))
    played = play_toy(composition(*layers), participation=1.0, rounds=1, clock=clock)
    assert uploads[0].ids.tolist() == [0, 1, 2]
    assert played.state.seconds == float(uploads[0].arrivals.max()) == 4 * 3.0


@pytest.mark.parametrize("losses", [False, True])
def test_the_modes_of_the_docs_are_those_in_which_functions_are_called(
    play_toy: Play, losses: bool
) -> None:
    """Training mode, gradients taken, inference mode; see the table in docs/client-module.md."""
    seen: dict[str, set[tuple[bool, bool, bool]]] = {}

    def see(function: str, module: flbench.ClientModule) -> None:
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        seen.setdefault(function, set()).add((module.training, grad, inference))

    @dataclass(frozen=True)
    class Looks:
        @flbench.hookimpl
        def plan(self, ctx: Any) -> list[flbench.Stage]:
            return [flbench.Stage("train", ctx.cohort, ctx.local.epochs, losses=losses)]

        @flbench.hookimpl
        def phases(self) -> flbench.PhaseRule:
            def one(module: flbench.ClientModule, epochs: int) -> list[flbench.LocalPhase]:
                see("phases", module)
                return [flbench.LocalPhase(epochs, start=lambda module: see("start", module))]

            return one

        @flbench.hookimpl
        def local_term(self) -> Any:
            def term(module: flbench.ClientModule) -> torch.Tensor:
                see("local_term", module)
                return 0 * module.flat().sum()

            return term

        @flbench.hookimpl
        def report(self) -> flbench.Reporter:
            def nothing(module: flbench.ClientModule, *_: torch.Tensor) -> flbench.Report:
                see("report", module)
                return flbench.Report()

            return nothing

        @flbench.hookimpl
        def personalise(self, clients: torch.Tensor) -> flbench.Personal:
            def predict(module: flbench.ClientModule, x: torch.Tensor) -> torch.Tensor:
                see("predictor", module)
                return module.predict(x)

            return flbench.Personal(row=torch.zeros_like(clients), predictor=predict)

    play_toy(composition(("looks", Looks())), rounds=2, executor="sequential")
    training, evaluation = (True, True, False), (False, False, False)
    assert seen == {
        **{key: {training} for key in ("phases", "start", "local_term")},
        "report": {(not losses, True, False)},
        "predictor": {evaluation},
    }
