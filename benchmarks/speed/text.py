"""Networks for text: torch's LSTM, an LSTM in plain operations, and `recurrent`, as clients train.

`python -m flbench_benchmarks.speed.text REPEATS ROUNDS FOLDER` measures, and prints the rows.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor, nn

import flbench as fl
from flbench.models import recurrent

from .interleaved import Row, paired_ratios, single_thread_environment
from .part import PartRequest

TITLE = "Networks for text: FedAvg with each, and what it learns (`ratio`: as many times as long)"
GOAL = "the fastest of those that learn is the network of the suites"
ABOUT = (
    "`shakespeare-roles` on generated languages (15 clients, windows of 16 letters, all in every"
    " round), two layers of 32, clients trained at once where the network allows it, one rate for"
    " all. Seconds of local training in a round; accuracy after all rounds, of three seeds."
)
HIDDEN = 32
SEEDS = 3


class PlainLstm(nn.Module):
    """An LSTM in operations that lanes take, sequences to sequences, both of shape (b, T, width).

    Hochreiter, Schmidhuber, "Long short-term memory", Neural Computation 1997, with forget gates.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Map sequences to sequences."""
        hidden = cell = torch.zeros_like(x[:, 0])
        found = []
        for one in x.unbind(1):
            gates = self.gates(torch.cat([one, hidden], dim=-1)).chunk(4, dim=-1)
            enter, forget, leave = (gate.sigmoid() for gate in gates[:3])
            cell = forget * cell + enter * gates[3].tanh()
            hidden = leave * cell.tanh()
            found.append(hidden)
        return torch.stack(found, dim=1)


class TorchLstm(nn.Module):
    """A layer of torch's LSTM, as `PlainLstm`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map sequences to sequences."""
        found: Tensor = self.lstm(x)[0]
        return found


def _network(layer: Callable[[int], nn.Module], classes: int) -> nn.Module:
    body = nn.Sequential(
        recurrent.OneHotEmbedding(classes, HIDDEN), *(layer(HIDDEN) for _ in range(2))
    )
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(HIDDEN, classes)))


def torch_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers of torch's LSTM."""
    return _network(TorchLstm, classes)


def plain_lstm(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers of the same in plain operations."""
    return _network(PlainLstm, classes)


def gated(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network `recurrent`."""
    return recurrent.build(shape, classes, hidden=HIDDEN)


NETWORKS = {"recurrent": gated, "LSTM of torch": torch_lstm, "LSTM, plain": plain_lstm}


def run(request: PartRequest) -> list[Row]:
    """Each network in turn, in a process of its own."""
    repeats, rounds = (1, 2) if request.quick else (7, 25)
    text = subprocess.run(
        [sys.executable, "-m", __name__, str(repeats), str(rounds), str(request.folder)],
        env=single_thread_environment(),
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    found: list[Row] = json.loads(text)
    return found


def measured(repeats: int, rounds: int, folder: Path) -> list[Row]:
    """Time a few rounds of each network in turn, then play all rounds of three seeds."""
    seconds: dict[str, list[float]] = {name: [] for name in NETWORKS}
    for again in range(repeats + 1):
        for name, found in seconds.items():
            (one,) = _results(name, min(rounds, 10), folder / f"{again}", seeds=1)
            if again:
                found.append(one.seconds["train"] / one.suite["rounds"])
    rows: list[Row] = []
    for name, found in seconds.items():
        played = _results(name, rounds, folder / "all", SEEDS)
        accuracy = [float(one.clients.headline_values().mean()) for one in played]
        rows.append({
            "network": name, "seconds": round(median(found), 5),
            **(paired_ratios("ratio", found, seconds["recurrent"]) if name != "recurrent" else {}),
            "accuracy": round(fmean(accuracy), 4), "accuracy_low": round(min(accuracy), 4),
            "accuracy_high": round(max(accuracy), 4), "times": repeats,
        })  # fmt: skip
    return rows


def _results(name: str, rounds: int, folder: Path, seeds: int) -> tuple[fl.Result, ...]:
    """FedAvg with a network; what it prints is no row."""
    with contextlib.redirect_stdout(sys.stderr):
        return fl.run_suites(
            ["fedavg"], ["shakespeare-roles"], seeds=seeds, dataset="bigrams", rounds=rounds,
            model=NETWORKS[name], settings={"participation": 1.0}, workers=1,
            out=folder / name.replace(" ", "-"),
        ).results  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    one, other, where = sys.argv[1:]
    print(json.dumps(measured(int(one), int(other), Path(where))))
