"""`flbench tune`: search a method's parameters with an equal budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
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
from flbench.tasks import TASKS, Task

if TYPE_CHECKING:
    from flbench.run.composition import LoadedMethod
    from flbench.sweeps.launchers import Outcome
    from flbench.sweeps.sweep import Launch
    from flbench.terminal.console import SweepProgress


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
    with progress.importing():
        from flbench.cli.sweep import conclude
        from flbench.run.composition import load_method

        load = cache(load_method)
        load(method)
    base = RunRequest(
        methods=(method,),
        suites=(suite,),
        settings=read_settings(settings),
        rounds=rounds,
        dataset=dataset,
        data_root=data_root,
        out=out,
        engine=EngineOptions(threads=threads),
        resume=True,
    )
    launch = partial(run_in_workers, progress=progress, workers=number)
    search = Search(base, load, progress, launch)
    grid = search.grid(tried or [])
    drawn = points(grid, budget, f"{method}/{suite}")
    numbers = tuple(range(FIRST_SEED, FIRST_SEED + tuning_seeds))
    best, score = search.best_of(drawn, list(grid), numbers, trials)
    from flbench.results.schema import Tuning

    found = Tuning(budget=budget, tried=len(drawn), seeds=list(numbers), score=score)
    scored = replace(base, seeds=tuple(range(seeds)))
    cells = [*search.cells(scored), *search.cells(replace(scored, tuning=found), best)]
    conclude(search.run(cells), progress)


@dataclass(frozen=True)
class Search:
    """The search for parameters of a method.

    Attributes:
        base: the request for its defaults.
        load: imports methods, each once.
        progress: shows the trials.
        launch: runs cells.
    """

    base: RunRequest
    load: Callable[[str], LoadedMethod]
    progress: SweepProgress
    launch: Launch

    @property
    def method(self) -> str:
        """Its name."""
        return self.base.methods[0]

    def grid(self, tried: Sequence[str]) -> dict[str, list[Any]]:
        """The values of each parameter that is searched for; `tried` are those of `--try`.

        Raises:
            UserError: the method is several, or has no number to tune.
        """
        plugin, *others = self.load(self.method).plugins
        if others:
            raise UserError(f"flbench tune takes one method, got '{self.method}'")
        asked = {key.removeprefix(f"{self.method}.") for key in self.base.settings}
        free = {name: one for name, one in plugin.fields.items() if name not in asked}
        effort = getattr(plugin.kind, "effort", ())
        grid = grid_of(free, effort, dict(_values(pair) for pair in tried))
        if not grid:
            raise UserError(
                f"{self.method} has no number to tune; name values with --try KEY=V1,V2"
            )
        return grid

    def cells(self, request: RunRequest, point: Point | None = None) -> list[Cell]:
        """The cells of a request with the parameters of a point."""
        chosen = {f"{self.method}.{key}": value for key, value in (point or {}).items()}
        one = replace(request, settings={**request.settings, **chosen})
        return resolve(one, self.progress, self.load)

    def run(self, cells: Sequence[Cell]) -> dict[Cell, Outcome]:
        """Run cells that are not complete."""
        from flbench.sweeps.sweep import run_missing

        return run_missing(cells, self.progress, self.launch)

    def best_of(
        self, drawn: Sequence[Point], names: Sequence[str], seeds: tuple[int, ...], folder: Path
    ) -> tuple[Point, str]:
        """Try values of the named parameters on seeds; write down and print how good each point is.

        Returns:
            The best point, and the curve by which it is the best.

        Raises:
            UserError: the suite has no validation samples, or no trial came to an end.
        """
        tell, trial = self.progress.tell, replace(self.base, seeds=seeds, out=folder)
        wanted = [self.cells(trial, point) for point in drawn]
        if not wanted[0][0].spec.suite.validation_fraction:
            raise UserError(NO_SCORE)
        tell(f"{len(drawn)} sets of {', '.join(names)}; {len(seeds)} tuning seeds each")
        outcomes = self.run([cell for cells in wanted for cell in cells])
        scores = [score_of([outcomes[cell] for cell in cells]) for cells in wanted]
        task = task_of(outcomes.values())
        judged = sorted(map(Trial, drawn, scores), key=partial(order, task=task))
        score = task.named(SCORE)
        report = _write(judged, self.method, wanted[0][0], score)
        for one in judged:
            shown = "failed" if one.score is None else f"{one.score:.4f}"
            tell(f"  {shown}  {_shown(one.params)}")
        best = judged[0]
        if best.score is None:
            raise UserError(f"no trial came to an end; see {report}")
        tell(f"best {score}: {_shown(best.params)}; all trials are in {report}")
        return best.params, score


def _values(pair: str) -> tuple[str, list[Any]]:
    """`--try beta=0.3,0.5` as a name and values."""
    key, equals, rest = pair.partition("=")
    if not equals or not key.strip() or not rest.strip():
        raise typer.BadParameter(f"--try expects KEY=V1,V2, got '{pair}'")
    return key.strip(), [parse(value.strip()) for value in rest.split(",")]


def _shown(point: Point) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.items()) or "the defaults"


def task_of(outcomes: Iterable[Outcome]) -> Task:
    """The task of what was run; classes where every run failed."""
    found = (one.result.headline for one in outcomes if one.result is not None)
    return next(found, TASKS["classes"])


def _write(judged: Sequence[Trial], method: str, cell: Cell, score: str) -> Path:
    """Write all trials and their scores down; return where."""
    from flbench.results.files import write_atomically

    suite = cell.spec.suite
    about = {"method": method, "suite": suite.name, "dataset": suite.dataset, "score": score}
    table = {**about, "settings": suite.settings(), "trials": [asdict(one) for one in judged]}
    path = cell.spec.path.parents[2] / f"{method}.json"
    write_atomically(path, f"{json.dumps(table, indent=1)}\n".encode())
    return path
