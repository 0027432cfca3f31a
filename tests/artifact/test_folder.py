"""`flbench artifact`: the folder it writes, of a paper and of a study, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_results import made
from mentions import mentions
from toy import Typed

from flbench.artifact import reproduce
from flbench.artifact.readme import _rows
from flbench.results.files import read_result

SUITE = """
version = 1
summary = "eight clients"
dataset = "digits"
clients = 8
participation = 0.5
rounds = 1
partition = "iid"
model = { name = "mlp", hidden = 4 }
local = { epochs = 1, batch_size = 32, lr = 0.1 }

[printed.digits]
fedavg = { accuracy_mean = 0.5, accuracy_std = 0.5 }
local-only = { accuracy_mean = 0.999 }
"""
CARD = """
summary = "a paper of the tests"
title = "On <Tests>"
authors = "N. N."
venue = "here"
link = "https://example.org"

[tables.1]
caption = "Table 1"
suites = ["SUITE"]
datasets = ["digits", "cifar10"]
methods = ["fedavg", "local-only"]

[tables.1.scale.small]
seeds = 2
on = { digits = {} }
"""
STUDY = """
summary = "a grid of the tests"
suites = ["SUITE"]
methods = ["fedavg", "local-only"]
columns = ["accuracy_mean", "loss"]
grid = { lr = [0.1, 0.2] }
"""
FEDAVG, ALONE = "eight/digits/fedavg", "eight/digits/local-only"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A paper and a study by their paths, on a suite by its path."""
    (tmp_path / "eight.toml").write_text(SUITE)
    for name, text in (("card", CARD), ("study", STUDY)):
        (tmp_path / f"{name}.toml").write_text(text.replace("SUITE", str(tmp_path / "eight.toml")))
    return {name: str(tmp_path / f"{name}.toml") for name in ("card", "study")}


def claims(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "claims.json").read_text())["claims"]
    return {claim["key"]: claim for claim in found}


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def unchanged(folder: Path) -> bool:
    """Whether all sums hold, and no file is without one."""
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = {
        name: hashlib.sha256(data).hexdigest()
        for name, data in contents(folder).items()
        if name not in ("SHA256SUMS", "rerun.jsonl") and not name.startswith("rerun/")
    }
    return sums == found


@pytest.mark.slow
def test_an_artifact_without_results_says_that_nothing_was_run(
    files: dict[str, str], typed: Typed
) -> None:
    Path("flbench-results").mkdir()
    code, said, _ = typed("artifact", files["card"], "--results", "flbench-results")
    assert code == 0
    assert mentions(said, "3 claims", 0) or mentions(said, "2 claims", 0)
    found = claims(Path("artifact"))
    assert found[FEDAVG]["why"] == "no result yet"
    assert [run["result"] for run in found[FEDAVG]["runs"]] == [None, None]
    readme = (Path("artifact") / "README.md").read_text()
    assert mentions(readme, "fedavg", "not run", "0.5 ± 0.5")
    assert unchanged(Path("artifact"))
    assert reproduce.main(Path("artifact"), []) == 0, "there is nothing to run"


@pytest.mark.slow
def test_the_artifact_of_a_table_has_what_reviewers_ask_for(
    files: dict[str, str], typed: Typed
) -> None:
    typed("reproduce", files["card"], "--dataset", "digits", "--seeds", "1")
    Path("log.jsonl").write_text("")
    words = ["artifact", files["card"], "--dataset", "digits", "--results", "flbench-results"]
    words += ["--log", "log.jsonl", "--author", "Lovelace, Ada"]
    code, said, _ = typed(*words)
    assert code == 0
    assert mentions(said, "2 claims", "2 of them")
    folder = Path("artifact")
    there = contents(folder)
    one = claims(folder)[FEDAVG]
    first, second = one["runs"]
    result = read_result(folder / first["result"])
    assert first["expected"] == {"accuracy_mean": result.summary["accuracy_mean"]}
    assert one["seconds"] == round(result.seconds["total"], 1)
    assert (second["result"], second["expected"]) == (None, {})
    assert "--suite suites/eight.toml" in first["command"]
    assert there["suites/eight.toml"] == SUITE.encode()
    assert there["reproduce.py"] == Path(reproduce.__file__).read_bytes()
    assert b"torch==" in there["constraints.txt"]
    archive = next(name for name in there if name.endswith(".tar.gz"))
    with tarfile.open(folder / archive) as opened:
        assert any("flbench/suite.py" in name for name in opened.getnames())
    assert unchanged(folder)
    readme = there["README.md"].decode()
    assert mentions(readme, "- [ ]", "reproduced", "0 of 2"), "nobody ran them again"
    assert mentions(readme, "Memory", "not measured")
    assert mentions(readme, "[x] complete", "2 of 2 claims")
    assert mentions(readme, "[ ] all seeds", "2 of 4 runs")
    assert str(Path.cwd()) not in readme + json.dumps(claims(folder))


