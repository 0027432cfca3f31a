"""What every method moves, item by item, as formulas of the federation's and the network's sizes.

A formula counts scalars; four bytes each. It may look at who was sampled, at the groups that were
found and at the labels clients own, but not at the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from every import Film, regrouped
from torch import nn
from toy import Played

from flbench import State
from flbench.run.rounds import cohort


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))


@dataclass(frozen=True)
class Net:
    """Scalars of each layer, its buffers (counters too), and what enters the head."""

    build: Callable[[], nn.Module] | None
    parameters: tuple[int, ...]
    buffers: tuple[int, ...]
    features: int

    @property
    def p(self) -> int:
        return sum(self.parameters)

    @property
    def w(self) -> int:
        return self.p + sum(self.buffers)

    @property
    def head(self) -> int:
        return self.parameters[-1]

    @property
    def layers(self) -> torch.Tensor:
        return torch.tensor(self.parameters) + torch.tensor(self.buffers)


PLAIN = Net(None, (3 * 3 + 3, 3 * 4 + 4), (0, 0), 3)
NORMED = Net(batchnorm, (3 * 4 + 4, 4 + 4, 4 * 4 + 4), (0, 4 + 4 + 1, 0), 4)


@dataclass(frozen=True)
class Case:
    """A finished run and what its formula may look at."""

    played: Played
    film: Film
    net: Net

    @property
    def clients(self) -> int:
        return 6

    @property
    def sampled(self) -> int:
        return 3

    @property
    def rounds(self) -> int:
        return self.played.job.suite.rounds

    def setting(self, name: str) -> int:
        return int(self.played.job.method.described.params[name])

    def cohorts(self) -> list[list[int]]:
        suite, seed = self.played.job.suite, self.played.job.seed
        return [cohort(suite, seed, t).tolist() for t in range(1, self.rounds + 1)]

    def classes_of(self, client: int) -> set[int]:
        return set(self.played.run.context.label_counts[client].nonzero()[:, 0].tolist())


Scalars = dict[str, dict[str, int]]
Formula = Callable[[Case], Scalars]


def cohort_models(c: Case) -> Scalars:
    """n (P + B) each way in every round."""
    moved = c.rounds * c.sampled * c.net.w
    return {"down": {"model": moved}, "up": {"model": moved}}


def nothing(c: Case) -> Scalars:
    return {}


def apple(c: Case) -> Scalars:
    """Down the core models of all others, without buffers; up the client's own."""
    times = c.rounds * c.sampled
    return {
        "down": {"cores": times * (c.clients - 1) * c.net.p},
        "up": {"model": times * c.net.p},
    }


def centralised(c: Case) -> Scalars:
    """Three features and a label of every training sample, once."""
    return {"up": {"samples": (3 + 1) * int(c.played.run.context.samples.sum())}}


def clusterfl(c: Case) -> Scalars:
    """Everybody: a centre of P scalars down, the model up."""
    times = c.rounds * c.clients
    return {"down": {"centre": times * c.net.p}, "up": {"model": times * c.net.w}}


def fednova(c: Case) -> Scalars:
    moved = cohort_models(c)
    moved["up"]["a_i"] = c.rounds * c.sampled
    return moved


def scaffold(c: Case) -> Scalars:
    """2 n P (+ n B) each way."""
    moved, variates = cohort_models(c), c.rounds * c.sampled * c.net.p
    moved["down"]["c"] = moved["up"]["c_change"] = variates
    return moved


def lg_fedavg(c: Case) -> Scalars:
    """Everything in the warm rounds, then the last of two linear layers.

    After warm rounds each client is sent its first local layers once.
    """
    shared = int(c.net.layers[-1])
    warm = c.setting("warm_rounds")
    moved = c.sampled * (warm * c.net.w + (c.rounds - warm) * shared)
    suite, seed = c.played.job.suite, c.played.job.seed
    later = {i for r in range(warm, c.rounds) for i in cohort(suite, seed, r + 1).tolist()}
    first = len(later) * (c.net.w - shared) if warm else 0
    return {"down": {"model": moved + first}, "up": {"model": moved}}


