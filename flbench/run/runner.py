"""From a run as asked for to a result on disk: load the data set, run the rounds, write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from flbench.core.dataset import Dataset
from flbench.core.state import State
from flbench.engine.processes.fabric import join_process_group
from flbench.engine.processes.shared_samples import made_once
from flbench.errors import MachineError, MissingData, PluginError, Undefined
from flbench.federation.loading import load_dataset as load_dataset
from flbench.results.events import RunInfo
from flbench.results.files import read_result, save_result, skip_path, write_atomically
from flbench.results.kept_files import saved_file, saved_path
from flbench.results.schema import Result, SavedFile, SavedKind, first_problem, problem_text
from flbench.run.checkpoint import CheckpointWriter
from flbench.run.checkpoint_file import discard, generations
from flbench.run.continued import kept_by, shorter_run
from flbench.run.energy import metered
from flbench.run.newcomers import evaluate_newcomers
from flbench.run.result import build_result, skipped
from flbench.run.rounds import Run, complete_saving, run_rounds
from flbench.run.run_folder import begun_again, held, tidy
from flbench.run.same_data import data_digests, refuse_other_result, refuse_other_seeds
from flbench.run.saved_files import about_run, write_saved
from flbench.run.saved_models import models_of
from flbench.run.saved_predictions import predictions_of
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.suite import Suite


def resolve_dataset(
    spec: RunSpec, load: Callable[[str, Path], Dataset] = load_dataset
) -> tuple[RunSpec, Callable[[str, Path], Dataset]]:
    """The run on the data that are there, and how to get at them, once.

    Of several processes the first of each machine looks what is there; the others load nothing.

    A part of a data set comes under a name of its own, as `digit-5[mnist,usps]`: the suite then
    runs on that name with one client per domain, and never meets results of the whole. What is
    derived from a part, as `rotated:digit-5`, has domains of its own, so all its clients stay.

    Raises:
        MissingData: nothing is there; names the suite's data set that needs no files.
    """
    suite = spec.suite
    if is_complete(spec):
        return spec, load
    once: list[Dataset] = []

    def look(_: object) -> tuple[str, int | None]:
        """The name of the data set and the number of its domains."""
        once.append(load(suite.dataset, spec.data_root))
        domains = once[0].domains
        return once[0].name, None if domains is None else len(domains.unique())

    try:
        name, domains = made_once(join_process_group(spec.engine), look)
    except MissingData as error:
        offline = suite.offline_dataset
        advice = f"; this data set needs no files: --dataset {offline}" if offline else ""
        raise MissingData(f"{error}{advice}") from None
    spec = replace(spec, suite=on_part(suite, name, domains, spec.say))
    return spec, lambda _, root: once.pop() if once else load(suite.dataset, root)


def on_part(suite: Suite, name: str, domains: int | None, say: Callable[[str], None]) -> Suite:
    """The suite on the data that are there, which may be a part; see `resolve_dataset`.

    Args:
        name: of the data set that was loaded.
        domains: number of its domains.
    """
    if not name.startswith(f"{suite.dataset.partition('[')[0]}["):
        return suite
    there = suite.clients if domains is None or ":" in name else domains
    part = {"dataset": name, "clients": min(suite.clients, there)}
    if part != {"dataset": suite.dataset, "clients": suite.clients}:
        say(f"{suite.name} runs on {name} with {part['clients']} clients")
    return suite.model_copy(update=part)


def is_complete(spec: RunSpec) -> bool:
    """Whether the result is there and will do; of several processes the first one looks for all."""
    return join_process_group(spec.engine).broadcast_object(has_result(spec))


def has_result(spec: RunSpec) -> bool:
    """Whether a result is there and will do.

    It will not if it is to be computed again, or if a run that does so is to be resumed.
    """
    there = spec.path.is_file() and not spec.force
    return there and not (spec.resume and begun_again(spec.path))


def execute(spec: RunSpec, load: Callable[[str, Path], Dataset] = load_dataset) -> Result:
    """Do a run, or read its result if it is complete already.

    Raises:
        UserError: something the person can mend, such as a complete result of other data.
        InProgress: another process computes it.
        Undefined: the method has no meaning on this suite; the reason is kept in a file.
        Diverged: a client's parameters left the finite numbers.
    """
    first = join_process_group(spec.engine).is_rank_zero
    if not first:
        spec = replace(spec, sinks=(), say=lambda message: None)
    if is_complete(spec):
        if first:
            tidy(spec.path.parent)
        result = read_result(spec.path)
        refuse_other_result(spec, result, partial(data_digests, load=load))
        return result
    with ExitStack() as stack:
        holding = partial(stack.enter_context, held(spec.path)) if first else lambda: None
        join_process_group(spec.engine).attempt(holding)
        if is_complete(spec):  # another process has just ended it
            return read_result(spec.path)
        return _compute(spec, load, first)


def _compute(spec: RunSpec, load: Callable[[str, Path], Dataset], first: bool) -> Result:
    """Do a run in its folder; `first` is the process that writes."""
    if generations(spec.checkpoint) and not spec.resume:
        spec.say(f"{spec.title}: starts over; --resume would go on from its checkpoint")
    try:
        data = partial(load, spec.suite.dataset, spec.data_root)
        run, state = prepare(spec, data, shorter=shorter_run(spec))
        refuse_other_seeds(spec, run.marks.data)
        result = play(spec, run, state, spec.suite.rounds, spec.path)
    except Undefined as error:
        if first:
            discard(spec.checkpoint)
            write_atomically(skip_path(spec.path), skipped(spec, str(error)).canonical().encode())
        raise
    if first:
        discard(spec.checkpoint)
        skip_path(spec.path).unlink(missing_ok=True)
    return result


def play(spec: RunSpec, run: Run, state: State, rounds: int, target: Path | None) -> Result:
    """Run the rounds that are left, report to the sinks, write the result.

    Args:
        rounds: stop after this round; the methods see the number that the suite has. Newcomers
            join after the suite's last round only.
        target: where the result is written; None = nowhere.
    """
    described, suite = spec.method.described, spec.suite
    info = RunInfo(
        method=described.name,
        params=described.params,
        suite=suite.name,
        dataset=suite.dataset,
        seed=spec.seed,
        rounds=rounds,
        first=state.round + 1,
        settings=suite.settings(),
        fingerprint=spec.fingerprint,
        groups=None if run.groups is None else run.groups.tolist(),
        path=str(target or ""),
        task=run.task,
    )
    run.hooks.listen("run_started", info=info)
    last = None if run.checkpoint is None or target is None else kept_by(spec)
    keeper = CheckpointWriter(run.checkpoint, run.origin, run.services.say, last)
    with keeper.guarding():  # what fails after the last round loses no round
        with metered(spec.engine, state.round > 0, spec.say) as meter:
            state = run_rounds(run, state, rounds, keeper)
            unseen = evaluate_newcomers(run, state) if rounds == suite.rounds else None
        if run.saving is not None:
            complete_saving(run, state)
        first = join_process_group(spec.engine).is_rank_zero
        saved, failed = _saved(spec, run, target if first else None)
        try:
            result = build_result(spec, run, state, unseen, meter.energy, saved)
        except ValidationError as error:
            what = problem_text(*first_problem(error, {}))
            raise PluginError(
                f"{described.name}: no result file could hold the run: {what}"
            ) from error
        kept = target if first else None
        if kept is not None:
            save_result(kept, result)
    written = kept and kept.read_bytes()
    run.hooks.listen("run_finished", result=result, path=info.path)
    if kept and written and not (kept.is_file() and kept.read_bytes() == written):
        run.services.say(f"{kept}: a sink changed the file; it is written again")
        write_atomically(kept, written)
    if failed is not None:
        raise failed
    return result


def _saved(
    spec: RunSpec, run: Run, target: Path | None
) -> tuple[dict[SavedKind, SavedFile], MachineError | None]:
    """Write what is saved beside a result, and what kept it from being written, if anything did.

    The result is written in any case, and names no file that is not there.
    """
    if run.saving is None or target is None:
        return {}, None
    saving, found = run.saving, dict[SavedKind, SavedFile]()
    if saving.shown is None:
        return {}, None
    about = about_run(spec, run.marks, saving.shown.round, run.task, run.scale)
    try:
        for kind in saving.keep.saved:
            path = saved_path(target, kind, spec.seed)
            if kind == "models":
                write_saved(path, *models_of(run, saving, saving.shown, about))
            else:
                write_saved(path, *predictions_of(saving.shown, about))
            found[kind] = saved_file(path)
    except MachineError as error:
        return found, MachineError(f"{error}; the result is written, and names what is there")
    return found, None
