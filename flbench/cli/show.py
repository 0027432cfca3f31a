"""`flbench show`: a suite and its data, a method, methods together, a result, its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import (
    DatasetOption,
    Metrics,
    OfflineOption,
    Root,
    RoundsOption,
    SettingsOption,
    names,
    read_settings,
)
from flbench.cli.plot import IMAGES
from flbench.errors import MissingData, UserError
from flbench.sweeps.request import RunRequest, suite_of
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.federation.holdings import Holdings
    from flbench.results.schema import Result
    from flbench.suite import Suite

show = typer.Typer(
    help="Show a suite, a method, what methods go together, a result file or its schema.",
    no_args_is_help=True,
)


@show.command("suite")
def show_suite(
    name: str,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", "-p", help="method that would run on it")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the partition")] = 0,
    rounds: RoundsOption = None,
    settings: SettingsOption = None,
    dataset: DatasetOption = None,
    offline: OfflineOption = False,
    metric: Metrics = None,
    data_root: Root = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR|FILE.svg", help="also draw who has what", show_default=False),
    ] = None,
) -> None:
    """Show a suite as `flbench run` would take it: its settings, and who gets which data."""
    if out is not None and out.suffix.lower() in IMAGES and out.suffix != ".svg":
        raise UserError(f"--out: expected a folder, or a file that ends in .svg; got '{out}'")
    request = RunRequest(
        methods=names(plugin or []),
        suites=(name,),
        settings=read_settings(settings),
        rounds=rounds,
        dataset=dataset,
        offline=offline,
        data_root=data_root,
        metrics=names(metric or []),
    )
    suite, layers = suite_of(request, lambda message: tell(f"note: {message}"))
    tell(f"{suite.name} (version {suite.version}): {suite.summary}", suite.paper)
    if suite.superseded_by:
        tell(f"superseded by {suite.superseded_by}")
    for key, value in suite.settings().items():
        tell(f"  {key} = {value}")
    if suite.metrics:
        tell(f"  metrics = {', '.join(one.label for one in suite.metrics)}")
    _print_printed(suite)
    try:
        suite, holdings = _divided(suite, layers, seed, request.root)
    except MissingData as error:
        if out is not None:
            raise
        tell(f"how its data are divided cannot be shown: {error}")
        return
    _print_holdings(holdings, f"{suite.dataset} divided with seed {seed}")
    if out is not None:
        _draw(suite, holdings, seed, out)


def _print_holdings(holdings: Holdings, what: str) -> None:
    """Print who has what, as tables."""
    from flbench.federation.holdings import headline, tables
    from flbench.terminal.tables import print_rows
    from flbench.toolbox.heterogeneity import summary

    tell(f"{what}: {headline(holdings)}")
    for title, rows in tables(holdings):
        print_rows(title, rows)
    if holdings.labels is not None:
        for key, value in list(summary(holdings.labels).items())[3:]:
            tell(f"{key}: {value}")


def _draw(suite: Suite, holdings: Holdings, seed: int, out: Path) -> None:
    """Draw who has what into a file, or into a folder under the suite's name."""
    from flbench.figures.holdings import draw_holdings
    from flbench.results.files import slug, write_atomically

    counted = [("label", holdings.labels, holdings.label_names)]
    counted.append(("domain", holdings.domains, holdings.domain_names))
    kinds = [(kind, counts, known) for kind, counts, known in counted if counts is not None]
    title = f"{suite.name} on {suite.dataset}, seed {seed}"
    svg = draw_holdings(holdings.sizes, kinds, holdings.groups, holdings.newcomers, title)
    stem = slug(f"{suite.name}-{suite.dataset}")
    target = out if out.suffix == ".svg" and not out.is_dir() else out / f"{stem}-holdings.svg"
    write_atomically(target, svg)
    tell(f"wrote {target}")


def _print_printed(suite: Suite) -> None:
    """Print the paper's numbers for the suite's data set, one line per method."""
    rows = suite.printed.get(suite.dataset, {})
    rule = "" if suite.printed_judged == "served" else f", {suite.printed_judged} models judged"
    if rows:
        tell(f"printed in the paper, {suite.dataset}{rule}:")
    width = max(map(len, rows), default=0)
    for method, numbers in rows.items():
        numbers_text = ", ".join(f"{name} {number:g}" for name, number in numbers.items())
        tell(f"  {method:<{width}}  {numbers_text}")


def _divided(
    suite: Suite, layers: Sequence[tuple[str, object]], seed: int, root: Path
) -> tuple[Suite, Holdings]:
    """The suite on the data that are there, and who has what of them."""
    from flbench.federation.build import divided
    from flbench.federation.holdings import Holdings
    from flbench.plugin.hooks import HookCaller
    from flbench.run.runner import on_part
    from flbench.sweeps.launchers import loaded

    def say(message: str) -> None:
        tell(f"note: {message}")

    data = loaded(say, suite.dataset, root)
    domains = None if data.domains is None else len(data.domains.unique())
    suite = on_part(suite, data.name, domains, say)
    hooks = HookCaller((suite.name, suite), layers, (), say)
    return suite, Holdings.of(data, divided(suite, hooks, data, seed, say))


