"""The vectorised executor: trains many clients at once, each in a lane of a batch dimension.

`torch.func.vmap` runs the ClientModule's own `training_step` over the lanes. All lanes make their
k-th step together; lanes whose batches have the same shape share one call, so that clients with
different numbers of samples need no padding. Every lane has the same batches and the same dropout
as in the sequential executor, and its parameters are equal up to the order of float sums.

A module for which this does not hold is detected, and its clients are trained one by one. The
clients of several runs, such as the seeds of a method, may share lanes
(`TogetherExecutor.fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor, nn

from flbench.core.client import LocalWork
from flbench.core.model_bank import RowStore
from flbench.core.networks import is_linear
from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.cross_evaluation import TOGETHER
from flbench.engine.lanes import training
from flbench.engine.lanes.hooks import NotVectorisable, in_lanes
from flbench.engine.lanes.lanes import NotTogether, ProgramTable, StageJob
from flbench.engine.lanes.optimizer import not_shared
from flbench.engine.lanes.step import OtherStep
from flbench.engine.lanes.training import Pool
from flbench.engine.recording.program import USES
from flbench.engine.sequential import Sequential, copy_idle, stack_upload
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError, in_one_line, text_of
from flbench.federation.federation import Samples

SLOWER = "lanes are slower"
SOON = 2
"""`USES` on a device: there the Python of a step takes many times as long as its operations."""


class Vectorised(Sequential):
    """Trains the clients of a stage at once, or one by one where lanes would change a result.

    Args:
        workspace: holds the module.
        samples: the visible ones.
        seed: of the run.
        say: prints the reason when clients are trained one by one.
        measures: train the first stage both ways, and go on with the faster one.
        store: where tables of uploads are.
    """

    def __init__(
        self,
        workspace: Workspace,
        samples: Samples,
        seed: int,
        say: Callable[[str], None],
        *,
        measures: bool = False,
        store: RowStore | None = None,
    ) -> None:
        super().__init__(workspace, samples, seed, store)
        self.say, self.measures = say, measures
        self.usual_rate = workspace.module.local.lr
        self.uses = USES if workspace.device.type == "cpu" else min(USES, SOON)
        self._is_linear = is_linear(workspace.module)
        self.programs: ProgramTable = {}
        self.reason = self._known_reason()
        if self.reason is not None:
            say(f"clients are trained one by one: {self.reason}")

    @property
    def name(self) -> str:
        """How clients are trained, where the module allows it."""
        if self.reason != SLOWER:
            return "vectorised"
        return "sequential, evaluated in lanes" if self.evaluates_in_lanes else "sequential"

    @property
    def uses_lanes(self) -> bool:
        """Whether the next stage is trained in lanes, as far as is known."""
        return self.reason is None and not self.measures

    @property
    def evaluates_in_lanes(self) -> bool:
        """Whether models are evaluated in lanes, whatever trains them; see `Sequential`.

        It saves time on CUDA, and where networks are linear layers; some modules do not allow it.
        """
        space = self.workspace
        if space.evaluates_lanes is False or space.layout.which is not None:
            return False
        return space.device.type in TOGETHER or self._is_linear

    def _known_reason(self) -> str | None:
        """Why clients of this module must be trained one by one; None = no reason is known."""
        reason = self.workspace.trainer.not_in_lanes() or not_shared(self.workspace.optimizer)
        if reason is not None:
            return reason
        for child in self.workspace.module.modules():
            if isinstance(child, nn.modules.dropout._DropoutNd):
                return f"{type(child).__name__} draws other random numbers in lanes"
        return None

    def fit_into(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> Upload:
        """Train every acting client from its start; see `Sequential.fit_into`."""
        if self.measures and self.reason is None and int(start.active.sum()) > 1:
            self.measures = False
            self._measure(rows, start, stage, work, round_)
        if self.reason is None:
            try:
                (upload,), _ = _train([self.job(rows, start, stage, work, round_)])
                return upload
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if isinstance(error, FlbenchError) and error.__cause__ is None:
                    raise
                text = (str(error).strip() or "no message").splitlines()[0]
                known = isinstance(error, NotVectorisable)
                self.reason = text if known else f"{type(error).__name__}: {text}"
                self.say(f"round {round_}: clients are trained one by one: {self.reason}")
        return super().fit_into(rows, start, stage, work, round_)

    def _measure(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> None:
        """Train a stage both ways, and say which one took less time; all later stages take it.

        Lanes are measured when all their steps are recorded, as they are later in a run.
        """
        uses, self.uses = self.uses, 1
        self.fit_into(rows, start, stage, work, round_)  # records the steps
        self.uses = uses
        began = perf_counter()
        self.fit_into(rows, start, stage, work, round_)
        between = perf_counter()
        if self.reason is None:
            super().fit_into(rows, start, stage, work, round_)
            lanes, alone = between - began, perf_counter() - between
            text = f"a stage took {lanes:.3f} s in lanes and {alone:.3f} s one by one"
            if lanes > alone:
                self.reason = SLOWER
            self.say(f"clients are trained {'one by one' if self.reason else 'in lanes'}: {text}")

    def job(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> StageJob:
        """The arguments of `fit_into` as a job for lanes."""
        rate, programs, uses = self.usual_rate, self.programs, self.uses
        return StageJob(self, rows, start, stage, work, round_, rate, programs, uses)


def _train(jobs: Sequence[StageJob], pool: Pool | None = None) -> tuple[list[Upload], Pool]:
    """Train jobs in lanes; see `training.train`.

    Returns:
        Each upload without its models, which are in the job's rows; and the samples of the jobs.
    """
    for job in jobs:
        copy_idle(job.rows, job.start)
    with no_draws(jobs[0].executor.workspace.device), ExitStack() as settings:
        for job in jobs:
            settings.enter_context(in_lanes(job.executor.workspace.module))
            settings.enter_context(using_loss(job))
        pool = training.train(jobs, pool)
    uploads = [
        stack_upload(job.stage, job.round, job.start, list(map(len, job.owned)), job.outcomes)
        for job in jobs
    ]
    return uploads, pool


@contextmanager
def using_loss(job: StageJob) -> Iterator[None]:
    """Let the module take the loss of a job's methods, and see that it took it."""
    with job.executor.using(job.work):
        yield
        made = sum(outcome.steps for row in job.outcomes for outcome in row)
        job.executor.refuse_lost_loss(made, job.work)


