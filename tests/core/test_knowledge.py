"""What hooks read of clients at no byte is noted: in a hook, once, and never by who hands it on."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import resumed
from toy import CLIENTS, Play, composition

import flbench as fl
from flbench.core.knowledge import known_as, noting
from flbench.results.schema import Result
from flbench.run.history import History


@known_as(loss="losses")
@dataclass(frozen=True)
class Told:
    ids: tuple[int, ...]
    loss: float


@dataclass(frozen=True)
class More(Told):
    steps: int = 0


def test_a_field_is_noted_when_it_is_read_and_is_a_field_like_any_other() -> None:
    found: set[str] = set()
    one = More((1,), 2.0, steps=3)
    with noting(found):
        others = replace(one, steps=4), copy.deepcopy(one), pickle.loads(pickle.dumps(one))
        assert one.ids == (1,)
        assert vars(one)["loss"] == 2.0
    assert found == set()
    assert [other.loss for other in others] == [2.0] * 3, "nobody notes it outside"
    with noting(found), noting(None):
        assert one.loss == 2.0
    assert found == set()
    with noting(found):
        assert one.loss == 2.0
    assert found == {"losses"}
    assert [one.name for one in fields(More)] == ["ids", "loss", "steps"]
    assert repr(Told((1,), 2.0)) == "Told(ids=(1,), loss=2.0)"
    with pytest.raises(TypeError, match="loss"):
        Told((1,))  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        one.loss = 1.0  # type: ignore[misc]


def reads(**hooks: Any) -> Any:
    """A method with the given hooks."""
    body = {name: fl.hookimpl(staticmethod(function)) for name, function in hooks.items()}
    return composition(("reader", dataclass(frozen=True)(type("Reader", (), body))()))


def mean(state: fl.State, upload: fl.Upload) -> fl.Models:
    return fl.Models(upload.selected().mean(dim=0, keepdim=True))


def in_setup(ctx: fl.Context) -> None:
    assert ctx.label_counts.shape[0] == CLIENTS


def by_loss(state: fl.State, upload: fl.Upload) -> fl.Models:
    return fl.Models(fl.weighted_mean(state.models, upload.selected(), upload.loss[None]))


def by_steps(state: fl.State, upload: fl.Upload) -> fl.Models:
    return fl.Models(fl.weighted_mean(state.models, upload.selected(), upload.steps[None]))


def by_choice(state: fl.State, upload: fl.Upload) -> fl.Models:
    return fl.Models(upload.params[torch.arange(len(upload.ids)), upload.chosen].mean(0)[None])


def two_candidates(state: fl.State, stage: fl.Stage) -> fl.Start:
    return fl.Start(params=state.models.expand(len(stage.clients), 2, -1))


def trial(ctx: fl.Context) -> list[fl.Stage]:
    return [fl.Stage("trial", ctx.cohort, 1)]


def own_labels(stage: fl.Stage, ctx: fl.Context) -> fl.Start:
    return fl.Start(client_memory={"n": ctx.own_label_counts(stage.clients)})


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ({}, ["numbers of samples"]),
        ({"aggregate": mean}, []),
        ({"aggregate": by_loss}, ["losses"]),
        ({"aggregate": by_steps}, ["numbers of steps"]),
        ({"aggregate": mean, "setup": in_setup}, ["label counts"]),
        ({"aggregate": mean, "dispatch": own_labels}, []),
        ({"aggregate": by_choice}, []),
        (
            {"aggregate": by_choice, "dispatch": two_candidates, "plan": trial},
            ["chosen candidates"],
        ),
    ],
    ids=[
        "the default",
        "a uniform mean",
        "losses",
        "steps",
        "label counts",
        "own label counts",
        "a choice of one",
        "a choice of two",
    ],
)
def test_a_result_says_what_hooks_have_read(
    hooks: dict[str, Any], expected: list[str], play_toy: Play
) -> None:
    assert play_toy(reads(**hooks), rounds=1).result.reads == expected


def test_a_wrapper_that_hands_an_upload_on_has_not_read_it(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Wrapper:
        @fl.hookimpl(wrapper=True)
        def aggregate(self, upload: fl.Upload) -> Any:
            replace(upload, extras={})
            return (yield)

    method = composition(*reads(aggregate=mean).layers, ("wrapper", Wrapper()))
    assert play_toy(method, rounds=1).result.reads == []


def test_what_was_read_before_a_run_was_resumed_is_kept(play_toy: Play, tmp_path: Path) -> None:
    """Losses are read in round 1 only, which the resumed run does not make again."""

    def once(state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        return by_loss(state, upload) if ctx.round == 1 else mean(state, upload)

    whole = play_toy(reads(aggregate=once))
    again = resumed(whole, tmp_path, after=2)
    assert again.run.hooks.read == set()
    assert again.result.reads == whole.result.reads == ["losses"]


def test_of_a_checkpoint_that_does_not_know_nothing_is_said(play_toy: Play) -> None:
    played = play_toy("fedavg", rounds=1)
    plain = {name: value for name, value in played.run.history.plain().items() if name != "reads"}
    older = History.of(plain)
    older.add_reads({"losses"})
    assert older.reads is None
    played.run.history = older
    text = played.result.canonical()
    assert Result.model_validate_json(text).reads is None
    assert '"reads"' not in text, "as in files from before it"
