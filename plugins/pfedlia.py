"""pFedLIA: clients grouped once, by lazy influence.

Rokvic, Danassis, Faltings, "Lazy but effective: collaborative personalized federated learning with
heterogeneous data", IJCNN 2025, arXiv 2505.02540.

    rounds 1..warmup: fedavg gives theta_0; then every client j trains a partial model theta_j from
    it (the probe) and every client i scores every j on its own validation split:
    I[i, j] = L_i(theta_0) - L_i(theta_j); positive = theta_j helps client i (Eq. 1).
    central: OPTICS on the rows of I groups the clients, then fedavg within each group;
    peer: each client selects the upper group of a 2-means of its row and averages those peers.

B1-B13 number what the paper leaves open, and what is done here:

    B1   "a batch of training data": all training samples of client j, for `probe_epochs` epochs;
         `lia_samples` takes a fixed random subset
    B2   Eq. 1 sums over the validation split: here the mean, which scales a row of I
    B3   what OPTICS sees: distances of the z-scores of rows (a row's mean becomes 0, its deviation
         1), or by other `features`, rounded to 1e-9: its ties must not be broken by rounding errors
    B4   `min_samples` is a tenth of the clients, but 4 below 35 clients and 3 below 16; the least
         size of a group is the same number; fewer than four clients are one group
    B5   OPTICS's noise points join the group with the least mean distance
    B6   every group starts from theta_0; with `start=lia_mean` from the mean of its members'
         partial models, weighted by samples
    B7   all N clients probe, not the cohort alone; the bytes count in round `warmup`
    B8   peers overlap: a sampled client trains its own model only, and the model of every client
         that selected it becomes the mean of the peers sampled in this round; so the models of
         clients that are not sampled change as well. `p2p_train=per_receiver` trains a model for
         each receiver
    B9   2-means is exact and sees raw influences, or what `kmeans_transform` makes of them, without
         a client's own; if all others help and the means differ by less than a tenth, all stay
    B10  a partial model is scored with its own BatchNorm statistics
    B11  scores are on the validation split, with `paper_leak` on the test split as accuracy is
    B12  the network on 32 x 32 images is the suite's choice (`stem` and `resize` of resnet18)
    B13  of text, the loss is the mean over tokens

A probe is trained and sent like any model, with all that other plugins add. The groups are found
once. A newcomer scores the stored partial models. central: it joins the group with the least mean
distance between their rows and its own, by the same `features`; with `features=sym` by its own
scores alone, as nobody scores a newcomer. peer: it starts from the mean of the models of the
clients that it selects, by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

import flbench as fl

PROBE = "lia"
Trained = Literal["gossip", "per_receiver"]
Several = Annotated[int, Ge(2)] | None
CENTRAL = fl.only_with("mode", "central")
PEER = fl.only_with("mode", "peer")


@dataclass(frozen=True)
class PFedLIA:
    """Clients grouped once by lazy influence, centrally (OPTICS) or by each peer (2-means)."""

    paper: ClassVar[str] = "Rokvic, Danassis, Faltings, IJCNN 2025, arXiv 2505.02540"
    year: ClassVar[int] = 2025
    kind: ClassVar[str] = "clustered"
    presets: ClassVar[fl.Presets] = {
        "pfedlia": {},
        "robust": {"mode": "peer", "kmeans_transform": "signed_sqrt"},
    }
    effort: ClassVar[tuple[str, ...]] = ("probe_epochs",)
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        params={"warmup": 1, "probe_epochs": 2}, equals={"fedavg": {"warmup": 9}}
    )

    mode: Annotated[Literal["central", "peer"], "who groups the clients"] = "central"
    warmup: Annotated[int, Ge(1), "rounds of fedavg before the probe"] = 20
    probe_epochs: Annotated[int, Ge(0), "local epochs of a partial model, the paper's k"] = 20
    lia_samples: Annotated[Several, "B1: samples of the probe; none = all"] = None
    features: Annotated[fl.clustering.Features, CENTRAL, "B3: features of OPTICS"] = "zrow"
    min_samples: Annotated[
        Several, CENTRAL, "B4: of OPTICS; none = a tenth of all, at least 3 or 4"
    ] = None
    xi: Annotated[float, Gt(0), Lt(1), CENTRAL, "B4: steepness at which OPTICS ends a group"] = 0.05
    noise: Annotated[fl.clustering.Noise, CENTRAL, "B5: group of OPTICS's noise points"] = "nearest"
    start: Annotated[Literal["theta0", "lia_mean"], "B6: where a group's model starts"] = "theta0"
    p2p_train: Annotated[Trained, PEER, "B8: a peer trains its own model or each receiver's"] = (
        "gossip"
    )
    kmeans_transform: Annotated[fl.clustering.Transform, PEER, "B9: applied before 2-means"] = (
        "none"
    )
    paper_leak: Annotated[bool, "B11: score on the test split, as the paper does"] = False
    topology: Annotated[Literal["relay", "p2p"], "models pass the server, or direct links"] = (
        "relay"
    )

    @fl.hookimpl
    def needs(self, ctx: fl.Context) -> fl.Needs:
        """All partial models at once, each on everybody's samples; and the influence matrix."""
        n, width = ctx.clients, ctx.layout.width
        if ctx.rounds <= self.warmup:
            return fl.Needs()
        return fl.Needs(evaluations=n * (n + 1), scalars=(n + 1) * width + 2 * n * n)

    @fl.hookimpl
    def setup(self, ctx: fl.Context) -> fl.Setup:
        """Remember the influence matrix; warn if there are too few rounds for the probe."""
        if ctx.rounds <= self.warmup:
            ctx.warn(f"pfedlia: {ctx.rounds} rounds do not exceed warmup={self.warmup}: fedavg")
        influence = torch.zeros(ctx.clients, ctx.clients, dtype=torch.float64)
        memory = {"pfedlia.influence": fl.Memory(influence, "client")}
        if ctx.newcomers or self.start == "lia_mean":
            memory["pfedlia.probed"] = fl.Memory(ctx.initial[:0])
        return fl.Setup(memory=memory)

    @fl.hookimpl
    def plan(self, ctx: fl.Context) -> tuple[fl.Stage, ...] | None:
        """In the last round of the warm-up all clients also train a partial model."""
        if ctx.round != self.warmup or ctx.rounds <= self.warmup:
            return None
        probe = fl.Stage("probe", ctx.everybody, self.probe_epochs, PROBE, self.lia_samples)
        return fl.Stage("train", ctx.cohort, ctx.local.epochs), probe

    @fl.hookimpl
    def dispatch(self, state: fl.State, stage: fl.Stage, ctx: fl.Context) -> fl.Start | None:
        """Peers exchange models; with `p2p` directly, with `per_receiver` the receivers' models."""
        mask = ctx.layout.none_mask if self.topology == "p2p" else None  # None = all scalars
        peers, ids = state.membership.weights, stage.clients
        if peers is None:
            return fl.Start(returned_mask=mask) if stage.label == PROBE else None
        if self.topology == "p2p":
            links = (peers[:, ids] > 0).sum(dim=1) - torch.isin(ctx.everybody, ids).long()
            transfers = 1 if self.p2p_train == "gossip" else 2  # to the peer and back
            ctx.send("peer", ctx.everybody, "model", transfers * links * ctx.layout.width)
        if self.p2p_train == "gossip":
            return fl.Start(sent_mask=mask)
        models, active = state.models.expand(len(ids), -1, -1), peers[:, ids].T > 0
        return fl.Start(params=models, active=active, rows=ctx.everybody, sent_mask=mask)

    @fl.hookimpl
    def score(
        self, state: fl.State, stage: fl.Stage, upload: fl.Upload | None, ctx: fl.Context
    ) -> fl.Scores | None:
        """I[i, j]: decrease of client i's validation loss by j's partial model, in nats."""
        if stage.label != PROBE or upload is None:
            return None
        if len(state.models) > 1:
            raise fl.UserError(f"expected one warm model to probe from, found {len(state.models)}")
        others = (ctx.clients - 1) * ctx.layout.width
        ctx.send("peer" if self.topology == "p2p" else "down", upload.ids, "partial models", others)
        probed = torch.cat([state.models, upload.selected()])
        influence = loss_decrease(probed, upload.ids, ctx)
        memory = {"pfedlia.influence": influence}
        if "pfedlia.probed" in state.memory:
            memory["pfedlia.probed"] = probed
        return fl.Scores(influence, upload.ids, "clients", upload.ids, memory)

    @fl.hookimpl
    def cluster(
        self, state: fl.State, stage: fl.Stage, scores: fl.Scores | None, ctx: fl.Context
    ) -> fl.Membership | None:
        """Group the clients once, after the probe; every group starts as `start` says."""
        if stage.label != PROBE or scores is None:
            return None
        influence, ids = scores.values.numpy(), scores.row_ids
        ctx.note("pfedlia.influence_0", influence[0].round(4).tolist())  # the paper's Fig. 3b
        if self.mode == "peer":
            chosen = torch.as_tensor(fl.clustering.select_peers(influence, self.kmeans_transform))
            sizes = chosen.sum(dim=1)
            ctx.send("peer" if self.topology == "p2p" else "up", ids, "selection", sizes)
            ctx.note("pfedlia.selected", sizes.tolist())
            found = fl.Membership(ids, chosen.float(), parent=torch.zeros_like(ids))
            return self.started(found, state, ctx)
        ctx.send("up", ids, "influence", ctx.clients)
        settings = (self.features, self.min_samples, self.xi, self.noise)
        optics = fl.clustering.optics_groups(influence, *settings)
        ctx.note("pfedlia.optics", {"noise": optics.noise, "groups_by_min_samples": optics.sweep})
        home = torch.as_tensor(optics.labels)
        if not home.any():
            ctx.warn("pfedlia: OPTICS found no groups, so everybody stays in one: fedavg")
        groups = fl.Membership(home, parent=torch.zeros_like(home.unique()))
        return self.started(groups, state, ctx)

    def started(self, groups: fl.Membership, state: fl.State, ctx: fl.Context) -> fl.Membership:
        """With `start=lia_mean`, each row is the mean of its members' partial models."""
        if self.start == "theta0" or groups.parent is None:
            return groups
        probed = state.memory["pfedlia.probed"]  # theta_0, then the partial models
        warm = probed[:1].expand(len(groups.parent), -1)
        used = ctx.samples
        if self.lia_samples is not None:
            used = used.clamp(max=self.lia_samples)
        shares = groups.shares(ctx.everybody, len(warm)) * used
        models = fl.weighted_mean(warm, probed[1:], shares, ctx.layout.counters)
        memory = {} if ctx.newcomers else {"pfedlia.probed": probed[:0]}
        return replace(groups, models=models, memory=memory)

    @fl.hookimpl
    def join(self, state: fl.State, clients: Tensor, ctx: fl.Context) -> fl.Personal | None:
        """A newcomer scores the partial models and joins as the clients did."""
        if len(state.models) == 1:
            return None
        rows = loss_decrease(state.memory["pfedlia.probed"], clients, ctx)
        if self.mode == "peer":
            peers = [fl.clustering.upper_group(r, self.kmeans_transform) for r in rows.numpy()]
            shares = torch.as_tensor(np.stack(peers)).double() * ctx.samples[: ctx.clients]
            start = state.models[:1].expand(len(clients), -1)
            return fl.Personal(params=fl.weighted_mean(start, state.models, shares))
        known = state.memory["pfedlia.influence"].numpy()
        distance = fl.clustering.distance_to_clients(rows.numpy(), known, self.features)
        home = state.membership.home[: ctx.clients]
        return fl.Personal(row=fl.similarity.best_group(-torch.as_tensor(distance), home))


def loss_decrease(probed: Tensor, clients: Tensor, ctx: fl.Context) -> Tensor:
    """Decrease of the validation loss by each partial model, shape (n, N), in nats.

    Args:
        probed: theta_0, then the N partial models, shape (N + 1, W).
        clients: ids, shape (n,).
        ctx: the run's context.
    """
    losses = ctx.evaluate(probed, clients)
    return losses[:, :1] - losses[:, 1:]
