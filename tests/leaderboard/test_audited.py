"""What a row says of its audits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_results import made, write
from mentions import mentioning
from toy import Typed

from flbench.leaderboard import audited
from flbench.leaderboard.audited import installed_source, is_current, network_sources, with_audits
from flbench.leaderboard.table import cohort_epochs, tables
from flbench.results.audits import Audit, append_audit, content_digest, run_key
from flbench.results.schema import Result


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Hashes of the sources of plugins as they are installed; one that is not there has none."""
    found = {"fedavg": "new", "cfl": "same"}
    monkeypatch.setattr(audited, "installed_source", lambda name: found.get(name, ""))
    return found


def as_read(result: Result) -> Result:
    return Result.model_validate_json(result.canonical())


def audit(result: Result, **changes: Any) -> Audit:
    told = {
        "file": "f", "run": run_key(result), "digest": content_digest(as_read(result)),
        "outcome": "same bytes", "rounds": 3, "whole": True, "tolerance": 0.01, "seconds": 1.0,
        "date": "2026-01-02", "flbench": "0.2.0", "torch": "2.0", "sources": {"fedavg": "new"},
    }  # fmt: skip
    return Audit.model_validate(told | changes)


def told(tmp_path: Path, found: list[Result], *audits: Audit) -> dict[str, str]:
    """What each row says."""
    folder = write(tmp_path / "results", *found)
    for one in audits:
        append_audit(tmp_path / "audits.jsonl", one)
    rows = [
        row for one in with_audits(tables(folder), tmp_path / "audits.jsonl") for row in one.rows
    ]
    return {row.name: row.last_audit for row in rows}


def test_a_row_says_when_and_by_which_version_it_was_last_run_again(tmp_path: Path) -> None:
    found = [made(0.5, seed=0), made(0.6, seed=1), made(0.4, method="cfl")]
    audits = [
        audit(found[0], date="2026-01-01", flbench="0.1.0"),
        audit(found[0], date="2026-01-03"),
        audit(found[2], whole=False, rounds=1),
    ]
    assert told(tmp_path, found, *audits) == {
        "fedavg": "1 of 2 seeds, 2026-01-03, flbench 0.2.0",
        "cfl": mentioning("1 of 3 rounds", "1 of 1 seeds", "2026-01-02", "flbench 0.2.0"),
    }


def test_the_last_date_of_all_seeds_is_shown(tmp_path: Path) -> None:
    found = [made(0.5, seed=0), made(0.6, seed=1)]
    dates = ("2026-01-03", "2026-01-05")
    audits = [audit(one, date=date) for one, date in zip(found, dates, strict=True)]
    assert told(tmp_path, found, *audits) == {"fedavg": "2 of 2 seeds, 2026-01-05, flbench 0.2.0"}


def test_the_core_is_named_where_it_is_known(tmp_path: Path) -> None:
    found = made(0.5)
    assert told(tmp_path, [found], audit(found, core="ab12")) == {
        "fedavg": "1 of 1 seeds, 2026-01-02, core ab12"
    }


def test_a_file_that_was_replaced_has_no_audit(tmp_path: Path) -> None:
    assert told(tmp_path, [made(0.5)], audit(made(0.6))) == {"fedavg": ""}


def test_what_differs_is_named(tmp_path: Path) -> None:
    found = [made(0.5, seed=0), made(0.6, seed=7)]
    wrong = audit(found[1], outcome="differs", how="x", flbench="0.3.0", sources={})
    assert told(tmp_path, found, audit(found[0]), wrong) == {
        "fedavg": "differs in seed 7, 2026-01-02, flbench 0.3.0"
    }


