"""Launchers: where cells run, and what becomes of them.

A cell runs in this process, in a worker process of this machine (`workers.py`), or as a task of a
Ray cluster. Workers get its request as text.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.engine.processes.own_process import defer_imports
from flbench.errors import (
    FlbenchError,
    InProgress,
    MissingData,
    Undefined,
    UserError,
    is_interruption,
)
from flbench.sweeps.request import Cell, RunRequest, resolve

if TYPE_CHECKING:
    from flbench.core.dataset import Dataset
    from flbench.results.schema import Result
    from flbench.run.composition import LoadedMethod
    from flbench.run.spec import RunSpec
    from flbench.terminal.console import Console

SOON = 0.01
"""Seconds after which an interruption that was lost is raised again."""
PASSED_TO_WORKERS = ("FLBENCH_DATA", "WANDB_", "HF_")
"""Beginnings of the environment variables that the workers of a cluster get."""
RETRIES = 3
"""How often a cell is begun again whose worker died."""
DONE, COMPLETE, SKIPPED, FAILED = "done", "were complete", "skipped", "failed"
ELSEWHERE = "in progress elsewhere"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        what: DONE, COMPLETE, SKIPPED or FAILED; ELSEWHERE while another process computes it.
        why: the reason, of a cell without a result.
        code: the exit code that `flbench run` would give.
        title: the cell in messages, with the name of the data that are there.
        path: where the result lies, or would lie.
        error: what was raised, if the cell ran in this process.
    """

    what: str
    why: str = ""
    code: int = 0
    title: str = ""
    path: Path | None = None
    result: Result | None = None
    seconds: float = 0.0
    error: Exception | None = None


OutcomeGenerator = Generator[tuple[Cell, Outcome], None, None]


class CellInterrupted(KeyboardInterrupt):
    """A person stops a cell; its last whole round lies in `checkpoint`, if that is a file."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        self.checkpoint = checkpoint


def run_cells(cells: Sequence[Cell]) -> OutcomeGenerator:
    """Run cells in this process, one after the other (`attempt`); a data set is loaded once.

    The last cell runs without the data set: its clients have copies of their samples.
    """
    load = lru_cache(maxsize=1)(partial(loaded, cells[0].spec.say if cells else print))

    def take(name: str, root: Path) -> Dataset:
        dataset = load(name, root)
        load.cache_clear()
        return dataset

    for number, cell in enumerate(cells, start=1):
        yield cell, attempt(cell.spec, take if number == len(cells) else load)


def loaded(say: Callable[[str], None], name: str, root: Path) -> Dataset:
    """Load a data set; what is in a person's own files is said (`status.facts`)."""
    from flbench.datasets.status import facts
    from flbench.federation.loading import load_dataset, opens_argument

    dataset = load_dataset(name, root)
    if opens_argument(name):
        shape = "x".join(map(str, dataset.x.shape[1:]))
        say(f"{dataset.name}: {len(dataset.y):,} samples of {shape}")
        for key, text in facts(dataset):
            say(f"{key}: {text}" if key else text)
    return dataset


def on_cpu(accelerator: str) -> bool:
    """Whether cells are computed on CPUs alone."""
    import torch

    others = torch.cuda.is_available() or torch.backends.mps.is_available()
    return accelerator == "cpu" or (accelerator == "auto" and not others)


def run_locally(cells: Sequence[Cell]) -> OutcomeGenerator:
    """Run cells in this process, and stop them when a batch system asks for it."""
    with stoppable():
        yield from run_cells(cells)


def attempt(spec: RunSpec, load: Callable[[str, Path], Dataset]) -> Outcome:
    """Run a cell, whatever comes of it; only a person's stop is raised (`CellInterrupted`)."""
    from flbench.run.runner import execute, has_result, resolve_dataset

    began = time.monotonic()
    try:
        spec, data = resolve_dataset(spec, load)
        what = COMPLETE if has_result(spec) else DONE
        result = execute(spec, data)
    except KeyboardInterrupt:
        raise CellInterrupted(spec.checkpoint) from None
    except Exception as error:
        if is_interruption(error):
            raise CellInterrupted(spec.checkpoint) from None
        return _without_result(spec, error)
    seconds = time.monotonic() - began
    return Outcome(what, "", 0, spec.title, spec.path, result, seconds)


def _without_result(spec: RunSpec, error: Exception) -> Outcome:
    """The outcome of a cell that raised something."""
    what, why, code = FAILED, f"{type(error).__name__}: {error}", 1
    if isinstance(error, FlbenchError):
        why, code = str(error), error.exit_code
    if isinstance(error, (Undefined, MissingData)):
        what, code = SKIPPED, 0
    if isinstance(error, InProgress):
        what = ELSEWHERE
    return Outcome(what, why, code, spec.title, spec.path, error=error)


@contextmanager
def stoppable() -> Iterator[None]:
    """Let a request to end (SIGTERM, as batch systems send it) do what Ctrl-C does.

    Only the main thread of a process hears of signals; in others nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def raise_lost_interruptions() -> None:
    """Let an interruption that hits code which cannot raise, such as a callback, come again."""
    sys.unraisablehook = _raise_again


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise an interruption again; other errors are printed."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, SOON)


def run_on_ray(cells: Sequence[Cell], workers: int | None, address: str | None) -> OutcomeGenerator:
    """Run cells, at least one, on a Ray cluster (see `connected`); a worker's death is retried."""
    return _spread(connected(workers, address, cells[0]), cells, workers)


