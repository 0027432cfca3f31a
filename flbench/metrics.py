"""Metrics: what is reported of a run, as one table, and the functions behind it.

A new metric is one row of `METRICS`; a result file from before it has it computed from the file's
arrays when it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from flbench.tasks import TASKS, Task, TaskName

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Curve = Sequence[float | None]
"""One number per round; None = not measured in that round."""
Value = float | int | None
WAYS = ("down", "up", "peer")
"""Directions of which every result has the bytes."""
NEAR = ("client-edge",)
"""Those that clients have too where there are edge servers; "edge-cloud" is no client's."""


class ClientValues(NamedTuple):
    """One metric of every client.

    Attributes:
        values: one per client, N of them; None = undefined for the client, or it is not judged.
        higher_is_better: None = neither.
    """

    values: Sequence[float | None]
    higher_is_better: bool | None

    def known(self) -> Floats:
        """The values of the clients that have one, shape (n,)."""
        return np.array([value for value in self.values if value is not None], dtype=np.float64)


@dataclass(frozen=True)
class Measurements:
    """What metrics are computed from. A run has it, and so has a result file.

    Attributes:
        correct: correct answers per client at the reported round, shape (N,); None where the task
            is not `classes`.
        tested: test samples per client, shape (N,); 0 = the client is not judged.
        loss: sum of the losses on the test samples per client, in nats (of numbers: squared
            deviations), shape (N,).
        labels: group label per client, shape (N,); -1 = undecided. None = not known.
        groups: true group per client, shape (N,), or None.
        curves: name -> one number per round.
        memberships: labels of all clients after each change of the groups, first to last.
        target: the headline whose first round and cost are reported, or None.
        newcomers: headlines of clients that joined after the last round, shape (M,), by the name
            of the metric; None = there are none.
        is_text: whether samples are sequences of tokens.
        client_metrics: metrics that were asked for, by label.
        periods: first rounds of the suite's periods after the first one; empty = it has none.
        own_correct: correct answers of the clients' own models, shape (N,); None = not judged.
        task: what is predicted; see `flbench.tasks`.
        values: of other tasks than `classes`, the headline of each client, shape (N,); NaN = it is
            undefined for the client, or the client is not judged.
        own_values: the same of the clients' own models; None = not judged.
    """

    correct: Ints | None
    tested: Ints
    loss: Floats
    labels: Ints | None = None
    groups: Ints | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    memberships: Sequence[Ints] = ()
    target: float | None = None
    newcomers: Mapping[str, Floats] | None = None
    is_text: bool = False
    client_metrics: Mapping[str, ClientValues] = field(default_factory=dict)
    periods: Sequence[int] = ()
    own_correct: Ints | None = None
    task: TaskName = "classes"
    values: Floats | None = None
    own_values: Floats | None = None

    def headline_values(self) -> Floats:
        """Headline of each client that is judged, shape (n,); NaN = undefined for the client."""
        return headlines(self.tested, self.correct, self.values)

    def own_headline_values(self) -> Floats:
        """The same of the clients' own models."""
        return headlines(self.tested, self.own_correct, self.own_values)

    def known(self, curve: str) -> list[float]:
        """A curve's numbers in the rounds in which it was measured."""
        return [value for value in self.curves.get(curve, ()) if value is not None]

    def clustering(self, name: str) -> Value:
        """One number of `clustering_summary`; None where no labels are known."""
        if self.labels is None:
            return None
        groups = None if self.groups is None else tuple(self.groups.tolist())
        return _clustering(tuple(self.labels.tolist()), groups)[name]


def headlines(tested: Ints, correct: Ints | None, values: Floats | None) -> Floats:
    """Headline of each client that is judged: accuracy, or what another task has.

    Args:
        tested: test samples per client, shape (N,); 0 = it is not judged.
        correct: correct answers per client, shape (N,); None = there are values.
        values: of other tasks than `classes`, shape (N,); NaN = undefined.

    Returns:
        Shape (n,), of n clients; NaN = undefined.

    Example:
        >>> headlines(np.array([4, 0, 2]), np.array([1, 0, 2]), None).tolist()
        [0.25, 1.0]
    """
    judged = tested > 0
    if values is not None:
        return values[judged]
    assert correct is not None, "there are answers or values"
    found: Floats = correct[judged] / tested[judged]
    return found


