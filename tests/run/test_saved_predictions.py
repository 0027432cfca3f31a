"""Saved predictions: the very answers that a result counts, and where each sample is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kept_runs import SAVED, kept_spec, played_to_disk
from mentions import mention
from safetensors.torch import save_file
from toy import toy_dataset

import flbench as fl
from flbench.client_metrics.multilabel import average_precisions
from flbench.errors import BadParameter, UserError
from flbench.results.kept_files import saved_path
from flbench.results.schema import Result
from flbench.run.saved_predictions import SavedPredictions
from flbench.run.saving import MOST, refuse_too_many
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.testing.federations import labels, numbers, text

CASES: dict[str, dict[str, Any]] = {
    "one model": {"method": "fedavg"},
    "a model for each": {"method": "local-only"},
    "in lanes": {"method": "local-only", "executor": "vectorised"},
    "one by one": {"method": "local-only", "executor": "sequential"},
    "adapted": {"method": "per-fedavg"},
    "code of the method": {"method": "ditto"},
    "what clients received": {"method": "apfl"},
    "a predictor": {"method": "knn-per"},
    "test samples of several clients": {"method": "fedavg", "test_set": "labels"},
    "some are not judged": {"method": "local-only", "not_judged": [1, 4]},
    "validation": {"method": "local-only", "headline": "validation", "rounds": 4},
    "periods": {
        "method": "local-only",
        "rounds": 4,
        "periods": [
            {"start": 2, "change": "swap-labels", "labels": [[0, 1]], "clients": [0, 4]},
            {"start": 3, "change": "leave", "clients": [5]},
        ],
    },
}


def files(spec: RunSpec) -> tuple[Path, Path]:
    """The models and the predictions of a run."""
    return saved_path(spec.path, "models", 0), saved_path(spec.path, "predictions", 0)


def same_answers(found: SavedPredictions, result: Result) -> None:
    """The predictions are counted as the result counts them."""
    right = found.log_probabilities.argmax(axis=-1) == found.target
    for client, (correct, tested) in enumerate(
        zip(result.clients.correct, result.clients.test, strict=True)
    ):
        own = found.client == client
        assert (int(right[own].sum()), int(own.sum())) == (correct, tested)
    mean = np.mean(list(found.accuracies().values()))
    assert result.summary["accuracy_mean"] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_predictions_give_the_accuracies_of_the_result(
    case: dict[str, Any], tmp_path: Path
) -> None:
    spec = kept_spec(tmp_path, **case)
    result = played_to_disk(spec)
    found = fl.read_predictions(files(spec)[1])
    same_answers(found, result)
    assert found.about.round == result.summary["round"]
    assert np.allclose(np.exp(found.log_probabilities).sum(axis=-1), 1)
    data = toy_dataset()
    if "periods" not in case:
        assert np.array_equal(data.y.numpy()[found.index], found.target)
    run, _ = prepare(spec, data)
    lists = run.held_out.splits["test"]
    for client in np.unique(found.client).tolist():
        x = run.held_out.x[lists[client]]
        assert torch.equal(data.x[torch.from_numpy(found.of(client).index)], x)


def test_predictions_of_a_period_have_its_labels(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, **CASES["periods"])
    played_to_disk(spec)
    found, y = fl.read_predictions(files(spec)[1]), toy_dataset().y.numpy()
    swapped = np.array([1, 0, 2, 3])[y]
    for client in range(5):
        own = found.of(client)
        assert np.array_equal((swapped if client in (0, 4) else y)[own.index], own.target)
    assert len(found.of(5).client) == 0, "it is away"


def test_text_has_a_prediction_for_each_token(tmp_path: Path) -> None:
    data = text()
    spec = kept_spec(tmp_path, dataset="small-text", partition="by-domain", rounds=1)
    result = played_to_disk(spec, data)
    found = fl.read_predictions(files(spec)[1])
    assert found.log_probabilities.shape[1:] == (6, 8)
    assert np.array_equal(data.y.numpy()[found.index], found.target)
    right = found.log_probabilities.argmax(axis=-1) == found.target
    correct = [int(right[found.client == client].sum()) for client in range(6)]
    assert correct == result.clients.correct
    module = fl.open_models(files(spec)[0]).module(2)
    logits = module(data.x[torch.from_numpy(found.of(2).index)])
    expected = torch.from_numpy(found.of(2).log_probabilities)
    torch.testing.assert_close(logits.double().log_softmax(-1), expected, atol=1e-5, rtol=0)


def test_too_many_predictions_are_refused_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = MOST // 8 // (4 * 10)
    refuse_too_many(SAVED, most, torch.zeros(9, 4).long(), 10)
    with pytest.raises(BadParameter, match=mention("--save-predictions", f"{most + 1:,}")):
        refuse_too_many(SAVED, most + 1, torch.zeros(9, 4).long(), 10)
    refuse_too_many(replace(SAVED, predictions=False), most + 1, torch.zeros(9, 4).long(), 10)
    monkeypatch.setattr("flbench.run.saving.MOST", 8)
    with pytest.raises(BadParameter):
        played_to_disk(kept_spec(tmp_path))


def changed(path: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Write a file of predictions once more, with another tensor; None = without it."""
    from flbench.run.saved_files import HEADER, PredictionsAbout, read_saved

    about, tensors = read_saved(path, PredictionsAbout)
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, path, metadata={HEADER: about.model_dump_json()})


