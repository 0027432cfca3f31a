"""Lightning Fabric of a run, and the start of the other processes if it has several devices.

Every process executes the same command on one device. Fabric starts the other processes of a
machine, unless the command has done so before its imports (`processes.py`), or torchrun, SLURM or
`fabric run` has. They exchange tensors and
small objects through gloo on CPUs, which detects a closed connection at once; NCCL would wait.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from flbench.core import torchvision_compat as torchvision_compat  # lightning needs it
from flbench.engine.machine import deterministic, portable
from flbench.engine.machine.allocator import keep_activations
from flbench.engine.processes.process_group import ALONE, ProcessGroup, everybody
from flbench.engine.processes.workers import (
    CHILDREN,
    most_processes,
    parent_is_gone,
    terminate_workers,
)
from flbench.errors import FlbenchError, Interrupted, ProcessDied, UserError, escaped

if TYPE_CHECKING:
    from flbench.engine.options import EngineOptions

# isort: split
from lightning.fabric import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.fabric.utilities.exceptions import MisconfigurationException

PRECISIONS = ("32-true", "bf16-mixed")
"""Values of `--precision`; not "16-mixed", whose loss scale would pass from client to client."""
LOGGERS = "lightning.fabric", "lightning.pytorch"
"""They advise what would change results, such as to round to TF32, or features of the Trainer."""
START_TIMEOUT = timedelta(minutes=10)
"""How long processes wait for one another at the start."""


MACHINES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
"""Environment variables that say where the first machine is, and which one this is."""
STOPS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a run."""


def join_process_group(engine: EngineOptions) -> ProcessGroup:
    """The processes of a run; the first call starts the others, or waits for them.

    Raises:
        UserError: the accelerator, precision or number of devices is not available.
        ProcessDied: not all processes connected.
    """
    if engine.devices * engine.nodes == 1:
        return ALONE
    if not dist.is_initialized():
        open_fabric(engine)
    return ProcessGroup(dist.get_rank(), dist.get_world_size())


def open_fabric(engine: EngineOptions) -> Fabric:
    """Create and launch the one Fabric of a run.

    Raises:
        UserError: the accelerator, precision or number of devices is not available.
        ProcessDied: not all processes connected.
    """
    if engine.precision not in PRECISIONS:
        raise UserError(f"--precision {engine.precision}: expected {' or '.join(PRECISIONS)}")
    if engine.portable and engine.compile:
        raise UserError("--portable: what is compiled is for this processor; drop --compile")
    asked = engine.devices * engine.nodes
    if dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) != asked:
        raise UserError(
            f"--devices {engine.devices} --nodes {engine.nodes}: torchrun started"
            f" {os.environ['WORLD_SIZE']} processes, expected {asked}"
        )
    torch.set_num_threads(engine.threads)
    keep_activations()
    for name in LOGGERS:  # one that is imported later takes what Fabric says
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fabric = Fabric(
                accelerator=engine.accelerator,
                devices=engine.devices,
                num_nodes=engine.nodes,
                precision=engine.precision,  # type: ignore[arg-type] # checked above
                strategy=IndependentDDPStrategy() if asked > 1 else "auto",
            )
        except (MisconfigurationException, ImportError, RuntimeError, ValueError) as error:
            devices = f" --devices {engine.devices}" if asked > 1 else ""
            text = " ".join(str(error).split())
            raise UserError(f"--accelerator {engine.accelerator}{devices}: {text}") from None
        if os.environ.get("LT_CLI_USED") != "1":  # 1 = `fabric run` has launched it
            fabric.launch()
    deterministic.turn_on(fabric.device)
    if engine.portable:
        portable.turn_on(fabric.device)
    return fabric


class IndependentDDPStrategy(DDPStrategy):
    """One process per device, each with its own clients; gradients are never exchanged."""

    def setup_environment(self) -> None:
        """Choose the device and connect to the other processes."""
        assert self.accelerator is not None and self.cluster_environment is not None
        self.accelerator.setup_device(self.root_device)
        self._set_world_ranks()
        if dist.is_initialized():
            return  # by an earlier run of this command
        os.environ["MASTER_ADDR"] = self.cluster_environment.main_address
        os.environ["MASTER_PORT"] = str(self.cluster_environment.main_port)
        try:
            dist.init_process_group(
                "gloo", rank=self.global_rank, world_size=self.world_size, timeout=START_TIMEOUT
            )
            everybody()
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise ProcessDied(
                f"the {self.world_size} processes could not connect: {text}"
            ) from None

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Leave the module as it is."""
        return module

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)


class Launcher(_SubprocessScriptLauncher):
    """Starts this command once per further device of this machine, unless a launcher did so."""

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Start the other processes, then call the function, in which all of them connect."""
        environment = self.cluster_environment
        try:
            environment.validate_settings(self.num_processes, self.num_nodes)
        except ValueError as error:
            asked = f"--devices {self.num_processes} --nodes {self.num_nodes}"
            raise UserError(f"{asked}: {' '.join(str(error).split())}") from None
        if not environment.creates_processes_externally:
            if self.num_nodes > 1 and not os.environ.keys() >= set(MACHINES):
                raise UserError(
                    f"--nodes {self.num_nodes}: expected {', '.join(MACHINES)} in the environment"
                    " of each machine, or torchrun or srun around the command"
                )
            if self.num_processes > most_processes():
                raise UserError(
                    f"--devices {self.num_processes}: expected at most {most_processes()} processes"
                    f" on a machine of {os.cpu_count() or 1} cores"
                )
            self._call_children_scripts()
            CHILDREN.extend(self.procs)
        if self.num_nodes > 1 and environment.global_rank() == 0:
            minutes = START_TIMEOUT.seconds // 60
            said = f"waiting for {self.num_nodes} machines, {minutes} minutes at most"
            print(said, file=sys.stderr)
        connected = threading.Event()
        heard, written = os.pipe()
        os.set_blocking(written, False)
        is_main = threading.current_thread() is threading.main_thread()
        # any thread may get a signal; handlers run in the main one, which is in C
        before = signal.set_wakeup_fd(written, warn_on_full_buffer=False) if is_main else -1
        threading.Thread(target=_watch, args=(connected, heard), daemon=True).start()
        try:
            return function(*args, **kwargs)
        finally:
            connected.set()
            if is_main:
                signal.set_wakeup_fd(before)
            os.close(written)


def _watch(connected: threading.Event, heard: int) -> None:
    """End the run if a process ends, or is to end, before all are connected.

    Connecting cannot be cancelled, and runs no handler of a signal.

    Args:
        connected: set when they are.
        heard: file from which numbers of signals are read; it is closed.
    """
    stopped: set[int] = set()
    while not connected.is_set():
        if select.select([heard], [], [], 0.2)[0]:
            stopped |= {*STOPS} & {*os.read(heard, 64)}
        if parent_is_gone():
            os._exit(ProcessDied.exit_code)
        ended = [child.returncode for child in CHILDREN if child.poll() is not None]
        if (ended or stopped) and not connected.is_set():
            terminate_workers()
            error: FlbenchError = ProcessDied("a process of this run died before it began")
            if stopped or {Interrupted.exit_code, -signal.SIGINT} & {*ended}:  # Ctrl-C goes to all
                error = Interrupted("interrupted")
            print(f"flbench: {escaped(str(error))}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(error.exit_code)
    os.close(heard)
