"""pFedHN: a hypernetwork at the server makes each client's model from what it knows of the client.

Shamsian, Navon, Fetaya, Chechik, "Personalized federated learning using hypernetworks", ICML 2021,
Algorithm 1.

    theta_i = h(v_i; phi);  client i trains theta_i to theta_i';  d_i = theta_i' - theta_i
    (phi, v) <- (phi, v) + alpha mean_i (d theta_i / d (phi, v))^T d_i

The perceptron h is added to the initial model. Buffers are not made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

import flbench as fl

PHI, V = "pfedhn.phi", "pfedhn.v"


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@dataclass(frozen=True)
class PFedHN:
    """A hypernetwork at the server makes each client's model."""

    paper: ClassVar[str] = "Shamsian, Navon, Fetaya, Chechik, ICML 2021"
    year: ClassVar[int] = 2021
    kind: ClassVar[str] = "personalised"

    lr: Annotated[float, Gt(0), "alpha, of the hypernetwork and of the embeddings"] = 0.1
    embedding: Annotated[int, Ge(1), "numbers that describe a client"] = 8
    hidden: Annotated[int, Ge(1), "width of the hypernetwork"] = 32

    def network(self, ctx: fl.Context) -> fl.FlatNetwork:
        """From an embedding to P scalars."""
        return fl.FlatNetwork(
            partial(perceptron, self.embedding, self.hidden, ctx.layout.parameters)
        )

    def models(self, phi: Tensor, v: Tensor, ctx: fl.Context) -> Tensor:
        """Models of clients with embeddings v, shape (n, e): shape (n, W)."""
        made = self.network(ctx)(phi, v)
        return ctx.initial + nn.functional.pad(made, (0, ctx.layout.buffers))

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """The hypernetwork's parameters, and an embedding for each client."""
        phi = self.network(ctx).initial(ctx.rng("pfedhn")).to(ctx.initial.device)
        rows = [ctx.rng("v", client=i).normal(size=self.embedding) for i in range(ctx.clients)]
        v = torch.stack([torch.as_tensor(row) for row in rows]).to(phi)
        return fl.Setup(memory={PHI: fl.Memory(phi), V: fl.Memory(v, "client")})

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start:
        """Each client gets the model that the hypernetwork makes for it."""
        with torch.no_grad():
            made = self.models(state.memory[PHI], state.memory[V][stage.clients], ctx)
        return fl.Start(params=made[:, None])

    @fl.hookimpl
    def aggregate(self, state: fl.State, upload: fl.Upload, ctx: fl.Context) -> fl.Models:
        """A step of the hypernetwork and of the embeddings along the clients' updates."""
        phi = state.memory[PHI].clone().requires_grad_()
        v = state.memory[V].clone().requires_grad_()
        with torch.enable_grad():
            made = self.models(phi, v[upload.ids], ctx)
            moved = (upload.selected() - made.detach()) / len(upload.ids)
            slopes = torch.autograd.grad((made * moved).sum(), (phi, v))
        new = [(it + self.lr * slope).detach() for it, slope in zip((phi, v), slopes, strict=True)]
        return fl.Models(state.models, {PHI: new[0], V: new[1]})

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The model that is made for each client."""
        return self.made(state.memory[V][clients], state, ctx)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal:
        """The model that is made from the mean of all embeddings."""
        return self.made(state.memory[V].mean(dim=0).expand(len(clients), -1), state, ctx)

    def made(self, v: Tensor, state: fl.State, ctx: fl.Context) -> fl.Personal:
        """Models that are made from embeddings, shape (n, d)."""
        with torch.no_grad():
            return fl.Personal(params=self.models(state.memory[PHI], v, ctx))
