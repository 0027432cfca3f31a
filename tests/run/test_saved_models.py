"""Saved models: what serves clients is read back and predicts as it was judged."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kept_runs import kept_spec, played_to_disk
from mentions import mention, mentions
from safetensors import safe_open
from safetensors.torch import save_file
from toy import bad, toy_dataset

import flbench as fl
from flbench.errors import MachineError, UserError
from flbench.models.mlp import build
from flbench.results.files import read_result
from flbench.results.kept_files import KeepOptions, saved_path
from flbench.run import runner
from flbench.run.composition import MethodStack
from flbench.run.saved_files import HEADER, ModelsAbout, read_saved
from flbench.run.saved_models import SavedModels, _without_files
from flbench.run.spec import RunSpec
from flbench.suite import Component

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "local-only": {},
    "oracle": {"settings": {"warmup": 1}},
    "per-fedavg": {},
    "ditto": {},
    "apfl": {},
    "fedem": {},
    "fedrod": {},
    "fedproto": {},
    "apple": {},
    "heterofl": {},
    "lora": {"settings": {"rank": 2}},
    "clusterfl": {},
}


def models_file(spec: RunSpec) -> Path:
    return saved_path(spec.path, "models", 0)


def predicts_as_judged(spec: RunSpec) -> SavedModels:
    """Each client's model says of its test samples what was judged."""
    models = fl.open_models(models_file(spec))
    said = fl.read_predictions(saved_path(spec.path, "predictions", 0))
    for client in models.clients:
        own = said.of(client)
        x = toy_dataset().x[torch.from_numpy(own.index)]
        with torch.no_grad():
            found = models.module(client)(x).double().log_softmax(-1)
        expected = torch.from_numpy(own.log_probabilities)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    return models


@pytest.mark.parametrize("method", METHODS)
def test_a_saved_model_predicts_as_it_was_judged(method: str, tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, method, **METHODS[method])
    result = played_to_disk(spec)
    models = predicts_as_judged(spec)
    assert models.clients == list(range(6))
    assert models.about.fingerprint == result.fingerprint
    assert models.about.method.params == result.method.params


def test_rows_are_those_that_serve_and_have_the_networks_own_names(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, "oracle", settings={"warmup": 1})
    result = played_to_disk(spec)
    net = build((3,), 4, hidden=3)
    with safe_open(models_file(spec), framework="pt") as file:  # by the library alone
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["flbench"])
    groups = len(set(result.memberships()[-1][1]))
    assert shapes == {name: [groups, *one.shape] for name, one in net.named_parameters()}
    assert about["seed"] == 0
    assert about["fingerprint"] == result.fingerprint.model_dump()
    labels = result.memberships()[-1][1]
    pairs = set(zip(labels, about["rows"], strict=True))
    assert len(pairs) == groups, "who is in a group has its model"


def test_the_same_run_saves_the_same_bytes(tmp_path: Path) -> None:
    for where in ("one", "other"):
        played_to_disk(kept_spec(tmp_path / where, "fedem"))
    one, other = (sorted((tmp_path / w).rglob("*.safetensors")) for w in ("one", "other"))
    assert len(one) == 2
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_a_result_names_what_was_saved_and_is_the_same_without(tmp_path: Path) -> None:
    plain = kept_spec(tmp_path / "plain", keep=KeepOptions())
    with_files = kept_spec(tmp_path / "saved")
    one, other = played_to_disk(plain), played_to_disk(with_files)
    assert plain.path.relative_to(tmp_path / "plain") == with_files.path.relative_to(
        tmp_path / "saved"
    )
    assert one.saved is None
    assert '"saved"' not in plain.path.read_text()
    assert {kind: file.name for kind, file in (other.saved or {}).items()} == {
        "models": "seed-0.models.safetensors",
        "predictions": "seed-0.predictions.safetensors",
    }
    aside = {"saved", "seconds", "environment"}
    assert one.model_dump(exclude=aside) == other.model_dump(exclude=aside)


@pytest.mark.parametrize("policy", ["global", "local", "reset"])
def test_statistics_of_batchnorm_are_those_that_were_judged(policy: str, tmp_path: Path) -> None:
    model = {"name": "mlp", "hidden": 3, "norm": True}
    spec = kept_spec(tmp_path, model=model, buffers=policy, rounds=2, participation=1.0)
    played_to_disk(spec)
    models = predicts_as_judged(spec)
    means = [name for name in models.state(0) if name.endswith("running_mean")]
    differ = not torch.equal(models.state(0)[means[0]], models.state(5)[means[0]])
    assert differ is (policy == "local")


def test_clients_with_different_networks_have_their_own(tmp_path: Path) -> None:
    further = [{"name": "logistic-regression"}]
    spec = kept_spec(tmp_path, "local-only", further_models=further)
    played_to_disk(spec)
    predicts_as_judged(spec)


def test_a_predictor_of_the_run_is_named_where_the_model_is_asked_for(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, "knn-per")
    played_to_disk(spec)
    models = fl.open_models(models_file(spec))
    assert models.state(0)
    with pytest.raises(UserError, match=mention("knn-per", "--save-predictions")):
        models.module(0)


def test_a_client_without_a_model_is_named(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, "local-only", not_judged=[1], rounds=1)
    played_to_disk(spec)
    models = fl.open_models(models_file(spec))
    assert models.clients == [0, 2, 3, 4, 5]
    with pytest.raises(UserError, match=mention("client 1")):
        models.module(1)


def test_newcomers_are_said_to_be_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    spec = kept_spec(tmp_path, said=said, clients=9, unseen=0.34, rounds=1)
    played_to_disk(spec, toy_dataset(samples=108))
    assert [line for line in said if "3 clients that join" in line]
    assert fl.open_models(models_file(spec)).clients == list(range(6))