@contextmanager
def no_draws(device: torch.device) -> Iterator[None]:
    """Refuse draws from torch's default generators, which are not seeded for a client here."""
    cuda = [device] if device.type == "cuda" else []

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, cuda)]

    with torch.random.fork_rng(devices=cuda):
        before = states()
        yield
        if not all(map(torch.equal, before, states())):
            raise NotVectorisable("it draws random numbers outside of training_step")


FitArguments = tuple[Vectorised, Dispatched, Stage, LocalWork, int]
"""The executor of a run, and the arguments of its `fit`."""


class TogetherExecutor:
    """Trains the stages of several runs in the same lanes, as long as that is possible.

    Attributes:
        reason: why it is not possible any more; None = it is.
    """

    def __init__(self) -> None:
        self.programs: ProgramTable = {}
        self.reason: str | None = None
        self._pool: Pool | None = None

    def fit(self, fits: Sequence[FitArguments]) -> list[Upload] | None:
        """Train the stages; the uploads of `Sequential.fit`. None = each must be trained alone.

        A lane's numbers depend on its own run only, to the last bit (`sharing`).
        """
        if self.reason is not None or not all(fit[0].uses_lanes for fit in fits):
            return None
        for executor, *_ in fits:
            executor.programs = self.programs
        tables = [fit[0].tables.take(fit[1].params, fit[0].workspace.device) for fit in fits]
        jobs = [
            executor.job(table.unbind(), start, stage, work, round_)
            for (executor, start, stage, work, round_), table in zip(fits, tables, strict=True)
        ]
        try:
            uploads, self._pool = _train(jobs, self._pool)
        except OtherStep:
            self._part("their steps are not the same", fits)
            return None
        except (NotTogether, NotVectorisable) as error:
            self._part(text_of(error), fits)
            return None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever it is, it comes again where a run trains alone
            self._part(in_one_line(error), fits)
            return None
        return [
            replace(upload, params=table) for upload, table in zip(uploads, tables, strict=True)
        ]

    def _part(self, reason: str, fits: Sequence[FitArguments]) -> None:
        """Let every run train alone from now on, with steps that it records itself."""
        self.reason, self._pool = reason, None
        for executor, *_ in fits:
            executor.programs = {}