@pytest.mark.parametrize(
    ("played", "said"),
    [
        ("B 2", "differs in seed 7 on B 2 (computed on A 1), 2026-01-02, flbench 0.2.0"),
        ("A 1", "differs in seed 7, 2026-01-02, flbench 0.2.0"),
        (None, "differs in seed 7, 2026-01-02, flbench 0.2.0"),
    ],
)
def test_what_differs_on_another_processor_says_so(
    tmp_path: Path, played: str | None, said: str
) -> None:
    found = made(0.6, seed=7)
    found = found.model_copy(update={"environment": {**found.environment, "processor": "A 1"}})
    wrong = audit(found, outcome="differs", how="x", processor=played)
    assert told(tmp_path, [found], wrong) == {"fedavg": said}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "differs in seed 7 after 2 rounds that agree, 2026-01-02, flbench 0.2.0"),
        ({"sources": {}}, "differs in seed 7, 2026-01-02, flbench 0.2.0"),
        ({"outcome": "differs"}, "differs in seed 7, 2026-01-02, flbench 0.2.0"),
    ],
    ids=["the same code", "other code", "they differ too"],
)
def test_what_differs_may_begin_alike(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """Then the code is the same, and rounding grew."""
    found = [made(0.6, seed=7)]
    begun = audit(found[0], whole=False, rounds=2, **change)
    assert told(tmp_path, found, begun, audit(found[0], outcome="differs", how="x")) == {
        "fedavg": said
    }


def test_all_that_differ_must_begin_alike(tmp_path: Path) -> None:
    found = [made(0.6, seed=7), made(0.5, seed=8)]
    audits = [audit(one, outcome="differs", how="x") for one in found]
    begun = audit(found[0], whole=False, rounds=2)
    assert told(tmp_path, found, *audits, begun) == {
        "fedavg": "differs in seed 7, 8, 2026-01-02, flbench 0.2.0"
    }


def test_changed_code_is_named_until_it_was_run_again(
    tmp_path: Path, sources: dict[str, str]
) -> None:
    old = made(0.5, plugin={"source": "old"})
    assert told(tmp_path / "a", [old]) == {"fedavg": "code changed since"}
    assert told(tmp_path / "b", [old], audit(old)) == {
        "fedavg": "1 of 1 seeds, 2026-01-02, flbench 0.2.0"
    }, "the code that is installed gave the same"
    sources["fedavg"] = "newer"
    assert told(tmp_path / "b2", [old], audit(old)) == {
        "fedavg": mentioning("1 of 1 seeds", "2026-01-02", "flbench 0.2.0")
    }
    silent = audit(old, sources={})
    assert told(tmp_path / "b3", [old], silent) == {
        "fedavg": mentioning("1 of 1 seeds", "code changed since")
    }, "a line that names no code says nothing of it"
    unknown = made(0.5, method="gone", plugin={"source": "old"})
    assert told(tmp_path / "c", [unknown, made(0.4)]) == {"gone": "", "fedavg": ""}, "not known"
    assert told(tmp_path / "d", [made(0.5, method="cfl", plugin={"source": "same"})]) == {"cfl": ""}


def test_a_seed_whose_audit_agrees_is_reproduced(tmp_path: Path) -> None:
    found = [made(0.5, seed=seed) for seed in range(3)]
    write(tmp_path / "R", *found)
    log = tmp_path / "audits.jsonl"
    append_audit(log, audit(found[0]))
    append_audit(log, audit(found[1], outcome="differs"))
    (table,) = with_audits(tables(tmp_path / "R"), log)
    assert [table.rows[0].status_of(one) for one in table.rows[0].results] == [
        "reproduced", "self-reported", "self-reported"
    ]  # fmt: skip
    assert table.rows[0].status == "reproduced, self-reported"
    append_audit(log, audit(found[0], outcome="differs"))
    (table,) = with_audits(tables(tmp_path / "R"), log)
    assert table.rows[0].status == "self-reported", "the last audit counts"


@pytest.mark.slow
def test_the_page_has_the_column_where_something_is_known(tmp_path: Path, typed: Typed) -> None:
    one = made(0.5)
    write(tmp_path / "results", one)
    words = ("leaderboard", "--results", "results", "--out", ".", "--no-figures")
    assert typed(*words)[0] == 0
    assert "last audit" not in Path("toy.md").read_text()
    append_audit(tmp_path / "audits.jsonl", audit(one))
    assert typed(*words, "--check")[0] == 1
    assert typed(*words)[0] == 0
    page = Path("toy.md").read_text()
    assert "| status | last audit | package |" in page
    assert "| reproduced | 1 of 1 seeds, 2026-01-02, flbench 0.2.0 |" in page
    assert typed(*words[:-1], "--html")[0] == 0
    (rows,) = Path("tables").iterdir()
    assert "1 of 1 seeds, 2026-01-02" in rows.read_text()


def test_the_source_of_an_installed_plugin_is_that_of_results() -> None:
    from flbench.run.composition import compose

    (plugin,) = compose("fedavg", {}).described.plugins
    assert installed_source("fedavg") == plugin.source != ""
    assert installed_source("nothing") == ""
    assert not is_current({"fedavg": "old", "cfl": "same"})
    assert is_current({"fedavg": "", "gone": "old", "cfl": "same"})


def test_a_network_outside_the_core_counts_as_code_as_a_plugin_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audited, "installed_source", installed_source)
    model = {"name": "dcpfl-fm"}
    found = network_sources({"model": {"name": "lenet5"}, "further_models": [model]})
    assert found == {"network dcpfl-fm": installed_source("network dcpfl-fm")}
    assert all(found.values())
    assert is_current(found)
    assert not is_current({"network dcpfl-fm": "old"})
    assert network_sources({"model": {"name": "lenet5"}}) == {}, "the core's digest has it"
    assert network_sources({"model": {"name": "gone"}}) == {}


def test_audits_count_the_epochs_that_older_files_lack(tmp_path: Path) -> None:
    found = [made(0.5, seed=0), made(0.6, seed=1), made(0.4, method="cfl")]
    audits = [
        audit(found[0], trained_epochs=6.0),
        audit(found[1], trained_epochs=9.0),
        audit(found[2], trained_epochs=3.0, outcome="differs", how="accuracy"),
    ]
    folder = write(tmp_path / "results", *found)
    for one in audits:
        append_audit(tmp_path / "audits.jsonl", one)
    (table,) = with_audits(tables(folder), tmp_path / "audits.jsonl")
    rows = {row.name: row for row in table.rows}
    base = cohort_epochs(rows["fedavg"])
    assert (rows["fedavg"].work, rows["fedavg"].counted) == (7.5 / base, True)
    assert not rows["cfl"].counted, "what differs counts nothing"
