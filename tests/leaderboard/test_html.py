"""The leaderboard as a web page: escaped, self-contained, and alive in a real browser."""

from __future__ import annotations

import json
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
from toy import Typed, player

from flbench.leaderboard.html import csp_source, html
from flbench.leaderboard.table import Table, tables
from flbench.results.files import result_path, write_atomically
from flbench.results.schema import Result, Tuning

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


class Seen(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_nothing_from_a_result_file_becomes_markup(found: list[Table]) -> None:
    page = html(found)
    seen = Seen(page)
    assert EVIL not in page
    assert "&lt;img src=x onerror=" in page
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert [attrs.get("type") for tag, attrs in seen.tags if tag == "script"] == [
        "application/json", None,
    ]  # fmt: skip


def test_the_page_asks_for_nothing_else(found: list[Table]) -> None:
    page = html(found)
    for _, attrs in Seen(page).tags:
        assert not {"src", "srcset", "data", "action"} & {*attrs}
        assert (attrs.get("href") or "#").startswith("#")
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", page)


def test_every_table_can_be_read_without_a_script(found: list[Table]) -> None:
    page = html(found)
    seen = Seen(page)
    assert page.count("<tbody>") == page.count("<caption>") == 4, "one across tables"
    heads = [attrs for tag, attrs in seen.tags if tag == "th"]
    assert all(attrs.get("scope") in ("col", "row") for attrs in heads)
    assert "0.9000" in page
    labels = [attrs.get("aria-labelledby") for tag, attrs in seen.tags if tag == "section"]
    ids = {attrs["id"] for _, attrs in seen.tags if "id" in attrs}
    assert set(labels) <= ids
    fields = [attrs for tag, attrs in seen.tags if tag in ("input", "select")]
    assert len(fields) == page.count("<label>") == 6


def test_curves_are_means_over_seeds_of_measured_rounds(found: list[Table]) -> None:
    (text,) = re.findall(r'id="curves">(.*?)</script>', html(found))
    curves = json.loads(text)
    (rows,) = [table for table in curves.values() if len(table) == 4]
    assert sorted(rows.values()) == [[[1, 0.1], [3, value]] for value in (0.2, 0.55, 0.7, 0.9)]


def test_a_row_that_was_never_measured_has_no_curve(found: list[Table]) -> None:
    table = max(found, key=lambda table: len(table.rows))
    results = [one.model_copy(update={"curves": {}}) for one in table.rows[0].results]
    rows = (replace(table.rows[0], results=results), *table.rows[1:])
    (text,) = re.findall(r'id="curves">(.*?)</script>', html([replace(table, rows=rows)]))
    (curves,) = json.loads(text).values()
    assert sorted(curves) == [str(place) for place in range(1, len(rows))]


def test_the_same_tables_give_the_same_bytes(found: list[Table]) -> None:
    assert html(found) == html(found)


# --- in a browser -----------------------------------------------------------------------------

PRELUDE = """
const said = [];
const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const section = every("section").find((one) => every("tbody tr", one).length === 4);
const body = section.querySelector("tbody");
const named = (row) => row.cells[+row.dataset.name].textContent;
const names = () => [...body.rows].filter((row) => !row.hidden).map(named);
const head = (name) => every("thead button", section).find((one) => one.textContent === name);
const field = (name) => document.querySelector(`[name=${name}]`);
const input = (one) => one.dispatchEvent(new Event("input", {bubbles: true}));
const type = (name, value) => { field(name).value = value; input(field(name)); };
const tick = (name, on) => { field(name).checked = on; input(field(name)); };
const visible = () => every("section tbody tr").filter((row) => row.offsetParent !== null).length;
const panel = document.getElementById("curve");
const point = (row) => row.cells[0].dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", {key}));
"""


def with_script(page: str, script: str, allowed: bool = True) -> str:
    """The page with one more script at its end, which its policy allows or does not."""
    if allowed:
        page = page.replace("script-src ", f"script-src {csp_source(script)} ", 1)
    return page.replace("</body>", f"<script>{script}</script></body>")


def in_browser(page: str, folder: Path, script: str) -> Any:
    """What a script in the page says, run by a headless Chromium without a network."""
    assert CHROMIUM is not None
    code = f"(() => {{{PRELUDE}{script}\ndocument.body.dataset.said = JSON.stringify(said); }})();"
    path = folder / "page.html"
    path.write_text(with_script(page, code), encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
            "--window-size=1400,2000", "--virtual-time-budget=3000", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    seen = Seen(done.stdout)
    (said,) = [attrs["data-said"] for tag, attrs in seen.tags if "data-said" in attrs]
    assert said is not None
    return json.loads(said)


@needs_browser
@pytest.mark.slow
def test_headings_sort_numbers_by_size_and_words_by_alphabet(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        head("accuracy").click(); said.push(names());
        said.push(head("accuracy").closest("th").getAttribute("aria-sort"));
        head("accuracy").click(); said.push(names());
        head("method").click(); said.push(names());
        said.push(head("accuracy").closest("th").getAttribute("aria-sort"));
        """,
    )
    assert said == [
        ["bad", EVIL, "good"], "ascending", ["good", EVIL, "bad"],
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
        const count = () => [visible(), document.getElementById("count").textContent];
        said.push(count());
        type("method", "goo BAD"); said.push(count());
        type("method", "nothing"); said.push(count());
        type("method", ""); tick("tuned", false); said.push(count());
        type("dataset", "other"); said.push(count());
        """,
    )
    expected = [(5, "5 rows"), (2, "2 rows"), (0, "0 rows"), (4, "4 rows"), (1, "1 rows")]
    assert [tuple(one) for one in said] == expected


@needs_browser
@pytest.mark.slow
def test_pointing_at_a_row_or_moving_to_it_draws_its_curve(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found),
        tmp_path,
        """
        said.push(panel.hidden);
        point(body.rows[0]);
        said.push(panel.hidden, every("path", panel).length, panel.textContent.slice(0, 14));
        said.push(panel.querySelector("svg").getAttribute("aria-label"));
        press("Escape"); said.push(panel.hidden);
        const button = body.rows[2].querySelector("button"); said.push(button.tabIndex);
        button.dispatchEvent(new FocusEvent("focusin", {bubbles: true})); said.push(panel.hidden);
        """,
    )
    drawn = [4, "good: accuracy", "accuracy of 0.9 in round 3"]
    assert said == [True, False, *drawn, True, 0, False], "a window out of focus fires no focusin"


@needs_browser
@pytest.mark.slow
def test_what_a_result_file_holds_does_nothing_in_a_browser(
    found: list[Table], tmp_path: Path
) -> None:
    said = in_browser(
        html(found), tmp_path, "point(body.rows[1]); said.push(document.title, names()[1]);"
    )
    assert said == ["flbench leaderboard", EVIL]


@needs_browser
@pytest.mark.slow
def test_a_script_that_is_not_the_pages_is_not_run(found: list[Table], tmp_path: Path) -> None:
    evil = "document.body.dataset.evil = 'evil'"
    said = in_browser(
        with_script(html(found), evil, allowed=False),
        tmp_path,
        "said.push(document.body.dataset.evil ?? 'nothing', visible());",
    )
    assert said == ["nothing", 5]


def test_the_policy_allows_the_pages_own_style_and_script_alone(found: list[Table]) -> None:
    page = html(found)
    (policy,) = re.findall(r'Security-Policy" content="([^"]*)"', page)
    style, script = (re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in TAGS)
    assert policy == (
        f"default-src 'none'; style-src {csp_source(style[0])}; script-src {csp_source(script[0])};"
        " form-action 'none'; base-uri 'none'"
    )
    assert len(style) == len(script) == 1
    assert " style=" not in page
    assert " on" not in {f" {name[:2]}" for _, attrs in Seen(page).tags for name in attrs}


@needs_browser
@pytest.mark.slow
def test_the_page_of_all_committed_results_is_alive(tmp_path: Path) -> None:
    root = Path(__file__).parents[2] / "leaderboard" / "results"
    found = tables(root)
    page = html(found)
    rows = sum(len(table.rows) for table in found)
    tail = "document.body.dataset.said = document.getElementById('count').textContent"
    assert CHROMIUM is not None
    path = tmp_path / "page.html"
    path.write_text(with_script(page, tail), encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert f'data-said="{rows} rows"' in done.stdout


# --- the command ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_the_page(typed: Typed, found: list[Table]) -> None:
    root = Path(__file__).parents[2] / "leaderboard" / "results" / "rotated"
    code, said, _ = typed("leaderboard", "--results", str(root), "--html", "--out", "board")
    assert code == 0
    assert "board/index.html" in said
    assert Path("board/index.html").read_text(encoding="utf-8") == html(tables(root))
    assert not Path("board/README.md").exists()


@pytest.mark.slow
def test_check_says_whether_the_page_is_current(tmp_path: Path, typed: Typed) -> None:
    write(tmp_path / "results", listed(0.5))
    words = ("leaderboard", "--results", str(tmp_path / "results"), "--html", "--out", "board")
    line = f"flbench: board/index.html is not what {tmp_path / 'results'} gives;"
    assert typed(*words, "--check") == (1, "", f"{line} run flbench leaderboard --html\n")
    assert not Path("board").exists()
    typed(*words)
    before = Path("board/index.html").read_bytes()
    assert typed(*words, "--check") == (0, "board/index.html is current\n", "")
    write(tmp_path / "results", listed(0.6, seed=1))
    code, said, wrong = typed(*words, "--check")
    assert (code, said, wrong.count("\n")) == (1, "", 1)
    assert Path("board/index.html").read_bytes() == before


def test_a_folder_that_is_not_there_empties_no_board(tmp_path: Path, typed: Typed) -> None:
    for word in ("--html", "--figures", "--check"):
        code, said, wrong = typed("leaderboard", "--results", "nowhere", word)
        assert (code, said) == (1, "")
        assert wrong == (
            "flbench: --results: expected a folder of result files, there is no 'nowhere'\n"
        )
