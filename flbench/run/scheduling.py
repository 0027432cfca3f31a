"""Who trains what a run asks for: the run alone, or the runs of several seeds together.

A run is a generator (`run/rounds.py`): it yields each stage that is to be trained, and gets the
upload. Alone, its own executor trains it. Together, runs wait for each other at their stages, and
their clients share lanes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar, cast

from flbench.core.client import LocalWork
from flbench.core.state import Dispatched, Stage, Upload
from flbench.engine.lanes.vectorised import FitArguments, TogetherExecutor, Vectorised
from flbench.engine.sequential import Sequential
from flbench.plugin.isolation import streams_kept

T = TypeVar("T")


@dataclass
class Training:
    """A stage that a run wants to have trained.

    Attributes:
        seconds: that its training took, if other runs were trained meanwhile; else None.
        asked: when the run began to wait.
    """

    executor: Sequential
    start: Dispatched
    stage: Stage
    work: LocalWork
    round: int
    seconds: float | None = None
    asked: float = field(default_factory=time.perf_counter)

    @streams_kept()
    def alone(self) -> Upload:
        """Let the run's own executor train it."""
        return self.executor.fit(self.start, self.stage, self.work, self.round)

    def elsewhere(self) -> float:
        """Seconds since the run began to wait in which nothing was done for it."""
        return 0.0 if self.seconds is None else time.perf_counter() - self.asked - self.seconds


RunGenerator = Generator[Training, Upload, T]
"""A run, or a part of one, that yields what is to be trained and ends with a T."""


UploadOrError = Upload | BaseException | None
"""What a run gets that waits: the upload, or what its training raised; None = it begins."""


def resume(running: RunGenerator[T], answer: UploadOrError) -> Training:
    """Let a run go on until it waits again; StopIteration has its result."""
    if isinstance(answer, BaseException):
        return running.throw(answer)
    return running.send(cast(Upload, answer))


def alone(running: RunGenerator[T]) -> T:
    """Let a run train all by itself, until it ends."""
    answer: UploadOrError = None
    while True:
        try:
            training = resume(running, answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = None  # its table of models is used again
        try:
            answer = training.alone()
        except BaseException as error:
            answer = error


def together(
    runs: Sequence[RunGenerator[T]], say: Callable[[str], None] = lambda message: None
) -> Iterator[tuple[int, T]]:
    """Let runs train together, until all have ended; the number of each with its result.

    A run that ends stops no other. If one of them is interrupted, all are. Those that are ahead,
    as runs that go on from checkpoints may be, wait for the others.

    Args:
        say: called once if they cannot go on together, with the reason.
    """
    executor = TogetherExecutor()
    answers: dict[int, UploadOrError] = dict.fromkeys(range(len(runs)))
    waiting: dict[int, Training] = {}
    try:
        while answers or waiting:
            for number in list(answers):
                try:
                    waiting[number] = resume(runs[number], answers.pop(number))
                except StopIteration as end:
                    yield number, end.value
            before = executor.reason
            round_ = min((one.round for one in waiting.values()), default=0)
            behind = [number for number in sorted(waiting) if waiting[number].round == round_]
            trainings = [waiting.pop(number) for number in behind]
            answers |= zip(behind, fit_waiting(executor, trainings), strict=True)
            if executor.reason != before:
                say(f"the seeds do not train together: {executor.reason}")
    except BaseException as stop:
        for one in runs:
            with suppress(BaseException):
                one.throw(stop)
        raise


@streams_kept()
def fit_waiting(executor: TogetherExecutor, trainings: Sequence[Training]) -> list[UploadOrError]:
    """Train what runs wait for, together if possible: the upload of each, or its error."""
    began = time.perf_counter()
    fits: list[FitArguments] = [
        (one.executor, one.start, one.stage, one.work, one.round)
        for one in trainings
        if isinstance(one.executor, Vectorised)
    ]
    uploads = executor.fit(fits) if 1 < len(fits) == len(trainings) else None
    if uploads is not None:
        seconds = time.perf_counter() - began
        made = [int(upload.model_steps.sum()) for upload in uploads]
        for one, steps in zip(trainings, made, strict=True):
            one.seconds = seconds * steps / max(1, sum(made))
        return list(uploads)
    answers: list[UploadOrError] = []
    for one in trainings:
        began = time.perf_counter()
        try:
            answers.append(one.alone())
        except Exception as error:
            answers.append(error)
        one.seconds = time.perf_counter() - began
    return answers
