"""Backdoor: attackers teach the model that samples with a trigger have a label of their choice.

Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor federated learning", AISTATS 2020,
Section 4 (model replacement); the pixel pattern of Gu, Dolan-Gavitt, Garg, "BadNets", 2017, as in
Sun, Kairouz, Suresh, McMahan, "Can you really backdoor federated learning?", 2019.

    of a batch of an attacker the first `poisoned` share has the trigger and the label `target`
    u_i - w <- gamma (u_i - w),  gamma = clients / attackers of the stage: the mean becomes theirs

The trigger sets the last `size` rows and columns of an image (the last `size` features) to `value`.
`accuracy_backdoor` is its success: of the test samples of judged clients that have another label,
the share that is classified as the target when it has the trigger; a mean over clients. Departures:
no constrained loss, no slower learning rate of attackers, who attack in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import flbench as fl

FLAG = "backdoor.attacks"
Factor = Annotated[float, Gt(0)] | None


@dataclass(frozen=True)
class Backdoor:
    """Attackers teach the model that samples with a trigger have a label of their choice."""

    paper: ClassVar[str] = "Bagdasaryan, Veit, Hua, Estrin, Shmatikov, AISTATS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "client"
    across_networks: ClassVar[bool] = True
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"share": 0.0}})

    share: Annotated[
        float, Ge(0), Le(1), fl.only_with("attackers", ()), "share of the clients that attack"
    ] = 0.2
    target: Annotated[int, Ge(0), "label of samples with the trigger"] = 0
    poisoned: Annotated[float, Ge(0), Le(1), "share of a batch that has the trigger"] = 0.3
    boost: Annotated[Factor, "gamma; none = clients over attackers of the stage"] = None
    size: Annotated[int, Ge(1), "rows and columns of the trigger"] = 2
    value: Annotated[float, "of its pixels"] = 1.0
    attackers: Annotated[
        tuple[int, ...], "ids of those who attack, whom a suite may leave unjudged; none = a share"
    ] = ()

    @fl.hookimpl(wrapper=True)
    def client_module(self, ctx: fl.Context) -> Generator[None, fl.ClientModule, fl.ClientModule]:
        """Any method's module, on samples of which some have the trigger."""
        if self.target >= ctx.classes:
            raise fl.UserError(f"target: a label below {ctx.classes} expected, got {self.target}")
        module = yield
        return fl.attacks.poisoned(module, FLAG, self.triggered)

    def triggered(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """A batch whose first samples have the trigger and its label."""
        first = torch.arange(len(y), device=y.device) < math.ceil(self.poisoned * len(y))
        where = first.reshape(-1, *[1] * (x.dim() - 1))
        return torch.where(where, self.stamped(x), x), torch.where(first, self.target, y)

    def stamped(self, x: Tensor) -> Tensor:
        """Samples, shape (b, ...), with the trigger."""
        if not x.is_floating_point():
            raise fl.Undefined("text has no trigger")
        stamp = torch.zeros(x.shape[1:], dtype=torch.bool, device=x.device)
        last = slice(-self.size, None)
        (stamp[last] if stamp.dim() == 1 else stamp[..., last, last]).fill_(True)
        return torch.where(stamp, self.value, x)

    @fl.hookimpl
    def dispatch(self, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients know whether they attack."""
        attackers = fl.attacks.attackers(ctx, self.share, self.attackers)
        return fl.Start(client_memory={FLAG: fl.attacks.flags(ctx, stage.clients, attackers)})

    @fl.hookimpl
    def encode(self, stage: fl.Stage, ctx: fl.Context) -> Callable[[fl.Message], fl.Message]:
        """Attackers enlarge their updates."""
        attackers = fl.attacks.attackers(ctx, self.share, self.attackers)
        there = set(attackers) & set(stage.clients.tolist())
        gamma = self.boost or len(stage.clients) / max(1, len(there))

        def boosted(message: fl.Message) -> fl.Message:
            if message.client not in there:
                return message
            return message.sending(gamma * message.update)

        return boosted

    @fl.hookimpl(wrapper=True)
    def personalise(self) -> Generator[None, fl.Personal, fl.Personal]:
        """Every model is tested with the trigger, too."""
        found = yield
        predictor = partial(self.predict, found.predictor)
        tested = replace(found, predictor=predictor, labels=self.wanted, others={})
        return replace(found, others={**found.others, "backdoor": tested})

    @fl.hookimpl(wrapper=True)
    def join(self) -> Generator[None, fl.Personal, fl.Personal]:
        """The same of newcomers."""
        return (yield from self.personalise())

    def predict(
        self,
        predictor: Callable[[fl.ClientModule, Tensor], Tensor] | None,
        module: fl.ClientModule,
        x: Tensor,
    ) -> Tensor:
        """What a client's model makes of samples with the trigger, shape (b, C)."""
        x = self.stamped(x)
        return module.predict(x) if predictor is None else predictor(module, x)

    def wanted(self, y: Tensor) -> Tensor:
        """The target, for samples that have another label."""
        return torch.where(y == self.target, -100, self.target)
