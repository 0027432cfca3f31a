"""Processes that begin at once: forked from a server that has imported what a run needs; and anew.

The server is that of multiprocessing's start method "forkserver": a process of its own, in which
nothing is computed, so that it can be forked safely. It ends when nobody is left who may use it.
Where a system has no such server, processes begin anew.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess, SpawnProcess
from types import ModuleType

from flbench.engine.processes.own_process import inherited

Process = ForkServerProcess | SpawnProcess
PRELOADED = ("flbench.engine.processes.own_process", "flbench.run.runner", "sklearn.cluster")
"""What the server imports: what a run needs, also what it would import when it first needs it."""
BLOCKED = (signal.SIGINT, signal.SIGTERM)
"""Signals that do not reach the server and, until they unblock them, the new processes.

Ctrl-C goes to all processes of a terminal. Who started them decides what becomes of them.
"""


def can_fork() -> bool:
    """Whether this system has such a server."""
    return "forkserver" in multiprocessing.get_all_start_methods()


def start_server(preloaded: Sequence[str] = ()) -> None:
    """Start the server of this process, unless it runs; it imports while this process goes on.

    Args:
        preloaded: names of modules that it imports beside PRELOADED.
    """
    if not can_fork():
        return
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED, *preloaded])
    resource_tracker.ensure_running()  # here, because it unblocks signals
    # the server would search modules in the current folder first
    searched = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1", **inherited()}
    with _signals_blocked(), _environment(searched), _empty_main_module():
        forkserver.ensure_running()


def fork(
    function: Callable[..., object], *arguments: object, preloaded: Sequence[str] = ()
) -> Process:
    """Call a function of a module in a process that the server forks, in this environment."""
    if not can_fork():
        return spawn(function, *arguments, variables={})
    start_server(preloaded)
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_call, args=(os.environ.copy(), function, arguments))
    with _empty_main_module():
        process.start()
    return process


def spawn(
    function: Callable[..., object], *arguments: object, variables: Mapping[str, str]
) -> SpawnProcess:
    """Call a function of a module in a process that begins anew, with variables in its environment.

    Its libraries see them when they are loaded. As in forked ones, signals are blocked.
    """
    context = multiprocessing.get_context("spawn")
    environment, begins_with = {**os.environ, **variables}, {**variables, **inherited()}
    resource_tracker.ensure_running()  # here, because it unblocks signals
    with _signals_blocked(), _environment(begins_with), _empty_main_module():
        process = context.Process(target=_call, args=(environment, function, arguments))
        process.start()
    return process


def _call(
    environment: Mapping[str, str], function: Callable[..., object], arguments: Sequence[object]
) -> None:
    """Run in the new process."""
    gc.freeze()  # what is imported stays
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Keep BLOCKED from this thread and from processes that are started meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have variables in the environment, for processes that are started."""
    before = os.environ.copy()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _empty_main_module() -> Iterator[None]:
    """Keep new processes from running this script, which may have no `__main__` guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