MetricFunction = Callable[[Measurements], Value]
Family = Literal["accuracy", "clients", "groups", "cost", "newcomers", ""]
"""Where the column of a metric is in a table."""
TablePlace = Literal["terminal", "pages", "html"]
"""Tables: of commands, on the leaderboard's Markdown pages, on its web page."""
EVERYWHERE: tuple[TablePlace, ...] = ("terminal", "pages", "html")
BOARD: tuple[TablePlace, ...] = ("pages", "html")


@dataclass(frozen=True)
class Metric:
    """One number that is reported of a run.

    Attributes:
        name: key in a result's summary.
        function: computes it; None = it needs the models or the data, so the run measures it.
        heading: of its column.
        digits: decimals in its column.
        higher_is_better: None = neither.
        doc: one line for the documentation.
        tables: the tables that have a column for it.
        curve: name of its curve, if it is measured at every evaluation.
        spread: whether its column shows the deviation over seeds beside the mean.
        optional: whether its column is left out where no row has it.
        kind: how far two runs of one thing may be apart on two machines, see `results/marks.py`.
        applies: whether a run has it at all; where not, its summary lacks the key.
        tasks: those for which it has a meaning; () = all.
    """

    name: str
    function: MetricFunction | None
    heading: str
    digits: int
    higher_is_better: bool | None
    doc: str
    family: Family = ""
    tables: tuple[TablePlace, ...] = ()
    curve: str = ""
    spread: bool = False
    optional: bool = False
    kind: str = ""
    applies: Callable[[Measurements], bool] = lambda outcome: True
    tasks: tuple[TaskName, ...] = ()


def clustering_summary(labels: Ints, groups: Ints | None) -> Mapping[str, float | int | None]:
    """How well groups were found; None where there is no truth, or where nobody is in a group.

    Args:
        labels: group label of each client, shape (N,); -1 = undecided: in no group, left out.
        groups: true group of each client, shape (N,), or None.

    Returns:
        `groups`, the number of groups found; `noise`, clients in none; against the truth `ari`,
        `nmi` and `purity`, the share of clients whose group is mostly of their true group.
    """
    decided = labels >= 0
    labels, noise = labels[decided], int((~decided).sum())
    found = {"groups": len(np.unique(labels)), "noise": noise}
    if groups is None or not len(labels):
        return {**found, "ari": None, "nmi": None, "purity": None}
    groups = groups[decided]
    sizes = np.unique(groups, return_counts=True)[1]
    if found["groups"] == 1:  # importing scikit-learn takes longer than a short run
        equal = float(len(sizes) == 1)
        return {**found, "ari": equal, "nmi": equal, "purity": float(sizes.max() / len(labels))}
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    return {
        **found,
        "ari": float(adjusted_rand_score(groups, labels)),
        "nmi": float(normalized_mutual_info_score(groups, labels)),
        "purity": float(contingency_matrix(groups, labels).max(axis=0).sum() / len(labels)),
    }


@lru_cache(maxsize=1)
def _clustering(labels: tuple[int, ...], groups: tuple[int, ...] | None) -> Mapping[str, Value]:
    """The same once per grouping: groups stay for many rounds, and several metrics ask."""
    return clustering_summary(np.array(labels), None if groups is None else np.array(groups))