def _spread(ray: Any, cells: Sequence[Cell], workers: int | None) -> OutcomeGenerator:  # noqa: ANN401
    waiting, running = deque(cells), dict[Any, Cell]()
    try:
        run = ray.remote(max_retries=RETRIES, **needs(cells[0]))(run_remotely)
        environment = {
            key: value for key, value in os.environ.items() if key.startswith(PASSED_TO_WORKERS)
        }
        with stoppable():
            while waiting or running:
                while waiting and (workers is None or len(running) < workers):
                    cell = waiting.popleft()
                    sources = sources_of(cell.spec)
                    task = run.remote(cell.request.to_json(), os.getcwd(), environment, sources)
                    running[task] = cell
                for one in ray.wait(list(running))[0]:
                    yield running.pop(one), received(ray, one)
    finally:
        for one in running:
            ray.cancel(one, force=True)
        ray.shutdown()


def connected(workers: int | None, address: str | None, cell: Cell) -> Any:  # noqa: ANN401
    """The module ray, connected to a cluster on which the cell finds what it needs.

    Raises:
        UserError: Ray is not installed, the cluster does not answer, or no machine of it is large
            enough.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--launcher ray needs Ray: pip install 'flbench[ray]'") from None
    need = needs(cell)
    cpus = need["num_cpus"] * (workers or 1)
    ours = {"num_cpus": cpus if workers else max(cpus, os.cpu_count() or 1)}
    ours["object_store_memory"] = 100 * 2**20  # results are small
    given = {"address": address} if address else {"address": "local", **ours}
    try:
        ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR, **given)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"Ray at {address or 'this machine'}: {reason}") from None
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": need["num_cpus"], "GPU": need["num_gpus"]}
    if not any(all(one.get(key, 0) >= wanted[key] for key in wanted) for one in machines):
        ray.shutdown()
        needed = f"{wanted['CPU']} CPUs and {wanted['GPU']} GPUs"
        raise UserError(f"Ray: a cell needs {needed}, no machine has them; see --threads")
    return ray


def needs(cell: Cell) -> dict[str, int]:
    """What a cell takes of a machine."""
    engine = cell.spec.engine
    return {"num_cpus": engine.threads, "num_gpus": int(engine.accelerator in ("cuda", "gpu"))}


def run_remotely(
    request: str, folder: str, environment: Mapping[str, str], sources: Mapping[str, str]
) -> Outcome:
    """Run the cell of a request in JSON in a worker of a cluster, in the folder of the sweep.

    Args:
        sources: the plugins of the sweep, with hashes of their code; a worker with other code
            would mix two codes in one table.
    """
    try:
        os.chdir(folder)
    except OSError:
        return Outcome(FAILED, f"the machine of a worker does not have {folder}", 1)
    os.environ.update(environment)
    defer_imports()
    from flbench.terminal.console import Console

    return run_request(request, sources, Console())


def run_request(request: str, sources: Mapping[str, str], console: Console) -> Outcome:
    """Run the cell of a request in JSON, in another process than the sweep's.

    Args:
        request: of one cell.
        sources: see `run_remotely`.
        console: listens to the run.
    """
    try:
        (cell,) = resolve(RunRequest.from_json(request), console, _imported)
        refuse_other_code(cell.spec, sources)
    except FlbenchError as error:
        return Outcome(FAILED, str(error), error.exit_code)
    return replace(attempt(cell.spec, _loaded), error=None)


def refuse_other_code(spec: RunSpec, sources: Mapping[str, str]) -> None:
    """Refuse to run a cell with other code than that of the sweep; see `run_remotely`."""
    here = sources_of(spec)
    if other := [name for name in sources if sources[name] != here.get(name)]:
        raise UserError(
            f"the code of {', '.join(other)} is not that of the sweep: start the sweep again"
        )


def sources_of(spec: RunSpec) -> dict[str, str]:
    """The code of a run, and the settings of its suite, as hashes by name."""
    from flbench.run.core_digest import core
    from flbench.run.setup import code_of

    return {**code_of(spec), "flbench": core(), f"suite {spec.suite.name}": spec.suite.hash()}


@cache
def _imported(method: str) -> LoadedMethod:
    """A method, found and imported once for all cells that a worker runs."""
    from flbench.run.composition import load_method

    return load_method(method)


@lru_cache(maxsize=1)
def _loaded(name: str, root: Path) -> Dataset:
    """A data set, once for all cells that a worker runs in turn."""
    from flbench.federation.loading import load_dataset

    return load_dataset(name, root)


def received(ray: Any, task: Any) -> Outcome:  # noqa: ANN401 - Ray is an extra
    """What a worker answered; its death is a failure of the cell."""
    try:
        outcome: Outcome = ray.get(task)
    except ray.exceptions.RayError as error:
        line = next(iter(str(error).strip().splitlines()), "")
        return Outcome(FAILED, f"{type(error).__name__}: {line}", 1)
    return outcome
