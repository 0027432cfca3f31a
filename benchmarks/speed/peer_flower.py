"""The workload in Flower: `peer_flower.py WORK PROCESSES NETWORK ROUNDS`, in its environment.

A simulation with its FedAvg strategy; clients run in one Ray actor per process. The client
trains as in the PyTorch examples of Flower, but samples are permuted once per epoch and sliced, in
place of a DataLoader, and SGD is fused. The actors share one GPU, if it trains.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_workload import DEVICE, arguments, data, network
from torch.nn import functional as F
from turns import Turns


def train(message: Message, context: Context, work: dict[str, Any], path: str) -> Message:
    """Train one client for a round; data and network are cached in its Ray actor."""
    net = network(path).to(DEVICE)
    all_x, all_y = data(work)
    client = int(context.node_config["partition-id"])
    x, y = all_x[client], all_y[client]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    net.train()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=work["lr"], momentum=work["momentum"], fused=True
    )
    steps = 0
    for _ in range(work["epochs"]):
        order = torch.randperm(len(y)).to(DEVICE)
        shuffled_x, shuffled_y = x[order], y[order]
        for at in range(0, len(y), work["batch"]):
            end = at + work["batch"]
            loss = F.cross_entropy(net(shuffled_x[at:end]), shuffled_y[at:end])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y), "steps": steps}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class RoundReporter(FedAvg):
    """FedAvg that reports before its first round and after every round, and waits for its turn."""

    turns: Turns
    ready_reported = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Report once that the run is ready."""
        if not self.ready_reported:
            self.ready_reported = True
            self.turns.report_and_wait()
        chosen: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return chosen

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Report the round."""
        replies = list(replies)
        lost = [reply.error.reason for reply in replies if reply.has_error()]
        if lost:
            raise RuntimeError(f"a client failed: {lost[0]}")
        steps = sum(int(reply.content["metrics"]["steps"]) for reply in replies)
        found: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(
            server_round, replies
        )
        self.turns.report_and_wait(steps=steps)
        return found


def main() -> None:
    """Play the rounds."""
    work, processes, path, rounds = arguments()
    turns = Turns()
    client, server = ClientApp(), ServerApp()
    client.train()(partial(train, work=work, path=path))

    @server.main()
    def play(grid: Grid, context: Context) -> None:
        strategy = RoundReporter(
            fraction_train=work["cohort"] / work["clients"],
            fraction_evaluate=0.0,
            min_train_nodes=work["cohort"],
            min_available_nodes=work["clients"],
        )
        strategy.turns = turns
        arrays = ArrayRecord(network(path).state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds + 1)

    gpus = int(DEVICE == "cuda")
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=work["clients"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": gpus / processes},
            "init_args": {"num_cpus": processes, "num_gpus": gpus, "log_to_driver": False},
        },
    )


if __name__ == "__main__":
    main()