def churn(before: Ints, after: Ints) -> float:
    """Share of clients that moved to another group, under the best matching of group names.

    Both arrays have the group label of each client, shape (N,).

    Example:
        >>> churn(np.array([0, 0, 1, 1]), np.array([5, 5, 5, 2]))
        0.25
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    together = contingency_matrix(before, after)
    rows, columns = linear_sum_assignment(together, maximize=True)
    return float(1 - together[rows, columns].sum() / len(before))


def mean_churn(outcome: Measurements) -> float:
    """Share of clients that move to another group between two evaluations, on average."""
    moved = sum(churn(a, b) for a, b in pairwise(outcome.memberships))
    return moved / max(1, len(outcome.known(TASKS[outcome.task].headline)) - 1)


BINS = 15
"""Bins of the expected calibration error."""


def calibration_error(table: Floats) -> float:
    """Expected calibration error: mean gap between confidence and accuracy, weighted by bin.

    Args:
        table: per bin of confidence the number tested, the sum of confidences and the number
            correct, shape (bins, 3).

    Example:
        >>> calibration_error(np.array([[4, 3.5, 2], [0, 0, 0], [1, 1.0, 1]]))
        0.3
    """
    return float(np.abs(table[:, 1] - table[:, 2]).sum() / table[:, 0].sum())


EPOCHS = "trained_epochs"
"""The curve of the local epochs per client that were trained until the end of each round."""
TIME = "simulated_seconds"
"""The curve of the simulated time at the end of each round, of suites that have a clock."""


def to_target(outcome: Measurements) -> dict[str, Value]:
    """First round that reaches the target of the headline, and what had crossed until then.

    Returns:
        `rounds_to_target`, `megabits_to_target` per client, and `seconds_to_target` in simulated
        time; None where it is never reached.
    """
    curves, target, task = outcome.curves, outcome.target or 0.0, TASKS[outcome.task]
    drawn = enumerate(curves[task.headline])
    reached = (i for i, value in drawn if value is not None and task.gain(value, target) >= 0)
    first = next(reached, None)
    if first is None:
        return dict.fromkeys(("rounds_to_target", "megabits_to_target", "seconds_to_target"))
    nothing: Sequence[float | None] = [None] * (first + 1)
    known = [curves.get(f"bytes_{way}", nothing) for way in (*WAYS, *NEAR)]
    moved = sum(curve[first] or 0 for curve in known)
    return {
        "rounds_to_target": first + 1,
        "megabits_to_target": megabits_per_client(int(moved), len(outcome.tested)),
        "seconds_to_target": curves[TIME][first] if TIME in curves else None,
    }


CONVERGED = 0.01
"""What may be missing to the headline of the last evaluation, where a run has converged."""


def rounds_to_final(outcome: Measurements) -> int | None:
    """First round whose mean headline is the last one's less `CONVERGED`; None if none is known.

    Example:
        >>> run = Measurements(*np.ones((3, 1)), curves={"accuracy": [0.5, None, 0.89, 0.8, 0.9]})
        >>> rounds_to_final(run)
        3
    """
    task = TASKS[outcome.task]
    final = outcome.known(task.headline)[-1:]
    curve = enumerate(outcome.curves.get(task.headline, ()), 1)
    near = -CONVERGED - 1e-9
    found = (at for at, v in curve if v is not None and task.gain(v, final[0]) >= near)
    return next(found, None)


def _seconds_to_final(outcome: Measurements) -> Value:
    """Simulated time at the end of `rounds_to_final`."""
    rounds = rounds_to_final(outcome)
    return None if rounds is None else outcome.curves[TIME][rounds - 1]


def _link_seconds_to_final(outcome: Measurements) -> Value:
    """`link_seconds` until the end of `rounds_to_final`."""
    rounds = rounds_to_final(outcome)
    moved = outcome.curves["slowest_down"][:rounds]
    return None if rounds is None else link_seconds(sum(int(one or 0) for one in moved))


RECOVERED = 0.01
"""What may be missing to the headline before a change, where a method has recovered."""


def period_starts(changes: Iterable[tuple[int, int | None]], rounds: int) -> list[int]:
    """First rounds of the periods after the first one, of those within a run, ascending.

    Args:
        changes: first round of each change, and the round in which it ends, or None.
        rounds: of the run.

    Example:
        >>> period_starts([(5, None), (3, 5), (4, 9)], rounds=8)
        [3, 4, 5]
    """
    return sorted({at for ends in changes for at in ends if at is not None and at <= rounds})


def headline_of_period(outcome: Measurements, number: int) -> Value:
    """Mean headline at the last evaluation of a period, from 1; None where there is none."""
    curve = outcome.curves.get(TASKS[outcome.task].headline, ())
    starts = [1, *outcome.periods, None]
    begin, end = starts[number - 1], starts[number]
    known = [v for v in curve[(begin or 1) - 1 : None if end is None else end - 1] if v is not None]
    return known[-1] if known else None


def rounds_to_recover(outcome: Measurements, number: int) -> Value:
    """Rounds of a period, from 2, until the headline is that of the one before less `RECOVERED`.

    None where it never is, or where one of the two periods was not evaluated. 1 = in its first
    round.

    Example:
        >>> run = Measurements(*np.ones((3, 1)), curves={"accuracy": [0.8, 0.9, 0.4, None, 0.895]},
        ...               periods=[3])
        >>> rounds_to_recover(run, 2)
        3
    """
    begin, *end = [1, *outcome.periods][number - 1 : number + 1]
    task = TASKS[outcome.task]
    before, near = headline_of_period(outcome, number - 1), -RECOVERED - 1e-9
    curve = outcome.curves.get(task.headline, ())[begin - 1 : end[0] - 1 if end else None]
    reached = (
        at
        for at, value in enumerate(curve, 1)
        if value is not None and before is not None and task.gain(value, before) >= near
    )
    return next(reached, None)


GREY_LENET = 44_426
"""Parameters of LeNet-5 for images of one channel, 28x28."""


def flis_compat(megabits: float, parameters: int) -> float:
    """Megabits as FLIS's tables count them: every LeNet-5 as the one for 3x32x32 images.

    `parameters` are of the network that was trained; other networks than LeNet-5 stay as they are.

    Example:
        >>> round(flis_compat(0.28433, GREY_LENET), 4)
        0.3968
    """
    return megabits * 62_006 / parameters if parameters == GREY_LENET else megabits


def clustering_error(
    truth: npt.NDArray[np.bool_], chosen: npt.NDArray[np.bool_]
) -> dict[str, float]:
    """FLIS's clustering error of overlapping sets: wrong members per client.

    Args:
        truth: truth[i, j] = client j belongs with client i, shape (n, n).
        chosen: chosen[i, j] = client i takes client j, shape (n, n).

    Returns:
        Mean over rows of `false_positives`, `false_negatives` and their sum `error`.

    Example:
        >>> t = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]], bool)
        >>> c = np.array([[1, 0, 0], [1, 1, 1], [0, 0, 1]], bool)
        >>> round(clustering_error(t, c)["error"], 4)
        0.6667
    """
    false_positives = float((chosen & ~truth).sum(axis=1).mean())
    false_negatives = float((truth & ~chosen).sum(axis=1).mean())
    return {
        "error": false_positives + false_negatives,
        "false_positives": false_positives,
        "false_negatives": false_negatives,
    }


def megabits_per_client(bytes_moved: int, clients: int) -> float:
    """FLIS's unit: megabits per client, averaged over all clients.

    Example:
        >>> round(megabits_per_client(62_006 * 4 * 2 * 10, 100), 6)
        0.396838
    """
    return 8 * bytes_moved / (clients * 1e6)


def link_seconds(bytes_moved: int) -> float:
    """DC-PFL's unit: seconds on a client's link of 2 Mbit/s, one direction.

    Example:
        >>> link_seconds(62_006 * 4)
        0.992096
    """
    return bytes_moved * 8 / 2e6


def perplexity(loss: float) -> float | None:
    """Of text: the exponential of the mean loss per token; None where it is too large."""
    return float(np.exp(loss)) if loss < 700 else None


def _mean(values: Sequence[float]) -> float | None:
    """Mean of what was measured; None where nothing was."""
    return float(np.mean(values)) if values else None


def decile_gap(values: Floats) -> float:
    """Mean of the highest tenth of clients less that of the lowest; a tenth is rounded up.

    Example:
        >>> decile_gap(np.array([0.5, 1.0, 0.75]))
        0.5
    """
    ordered, tenth = np.sort(values), -(-len(values) // 10)
    return float(ordered[-tenth:].mean() - ordered[:tenth].mean())


def _mean_loss(outcome: Measurements) -> float:
    """Unweighted mean over the clients that are judged of the mean loss, in nats."""
    judged = outcome.tested > 0
    return float(np.mean(outcome.loss[judged] / outcome.tested[judged]))


def _megabytes(outcome: Measurements) -> float | None:
    """Sent and received per client in the whole run, all directions of clients."""
    totals = [outcome.known(f"bytes_{way}") for way in (*WAYS, *NEAR)]
    if not any(totals):
        return None
    return sum(curve[-1] for curve in totals if curve) / len(outcome.tested) / 1e6


def _known(values: Floats) -> Floats:
    """Those of the clients for which the headline is defined."""
    return values[~np.isnan(values)]


def _served(function: Callable[[Floats], float]) -> MetricFunction:
    """A number of the headlines of clients; None where it is defined for nobody."""

    def over_clients(outcome: Measurements) -> Value:
        known = _known(outcome.headline_values())
        return float(function(known)) if len(known) else None

    return over_clients


def _own(function: Callable[[Floats], float]) -> MetricFunction:
    """The same of the clients' own models."""

    def over_clients(outcome: Measurements) -> Value:
        known = _known(outcome.own_headline_values())
        return float(function(known)) if len(known) else None

    return over_clients


