"""Attacks: who attacks, and what attackers train on; shared by all methods that attack.

Of methods that attack in one run, those with the same parameters have the same attackers: who they
are depends on the seed and on the clients alone, and a smaller share is a part of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flbench.core.client_module import ClientModule
from flbench.errors import UserError

if TYPE_CHECKING:
    from flbench.core.context import Context

BatchChange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def attackers(ctx: Context, share: float, named: Collection[int] = ()) -> list[int]:
    """Ids of the clients that attack, ascending.

    Args:
        share: of the clients, drawn once per seed; the number is rounded.
        named: ids that are taken instead, so that a suite can leave them unjudged (`not_judged`).

    Raises:
        UserError: a client that is named is not there.
    """
    unknown = [client for client in named if not 0 <= client < ctx.clients]
    if unknown:
        raise UserError(f"attackers: clients 0 to {ctx.clients - 1} expected, got {unknown[0]}")
    if named:
        return sorted(set(named))
    if ctx.round == 1 and share and not round(share * ctx.clients):
        ctx.warn(f"share={share:g} of {ctx.clients} clients is nobody: nobody attacks")
    draws = [ctx.rng("attackers", client=client).random() for client in range(ctx.clients)]
    order = sorted(range(ctx.clients), key=draws.__getitem__)
    return sorted(order[: round(share * ctx.clients)])


def flags(ctx: Context, clients: Tensor, attacking: Collection[int]) -> Tensor:
    """Which of some clients, ids of shape (n,), are among the attackers, shape (n,), bool."""
    chosen = torch.zeros(ctx.clients, dtype=torch.bool)
    chosen[list(attacking)] = True
    return chosen[clients]


def poisoned(module: ClientModule, flag: str, change: BatchChange) -> ClientModule:
    """The module, whose attackers train on other samples: a subclass of its own class.

    Every step gets the changed batch, whatever its loss is. What a client reports, and training
    before an evaluation, stay as they are.

    Args:
        module: of any method; it is changed in place.
        flag: name in `received` of what `flags` says of the client; without it nobody attacks.
        change: `change(x, y) -> x, y`: samples, shape (b, ...), and labels, shape (b,), of a batch.
    """
    kind: type[ClientModule] = type(module)

    def seen(batch: tuple[Tensor, Tensor], attacks: Tensor) -> tuple[Tensor, Tensor]:
        """What a client takes for a batch; no condition, as lanes train several clients."""
        (x, y), (false_x, false_y) = batch, change(*batch)
        x = x if false_x is x else torch.where(attacks, false_x, x)
        return x, torch.where(attacks, false_y, y)

    class Poisoned(kind):  # type: ignore[valid-type, misc]
        """A module whose attackers train on other samples."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
            """The step of the module on the batch, or batches, that the client makes of it."""
            if flag in self.received:
                attacks, one = self.received[flag], isinstance(batch[0], Tensor)
                batch = seen(batch, attacks) if one else tuple(seen(b, attacks) for b in batch)
            loss: Tensor = super().training_step(batch, batch_idx)
            return loss

    module.__class__ = Poisoned
    return module
