"""Who attacks, and what attackers train on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import Drawn

import flbench as fl

DRAWN: Any = Drawn(0.4, 0.1, 0.3, 0.2)


def test_attackers_by_hand() -> None:
    """Those with the smallest numbers: half of four are 1 and 3, and .6 of four are two as well."""
    assert fl.attacks.attackers(DRAWN, 0.5) == [1, 3]
    assert fl.attacks.attackers(DRAWN, 0.6) == [1, 3]
    assert fl.attacks.attackers(DRAWN, 0.25) == [1]
    assert fl.attacks.attackers(DRAWN, 0.0) == []
    assert fl.attacks.attackers(DRAWN, 0.5, (2, 0, 2)) == [0, 2], "who is named, whatever the share"


def test_a_share_of_nobody_is_told() -> None:
    drawn: Any = Drawn(0.4, 0.1, 0.3, 0.2)
    told: list[str] = []
    drawn.warn = told.append
    assert fl.attacks.attackers(drawn, 0.1) == fl.attacks.attackers(drawn, 0.0) == []
    assert fl.attacks.attackers(drawn, 0.1, (2,)) == [2]
    assert told == ["share=0.1 of 4 clients is nobody: nobody attacks"]
    drawn.round = 2
    fl.attacks.attackers(drawn, 0.1)
    assert len(told) == 1, "in the first round"


@pytest.mark.parametrize("stranger", [4, -1])
def test_attackers_that_are_not_there_are_refused(stranger: int) -> None:
    with pytest.raises(fl.UserError, match=f"clients 0 to 3 expected, got {stranger}"):
        fl.attacks.attackers(DRAWN, 0.5, (0, stranger))


def test_flags_by_hand() -> None:
    assert fl.attacks.flags(DRAWN, torch.tensor([0, 1, 3]), [1, 2]).tolist() == [False, True, False]


class Summed(fl.ClientModule):
    """The loss is the sum of samples and labels of all batches of a step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        batches = [batch] if isinstance(batch[0], torch.Tensor) else batch
        return torch.stack([x.sum() + 10 * y.sum() for x, y in batches]).sum()


BATCH = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("received", "loss"),
    [({}, 13.0), ({"flag": torch.tensor(False)}, 13.0), ({"flag": torch.tensor(True)}, 56.0)],
)
def test_attackers_train_on_what_the_change_makes(received: Any, loss: float) -> None:
    """1 + 2 + 10 (0 + 1) = 13; with samples doubled and labels 2 and 3: 2 + 4 + 10 (2 + 3) = 56."""
    module = Summed(torch.nn.Linear(1, 1), fl.LocalTraining())
    module = fl.attacks.poisoned(module, "flag", lambda x, y: (2 * x, y + 2))
    module.received = received
    assert isinstance(module, Summed)
    assert module.training_step(BATCH, 0).item() == loss
    assert module.training_step((BATCH, BATCH), 0).item() == 2 * loss, "two batches of a step"


def test_two_changes_follow_each_other() -> None:
    """Labels 0, 1 are first 1, 2 by the change that came last, then 2, 4: 3 + 10 (2 + 4)."""
    module = Summed(torch.nn.Linear(1, 1), fl.LocalTraining())
    module = fl.attacks.poisoned(module, "double", lambda x, y: (x, 2 * y))
    module = fl.attacks.poisoned(module, "more", lambda x, y: (x, y + 1))
    module.received.update(double=torch.tensor(True), more=torch.tensor(True))
    assert module.training_step(BATCH, 0).item() == 63.0
