"""The leaderboard as a web page: escaped, light, self-contained, and alive in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_results import made as listed
from made_results import write
from mentions import mentioning, mentions
from toy import Typed, player

from flbench.leaderboard.audited import with_audits
from flbench.leaderboard.headings import with_headings
from flbench.leaderboard.html import FOLDER, PAGE, START, csp_source, html
from flbench.leaderboard.links import linked
from flbench.leaderboard.markdown import columns
from flbench.leaderboard.row_details import AUDITS, details, runs_of
from flbench.leaderboard.signs import LEGEND, OLD
from flbench.leaderboard.table import Table, tables
from flbench.results.audits import LOG, Audit, content_digest, read_audits, run_key
from flbench.results.files import result_path, write_atomically
from flbench.results.schema import Result, Tuning
from flbench.tasks import TASKS

RUNS = runs_of(TASKS["classes"])
TAGS = ("style", "script")
EVIL = '<img src=x onerror="document.title=1">&amp;</script>'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def made(result: Result, accuracy: float, method: str, **changes: Any) -> Result:
    """A result of a method that never ran; all clients are as accurate."""
    (plugin,) = result.method.plugins
    own = plugin.model_copy(update={"name": method, "baseline": False})
    clients = result.clients.model_copy(
        update={"correct": [round(accuracy * 100)] * 6, "test": [100] * 6}
    )
    summary = {**result.summary, "accuracy_mean": accuracy, "mb_per_client": accuracy * 10}
    described = result.method.model_copy(update={"name": method, "plugins": [own], "params": {}})
    marks = result.fingerprint.model_copy(update={"config": f"c-{len(method)}"})
    return result.model_copy(
        update={
            "method": described, "clients": clients, "summary": summary, "fingerprint": marks,
            "curves": {"accuracy": [0.1, None, accuracy]}, **changes,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    toy = player(tmp_path_factory.mktemp("toy"))("fedavg").result
    folder = tmp_path_factory.mktemp("results")
    tuned = Tuning(budget=7, tried=7, seeds=[1000], score="accuracy_validation")
    mark = toy.fingerprint
    for at, one in enumerate(
        (
            made(toy, 0.9, "good"),
            made(toy, 0.2, "bad"),
            made(toy, 0.55, EVIL),
            made(toy, 0.7, "searched", tuning=tuned),
            made(toy, 0.4, "elsewhere").model_copy(
                update={
                    "dataset": "other",
                    "fingerprint": mark.model_copy(update={"suite": "0ther000", "config": "e"}),
                }
            ),
        )
    ):
        path = result_path(folder, "s", one.dataset, f"m{at}", f"c{at}", one.seed)
        write_atomically(path, one.canonical().encode())
    return tables(folder)


def rows_of(files: dict[str, bytes]) -> dict[str, Any]:
    """What the files of rows hold, by the part of the page."""
    found = {}
    for name, data in files.items():
        if name != PAGE:
            assert data.startswith(START)
            assert data.endswith(b");\n")
            section, table = json.loads(b"[" + data[len(START) : -3] + b"]")
            assert name == f"{FOLDER}/{section}.js"
            found[section] = table
    return found


def main_rows(files: dict[str, bytes]) -> dict[str, Any]:
    """The rows of the largest table at defaults, by name."""
    grid = max(
        (grid for table in rows_of(files).values() for grid in table["grids"] if "runs" in table),
        key=lambda grid: len(grid["rows"]),
    )
    return {row["cells"][grid["name"]]: row for row in grid["rows"]}


def page_of(found: list[Table]) -> str:
    return html(found)[PAGE].decode()


class Seen(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_nothing_from_a_result_file_becomes_markup(found: list[Table]) -> None:
    files = html(found)
    page = files[PAGE].decode()
    seen = Seen(page)
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert [attrs.get("type") for tag, attrs in seen.tags if tag == "script"] == [
        "application/json", None,
    ]  # fmt: skip
    assert EVIL in main_rows(files)
    assert page.count("</script>") == 2, "those of the page"
    assert not [name for name, data in files.items() if name != PAGE and b"<" in data]
    evil = replace(found[0], suite=EVIL, settings={**found[0].settings, "paper": EVIL})
    page = page_of([evil])
    assert not [tag for tag, _ in Seen(page).tags if tag == "img"]
    assert page.count("&lt;img src=x onerror=") > 2


def test_the_page_asks_for_nothing_but_its_rows(found: list[Table]) -> None:
    files = html(found)
    page = files[PAGE].decode()
    asked = []
    for _, attrs in Seen(page).tags:
        assert not {"src", "srcset", "data", "action"} & {*attrs}
        assert (attrs.get("href") or "#").startswith("#")
        asked += [value for name, value in attrs.items() if name == "data-file"]
    assert sorted(map(str, asked)) == sorted(name for name in files if name != PAGE)
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(|innerHTML|eval\(", page)


def test_the_page_alone_says_which_tables_there_are_and_who_leads(found: list[Table]) -> None:
    page = page_of(
        [replace(one, rows=tuple(replace(r, rank=1) for r in one.rows)) for one in found]
    )
    seen = Seen(page)
    assert page.count("<details id=") == 4, "how to read, one across"
    assert page.count("<summary>") == 5, "and the kind that both tables are of"
    assert "4 rows; best ranked: good 0.9000" in page
    assert "1 row; best ranked: elsewhere 0.4000" in page
    fields = [attrs for tag, attrs in seen.tags if tag in ("input", "select")]
    assert len(fields) == page.count("<label>") == 6
    assert "<noscript>" in page


def test_curves_are_means_over_seeds_of_measured_rounds(found: list[Table]) -> None:
    curves = [row["about"]["curve"] for row in main_rows(html(found)).values()]
    assert sorted(curves) == [[[1, 0.1], [3, value]] for value in (0.2, 0.55, 0.9)]


def test_a_row_that_was_never_measured_has_no_curve(found: list[Table]) -> None:
    table = max(found, key=lambda table: len(table.rows))
    results = [one.model_copy(update={"curves": {}}) for one in table.rows[0].results]
    rows = (replace(table.rows[0], results=results), *table.rows[1:])
    shown = main_rows(html([replace(table, rows=rows)]))
    assert [name for name, row in shown.items() if "curve" not in row["about"]] == ["good"]


def test_the_same_tables_give_the_same_bytes(found: list[Table]) -> None:
    assert html(found) == html(found)


def test_a_row_opens_to_runs_files_code_paper_and_audits(tmp_path: Path) -> None:
    one = listed(0.5, method="cfl", plugin={"source": "0ld"}, params={"eps1": 0.5, "b": None})
    write(tmp_path / "results", one, listed(0.7, method="cfl", plugin={"source": "0ld"}, seed=1,
          params={"eps1": 0.5, "b": None}))  # fmt: skip
    (table,) = linked(tables(tmp_path / "results"))
    audit = Audit(
        file="f", run=run_key(one), digest=content_digest(table.rows[0].results[0]),
        outcome="differs", how="curves",
        rounds=3, whole=True, tolerance=0.01, seconds=1.0, date="2026-01-02", flbench="0.2.0",
        torch="2.13", sources={"cfl": "n3w"},
    )  # fmt: skip
    (row,) = main_rows(html([table], "../the results", [audit])).values()
    about = row["about"]
    runs = [dict(zip(RUNS, run, strict=True)) for run in about["runs"]]
    assert [(run["seed"], run["accuracy"], run["file"]) for run in runs] == [
        ("0", "0.5000", "seed-0.json"), ("1", "0.7000", "seed-1.json"),
    ]  # fmt: skip
    assert runs[0]["code"] == "0ld (installed: another)"
    assert about["folder"] == "5u1te000/toy/toy/cfl/c-cfl-5u1te000"
    assert about["files"][1] == f"../the%20results/{about['folder']}/seed-1.json"
    assert about["params"] == [["b", "none"], ["eps1", "0.5"]]
    (plugin,) = about["plugins"]
    assert plugin["package"] == "flbench 1.0"
    assert plugin["source"] == "0ld"
    assert "Sattler" in plugin["paper"]
    assert plugin["departs"].startswith("uniform means by default")
    assert [dict(zip(AUDITS, one, strict=True)) for one in about["audits"]] == [
        {
            "seed": "0", "date": "2026-01-02", "outcome": "differs: curves", "rounds": "3",
            "flbench": "0.2.0", "core": "-", "torch": "2.13", "code": "n3w",
        }
    ]  # fmt: skip
    assert "notes" not in about, "nobody knows of cores"
    earlier = audit.model_copy(update={"digest": "0" * 64, "whole": False})
    (row,) = main_rows(html([table], "results", [earlier])).values()
    assert row["about"]["audits"][0][2:4] == [mentioning("differs", "curves"), "the first 3"]


@pytest.mark.parametrize(
    ("environments", "core", "said"),
    [
        (({"core": "aa"}, {"core": "aa"}), None, "computed by aa; seconds measured with aa"),
        (({"core": "bb"}, {"core": "aa"}), "cc",
         "computed by aa and bb; last replayed by cc, 2026-01-02; seconds measured with aa and bb"),
        (({"core": "aa"}, {}), None, "computed by aa and one that older files do not name;"
         " seconds measured with aa and one that older files do not name"),
        (({}, {}), "cc", "computed by one that older files do not name; last replayed by cc,"
         " 2026-01-02; seconds measured with one that older files do not name"),
        (({"core": "aa", "device": "cuda:0"}, {"core": "bb", "device": "cpu"}), None,
         "computed by aa and bb; seconds measured with bb"),
    ],
)  # fmt: skip
def test_a_row_says_which_cores_computed_replayed_and_timed_it(
    environments: tuple[dict[str, str], ...], core: str | None, said: str, tmp_path: Path
) -> None:
    """Of the last one, the seed on the CPU is the faster."""
    for seed, environment in enumerate(environments):
        one = listed(0.5, seed=seed, seconds=9.0 - seed)
        write(tmp_path / "results", one.model_copy(update={"environment": environment}))
    (table,) = linked(tables(tmp_path / "results"))
    (result, _) = table.rows[0].results
    audit = Audit(
        file="f", run=run_key(result), digest=content_digest(result), outcome="agrees", rounds=3,
        whole=True, tolerance=0.01, seconds=1.0, date="2026-01-02", flbench="0.2.0", torch="2.13",
        sources={}, core=core,
    )  # fmt: skip
    (row,) = main_rows(html([table], "results", [audit] if core else [])).values()
    assert row["about"]["notes"] == [f"Core: {said}."]


@pytest.mark.parametrize(
    ("known", "machine"),
    [
        ({"machine": "x86_64", "processor": "AuthenticAMD AVX2"}, "AuthenticAMD AVX2"),
        ({"machine": "x86_64"}, "x86_64"),
    ],
)
def test_a_run_says_on_which_processor_it_was(
    known: dict[str, str], machine: str, found: list[Table]
) -> None:
    (table,) = [one for one in found if len(one.rows) == 4]
    row = table.main[0]
    results = [one.model_copy(update={"environment": known}) for one in row.results]
    about = details(replace(row, results=tuple(results)), "results", {})
    assert {run[RUNS.index("machine")] for run in about["runs"]} == {machine}


def test_rows_whose_seeds_are_uneven_are_marked(found: list[Table]) -> None:
    (table,) = [one for one in found if len(one.rows) == 4]
    row = table.main[0]
    seeds = [
        made(row.results[0], accuracy, row.method, seed=at)
        for at, accuracy in enumerate((0.9, 0.5, 0.91, 0.9))
    ]
    cell = next(of for heading, _, of in columns([row]) if heading == "95 % interval")
    for count, marked in ((3, False), (4, True)):
        one = replace(row, results=tuple(seeds[:count]), files=row.files[:1] * count)
        assert one.uneven is marked
        assert cell(one).endswith(" (uneven seeds)") is marked
        notes = details(one, "results", {}).get("notes", [])
        assert any(note.startswith("Uneven seeds") for note in notes) is marked


def test_the_page_and_the_markdown_pages_have_the_same_tables(found: list[Table]) -> None:
    (table,) = [one for one in found if len(one.rows) == 4]
    (grids,) = [one["grids"] for one in rows_of(html([table])).values()]
    for grid, rows in zip(grids, (table.main, table.tuned), strict=True):
        known = {row.method: row.mean for row in table.main} if rows == table.tuned else None
        made = columns(rows, known)
        headings = [heading for heading, _ in grid["columns"]]
        assert {"decile gap"} >= {*headings} - {heading for heading, _, _ in made}
        for line, row in zip(grid["rows"], rows, strict=True):
            shown = dict(zip(headings, line["cells"], strict=True))
            assert all(shown[heading] == of(row) for heading, _, of in made)


@pytest.mark.slow
@pytest.mark.long
def test_five_thousand_rows_are_under_half_a_megabyte_and_loaded_by_table(
    found: list[Table],
) -> None:
    (table,) = [one for one in found if len(one.rows) == 4]
    row = table.main[0]
    curves = {"accuracy": [0.5 + k / 1000 for k in range(200)]}
    results = tuple(
        row.results[0].model_copy(update={"curves": curves, "seed": seed}) for seed in range(4)
    )
    many = [
        replace(
            table, suite=f"suite-{number}", fingerprint=f"{number:08x}",
            rows=tuple(
                replace(row, name=f"method-{k} (parameter={number})", results=results,
                        files=tuple(f"a/folder/of/files/seed-{s}.json" for s in range(4)))
                for k in range(125)
            ),
        )
        for number in range(40)
    ]  # fmt: skip
    files = html(many)
    assert sum(len(one.rows) for one in many) == 5000
    assert len(files[PAGE]) < 500_000
    loaded = [len(data) for name, data in files.items() if name != PAGE]
    assert len(loaded) >= 40
    assert max(loaded) < 500_000
    assert sum(loaded) > 2_000_000, "they are not in the page"


# --- in a browser -----------------------------------------------------------------------------

PRELUDE = """
const said = [];
const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const section = every("details[data-suite]").find((one) => one.textContent.includes("4 rows"));
const body = () => section.querySelector("tbody");
const rows = () => every("tr[data-kind]", body()).filter((row) => !row.hidden);
const named = (row) => row.querySelector("th button").textContent;
const names = () => rows().map(named);
const head = (name) => every("thead button", section).find((one) => one.textContent === name);
const field = (name) => document.querySelector(`[name=${name}]`);
const input = (one) => one.dispatchEvent(new Event("input", {bubbles: true}));
const type = (name, value) => { field(name).value = value; input(field(name)); };
const tick = (name, on) => { field(name).checked = on; input(field(name)); };
const count = () => document.getElementById("count").textContent;
const open = (one) => new Promise((done) => {
  one.closest("details.kind")?.setAttribute("open", "");
  one.open = true;
  load(one, done);
});
const button = (row) => row.querySelector("th button");
const until = async (done) => {
  for (let k = 0; k < 99 && !done(); k++) await new Promise((go) => setTimeout(go, 20));
};
"""


def with_script(page: str, script: str, allowed: bool = True) -> str:
    """The page with one more script at its end, which its policy allows or does not."""
    if allowed:
        page = page.replace("script-src ", f"script-src {csp_source(script)} ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def in_browser(
    files: dict[str, bytes], folder: Path, script: str, evil: str = "", width: int = 1400
) -> Any:
    """What a script in the page says, run by a headless Chromium without a network.

    `evil` is one more script, which the page's policy does not know.
    """
    assert CHROMIUM is not None
    code = (
        f"(async () => {{{PRELUDE}{script}\n"
        "document.body.dataset.said = JSON.stringify(said); })();"
    )
    page = files[PAGE].decode()
    page = with_script(page, evil, allowed=False) if evil else page
    for name, data in {**files, PAGE: with_script(page, code).encode()}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},2000", "--virtual-time-budget=5000", "--dump-dom",
            (folder / PAGE).as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    seen = Seen(done.stdout)
    (said,) = [attrs["data-said"] for tag, attrs in seen.tags if "data-said" in attrs]
    assert said is not None
    return json.loads(said)


@needs_browser
@pytest.mark.slow
def test_rows_are_loaded_when_a_table_is_opened(found: list[Table], tmp_path: Path) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        const tables = () => every(".rows table").length;
        said.push(every("script[src]").length, tables(), count());
        await open(section);
        said.push(every("script[src]").length, tables(), names().sort());
        said.push(every("th", section).every((one) => ["col", "row"].includes(one.scope)));
        said.push(every("caption", section).map((one) => one.textContent));
        const label = (one) => one.getAttribute("aria-label");
        said.push(every(".wide", section).map((one) => [one.tabIndex, label(one)]));
        await open(section);
        said.push(every("script[src]").length);
        """,
    )
    title = next(table.title for table in found if len(table.rows) == 4)
    assert said == [
        0, 0, "5 rows in 2 tables",
        1, 2, sorted([EVIL, "bad", "good"]),
        True, ["at defaults", "tuned, budget 7"],
        [[0, f"{title}, at defaults"], [0, f"{title}, tuned, budget 7"]],
        1,
    ]  # fmt: skip


