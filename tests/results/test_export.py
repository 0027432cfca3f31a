"""Results as parquet: what stands in the columns, and the same bytes for the same results."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import export_page
import pytest
from made_results import made, write
from made_tasks import as_numbers
from mentions import mentions
from toy import Typed

from flbench.errors import UserError
from flbench.results import export
from flbench.results.audits import Audit, content_digest, run_key
from flbench.results.schema import Change, ClientMetricValues, Result, Tuning, Unseen

ROOT = Path(__file__).parents[2]


def full() -> Result:
    """Two clients and a newcomer, groups that change, a metric beside accuracy."""
    one = made(correct=[10, 30], test=[20, 40], seed=3, method="cfl", params={"b": 1, "a": [2]})
    clients = one.clients.model_copy(update={"labels": [{0: 4, 7: 0}, {1: 2, 2: 3}]})
    f1 = ClientMetricValues(name="f1", package="p 1", higher_is_better=True, values=[0.25, None])
    return one.model_copy(
        update={
            "clients": clients.model_copy(update={"group": [0, 1], "bytes": [7, 8]}),
            "client_metrics": {"f1": f1},
            "curves": {"accuracy": [None, 0.625], "bytes_up": [5, 10], "generic": [0.1, 0.2]},
            "membership": [
                Change(round=1, labels=[0, 0]),
                Change(round=2, labels=[-1], clients=[1]),
            ],
            "unseen": Unseen(
                epochs=1, train=[9], test=[4], correct=[1], correct_tuned=[3], group=[1]
            ),
        }
    )


def read(data: bytes) -> tuple[Any, list[dict[str, Any]]]:
    """A file's schema and rows."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `export` is not installed")
    table = parquet.read_table(io.BytesIO(data))
    return table.schema, table.to_pylist()


@pytest.fixture
def pyarrow() -> Any:
    return pytest.importorskip("pyarrow", reason="the extra `export` is not installed")


def test_a_run_has_its_audit_and_the_epochs_that_it_counted(pyarrow: Any) -> None:
    def audit(result: Result, outcome: str, day: int) -> Audit:
        return Audit(
            file="f", run=run_key(result), digest=content_digest(result), outcome=outcome, rounds=3,
            whole=True, tolerance=0.01, seconds=1.0, date=f"2026-01-0{day}", flbench="1", torch="2",
            trained_epochs=7.5, sources={},
        )  # fmt: skip

    def row(*audits: Audit) -> tuple[Any, ...]:
        _, (found,) = read(export.exported([one], audits)["runs.parquet"])
        return found["audit"], found["audit_date"], found["trained_epochs"]

    one = Result.model_validate_json(made(0.5).canonical())
    assert row() == (None, None, None)
    assert row(audit(made(0.6), "agrees", 1)) == (None, None, None), "of another result"
    assert row(audit(one, "agrees", 1)) == ("agrees", "2026-01-01", 7.5)
    assert row(audit(one, "agrees", 1), audit(one, "differs", 2)) == ("differs", "2026-01-02", None)


def test_each_client_and_newcomer_is_a_row(pyarrow: Any) -> None:
    schema, rows = read(export.exported([full()])["clients.parquet"])
    one, two, newcomer = rows
    assert (one["correct"], one["test"], one["accuracy"], one["metric_f1"]) == (10, 20, 0.5, 0.25)
    assert (two["accuracy"], two["metric_f1"], two["bytes"]) == (0.75, None, 8)
    assert (one["found_group"], two["found_group"]) == (0, -1)
    assert (one["true_group"], two["true_group"]) == (0, 1)
    assert (one["labels"], one["n_labels"]) == ('{"0":4,"7":0}', 1), "a label of no sample is none"
    assert two["n_labels"] == 2
    assert [row["newcomer"] for row in rows] == [False, False, True]
    assert (newcomer["accuracy"], newcomer["correct_tuned"]) == (0.25, 3)
    assert (newcomer["client"], newcomer["labels"], newcomer["loss"]) == (0, None, None)
    assert {row["run"] for row in rows} == {"c-cfl-5u1te000-3"}
    assert (
        schema.field("test")
        .metadata[b"doc"]
        .decode()
        .startswith("test samples, of text tokens; 0 = ")
    )


def test_another_task_has_its_headline_in_every_file(pyarrow: Any) -> None:
    found = export.exported([as_numbers(full()), full()])
    _, (run, plain) = read(found["runs.parquet"])
    assert (run["task"], run["headline"], run["higher_is_better"]) == ("numbers", "rmse", False)
    assert (run["rmse_mean"], run["accuracy_mean"]) == (0.375, None)
    assert (plain["task"], plain["headline"], plain["higher_is_better"]) == (
        "classes", "accuracy", True,
    )  # fmt: skip
    assert (plain["rmse_mean"], plain["accuracy_mean"]) == (None, 0.625)
    _, (_, last, *_) = read(found["rounds.parquet"])
    assert (last["rmse"], last["accuracy"]) == (0.375, None)
    _, (one, two, newcomer, *others) = read(found["clients.parquet"])
    assert [row["headline"] for row in (one, two, newcomer)] == [0.5, 0.25, 0.75]
    assert newcomer["headline_tuned"] == 0.25
    assert {one["correct"], one["accuracy"], newcomer["correct_tuned"]} == {None}
    assert [row["headline"] for row in others] == [row["accuracy"] for row in others]