def fedrep(c: Case) -> Scalars:
    """n (P_b + B) each way."""
    moved = c.rounds * c.sampled * (c.net.w - c.net.head)
    return {"down": {"model": moved}, "up": {"model": moved}}


def fedem(c: Case) -> Scalars:
    """M components each way, buffers too."""
    moved = c.setting("m") * c.rounds * c.sampled * c.net.w
    return {"down": {"model": moved}, "up": {"model": moved}}


def fedpac(c: Case) -> Scalars:
    """Down: body, the class means heard of so far, a head; up: the model, and per own class two
    means and a count, and one variance."""
    times, d = c.rounds * c.sampled, c.net.features
    down = up = 0
    known = set[int]()
    for ids in c.cohorts():
        down += len(ids) * len(known)
        up += sum(len(c.classes_of(client)) for client in ids)
        known |= set().union(*(c.classes_of(client) for client in ids))
    return {
        "down": {
            "model": times * (c.net.w - c.net.head),
            "head": times * c.net.head,
            "centroids": down * d,
        },
        "up": {
            "model": times * c.net.w,
            "centroids": up * d,
            "h": up * d,
            "counts": up,
            "variance": times,
        },
    }


def fedproto(c: Case) -> Scalars:
    """Down: the classes heard of so far; up: those the client owns, and their counts."""
    down, up, known = 0, 0, set[int]()
    for ids in c.cohorts():
        down += len(ids) * len(known)
        up += sum(len(c.classes_of(client)) for client in ids)
        known |= set().union(*(c.classes_of(client) for client in ids))
    d = c.net.features
    return {"down": {"known": down * d}, "up": {"prototypes": up * d, "counts": up}}


def fedfomo(c: Case) -> Scalars:
    """Up n P and a gain per candidate, its own too; down n min(M - 1, n - 1) P: not itself."""
    offered = min(c.setting("m") - 1, c.sampled - 1)
    times = c.rounds * c.sampled
    return {
        "down": {"candidates": times * offered * c.net.w},
        "up": {"model": times * c.net.w, "gains": times * (offered + 1)},
    }


def fedfomo_flbench(c: Case) -> Scalars:
    """Candidates come from the cohort of the round before; oneself is no download."""
    ids = c.cohorts()
    offered = sum(
        min(c.setting("m"), len(set(before) - {client}))
        for before, now in pairwise(ids)
        for client in now
    )
    up = {"model": c.rounds * c.sampled * c.net.w, "gains": offered}
    return {"down": {"candidates": offered * c.net.w}, "up": up}


def ifca(c: Case) -> Scalars:
    """Down n K P, the chosen one among them; up n P and the choice."""
    times = c.rounds * c.sampled
    down, up = c.setting("k") * times * c.net.w, times * c.net.w
    return {"down": {"model": down}, "up": {"model": up, "cluster": times}}


def ifca_heads(c: Case) -> Scalars:
    """Everybody trains one of the K models once before."""
    moved, once = ifca(c), c.clients * c.net.w
    moved["down"]["model"] += once
    moved["up"]["model"] += once
    return moved


def pfedlia(c: Case) -> Scalars:
    """The probe: theta_0 to N, N models back, N (N - 1) relayed, N^2 scores."""
    moved, n = cohort_models(c), c.clients
    moved["down"] = {
        "model": moved["down"]["model"] + n * c.net.w,
        "partial models": n * (n - 1) * c.net.w,
    }
    moved["up"] = {"model": moved["up"]["model"] + n * c.net.w, "influence": n * n}
    return moved


def pfedlia_peer(c: Case) -> Scalars:
    """Instead of scores the server hears who was selected; a row goes to each that trains."""
    moved, chosen = pfedlia(c), c.played.state.membership.weights
    assert chosen is not None
    del moved["up"]["influence"]
    moved["up"]["selection"] = int((chosen > 0).sum())
    return moved