@show.command("method")
def show_method(name: str) -> None:
    """Show a method's documentation and parameters."""
    import inspect

    from flbench.core.parameters import declared
    from flbench.plugin.method_info import method_info
    from flbench.plugin.registry import find
    from flbench.run.composition import compose

    for plugin_name, plugin in compose(name).layers:
        doc = inspect.getdoc(inspect.getmodule(plugin)) or inspect.getdoc(plugin)
        tell(plugin_name, "", *(doc or "").splitlines(), "")
        departs = method_info(find("methods", plugin_name)).departs
        tell(f"departs from the paper: {departs or 'nothing is said'}", "")
        for key, parameter in declared(type(plugin)).items():
            tell(f"  {key}: {parameter.type} = {parameter.default!r}", f"      {parameter.note}")


@show.command("composition")
def show_composition(
    text: Annotated[
        str, typer.Argument(metavar="METHOD[+METHOD...]", help="as `flbench run -p` takes it")
    ],
    suite: Annotated[
        str | None, typer.Option("--suite", "-s", help="play it on this suite, for two rounds")
    ] = None,
    settings: SettingsOption = None,
    dataset: DatasetOption = None,
    offline: OfflineOption = False,
    data_root: Root = None,
) -> None:
    """Say whether methods go together: runs, undefined or refused, and why, in one line.

    Of one method: with which others. They are played on a small federation, or on a suite.
    """
    if suite is None and (settings or dataset or offline):
        raise UserError("--set, --dataset and --offline-data need a suite: add --suite NAME")
    from flbench.testing.composability import outcome_of, partners

    asked = None
    if suite is not None:
        asked = RunRequest(
            suites=(suite,),
            settings=read_settings(settings),
            dataset=dataset,
            offline=offline,
            data_root=data_root,
        )
    if "+" in text:
        tell(outcome_of(text, asked))
        return
    for found in partners(text, asked):
        tell(found)


@show.command("result")
def show_result(file: Path) -> None:
    """Show a result file: method, suite, settings and results."""
    from flbench.leaderboard.markdown import list_clients
    from flbench.results.files import read_result

    result = read_result(file)
    marks = result.fingerprint
    tell(f"{result.method.name} on {result.suite['name']} ({result.dataset}), seed {result.seed}")
    tell(f"{result.status}, suite version {result.suite['version']}")
    if result.task is not None:
        tell(f"task {result.task}: {result.headline.doc}")
    tell(f"  {digest_line(result)}")
    if result.unpublished:
        tell(f"nobody else can run it again: {', '.join(result.unpublished)} came from no package")
    if result.not_judged:
        tell(f"not judged: {list_clients(result.not_judged)}")
    for plugin in result.method.plugins:
        tell(f"  plugin {plugin.name} of {plugin.distribution} {plugin.version}")
    for one in result.suite.get("plugins", ()):
        params = "".join(f", {key} = {value}" for key, value in one.items() if key != "name")
        tell(f"  plugin {one['name']} of the suite{params}")
    _print_all("parameters", result.method.params)
    if result.tuning is not None:
        _print_all("tuned", result.tuning.model_dump())
    _print_all("fingerprint", marks.model_dump())
    metrics = result.metrics().items()
    _print_all("summary", {key: value and round(value, 4) for key, value in metrics})
    _print_all("metrics of clients", dict(_client_metrics(result)))
    for way, items in result.bytes.items():
        _print_all(f"bytes {way}", items)
    _print_all("seconds", result.seconds)
    if result.energy is not None:
        _print_all("energy (watt-hours)", result.energy.model_dump())
    if result.saved is not None:
        _print_all("saved", {kind: file.name for kind, file in result.saved.items()})
    _print_all("environment", result.environment)
    changes = result.memberships()
    counts = ", ".join(f"{len({*labels} - {-1})} from round {at}" for at, labels in changes[:5])
    more = f", ... ({len(changes)} changes)" if len(changes) > 5 else ""
    tell(f"groups: {counts}{more}")
    if result.scores is not None:
        shape = f"{len(result.scores.row_ids)} x {len(result.scores.column_ids)}"
        tell(f"scores: {shape} {result.scores.columns}, round {result.scores.round}")
    for message in result.warnings:
        tell(f"note: {message}")


def digest_line(result: Result) -> str:
    """Whether the digest of a file that was read could be checked."""
    return (
        "its digest agrees" if result.is_digested else "no digest: the file is older than digests"
    )


def _client_metrics(result: Result) -> Iterator[tuple[str, str]]:
    """Each metric that was asked for beside accuracy: its numbers, and where it comes from."""
    for label, one in (result.client_metrics or {}).items():
        parts = {"mean": "mean", "std_clients": "std", "worst_decile": "worst decile"}
        values = {words: result.summary.get(f"{label}_{part}") for part, words in parts.items()}
        numbers = [f"{words} {value:.4f}" for words, value in values.items() if value is not None]
        judged = sum(count > 0 for count in result.clients.test)
        counted = f"{result.summary.get(f'{label}_clients')} of {judged} clients"
        by = f" (plugin {one.plugin})" if one.plugin else ""
        yield f"{label} of {one.package}{by}", ", ".join([*numbers, counted])


def _print_all(title: str, table: Mapping[str, object]) -> None:
    """Print a heading and a line per entry."""
    if table:
        tell(f"{title}:")
    width = max(map(len, table), default=0)
    for key, value in sorted(table.items()):
        tell(f"  {key:<{width}}  {'-' if value is None else value}")


@show.command("schema")
def show_schema() -> None:
    """Show the JSON Schema of result files."""
    import json

    from flbench.results.schema import Result

    print(json.dumps(Result.model_json_schema(), indent=2, sort_keys=True))