@needs_browser
@pytest.mark.slow
def test_a_file_of_rows_that_is_missing_is_told(found: list[Table], tmp_path: Path) -> None:
    said = in_browser(
        {PAGE: html(found)[PAGE]},
        tmp_path,
        """
        section.open = true;
        await until(() => every("[role=alert]").length);
        said.push(every("[role=alert]").map((one) => one.textContent));
        """,
    )
    ((told,),) = said
    assert mentions(told, "loaded", "beside")


@needs_browser
@pytest.mark.slow
def test_headings_sort_numbers_by_size_and_words_by_alphabet(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        await open(section);
        const row = rows().find((one) => named(one) === "good");
        button(row).click();
        head("accuracy").click(); said.push(names());
        said.push(head("accuracy").closest("th").getAttribute("aria-sort"));
        head("accuracy").click(); said.push(names());
        said.push(row.nextSibling.classList.contains("opened"));
        head("method").click(); said.push(names());
        said.push(head("accuracy").closest("th").getAttribute("aria-sort"));
        """,
    )
    assert said == [
        ["bad", EVIL, "good"], "ascending", ["good", EVIL, "bad"], True,
        [EVIL, "bad", "good"], "none",
    ]  # fmt: skip


@needs_browser
@pytest.mark.slow
def test_filters_narrow_the_tables_and_say_how_much_is_left(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        const told = () => { said.push([count(), rows().length]); };
        await open(section);
        told();
        type("method", "goo BAD"); told();
        type("method", "nothing"); told();
        type("method", ""); tick("tuned", false); told();
        type("dataset", "other"); told(); said.push(section.hidden);
        """,
    )
    assert [tuple(one) for one in said[:-1]] == [
        ("5 rows in 2 tables", 3), ("2 rows in 1 table", 2), ("0 rows in 0 tables", 0),
        ("4 rows in 2 tables", 3), ("1 row in 1 table", 3),
    ]  # fmt: skip
    assert said[-1] is True