def flis_dc(c: Case) -> Scalars:
    """Round 1: the model; then all n models of the round before."""
    n, w = c.sampled, c.net.w
    down = n * w + (c.rounds - 1) * n * n * w
    return {"down": {"model": down}, "up": {"model": c.rounds * n * w}}


def cfl_full(c: Case) -> Scalars:
    """The round that decides a split is everybody's."""
    asked = [int(state.memory["cfl.asked"]) for state in c.film.states]
    assert asked == [0, 3, 0], "asked for after round 2, done in round 3"
    assert len(c.played.state.models) == 2
    each = (2 * c.sampled + c.clients) * c.net.w
    return {"down": {"model": each}, "up": {"model": each}}


def flis_hc(c: Case) -> Scalars:
    """The probe sends w_0 to N, so that the first cohort holds it; every client's group once."""
    down = c.clients + (c.rounds - 1) * c.sampled
    up = c.clients + c.rounds * c.sampled
    return {
        "down": {"model": down * c.net.w},
        "up": {"model": up * c.net.w, "cluster": c.clients},
    }


def fedc2i(body: str, head: str) -> Formula:
    """N each up; down everybody else's, or one mean, or nothing, of body and of head."""

    def formula(c: Case) -> Scalars:
        times = {"all": c.clients - 1, "mean": 1, "local": 0}
        sizes = ((body, c.net.w - c.net.head), (head, c.net.head))
        down = sum(times[how] * size for how, size in sizes)
        up = sum(size for how, size in sizes if how != "local")
        each = c.rounds * c.clients
        return {"down": {"models": each * down}, "up": {"model": each * up}}

    return formula


def dc_pfl(c: Case) -> Scalars:
    """Down what was averaged after the round before, up what will be; two models in a trial."""
    layers, everything = c.net.layers, torch.ones(c.clients, len(c.net.layers), dtype=torch.bool)
    down, up, losses = 0, 0, 0
    alpha, t_start = c.setting("alpha"), c.setting("t_start")
    notes = c.played.run.history.notes
    trials = [note["round"] for note in notes if note["name"] == "dc-pfl.trial"]
    averaged, low, company = everything, ~everything, torch.full((c.clients,), c.clients)

    def due(t: int) -> torch.Tensor:
        whole = t <= t_start or (t + 1) % alpha == 0
        return everything if whole else ~low

    for t, state in enumerate(c.film.states, 1):
        found, trial = together(state), t in trials
        if trial:
            before = c.film.states[t - 2].membership.weights
            assert not torch.equal(state.membership.weights, before), "it was adopted"
            assert bool((found != company).all()), "everybody's group is another one"
            down, up, losses = down + 2 * c.clients * c.net.w, up + c.clients * c.net.w, losses + 12
            averaged = everything & (found > 1)[:, None]
        else:
            down += int((averaged * layers).sum())
            up += int(((due(t) & (company > 1)[:, None]) * layers).sum())
            losses += 6
            averaged = due(t) & (found > 1)[:, None]
        company, low = found, state.memory["dc-pfl.low"]
    assert regrouped(c.played)
    assert alpha == 1 or down < (c.rounds + len(trials)) * c.clients * c.net.w, "a layer was low"
    return {"down": {"model": down}, "up": {"model": up, "loss": losses}}


def together(state: State) -> torch.Tensor:
    """Size of everybody's group."""
    assert state.membership.weights is not None
    return (state.membership.weights > 0).sum(dim=1)


def fedbn(c: Case) -> Scalars:
    """Everything but the normalisation layer, which is the second of three."""
    moved = c.rounds * c.sampled * (c.net.w - (c.net.layers[1] if len(c.net.layers) > 2 else 0))
    return {"down": {"model": int(moved)}, "up": {"model": int(moved)}}


def power_of_choice(c: Case) -> Scalars:
    """Down to all six candidates, of whom three train; a loss of each up."""
    moved = cohort_models(c)
    return {
        "down": {"model": 2 * moved["down"]["model"]},
        "up": {**moved["up"], "loss": c.rounds * c.clients},
    }


