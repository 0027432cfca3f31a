"""The vectorised executor: trains many clients at once, each in a lane of a batch dimension.

`torch.func.vmap` runs the ClientModule's own `training_step` over the lanes. All lanes make their
k-th step together; lanes whose batches have the same shape share one call, so that clients with
different numbers of samples need no padding. Every lane has the same batches and the same dropout
as in the sequential executor, and its parameters are equal up to the order of float sums.

A module for which this does not hold is detected, and its clients are trained one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flbench.core.bank_budget import RowStore
from flbench.core.client_module import LocalWork
from flbench.core.networks import is_linear
from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.lanes import training
from flbench.engine.lanes.evaluation import TOGETHER
from flbench.engine.lanes.hooks import NotVectorisable, in_lanes
from flbench.engine.lanes.lanes import ProgramTable, StageJob
from flbench.engine.lanes.optimizer import not_shared
from flbench.engine.options import FELL_BACK
from flbench.engine.recording.program import USES
from flbench.engine.sequential import Sequential, copy_idle, stack_upload
from flbench.engine.workspace import Workspace
from flbench.errors import FlbenchError
from flbench.federation.federation import Samples

SOON = 2
"""`USES` on a device: there the Python of a step takes many times as long as its operations."""


class Vectorised(Sequential):
    """Trains the clients of a stage at once, or one by one where lanes would change a result.

    Args:
        workspace: holds the module.
        samples: the visible ones.
        seed: of the run.
        say: prints the reason when clients are trained one by one.
        store: where tables of uploads are.
    """

    def __init__(
        self,
        workspace: Workspace,
        samples: Samples,
        seed: int,
        say: Callable[[str], None],
        store: RowStore | None = None,
    ) -> None:
        super().__init__(workspace, samples, seed, store)
        self.say = say
        self.usual_rate = workspace.module.local.lr
        self.uses = USES if workspace.device.type == "cpu" else min(USES, SOON)
        self._is_linear = is_linear(workspace.module)
        self.programs: ProgramTable = {}
        self.reason = self._known_reason()
        if self.reason is not None:
            say(f"clients are trained one by one: {self.reason}")

    @property
    def name(self) -> str:
        """How clients are trained, as far as is known."""
        return "vectorised" if self.reason is None else FELL_BACK

    @property
    def uses_lanes(self) -> bool:
        """Whether the next stage is trained in lanes, as far as is known."""
        return self.reason is None

    def leave_lanes(self, reason: str) -> None:
        """Train one by one from now on; a reason that is known already stays."""
        self.reason = self.reason or reason

    @property
    def evaluates_in_lanes(self) -> bool:
        """Whether models are evaluated in lanes, whatever trains them; see `Sequential`.

        It saves time on CUDA, and where networks are linear layers; some modules do not allow it.
        """
        space = self.workspace
        if space.compared is None or space.layout.which is not None:
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
        if self.reason is None:
            try:
                return self._fit_in_lanes(rows, start, stage, work, round_)
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

    def _fit_in_lanes(
        self,
        rows: Sequence[Tensor],
        start: Dispatched,
        stage: Stage,
        work: LocalWork,
        round_: int,
    ) -> Upload:
        """`fit_into`, in lanes; see `training.train`."""
        rate, programs, uses = self.usual_rate, self.programs, self.uses
        job = StageJob(self, rows, start, stage, work, round_, rate, programs, uses)
        copy_idle(rows, start)
        with no_draws(self.workspace.device), in_lanes(self.workspace.module), self.using(work):
            training.train(job)
            made = sum(outcome.steps for row in job.outcomes for outcome in row)
            self.refuse_lost_loss(made, work)
        return stack_upload(stage, round_, start, list(map(len, job.owned)), job.outcomes)


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
