"""FedEM: the data of each client come from a mixture of M common distributions.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated multi-task learning under a mixture of
distributions", NeurIPS 2021, Algorithm 1.

    E-step    q_s(m) ~ pi_i(m) exp(-l(h_m(x_s), y_s))     for each sample s of client i
    M-step    pi_i(m) = mean_s q_s(m)
              theta_m <- local training with the loss mean_s q_s(m) l(h_m(x_s), y_s)
    server    theta_m <- sum n_i theta_i,m / sum n_i
    predicts  p(y | x) = sum_m pi_i(m) p_m(y | x)

Every client trains all M components, which start from different weights; M = 1 is FedAvg. q is that
of the models at the start of the round, computed for each batch when it is needed. A newcomer makes
`fit_steps` pairs of E-step and M-step of pi alone, with the components as they are. A row holds
all components, one after the other.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

import flbench as fl

MEMORY = "fedem.pi"


class Components(fl.ClientModule):
    """M networks: `net`, and those in `others`."""

    def __init__(self, net: nn.Module, local: fl.LocalTraining, count: int) -> None:
        super().__init__(net, local)
        self.others = nn.ModuleList(copy.deepcopy(net) for _ in range(count - 1))

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of each component on each sample (for text: each token), shape (M, b, ...)."""
        logits = [component(x) for component in (self.net, *self.others)]
        return torch.stack(
            [F.cross_entropy(one.movedim(-1, 1), y, reduction="none") for one in logits]
        )

    def shares(self, losses: Tensor) -> Tensor:
        """E-step: q, shape (M, b), from losses of shape (M, b, ...)."""
        likelihood = -losses.flatten(2).sum(dim=2) if losses.dim() > 2 else -losses
        return (self.log_pi[:, None] + likelihood).softmax(dim=0)

    @property
    def log_pi(self) -> Tensor:
        """Logarithm of the client's mixture weights, shape (M,); equal ones if none are known."""
        if "pi" in self.received:
            return self.received["pi"].log()
        return next(self.parameters()).new_zeros(1 + len(self.others)).log_softmax(dim=0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ANN401
        """The M weighted losses; no parameter is in two of them."""
        x, y = batch
        with torch.no_grad():
            q = self.shares(self.with_row(self.start, self.losses, x, y))
        losses = self.losses(x, y)
        return (q.view(q.shape + (1,) * (losses.dim() - 2)) * losses).sum(dim=0).mean()

    def predict(self, x: Tensor) -> Tensor:
        """Logarithm of the mixture of the components' predictions, shape (b, C)."""
        parts = torch.stack([one(x).log_softmax(dim=-1) for one in (self.net, *self.others)])
        weights = self.log_pi.view(-1, *[1] * (parts.dim() - 1))
        return (weights + parts).logsumexp(dim=0)


@dataclass(frozen=True)
class FedEM:
    """The data of each client come from a mixture of M common distributions."""

    paper: ClassVar[str] = "Marfoq, Neglia, Bellet, Kameni, Vidal, NeurIPS 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "personalised"
    tasks: ClassVar[tuple[str, ...]] = ("classes",)
    effort: ClassVar[tuple[str, ...]] = ("m",)
    conformance: ClassVar[fl.Conformance] = fl.Conformance(equals={"fedavg": {"m": 1}})

    m: Annotated[int, Ge(1), "M, components; 1 = FedAvg"] = 3
    fit_steps: Annotated[int, Ge(0), "EM steps of a newcomer's mixture weights"] = 10

    @fl.hookimpl
    def client_module(self, net: nn.Module, ctx: fl.Context) -> fl.ClientModule:
        """The module with M networks."""
        return Components(net, ctx.local, self.m)

    def parts(self, ctx: fl.Context) -> list[Tensor]:
        """Places of each component's scalars in a row, in the same order, M tensors (W / M,)."""
        names = ["net", *(f"others.{number}" for number in range(self.m - 1))]
        return [ctx.layout.submodule(name).nonzero()[:, 0] for name in names]

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One row, whose components have different weights; equal mixture weights."""
        row, parts = ctx.initial.clone(), self.parts(ctx)
        for number in range(1, self.m):
            row[parts[number]] = ctx.fresh_initial(number)[parts[0]]
        home = torch.zeros(ctx.clients, dtype=torch.int64)
        pi = torch.full((ctx.clients, self.m), 1 / self.m, device=row.device)
        return fl.Setup(row[None], fl.Membership(home), {MEMORY: fl.Memory(pi, "client")})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage) -> fl.Start:
        """Clients have their mixture weights."""
        return fl.Start(client_memory={"pi": state.memory[MEMORY][stage.clients]})

    @fl.hookimpl
    def report(self, stage: fl.Stage) -> fl.Reporter | None:
        """Clients keep their new mixture weights: the mean q of all training samples."""

        @torch.no_grad()
        def weights(module: fl.ClientModule, x: Tensor, y: Tensor) -> fl.Report:
            assert isinstance(module, Components), "no other method may bring a module"
            module.eval()
            losses = module.with_row(module.start, module.losses, x, y)
            return fl.Report(kept={MEMORY: module.shares(losses).mean(dim=1)})

        return weights if stage.aggregates else None

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """The components, mixed with the client's weights."""
        home = state.membership.home[clients].clamp(min=0)
        return fl.Personal(row=home, extras={"pi": state.memory[MEMORY][clients]})

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The components, mixed with weights that are fitted to a newcomer's samples."""
        home = state.membership.home[clients].clamp(min=0)
        fitted = [
            self.fitted(state.models[row], int(i), ctx)
            for i, row in zip(clients, home, strict=True)
        ]
        return fl.Personal(row=home, extras={"pi": torch.stack(fitted)})

    def fitted(self, row: Tensor, client: int, ctx: fl.Context) -> Tensor:
        """Mixture weights of a newcomer, shape (M,), by EM with fixed components."""
        x, y = ctx.client_data(client)
        parts = self.parts(ctx)
        alone = row.repeat(self.m, 1)  # in row m every component is the m-th, so it predicts alone
        for number, mine in enumerate(parts):
            for place in parts:
                alone[number, place] = row[mine]
        logits = ctx.logits(alone, x)
        losses = torch.stack(
            [F.cross_entropy(one.movedim(-1, 1), y, reduction="none") for one in logits]
        )
        likelihood = -losses.reshape(self.m, len(y), -1).sum(dim=2)
        pi = torch.full((self.m,), 1 / self.m, device=row.device)
        for _ in range(self.fit_steps):
            pi = (pi.log()[:, None] + likelihood).softmax(dim=0).mean(dim=1)
        return pi
