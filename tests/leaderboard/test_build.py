"""The board's files: what is written, what is drawn, what --check says."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from made_results import made, write
from mentions import mentioning, mentions

from flbench import figures
from flbench.cli.main import main
from flbench.leaderboard.build import board, differences, is_overview
from flbench.leaderboard.table import tables
from flbench.leaderboard.table_figures import MOST, shown

KINDS = ("curves", "pareto", "clients", "partition", "scores", "memberships")


class Fake:
    """Stands in for the figures: says what it was given, and draws what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
        self.calls: dict[str, list[tuple[Any, ...]]] = {}
        for kind in (*KINDS, "critical_difference", "clustering_gain"):
            monkeypatch.setattr(figures, kind, self.drawn(kind, kind in kinds))

    def drawn(self, kind: str, able: bool) -> Any:
        def draw(*args: Any) -> bytes | None:
            self.calls.setdefault(kind, []).append(args)
            size = 'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 20"'
            return f"<svg {size}><desc>{kind}</desc></svg>".encode() if able else None

        return draw


def three(folder: Path) -> Path:
    """Three methods on two tables of two suites."""
    places = (("1" * 8, "one"), ("2" * 8, "two"))
    return write(
        folder,
        *[
            made(accuracy, method=method, mark=mark, suite={"name": name})
            for mark, name in places
            for method, accuracy in (("a", 0.9), ("b", 0.8), ("c", 0.7))
        ],
    )


def test_the_board_is_an_index_a_page_per_suite_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(monkeypatch, "curves", "scores", "partition", "critical_difference")
    files = board(three(tmp_path / "results"), tmp_path)
    assert sorted(files) == [
        "README.md",
        "figures/critical-difference.svg",
        "figures/one--toy--partition.svg",
        "figures/one--toy--rows.svg",
        "figures/two--toy--partition.svg",
        "figures/two--toy--rows.svg",
        "one.md",
        "overview.md",
        "two.md",
    ]
    parts = re.findall(r"<desc>(.*?)</desc>", files["figures/one--toy--rows.svg"].decode())
    assert parts == ["curves", "scores"], "what cannot be drawn is not shown"
    page = files["one.md"].decode()
    assert "](figures/one--toy--rows.svg)" in page
    assert "](results/11111111/one/toy/a/c-a-11111111)" in page
    across = files["overview.md"].decode()
    assert "](figures/critical-difference.svg)" in across
    assert "## At defaults: 3 methods on 2 tables" in across
    assert all(f"| {name} | {rank}.00 |" in across for rank, name in enumerate("abc", 1))
    ((ranks, distance, blocks, _),) = fake.calls["critical_difference"]
    assert ranks == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert distance == pytest.approx(2.343 * (12 / 12) ** 0.5, abs=1e-3)
    assert blocks == 2
    ((rows, title), _) = fake.calls["curves"]
    assert title == "one on toy"
    assert [(name, [one.seed for one in results]) for name, results in rows] == [
        ("a", [0]), ("b", [0]), ("c", [0]),
    ]  # fmt: skip
    assert [(name, len(results)) for name, results in fake.calls["scores"][0][0]] == [
        ("a", 1), ("b", 1), ("c", 1),
    ]  # fmt: skip


def test_a_figure_shows_the_best_and_those_they_are_measured_by(tmp_path: Path) -> None:
    many = [made(0.4 + n / 100, method=f"m{n:02}") for n in range(20)]
    measures = [
        made(0.1, method="o", plugin={"uses_true_groups": True}),
        made(0.2, method="f", plugin={"baseline": True}),
        made(0.3, method="l", plugin={"baseline": True}, alone=True),
        made(0.99, method="o+m", plugin={"uses_true_groups": True}),
    ]
    (table,) = tables(write(tmp_path, *many, *measures))
    names = [row.name for row in shown(table)]
    assert names == [f"m{n:02}" for n in range(19, 14, -1)] + ["l", "f", "o"]
    assert len(names) == MOST


def test_a_figure_shows_two_of_many_that_need_nobody_else(tmp_path: Path) -> None:
    many = [made(0.9, method=f"m{n}") for n in range(8)]
    apart = [
        made(0.1 + n / 10, method=f"l{n}", plugin={"baseline": True}, alone=True) for n in range(5)
    ]
    (table,) = tables(write(tmp_path, *many, *apart, made(0.2, plugin={"baseline": True})))
    names = [row.name for row in shown(table)]
    assert names[-3:] == ["l4", "l3", "fedavg"] and len(names) == MOST


