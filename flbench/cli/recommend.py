"""`flbench recommend`: which method for a federation, from stored results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import COMMITTED, Results, refuse_no_folder
from flbench.errors import BadParameter, UserError
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.leaderboard.recommendation import Advice, Evidence, FederationTraits, Neighbour

SHOWN = 10
"""Number of methods, and of tables, that are shown."""
WAYS = {
    "nearest": "the first method of the nearest tables, as above",
    "on average": "the method that is best on average over all tables",
    "at random": "a method drawn at random",
}
Share = typer.Option(min=0, max=1, help="share of the clients that take part in a round")


def recommend(
    clients: Annotated[int | None, typer.Option(min=1, help="number of clients")] = None,
    participation: Annotated[float | None, Share] = None,
    samples: Annotated[
        float | None, typer.Option(min=1, help="samples of a client that it learns from, mean")
    ] = None,
    labels_per_client: Annotated[
        float | None, typer.Option(min=1, help="labels that a client holds, mean")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="or: parameter of a Dirichlet distribution of labels")
    ] = None,
    same_labels: Annotated[
        bool,
        typer.Option(
            "--same-labels",
            help="or: every client has all labels, but its samples look or mean different",
        ),
    ] = False,
    labels: Annotated[int, typer.Option(min=2, help="number of labels in all")] = 10,
    groups: Annotated[
        bool | None,
        typer.Option("--groups/--no-groups", help="clients of a kind form groups; or do not"),
    ] = None,
    traffic: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="TIMES",
            help="allowed bytes per client over those of one model for all"
            " (2 * size of the model * rounds * participation)",
        ),
    ] = None,
    newcomers: Annotated[
        bool, typer.Option("--newcomers", help="clients join later: judge the methods by these")
    ] = False,
    different_networks: Annotated[
        bool, typer.Option("--different-networks", help="clients have networks of their own")
    ] = False,
    results: Results = COMMITTED,
    score: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="instead: leave each suite out, and write how good this is"
        ),
    ] = None,
) -> None:
    """Say which method to try first for a federation, from the tables that are most like it."""
    from flbench.leaderboard import recommendation as rule
    from flbench.metrics import HEADLINE
    from flbench.results.files import refuse_unwritable

    refuse_no_folder(results)
    if score is not None:
        refuse_unwritable(score)
    held = _labels(labels_per_client, alpha, labels, same_labels)
    asked = _federation(clients, participation, samples, groups, held, same_labels)
    asked = replace(asked, networks=True if different_networks else None)
    if score is None and asked == rule.FederationTraits():
        raise BadParameter(
            "nothing is known of the federation: give --clients, --labels-per-client, --alpha,"
            " --same-labels, --samples, --participation or --groups"
        )
    from flbench.leaderboard.table import tables

    metric = rule.NEWCOMERS if newcomers else HEADLINE
    known = rule.evidence(tables(results), metric)
    if score is not None:
        _write_score(known, score)
        return
    if not known:
        which = "accuracies of newcomers" if newcomers else "accuracies"
        raise UserError(
            f"{results}: no table has {which} of both baselines and {rule.LEAST} other methods;"
            " choose other --results, or run `flbench sweep` on your own data"
        )
    near = rule.nearest(asked, known)
    allowed = _across_networks() if different_networks else None
    found = rule.advise(near, allowed, traffic)
    usual = rule.advise(rule.on_average(known), allowed, traffic)
    if not found:
        what = "accuracy of newcomers" if newcomers else "what is asked for"
        raise UserError(
            f"{results}: no method with {what} is in {rule.EVIDENCE} of the {len(near)} nearest"
            " tables; ask for less, or run `flbench sweep` on your own data"
        )
    lines = [
        *_evidence_lines(asked, near, known),
        *_advice_lines(found),
        *_rare_lines(rule.usable(near, allowed, traffic)),
    ]
    lines += ["", f"try first: {found[0].method}"]
    if usual and usual[0].method != found[0].method:
        lines.append(f"best on average over all tables: {usual[0].method}")
    tell(*lines)
    if not newcomers:
        _print_trust(known)


def _across_networks() -> set[str]:
    """The installed methods that run where clients have different networks."""
    from flbench.plugin.method_info import method_infos

    return {one.name for one in method_infos() if one.across_networks}


def _labels(per_client: float | None, alpha: float | None, labels: int, same: bool) -> float | None:
    """The share of all labels that a client holds, from whichever way it is said."""
    from flbench.leaderboard.recommendation import dirichlet_labels

    if sum((per_client is not None, alpha is not None, same)) > 1:
        raise BadParameter("--labels-per-client, --alpha and --same-labels: give one of them")
    if alpha is not None:
        if not 0 < alpha < float("inf"):
            raise BadParameter(f"--alpha: expected a number above 0, got {alpha:g}")
        return dirichlet_labels(alpha, labels)
    if per_client is not None and per_client > labels:
        raise BadParameter(
            f"--labels-per-client: expected 1 to {labels}, got {per_client:g}; --labels says how"
            " many there are"
        )
    return 1.0 if same else None if per_client is None else per_client / labels


def _federation(
    clients: int | None,
    participation: float | None,
    samples: float | None,
    groups: bool | None,
    labels: float | None,
    same: bool,
) -> FederationTraits:
    from flbench.leaderboard.recommendation import FederationTraits

    if participation == 0:
        raise BadParameter("--participation: expected a share above 0, got 0")
    domains = None if labels is None else same
    return FederationTraits(clients, participation, labels, samples, domains, groups)


def _evidence_lines(
    asked: FederationTraits, near: Sequence[Neighbour], known: Sequence[Evidence]
) -> list[str]:
    """The tables that were used, and how near they are."""
    names = ", ".join(asked.axes())
    lines = [
        f"the {len(near)} nearest of {len(known)} tables, compared in {names}"
        " (distance 0 = alike, 1 = as far apart as tables are):"
    ]
    for one in near[:SHOWN]:
        gains = one.table.gains
        best = max(sorted(gains), key=lambda name: gains[name])
        lines.append(
            f"  {one.distance:.2f}  {one.table.title}: best of {len(gains)} {best}"
            f" {_points(gains[best])}, weight {one.weight:.2f}"
        )
    if len(near) > SHOWN:
        lines.append(f"  and {len(near) - SHOWN} more, up to {near[-1].distance:.2f}")
    return lines


def _advice_lines(found: Sequence[Advice]) -> list[str]:
    """The methods, the best first."""
    width = max(len("method"), *(len(one.method) for one in found[:SHOWN]))
    lines = [
        "",
        "gain in points of accuracy over the better of training alone and one model for all:",
        f"  {'method':<{width}}  {'gain':>6}  {'95 % interval':>16}  {'traffic':>7}  tables",
    ]
    for one in found[:SHOWN]:
        low, high = map(_points, one.interval)
        times = "-" if one.traffic is None else f"{one.traffic:.2g}x"
        lines.append(
            f"  {one.method:<{width}}  {_points(one.gain):>6}  {f'{low} to {high}':>16}"
            f"  {times:>7}  {one.tables}"
        )
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN} more")
    return lines


def _rare_lines(usable: Mapping[str, Sequence[Neighbour]]) -> list[str]:
    """Methods that gain something on a near table, and are on too few of them to be compared."""
    from flbench.leaderboard.recommendation import EVIDENCE

    rare = {
        name: [one.table.gains[name] for one in own]
        for name, own in usable.items()
        if len(own) < EVIDENCE
    }
    useful = sorted((name for name in rare if max(rare[name]) > 0), key=lambda n: -max(rare[n]))
    if not useful:
        return []
    lacking = ", ".join(
        f"{name} {' and '.join(_points(gain) for gain in rare[name])}" for name in useful[:SHOWN]
    )
    return [f"  on fewer than {EVIDENCE} of these tables, so not compared: {lacking}"]


def _points(share: float) -> str:
    """A difference of accuracies in percentage points."""
    return f"{100 * share + 0.0:+.1f}"


def _print_trust(known: Sequence[Evidence]) -> None:
    """How good such an answer was for tables that were left out."""
    from flbench.leaderboard.recommendation import score, verdict

    try:
        means = score(known)["mean"]
    except UserError:
        return
    tell(
        f"\nhow far to trust it: points of accuracy below the best method, mean over"
        f" {means['tables']} tables whose suite was left out:"
    )
    for way, value in means["regret"].items():
        tell(f"  {100 * value:5.1f}  {WAYS.get(way, f'{way} everywhere')}")
    tell(f"{verdict(means)} {100 * means['inside']:.0f} % of the intervals held the gain.")
    tell("Run the first few on your own data before you choose (docs/data.md).")


def _write_score(known: Sequence[Evidence], path: Path) -> None:
    """Write how good the answers are for suites that were left out."""
    from flbench.leaderboard.recommendation import score, verdict
    from flbench.results.files import write_atomically

    found = score(known)
    text = json.dumps(found, indent=1, sort_keys=True)
    write_atomically(path, f"{text}\n".encode())
    tell(verdict(found["mean"]))
    tell(f"wrote {path}; now type: python docs/tools/which_method_page.py > docs/which-method.md")
