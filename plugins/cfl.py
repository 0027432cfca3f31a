"""CFL: a group is split in two when its clients' updates have different directions.

Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed multitask
optimization under privacy constraints", IEEE TNNLS 2020, arXiv 1910.01991.

    D_i = w_i - w_g;  split g if || mean D_i || < eps1 and max || D_i || > eps2
    into the two groups with the smallest largest cosine between them (single linkage);
    each child group continues from w_g + mean of its members' D_i

Norms use the members that trained in this round (at least two). Cosines use the latest update of
every member; a group with a member that has not trained yet does not split. `full_on_split` calls
all clients before a split is decided, again where a member has never trained. The thresholds depend
on network and learning rate; `eps_mode=relative` compares the ratio of the two norms with 0.25
instead. Departures: uniform means by default; `linkage=complete` is the released rule, which misses
the optimal cut; `gamma_max` requires a larger gap between the halves, sqrt((1 - largest cosine
between them) / 2); with 0 only halves of the same direction stay together. No comparison holds at
equality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

import flbench as fl

ABSOLUTE = fl.only_with("eps_mode", "absolute")


@dataclass(frozen=True)
class CFL:
    """A group is split in two when its clients' updates have different directions."""

    paper: ClassVar[str] = "Sattler, Müller, Samek, IEEE TNNLS 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {"pfedlia": {}, "cfl": {"full_on_split": True}}
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"eps1": 9, "eps2": 0, "start_round": 1},
        equals={"fedavg": {"start_round": 9, "weighting": "samples"}},
        fails={"every-hook-answers": "for plan full_on_split, for personalise path_select=val"},
    )

    eps1: Annotated[float, Ge(0), ABSOLUTE, "a group may split when its mean update is shorter"] = (
        0.4
    )
    eps2: Annotated[float, Ge(0), ABSOLUTE, "... and its longest update is longer"] = 1.6
    eps_mode: Annotated[Literal["absolute", "relative"], "norms, or their ratio below 0.25"] = (
        "absolute"
    )
    min_size: Annotated[int, Ge(1), "only larger groups split"] = 2
    start_round: Annotated[int, Ge(0), "no split before this round is over"] = 20
    linkage: Annotated[Literal["single", "complete"], "how a group is cut in two"] = "single"
    gamma_max: Annotated[float, Ge(0), "a split needs a larger sqrt((1 - cosine across) / 2)"] = 0.0
    full_on_split: Annotated[bool, "all clients train once before a split"] = False
    path_select: Annotated[
        Literal["leaf", "val"], "the last model of a client's path, or the best"
    ] = "leaf"
    weighting: Annotated[fl.Weighting, "of the members in a group's mean"] = "uniform"

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """One group, no update and no split."""
        if ctx.rounds <= self.start_round:
            reason = f"{ctx.rounds} rounds do not exceed start_round={self.start_round}"
            ctx.warn(f"cfl: {reason}: fedavg, no group splits")
        size, width, device = ctx.layout.parameters, ctx.layout.width, ctx.initial.device
        updates = torch.full((ctx.clients, size), torch.nan, device=device)
        memory = {
            # latest update of each client; NaN = it has not trained yet
            "cfl.updates": fl.Memory(updates, "client"),
            # round in which all clients train, for `full_on_split`; 0 = none
            "cfl.asked": fl.Memory(torch.tensor(0)),
            # the tree: (group, its new child) of each split, the model and both mean updates then
            "cfl.splits": fl.Memory(torch.zeros(0, 2, dtype=torch.int64)),
            "cfl.parents": fl.Memory(torch.zeros(0, width, device=device)),
            "cfl.halves": fl.Memory(torch.zeros(0, 2, size, device=device)),
            # whether each client was a member of the group of each split
            "cfl.path": fl.Memory(torch.zeros(ctx.clients, 0, dtype=torch.bool), "client"),
        }
        return fl.Setup(memory=memory)

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> Sequence[fl.Stage] | None:
        """With `full_on_split`, all clients train in the round before a split."""
        if not self.full_on_split or int(state.memory["cfl.asked"]) != ctx.round:
            return None
        return (fl.Stage("train", ctx.everybody, ctx.local.epochs),)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """Cosines of the latest updates; NaN for clients that have not trained yet."""
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
        """Split every group whose mean update is short although single updates are long."""
        if scores is None or ctx.round <= self.start_round:
            return None
        home, memory = state.membership.home.clone(), dict(state.memory)
        parent, needs_all = list(range(len(state.models))), False
        asked = not self.full_on_split or int(memory["cfl.asked"]) == ctx.round
        for group in range(len(parent)):
            members = (home == group).nonzero()[:, 0]
            acted = members[torch.isin(members, stage.clients)]
            if not self.may_split(memory["cfl.updates"][acted], ctx.samples[acted], len(members)):
                continue
            cosines = scores.values[members][:, members]
            if cosines.isnan().any() or (not asked and len(acted) < len(members)):
                needs_all = True
                continue
            second = torch.as_tensor(fl.clustering.bipartition(cosines.numpy(), self.linkage))
            between = float(cosines[second][:, ~second].max())
            if round((1 - between) / 2, 9) <= round(self.gamma_max**2, 9):
                continue
            child = len(parent)
            memory |= split(memory, state.models[group], group, child, members, second)
            home[members[second]] = child
            parent.append(group)
        own_memory = {name: memory[name] for name in memory if name.startswith("cfl.")}
        own_memory["cfl.asked"] = torch.tensor(ctx.round + 1 if needs_all else 0)
        return fl.Membership(home, parent=torch.tensor(parent), memory=own_memory)

    def may_split(self, updates: Tensor, samples: Tensor, members: int) -> bool:
        """Whether a group's mean update is short and its longest update is long."""
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
    def weights(self, upload: fl.Upload) -> Tensor:
        """By samples, or uniform."""
        return fl.client_weights(upload, self.weighting)

    @fl.hookimpl
    def aggregate(
        self, state: fl.State, upload: fl.Upload, membership: fl.Membership, ctx: fl.Context
    ) -> fl.Models:
        """w_g + mean D_i, which is the mean of the members' models, as all start from w_g."""
        counters = ctx.layout.counters
        return fl.Models(fl.member_mean(state.models, upload, membership, counters))

    @fl.hookimpl
    def personalise(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """The leaf's model, or the best model of the path."""
        parents = state.memory["cfl.parents"]
        if not len(parents):
            return None
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

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer descends the tree."""
        if not len(state.memory["cfl.parents"]):
            return None
        return fl.Personal(row=descend(state, clients, ctx))


def split(
    memory: Mapping[str, Tensor],
    model: Tensor,
    group: int,
    child: int,
    members: Tensor,
    second: Tensor,
) -> dict[str, Tensor]:
    """Add a split to the tree: the groups, the model before it, and the halves' mean updates.

    Args:
        memory: the tree so far.
        model: the group's model, shape (W,).
        group: row of the group, which the first half keeps.
        child: row of the second half.
        members: ids of the group's clients, shape (n,).
        second: mask of the second half, shape (n,), bool.
    """
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
    """The row of each newcomer: at every split the half with the more similar mean update."""
    row, size = torch.zeros(len(clients), dtype=torch.int64), ctx.layout.parameters
    tree = zip(
        state.memory["cfl.splits"],
        state.memory["cfl.parents"],
        state.memory["cfl.halves"],
        strict=True,
    )
    for (group, child), model, halves in tree:
        here = (row == group).nonzero()[:, 0]
        if len(here):
            update = (ctx.train(model, clients[here]) - model)[:, :size]
            similarity = fl.similarity.cosine(update, halves).cpu()
            row[here] = torch.where(similarity[:, 1] > similarity[:, 0], child, group)
    return row