def test_a_file_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, rounds=1)
    played_to_disk(spec)
    models, path = files(spec)
    whole = path.read_bytes()
    m = len(fl.read_predictions(path).client)
    for name, tensor in {
        "client": torch.zeros(m),
        "index": torch.zeros(m + 1).long(),
        "target": None,
        "more": torch.zeros(1),
        "log_probabilities": torch.zeros(m, 4),
    }.items():
        changed(path, name, tensor)
        with pytest.raises(UserError, match=mention(path.name, f"'{name}'")):
            fl.read_predictions(path)
        path.write_bytes(whole)
    with pytest.raises(UserError, match=mention(models.name, "predictions", "models")):
        fl.read_predictions(models)
    path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=mention(path.name, "--save-predictions")):
        fl.read_predictions(path)


# --- other tasks -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "local-only"])
def test_numbers_give_the_errors_of_the_result_also_in_their_units(
    method: str, tmp_path: Path
) -> None:
    spec, data = kept_spec(tmp_path, method, dataset="small-numbers"), numbers()
    result = played_to_disk(spec, data)
    found = fl.read_predictions(files(spec)[1])
    said, targets = found.in_units()
    np.testing.assert_allclose(targets[:, 0], data.y.numpy()[found.index], rtol=1e-5)
    for client, value in enumerate(result.clients.values or ()):
        own = found.client == client
        squared = np.mean((found.values[own] - found.target[own]) ** 2)
        assert value == pytest.approx(np.sqrt(squared), abs=1e-6)
        in_units = np.mean((said[own] - targets[own]) ** 2) ** 0.5
        assert in_units == pytest.approx(value * found.about.target_deviation[0], rel=1e-4)
    with pytest.raises(UserError, match=mention("numbers", "log_probabilities")):
        _ = found.log_probabilities
    models, own = fl.open_models(files(spec)[0]), found.of(4)
    with torch.no_grad():
        outputs = models.module(4)(data.x[torch.from_numpy(own.index)]).double().numpy()
    np.testing.assert_allclose(outputs, own.values, atol=1e-5)


def test_labels_have_a_log_probability_each(tmp_path: Path) -> None:
    spec, data = kept_spec(tmp_path, "local-only", dataset="small-labels"), labels()
    result = played_to_disk(spec, data)
    found = fl.read_predictions(files(spec)[1])
    assert np.array_equal(data.y.numpy()[found.index], found.target)
    for client, value in enumerate(result.clients.values or ()):
        own = found.of(client)
        scores, y = torch.from_numpy(own.log_probabilities), torch.from_numpy(own.target)
        precisions = average_precisions(scores, y)
        assert value == pytest.approx(float(precisions[~precisions.isnan()].mean()), abs=1e-6)
    with pytest.raises(UserError, match=mention("any number of labels", "log_probabilities")):
        found.accuracies()


@pytest.mark.parametrize(("task", "metric"), [("numbers", "common-rmse"), ("labels", "common-map")])
def test_the_headline_of_a_task_on_common_samples(task: str, metric: str, tmp_path: Path) -> None:
    """The one model of fedavg says of the samples of all what it says of each client's."""
    spec = kept_spec(tmp_path, dataset=f"small-{task}", metrics=[metric], rounds=1)
    result = played_to_disk(spec, numbers() if task == "numbers" else labels())
    found = fl.read_predictions(files(spec)[1])
    if task == "numbers":
        expected = float(np.mean((found.values - found.target) ** 2) ** 0.5)
    else:
        parts = map(torch.from_numpy, (found.log_probabilities, found.target))
        expected = float(average_precisions(*parts).nanmean())
    assert result.client_metrics is not None
    values = result.client_metrics[metric].values
    assert values == [pytest.approx(expected, abs=1e-6)] * 6
    assert result.client_metrics[metric].higher_is_better is (task == "labels")