def _worst_decile(values: Floats) -> float:
    return float(np.percentile(values, 10))


def _micro(outcome: Measurements) -> Value:
    assert outcome.correct is not None, "of classes alone"
    return float(outcome.correct.sum() / outcome.tested.sum())


def _of_newcomers(name: str) -> MetricFunction:
    """Mean of a headline of newcomers; `name` is that of classes."""

    def over_clients(outcome: Measurements) -> Value:
        known = _known((outcome.newcomers or {})[TASKS[outcome.task].named(name)])
        return float(np.mean(known)) if len(known) else None

    return over_clients


def _best(outcome: Measurements) -> Value:
    task = TASKS[outcome.task]
    found = outcome.known(task.headline)
    return (max if task.higher_is_better else min)(found, default=None)


def _has_own_models(outcome: Measurements) -> bool:
    return outcome.own_correct is not None or outcome.own_values is not None


def _has_target(outcome: Measurements) -> bool:
    return outcome.target is not None


def _has_links(outcome: Measurements) -> bool:
    return "slowest_down" in outcome.curves


def _has_clock(outcome: Measurements) -> bool:
    return TIME in outcome.curves


def _slowest_recovery(outcome: Measurements) -> Value:
    """The most rounds that one of the periods took; None where one did not recover."""
    found = [rounds_to_recover(outcome, at + 2) for at in range(len(outcome.periods))]
    known = [rounds for rounds in found if rounds is not None]
    return max(known) if len(known) == len(found) else None