def rewritten(path: Path, change: dict[str, Any], **tensors: torch.Tensor) -> None:
    """Write a file of models once more, with other facts and tensors."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()[HEADER])
    found = read_saved(path, ModelsAbout)[1]
    save_file({**found, **tensors}, path, metadata={HEADER: json.dumps({**about, **change})})


HOSTILE: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], str]] = {
    "row": ({"rows": [0, 0, 0, 0, 0, 7]}, {}, "8"),
    "index": ({"rows": [0]}, {}, "6"),
    "negative": ({"rows": [-1] * 6}, {}, "rows.0"),
    "version": ({"version": 2}, {}, "version"),
    "holds": ({"holds": "predictions"}, {}, "predictions"),
    "more": ({"more": 1}, {}, "more"),
    "suite": ({"suite": {"name": "toy"}}, {}, "suite"),
    "tensor": ({}, {"body.weight": torch.zeros(1, 2)}, "body.weight"),
    "network": ({"suite": {"model": {"name": "../x"}}}, {}, "suite"),
}


@pytest.mark.parametrize(("change", "tensors", "fact"), HOSTILE.values(), ids=HOSTILE)
def test_a_file_whose_parts_do_not_fit_is_refused(
    change: dict[str, Any], tensors: dict[str, torch.Tensor], fact: str, tmp_path: Path
) -> None:
    spec = kept_spec(tmp_path, rounds=1)
    played_to_disk(spec)
    path = models_file(spec)
    rewritten(path, change, **tensors)
    with pytest.raises(UserError, match=mention(path.name, fact)):
        fl.open_models(path).module(0)


def test_shapes_and_types_are_those_of_the_network(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, rounds=1)
    played_to_disk(spec)
    path = models_file(spec)
    name = "0.weight" if "0.weight" in fl.open_models(path).tensors else ""
    name = name or next(iter(fl.open_models(path).state(0)))
    tensor = fl.open_models(path).tensors[name]
    for other in (tensor.double(), tensor[:, :1]):
        rewritten(path, {}, **{name: other.contiguous()})
        with pytest.raises(UserError, match=mention(path.name, f"'{name}'")):
            fl.open_models(path).module(0)


def test_no_file_that_a_saved_file_names_is_opened(tmp_path: Path) -> None:
    asked = Component(name="resnet18", weights=str(tmp_path / "weights.pt"))
    assert _without_files(asked).params == {}
    kept = Component(name="mlp", hidden=5)
    assert _without_files(kept).params == {"hidden": 5}


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.models.safetensors"
    for content in (b"", b"damaged", b"\x80\x04]"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=mention(path.name, "--save-models")):
            fl.open_models(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UserError, match=mention(path.name, "--save-models")):
        fl.open_models(path)
    with pytest.raises(UserError, match=mention("absent")):
        fl.open_models(tmp_path / "absent")


# --- when and where they are written -----------------------------------------------------------


@dataclass
class Stop:
    """Interrupts a run after a round."""

    after: int

    @fl.hookimpl
    def round_finished(self, record: Any) -> None:
        if record.round == self.after:
            raise KeyboardInterrupt


def stopped_and_resumed(spec: RunSpec, after: int) -> Any:
    """The result of a run that was stopped after a round and resumed."""
    with pytest.raises(KeyboardInterrupt):
        played_to_disk(replace(spec, sinks=(("stop", Stop(after)),)))
    return played_to_disk(replace(spec, resume=True))


def looking() -> MethodStack:
    """A method that counts, notes and warns when models are judged."""

    def personalise(self: Any, clients: torch.Tensor, ctx: fl.Context) -> None:
        ctx.send("down", clients, "looks", 1)
        ctx.note("looked", ctx.round)
        ctx.warn("it looks")

    return bad(personalise=personalise)


@pytest.mark.usefixtures("checkpoint_every_round")
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("method", ["apfl", "looking"])
def test_a_resumed_run_saves_what_a_whole_one_does(after: int, method: str, tmp_path: Path) -> None:
    """Also if it was stopped when its last round had ended: that is evaluated once more."""
    one_by_one = {"method": looking() if method == "looking" else method, "executor": "sequential"}
    whole = kept_spec(tmp_path / "whole", **one_by_one)
    cut = kept_spec(tmp_path / "cut", **one_by_one)
    one, other = played_to_disk(whole), stopped_and_resumed(cut, after)
    assert one.model_dump(exclude={"seconds"}) == other.model_dump(exclude={"seconds"})
    assert not list(cut.path.parent.glob("*.checkpoint.*"))


@pytest.mark.usefixtures("checkpoint_every_round")
def test_models_of_a_chosen_round_that_are_gone_are_said(tmp_path: Path) -> None:
    said: list[str] = []
    spec = kept_spec(
        tmp_path, headline="validation", rounds=4, said=said, **{"local.lr": 1e-9}
    )  # nothing moves, so the first round is the best
    result = stopped_and_resumed(spec, 2)
    assert (result.summary["round"], result.saved) == (1, None)
    assert mentions(said, "round 1", "--force", "headline=last")
    assert not models_file(spec).is_file()


def test_a_disk_without_room_for_the_files_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = kept_spec(tmp_path, rounds=1)
    written = runner.write_saved

    def full(path: Path, *more: Any) -> None:
        if "predictions" in path.name:
            raise MachineError(f"{path}: no room")
        written(path, *more)

    monkeypatch.setattr(runner, "write_saved", full)
    with pytest.raises(MachineError, match=mention("seed-0.predictions.safetensors", "result")):
        played_to_disk(spec)
    assert list(read_result(spec.path).saved or {}) == ["models"]
    assert fl.open_models(models_file(spec)).clients
