"""Result files as three tables in parquet: a row per run, per round and per client.

The columns are described once, in `COLUMNS`; the files carry the descriptions in the metadata of
their fields, and `docs/export.md` is generated from them. The library pyarrow is an extra.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from flbench.errors import UserError
from flbench.metrics import EPOCHS, TIME, WAYS, Metric, metrics_for
from flbench.results.audits import Audit, content_digest, latest, rounds_of, run_key
from flbench.results.schema import Result
from flbench.tasks import TASKS

if TYPE_CHECKING:
    import pyarrow

ExportFile = Literal["runs", "rounds", "clients"]
ColumnKind = Literal["text", "whole", "number", "flag"]
TYPES: Mapping[ColumnKind, str] = {
    "text": "string",
    "whole": "int64",
    "number": "float64",
    "flag": "bool",
}
"""What a column holds -> its type in Arrow."""


@dataclass(frozen=True)
class ExportColumn:
    """A column: its name, what it holds, and what that means."""

    name: str
    kind: ColumnKind
    doc: str


KEYS = (
    ExportColumn("run", "text", "the run, `<config>-<seed>`; the key that joins the three files"),
    ExportColumn("suite", "text", "name of the suite"),
    ExportColumn("dataset", "text", "name of the data set"),
    ExportColumn("method", "text", "name of the method, plugins joined by `+`"),
    ExportColumn("seed", "whole", "seed of all random streams"),
)
"""The columns with which every file begins."""


def _metrics() -> list[Metric]:
    """The numbers of summaries of all tasks, each name once; those of classes first."""
    found: dict[str, Metric] = {}
    for one in (one for task in TASKS.values() for one in metrics_for(task.name)):
        found.setdefault(one.name, one)
    return list(found.values())


OTHERS = [task for task in TASKS.values() if task.name != "classes"]
"""The tasks whose headline is no accuracy."""


COLUMNS: Mapping[ExportFile, tuple[ExportColumn, ...]] = {
    "runs": (
        *KEYS,
        ExportColumn("status", "text", "`self-reported` or `reproduced`"),
        ExportColumn("task", "text", f"what is predicted: {', '.join(TASKS)}"),
        ExportColumn("headline", "text", "the metric that ranks runs of the task"),
        ExportColumn("higher_is_better", "flag", "whether a higher headline is better"),
        ExportColumn(
            "config", "text", "fingerprint of suite, method and parameters: a row of a table"
        ),
        ExportColumn("suite_fingerprint", "text", "fingerprint of the suite's settings: a table"),
        ExportColumn("data_fingerprint", "text", "fingerprint of the data"),
        ExportColumn("partition_fingerprint", "text", "fingerprint of every client's samples"),
        ExportColumn("weights_fingerprint", "text", "fingerprint of the initial weights"),
        ExportColumn("cohorts_fingerprint", "text", "fingerprint of the clients of every round"),
        ExportColumn("params", "text", "parameters of the method, as JSON"),
        ExportColumn("settings", "text", "settings of the suite, as JSON"),
        ExportColumn("packages", "text", "distributions of the plugins, with versions, by commas"),
        ExportColumn("baseline", "flag", "one plugin, which is what others must beat"),
        ExportColumn("uses_true_groups", "flag", "a plugin is given the true groups"),
        ExportColumn("pools_data", "flag", "a plugin has all data in one place"),
        ExportColumn("paper_leak", "flag", "a plugin uses test data as its paper does"),
        ExportColumn("audit", "text", "what its last audit gave, as the log of audits says it"),
        ExportColumn("audit_date", "text", "the day of that, year-month-day"),
        ExportColumn(
            "tuning_budget", "whole", "sets of parameters that were tried; null = not tuned"
        ),
        ExportColumn(
            "tuned_lr", "number", "learning rate that was searched for; null = the suite's"
        ),
        ExportColumn("tuned_both", "flag", "rate and parameters in one search; null = not tuned"),
        ExportColumn("suite_version", "whole", "version of the suite"),
        ExportColumn("partition", "text", "name of the partition"),
        ExportColumn("network", "text", "name of the network"),
        ExportColumn("clients", "whole", "clients of the suite, those that join later among them"),
        ExportColumn("participation", "number", "share of the clients that are in a round"),
        ExportColumn("rounds", "whole", "number of rounds"),
        ExportColumn("local_epochs", "number", "epochs of local training in a round"),
        ExportColumn("bytes_down", "whole", "bytes from the server to clients, over all of them"),
        ExportColumn("bytes_up", "whole", "bytes from clients to the server"),
        ExportColumn("bytes_peer", "whole", "bytes from clients to clients"),
        ExportColumn("seconds", "number", "wall time of the run"),
        ExportColumn("energy", "number", "watt-hours of the run, where they were estimated"),
        ExportColumn("flbench", "text", "version of flbench that ran it; null in older files"),
        ExportColumn("core", "text", "digest of the core that ran it; null in older files"),
        ExportColumn("torch", "text", "version of torch"),
        ExportColumn("device", "text", "device"),
        *(ExportColumn(one.name, "number", one.doc) for one in _metrics()),
    ),
    "rounds": (
        *KEYS,
        ExportColumn("round", "whole", "number of the round, from 1"),
        ExportColumn("accuracy", "number", "mean over clients of test accuracy"),
        ExportColumn("accuracy_validation", "number", "mean over clients of validation accuracy"),
        *(
            ExportColumn(
                task.named(f"accuracy{split}"),
                "number",
                f"mean over clients of {'validation' if split else 'test'} {task.heading}, of task"
                f" `{task.name}`",
            )
            for task in OTHERS
            for split in ("", "_validation")
        ),
        ExportColumn("loss", "number", "mean test loss, in nats (numbers: squared deviations)"),
        ExportColumn("train_loss", "number", "mean loss of local training, in nats"),
        ExportColumn("ari", "number", "adjusted Rand index of the groups against the true groups"),
        ExportColumn("groups", "number", "number of groups"),
        ExportColumn("bytes_down", "number", "bytes from the server to clients until then"),
        ExportColumn("bytes_up", "number", "bytes from clients to the server until then"),
        ExportColumn("bytes_peer", "number", "bytes from clients to clients until then"),
        ExportColumn(
            "slowest_down", "number", "bytes of the round to the client that received most"
        ),
        ExportColumn(TIME, "number", "simulated seconds until then, of suites with a clock"),
        ExportColumn(
            EPOCHS, "number", "local epochs until then, mean over clients; null in older files"
        ),
        ExportColumn("group_labels", "text", "group of each client, as JSON, where they changed"),
    ),
    "clients": (
        *KEYS,
        ExportColumn("client", "whole", "number of the client, from 0; newcomers are counted anew"),
        ExportColumn("newcomer", "flag", "it joined after the last round"),
        ExportColumn("train", "whole", "training samples; of text blocks"),
        ExportColumn("validation", "whole", "validation samples; of text tokens"),
        ExportColumn("test", "whole", "test samples, of text tokens; 0 = the client is not judged"),
        ExportColumn("correct", "whole", "test samples, of text tokens, that its model got right"),
        ExportColumn("accuracy", "number", "`correct` over `test`"),
        ExportColumn("headline", "number", "its accuracy, or what ranks runs of another task"),
        ExportColumn("headline_tuned", "number", "of newcomers: that after some local epochs"),
        ExportColumn("headline_own", "number", "that of its own model, where it is judged"),
        ExportColumn("correct_tuned", "whole", "of newcomers: the same after some local epochs"),
        ExportColumn("correct_own", "whole", "the same of its own model, where it is judged"),
        ExportColumn("loss", "number", "sum of the losses on its test samples, as in `rounds`"),
        ExportColumn("true_group", "whole", "its true group, if the suite has any"),
        ExportColumn("found_group", "whole", "its group at the end; -1 = in none"),
        ExportColumn("bytes", "whole", "bytes that it sent and received in the run"),
        ExportColumn("labels", "text", "training samples by label, as JSON"),
        ExportColumn("n_labels", "whole", "labels of which it has training samples"),
    ),
}
"""The columns of each file that are always there, in order."""

FURTHER: Mapping[ExportFile, tuple[tuple[str, str], ...]] = {
    "runs": (("metric_LABEL", "mean over clients of a metric that was asked for"),),
    "rounds": (
        ("metric_LABEL", "mean over clients of a metric that was asked for"),
        ("curve_NAME", "a curve that only some results have, such as `accuracy_mixed`"),
    ),
    "clients": (("metric_LABEL", "a metric that was asked for, of this client"),),
}
"""Columns, all of them numbers, that are there if a result has something in them."""

ExportRow = dict[str, Any]


def exported(results: Iterable[Result], audits: Iterable[Audit] = ()) -> dict[str, bytes]:
    """The three files, by name; the same results in any order give the same bytes.

    Args:
        results: what is written.
        audits: when they were run again. Those of other results do not count.

    Raises:
        UserError: pyarrow is not installed.
    """
    arrow = _library()
    found = sorted(results, key=_place)
    known = latest(audits, rounds_of(found))
    of: Mapping[ExportFile, Callable[[Result], Iterator[ExportRow]]]
    of = {"runs": lambda one: runs(one, known), "rounds": rounds, "clients": clients}
    return {
        f"{file}.parquet": _parquet(arrow, file, list(chain.from_iterable(map(rows, found))))
        for file, rows in of.items()
    }


def _library() -> Any:  # noqa: ANN401 - a module
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            "parquet files are written by pyarrow, which is not installed:"
            " pip install 'flbench[export]'"
        ) from None
    return pyarrow


def _place(result: Result) -> tuple[str, str, str, str, str, int]:
    """Where a result stands among others: the order of a table's rows."""
    marks = result.fingerprint
    name = str(result.suite["name"])
    return name, result.dataset, marks.suite, result.method.name, marks.config, result.seed