def test_tables_of_one_suite_and_data_set_have_figures_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fake(monkeypatch, "curves")
    results = write(tmp_path / "results", made(), made(mark="01234567"))
    files = board(results, tmp_path)
    assert [name for name in files if name.endswith(".svg")] == [
        "figures/toy--toy--01234567--rows.svg",
        "figures/toy--toy--5u1te000--rows.svg",
    ]
    assert all(name in files["toy.md"].decode() for name in files if name.endswith(".svg"))


@pytest.mark.slow
@pytest.mark.long
def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    results = three(tmp_path / "results")
    files = board(results, tmp_path / "board")
    assert files == board(results, tmp_path / "board")
    assert len([name for name in files if name.endswith(".svg")]) >= 3, "really drawn"
    for name, data in files.items():
        assert data.startswith(b"<?xml" if name.endswith(".svg") else b"# ")
        assert str(tmp_path).encode() not in data


def test_an_empty_folder_is_an_index_and_an_overview(tmp_path: Path) -> None:
    assert list(board(tmp_path / "none", tmp_path)) == ["README.md", "overview.md"]


@pytest.mark.slow
def test_a_row_touches_one_page_and_one_figure(tmp_path: Path) -> None:
    """So two pull requests with rows of different suites change no file in common."""
    results = three(tmp_path / "results")
    before = board(results, tmp_path)
    write(results, made(0.95, method="d", mark="1" * 8, suite={"name": "one"}))
    after = board(results, tmp_path)
    changed = [name for name in after if after[name] != before.get(name)]
    strict = [name for name in changed if not is_overview(name)]
    assert strict == ["figures/one--toy--rows.svg", "one.md"]
    assert "overview.md" in changed
    only = board(results, tmp_path, suites=["one"])
    assert only == {name: data for name, data in after.items() if name in only}
    assert {*strict} <= set(only)
    assert not [name for name in only if is_overview(name) or "two" in name]


def test_the_readme_shows_what_clustering_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Fake(monkeypatch, "clustering_gain")
    oracle = made(0.9, method="oracle", plugin={"uses_true_groups": True})
    plain = [made(0.5, plugin={"baseline": True})]
    plain.append(made(0.6, method="local-only", plugin={"baseline": True}, alone=True))
    results = write(tmp_path / "results", oracle, *plain)
    files = board(results, tmp_path)
    assert "figures/what-clustering-gives.svg" in files
    assert "](figures/what-clustering-gives.svg)" in files["overview.md"].decode()


# --- the command ----------------------------------------------------------------------------------


class Typed:
    """The command line in one folder: exit code and what it said."""

    def __init__(self, folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.capsys, self.monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)

    def __call__(self, *options: str) -> tuple[int, str]:
        words = ["flbench", "leaderboard", "--results", "results", "--out", "board", *options]
        self.monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as stop:
            main()
        said = self.capsys.readouterr()
        return int(stop.value.code or 0), said.out + said.err


@pytest.fixture
def typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Typed:
    Fake(monkeypatch, "curves", "critical_difference")
    three(tmp_path / "results")
    return Typed(tmp_path, capsys, monkeypatch)


