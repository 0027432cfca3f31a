"""FedC2I: every client mixes all models, weighted by the loss when each is left out.

Tan, Long, Jiang, Zhang, "Influence-oriented personalized federated learning", arXiv 2410.03315
(2024).

    theta^-i, phi^-i   means over all clients but i                                  (Eq. 4, 7)
    l_m[i]    = CE of (theta^-i, phi_m) on one batch of client m
    lambda_m  = l_m^gamma / sum l_m^gamma                                            (Eq. 5)
    h_m[i, c] = CE of (theta_m, phi_m with row c of phi^-i); Lambda_m[., c] likewise   (Eq. 9)
    start     theta = sum_i lambda_m[i] theta_i,  phi_c = sum_i Lambda_m[i, c] phi_{i, c}  (Eq. 10)

A larger loss without client i means a larger influence of i. theta is the body, phi the head; a
row of the head is the weights and bias of a class. All clients take part in every round; a client
is evaluated with its model after local training, and also with the mixed model. Departures:
summation indices as the text describes them; weights as softmax(gamma log l); BatchNorm statistics
are mixed like the body. The paper does not say whether the optimiser goes on: here Adam restarts in
every round, as its moments belong to another start.

Ablations (Table 3): `fedc2i-lambda` mixes the body alone, heads are averaged, which is our choice
(the paper does not say; `head=local` and `head=lambda` are the others); `fedc2i-class-local` (the
paper's Lambda/l) mixes heads, bodies stay local; `fedc2i-class-global` (Lambda/g) mixes heads,
bodies are averaged. Averages here give each client the same weight, where Eq. 3 weighs by samples:
on Office-10, whose domains differ in size, the two are not the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

import flbench as fl

Body = Literal["lambda", "mean", "local"]
Head = Literal["Lambda", "lambda", "mean", "local"]
FEW = 20  # largest number of clients whose influence is noted in every round, for small results


@dataclass(frozen=True)
class FedC2I:
    """Every client mixes all models, the head class by class, by the loss when each is left out."""

    paper: ClassVar[str] = "Tan, Long, Jiang, Zhang, arXiv 2410.03315"
    year: ClassVar[int] = 2024
    kind: ClassVar[str] = "personalised"
    row_per_client: ClassVar[bool] = True
    presets: ClassVar[fl.Presets] = {"fedc2i": {"gamma": 5.0}}

    gamma: Annotated[float, Ge(0), "how sharply losses become weights; 0 = uniform"] = 5.0
    body: Annotated[Body, "how bodies are made: mixed, averaged or kept"] = "lambda"
    head: Annotated[Head, "how heads are made: by class, like the body, averaged or kept"] = (
        "Lambda"
    )
    probe_split: Annotated[Literal["train", "validation"], "where the batch comes from"] = "train"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One model per client, and the model that each client last mixed."""
        if ctx.clients < 2:
            raise fl.Undefined("leaving one client out needs at least two")
        if not ctx.layout.head.any():
            raise fl.Undefined("the network has no head whose classes could be told apart")
        mixed = ctx.initial.expand(ctx.clients, -1).clone()
        return fl.one_model_per_client(ctx, {"fedc2i.mixed": fl.Memory(mixed, "client")})

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> Sequence[fl.Stage]:
        """All clients train in every round."""
        return (fl.Stage("train", ctx.everybody, ctx.local.epochs),)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, phase: fl.Phase, ctx: fl.Context
    ) -> fl.Scores | None:
        """Row m: l_m[i], the loss of client m without client i; also mix each client's model."""
        if phase == "after" or stage.kind != "train":
            return None
        without = left_out(state.models)
        exact = state.models.double()
        # Tables, not lists: small tensors between the large ones of `mix` would keep free memory in
        # pieces that none of them fits.
        mixed, ids = torch.empty_like(without), ctx.everybody
        losses = torch.empty(ctx.clients, ctx.clients, dtype=torch.float64)
        for m in range(ctx.clients):
            mixed[m], losses[m] = self.mix(state.models[m, :], exact, without, m, ctx)
        if ctx.clients <= FEW and not losses[0].isnan().any():  # the paper's Fig. 3
            weights = influence(losses[0], self.gamma).round(decimals=4)
            ctx.note("fedc2i.influence_0", weights.tolist())
        ctx.send("down", ids, "models", self.scalars(ctx, ctx.clients - 1))
        return fl.Scores(losses, ids, "clients", ids, {"fedc2i.mixed": mixed})

    @property
    def bodies(self) -> Body:
        """How bodies are sent: lambda_m is measured with all of them, also if it mixes heads."""
        return "lambda" if self.head == "lambda" else self.body

    def scalars(self, ctx: fl.Context, others: int) -> int:
        """Scalars that a client downloads: each part of all others, of their mean, or none."""
        parts = ((self.bodies, ctx.layout.body), (self.head, ctx.layout.head))
        copies = {"local": 0, "mean": 1}
        return sum(copies.get(how, others) * int(mask.sum()) for how, mask in parts)

    def mix(
        self, own: Tensor, models: Tensor, without: Tensor, client: int, ctx: fl.Context
    ) -> tuple[Tensor, Tensor]:
        """The start of one client, shape (W,), and its losses l, shape (N,); NaN if not needed.

        Args:
            own: the client's model, shape (W,).
            models: all models, shape (N, W).
            without: the means with each client left out, shape (N, W).
            client: its id.
            ctx: the run's context.
        """
        x, y = ctx.client_data(client, self.probe_split)
        if not len(y):
            raise fl.UserError(f"client {client} has no {self.probe_split} samples")
        rng = ctx.rng("fedc2i", ctx.round, client=client)
        batch = torch.as_tensor(rng.permutation(len(y))[: ctx.local.batch_size])
        x, y = x[batch], y[batch]
        body, head, counters = ctx.layout.body, ctx.layout.head, ctx.layout.counters
        models, mixed = models.double(), own.double()
        losses = torch.full((len(models),), torch.nan, dtype=torch.float64)
        if "lambda" in (self.body, self.head):
            own_head = torch.where(head.to(own.device), own, without)  # (theta^-i, phi_m)
            logits = ctx.logits(own_head, x).double()
            labels = y.repeat(len(logits))
            per_sample = F.cross_entropy(logits.flatten(0, 1), labels, reduction="none")
            losses = per_sample.view(len(logits), -1).mean(dim=1)
            client_weights = influence(losses, self.gamma)  # lambda_m
        for how, mask in ((self.body, body), (self.head, head)):
            if how == "lambda":
                mixed[mask] = (client_weights @ models)[mask]
            elif how == "mean":
                mixed[mask] = models.mean(dim=0)[mask]
        if self.head == "Lambda":
            class_weights = influence(class_losses(own, without, x, y, ctx), self.gamma)
            scalar_weights = class_weights[:, class_of(ctx)]
            mixed[head] = (scalar_weights * models[:, head]).sum(dim=0)
        mixed[counters] = models[:, counters].amax(dim=0)
        return mixed.float(), losses

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Clients start from their mixed models and send the parts that others mix."""
        mixed = state.memory["fedc2i.mixed"][stage.clients, None]
        return fl.Start(
            params=mixed, sent_mask=ctx.layout.none_mask, returned_mask=self.uploaded(ctx)
        )

    def uploaded(self, ctx: fl.Context) -> Tensor:
        """The parts that others mix, shape (W,), bool."""
        uploaded = ctx.layout.none_mask
        if self.bodies != "local":
            uploaded = uploaded | ctx.layout.body
        if self.head != "local":
            uploaded = uploaded | ctx.layout.head
        return uploaded

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor) -> fl.Personal:
        """The model after local training."""
        mixed = fl.Personal(params=state.memory["fedc2i.mixed"][clients])
        return fl.Personal(row=state.membership.home[clients], others={"mixed": mixed})

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """A newcomer mixes once, starting from the mean.

        Of parts that stay with their clients it starts from the initial weights.
        """
        mean = state.models.double().mean(dim=0).float()
        mean = torch.where(self.uploaded(ctx).to(mean.device), mean, ctx.initial)
        without = left_out(state.models)
        rows = [self.mix(mean, state.models, without, int(m), ctx)[0] for m in clients]
        return fl.Personal(params=torch.stack(rows))


def left_out(models: Tensor) -> Tensor:
    """Row i: the uniform mean of all models but the i-th, shape (N, W)."""
    total = models.double().sum(dim=0)
    return ((total - models.double()) / (len(models) - 1)).float()


def influence(losses: Tensor, gamma: float) -> Tensor:
    """l^gamma / sum l^gamma along the first dimension, float64; uniform where all are 0.

    Example:
        >>> influence(torch.tensor([1.0, 2.0]), 2.0).tolist()
        [0.2, 0.8]
    """
    return F.softmax(gamma * losses.double().clamp(min=1e-12).log(), dim=0)


def class_losses(own: Tensor, without: Tensor, x: Tensor, y: Tensor, ctx: fl.Context) -> Tensor:
    """h[i, c]: loss of a client's model whose head has row c of phi^-i, shape (N, C).

    Replacing row c changes only column c of the logits. So one pass is enough: the loss is the
    log-sum-exp of the other columns and the new one, minus the logit of the label.
    """
    features = ctx.features(own[None], x)[0].double()
    logits = head_logits(features, own[None], ctx)[0]
    replaced = head_logits(features, without, ctx)
    classes = ctx.classes
    eye = torch.eye(classes, dtype=torch.bool, device=logits.device)
    others = logits[:, None, :].masked_fill(eye, -torch.inf).logsumexp(dim=2)
    is_label = F.one_hot(y, classes).bool()
    label_logit = torch.where(is_label, replaced, logits.gather(1, y[:, None]))
    log_sum = torch.logaddexp(others.expand_as(replaced), replaced)
    return (log_sum - label_logit).mean(dim=1)


def head_logits(features: Tensor, models: Tensor, ctx: fl.Context) -> Tensor:
    """Logits of the models' heads on features (b, d): shape (m, b, C), float64."""
    logits: Tensor = torch.zeros((), dtype=torch.float64, device=models.device)
    for slot in ctx.layout.slots:
        if slot.head:
            part = models[:, slot.start : slot.stop].double().view(-1, *slot.shape)
            is_weight = len(slot.shape) == 2
            logits = logits + (features @ part.mT if is_weight else part[:, None])
    return logits


def class_of(ctx: fl.Context) -> Tensor:
    """The class of each scalar of the head, in the row's order, shape (P_h,), int64."""
    slots = [slot for slot in ctx.layout.slots if slot.head]
    return torch.cat(
        [
            torch.arange(s.shape[0]).repeat_interleave((s.stop - s.start) // s.shape[0])
            for s in slots
        ]
    )


@dataclass(frozen=True)
class FedC2ILambda(FedC2I):
    """Ablation of FedC2I: client-level influence mixes bodies, heads are averaged."""

    head: Annotated[Head, "how heads are made"] = "mean"


@dataclass(frozen=True)
class FedC2IClassLocal(FedC2I):
    """Ablation of FedC2I: class-level influence mixes heads, bodies stay local."""

    body: Annotated[Body, "how bodies are made"] = "local"


@dataclass(frozen=True)
class FedC2IClassGlobal(FedC2I):
    """Ablation of FedC2I: class-level influence mixes heads, bodies are averaged."""

    body: Annotated[Body, "how bodies are made"] = "mean"