def q_fedavg(c: Case) -> Scalars:
    moved = cohort_models(c)
    moved["up"]["loss"] = c.rounds * c.sampled
    return moved


def dpsgd(c: Case) -> Scalars:
    """On a ring of the cohort everybody gets the models of two neighbours."""
    return {"peer": {"model": c.rounds * c.sampled * 2 * c.net.w}}


def fedgen(c: Case) -> Scalars:
    """From round 2 on the generator and four shares go down; four counts go up in every round."""
    moved, times = cohort_models(c), c.rounds * c.sampled
    hidden, inputs = c.setting("hidden"), 4 + c.setting("noise")
    size = (inputs + 1) * hidden + (hidden + 1) * c.net.features
    moved["down"] |= {"generator": (times - 3) * size, "labels": (times - 3) * 4}
    moved["up"]["label counts"] = times * 4
    return moved


def kld_groups(c: Case) -> Scalars:
    found = cohort_models(c)
    return {**found, "up": {**found["up"], "label counts": c.clients * 4}}


def pacfl(c: Case) -> Scalars:
    """A vector of three scalars for each label that a client owns."""
    moved = cohort_models(c)
    moved["up"]["vectors"] = 3 * sum(len(c.classes_of(client)) for client in range(c.clients))
    return moved


def flhc(c: Case) -> Scalars:
    """Once everybody, so that the cohort of that round holds what it starts from."""
    down, up = c.clients + (c.rounds - 1) * c.sampled, c.clients + c.rounds * c.sampled
    return {"down": {"model": down * c.net.w}, "up": {"model": up * c.net.w}}


def fedgroup(c: Case) -> Scalars:
    """A model each way for the cold start of everybody who has a group."""
    started = int((c.played.state.membership.home >= 0).sum())
    moved = (started + c.rounds * c.sampled) * c.net.w
    return {"down": {"model": moved}, "up": {"model": moved}}


def fedsoft(c: Case) -> Scalars:
    """All centres down; up the model, and now and then a number for each centre."""
    asked, met = 0, set[int]()
    for place, ids in enumerate(c.cohorts()):
        asked += len(ids) if place % c.setting("tau") == 0 else len(set(ids) - met)
        met |= set(ids)
    moved, s = cohort_models(c), c.setting("s")
    return {
        "down": {"model": s * moved["down"]["model"]},
        "up": {**moved["up"], "importance": s * asked},
    }


def lcfed(c: Case) -> Scalars:
    """Down the model of the cluster, to clients that have one, and from round 2 on the embedding;
    up the model."""
    body, settled = c.net.p - c.net.head, set[int]()
    down = {"centre": 0, "phi": (c.rounds - 1) * c.sampled * body}
    for ids in c.cohorts():
        down["centre"] += len(settled & set(ids)) * c.net.p
        settled |= set(ids)
    return {"down": down, "up": {"model": c.rounds * c.sampled * c.net.w}}


def splitfed(c: Case) -> Scalars:
    """The clients' part each way; of each sample of a step features and a label up, slopes down.

    BatchNorm is not trained on a batch of one sample.
    """
    local, part = c.played.job.suite.local, c.net.w - c.net.head
    sizes = c.played.run.context.samples
    lost = (sizes % local.batch_size == 1) & (sum(c.net.buffers) > 0)
    passed = sum(local.epochs * int((sizes - lost.long())[ids].sum()) for ids in c.cohorts())
    models, crossing = c.rounds * c.sampled * part, passed * c.net.features
    return {
        "down": {"model": models, "gradients": crossing},
        "up": {"model": models, "activations": crossing, "labels": passed},
    }


