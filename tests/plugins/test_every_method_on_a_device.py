"""Every installed method is computed on a device beside the CPU, which is simulated here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from every import METHODS, Film, resumed, run_of, same_state, stable
from mentions import mentions
from simulated_device import DEVICE, is_marked, simulated_device
from toy import Play, Played, player

from flbench.core.model_bank import plain
from flbench.engine.options import EngineOptions
from flbench.engine.recording.program import same_bits
from flbench.run.context import RunContext
from flbench.testing.reproducibility import different_numbers

pytestmark = pytest.mark.slow  # every method, played twice


def on_host(played: Played) -> dict[str, torch.Tensor]:
    """The last state of a run, copied to the host."""
    state = played.state
    tables = {"models": state.models, "home": state.membership.home, **state.memory}
    return {name: plain(table).cpu() for name, table in tables.items()}


@contextmanager
def evaluations() -> Iterator[list[str]]:
    """Names of what hooks let be evaluated within the block."""
    asked: list[str] = []

    def heard(name: str) -> Callable[..., Any]:
        plain = getattr(RunContext, name)

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return plain(*args, **kwargs)

        return evaluate

    with ExitStack() as stack:
        for name in ("evaluate", "logits", "features", "forward"):
            stack.enter_context(patch.object(RunContext, name, heard(name)))
        yield asked


def as_on_the_host(play_toy: Play, method: str, executor: str) -> list[str]:
    """Play a method on the device, and see that all is as on the host; what the run said.

    A device evaluates several models in one pass, and trains other clients in one step. So the bits
    are those of the host only where clients are trained one by one and nothing is evaluated for
    hooks; all else is equal to rounding.
    """
    options = EngineOptions(executor, "cpu")
    with simulated_device():
        played = run_of(play_toy, method, engine=options)
        there = on_host(played)
        assert is_marked(played.run.executor.workspace.row)
    with evaluations() as asked:
        other = run_of(play_toy, method, engine=options)
    here = on_host(other)
    assert there.keys() == here.keys()
    odd = [name for name in here if not same_bits([there[name]], [here[name]])]
    if executor == "sequential" and not asked:
        assert odd == []
    for name in odd:
        torch.testing.assert_close(there[name], here[name], rtol=1e-4, atol=1e-5, equal_nan=True)
    assert different_numbers(played.run.history, other.run.history) == []
    return played.said


BOTH = {"dc-pfl", "fedc2i", "ifca", "lora", "pfedlia", "scaffold"}
"""Some of those that compute with tensors of the device and of the host."""


@pytest.mark.parametrize(
    "method",
    [name if name in BOTH else pytest.param(name, marks=pytest.mark.long) for name in METHODS],
)
def test_a_method_ends_with_the_bytes_of_the_host(method: str, play_toy: Play) -> None:
    as_on_the_host(play_toy, method, "sequential")


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_so_it_does_in_lanes(method: str, play_toy: Play) -> None:
    said = as_on_the_host(play_toy, method, "vectorised")
    assert not [line for line in said if mentions(line, "all tensors", "expected")]


ON_HOST = {"apfl", "dc-pfl", "fedfomo", "pfedlia"}
"""Some of those that keep memory on the host, which they give to numpy, or masks of the bank."""


@pytest.mark.usefixtures("checkpoint_every_round")
@pytest.mark.parametrize(
    "method",
    [name if name in ON_HOST else pytest.param(name, marks=pytest.mark.long) for name in METHODS],
)
def test_a_run_cut_on_the_device_goes_on_there(method: str, tmp_path: Path) -> None:
    film = Film(tmp_path)
    with simulated_device():
        whole = run_of(player(tmp_path), method, rounds=3, sinks=(("film", film),))
        again = resumed(whole, film.checkpoint(1), tmp_path / "again")
        tables = [{"home": s.membership.home, **s.memory} for s in (whole.state, again.state)]
        one, other = ({k: table.device for k, table in state.items()} for state in tables)
        assert one == other
        assert same_state(again.state, whole.state)
        assert stable(again) == stable(whole)


def test_tensors_of_both_devices_are_refused() -> None:
    with simulated_device():
        here, there = torch.ones(3), torch.ones(3, device=DEVICE)
        assert here.device.type == "cpu"
        assert there.device == DEVICE == there[1:].device == (there + 1).device
        assert there.cpu().device.type == "cpu"
        assert here.to(DEVICE).device == DEVICE
        for mixed in (
            lambda: here + there,
            lambda: there[0] + here,
            lambda: torch.stack([here, there]),
        ):
            with pytest.raises(RuntimeError, match="one device"):
                mixed()
        with pytest.raises(RuntimeError, match="one device"):
            here.index_select(0, torch.tensor([1], device=DEVICE))
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there + torch.tensor(2.0)).device == DEVICE, "a number of the host may be added"
        assert there[torch.tensor([1])].device == DEVICE, "positions may be the host's"
        there.copy_(here)
