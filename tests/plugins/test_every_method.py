"""What every installed method shares with the others, and what it does not.

Methods come from the registry, so a new one is tested without being listed; the laws that each must
hold by itself are in `flbench/testing` (`tests/testing/test_kit.py`).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from every import METHODS, Film, run_of, settings_of
from mentions import mention
from toy import Played, player, toy_dataset

from flbench.engine import sequential
from flbench.errors import UserError
from flbench.run.composition import compose
from flbench.run.setup import prepare

pytestmark = pytest.mark.slow  # every method, played several times

Address = tuple[int | str, ...]


def with_batches(folder: Path, method: str) -> tuple[Played, dict[Address, list[int]]]:
    """A run, and the first epoch's order of samples by (round, client, stage, phase)."""
    seen: dict[Address, list[int]] = {}
    real = sequential.orders

    def watched(samples: int, epochs: int, seed: int, *address: int | str) -> Any:
        for order in real(samples, epochs, seed, *address):
            seen.setdefault(address, order.tolist())
            yield order

    with patch.object(sequential, "orders", watched):
        return run_of(player(folder), method, rounds=2), seen


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[Address, list[int]]:
    """The batches of fedavg, which are everybody's."""
    _, seen = with_batches(tmp_path_factory.mktemp("usual"), "fedavg")
    assert len(seen) == 2 * 3, "two rounds of three clients"
    return seen


OTHER_CLIENTS = {
    **{"fedasync": 0, "fedbuff": 0, "power-of-choice": 4},
    **{"boosting-alone": 0, "linear-alone": 0, "own-majority": 0},
}
"""Methods that choose who trains, or when, or train nobody in rounds;
and how many trainings of clients fedavg has, too."""


@pytest.mark.parametrize("method", METHODS)
def test_fedavgs_clients_train_on_fedavgs_batches(
    method: str, usual: dict[Address, list[int]], tmp_path: Path
) -> None:  # T30
    _, batches = with_batches(tmp_path, method)
    if not compose(method).pools_data:
        common = usual.keys() & batches.keys()
        assert len(common) == OTHER_CLIENTS.get(method, len(usual))
        assert all(usual[address] == batches[address] for address in common)


def test_no_two_methods_have_one_fingerprint(tmp_path: Path) -> None:  # T30
    spec = player(tmp_path)("fedavg", rounds=1).job
    specs = [replace(spec, method=compose(one, settings_of(one))) for one in METHODS]
    assert len({one.fingerprint for one in specs}) == len(METHODS)


@pytest.mark.usefixtures("checkpoint_every_round")
def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    run_of(player(tmp_path), "fedprox", sinks=(("film", film := Film(tmp_path)),))
    job = replace(run_of(player(tmp_path / "one"), "fedavg").job, resume=True)
    job.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(film.checkpoint(2), job.checkpoint)
    with pytest.raises(UserError, match=mention("method", "fedavg", "found fedprox")):
        prepare(job, toy_dataset())
