"""FedPAC: combinations, statistics and alignment by hand, then what happens to heads in a run."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import THREE, create, toy_upload
from mentions import mentioning
from toy import CLIENTS, Play, composition, watching

import flbench as fl
from flbench_plugins.fedpac import MEMORY, combinations, simplex_minimum

NAN = math.nan

# --- by hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([[1, 0], [0, 3]], [0.75, 0.25]),
        ([[1, 2], [2, 5]], [1, 0]),  # (3, -1) / 2 without the sign
        ([[2, 1], [1, 3]], [2 / 3, 1 / 3]),
        ([[0, 0], [0, 4]], [1, 0]),
        ([[0, 0], [0, 0]], [0.5, 0.5]),
        ([[7]], [1]),
    ],
)
def test_minima_over_the_simplex_by_hand(p: Any, expected: list[float]) -> None:
    assert simplex_minimum(np.array(p, dtype=float)).tolist() == pytest.approx(expected, abs=1e-5)


def test_no_point_of_the_simplex_is_lower() -> None:
    """At the minimum all slopes 2 P a are at least 2 a'Pa, and equal to it where a > 0."""
    rng = np.random.default_rng(0)
    for n in (2, 5, 12):
        root = rng.normal(size=(n, 3))
        p = root @ root.T + np.diag(rng.uniform(0.01, 1, n))
        a = simplex_minimum(p)
        assert a.min() >= 0
        assert a.sum() == pytest.approx(1)
        excess = p @ a - a @ p @ a
        assert excess.min() > -1e-4
        assert np.abs(excess[a > 1e-6]).max() < 1e-4


def test_combinations_by_hand() -> None:
    """One class, h = 0 and 2, V = 1: client 0 has P = diag(1, 1 + 4): 5/6 and 1/6.

    A class that a client does not have counts as 0.
    """
    for h in ([[[0.0]], [[2.0]]], [[[NAN]], [[2.0]]]):
        found = combinations(torch.tensor(h), torch.ones(2))
        expected = torch.tensor([[5 / 6, 1 / 6], [1 / 6, 5 / 6]], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_statistics_by_hand() -> None:
    """Features 1, 3 of class 0 and 5 of class 2, of which training makes 2, 6 and 10.

    h = 2/3 2 and 1/3 5; V = ((1 + 9 + 25) / 3 - (16 + 25) / 9) / 3 = 64 / 27.
    """
    module: Any = SimpleNamespace(
        start="before",
        eval=lambda: None,
        features=lambda x: (2 * x, None),
        with_row=lambda row, function, x: function(x) / 2,
    )
    ctx: Any = SimpleNamespace(classes=3)
    x, y = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2])
    sent = create("fedpac").report(ctx)(module, x, y).sent
    rows = {name: sent[name].flatten().tolist() for name in sent}
    assert rows["centroids"] == pytest.approx([4.0, NAN, 10.0], nan_ok=True)
    assert rows["counts"] == pytest.approx([2.0, NAN, 1.0], nan_ok=True)
    assert rows["h"] == pytest.approx([4 / 3, NAN, 5 / 3], nan_ok=True)
    assert rows["variance"] == pytest.approx([64 / 27])


def test_the_alignment_by_hand() -> None:
    """z = (1, 3) twice: to (0, 1) the squares are 1 and 4; nobody told of class 1."""
    known = torch.tensor([[0.0, 1.0], [NAN, NAN]])
    module: Any = SimpleNamespace(received={"centroids": known})
    z = torch.tensor([[1.0, 3.0], [1.0, 3.0]])
    batch = fl.Batch(module, torch.zeros(2, 1), torch.tensor([0, 1]), torch.zeros(2, 2), z)
    hook = create("fedpac", lam=2.0).batch_loss()
    next(hook)
    with pytest.raises(StopIteration) as end:
        hook.send(lambda batch: torch.tensor(10.0))
    assert end.value.value(batch).item() == 10 + 2 * (1 + 4) / 4
    module.received = {}
    assert end.value.value(batch).item() == 10


