"""What a change of result files does to the leaderboard."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from made_results import made, write
from mentions import mentioning, mentions
from toy import Typed

import flbench
from flbench.leaderboard.changes import changes
from flbench.leaderboard.table import tables
from flbench.results.schema import Result


def seeds(accuracy: float, method: str, count: int = 3) -> list[Result]:
    """A row."""
    return [made(accuracy, method=method, config=method[0], seed=seed) for seed in range(count)]


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """Two rows of three seeds: m at .5, n at .9."""
    return write(tmp_path / "before", *seeds(0.5, "m"), *seeds(0.9, "n"))


@pytest.fixture
def after(tmp_path: Path) -> Path:
    """Row o is new and the best, m has .25 more and a seed more, n is as it was."""
    rows = [*seeds(0.75, "m", 4), *seeds(0.9, "n"), *seeds(1.0, "o|x")]
    return write(tmp_path / "after", *rows)


def test_rows_that_are_new_changed_or_gone(before: Path, after: Path) -> None:
    assert changes(tables(before), tables(after)) == [
        mentioning("toy.md", "leaderboard"),
        "",
        "### toy on toy [5u1te000]",
        "",
        "| row | before | now | change | place by accuracy | rank | cannot be told apart from |",
        "|---|---:|---:|---:|---:|---:|---|",
        "| o\\|x | - | 1.0000 (1.0000 to 1.0000), 3 seeds | - | 1 of 3 | 1 | none |",
        "| m | 0.5000 (0.5000 to 0.5000), 3 seeds | 0.7500 (0.7500 to 0.7500), 4 seeds |"
        " +0.2500 | 3 of 3 | 3 | none |",
        "",
        mentioning("n (1 to 2)"),
    ]
    gone = changes(tables(after), tables(before))
    assert "| o\\|x | 1.0000 (1.0000 to 1.0000), 3 seeds | - | - | - | gone | none |" in gone
    assert gone[-1] == mentioning("n (2 to 1)")


def test_a_table_that_is_new_or_gone_is_all_of_it(before: Path) -> None:
    for old, new in (([], tables(before)), (tables(before), [])):
        found = changes(old, new)
        assert len([line for line in found if line.startswith(("| m", "| n"))]) == 2
        assert found[-1] == "Other ranks that change: none."
    assert changes(tables(before), tables(before)) == [mentioning("No row", "changes")]


def git(*words: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *person, *words], check=True, capture_output=True)


@pytest.mark.slow
def test_the_command_compares_with_a_folder_or_a_revision(
    before: Path, after: Path, typed: Typed
) -> None:
    code, said, _ = typed("submit", "--diff", str(before), "--results", str(after))
    assert (code, said.splitlines()[0]) == (0, mentioning("toy.md", "leaderboard"))
    git("init", "-q", ".")
    write(Path("board"), made(0.5, method="m"))
    git("add", "board")
    git("commit", "-q", "-m", "one row")
    assert typed("submit", "--diff", "HEAD", "--results", "board")[1].startswith("No row")
    write(Path("board"), made(0.9, method="n"))
    for results in ("board", str(Path("board").resolve())):
        assert "| n | - | 0.9000" in typed("submit", "--diff", "HEAD", "--results", results)[1]
    code, _, error = typed("submit", "--diff", "HEAD", "--results", "..")
    assert (code, error.count("\n")) == (1, 1)
    assert mentions(error, "--diff HEAD", "results")
    for more in (("row.json",), ("--check",), ("--new-table",)):
        code, said, error = typed("submit", "--diff", "HEAD", "--results", "board", *more)
        assert (code, said) == (1, "")
        assert mentions(error, "--diff only prints", "--check")


@pytest.mark.slow
def test_the_log_of_audits_is_only_appended_to(typed: Typed) -> None:
    def said(base: str) -> str:
        return typed("submit", "--diff", base, "--results", "board/results")[1].splitlines()[-1]

    write(Path("old/results"), made(0.5))
    log = Path("board/audits.jsonl")
    write(Path("board/results"), made(0.5))
    git("init", "-q", ".")
    git("add", ".")
    git("commit", "-q", "-m", "no log")
    log.write_text("a\n")
    for base in ("HEAD", "old/results"):
        assert said(base) == mentioning("1", "audits")
    git("add", ".")
    git("commit", "-q", "-m", "a log")
    assert said("HEAD") == mentioning("No row", "changes")
    log.write_text("a\nb\nc\n")
    assert said("HEAD") == mentioning("2", "audits")
    for other in ("b\n", ""):
        log.write_text(other)
        assert mentions(said("HEAD"), "**Lines", "changed")


@pytest.mark.slow
def test_names_and_code_that_are_not_those_installed_are_told_of_new_files(typed: Typed) -> None:
    """Also of files that were copied into place by hand."""
    for folder in ("old/results", "board/results"):
        write(Path(folder), made(0.5, method="FedProx"))
    write(Path("board/results"), made(0.6, method="FedAvg"))
    write(Path("board/results"), made(0.6, method="flis-dc", version=flbench.__version__))
    said = typed("submit", "--diff", "old/results", "--results", "board/results")[1]
    first, second = (line for line in said.splitlines() if line.startswith("**"))
    assert mentions(first, "FedAvg", "fedavg")
    assert f"flis-dc of flbench {flbench.__version__} has the source " in second


@pytest.mark.parametrize("base", ["no-such-thing", "--output=x"])
def test_what_is_no_revision_is_one_line(base: str, typed: Typed) -> None:
    code, _, error = typed("submit", f"--diff={base}")
    assert (code, error.count("\n")) == (1, 1)
    assert mentions(error, f"--diff {base}", "folder", "leaderboard/results")
    assert not Path("x").exists()
    assert mentions(typed("submit")[2], "result files", "--diff BASE")