@pytest.mark.slow
def test_what_was_written_is_current(typed: Typed) -> None:
    assert typed() == (0, mentioning("7 of 7 files", "wrote"))
    assert typed() == (0, mentioning("0 of 7 files", "wrote"))
    assert typed("--check") == (0, "")
    assert "](../results/11111111/one/" in (typed.folder / "board/one.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "options"), [("README.md", ()), ("index.html", ("--html",))])
def test_a_page_by_hand_is_not_written_over(
    typed: Typed, page: str, options: tuple[str, ...]
) -> None:
    mine = typed.folder / "board" / page
    mine.parent.mkdir()
    mine.write_text("my own")
    code, said = typed(*options)
    assert (code, mine.read_text()) == (1, "my own")
    assert mentions(said, f"board/{page}", "not written by flbench leaderboard", "--out")
    assert [path.name for path in mine.parent.rglob("*") if path.is_file()] == [page]
    mine.unlink()
    assert typed(*options)[0] == 0
    assert typed(*options)[0] == 0, "its own pages are"


@pytest.mark.slow
def test_check_names_what_is_missing_differs_or_is_left_over(typed: Typed) -> None:
    typed()
    board = typed.folder / "board"
    (board / "one.md").write_text((board / "one.md").read_text() + "by hand")
    (board / "figures/two--toy--rows.svg").unlink()
    (board / "figures/three--toy--rows.svg").write_text("<svg/>")
    (board / "three.md").write_text((board / "two.md").read_text())
    (board / "notes.md").write_text("mine")
    (board / "figures/mine.svg").write_text("<svg/>")
    assert typed("--check") == (
        1,
        mentioning(
            "flbench leaderboard --results results --out board",
            "figures/two--toy--rows.svg",
            "one.md",
            "three.md",
            "figures/three--toy--rows.svg",
        ),
    )
    assert typed()[0] == 0
    assert typed("--check") == (0, ""), "left-overs are gone"
    assert not (board / "three.md").exists()
    (board / "three.md").write_text((board / "two.md").read_text())
    assert typed() == (0, mentioning("removed 1 of tables that are no more: three.md", "0 of 7"))
    assert (board / "notes.md").read_text() == "mine"
    assert (board / "figures/mine.svg").exists()


@pytest.mark.slow
def test_a_folder_without_results_does_not_empty_the_board(typed: Typed) -> None:
    typed()
    board = typed.folder / "board"
    before = sorted(path.name for path in board.iterdir())
    shutil.rmtree(typed.folder / "results")
    (typed.folder / "results").mkdir()
    code, said = typed()
    assert code == 1
    assert mentions(said, "has no result files", "--results")
    assert sorted(path.name for path in board.iterdir()) == before


@pytest.mark.slow
def test_one_suite_is_written_and_an_overview_may_be_older(typed: Typed) -> None:
    typed()
    write(typed.folder / "results", made(0.95, method="d", mark="1" * 8, suite={"name": "one"}))
    code, said = typed("--check", "--suite", "one")
    assert code == 1
    words = "flbench leaderboard --suite=one --results results --out board"
    assert f"run {words} (differ: one.md)" in said
    assert typed("--suite", "one")[0] == 0
    assert typed("--check") == (
        0, mentioning("overview.md", "flbench leaderboard"),
    )  # fmt: skip
    (typed.folder / "board/figures/critical-difference-9.svg").write_text("<svg/>")
    code, said = typed("--check")
    assert (code, "critical-difference-9.svg" in said) == (0, True), "left over, of the overview"
    assert "figures/two--toy--rows.svg" in (typed.folder / "board/two.md").read_text()
    assert typed("--suite", "three")[0] != 0
    assert typed()[0] == 0
    assert typed("--check") == (0, "")


def test_a_long_list_is_cut(typed: Typed) -> None:
    write(typed.folder / "results", made(suite={"name": "zwei"}, mark="3" * 8))
    code, said = typed("--check")
    assert code == 1
    assert mentions(said, "missing", "one.md", "two.md", "1 more")


@pytest.mark.slow
def test_findings_are_taken_as_they_are(typed: Typed) -> None:
    typed()
    (typed.folder / "board/findings.md").write_text("Nothing is **free**.\n")
    assert typed("--check") == (0, mentioning("README.md", "older"))
    typed()
    text = (typed.folder / "board/README.md").read_text()
    assert "\n## Findings\n\nNothing is **free**.\n" in text
    assert (typed.folder / "board/findings.md").read_text() == "Nothing is **free**.\n"


@pytest.mark.slow
def test_without_figures_pages_show_those_that_lie_there(typed: Typed) -> None:
    assert typed("--no-figures")[1] == mentioning("4 of 4 files", "wrote")
    assert "![" not in (typed.folder / "board/one.md").read_text()
    typed()
    picture = typed.folder / "board/figures/one--toy--rows.svg"
    picture.write_text("another")
    assert typed("--check", "--no-figures") == (0, "")
    typed("--no-figures")
    assert picture.read_text() == "another"
    assert "one--toy--rows.svg" in (typed.folder / "board/one.md").read_text()
    assert "(differ: figures/one--toy--rows.svg)" in typed("--check")[1]


def test_differences_look_at_pages_alone_where_nothing_was_drawn(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/old--toy--rows.svg").write_text("<svg/>")
    assert differences(tmp_path, {}, figures=False) == {}
    assert differences(tmp_path, {}, whole=False) == {}
    assert differences(tmp_path, {}) == {"left over": ["figures/old--toy--rows.svg"]}


def test_of_named_suites_their_figures_alone_are_left_over(tmp_path: Path) -> None:
    (tmp_path / "figures").mkdir()
    for name in (
        "one--toy",
        "one--toy--abc",
        "one--more--toy",
        "one-more--toy",
        "two-x--toy",
    ):
        (tmp_path / f"figures/{name}--rows.svg").write_text("<svg/>")
    for page in ("one", "one--more"):
        (tmp_path / f"{page}.md").write_text("<!-- Generated by `flbench leaderboard` -->")
    left = ["figures/one--toy--abc--rows.svg", "figures/two-x--toy--rows.svg"]
    files = {"figures/one--toy--rows.svg": b"<svg/>"}
    assert differences(tmp_path, files, whole=False, suites=["one", "two:x"])["left over"] == left
