"""Signs beside the name of a row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_results import made, write
from mentions import mentions

from flbench.leaderboard.audited import newest_cores, with_audits
from flbench.leaderboard.html import html
from flbench.leaderboard.markdown import section
from flbench.leaderboard.signs import DEPARTS, LEGEND, OLD, READS, UNEVEN, legend, signs_of
from flbench.leaderboard.table import TableRow, tables
from flbench.results.audits import Audit, content_digest, run_key
from flbench.results.schema import Result


def row_of(folder: Path, *found: Result) -> TableRow:
    (table,) = tables(write(folder, *found))
    (row,) = table.rows
    return row


def audit(result: Result, core: str | None, date: str, outcome: str = "agrees") -> Audit:
    return Audit(
        file="f", run=run_key(result), digest=content_digest(result), outcome=outcome, rounds=3,
        whole=True, tolerance=0.01, seconds=1.0, date=date, flbench="0.2.0", torch="2.13",
        sources={}, core=core,
    )  # fmt: skip


def test_a_row_that_departs_from_its_paper_says_in_what(tmp_path: Path) -> None:
    (sign,) = signs_of(row_of(tmp_path, made(method="cfl")))
    assert sign.sign == DEPARTS
    assert mentions(sign.text, LEGEND[DEPARTS], "uniform means")
    assert signs_of(row_of(tmp_path / "other", made(method="of-nobody"))) == []


def test_a_row_that_reads_what_is_not_counted_says_what(tmp_path: Path) -> None:
    read = made(method="m").model_copy(update={"reads": ["losses", "numbers of samples"]})
    row = row_of(tmp_path, read)
    assert [one.text for one in signs_of(row)] == [
        f"{LEGEND[READS]}: {', '.join(what for what in row.reads if what != 'numbers of samples')}"
    ]


def test_a_row_whose_seeds_disagree_has_a_sign(tmp_path: Path) -> None:
    scores = (0.9, 0.5, 0.91, 0.9)
    found = [made(score, method="m", seed=seed) for seed, score in enumerate(scores)]
    assert [one.sign for one in signs_of(row_of(tmp_path, *found))] == [UNEVEN]


def test_a_core_is_old_if_the_last_audits_had_another(tmp_path: Path) -> None:
    result = made(method="m").model_copy(update={"environment": {"core": "aa"}})
    (table,) = tables(write(tmp_path / "results", result))
    (one,) = table.rows[0].results
    other = made(method="elsewhere")

    def old(*audits: Audit) -> bool:
        log = tmp_path / "audits.jsonl"
        log.write_text("".join(f"{line.model_dump_json()}\n" for line in audits))
        ((row,),) = (found.rows for found in with_audits([table], log))
        assert (OLD in [sign.sign for sign in signs_of(row)]) == row.old_core
        return row.old_core

    assert not old(), "nobody has audited anything"
    assert not old(audit(other, None, "2026-02-01")), "by nobody knows which core"
    assert old(audit(other, "bb", "2026-02-01"))
    assert not old(audit(other, "aa", "2026-02-01")), "the core that computed it"
    assert not old(audit(other, "bb", "2026-02-01"), audit(one, "bb", "2026-02-01"))
    assert old(audit(one, "bb", "2026-01-01"), audit(other, "cc", "2026-02-01"))
    assert old(audit(one, "bb", "2026-02-01", "differs"))
    assert not old(audit(one, "bb", "2026-01-31"), audit(other, "cc", "2026-02-01")), "midnight"
    assert newest_cores([audit(other, "bb", "2026-02-01"), audit(other, "cc", "2026-02-01"),
                         audit(other, "aa", "2026-01-01")]) == {"bb", "cc"}  # fmt: skip


def test_signs_stand_beside_names_and_are_explained(tmp_path: Path) -> None:
    (table,) = tables(write(tmp_path, made(method="m"), made(method="cfl")))
    rows = tuple(replace(row, old_core=True) for row in table.rows)
    assert legend(rows) == f"{DEPARTS} {LEGEND[DEPARTS]}; {OLD} {LEGEND[OLD]}"
    text = "\n".join(section(replace(table, rows=rows), "R"))
    assert f") {DEPARTS}{OLD} |" in text and f") {OLD} |" in text
    assert f"{legend(rows)}." in text
    page = html([replace(table, rows=rows)])
    (data,) = [data.decode() for name, data in page.items() if name.startswith("tables/toy--")]
    assert data.count(LEGEND[OLD]) == 2
    assert all(words in page["index.html"].decode() for words in LEGEND.values())