def test_each_round_is_a_row(pyarrow: Any) -> None:
    schema, (one, two) = read(export.exported([full()])["rounds.parquet"])
    assert (one["round"], one["accuracy"], one["bytes_up"], one["curve_generic"]) == (
        1,
        None,
        5,
        0.1,
    )
    assert (two["round"], two["accuracy"], two["bytes_up"], two["curve_generic"]) == (
        2, 0.625, 10, 0.2,
    )  # fmt: skip
    assert (one["group_labels"], two["group_labels"]) == ("[0,0]", "[0,-1]")
    assert one["loss"] is None, "a curve that nobody has is there, and empty"
    assert str(schema.field("bytes_up").type) == "double"


def test_each_run_is_a_row_with_every_metric(pyarrow: Any) -> None:
    _, (row,) = read(export.exported([full()])["runs.parquet"])
    assert row["accuracy_mean"] == 0.625
    assert row["unseen_accuracy_tuned"] == 0.75, "computed, where the summary is older"
    assert row["metric_f1"] == 0.25
    assert (row["seed"], row["method"], row["suite_fingerprint"]) == (3, "cfl", "5u1te000")
    assert row["params"] == '{"a":[2],"b":1}'
    assert json.loads(row["settings"])["clients"] == 2
    assert (row["bytes_down"], row["bytes_up"], row["bytes_peer"]) == (10, 10, 0)
    assert (row["packages"], row["tuning_budget"], row["kld"]) == ("flbench 1.0", None, None)


def test_how_a_row_was_tuned(pyarrow: Any) -> None:
    both = Tuning(budget=12, tried=5, seeds=[1000], score="s", lr=0.3, both=True)
    rate = both.model_copy(update={"both": False})
    rows = [
        read(export.exported([full().model_copy(update={"tuning": one})])["runs.parquet"])[1][0]
        for one in (None, rate, both)
    ]
    assert [(row["tuning_budget"], row["tuned_lr"], row["tuned_both"]) for row in rows] == [
        (None, None, None), (12, 0.3, False), (12, 0.3, True),
    ]  # fmt: skip


def test_the_order_of_the_results_does_not_matter(pyarrow: Any) -> None:
    """Neither does where they lie; rows are sorted."""
    found = [made(seed=seed, method=name) for name in ("cfl", "ifca") for seed in (10, 2)]
    one, other = export.exported(found), export.exported(found[::-1])
    assert one == other
    _, rows = read(one["runs.parquet"])
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("cfl", 2), ("cfl", 10), ("ifca", 2), ("ifca", 10),
    ]  # fmt: skip


def test_every_column_is_declared_once_and_has_its_type(pyarrow: Any) -> None:
    for file, columns in export.COLUMNS.items():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        schema, _ = read(export.exported([made()])[f"{file}.parquet"])
        assert schema.names == names, "nothing further without a result that has it"
        types = {"text": "string", "whole": "int64", "number": "double", "flag": "bool"}
        assert [str(one.type) for one in schema] == [types[column.kind] for column in columns]
        more, _ = read(export.exported([full()])[f"{file}.parquet"])
        begins = tuple(name.split("_")[0] + "_" for name, _ in export.FURTHER[file])
        assert set(more.names) - set(names)
        assert all(name.startswith(begins) for name in set(more.names) - set(names))


def test_the_page_lists_every_column() -> None:
    assert (ROOT / "docs" / "export.md").read_text(encoding="utf-8") == export_page.page()
    assert all(f"| `{c.name}` |" in export_page.page() for f in export.COLUMNS.values() for c in f)


def test_without_pyarrow_one_line_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'flbench\[export\]'$"):
        export.exported([made()])


def test_the_command_writes_three_files(typed: Typed, tmp_path: Path, pyarrow: Any) -> None:
    folder = write(tmp_path / "R", made(seed=0), made(seed=1))
    code, _, told = typed("export", str(folder), "--out", "tables", "--audits", "gone.jsonl")
    assert (code, Path("tables").exists()) == (1, False)
    assert mentions(told, "--audits", "log of audits", "gone.jsonl")
    code, out, _ = typed("export", str(folder), "--out", "tables")
    assert code == 0
    assert out.splitlines()[-1].startswith("2 results; ")
    assert sorted(path.name for path in Path("tables").iterdir()) == [
        "clients.parquet", "rounds.parquet", "runs.parquet",
    ]  # fmt: skip
    code, _, err = typed("export", str(tmp_path / "nothing"))
    assert code == 1
    assert "nothing" in err
    for words in ((), ("--audits", "mine.jsonl")):
        log = Path(words[-1] if words else "leaderboard/audits.jsonl")
        log.parent.mkdir(exist_ok=True)
        log.write_text("no audit\n")
        code, _, err = typed("export", str(folder), *words)
        assert (code, err.startswith(f"flbench: {log}, line 1: no audit")) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_other_libraries_read_the_files(library: str, tmp_path: Path, pyarrow: Any) -> None:
    module = pytest.importorskip(library)
    for name, data in export.exported([full(), made(method="ifca")]).items():
        (tmp_path / name).write_bytes(data)
        path = str(tmp_path / name)
        if library == "duckdb":
            count = module.sql(f"select count(*) from '{path}'").fetchall()[0][0]
            methods = {row[0] for row in module.sql(f"select method from '{path}'").fetchall()}
        else:
            found = module.read_parquet(path)
            count, methods = len(found), set(found["method"])
        expected = {"runs.parquet": 2, "rounds.parquet": 4, "clients.parquet": 7}
        assert (count, methods) == (expected[name], {"cfl", "ifca"})
