"""Attacks by hand: what attackers train on, what they send, and what the attack is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from by_hand import Drawn, create, message
from small import executors_agree, uploaded
from toy import CLIENTS, Play, composition, refused, watching

import flbench as fl

STAGE = fl.Stage("train", torch.tensor([0, 1, 2, 3]), 1)
CTX: Any = Drawn(0.4, 0.1, 0.3, 0.2)
ATTACKS = ("sign-flip", "label-flip", "inner-product", "backdoor")


def sent(uploads: list[Any], client: int) -> torch.Tensor:
    """What the server got from a client in the first stage."""
    return uploads[0].selected()[uploads[0].ids == client][0]


def watched(play_toy: Play, *names: str, **settings: Any) -> list[Any]:
    """The uploads that arrive in a round in which all six clients take part."""
    uploads: list[Any] = []
    layers = [(name, create(name, **settings)) for name in names]
    play_toy(composition(*layers, ("watch", watching(uploads))), rounds=1, participation=1.0)
    return uploads


# --- who attacks --------------------------------------------------------------------------------


@pytest.mark.slow
def test_attacks_that_are_named_together_have_the_same_attackers(play_toy: Play) -> None:
    """Half of the clients: those who differ from FedAvg are the same three, whatever they do."""
    honest = watched(play_toy)
    found = []
    for names in (*((name,) for name in ATTACKS), ATTACKS):
        uploads = watched(play_toy, *names, share=0.5)
        differ = [not sent(uploads, i).allclose(sent(honest, i)) for i in range(CLIENTS)]
        found.append(differ)
    assert found == [found[0]] * 5
    assert sum(found[0]) == 3


# --- label flip ---------------------------------------------------------------------------------


def flipped(**settings: Any) -> Any:
    """What a step of four labels makes of labels 0 to 3, of an honest client and an attacker."""

    class Recorded(fl.ClientModule):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return batch[1]

    ctx = SimpleNamespace(classes=4)
    steps = create("label-flip", **settings).client_module(ctx)
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(Recorded(torch.nn.Linear(1, 1), fl.LocalTraining()))
    module = end.value.value
    found = []
    for attacks in (False, True):
        module.received = {"label-flip.attacks": torch.tensor(attacks)}
        found.append(module.training_step((torch.zeros(4, 1), torch.arange(4)), 0).tolist())
    return found


def test_label_flip_by_hand() -> None:
    """C = 4: the labels 0, 1, 2, 3 become 3 - y, or what a table says."""
    assert flipped() == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert flipped(labels=(0, 1, 2, 0)) == [[0, 1, 2, 3], [0, 1, 2, 0]]


@pytest.mark.parametrize("labels", [(0, 1), (0, 1, 2, 4)])
def test_labels_that_are_not_there_are_refused(labels: tuple[int, ...]) -> None:
    with pytest.raises(fl.UserError, match="4 labels from 0 to 3 expected"):
        flipped(labels=labels)


def test_only_attackers_train_on_false_labels(play_toy: Play) -> None:
    honest, attacked = watched(play_toy), watched(play_toy, "label-flip", attackers=(2,))
    for client in range(CLIENTS):
        same = sent(attacked, client).equal(sent(honest, client))
        assert same == (client != 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["ditto", "fedproto", "fedrod", "moon", "per-fedavg", "scaffold"]
)
@pytest.mark.parametrize("attack", ["label-flip", "backdoor"])
def test_what_attackers_train_on_goes_with_any_method(
    attack: str, method: str, play_toy: Play
) -> None:
    """Its own client module or loss: in both orders of the names it is the same attack."""
    more = {"rounds": 1, "participation": 1.0}
    plain = play_toy(method, **more).personal
    first, second = (
        play_toy(names, settings={"share": 1.0}, **more).personal
        for names in (f"{method}+{attack}", f"{attack}+{method}")
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, plain)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["label-flip", "backdoor"])
def test_attackers_train_in_lanes(attack: str, play_toy: Play) -> None:
    executors_agree(play_toy, attack, settings={"share": 0.5}, rounds=3, participation=1.0)
    played = play_toy(attack, executor="vectorised", rounds=1)
    assert not [line for line in played.said if "one by one" in line]


# --- inner product ------------------------------------------------------------------------------


def attacked_messages(home: list[int], masks: list[bool], **settings: Any) -> list[list[float]]:
    """Updates of clients 0 and 2, who attack, and of client 1, from (1, 1).

    Honest are client 1, who moved by (2, 0), and client 3, who moved by (4, 2).
    """
    upload = uploaded([[5.0, 5.0], [3.0, 1.0], [7.0, 7.0]])
    upload = replace(
        upload,
        ids=torch.arange(4),
        params=torch.cat([upload.params, torch.tensor([[[5.0, 3.0]]])]),
        chosen=torch.zeros(4, dtype=torch.int64),
    )
    state = SimpleNamespace(membership=fl.Membership(torch.tensor(home)))
    attack = create("inner-product", attackers=(0, 2), **settings)
    coder = attack.encode(state, upload, CTX)
    own = message(
        [4.0, 4.0],
    )
    own = replace(own, mask=torch.tensor(masks))
    return [coder(replace(own, client=client)).update.tolist() for client in (0, 1, 2)]


def test_inner_product_by_hand() -> None:
    """The mean of (2, 0) and (4, 2) is (3, 1), times -.5; the honest client sends its (4, 4)."""
    assert attacked_messages([0] * 4, [True, True]) == [[-1.5, -0.5], [4.0, 4.0], [-1.5, -0.5]]
    assert attacked_messages([0] * 4, [True, True], epsilon=2.0)[0] == [-6.0, -2.0]
    assert attacked_messages([0] * 4, [True, False])[0] == [-1.5, 0.0], "what it does not send"


def test_attackers_turn_around_those_who_have_their_model() -> None:
    """Client 0 shares a model with 1: -.5 (2, 0). Nobody honest has that of client 2: the mean."""
    assert attacked_messages([0, 0, 1, 2], [True, True])[0] == [-1.0, 0.0]
    assert attacked_messages([0, 0, 1, 2], [True, True])[2] == [-1.5, -0.5]


def test_attackers_alone_stay_as_they_are() -> None:
    upload, state = (
        uploaded([[5.0, 5.0]], ids=(0,)),
        SimpleNamespace(membership=fl.Membership(torch.zeros(4, dtype=torch.int64))),
    )
    coder = create("inner-product", attackers=(0,)).encode(state, upload, CTX)
    alone = message([4.0, 4.0])
    assert coder(alone) is alone


def test_a_defence_sees_the_attacked_uploads_in_any_order(play_toy: Play) -> None:
    """Epsilon 5: with one of six clients, the mean of the honest times (5 - 5) / 6 is nothing."""
    attack = ("inner-product", create("inner-product", attackers=(0,), epsilon=5.0))
    mean = ("trimmed-mean", create("trimmed-mean", beta=0.0))
    moved = []
    for layers in ((attack, mean), (mean, attack), (mean,)):
        played = play_toy(composition(*layers), rounds=1, participation=1.0)
        moved.append((played.state.models[0] - played.run.context.initial).abs().max().item())
    assert moved[0] == moved[1] < 1e-6 < 1e-2 < moved[2]


# --- backdoor -----------------------------------------------------------------------------------


def test_the_trigger_by_hand() -> None:
    """A third of four samples are two; the lower right pixel of 2 x 2, or the last feature."""
    door = create("backdoor", poisoned=0.33, size=1, target=7, value=9.0)
    x, y = door.triggered(torch.zeros(4, 1, 2, 2), torch.arange(4))
    assert x[0].flatten().tolist() == x[1].flatten().tolist() == [0.0, 0.0, 0.0, 9.0]
    assert not x[2:].any()
    assert y.tolist() == [7, 7, 2, 3]
    x, _ = door.triggered(torch.zeros(1, 3), torch.arange(1))
    assert x.tolist() == [[0.0, 0.0, 9.0]]
    wide = create("backdoor", size=2).stamped(torch.zeros(1, 1, 3, 3))
    assert wide[0, 0].tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]


def test_model_replacement_by_hand() -> None:
    """Of four clients two attack: gamma is 2, so that the mean of all moves as they do."""
    door = create("backdoor", attackers=(0, 3))
    coder = door.encode(STAGE, CTX)
    assert coder(message([3.0, 4.0])).update.tolist() == [6.0, 8.0]
    honest = replace(message([3.0, 4.0]), client=1)
    assert coder(honest) is honest
    assert door.encode(STAGE.select(torch.tensor([0, 1, 2])), CTX)(message([1.0])).update == 3.0
    own = create("backdoor", attackers=(0,), boost=5.0).encode(STAGE, CTX)
    assert own(message([1.0])).update == 5.0


def test_the_success_of_a_backdoor_counts_samples_of_other_labels() -> None:
    assert create("backdoor", target=2).wanted(torch.arange(4)).tolist() == [2, 2, -100, 2]


def test_a_backdoor_to_a_label_that_is_not_there_is_refused(play_toy: Play) -> None:
    door = composition(("backdoor", create("backdoor", target=4)))
    assert "a label below 4 expected, got 4" in refused(play_toy, door, rounds=1)


@dataclass(frozen=True)
class Told:
    """Every sample is said to have label 1, and is to be of the label that it is compared with."""

    wanted: Any

    @fl.hookimpl
    def personalise(self, clients: torch.Tensor) -> fl.Personal:
        row = torch.zeros_like(clients)

        def one(module: fl.ClientModule, x: torch.Tensor) -> torch.Tensor:
            return torch.eye(4)[torch.ones(len(x), dtype=torch.int64)]

        further = fl.Personal(row=row, predictor=one, labels=self.wanted)
        return fl.Personal(row=row, others={"further": further})


def only(target: int, but: int, y: torch.Tensor) -> torch.Tensor:
    return torch.where(y == but, -100, target)


def further(wanted: Any, play_toy: Play) -> float | None:
    """The accuracy of a further model that says 1 to everything."""
    played = play_toy(composition(("told", Told(wanted))), rounds=1)
    return played.run.history.curves["accuracy_further"][0]


@pytest.mark.parametrize(
    ("wanted", "accuracy"),
    [
        (partial(only, 1, 9), 1.0),
        (partial(only, 2, 9), 0.0),
        (partial(only, 1, 1), 1.0),
        (lambda y: torch.full_like(y, -100), None),
    ],
)
def test_further_models_are_compared_with_their_own_labels(
    wanted: Any, accuracy: float | None, play_toy: Play
) -> None:
    assert further(wanted, play_toy) == accuracy


def test_clients_without_samples_that_count_are_in_no_mean(play_toy: Play) -> None:
    """Half of the clients have labels 2 and 3: without them the mean is twice as large."""
    usual = further(None, play_toy)
    half = further(lambda y: torch.where(y < 2, y, -100), play_toy)
    assert usual is not None
    assert half == pytest.approx(2 * usual, abs=1e-5)


@pytest.mark.slow
def test_a_backdoor_opens_and_closes(play_toy: Play) -> None:
    """Attackers who replace the mean teach the trigger; with a median in their way they do not."""
    names = {
        "door": [("backdoor", create("backdoor", attackers=(0,), value=6.0, size=1))],
        "none": [("backdoor", create("backdoor", share=0.0, value=6.0, size=1))],
    }
    names["median"] = [*names["door"], ("median", create("median"))]
    suite: Any = {"rounds": 8, "participation": 1.0, "not_judged": [0]}
    suite["partition"] = {"name": "iid"}
    found = {
        name: play_toy(composition(*layers), **suite).run.history.curves["accuracy_backdoor"][-1]
        for name, layers in names.items()
    }
    assert found["door"] > 0.9
    assert found["door"] > found["median"]
    assert found["door"] > found["none"]
