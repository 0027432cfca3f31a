"""`flbench tune`: search a method's parameters by random trials, with a budget that is recorded.

Trials are judged on validation samples and on seeds that no row is scored on (1000, 1001, ...); the
defaults are the first trial. What wins is then run on the scoring seeds, beside the defaults, and
its rows say how they were found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from flbench.core.parameters import Parameter, parse
from flbench.errors import BadParameter, UnknownName, UserError
from flbench.running import Out, Root, Settings

if TYPE_CHECKING:
    from flbench.launchers import Cell, Outcome
    from flbench.results.schema import Result, Tuning
    from flbench.terminal.console import Overview

FIRST_SEED = 1000
"""Tuning seeds begin here; scoring seeds begin at 0."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What a number's default is multiplied by."""
SCORE = "accuracy_validation"
LATEST = 10
"""How many of the last evaluations make the score."""

Point = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A set of parameters, and its mean score over the tuning seeds; None = a run failed."""

    params: Point
    score: float | None


def grid_of(
    declared: Mapping[str, Parameter], effort: Sequence[str], tried: Mapping[str, list[Any]]
) -> dict[str, list[Any]]:
    """The values to choose from, by parameter; the default comes first.

    Numbers other than zero are tried at a quarter, half, twice and four times their default, where
    their type allows it. What only buys accuracy with work (`effort`) is left alone, as is what
    changes the method's kind (words, truth values), unless it is asked for.

    Args:
        tried: values the person asks for, instead.

    Raises:
        UnknownName: the person names a parameter the method does not declare.
        BadParameter: a value does not fit it.
    """
    for name in tried:
        if name not in declared:
            raise UnknownName("parameter to try", name, declared, listed="declared")
    grid: dict[str, list[Any]] = {}
    for name, parameter in declared.items():
        default = parameter.default
        if name in tried:
            checked = [parameter.check("--try", value) for value in tried[name]]
            grid[name] = list(dict.fromkeys([default, *checked]))
        elif _is_number(default) and default and name not in effort:
            grid[name] = list(dict.fromkeys([default, *_scaled(parameter, default)]))
    return {name: values for name, values in grid.items() if len(values) > 1}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scaled(parameter: Parameter, default: float) -> list[float]:
    found = []
    for factor in FACTORS:
        value = round(default * factor) if isinstance(default, int) else default * factor
        try:
            found.append(parameter.check("tune", value))
        except BadParameter:
            continue
    return found


def points(grid: Mapping[str, list[Any]], budget: int, name: str) -> list[Point]:
    """The defaults, then distinct random points of the grid; at most `budget`, the same each time.

    Args:
        name: what the draws depend on.

    Returns:
        What is not the default, point by point.

    Example:
        >>> points({"mu": [1, 2]}, budget=3, name="fedprox")
        [{}, {'mu': 2}]
    """
    from flbench.core.seeding import rng

    generator = rng(FIRST_SEED, "tune", name)
    drawn: list[Point] = [{}]
    while len(drawn) < min(budget, prod(len(values) for values in grid.values())):
        places = {key: int(generator.integers(len(values))) for key, values in grid.items()}
        point = {key: grid[key][place] for key, place in places.items() if place}
        if point not in drawn:
            drawn.append(point)
    return drawn


def score_of(results: Sequence[Result]) -> float:
    """Mean over runs of the mean validation accuracy of the last ten evaluations.

    Raises:
        UserError: the suite keeps no validation samples.
    """
    curves = [[v for v in one.curves.get(SCORE, []) if v is not None] for one in results]
    if not all(curves):
        raise UserError("tuning needs validation samples: raise validation_fraction")
    return mean(mean(curve[-LATEST:]) for curve in curves)


def tune(
    method: Annotated[str, typer.Argument(help="a method (flbench list methods)")],
    suite: Annotated[str, typer.Option("--suite", "-s", help="suite or TOML file")],
    budget: Annotated[int, typer.Option(min=2, help="sets of parameters to try")],
    tried: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=V1,V2", help="values of a parameter; repeatable"),
    ] = None,
    tuning_seeds: Annotated[int, typer.Option(min=1, help="seeds 1000.. of the trials")] = 2,
    seeds: Annotated[int, typer.Option(min=1, help="seeds 0..N-1 that are scored")] = 1,
    settings: Settings = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="instead of the suite's")] = None,
    dataset: Annotated[str | None, typer.Option(help="data set, instead of the suite's")] = None,
    data_root: Root = None,
    out: Out = Path("flbench-results"),
    trials: Annotated[Path, typer.Option(help="folder of the trials")] = Path("flbench-tuning"),
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch")] = 1,
) -> None:
    """Search a method's parameters on tuning seeds; score the best, and the defaults, on others."""
    from flbench.core.parameters import declared
    from flbench.plugin.registry import find
    from flbench.terminal.console import Overview

    overview = Overview()
    with overview.waiting("importing torch and lightning"):
        from flbench.sweep import conclude, play

        kind = find("methods", method).load()
    given = {pair.partition("=")[0].strip().removeprefix(f"{method}.") for pair in settings or []}
    free = {name: one for name, one in declared(kind).items() if name not in given}
    grid = grid_of(free, getattr(kind, "effort", ()), dict(_values(pair) for pair in tried or []))
    if not grid:
        raise UserError(f"{method} has no number to tune; name values with --try KEY=V1,V2")
    told = {"rounds": rounds, "dataset": dataset, "data-root": data_root, "threads": threads}
    typed = [word for k, v in told.items() if v is not None for word in (f"--{k}", str(v))]
    typed += [word for pair in settings or [] for word in ("--set", pair)]

    def cell(point: Point, seed: int, folder: Path, tuning: Tuning | None = None) -> Cell:
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in point.items()}
        chosen = [word for k, v in texts.items() for word in ("--set", f"{method}.{k}={v}")]
        places = ["--seed", str(seed), "--out", str(folder), "--resume"]
        return _cell(["-p", method, "-s", suite, *typed, *chosen, *places], tuning, overview)

    drawn = points(grid, budget, f"{method}/{suite}")
    numbers = list(range(FIRST_SEED, FIRST_SEED + tuning_seeds))
    wanted = [[cell(point, seed, trials) for seed in numbers] for point in drawn]
    overview.tell(f"{len(drawn)} sets of {', '.join(grid)}; {tuning_seeds} tuning seeds each")
    outcomes = play([one for cells in wanted for one in cells], overview)
    pairs = zip(drawn, wanted, strict=True)
    judged = sorted((Trial(point, _score(cells, outcomes)) for point, cells in pairs), key=_order)
    report = _write(judged, method, wanted[0][0])
    for one in judged:
        shown = "failed" if one.score is None else f"{one.score:.4f}"
        overview.tell(f"  {shown}  {_shown(one.params)}")
    best = judged[0]
    if best.score is None:
        raise UserError(f"no trial came to an end; see {report}")
    overview.tell(f"best {SCORE}: {_shown(best.params)}; all trials are in {report}")
    from flbench.results.schema import Tuning

    found = Tuning(budget=budget, tried=len(drawn), seeds=numbers, score=SCORE)
    scored = [cell({}, seed, out) for seed in range(seeds)]
    scored += [cell(best.params, seed, out, found) for seed in range(seeds)]
    conclude(play(scored, overview), overview)