def _parquet(arrow: Any, file: ExportFile, rows: Sequence[ExportRow]) -> bytes:  # noqa: ANN401 - a module
    """The text of a file: the declared columns, then further ones by name."""
    declared = COLUMNS[file]
    known = {column.name for column in declared}
    further = sorted({name for row in rows for name in row} - known)
    docs = {name.split("_")[0]: doc for name, doc in FURTHER[file]}
    columns = [
        *declared,
        *(ExportColumn(name, "number", docs[name.split("_")[0]]) for name in further),
    ]
    fields = [
        arrow.field(one.name, arrow.type_for_alias(TYPES[one.kind]), metadata={"doc": one.doc})
        for one in columns
    ]
    table: pyarrow.Table = arrow.table(
        [arrow.array([row.get(one.name) for row in rows], one.type) for one in fields],
        schema=arrow.schema(fields),
    )
    sink = arrow.BufferOutputStream()
    arrow.parquet.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _keys(result: Result) -> ExportRow:
    return {
        "run": run_key(result),
        "suite": result.suite["name"],
        "dataset": result.dataset,
        "method": result.method.name,
        "seed": result.seed,
    }


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _numbers(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else float(value) for name, value in values.items()}


def runs(result: Result, audits: Mapping[tuple[str, str], Audit]) -> Iterator[ExportRow]:
    """The row of a run; its epochs are those that an audit counted, if its file has none."""
    audit = audits.get((run_key(result), content_digest(result))) if audits else None
    again = audit if audit is not None and audit.agrees else None
    suite, plugins, marks = result.suite, result.method.plugins, result.fingerprint
    metrics = result.metrics()
    declared = {column.name for column in COLUMNS["runs"]}
    packages = dict.fromkeys(f"{one.distribution} {one.version}" for one in plugins)
    yield {
        EPOCHS: None if again is None else again.trained_epochs,
        **_numbers({name: value for name, value in metrics.items() if name in declared}),
        **{
            f"metric_{label}": metrics.get(f"{label}_mean")
            for label in sorted(result.client_metrics or {})
        },
        **_keys(result),
        "status": result.status,
        "task": result.headline.name,
        "headline": result.headline.headline,
        "higher_is_better": result.headline.higher_is_better,
        "config": marks.config,
        "suite_fingerprint": marks.suite,
        "data_fingerprint": marks.data,
        "partition_fingerprint": marks.partition,
        "weights_fingerprint": marks.initial_weights,
        "cohorts_fingerprint": marks.cohorts,
        "params": _json(result.method.params),
        "settings": _json(suite),
        "packages": ", ".join(packages),
        "baseline": len(plugins) == 1 and plugins[0].baseline,
        "uses_true_groups": any(one.uses_true_groups for one in plugins),
        "pools_data": any(one.pools_data for one in plugins),
        "paper_leak": any(one.paper_leak for one in plugins),
        "audit": None if audit is None else audit.outcome,
        "audit_date": None if audit is None else audit.date,
        "tuning_budget": result.tuning.budget if result.tuning else None,
        "tuned_lr": result.tuning.lr if result.tuning else None,
        "tuned_both": result.tuning.both if result.tuning else None,
        "suite_version": suite["version"],
        "partition": suite.get("partition", {}).get("name"),
        "network": suite["model"]["name"],
        "clients": suite["clients"],
        "participation": float(suite["participation"]),
        "rounds": suite["rounds"],
        "local_epochs": suite["local"]["epochs"],
        **{f"bytes_{way}": sum(result.bytes.get(way, {}).values()) for way in WAYS},
        "seconds": result.seconds.get("total"),
        "energy": None if result.energy is None else result.energy.total,
        **{name: result.environment.get(name) for name in ("flbench", "core", "torch", "device")},
    }