def _has_periods(outcome: Measurements) -> bool:
    return bool(outcome.periods)


def _has_newcomers(outcome: Measurements) -> bool:
    return outcome.newcomers is not None


HEADLINE = "accuracy_mean"
"""The metric that rows are ranked by."""
Rule = Literal["served", "own", "tuned"]
"""With which model a client is judged: what the method serves it with, its own after its last local
training, or the served one after `ft_epochs` local epochs of its own."""
JUDGED: Mapping[Rule, str] = {
    "served": HEADLINE, "own": "accuracy_own_mean", "tuned": "accuracy_fine_tuned",
}  # fmt: skip
"""Mean accuracy under each rule, as a summary names it."""
METRICS = (
    Metric(
        HEADLINE, _served(np.mean), "accuracy", 4, True,
        "mean over clients of test accuracy, unweighted",
        family="accuracy", tables=EVERYWHERE, curve="accuracy", spread=True, kind="share",
    ),
    Metric(
        "accuracy_own_mean", _own(np.mean),
        "accuracy, own", 4, True,
        "mean accuracy of clients' own models: what each had after its last local training",
        family="accuracy", tables=EVERYWHERE, spread=True, optional=True, applies=_has_own_models,
        kind="share",
    ),
    Metric(
        "accuracy_fine_tuned", None, "accuracy, tuned", 4, True,
        "mean accuracy after `ft_epochs` local epochs at the end",
        family="accuracy", tables=EVERYWHERE, spread=True, optional=True, kind="share",
    ),
    Metric(
        "accuracy_micro", _micro,
        "accuracy, micro", 4, True, "accuracy over all clients' test samples", kind="share",
        tasks=("classes",),
    ),
    Metric(
        "accuracy_std_clients", _served(np.std),
        "std over clients", 4, False, "standard deviation over clients (ddof = 0)", kind="extreme",
    ),
    Metric(
        "accuracy_worst_decile", _served(_worst_decile),
        "worst decile", 4, True, "10th percentile of accuracy over clients",
        family="accuracy", tables=EVERYWHERE, kind="extreme",
    ),
    Metric(
        "accuracy_own_worst_decile", _own(_worst_decile),
        "worst decile, own", 4, True, "10th percentile over clients of the accuracy of own models",
        family="accuracy", tables=("html",), optional=True, applies=_has_own_models,
        kind="extreme",
    ),
    Metric(
        "accuracy_decile_gap", _served(decile_gap), "decile gap", 4, False,
        "mean accuracy of the highest tenth of clients less that of the lowest tenth",
        family="accuracy", tables=("html",), kind="extreme",
    ),
    Metric(
        "accuracy_worst", _served(np.min),
        "worst client", 4, True, "accuracy of the worst client", kind="extreme",
    ),
    Metric(
        "ari", lambda run: run.clustering("ari"), "ARI", 3, True,
        "adjusted Rand index of the groups found against the true ones; without the undecided",
        family="groups", tables=EVERYWHERE, curve="ari", kind="groups",
    ),
    Metric(
        "groups", lambda run: run.clustering("groups"), "groups", 1, None,
        "number of groups found; the undecided are in none",
        family="groups", tables=BOARD, curve="groups", kind="groups",
    ),
    Metric(
        "noise", lambda run: run.clustering("noise"), "undecided", 1, False,
        "number of clients in no group", kind="groups",
    ),
    Metric(
        "nmi", lambda run: run.clustering("nmi"), "NMI", 3, True,
        "normalised mutual information of the groups found and the true ones", kind="groups",
    ),
    Metric(
        "purity", lambda run: run.clustering("purity"), "purity", 3, True,
        "share of clients whose group is mostly of their true group", kind="groups",
    ),
    Metric(
        "round", None, "round", 0, None, "the round that the summary reports", kind="exact",
    ),
    Metric(
        "loss_mean", _mean_loss, "loss", 4, False, "mean over clients of test loss, in nats",
        curve="loss", kind="losses",
    ),
    Metric(
        "accuracy_last", None, "accuracy, last", 4, True, "mean accuracy at the last round",
        kind="share",
    ),
    Metric(
        "accuracy_chosen", None, "accuracy, chosen", 4, True,
        "mean accuracy at the round with the best validation accuracy; null if nobody validates",
        kind="threshold",
    ),
    Metric(
        "accuracy_best_test", _best,
        "accuracy, best", 4, True,
        "best mean test accuracy of all rounds; too good, as it is chosen on test data",
        kind="share",
    ),
    Metric(
        "accuracy_last10", lambda run: _mean(run.known(TASKS[run.task].headline)[-10:]),
        "accuracy, last 10", 4, True, "mean over the last ten evaluations", kind="share",
    ),
    Metric(
        "selection_error_mean", lambda run: _mean(run.known("selection_error")),
        "selection error", 3, False, "mean over rounds of `selection_error`", kind="groups",
    ),
    Metric(
        "ece", None, "ECE", 4, False, "expected calibration error over 15 bins", kind="share",
        tasks=("classes",),
    ),
    Metric(
        "churn", mean_churn, "churn", 4, None,
        "share of clients that move to another group between two evaluations, on average",
        kind="groups",
    ),
    Metric(
        "mb_per_client", _megabytes, "MB/client", 2, False,
        "megabytes sent and received per client in the whole run; what peers send counts at the"
        " receiver alone",
        family="cost", tables=EVERYWHERE, kind="bytes",
    ),
    Metric(
        EPOCHS, lambda run: max(run.known(EPOCHS), default=None), "epochs", 1, False,
        "local epochs that a client trains in the whole run, mean over clients; every candidate"
        " model and every probe counts",
        applies=lambda run: EPOCHS in run.curves, kind="other",
    ),
    Metric(
        "link_seconds", lambda run: link_seconds(sum(map(int, run.known("slowest_down")))),
        "link seconds", 1, False,
        "seconds in which the slowest client of each round receives at 2 Mbit/s, added up",
        applies=_has_links, kind="bytes",
    ),
    Metric(
        "target", lambda run: run.target, "target", 4, None, "the headline to be reached",
        applies=_has_target, kind="exact",
    ),
    Metric(
        "rounds_to_target", lambda run: to_target(run)["rounds_to_target"],
        "rounds to target", 0, False, "first round that reaches the target", applies=_has_target,
        kind="threshold",
    ),
    Metric(
        "megabits_to_target", lambda run: to_target(run)["megabits_to_target"],
        "Mbit to target", 2, False, "megabits per client until then",
        family="cost", tables=BOARD, optional=True, applies=_has_target, kind="threshold",
    ),
    Metric(
        "seconds_to_target", lambda run: to_target(run)["seconds_to_target"],
        "sim. s to target", 1, False, "seconds of simulated time until then",
        family="cost", tables=EVERYWHERE, optional=True,
        applies=lambda run: _has_target(run) and _has_clock(run), kind="threshold",
    ),
    Metric(
        "rounds_to_final", rounds_to_final, "rounds to final", 0, False,
        "first round whose mean accuracy is at most .01 below that of the last evaluation",
        kind="threshold",
    ),
    Metric(
        "link_seconds_to_final", _link_seconds_to_final, "link s to final", 1, False,
        "link seconds until then", applies=_has_links, kind="threshold",
    ),
    Metric(
        "seconds_to_final", _seconds_to_final, "sim. s to final", 1, False,
        "seconds of simulated time until then", applies=_has_clock, kind="threshold",
    ),
    Metric(
        TIME, lambda run: max(run.known(TIME), default=None), "sim. s", 1, False,
        "seconds of simulated time of the whole run",
        family="cost", tables=EVERYWHERE, optional=True, applies=_has_clock, kind="other",
    ),
    Metric(
        "rounds_to_recover", _slowest_recovery, "rounds to recover", 0, False,
        "rounds from a change of the data until accuracy is at most .01 below that before, the most"
        " of all periods; null if one does not recover",
        family="accuracy", tables=EVERYWHERE, optional=True, applies=_has_periods,
        kind="threshold",
    ),
    Metric(
        "megabits_to_target_flis", None, "Mbit to target (FLIS)", 2, False,
        "the same as FLIS's tables count it", kind="threshold",
    ),
    Metric(
        "perplexity", lambda run: perplexity(_mean_loss(run)), "perplexity", 1, False,
        "of text: the exponential of the mean loss", applies=lambda run: run.is_text, kind="losses",
        tasks=("classes",),
    ),
    Metric(
        "selection_error", None, "selection error, last", 3, False,
        "wrong and missing members per client where groups overlap, in the last round",
        kind="groups",
    ),
    Metric(
        "selection_false_positives", None, "wrong members", 3, False, "its wrong members",
        kind="groups",
    ),
    Metric(
        "selection_false_negatives", None, "missing members", 3, False, "its missing members",
        kind="groups",
    ),
    Metric(
        "kld", None, "KLD", 3, None,
        "mean symmetric Kullback-Leibler divergence of the labels of two clients, over pairs",
        kind="recomputed", tasks=("classes",),
    ),
    Metric(
        "unseen_accuracy", _of_newcomers("unseen_accuracy"), "unseen", 4, True,
        "mean accuracy of clients that joined after the last round",
        family="newcomers", tables=EVERYWHERE, spread=True, optional=True, applies=_has_newcomers,
        kind="share",
    ),
    Metric(
        "unseen_accuracy_tuned", _of_newcomers("unseen_accuracy_tuned"), "unseen, tuned", 4, True,
        "the same after some local epochs",
        family="newcomers", tables=EVERYWHERE, spread=True, optional=True, applies=_has_newcomers,
        kind="share",
    ),
)  # fmt: skip
"""Every number of a result's summary, as it is called where samples have classes."""