def test_the_server_by_hand() -> None:
    """Counts 1 and 3 of class 0: (0 + 3 4) / 4 = 3; nobody has class 2, whose mean stays 7.

    Bodies are of 10 samples each; heads are 6 and 12.
    h and V are those of the combinations by hand: 5/6 6 + 1/6 12 = 7, and 11.
    """
    extras = {
        "centroids": torch.tensor([[[0.0], [5.0], [NAN]], [[4.0], [NAN], [NAN]]]),
        "counts": torch.tensor([[1.0, 2.0, NAN], [3.0, NAN, NAN]]),
        "h": torch.tensor([[[0.0], [NAN], [NAN]], [[2.0], [NAN], [NAN]]]),
        "variance": torch.ones(2, 1),
    }
    upload = replace(toy_upload([[1.0, 2.0, 6.0], [3.0, 4.0, 12.0]], [1.0, 1.0]), extras=extras)
    memory = {MEMORY: torch.full((3, 1), 7.0)}
    state = fl.State(0, torch.zeros(3, 3), fl.Membership(torch.arange(3)), memory)
    sent: list[Any] = []
    ctx: Any = SimpleNamespace(layout=THREE, send=lambda *them: sent.append(them))
    found = create("fedpac").aggregate(state, upload, ctx)
    expected = torch.tensor([[2.0, 3.0, 7.0], [2.0, 3.0, 11.0], [2.0, 3.0, 0.0]])
    torch.testing.assert_close(found.rows, expected, rtol=0, atol=1e-4)
    assert found.memory[MEMORY].flatten().tolist() == [3.0, 5.0, 7.0]
    assert [(way, item, scalars) for way, _, item, scalars in sent] == [("down", "head", 1)]
    own = create("fedpac", combine=False).aggregate(state, upload, ctx)
    assert own.rows[:, 2].tolist() == [6.0, 12.0, 0.0]


def test_a_part_that_never_trains_is_told() -> None:
    said: list[str] = []
    layout = fl.ParameterLayout.of(torch.nn.Linear(2, 3))
    ctx: Any = SimpleNamespace(
        layout=layout, local=fl.LocalTraining(epochs=2), warn=said.append, classes=3,
        initial=torch.zeros(9), repeated=lambda row: row[None], networks=None,
        everybody=torch.arange(1),
    )  # fmt: skip
    for head_epochs in (0, 1, 2):
        create("fedpac", head_epochs=head_epochs).setup(ctx)
    assert said == [
        mentioning("fedpac", "head_epochs=0", "local.epochs=2"),
        mentioning("fedpac", "head_epochs=2", "local.epochs=2"),
    ]


# --- in a run -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_without_its_two_ideas_it_is_fedrep(play_toy: Play) -> None:
    local = {"epochs": 4, "batch_size": 4, "lr": 0.1, "momentum": 0.5}
    off = {"lam": 0.0, "combine": False}
    for first in (1, 3):
        settings = {**off, "head_epochs": first}
        found = play_toy("fedpac", settings=settings, local=local)
        fedrep = play_toy("fedrep", settings={"body_epochs": 4 - first}, local=local)
        assert torch.equal(found.personal, fedrep.personal)
    for on in ({**off, "lam": 1.0}, {**off, "combine": True}):
        found = play_toy("fedpac", settings={**on, "head_epochs": 3}, local=local)
        assert not torch.equal(found.personal, fedrep.personal)


@pytest.mark.slow
def test_the_heads_of_a_round_are_combinations_of_its_uploads(play_toy: Play) -> None:
    uploads: list[Any] = []
    layers = (("fedpac", create("fedpac")), ("watch", watching(uploads)))
    played = play_toy(composition(*layers), rounds=1, participation=1.0)
    (upload,), head = uploads, played.run.context.layout.head
    a = combinations(upload.extras["h"], upload.extras["variance"][:, 0])
    heads = (a @ upload.selected()[:, head].double()).float()
    assert torch.equal(played.state.models[:, head], heads)
    mates = played.run.groups[:, None] == played.run.groups
    assert a[mates].sum() / CLIENTS > 0.9, "clients with other labels give little"
    assert a.diag().max() < 0.9, "nobody is alone"


@pytest.mark.slow
def test_features_come_nearer_to_the_means(play_toy: Play) -> None:
    def spread(lam: float) -> float:
        played = play_toy("fedpac", settings={"lam": lam}, rounds=4, participation=1.0)
        ctx, known = played.run.context, played.state.memory[MEMORY]
        gaps = []
        for client in range(CLIENTS):
            x, y = ctx.client_data(client)
            z = ctx.features(played.personal[client][None], x)[0]
            gaps.append((z - known[y]).square().mean() / z.square().mean())
        return float(torch.stack(gaps).mean())

    assert spread(3.0) < spread(0.0)
