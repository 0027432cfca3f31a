"""`flbench tune`: search a method's parameters by random trials, with a budget that is recorded.

Or its learning rate, among a few multiples of the suite's: all of them are tried. Or both.

Trials are judged on validation samples and on seeds that no row is scored on (1000, 1001, ...); the
defaults are the first trial. What wins is then run on the scoring seeds, beside the defaults, and
its rows say how they were found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import mean
from typing import TYPE_CHECKING, Any, TypeGuard

from flbench.core.effect import has_effect
from flbench.core.parameters import Parameter
from flbench.errors import BadParameter, UnknownName, UserError
from flbench.tasks import Task

if TYPE_CHECKING:
    from flbench.sweeps.launchers import Outcome

FIRST_SEED = 1000
"""Tuning seeds begin here; scoring seeds begin at 0."""
RATE = "suite.local.lr"
"""The learning rate as a setting, and in the points of a search for it."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What a number's default is multiplied by."""
SCORE = "accuracy_validation"
"""The curve that trials are judged by, as it is called for classes; `Task.named` has the others."""
NO_SCORE = "tuning needs validation samples: raise validation_fraction"
"""What a person is told who has none."""
IN_VAIN = 10_000
"""Draws without a new point after which there is none left."""
LATEST = 10
"""How many of the last evaluations make the score."""
Point = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A set of parameters, and its mean headline over the tuning seeds; None = a run failed."""

    params: Point
    score: float | None


def grid_of(
    declared: Mapping[str, Parameter],
    effort: Sequence[str],
    tried: Mapping[str, list[Any]],
    fixed: Mapping[str, object],
) -> dict[str, list[Any]]:
    """The values to choose from, by parameter; the default comes first.

    Numbers other than zero are tried at a quarter, half, twice and four times their default, where
    their type allows it. What only buys accuracy with work (`effort`) is left alone, as are what
    changes the method's kind (words, truth values), unless it is asked for, and what has no effect
    beside the rest.

    Args:
        tried: values the person asks for, instead.
        fixed: what the person sets of the other parameters.

    Raises:
        UnknownName: the person names a parameter the method does not declare.
        BadParameter: a value does not fit it, it is set as well, or it has no effect.
    """
    for name in tried:
        if name not in declared:
            raise UnknownName("parameter to try", name, declared, listed="declared")
        if name in fixed:
            raise BadParameter(f"--try {name} and --set {name}: give one of them")
    grid: dict[str, list[Any]] = {}
    for name, parameter in declared.items():
        default = parameter.default
        if name in fixed:
            continue
        if name in tried:
            checked = [parameter.check("--try", value) for value in tried[name]]
            grid[name] = list(dict.fromkeys([default, *checked]))
        elif _is_number(default) and default and name not in effort:
            grid[name] = list(dict.fromkeys([default, *_scaled(parameter, default)]))
    grid = {name: values for name, values in grid.items() if len(values) > 1}
    beside = {name: one.default for name, one in declared.items()} | dict(fixed)
    idle = [
        (name, one)
        for name in grid
        for one in declared[name].conditions
        if not (one.holds(beside) or grid.keys() & set(one.fields))
    ]
    if asked := next(((name, one) for name, one in idle if name in tried), None):
        name, one = asked
        raise BadParameter(f"--try {name}: it has an effect only where {one.text}: set or try that")
    return {name: values for name, values in grid.items() if name not in dict(idle)}


def with_effect(
    declared: Mapping[str, Parameter], fixed: Mapping[str, object], point: Point
) -> Point:
    """A point without values that have no effect beside the others; arguments as `grid_of`.

    What is not declared, such as the learning rate, always has an effect.
    """
    beside = {name: one.default for name, one in declared.items()} | dict(fixed) | point
    return {
        name: value
        for name, value in point.items()
        if name not in declared or has_effect(declared[name].conditions, beside)
    }


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


def points(
    grid: Mapping[str, list[Any]],
    budget: int,
    name: str,
    of: Callable[[Point], Point] = lambda point: point,
) -> list[Point]:
    """The defaults, then distinct random points of the grid; at most `budget`, the same each time.

    Args:
        name: what the draws depend on.
        of: what becomes of a point that is drawn, such as `with_effect`; several may become one.

    Returns:
        What is not the default, point by point.

    Example:
        >>> points({"mu": [1, 2]}, budget=3, name="fedprox")
        [{}, {'mu': 2}]
    """
    from flbench.core.seeding import rng

    generator = rng(FIRST_SEED, "tune", name)
    drawn: list[Point] = [{}]
    most, in_vain = min(budget, prod(len(values) for values in grid.values())), 0
    while len(drawn) < most and in_vain < IN_VAIN:
        places = {key: int(generator.integers(len(values))) for key, values in grid.items()}
        point = of({key: grid[key][place] for key, place in places.items() if place})
        in_vain += 1
        if point not in drawn:
            drawn.append(point)
            in_vain = 0
    return drawn


def rates_of(usual: float, factors: Sequence[float]) -> list[float]:
    """Learning rates to try: that of the suite first, then multiples of it, to three digits.

    A multiple that is the suite's own rate to three digits is that rate.

    Raises:
        BadParameter: all of them are.

    Example:
        >>> rates_of(0.02, [1 / 3, 1, 3]), rates_of(0.01234, [1, 3])
        ([0.02, 0.00667, 0.06], [0.01234, 0.037])
    """
    own = float(f"{usual:.3g}")
    tried = [float(f"{usual * one:.3g}") for one in factors]
    found = list(dict.fromkeys([usual, *(usual if one == own else one for one in tried)]))
    if len(found) == 1:
        raise BadParameter(
            f"--try-lr: every factor gives the suite's own rate, {usual:g}, to three digits:"
            " expected factors such as 1/3,3"
        )
    return found


def score_of(outcomes: Sequence[Outcome]) -> float | None:
    """Mean over a trial's runs of the mean validation headline of the last ten evaluations.

    Returns:
        None where one of its runs failed.

    Raises:
        UserError: the suite keeps no validation samples.
    """
    results = [one.result for one in outcomes if one.result is not None]
    if len(results) < len(outcomes):
        return None
    drawn = [one.curves.get(one.headline.named(SCORE), []) for one in results]
    curves = [[value for value in curve if value is not None] for curve in drawn]
    if not all(curves):
        raise UserError(NO_SCORE)
    return mean(mean(curve[-LATEST:]) for curve in curves)


def order(trial: Trial, task: Task) -> tuple[bool, float]:
    """The best first, what failed last; of equals, what was drawn first."""
    return trial.score is None, -task.score(trial.score or 0.0)
