"""The workload in pfl: `peer_pfl.py WORK PROCESSES NETWORK ROUNDS`, in pfl's environment.

Federated averaging with a simulated backend, as its own benchmarks set it up; the local optimiser
is fused SGD. pfl does not shuffle a client's samples. A second process is a second worker of pfl.
Workers that share a GPU speak through gloo, because NCCL, which pfl asks for, refuses it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial

RANK = int(os.environ.get("PFL_WORKER_RANK", 0))


def start_workers(processes: int) -> None:
    """Start the other workers and set the addresses of all; call it before pfl is imported."""
    if processes == 1 or "PFL_WORKER_ADDRESSES" in os.environ:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"127.0.0.1:{port}"] * processes)
    os.environ["PFL_WORKER_RANK"] = "0"
    for rank in range(1, processes):
        env = {**os.environ, "PFL_WORKER_RANK": str(rank)}
        subprocess.Popen([sys.executable, *sys.argv], env=env, stdin=subprocess.DEVNULL)


def with_gloo(connect: Callable[..., None], *, backend: str, **settings: object) -> None:
    """Connect the workers through gloo, whatever backend is asked for."""
    connect(backend="gloo", **settings)


def main() -> None:
    """Play the rounds."""
    from peer_workload import DEVICE, arguments, data, network
    from turns import Turns

    os.environ["PFL_PYTORCH_DEVICE"] = DEVICE
    work, processes, path, rounds = arguments()
    turns = Turns() if RANK == 0 else None
    start_workers(processes)
    import numpy as np
    import torch

    torch.distributed.init_process_group = partial(with_gloo, torch.distributed.init_process_group)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    np.random.seed(0)
    x, y = data(work)
    net = network(path)
    steps = [0]

    def loss(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        steps[0] += 1
        net.train()
        return torch.nn.functional.cross_entropy(net(inputs), labels)

    net.loss, net.metrics = loss, lambda *_: {}

    def wait_for_all() -> None:
        """Keep all workers waiting while rank 0 waits for its turn."""
        if torch.distributed.is_initialized():
            torch.distributed.barrier()

    class RoundReporter(TrainingProcessCallback):
        """Reports every round and waits for the next turn."""

        def on_train_begin(self, *, model: object) -> Metrics:
            """Report that the run is ready."""
            if turns is not None:
                turns.report_and_wait()
            wait_for_all()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: object, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            """Report the round."""
            if turns is not None:
                turns.report_and_wait(steps=steps[0])
            steps[0] = 0
            wait_for_all()
            return False, Metrics()

    def user(client: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset((x[client], y[client]), user_id=str(client))

    sgd = partial(torch.optim.SGD, momentum=work["momentum"], fused=True)
    model = PyTorchModel(net, sgd, torch.optim.SGD(net.parameters(), lr=1.0))
    users = list(range(work["clients"]))
    train = FederatedDataset(user, get_user_sampler("minimize_reuse", users))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=10 * rounds + 10,
            train_cohort_size=work["cohort"],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(train, train, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work["epochs"],
            local_learning_rate=work["lr"],
            local_batch_size=work["batch"],
        ),
        callbacks=[RoundReporter()],
    )


if __name__ == "__main__":
    main()
