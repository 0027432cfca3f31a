"""`flbench tune`: search a method's parameters with an equal budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.options import (
    MOST_SEEDS,
    Out,
    Root,
    SettingsOption,
    Threads,
    Workers,
    read_settings,
    read_workers,
)
from flbench.core.parameters import parse
from flbench.engine.options import EngineOptions
from flbench.errors import UserError
from flbench.sweeps.request import Cell, RunRequest, resolve
from flbench.sweeps.tuning import (
    FIRST_SEED,
    NO_SCORE,
    SCORE,
    Point,
    Trial,
    grid_of,
    order,
    points,
    score_of,
)

if TYPE_CHECKING:
    from flbench.results.schema import Tuning


def tune(
    method: Annotated[str, typer.Argument(help="a method (flbench list methods)")],
    suite: Annotated[str, typer.Option("--suite", "-s", help="suite or TOML file")],
    budget: Annotated[int, typer.Option(min=2, max=MOST_SEEDS, help="sets of parameters to try")],
    tried: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=V1,V2", help="values of a parameter; repeatable"),
    ] = None,
    tuning_seeds: Annotated[
        int, typer.Option(min=1, max=MOST_SEEDS, help="seeds 1000.. of the trials")
    ] = 2,
    seeds: Annotated[
        int, typer.Option(min=1, max=MOST_SEEDS, help="seeds 0..N-1 that are scored")
    ] = 1,
    settings: SettingsOption = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="instead of the suite's")] = None,
    dataset: Annotated[str | None, typer.Option(help="data set, instead of the suite's")] = None,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    trials: Annotated[Path, typer.Option(help="folder of the trials")] = Path("flbench-tuning"),
    threads: Threads = 1,
    workers: Workers = "auto",
) -> None:
    """Search a method's parameters on tuning seeds; score the best, and the defaults, on others."""
    from flbench.sweeps.workers import prepare_workers, run_in_workers
    from flbench.terminal.console import SweepProgress

    progress, number = SweepProgress(), read_workers(workers)
    prepare_workers(number)
    launch = partial(run_in_workers, progress=progress, workers=number)
    with progress.importing():
        from flbench.cli.sweep import conclude
        from flbench.run.composition import load_method
        from flbench.sweeps.sweep import run_missing

        load = cache(load_method)
        plugin, *others = load(method).plugins
    if others:
        raise UserError(f"flbench tune takes one method, got '{method}'")
    given = read_settings(settings)
    asked = {key.removeprefix(f"{method}.") for key in given}
    free = {name: one for name, one in plugin.fields.items() if name not in asked}
    effort = getattr(plugin.kind, "effort", ())
    grid = grid_of(free, effort, dict(_values(pair) for pair in tried or []))
    if not grid:
        raise UserError(f"{method} has no number to tune; name values with --try KEY=V1,V2")
    base = RunRequest(
        methods=(method,),
        suites=(suite,),
        settings=given,
        rounds=rounds,
        dataset=dataset,
        data_root=data_root,
        engine=EngineOptions(threads=threads),
        resume=True,
    )

    def cells(
        point: Point, seeds: Sequence[int], folder: Path, tuning: Tuning | None = None
    ) -> list[Cell]:
        chosen = {**given, **{f"{method}.{key}": value for key, value in point.items()}}
        one = replace(base, settings=chosen, seeds=tuple(seeds), out=folder, tuning=tuning)
        return resolve(one, progress, load)

    drawn = points(grid, budget, f"{method}/{suite}")
    numbers = list(range(FIRST_SEED, FIRST_SEED + tuning_seeds))
    wanted = [cells(point, numbers, trials) for point in drawn]
    if not wanted[0][0].spec.suite.validation_fraction:
        raise UserError(NO_SCORE)
    progress.tell(f"{len(drawn)} sets of {', '.join(grid)}; {tuning_seeds} tuning seeds each")
    outcomes = run_missing([cell for trial in wanted for cell in trial], progress, launch)
    scores = [score_of([outcomes[cell] for cell in trial]) for trial in wanted]
    judged = sorted(map(Trial, drawn, scores), key=order)
    report = _write(judged, method, wanted[0][0])
    for one in judged:
        shown = "failed" if one.score is None else f"{one.score:.4f}"
        progress.tell(f"  {shown}  {_shown(one.params)}")
    best = judged[0]
    if best.score is None:
        raise UserError(f"no trial came to an end; see {report}")
    progress.tell(f"best {SCORE}: {_shown(best.params)}; all trials are in {report}")
    from flbench.results.schema import Tuning

    found = Tuning(budget=budget, tried=len(drawn), seeds=numbers, score=SCORE)
    scored = [*cells({}, range(seeds), out), *cells(best.params, range(seeds), out, found)]
    conclude(run_missing(scored, progress, launch), progress)


def _values(pair: str) -> tuple[str, list[Any]]:
    """`--try beta=0.3,0.5` as a name and values."""
    key, equals, rest = pair.partition("=")
    if not equals or not key.strip() or not rest.strip():
        raise typer.BadParameter(f"--try expects KEY=V1,V2, got '{pair}'")
    return key.strip(), [parse(value.strip()) for value in rest.split(",")]


def _shown(point: Point) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.items()) or "the defaults"


def _write(judged: Sequence[Trial], method: str, cell: Cell) -> Path:
    """Write all trials and their scores down; return where."""
    from flbench.results.files import write_atomically

    suite = cell.spec.suite
    about = {"method": method, "suite": suite.name, "dataset": suite.dataset, "score": SCORE}
    table = {**about, "settings": suite.settings(), "trials": [asdict(one) for one in judged]}
    path = cell.spec.path.parents[2] / f"{method}.json"
    write_atomically(path, f"{json.dumps(table, indent=1)}\n".encode())
    return path