@cache
def metrics_for(task: TaskName) -> tuple[Metric, ...]:
    """Every number of the summary of a result of a task.

    Example:
        >>> metrics_for("numbers")[0].name, metrics_for("numbers")[0].higher_is_better
        ('rmse_mean', False)
    """
    kept = [metric for metric in METRICS if task in (metric.tasks or TASKS)]
    return METRICS if task == "classes" else tuple(_renamed(one, TASKS[task]) for one in kept)


WORST: Mapping[str, Callable[[Floats], float]] = {
    "worst_decile": lambda values: float(np.percentile(values, 90)), "worst": np.max,
}  # fmt: skip
"""What is worst where lower is better, by the end of a metric's name."""


def _renamed(metric: Metric, task: Task) -> Metric:
    """A metric of `METRICS` as it is for another task."""
    if "accuracy" not in metric.name:
        return replace(metric, doc=metric.doc.replace("accuracy", task.heading))
    doc, function = metric.doc, metric.function
    ending = metric.name.removeprefix("accuracy_").removeprefix("own_")
    if not task.higher_is_better and ending in WORST:
        of = _own if "_own_" in metric.name else _served
        function, doc = of(WORST[ending]), doc.replace("10th", "90th")
    return replace(
        metric,
        name=task.named(metric.name),
        function=function,
        heading=metric.heading.replace("accuracy", task.heading),
        doc=doc.replace("accuracy", task.heading),
        curve=task.named(metric.curve),
        higher_is_better=task.higher_is_better if metric.higher_is_better else False,
        kind="metric" if metric.kind == "share" else metric.kind,
    )