SAME_AS_FEDAVG = (
    "apfl", "backdoor", "cfl", "cgpfl", "ditto", "dp-fedavg", "fedadagrad", "fedadam", "fedala",
    "fedamp", "fedavg", "fedavgm", "feddf", "feddyn", "fedlc", "fedphp", "fedprox", "fedrod",
    "fedyogi", "fesem", "fltrust", "inner-product", "knn-per", "krum", "label-flip", "local-dp",
    "median", "moon", "multi-krum", "norm-bound", "oracle", "per-fedavg", "pfedhn", "pfedme",
    "sign-flip", "trimmed-mean", "wecfl",
)  # fmt: skip
FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(SAME_AS_FEDAVG, cohort_models),
    "afl": q_fedavg,
    "apple": apple,
    **dict.fromkeys(
        ("boosting", "centralised", "centralised-id", "random-intercept", "random-slopes"),
        centralised,
    ),
    "clusterfl": clusterfl,
    "dc-pfl": dc_pfl,
    "dc-pfl-nodc": dc_pfl,
    "dc-pfl-nola": dc_pfl,
    "dpsgd": dpsgd,
    "fedbabu": fedrep,
    "fedbn": fedbn,
    "fedc2i": fedc2i("all", "all"),
    "fedc2i-class-global": fedc2i("mean", "all"),
    "fedc2i-class-local": fedc2i("local", "all"),
    "fedc2i-lambda": fedc2i("all", "mean"),
    "fedem": fedem,
    "fedfomo": fedfomo,
    "fedgroup": fedgroup,
    "fedgen": fedgen,
    "fednova": fednova,
    "fedpac": fedpac,
    "fedper": fedrep,
    "fedproto": fedproto,
    "fedrep": fedrep,
    "fedsoft": fedsoft,
    "flhc": flhc,
    "flis-dc": flis_dc,
    "flis-hc": flis_hc,
    "ifca": ifca,
    "kld-groups": kld_groups,
    "lcfed": lcfed,
    "lg-fedavg": lg_fedavg,
    **dict.fromkeys(("boosting-alone", "linear-alone", "local-only", "own-majority"), nothing),
    "pacfl": pacfl,
    "pfedlia": pfedlia,
    "power-of-choice": power_of_choice,
    "q-fedavg": q_fedavg,
    "scaffold": scaffold,
    "splitfed-v1": splitfed,
    "splitfed-v2": splitfed,
}
"""A formula per installed method but those of `COUNTED_BY_HAND`."""

COUNTED_BY_HAND = {
    "ef-signsgd": "test_signsgd.py",
    "fedasync": "test_servers_that_do_not_wait.py",
    "fedbuff": "test_servers_that_do_not_wait.py",
    "fedgh": "test_several_networks.py",
    "fedmd": "test_several_networks.py",
    "heterofl": "test_several_networks.py",
    "lora": "test_lora.py",
    "qsgd": "test_encoders.py",
    "secagg": "test_secagg.py",
    "signsgd": "test_signsgd.py",
    "top-k": "test_encoders.py",
}
"""Methods that need a federation of their own, or send parts of scalars: file of their test."""

VARIANTS: list[tuple[str, dict[str, object], Formula]] = [
    ("cfl", {"eps1": 9, "eps2": 0, "start_round": 1, "full_on_split": True}, cfl_full),
    ("clusterfl", {"clusterer": "affinity"}, clusterfl),
    ("dpsgd", {"graph": "complete"}, dpsgd),
    ("dpsgd", {"graph": "regular", "degree": 0}, nothing),
    ("fedfomo", {"m": 2}, fedfomo),
    ("fedfomo", {"variant": "flbench", "m": 2}, fedfomo_flbench),
    ("fedfomo", {"variant": "flbench"}, fedfomo_flbench),
    ("fedproto", {"protos": "running"}, fedproto),
    ("flis-dc", {"beta": 0}, flis_dc),
    ("flis-dc", {"beta": 0, "dedup": True}, cohort_models),
    ("ifca", {"k": 3}, ifca),
    ("ifca", {"init": "heads"}, ifca_heads),
    ("local-only", {"schedule": "full"}, nothing),
    ("pfedlia", {"warmup": 1, "probe_epochs": 2, "mode": "peer"}, pfedlia_peer),
    ("pfedlia", {"warmup": 2, "probe_epochs": 1, "start": "lia_mean"}, pfedlia),
]
"""Formulas of settings that move something else, or the same on another path."""
