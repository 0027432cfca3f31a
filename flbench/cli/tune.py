"""`flbench tune`: search a method's parameters with an equal budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flbench.cli.options import Out, Root, Settings
from flbench.core.parameters import parse
from flbench.errors import UserError
from flbench.plugin.registry import load_entry
from flbench.sweeps.tuning import FIRST_SEED, SCORE, Point, Trial, _order, _score, grid_of, points

if TYPE_CHECKING:
    from flbench.results.schema import Tuning
    from flbench.sweeps.launchers import Cell
    from flbench.terminal.console import SweepProgress


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
    from flbench.terminal.console import SweepProgress

    overview = SweepProgress()
    with overview.waiting("importing torch and lightning"):
        from flbench.cli.sweep import conclude
        from flbench.sweeps.sweep import play

        kind = load_entry(find("methods", method))
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


def _cell(arguments: Sequence[str], tuning: Tuning | None, overview: SweepProgress) -> Cell:
    from flbench.sweeps.launchers import Cell
    from flbench.sweeps.request import jobs_of, options

    (job,) = jobs_of(overview, **options(arguments))
    return Cell(tuple(arguments), replace(job, tuning=tuning))


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

    suite = cell.job.suite
    about = {"method": method, "suite": suite.name, "dataset": suite.dataset, "score": SCORE}
    table = {**about, "settings": suite.settings(), "trials": [asdict(one) for one in judged]}
    path = cell.job.path.parents[2] / f"{method}.json"
    write_atomically(path, f"{json.dumps(table, indent=1)}\n".encode())
    return path
