"""CFL: groups split in two where the clients' updates point apart.

Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed multitask
optimization under privacy constraints", IEEE TNNLS 2020, arXiv 1910.01991.

    D_i = w_i - w_g;  split g if || mean D_i || < eps1 and max || D_i || > eps2
    into the two groups with the smallest largest cosine across (single linkage);
    each child goes on from w_g + mean of its members' D_i

Norms are taken over the members that trained in this round (at least two); cosines over the
latest update of every member, and a group of which some member was never heard does not split,
because silence is no similarity. `full_on_split` lets everybody train once before a split is
decided. Thresholds depend on network and learning rate; `eps_mode=relative` asks for a ratio of
the two norms below 0.25 instead. Departures: uniform means by default; `linkage=complete` is the
released rule, which misses the optimal cut; `gamma_max` demands a gap between the halves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl


@dataclass(frozen=True)
class CFL:
    """Groups split in two where the clients' updates point apart."""

    paper: ClassVar[str] = "Sattler, Müller, Samek, IEEE TNNLS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"pfedlia": {}, "cfl": {"full_on_split": True}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"eps1": 9, "eps2": 0, "start_round": 1},
        equals={"fedavg": {"start_round": 9, "weighting": "samples"}},
        fails={"every-hook-answers": "plan acts with full_on_split only"},
    )

    eps1: Annotated[float, Ge(0), "a group may split when its mean update is shorter"] = 0.4
    eps2: Annotated[float, Ge(0), "... and its longest update is longer"] = 1.6
    eps_mode: Annotated[Literal["absolute", "relative"], "norms, or their ratio below 0.25"] = (
        "absolute"
    )
    min_size: Annotated[int, Ge(1), "only larger groups split"] = 2
    start_round: Annotated[int, Ge(0), "no split before this round is over"] = 20
    linkage: Annotated[Literal["single", "complete"], "how a group is cut in two"] = "single"
    gamma_max: Annotated[float, Ge(0), "least sqrt((1 - largest cosine across) / 2)"] = 0.0
    full_on_split: Annotated[bool, "everybody trains once before a split"] = False
    path_select: Annotated[
        Literal["leaf", "val"], "the last model of a client's path, or the best"
    ] = "leaf"
    weighting: Annotated[fl.Weighting, "of the members in a group's mean"] = "uniform"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One group; no update heard; no split made."""
        if ctx.rounds <= self.start_round:
            told = f"{ctx.rounds} rounds do not exceed start_round={self.start_round}"
            ctx.warn(f"cfl: {told}: fedavg, no group splits")
        size, width, device = ctx.layout.parameters, ctx.layout.width, ctx.initial.device
        heard = torch.full((ctx.clients, size), torch.nan, device=device)
        memory = {
            "cfl.updates": fl.Memory(heard, "client"),
            "cfl.asked": fl.Memory(torch.tensor(0)),
            "cfl.splits": fl.Memory(torch.zeros(0, 2, dtype=torch.int64)),
            "cfl.parents": fl.Memory(torch.zeros(0, width, device=device)),
            "cfl.halves": fl.Memory(torch.zeros(0, 2, size, device=device)),
            "cfl.path": fl.Memory(torch.zeros(ctx.clients, 0, dtype=torch.bool), "client"),
        }
        return fl.Setup(memory=memory)

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> Sequence[fl.Stage] | None:
        """Everybody trains when a split is about to be decided and that is asked for."""
        if not self.full_on_split or int(state.memory["cfl.asked"]) != ctx.round:
            return None
        return (fl.Stage("train", ctx.everybody, ctx.local.epochs),)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Cosines of the latest updates; NaN where none was heard."""
        if upload is None or stage.kind != "train":
            return None
        size, home = ctx.layout.parameters, state.membership.home
        updates = state.memory["cfl.updates"].clone()
        start = state.models[home[upload.ids], :size]
        updates[upload.ids] = upload.selected()[:, :size] - start
        cosines, ids = fl.similarity.cosine(updates).cpu(), ctx.everybody
        return fl.Scores(cosines, ids, "clients", ids, {"cfl.updates": updates})

    @fl.hookimpl
    def cluster(
        self, state: fl.State, stage: fl.Stage, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Cut every group that is at rest as a whole but not in its parts."""
        if scores is None or ctx.round <= self.start_round:
            return None
        home, memory = state.membership.home.clone(), dict(state.memory)
        parent, asked = list(range(len(state.models))), False
        for group in range(len(parent)):
            members = (home == group).nonzero()[:, 0]
            acted = members[torch.isin(members, stage.clients)]
            if not self.at_odds(memory["cfl.updates"][acted], ctx.samples[acted], len(members)):
                continue
            cosines = scores.values[members][:, members]
            if cosines.isnan().any() or (self.full_on_split and len(acted) < len(members)):
                asked = True
                continue
            second = torch.as_tensor(fl.clustering.bipartition(cosines.numpy(), self.linkage))
            across = float(cosines[second][:, ~second].max())
            if ((1 - across) / 2) ** 0.5 < self.gamma_max:
                continue
            memory |= split(memory, state.models[group], group, len(parent), members, second)
            home[members[second]] = len(parent)  # members maps places back to client ids
            parent.append(group)
        kept = {name: memory[name] for name in memory if name.startswith("cfl.")}
        kept["cfl.asked"] = torch.tensor(ctx.round + 1 if asked else 0)
        return fl.Membership(home, parent=torch.tensor(parent), memory=kept)

    def at_odds(self, updates: Tensor, samples: Tensor, members: int) -> bool:
        """Whether a group's mean update is short and its longest one is not."""
        if len(updates) < 2 or members <= self.min_size:
            return False
        shares = samples if self.weighting == "samples" else torch.ones_like(samples)
        weighted = shares.double().to(updates.device) @ updates.double()
        mean = float(weighted.norm()) / float(shares.sum())
        longest = float(updates.double().norm(dim=1).max())
        if self.eps_mode == "relative":
            return mean < 0.25 * longest
        return mean < self.eps1 and longest > self.eps2

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """w_g + mean D_i, which is the mean of the members' models: they started from one."""
        counters = ctx.layout.counters
        return fl.Models(fl.member_mean(state.models, upload, membership, counters, self.weighting))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """The leaf's model; on demand the best of the path; newcomers walk down the tree."""
        parents = state.memory["cfl.parents"]
        if not len(parents):
            return None
        if ctx.joining:
            return fl.Personal(row=descend(state, clients, ctx))
        home = state.membership.home[clients]
        if self.path_select == "leaf":
            return None
        models = torch.cat([parents, state.models])
        losses = ctx.evaluate(models, clients)
        passed = torch.zeros(losses.shape, dtype=torch.bool)
        passed[:, : len(parents)] = state.memory["cfl.path"][clients]
        passed[torch.arange(len(clients)), len(parents) + home] = True
        best = losses.masked_fill(~passed, torch.inf).argmin(dim=1)
        return fl.Personal(params=models[best])


def split(
    memory: Mapping[str, Tensor],
    model: Tensor,
    group: int,
    child: int,
    members: Tensor,
    second: Tensor,
) -> dict[str, Tensor]:
    """The tree with one more split: whom it cut, the model it cut at, where both halves pointed."""
    updates, path = memory["cfl.updates"][members], memory["cfl.path"]
    halves = torch.stack([updates[~second].mean(dim=0), updates[second].mean(dim=0)])
    passed = torch.zeros(len(path), 1, dtype=torch.bool)
    passed[members] = True
    return {
        "cfl.splits": torch.cat([memory["cfl.splits"], torch.tensor([[group, child]])]),
        "cfl.parents": torch.cat([memory["cfl.parents"], model[None]]),
        "cfl.halves": torch.cat([memory["cfl.halves"], halves[None]]),
        "cfl.path": torch.cat([path, passed], dim=1),
    }


def descend(state: fl.State, clients: Tensor, ctx: fl.Context) -> Tensor:
    """The row of each newcomer: at every split the half its own update points along."""
    row, size = torch.zeros(len(clients), dtype=torch.int64), ctx.layout.parameters
    tree = zip(state.memory["cfl.splits"], state.memory["cfl.parents"], strict=True)
    for (group, child), model, halves in (
        (*node, half) for node, half in zip(tree, state.memory["cfl.halves"], strict=True)
    ):
        here = (row == group).nonzero()[:, 0]
        if len(here):
            update = (ctx.train(model, clients[here]) - model)[:, :size]
            along = fl.similarity.cosine(update, halves).cpu()
            row[here] = torch.where(along[:, 1] > along[:, 0], child, group)
    return row