@needs_browser
@pytest.mark.slow
def test_a_name_opens_what_is_known_of_a_row_and_closes_it(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found, "R"),
        tmp_path,
        """
        await open(section);
        const row = rows().find((one) => named(one) === "good");
        said.push(button(row).getAttribute("aria-expanded"));
        button(row).click();
        const opened = document.getElementById(button(row).getAttribute("aria-controls"));
        said.push(button(row).getAttribute("aria-expanded"), opened === row.nextSibling);
        said.push(every("path", opened).length);
        said.push(opened.querySelector("svg").getAttribute("aria-label"));
        said.push(every("dt", opened).map((one) => one.textContent));
        const links = every("figure ~ .wide a", opened);
        said.push(links.map((one) => [one.textContent, one.getAttribute("href").slice(0, 4)]));
        said.push(opened.querySelector("caption").textContent);
        button(row).click();
        said.push(button(row).getAttribute("aria-expanded"), rows().length);
        said.push(every(".opened").length);
        """,
    )
    assert said == [
        "false", "true", True, 3, "accuracy of 0.9 in round 3",
        ["package", "code version", "files", "this row"],
        [["seed-0.json", "R/s/"]], "runs of good", "false", 3, 0,
    ]  # fmt: skip


@needs_browser
@pytest.mark.slow
def test_an_address_opens_a_table_and_a_row(found: list[Table], tmp_path: Path) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        const kind = section.closest("details.kind");
        said.push(kind.open);
        location.hash = `${section.id}/c-3`;
        await until(() => every(".opened").length);
        said.push(kind.open, section.open, every("h4").map((one) => one.textContent));
        """,
    )
    assert said == [False, True, True, ["bad"]]


@needs_browser
@pytest.mark.slow
def test_a_kind_of_the_map_opens_its_tables_and_the_map_sorts(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        const lines = () => every("#wins tbody th").map((one) => one.textContent);
        const kind = section.closest("details.kind");
        said.push(lines(), kind.open);
        document.querySelector(`#wins a[href="#${kind.id}"]`).click();
        await until(() => kind.open);
        said.push(kind.open);
        every("#wins thead button").find((one) => one.textContent === "method").click();
        said.push(lines(), kind.open);
        kind.open = false;
        type("method", "good"); said.push(kind.open, kind.hidden);
        type("method", "nobody"); said.push(kind.hidden);
        """,
    )
    assert said == [
        ["good", EVIL, "bad"], False, True, [EVIL, "bad", "good"], True, True, False, True,
    ]  # fmt: skip