def metrics_of(label: str, higher_is_better: bool | None) -> tuple[Metric, ...]:
    """What is reported of a metric that was asked for, over the clients for which it is defined."""

    def of(function: Callable[[Floats], Value]) -> MetricFunction:
        def over_clients(outcome: Measurements) -> Value:
            known = outcome.client_metrics[label].known()
            return function(known) if len(known) else None

        return over_clients

    worst = None if higher_is_better is None else 10 if higher_is_better else 90
    return (
        Metric(
            f"{label}_mean", of(lambda known: float(known.mean())), label, 4, higher_is_better,
            "mean over clients, unweighted",
            family="clients", tables=BOARD, curve=label, spread=True, optional=True, kind="metric",
        ),
        Metric(
            f"{label}_std_clients", of(lambda known: float(known.std())),
            f"{label}, std over clients", 4, False, "standard deviation over clients (ddof = 0)",
            kind="extreme",
        ),
        Metric(
            f"{label}_worst_decile",
            of(lambda known: None if worst is None else float(np.percentile(known, worst))),
            f"{label}, worst decile", 4, higher_is_better,
            "10th percentile over clients; the 90th where lower is better",
            family="clients", tables=BOARD, optional=True, kind="extreme",
        ),
        Metric(
            f"{label}_clients", lambda run: len(run.client_metrics[label].known()),
            f"{label}, clients", 0, None, "clients for which it is defined, which the mean counts",
            kind="exact",
        ),
    )  # fmt: skip