@pytest.mark.slow
def test_typed_again_nothing_is_lost(files: dict[str, str], typed: Typed) -> None:
    typed("reproduce", files["card"], "--dataset", "digits", "--seeds", "1")
    words = ["artifact", files["card"], "--dataset", "digits", "--results", "flbench-results"]
    typed(*words)
    folder = Path("artifact")
    before = contents(folder)
    typed(*words)
    assert contents(folder) == before

    (folder / "CITATION.cff").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    (folder / "rerun").mkdir()
    (folder / "rerun" / "kept").write_text("kept")
    about = {"claim": FEDAVG, "seed": 0, "seconds": 2.0, "memory": 700_000_000, "exit_code": 0}
    (folder / "rerun.jsonl").write_text(json.dumps(about))
    (folder / "README.md").unlink()  # as if it had been stopped
    code, said, _ = typed(*words, "--title", "T")
    assert (code, mentions(said, "CITATION.cff", "kept")) == (0, True)
    after = contents(folder)
    assert (after["CITATION.cff"], after["notes.txt"]) == (b"mine", b"mine")
    assert after["rerun/kept"] == b"kept"
    assert mentions(after["README.md"].decode(), "fedavg", "0.7 GB")
    assert unchanged(folder)

    former = claims(folder)[ALONE]["runs"][0]["result"]
    for path in Path("flbench-results").rglob("local-only/*/seed-0.json"):
        path.unlink()
    typed(*words)
    assert not (folder / former).exists(), "it claims nothing any more"
    assert claims(folder)[ALONE]["why"] == "no result yet"


@pytest.mark.slow
def test_a_study_has_a_claim_for_each_row_of_its_grid(files: dict[str, str], typed: Typed) -> None:
    typed("study", files["study"], "--seeds", "2")
    code, *_ = typed("artifact", files["study"], "--results", "flbench-results", "--out", "a")
    assert code == 0
    found = claims(Path("a"))
    assert sorted(found) == [f"{key} (lr={rate})" for key in (FEDAVG, ALONE) for rate in (0.1, 0.2)]
    (one, *_) = found.values()
    assert [run["seed"] for run in one["runs"]] == [0, 1]
    assert all(run["expected"].keys() == {"accuracy_mean", "loss"} for run in one["runs"])
    assert reproduce.main(Path("a"), ["--compare"]) == 0


@pytest.mark.slow
@pytest.mark.long
def test_the_script_runs_a_claim_again_and_says_whether_it_came_out(
    files: dict[str, str], typed: Typed, capsys: Any
) -> None:
    typed("reproduce", files["card"], "--dataset", "digits", "--seeds", "1")
    typed("artifact", files["card"], "--dataset", "digits", "--results", "flbench-results")
    folder = Path("artifact").resolve()
    assert reproduce.main(folder, [FEDAVG]) == 0
    run = claims(folder)[FEDAVG]["runs"][0]
    assert (folder / run["writes"]).is_file()
    assert not (folder / claims(folder)[ALONE]["runs"][0]["writes"]).exists()
    assert mentions(capsys.readouterr().out, FEDAVG, "equal", "same bytes")
    seconds, memory = reproduce.measured(folder)[FEDAVG]
    assert seconds > 0
    assert 2**26 < memory < 2**36, "in bytes"

    text = (folder / "claims.json").read_text()
    value = json.dumps(run["expected"]["accuracy_mean"])
    (folder / "claims.json").write_text(text.replace(value, "0.9"))
    assert reproduce.main(folder, [FEDAVG]) == 1
    assert reproduce.measured(folder)[FEDAVG] == (seconds, memory), "it was not run a second time"


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["absent"], ["absent", "pfedlia", "fedc2i-gamma"]),
        (["influence-cost"], ["influence-cost", "grid", "measurement"]),
        (["fedc2i-gamma", "--table", "1"], ["--table", "fedc2i-gamma", "study"]),
        (["pfedlia", "--table", "9"], ["9", "pfedlia", "1"]),
        (["pfedlia", "--scale", "tiny"], ["tiny", "small", "large", "paper"]),
        (["pfedlia", "--dataset", "mnist"], ["mnist", "fashion-mnist"]),
        (["pfedlia", "--log", "absent.jsonl"], ["--log", "absent.jsonl"]),
        (["pfedlia", "--results", "absent"], ["--results", "absent"]),
        (["absent.toml"], ["absent.toml"]),
    ],
)
def test_bad_input_is_one_line(typed: Typed, words: list[str], facts: list[str]) -> None:
    Path("flbench-results").mkdir()
    usual = [] if "--results" in words else ["--results", "flbench-results"]
    code, _, told = typed("artifact", *words, *usual)
    assert code == 1
    assert mentions(told.splitlines()[-1:], *facts)
    assert not Path("artifact").exists()


@pytest.mark.slow
def test_a_folder_with_something_else_is_refused_and_stays(
    files: dict[str, str], typed: Typed
) -> None:
    Path("flbench-results").mkdir()
    words = ["artifact", files["card"], "--results", "flbench-results"]
    Path("artifact").mkdir()
    (Path("artifact") / "thesis.tex").write_text("mine")
    code, _, told = typed(*words)
    assert (code, mentions(told, "--out", "artifact")) == (1, True)
    assert contents(Path("artifact")) == {"thesis.tex": b"mine"}
    typed(*words, "--out", "a")
    before = contents(Path("a"))
    code, _, told = typed("artifact", files["study"], "--results", "flbench-results", "--out", "a")
    assert (code, mentions(told, "--out", "a", "mine")) == (1, False)
    assert mentions(told, "--out", "card") or mentions(told, "--out", "On")
    assert contents(Path("a")) == before


def test_what_is_expected_of_each_seed_is_shown() -> None:
    results = [made(correct=[right] * 2, seed=seed) for seed, right in enumerate((40, 60))]
    runs = [SimpleNamespace(seed=seed, result=None) for seed in (0, 1, 2)]
    claim = SimpleNamespace(
        key="k", name="fedavg", results=results, runs=runs, seconds=60.0, published="0.5",
        columns=["accuracy_mean"], verdict="agrees",
    )  # fmt: skip
    ((_, _, expected, *_),) = _rows(claim, SimpleNamespace(measured={}))  # type: ignore[arg-type]
    assert expected == "0.5000 (0.4000, 0.6000)"