@needs_browser
@pytest.mark.slow
def test_a_sign_beside_a_name_says_what_it_means(found: list[Table], tmp_path: Path) -> None:
    (table,) = [one for one in found if len(one.rows) == 4]
    rows = tuple(replace(row, old_core=row.name == "good") for row in table.rows)
    said = in_browser(
        html([replace(table, rows=rows)]),
        tmp_path,
        """
        await open(section);
        said.push(every("abbr", section).map((one) => [one.textContent, one.title]));
        button(rows().find((one) => named(one) === "good")).click();
        said.push(every(".inside p", section).map((one) => one.textContent)[0]);
        """,
    )
    assert said == [[[OLD, LEGEND[OLD]]], f"{OLD} {LEGEND[OLD]}"]


@needs_browser
@pytest.mark.slow
def test_what_a_result_file_holds_does_nothing_in_a_browser(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        await open(section);
        rows().forEach((row) => button(row).click());
        said.push(document.title, names().includes(NAME), every("img").length);
        """.replace("NAME", json.dumps(EVIL).replace("<", "\\u003c")),
    )
    assert said == ["flbench leaderboard", True, 0]


@needs_browser
@pytest.mark.slow
def test_a_script_that_is_not_the_pages_is_not_run(found: list[Table], tmp_path: Path) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        "await open(section); said.push(document.body.dataset.evil ?? 'nothing', rows().length);",
        evil="document.body.dataset.evil = 'evil'",
    )
    assert said == ["nothing", 3]


@needs_browser
@pytest.mark.slow
def test_a_narrow_window_scrolls_the_tables_alone(found: list[Table], tmp_path: Path) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        await open(section);
        button(rows()[0]).click();
        const box = section.querySelector(".wide");
        box.scrollLeft = 400;
        const left = (one) => one.getBoundingClientRect().left;
        const inside = section.querySelector(".inside");
        said.push(innerWidth < 600, document.documentElement.scrollWidth <= innerWidth);
        said.push(box.scrollWidth > box.clientWidth, inside.offsetWidth <= innerWidth);
        said.push(Math.round(left(rows()[0].querySelector("th")) - left(box)));
        """,
        width=500,
    )
    assert said == [True, True, True, True, 0]


