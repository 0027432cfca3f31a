"""pFedLIA: clients grouped once, by lazy influence (methods.md 6.1).

Rokvic, Danassis, Faltings, "Lazy but effective: collaborative personalized federated learning with
heterogeneous data", IJCNN 2025, arXiv 2505.02540.

    rounds 1..warmup: fedavg gives theta_0; then every client j trains a partial model theta_j from
    it (the probe) and every client i scores every j on its own validation split:

        I[i, j] = L_i(theta_0) - L_i(theta_j)      row i judges column j; positive = helpful  (Eq. 1)

    central: OPTICS on the rows of I groups the clients, fedavg goes on within each group;
    peer: each client keeps the better half of a 2-means split of its row and averages those peers.

Departures: Eq. 1 sums over the split, here it is the mean (B2); all N clients take part in the
probe (B7), whose bytes the paper does not count; a partial model is judged with its own BatchNorm
statistics (B10). Network (B12) and token-weighted text losses (B13) are the suite's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt

from flbench import Context, Membership, Memory, Models, Scores, Setup, Stage, Start, State, Upload
from flbench import UserError, clustering, hookimpl, weighted_mean

PROBE = "lia"
OptionalCount = Annotated[int, Ge(1)] | None


@dataclass(frozen=True)
class PFedLIA:
    """Clients grouped once by lazy influence, centrally (OPTICS) or by each peer (2-means)."""

    mode: Annotated[Literal["central", "peer"], "who groups the clients"] = "central"
    warmup: Annotated[int, Ge(1), "rounds of fedavg before the probe"] = 20
    probe_epochs: Annotated[int, Ge(0), "local epochs of a partial model, the paper's k"] = 20
    lia_samples: Annotated[OptionalCount, "B1: samples of the probe; none = all"] = None
    features: Annotated[clustering.Features, "B3: what OPTICS sees of the influences"] = "zrow"
    min_samples: Annotated[OptionalCount, "B4: of OPTICS; none = a tenth of the clients"] = None
    xi: Annotated[float, Gt(0), Lt(1), "B4: steepness at which OPTICS ends a group"] = 0.05
    noise: Annotated[clustering.Noise, "B5: where OPTICS's noise points go"] = "nearest"
    start: Annotated[Literal["theta0", "lia_mean"], "B6: where a group's model starts"] = "theta0"
    p2p_train: Annotated[
        Literal["gossip", "per_receiver"], "B8: a peer trains its own model, or each receiver's"
    ] = "gossip"
    kmeans_transform: Annotated[clustering.Transform, "B9: applied before 2-means"] = "none"
    paper_leak: Annotated[bool, "B11: score on the test split, as the paper does"] = False
    topology: Annotated[Literal["relay", "p2p"], "models pass the server, or direct links"] = "relay"

    @hookimpl
    def setup(self, ctx: Context) -> Setup:
        """Keep the influence matrix; say so when the probe never comes."""
        if ctx.rounds <= self.warmup:
            ctx.warn(f"pfedlia: {ctx.rounds} rounds do not exceed warmup={self.warmup}: it is fedavg")
        influence = torch.zeros(ctx.clients, ctx.clients, dtype=torch.float64)
        return Setup(memory={"pfedlia.influence": Memory(influence, "client")})

    @hookimpl
    def plan(self, ctx: Context) -> Sequence[Stage] | None:
        """In the last round of the warm-up everybody trains a partial model as well."""
        if ctx.round != self.warmup or ctx.rounds <= self.warmup:
            return None
        probe = Stage("probe", torch.arange(ctx.clients), self.probe_epochs, PROBE, self.lia_samples)
        averaged = Stage("train", probe.clients, probe.epochs, PROBE, self.lia_samples)
        train = Stage("train", ctx.cohort, ctx.local.epochs)
        return (train, probe if self.start == "theta0" else averaged)

    @hookimpl
    def dispatch(self, state: State, stage: Stage, ctx: Context) -> Start | None:
        """Over direct links nothing passes the server; `per_receiver` trains receivers' models."""
        chosen, ids, direct = state.membership.weights, stage.clients, self.topology == "p2p"
        if chosen is None or self.mode == "central":
            return Start(returns=ctx.layout.nothing if direct and stage.label == PROBE else None)
        if direct:
            links = (chosen[:, ids] > 0).sum(dim=1) - torch.isin(torch.arange(ctx.clients), ids).long()
            ctx.send("peer", torch.arange(ctx.clients), "model", links * ctx.layout.width)
        crosses = ctx.layout.nothing if direct else None
        if self.p2p_train == "gossip":
            return Start(crosses=crosses)
        every = state.models.expand(len(ids), -1, -1)
        return Start(params=every, active=chosen[:, ids].T > 0, crosses=crosses)

    @hookimpl
    def score(self, state: State, stage: Stage, upload: Upload, ctx: Context) -> Scores | None:
        """I[i, j]: validation loss that client i saves by client j's partial model, in nats."""
        if stage.label != PROBE or upload is None:
            return None
        if len(state.models) > 1:
            raise UserError(f"expected one warm model to probe from, found {len(state.models)}")
        others = torch.full(upload.ids.shape, (ctx.clients - 1) * ctx.layout.width)
        way: Literal["down", "peer"] = "down" if self.topology == "relay" else "peer"
        ctx.send(way, upload.ids, "partial models", others)
        losses = ctx.evaluate(torch.cat([state.models, upload.kept()]), upload.ids)
        influence = losses[:, :1] - losses[:, 1:]
        kept = {"pfedlia.influence": influence}
        return Scores(influence, upload.ids, "clients", upload.ids, kept)

    @hookimpl
    def cluster(self, stage: Stage, scores: Scores | None, ctx: Context) -> Membership | None:
        """Group once, right after the probe; every group starts from the model there is."""
        if stage.label != PROBE or scores is None:
            return None
        influence, ids = scores.values.numpy(), scores.row_ids
        if self.mode == "central":
            ctx.send("up", ids, "influence", torch.full(ids.shape, ctx.clients))
            ms = self.min_samples or clustering.default_min_samples(ctx.clients)
            found = clustering.optics_groups(influence, self.features, ms, self.xi, self.noise)
            ctx.note("pfedlia.noise", found.noise)
            ctx.note("pfedlia.groups_by_min_samples", found.sweep)
            if found.noise == ctx.clients:
                ctx.warn("pfedlia: OPTICS found no group: everybody stays in one, which is fedavg")
            home = torch.as_tensor(found.labels)
            return Membership(home, parent=torch.zeros(int(home.max()) + 1, dtype=torch.int64))
        chosen = torch.as_tensor(clustering.better_half(influence, self.kmeans_transform))
        way: Literal["up", "peer"] = "up" if self.topology == "relay" else "peer"
        ctx.send(way, ids, "selection", chosen.sum(dim=1))
        ctx.note("pfedlia.selected", chosen.sum(dim=1).tolist())
        parent = torch.zeros(ctx.clients, dtype=torch.int64)
        return Membership(torch.arange(ctx.clients), chosen.float(), parent)

    @hookimpl
    def aggregate(self, state: State, upload: Upload, ctx: Context) -> Models | None:
        """Only for `per_receiver`: row r averages what its peers made of it."""
        chosen = state.membership.weights
        if self.p2p_train == "gossip" or chosen is None or upload.params.shape[1] == 1:
            return None
        shares = chosen[:, upload.ids].double() * upload.samples
        if self.topology == "relay":
            more = (upload.active.sum(dim=1) - 1) * ctx.layout.width
            ctx.send("up", upload.ids, "model", more)
        rows = [
            weighted_mean(row[None], upload.params[:, r], shares[r : r + 1], ctx.layout.counters)
            for r, row in enumerate(state.models)
        ]
        return Models(torch.cat(rows))
