"""`flbench plot`: which results share a figure, what is written, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import made_results
import pytest
from drawn_results import SVG, full, made, texts
from made_results import SUITE
from made_tasks import as_numbers
from mentions import mentioning, mentions

from flbench.cli.main import main
from flbench.cli.plot import KINDS, read_all_results, refuse_mixed, rows_of
from flbench.errors import UserError
from flbench.results.schema import Fingerprint, Result, Tuning

Typed = Callable[..., tuple[int, str, str]]
REAL = Path(__file__).resolve().parents[2] / "leaderboard" / "results"


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Type `flbench plot ...` in an empty folder: exit code, output, errors."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["flbench", "plot", *args])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


def save(folder: Path, *results: Result) -> None:
    for result in results:
        path = folder / result.method.name / f"seed-{result.seed}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(result.canonical(), encoding="utf-8")


def marks(**changes: str) -> Fingerprint:
    same = {"config": "c", "suite": "s", "data": "d", "partition": "p"}
    return Fingerprint(**{**same, "initial_weights": "w", "cohorts": "c", **changes})


@pytest.mark.slow
@pytest.mark.long
def test_a_folder_becomes_a_figure_of_each_kind(typed: Typed, tmp_path: Path) -> None:
    save(tmp_path / "runs", full("one"), full("one", 1), full("two"))
    code, out, err = typed("runs")
    assert (code, err) == (0, "")
    files = [f"figures/toy-toys-{kind}.svg" for kind in KINDS]
    assert out.splitlines() == [f"wrote {file}" for file in files]
    for file in files:
        title = ElementTree.fromstring((tmp_path / file).read_bytes()).findtext(f"{SVG}title")
        assert title == "toy on toys" + (", seed 0" if "partition" in file else "")


@pytest.mark.slow
def test_the_same_files_give_the_same_bytes(typed: Typed, tmp_path: Path) -> None:
    save(tmp_path / "runs", full("one"), full("one", 1), full("two"))
    one = ("--kind", "clients", "--out")
    typed("runs", *one, "a.svg")
    typed("runs/one/seed-1.json", "runs/one", "runs/two", *one, "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.slow
def test_one_kind_goes_to_a_file_of_any_name_with_any_title(typed: Typed, tmp_path: Path) -> None:
    save(tmp_path, full("one"))
    args = ("one/seed-0.json", "--kind", "curves", "--out", "sub/x.svg", "--title", "A & B")
    assert typed(*args) == (0, "wrote sub/x.svg\n", "")
    svg = (tmp_path / "sub" / "x.svg").read_bytes()
    assert "A & B" in texts(svg)
    assert typed("one", "--kind", "curves", "--out", "x.PNG") == (
        1,
        "",
        mentioning("--out", "folder", "--kind", "got 'x.PNG'"),
    )
    for _ in range(2):
        assert typed("one", "--kind", "curves", "--out", "v1.2")[0] == 0, "a folder may have a dot"
        assert (tmp_path / "v1.2").is_dir()


@pytest.mark.slow
def test_what_cannot_be_drawn_is_one_line_with_the_reasons(typed: Typed, tmp_path: Path) -> None:
    save(tmp_path, made("one"))
    code, out, _ = typed("one")
    assert code == 0
    assert out.splitlines()[-1] == mentioning(
        "drawn", "scores", "4 entries", "membership", "nobody", "partition"
    )
    code, out, err = typed("one", "--kind", "scores")
    assert (code, out) == (1, "")
    assert err == mentioning("scores", "4 entries")


@pytest.mark.slow
def test_the_partition_is_of_the_first_result_that_counts(typed: Typed, tmp_path: Path) -> None:
    save(tmp_path / "runs", made("a"), full("b", 3))
    typed("runs", "--kind", "partition", "--out", "p.svg")
    assert "toy on toys, seed 3" in texts((tmp_path / "p.svg").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"suite": {**SUITE, "rounds": 9}}, "differ in rounds; plot them one by one"),
        ({"suite": {**SUITE, "name": "new", "lr": 1}}, "(new on toys) differ in lr, name; plot"),
        ({"dataset": "others"}, "(toy on others) differ in dataset; plot"),
        ({}, "differ in their fingerprints; plot"),
    ],
)
def test_different_suites_share_no_figure(
    changes: dict[str, Any], says: str, typed: Typed, tmp_path: Path
) -> None:
    other = full("two").model_copy(
        update={"fingerprint": marks(config="two", suite="other"), **changes}
    )
    save(tmp_path / "runs", full("one"), other)
    code, out, err = typed("runs")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert mentions(err, "runs/one/seed-0", "different")
    assert says in err
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_one_run_in_two_files_is_refused(typed: Typed, tmp_path: Path) -> None:
    save(tmp_path / "a", full("one"))
    save(tmp_path / "b", full("one"))
    code, _, err = typed("a", "b")
    assert code == 1
    assert err == mentioning("a/one/seed-0.json", "b/one/seed-0.json")
    assert typed("a", "a/one/seed-0.json", "--kind", "curves")[0] == 0, "one file named twice"


def test_a_file_under_two_names_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a", full("one"), full("two"))
    monkeypatch.chdir(tmp_path)
    found = read_all_results([Path("a"), tmp_path / "a"])
    assert [path for path, _ in found] == [Path("a/one/seed-0.json"), Path("a/two/seed-0.json")]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("nowhere",), "nowhere: cannot be read as a result file"),
        (("empty",), "empty: expected a result file or a folder of them, found none"),
        (("text.json",), "text.json: cannot be read as a result file"),
        (("one", "--kind", "curve"), "unknown kind 'curve'; did you mean 'curves'?"),
        (("one", "--out", "all.svg"), "ends in .svg with one --kind; got 'all.svg'"),
        (("one", "--kind", "curves", "--out", "x.png"), "ends in .svg with one --kind; got 'x"),
    ],
)
def test_bad_input_is_one_line(
    args: tuple[str, ...], says: str, typed: Typed, tmp_path: Path
) -> None:
    save(tmp_path, full("one"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("hello")
    code, out, err = typed(*args)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("flbench: ")
    assert says in err


def test_rows_are_named_by_what_tells_them_apart_the_best_first() -> None:
    tuned = Tuning(budget=4, tried=4, seeds=[1000], score="loss")
    rows = rows_of(
        [
            made("a", [0.5], seed=1, params={"k": 2, "x": 0}, fingerprint=marks(config="1")),
            made("b", [0.9], params={"k": 2}, fingerprint=marks(config="2")),
            made("a", [0.6], params={"k": 3, "x": 0}, fingerprint=marks(config="3")),
            made("a", [0.5], seed=0, params={"k": 2, "x": 0}, fingerprint=marks(config="1")),
            made("b", [0.8], params={"k": 2}, fingerprint=marks(config="4"), tuning=tuned),
        ]
    )
    assert [(name, [one.seed for one in results]) for name, results in rows] == [
        ("b", [0]),
        ("b (tuned, budget 4)", [0]),
        ("a (k=3)", [0]),
        ("a (k=2)", [0, 1]),
    ]


@pytest.mark.slow
def test_committed_results_are_drawn(typed: Typed, tmp_path: Path) -> None:
    folder = min(path for path in (REAL / "rotated").iterdir() if path.is_dir())
    code, out, err = typed(str(folder))
    assert (code, err) == (0, "")
    assert out.count("wrote ") >= 4


def test_results_of_other_data_share_no_figure(typed: Typed, tmp_path: Path) -> None:
    plain = made_results.made(0.5)
    other = made_results.made(0.6, method="b")
    other = other.model_copy(
        update={"fingerprint": other.fingerprint.model_copy(update={"data": "x"})}
    )
    made_results.write(tmp_path / "results", plain, other)
    code, _, err = typed(str(tmp_path / "results"))
    assert code == 1 and "different data" in err


def test_two_tasks_share_no_figure() -> None:
    plain = made_results.made(0.5)
    found = [(Path("a"), plain), (Path("b"), as_numbers(plain))]
    refuse_mixed(found[:1])
    with pytest.raises(UserError, match="task"):
        refuse_mixed(found)