def rounds(result: Result) -> Iterator[ExportRow]:
    """A row per round."""
    declared = {column.name for column in COLUMNS["rounds"]} - {one.name for one in KEYS}
    asked = result.client_metrics or {}
    names = {
        name: f"metric_{name}" if name in asked else name if name in declared else f"curve_{name}"
        for name in result.curves
    }
    groups = dict(result.memberships())
    for at in range(max(map(len, result.curves.values()), default=0)):
        yield {
            **_numbers({names[name]: curve[at] for name, curve in result.curves.items()}),
            **_keys(result),
            "round": at + 1,
            "group_labels": _json(groups[at + 1]) if at + 1 in groups else None,
        }


def clients(result: Result) -> Iterator[ExportRow]:
    """A row per client, and one per newcomer."""
    found, own, keys = result.clients, result.own, _keys(result)
    changes = result.memberships()
    groups = changes[-1][1] if changes else None
    for at, test in enumerate(found.test):
        labels = None if found.labels is None else found.labels[at]
        yield {
            **{
                f"metric_{label}": metric.values[at]
                for label, metric in (result.client_metrics or {}).items()
            },
            **keys,
            "client": at,
            "newcomer": False,
            "train": found.train[at],
            "validation": found.validation[at],
            "test": test,
            **_judged("", found.correct, found.values, at, test),
            **({} if own is None else _judged("_own", own.correct, own.values, at, test)),
            "loss": float(found.loss[at]),
            "true_group": None if found.group is None else found.group[at],
            "found_group": None if groups is None else groups[at],
            "bytes": found.bytes[at],
            "labels": None if labels is None else _json(labels),
            "n_labels": None if labels is None else sum(map(bool, labels.values())),
        }
    if (unseen := result.unseen) is None:
        return
    for at, test in enumerate(unseen.test):
        yield {
            **keys,
            "client": at,
            "newcomer": True,
            "train": unseen.train[at],
            "test": test,
            **_judged("", unseen.correct, unseen.values, at, test),
            **_judged("_tuned", unseen.correct_tuned, unseen.values_tuned, at, test),
            "true_group": None if unseen.group is None else unseen.group[at],
        }


def _judged(
    model: str,
    correct: Sequence[int] | None,
    values: Sequence[float | None] | None,
    at: int,
    test: int,
) -> ExportRow:
    """What is known of a model of a client: right answers of classes, and the headline.

    Args:
        model: "" = what serves it, "_own", or "_tuned".
        correct: answers of all clients; None = the task is another.
        values: of other tasks, the headlines of all clients.
        at: the client.
        test: its test samples; 0 = it is not judged.
    """
    if correct is None:
        return {f"headline{model}": None if values is None else values[at]}
    share = correct[at] / test if test else None
    accuracy = {} if model else {"accuracy": share}
    return {f"correct{model}": correct[at], f"headline{model}": share, **accuracy}