def metrics_of_periods(count: int, task: TaskName = "classes") -> list[Metric]:
    """What is reported of each of `count` periods."""
    headlines = [
        Metric(
            f"accuracy_period_{at}", partial(headline_of_period, number=at),
            f"accuracy, period {at}", 4, True, "mean accuracy at the period's last evaluation",
            kind="share",
        )
        for at in range(1, count + 1)
    ]  # fmt: skip
    recoveries = [
        Metric(
            f"rounds_to_recover_{at}", partial(rounds_to_recover, number=at),
            f"rounds to recover, period {at}", 0, False, "`rounds_to_recover` of one period",
            kind="threshold",
        )
        for at in range(2, count + 1)
    ]  # fmt: skip
    if task != "classes":
        headlines = [_renamed(one, TASKS[task]) for one in headlines]
    return headlines + recoveries


def table_of(outcome: Measurements) -> list[Metric]:
    """Every metric of an outcome: the table, those of its periods, and what was asked for."""
    asked = outcome.client_metrics.items()
    more = [one for label, found in asked for one in metrics_of(label, found.higher_is_better)]
    count, task = len(outcome.periods) + 1, outcome.task
    periods = metrics_of_periods(count, task) if outcome.periods else []
    return [*metrics_for(task), *periods, *more]


TAKEN = {
    "accuracy": "share",
    "bytes_": "bytes",
    "rounds_to_recover": "threshold",
    "selection_": "groups",
    "slowest_": "bytes",
    "train_loss": "loss",
}
"""How names of curves begin that are no metrics that one can ask for, and the kinds of these."""


def curve_kind(name: str) -> str:
    """The kind of the numbers of a curve.

    Example:
        >>> curve_kind("accuracy_generic"), curve_kind("ari"), curve_kind("f1")
        ('share', 'groups', 'metric')
    """
    found = next((kind for start, kind in TAKEN.items() if name.startswith(start)), "metric")
    of_metrics = {metric.curve or metric.name: metric.kind for metric in METRICS}
    return "loss" if name == "loss" else of_metrics.get(name, found)


def is_taken(label: str, task: TaskName = "classes") -> bool:
    """Whether something else of a result has the name of a metric, or of what is reported of it.

    Example:
        >>> is_taken("loss"), is_taken("accuracy_generic"), is_taken("f1")
        (True, True, False)
    """
    own, headline = {one.name for one in metrics_of(label, None)}, TASKS[task].headline
    others = {name for metric in metrics_for(task) for name in (metric.name, metric.curve)}
    begins = label == headline or label.startswith((*TAKEN, f"{headline}_"))
    return begins or bool((own | {label}) & (others - {"ece"}))


def computed(
    outcome: Measurements, known: Collection[str] = (), only: Collection[str] | None = None
) -> dict[str, Value]:
    """Every metric that follows from an outcome, by name; those whose names are known are left out.

    Only those with certain names, if they are given.

    Example:
        >>> outcome = Measurements(np.array([1, 2]), np.array([1, 4]), np.zeros(2))
        >>> computed(outcome)["accuracy_mean"]
        0.75
    """
    return {
        metric.name: metric.function(outcome)
        for metric in table_of(outcome)
        if metric.name not in known
        and (only is None or metric.name in only)
        and metric.function is not None
        and metric.applies(outcome)
    }


def measured(outcome: Measurements | None, task: TaskName = "classes") -> dict[str, Value]:
    """One round's numbers of the metrics that have a curve; None where nothing was evaluated."""
    return {
        metric.curve: None if outcome is None else metric.function(outcome)
        for metric in (metrics_for(task) if outcome is None else table_of(outcome))
        if metric.curve and metric.function is not None
    }


def columns_of(
    place: TablePlace,
    asked: Mapping[str, bool | None] | None = None,
    task: TaskName = "classes",
) -> list[Metric]:
    """The metrics that have a column in a table, in order.

    Args:
        asked: metrics that were asked for: label -> whether higher is better.
        task: of the table's results.
    """
    more = [one for label, better in (asked or {}).items() for one in metrics_of(label, better)]
    return [metric for metric in (*metrics_for(task), *more) if place in metric.tables]
