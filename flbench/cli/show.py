"""`flbench show`: a suite and its data, a method, a result file, its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flbench.cli.options import Root
from flbench.errors import MissingData, UserError
from flbench.terminal.lines import tell

if TYPE_CHECKING:
    from flbench.federation.federation import Samples
    from flbench.metrics import Ints
    from flbench.results.schema import Result
    from flbench.suite import Suite

show = typer.Typer(
    help="Show a suite, a method, a result file or its schema.",
    no_args_is_help=True,
)


@show.command("suite")
def show_suite(
    name: str,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE.svg", help="where --plot draws", show_default=False),
    ] = None,
    plot: Annotated[
        bool, typer.Option("--plot", help="draw the partition [default file: NAME.svg]")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="seed of the partition")] = 0,
    dataset: Annotated[str | None, typer.Option(help="as it runs on this data set")] = None,
    data_root: Root = None,
) -> None:
    """Show a suite's settings and, if its data are available, its partition."""
    from flbench.suite import load_suite

    if file is not None and not plot:
        raise UserError(f"'{file}' is where --plot would draw: add --plot, or leave it out")
    suite = load_suite(name, dataset)
    target = file or Path(f"{suite.name}.svg")
    if plot and target.suffix != ".svg":
        raise UserError(f"--plot draws SVG: expected a file that ends in .svg, got '{target}'")
    tell(f"{suite.name} (version {suite.version}): {suite.summary}", suite.paper)
    for key, value in suite.settings().items():
        tell(f"  {key} = {value}")
    _print_printed(suite)
    try:
        counts, groups = _divided(suite, seed, data_root)
    except MissingData as error:
        if plot:
            raise
        tell(f"how its data are divided cannot be shown: {error}")
        return
    from flbench.toolbox.heterogeneity import summary

    tell(f"{suite.dataset} divided with seed {seed}; training and validation samples:")
    for key, value in list(summary(counts).items())[: 2 if counts.shape[1] == 1 else None]:
        tell(f"  {key}: {value}")  # with one label or none, there are only sizes
    if plot:
        from flbench.figures.partition import draw_partition
        from flbench.results.files import write_atomically

        title = f"{suite.name} on {suite.dataset}, seed {seed}"
        write_atomically(target, draw_partition(counts, groups, title))
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


def _divided(suite: Suite, seed: int, root: Path | None) -> tuple[Ints, Ints | None]:
    """Samples per client and label, and true groups, of all clients; newcomers come last."""
    import numpy as np

    from flbench.datasets import data_root
    from flbench.federation.build import divide
    from flbench.federation.loading import load_dataset
    from flbench.plugin.hooks import HookCaller

    data = load_dataset(suite.dataset, data_root(root))
    federation = divide(suite, HookCaller((suite.name, suite), []), data, seed)
    counts = [_counts(federation.visible, federation.classes)]
    groups = [federation.groups]
    if federation.newcomers is not None:
        counts.append(_counts(federation.newcomers.visible, federation.classes))
        groups.append(federation.newcomers.groups)
    known = [group.numpy() for group in groups if group is not None]
    return np.concatenate(counts), np.concatenate(known) if known else None


def _counts(samples: Samples, classes: int) -> Ints:
    """Training and validation samples per client and label, shape (clients, classes).

    All samples of text count as one label, and so do those of other tasks than classes: shape
    (clients, 1).
    """
    import numpy as np

    labels = samples.y.numpy()
    if labels.ndim > 1 or labels.dtype.kind == "f":
        labels, classes = np.zeros(len(labels), dtype=np.int64), 1
    lists = zip(samples.splits["train"], samples.splits["validation"], strict=True)
    return np.stack(
        [np.bincount(labels[np.concatenate(rows)], minlength=classes) for rows in lists]
    )


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
            tell(f"  {key}: {parameter.type} = {parameter.default!r}", f"      {parameter.doc}")


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
