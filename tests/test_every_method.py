"""What holds for every installed method: the same run twice, cut in two, or with poisoned tests.

Methods come from the registry, so a new one is tested without being listed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from every import HAPPENED, METHODS, Film, resumed, run_of, same_state, stable
from toy import Played, player, toy_dataset

from flbench.assembly import prepare
from flbench.dataset import Dataset
from flbench.engine import sequential
from flbench.errors import UserError
from flbench.methods import compose

pytestmark = pytest.mark.slow  # every method, played several times

Address = tuple[int | str, ...]


@dataclass
class Shot:
    """A run with the states and the checkpoints it left behind."""

    played: Played
    film: Film


Whole = Callable[[str], Shot]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Each method's run, played once: at least one more round than the special stage needs."""
    shots: dict[str, Shot] = {}

    def of(method: str) -> Shot:
        if method not in shots:
            folder = tmp_path_factory.mktemp("whole")
            film = Film(folder)
            played = run_of(player(folder), method, sinks=(("film", film),))
            shots[method] = Shot(played, film)
        return shots[method]

    return of


@pytest.mark.parametrize("method", METHODS)
def test_a_run_cut_after_round_2_ends_in_the_same_bytes(
    method: str, whole: Whole, tmp_path: Path
) -> None:  # T25
    shot = whole(method)
    assert HAPPENED.get(method, lambda played: True)(shot.played)
    again = resumed(shot.played, shot.film.checkpoint(2), tmp_path)
    assert same_state(again.state, shot.played.state)
    assert stable(again) == stable(shot.played)


def with_batches(folder: Path, method: str) -> tuple[Played, dict[Address, list[int]]]:
    """A run, and the first epoch's order of samples by (round, client, stage, phase)."""
    seen: dict[Address, list[int]] = {}
    real = sequential.orders

    def watched(samples: int, epochs: int, seed: int, *address: int | str) -> Any:
        for order in real(samples, epochs, seed, *address):
            seen.setdefault(address, order.tolist())
            yield order

    with patch.object(sequential, "orders", watched):
        return run_of(player(folder), method), seen


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[Address, list[int]]:
    """The batches of fedavg, which are everybody's."""
    _, seen = with_batches(tmp_path_factory.mktemp("usual"), "fedavg")
    assert len(seen) == 3 * 3, "three rounds of three clients"
    return seen


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bytes_and_batches(
    method: str, whole: Whole, usual: dict[Address, list[int]], tmp_path: Path
) -> None:  # T30
    again, batches = with_batches(tmp_path, method)
    assert stable(again) == stable(whole(method).played)
    if not compose(method).pools_data:
        assert usual.items() <= batches.items(), "fedavg's clients train on fedavg's batches"


def test_every_method_meets_the_same_clients_and_starts_from_the_same_weights(
    whole: Whole,
) -> None:  # T30
    reference = run_marks(whole("fedavg"))
    for method in METHODS:
        shot = whole(method)
        assert run_marks(shot) == {**reference, **cohorts(shot)}, method
    assert len({whole(method).played.marks.config for method in METHODS}) == len(METHODS)


def run_marks(shot: Shot) -> dict[str, str]:
    """The fingerprint but for the method's own part and the number of rounds."""
    return shot.played.marks.model_dump(exclude={"config", "suite"})


def cohorts(shot: Shot) -> dict[str, str]:
    """Longer runs sample more often; the rounds they share are fedavg's."""
    return {"cohorts": shot.played.marks.cohorts} if shot.played.state.round != 3 else {}


def poisoned(played: Played) -> Dataset:
    """The toy's data with garbage in the place of every test sample."""
    dataset, test = toy_dataset(), played.run.held_out.x
    hidden = (dataset.x[:, None] == test).all(dim=2).any(dim=1)
    assert int(hidden.sum()) == len(test) >= 15
    garbage = 50 * torch.randn(dataset.x.shape, generator=torch.Generator().manual_seed(0))
    return replace(dataset, x=torch.where(hidden[:, None], garbage, dataset.x))


@pytest.mark.parametrize("method", METHODS)
def test_poisoned_test_samples_change_nothing_but_the_score(
    method: str, whole: Whole, tmp_path: Path
) -> None:  # T29
    shot, film = whole(method), Film()
    other = run_of(player(tmp_path), method, dataset=poisoned(shot.played), sinks=(("film", film),))
    assert other.marks.partition == shot.played.marks.partition
    for one, two in zip(shot.film.states, film.states, strict=True):
        assert same_state(one, two)
    before, after = shot.played.run, other.run
    assert after.ledger.totals == before.ledger.totals
    assert after.history.notes == before.history.notes
    assert after.history.warnings == before.history.warnings
    curves = [run.history.curves for run in (before, after)]
    for name in ("train_loss", "accuracy_validation", "ari", "groups"):
        assert curves[0][name] == curves[1][name]
    assert curves[0]["loss"] != curves[1]["loss"], "the poison was drunk"


def test_a_checkpoint_of_another_method_is_refused(whole: Whole, tmp_path: Path) -> None:
    one, other = whole("fedavg"), whole("fedprox")
    job = replace(one.played.job, out=tmp_path, resume=True, sinks=())
    job.checkpoint.parent.mkdir(parents=True)
    shutil.copy(other.film.checkpoint(2), job.checkpoint)
    with pytest.raises(UserError, match="its config is not this run's"):
        prepare(job, toy_dataset())