def test_the_policy_allows_the_pages_own_style_and_script_and_what_that_loads(
    found: list[Table],
) -> None:
    page = page_of(found)
    (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', page)
    style, script = (re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in TAGS)
    assert policy == (
        f"default-src 'none'; style-src {csp_source(style[0])}; script-src {csp_source(script[0])}"
        " 'strict-dynamic'; form-action 'none'; base-uri 'none'"
    )
    assert len(style) == len(script) == 1
    assert " style=" not in page
    assert " on" not in {f" {name[:2]}" for _, attrs in Seen(page).tags for name in attrs}


@needs_browser
@pytest.mark.slow
def test_the_page_of_all_committed_results_is_alive(tmp_path: Path) -> None:
    root = Path(__file__).parents[2] / "leaderboard" / "results"
    found = with_headings(tables(root))
    files = html(found)
    assert len({table.heading for table in found}) == len(found), "each is told apart"
    assert len(files[PAGE]) < 500_000
    most = max(len(table.rows) for table in found)
    said = in_browser(
        files,
        tmp_path,
        """
        said.push(count());
        for (const one of every("details[data-file]")) await open(one);
        const sizes = every("details[data-suite]").map((one) => every("tr[data-kind]", one).length);
        said.push(Math.max(...sizes));
        said.push(every(".rows").every((one) => one.dataset.state === "loaded"));
        """,
    )
    rows = sum(len(table.rows) for table in found)
    assert said == [f"{rows} rows in {len(found)} tables", most, True]


# --- the command ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_the_page(typed: Typed) -> None:
    root = Path(__file__).parents[2] / "leaderboard" / "results" / "rotated"
    code, said, _ = typed("leaderboard", "--results", str(root), "--html", "--out", "board")
    assert code == 0
    assert "board/index.html" in said
    found = with_audits(linked(with_headings(tables(root)), Path("board")), root.parent / LOG)
    files = html(found, os.path.relpath(root, "board"), read_audits(root.parent / LOG))
    written = {path.relative_to("board").as_posix(): path.read_bytes()
               for path in Path("board").rglob("*.*")}  # fmt: skip
    assert written == files


@pytest.mark.slow
def test_check_says_whether_the_page_is_current(tmp_path: Path, typed: Typed) -> None:
    write(tmp_path / "results", listed(0.5))
    words = ("leaderboard", "--results", str(tmp_path / "results"), "--html", "--out", "board")
    assert typed(*words, "--suite", "toy")[0] == 1, "it is written as a whole"
    line = f"flbench: board/index.html is not what {tmp_path / 'results'} gives;"
    again = f"flbench leaderboard --results {tmp_path / 'results'} --out board --html"
    assert typed(*words, "--check") == (1, "", f"{line} run {again}\n")
    assert not Path("board").exists()
    typed(*words)
    before = Path("board/index.html").read_bytes()
    assert typed(*words, "--check") == (0, "board/index.html is current\n", "")
    for path in Path("board/tables").iterdir():
        (path.parent / "gone.js").write_bytes(path.read_bytes())
    Path("board/tables/own.js").write_text("mine")
    assert typed(*words, "--check")[0] == 1
    typed(*words)
    assert sorted(path.name for path in Path("board/tables").iterdir()) == [
        "own.js", "toy--toy--5u1te000.js",
    ]  # fmt: skip
    write(tmp_path / "results", listed(0.6, seed=1))
    code, said, wrong = typed(*words, "--check")
    assert (code, said, wrong.count("\n")) == (1, "", 1)
    assert Path("board/index.html").read_bytes() == before


def test_a_folder_that_is_not_there_empties_no_board(tmp_path: Path, typed: Typed) -> None:
    for word in ("--html", "--figures", "--check"):
        code, said, wrong = typed("leaderboard", "--results", "nowhere", word)
        assert (code, said) == (1, "")
        assert mentions(wrong, "--results", "folder")
        assert "'nowhere'" in wrong
        assert wrong.count("\n") == 1
