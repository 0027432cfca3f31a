"""`flbench tune`: search methods' parameters, or learning rates, with an equal budget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
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
    names,
    read_settings,
    read_workers,
)
from flbench.core.setting_text import parse
from flbench.engine.options import EngineOptions
from flbench.errors import UserError
from flbench.sweeps.request import Cell, RunRequest, resolve
from flbench.sweeps.tuning import (
    FIRST_SEED,
    NO_SCORE,
    RATE,
    SCORE,
    Point,
    Trial,
    grid_of,
    order,
    points,
    rates_of,
    score_of,
    with_effect,
)
from flbench.tasks import TASKS, Task

if TYPE_CHECKING:
    from flbench.run.composition import LoadedMethod
    from flbench.sweeps.launchers import Outcome
    from flbench.sweeps.sweep import Launch
    from flbench.terminal.console import SweepProgress


def tune(
    methods: Annotated[
        str, typer.Argument(metavar="METHOD", help="a method, or several between commas")
    ],
    suite: Annotated[str, typer.Option("--suite", "-s", help="suite or TOML file")],
    budget: Annotated[
        int | None, typer.Option(min=2, max=MOST_SEEDS, help="sets of parameters to try")
    ] = None,
    tried: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=V1,V2", help="values of a parameter; repeatable"),
    ] = None,
    try_lr: Annotated[
        str | None,
        typer.Option(metavar="F1,F2", help="factors of the suite's learning rate, as 1/3,3"),
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
    if seeds > FIRST_SEED:
        raise typer.BadParameter(
            f"--seeds: expected at most {FIRST_SEED}, as trials have the seeds from there on, got"
            f" {seeds}"
        )
    if budget is None and (try_lr is None or tried):
        raise typer.BadParameter(
            "expected --budget, the number of sets of parameters, or --try-lr, factors of the"
            " suite's learning rate, or both; --try goes with --budget"
        )
    factors = None if try_lr is None else _factors(try_lr)
    from flbench.sweeps.workers import prepare_workers, run_in_workers
    from flbench.terminal.console import SweepProgress

    progress, number = SweepProgress(), read_workers(workers)
    prepare_workers(number)
    with progress.importing():
        from flbench.cli.sweep import conclude
        from flbench.run.composition import load_method

        load = cache(load_method)
        for method in names([methods]):
            load(method)
    base = RunRequest(
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
    seeds_of_trials = tuple(range(FIRST_SEED, FIRST_SEED + tuning_seeds))
    searches = [
        Search(replace(base, methods=(method,)), load, progress, seeds_of_trials, trials)
        for method in dict.fromkeys(names([methods]))
    ]
    for search in searches:
        search.draw(budget, tried or [], factors)
    outcomes = _run([cell for search in searches for cell in search.trials], progress, launch)
    cells: list[Cell] = []
    for search in searches:
        try:
            cells += search.judged(outcomes, seeds)
        except UserError as error:
            if len(searches) == 1:
                raise
            progress.tell(f"{search.method}: {error}")
    conclude(_run(cells, progress, launch), progress)


def _run(cells: Sequence[Cell], progress: SweepProgress, launch: Launch) -> dict[Cell, Outcome]:
    """Run cells that are not complete."""
    from flbench.sweeps.sweep import run_missing

    return run_missing(cells, progress, launch)


def _factors(text: str) -> list[float]:
    """The factors of `--try-lr 1/3,3`."""
    try:
        found = [float(Fraction(one.strip())) for one in text.split(",")]
    except (ValueError, ZeroDivisionError):
        found = []
    if not found or min(found) <= 0 or {*found} == {1.0}:
        raise typer.BadParameter(
            f"--try-lr expects factors of the suite's learning rate such as 1/3,3, got '{text}'"
        )
    return found


@dataclass
class Search:
    """The search for parameters of a method, or for its learning rate, or for both.

    Attributes:
        base: the request for its defaults.
        load: imports methods, each once.
        progress: shows the trials.
        seeds: seeds of the trials.
        folder: where the trials are kept.
        points: what is tried, the defaults first.
        wanted: the runs of each point.
        budget: points that might be tried.
        for_rate: whether learning rates are tried.
        for_both: whether they are tried with sets of parameters.
    """

    base: RunRequest
    load: Callable[[str], LoadedMethod]
    progress: SweepProgress
    seeds: tuple[int, ...]
    folder: Path
    points: list[Point] = field(default_factory=list)
    wanted: list[list[Cell]] = field(default_factory=list)
    budget: int = 0
    for_rate: bool = False
    for_both: bool = False

    @property
    def method(self) -> str:
        """Its name."""
        return self.base.methods[0]

    @property
    def trials(self) -> list[Cell]:
        """All runs of the search."""
        return [cell for cells in self.wanted for cell in cells]

    def draw(
        self, budget: int | None, tried: Sequence[str], factors: Sequence[float] | None
    ) -> None:
        """Decide what is tried: sets of parameters within a budget, learning rates, or both.

        Args:
            budget: how many sets; None = all learning rates, and the parameters' defaults.
            tried: values of parameters that are asked for.
            factors: of the suite's learning rate; None = it alone.

        Raises:
            UserError: the method is several, or has no number to tune; or the suite has no
                validation samples, or what is set fixes the learning rate.
        """
        trial = replace(self.base, seeds=self.seeds, out=self.folder)
        (usual, *_) = self.cells(trial)
        if not usual.spec.suite.validation_fraction:
            raise UserError(NO_SCORE)
        rates = [] if factors is None else rates_of(usual.spec.suite.local.lr, factors)
        self.for_rate, self.for_both = bool(rates), bool(rates) and budget is not None
        if budget is None:
            self.points = [{}, *({RATE: one} for one in rates[1:])]
            what, self.budget = f"learning rates, {rates[0]:g} and others,", len(self.points)
        else:
            grid, of = self.grid(tried, {RATE: rates} if rates else {})
            self.points = points(grid, budget, f"{self.method}/{self.base.suites[0]}", of)
            what, self.budget = f"sets of {', '.join(grid)}", budget
        self.wanted = [self.cells(trial, point) for point in self.points]
        many = f"{len(self.points)} {what} of {self.method}"
        self.progress.tell(f"{many}; {len(self.seeds)} tuning seeds each")

    def grid(
        self, tried: Sequence[str], rates: Mapping[str, list[Any]]
    ) -> tuple[dict[str, list[Any]], Callable[[Point], Point]]:
        """The values of each parameter that is searched for, and what becomes of points of them.

        Args:
            tried: those of `--try`.
            rates: learning rates that are tried with them, if any.

        Raises:
            UserError: the method is several, or has no number to tune.
        """
        plugin, *others = self.load(self.method).plugins
        if others:
            raise UserError(f"flbench tune takes one method, got '{self.method}'")
        own = {key.removeprefix(f"{self.method}."): one for key, one in self.base.settings.items()}
        fixed = {name: one for name, one in own.items() if name in plugin.fields}
        effort = getattr(plugin.kind, "effort", ())
        grid = {**grid_of(plugin.fields, effort, _asked_values(tried), fixed), **rates}
        if not grid:
            raise UserError(
                f"{self.method} has no number to tune; name values with --try KEY=V1,V2"
            )
        return grid, partial(with_effect, plugin.fields, fixed)

    def cells(self, request: RunRequest, point: Point | None = None) -> list[Cell]:
        """The cells of a request with the parameters of a point."""
        chosen = {
            key if key == RATE else f"{self.method}.{key}": value
            for key, value in (point or {}).items()
        }
        one = replace(request, settings={**request.settings, **chosen})
        return resolve(one, self.progress, self.load)

    def judged(self, outcomes: Mapping[Cell, Outcome], seeds: int) -> list[Cell]:
        """Judge the trials, write down and print how good each point is.

        Returns:
            The runs of the defaults and of the best point on the scoring seeds.

        Raises:
            UserError: no trial came to an end.
        """
        from flbench.results.schema import Tuning

        own = [outcomes[cell] for cell in self.trials]
        scores = [score_of([outcomes[cell] for cell in cells]) for cells in self.wanted]
        task = task_of(own)
        judged = sorted(map(Trial, self.points, scores), key=partial(order, task=task))
        score, seconds = task.named(SCORE), sum(map(_seconds, own))
        report = self._write(judged, score, seconds)
        for one in judged:
            shown = "failed" if one.score is None else f"{one.score:.4f}"
            self.progress.tell(f"  {shown}  {_shown(one.params)}")
        best = judged[0]
        if best.score is None:
            raise UserError(f"no trial came to an end; see {report}")
        self.progress.tell(
            f"best {score} of {self.method}: {_shown(best.params)}; trials took {seconds:.0f} s,"
            f" all are in {report}"
        )
        usual = self.trials[0].spec.suite.local.lr
        found = Tuning(
            budget=self.budget,
            tried=len(self.points),
            seeds=list(self.seeds),
            score=score,
            lr=best.params.get(RATE, usual) if self.for_rate else None,
            both=self.for_both,
        )
        params = {key: value for key, value in best.params.items() if key != RATE}
        scored = replace(self.base, seeds=tuple(range(seeds)))
        return [*self.cells(scored), *self.cells(replace(scored, tuning=found), params)]

    def _write(self, judged: Sequence[Trial], score: str, seconds: float) -> Path:
        """Write all trials and their scores down; return where."""
        from flbench.results.files import write_atomically

        spec = self.trials[0].spec
        suite = spec.suite
        table = {
            "method": self.method,
            "suite": suite.name,
            "dataset": suite.dataset,
            "score": score,
            "seconds": round(seconds, 3),
            "settings": suite.settings(),
            "trials": [asdict(one) for one in judged],
        }
        kind = "-both" if self.for_both else "-lr" if self.for_rate else ""
        name = f"{self.method}{kind}.json"
        path = spec.path.parents[2] / name
        write_atomically(path, f"{json.dumps(table, indent=1)}\n".encode())
        return path


def _seconds(outcome: Outcome) -> float:
    """Wall time of a trial."""
    return 0.0 if outcome.result is None else outcome.result.seconds.get("total", 0.0)


def _asked_values(tried: Sequence[str]) -> dict[str, list[Any]]:
    """The values of every `--try`, by parameter."""
    found: dict[str, list[Any]] = {}
    for key, own in map(_values, tried):
        if key in found:
            raise typer.BadParameter(f"--try {key} is there twice: write --try {key}=V1,V2")
        found[key] = own
    return found


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