def _cell(arguments: Sequence[str], tuning: Tuning | None, overview: Overview) -> Cell:
    from flbench.launchers import Cell
    from flbench.running import jobs_of, options

    (job,) = jobs_of(overview, **options(arguments))
    return Cell(tuple(arguments), replace(job, tuning=tuning))


def _values(pair: str) -> tuple[str, list[Any]]:
    """`--try beta=0.3,0.5` as a name and values."""
    key, equals, rest = pair.partition("=")
    if not equals or not key.strip() or not rest.strip():
        raise typer.BadParameter(f"--try expects KEY=V1,V2, got '{pair}'")
    return key.strip(), [parse(value.strip()) for value in rest.split(",")]


def _score(cells: Sequence[Cell], outcomes: Mapping[Cell, Outcome]) -> float | None:
    """The score of a trial; None where one of its runs failed."""
    results = [one for cell in cells if (one := outcomes[cell].result) is not None]
    return score_of(results) if len(results) == len(cells) else None


def _order(trial: Trial) -> tuple[bool, float]:
    """The best first, what failed last; of equals, what was drawn first."""
    return trial.score is None, -(trial.score or 0.0)


def _shown(point: Point) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.items()) or "the defaults"


def _write(judged: Sequence[Trial], method: str, cell: Cell) -> Path:
    """Write all trials and their scores down; return where."""
    from flbench.results.files import write_atomically

    suite = cell.job.suite
    about = {"method": method, "suite": suite.name, "dataset": suite.dataset, "score": SCORE}
    table = {**about, "settings": suite.settings(), "trials": [asdict(one) for one in judged]}
    path = cell.job.path.parents[2] / f"{method}.json"
    write_atomically(path, f"{json.dumps(table, indent=1)}\n".encode())
    return path
