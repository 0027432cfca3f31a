"""The script of an artifact: numbers compared by hand, its table, its log and its words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from made_results import made
from mentions import mention, mentions

from flbench.artifact.reproduce import (
    HEADINGS,
    LOG,
    compared,
    limit,
    main,
    measured,
    number,
    write_expected,
    write_rerun,
)
from flbench.results.files import save_result
from flbench.results.schema import Result


def run(folder: Path, seed: int, claimed: Result, again: Result | None, **more: Any) -> Any:
    names = f"results/{seed}/seed-{seed}.json", f"rerun/{seed}/seed-{seed}.json"
    for name, result in zip(names, (claimed, again), strict=True):
        if result is not None:
            save_result(folder / name, result)
    expected = {"accuracy_mean": claimed.summary["accuracy_mean"]}
    about = {"seed": seed, "result": names[0], "writes": names[1], "expected": expected}
    return {**about, "command": "flbench run", **more}


def claim(*runs: Any, key: str = "toy/toy/fedavg", **more: Any) -> Any:
    return {
        "key": key, "name": "fedavg", "place": "toy on toy", "columns": ["accuracy_mean"],
        "published": "0.4 ± 0.1", "why": "", "seconds": 60.0, "runs": list(runs), **more,
    }  # fmt: skip


def saved(folder: Path, *claims: Any) -> Path:
    (folder / "claims.json").write_text(json.dumps({"title": "t", "claims": claims}))
    return folder


@pytest.mark.parametrize(
    ("expected", "again", "verdict"),
    [
        ((0.5, 0.7), (0.5, 0.7), "equal"),
        ((0.5, 0.7), (0.5, 0.71), "agrees"),  # .01 is the limit of a share
        ((0.5, 0.7), (0.51, 0.69), "agrees"),
        ((0.5, 0.7), (0.5, 0.72), "differs"),
        ((0.5, 0.7), (0.7, 0.5), "differs"),  # the means are equal
    ],
)
def test_numbers_are_compared_seed_by_seed(
    tmp_path: Path, expected: Any, again: Any, verdict: str
) -> None:
    pairs = enumerate(zip(expected, again, strict=True))
    runs = [run(tmp_path, at, made(a, seed=at), made(b, seed=at)) for at, (a, b) in pairs]
    (row,) = compared(tmp_path, claim(*runs))
    assert (row.verdict, row.seeds) == (verdict, (0, 1))
    assert row.expected == pytest.approx(sum(expected) / 2)
    assert row.again == pytest.approx(sum(again) / 2)


def test_seeds_that_were_not_run_again_are_left_out_of_both_means(tmp_path: Path) -> None:
    runs = [run(tmp_path, 0, made(0.5), made(0.5)), run(tmp_path, 1, made(0.9, seed=1), None)]
    (row,) = compared(tmp_path, claim(*runs))
    assert (row.verdict, row.seeds, row.expected, row.again) == ("equal", (0,), 0.5, 0.5)


def test_a_claim_that_nobody_ran_says_so(tmp_path: Path) -> None:
    (row,) = compared(tmp_path, claim(run(tmp_path, 0, made(0.5), None)))
    assert (row.verdict, row.expected, row.again) == ("not run", 0.5, None)
    without = {"seed": 0, "result": None, "writes": "rerun/x", "expected": {}}
    (row,) = compared(tmp_path, claim(without, why="no result yet"))
    assert (row.verdict, row.expected) == ("not run: no result yet", None)
    assert row.cells[3:7] == ("-", "not run", "-", "not run: no result yet")


def test_what_else_differs_in_the_results_is_said(tmp_path: Path) -> None:
    other = made(correct=[60, 40, 50, 50])
    (row,) = compared(tmp_path, claim(run(tmp_path, 0, made(correct=[50, 50, 50, 50]), other)))
    assert row.verdict == "equal"
    assert "clients" in row.whole


def test_numbers_are_metrics_or_the_ends_of_curves_with_the_limits_of_their_kind() -> None:
    one = made(0.5)
    assert number(one, "accuracy_mean") == 0.5
    assert number(one, "loss") == one.curves["loss"][-1]
    assert number(one, "absent") is None
    assert (limit(one, "accuracy_mean"), limit(one, "accuracy_worst")) == (0.01, 0.05)


def test_the_tables_have_what_is_expected_and_what_came(tmp_path: Path) -> None:
    claims = [claim(run(tmp_path, 0, made(0.5), made(0.6)))]
    write_expected(tmp_path, claims)
    write_rerun(tmp_path, claims)
    expected, again = (
        (tmp_path / name / "table.md").read_text().splitlines() for name in ("expected", "rerun")
    )
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (*expected, *again)]
    assert cells[0] == list(HEADINGS[:5])
    assert cells[2] == ["toy/toy/fedavg", "accuracy_mean", "0.4 ± 0.1", "0", "0.5000"]
    assert cells[3] == list(HEADINGS)
    assert cells[5][4:7] == ["0.5000", "0.6000", "differs"]
    for name in ("expected", "rerun"):
        assert (tmp_path / name / "figures" / "toy-on-toy-curves.svg").is_file()


@pytest.mark.parametrize(("again", "code"), [(0.5, 0), (0.51, 0), (0.6, 1)])
def test_the_exit_code_says_whether_a_number_differs(
    tmp_path: Path, capsys: Any, again: float, code: int
) -> None:
    folder = saved(tmp_path, claim(run(tmp_path, 0, made(0.5), made(again))))
    assert main(folder, ["--compare"]) == code
    told = capsys.readouterr().out.splitlines()
    counts = {0.5: "1 equal", 0.51: "1 agrees", 0.6: "1 differs"}[again]
    assert any(counts in line for line in told)


def test_claims_are_chosen_by_name_and_seed(tmp_path: Path, capsys: Any) -> None:
    runs = [run(tmp_path, at, made(0.5, seed=at), made(0.5 + at / 4, seed=at)) for at in (0, 1)]
    folder = saved(tmp_path, claim(*runs), claim(key="toy/toy/ditto", why="no result yet"))
    assert main(folder, ["toy/toy/fedavg", "--seed", "0", "--compare"]) == 0
    capsys.readouterr()
    assert main(folder, ["toy/toy/fedavg", "--compare"]) == 1
    assert mentions(capsys.readouterr().out, "1 differs", "0 not run", "1 not asked for")
    assert main(folder, ["--list"]) == 0
    told = capsys.readouterr().out
    assert [line.split()[0] for line in told.splitlines()] == ["toy/toy/fedavg", "toy/toy/ditto"]
    with pytest.raises(SystemExit, match="absent"):
        main(folder, ["absent"])
    with pytest.raises(SystemExit, match=mention("'fedavg'", "toy/toy/fedavg")):
        main(folder, ["fedavg"])
    with pytest.raises(SystemExit, match=mention("--seed", 0, 1, 9)):
        main(folder, ["--seed", "9"])


@pytest.mark.parametrize("text", [None, "{", "[]", '{"title": "t"}'])
def test_a_folder_without_claims_is_one_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "claims.json").write_text(text)
    with pytest.raises(SystemExit, match=mention("claims.json", "expected")):
        main(tmp_path, ["--list"])


def test_the_log_gives_seconds_of_all_seeds_and_the_largest_memory(tmp_path: Path) -> None:
    def line(seed: int, seconds: float, memory: int, code: int = 0) -> str:
        about = {"claim": "a", "seed": seed, "seconds": seconds, "memory": memory}
        return json.dumps({**about, "exit_code": code})

    lines = [line(0, 5, 50), line(1, 2, 70), line(0, 3, 40), line(2, 9, 99, code=3), '{"claim": ']
    (tmp_path / LOG).write_text("\n".join(lines))
    assert measured(tmp_path) == {"a": (5.0, 70)}
    assert measured(tmp_path / "absent") == {}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "logged"), [(0, 2), (3, 2), (130, 0)])
def test_a_run_that_fails_stops_no_other_and_one_that_is_stopped_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, code: int, logged: int
) -> None:
    def begun(words: Any, **options: Any) -> Any:
        return popen(["sh", "-c", f"exit {code}"], **options)

    popen = subprocess.Popen
    monkeypatch.setattr("flbench.artifact.reproduce.subprocess.Popen", begun)
    folder = saved(tmp_path, claim(*(run(tmp_path, at, made(0.5, seed=at), None) for at in (0, 1))))
    assert main(folder, []) == code
    lines = (tmp_path / LOG).read_text().split("\n") if (tmp_path / LOG).exists() else []
    assert [json.loads(line)["exit_code"] for line in lines if line] == [code] * logged
    assert ("type the same again" in capsys.readouterr().err) == (code == 130)
