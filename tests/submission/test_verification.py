"""Verifying: a run played again from nothing but its file, and how far apart two may be."""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, stdev
from typing import Any

import pytest
import torch
from mentions import mentioning, mentions
from toy import Play, Typed, composition, player, toy_dataset

import flbench
import flbench as fl
from flbench.cli.verify import _next as shown_by
from flbench.core.dataset import Dataset
from flbench.engine.machine import instructions
from flbench.engine.machine.portable import NAME, SETTINGS
from flbench.engine.machine.processor import processor
from flbench.results.audits import read_audits
from flbench.results.difference import TOLERANCE
from flbench.results.files import read_result, read_results, write_atomically
from flbench.results.schema import Result
from flbench.run.runner import play
from flbench.run.setup import prepare
from flbench.submission.comparison import compare
from flbench.submission.consistency import job_of, recount
from flbench.submission.verification import engine_of, limits_of

ROOT = Path(__file__).resolve().parents[2]
METHODS: list[dict[str, Any]] = [
    {"method": "fedavg"},
    {"method": "pfedlia", "settings": {"warmup": 1}},
    {"method": "dc-pfl", "rounds": 4},
    {"method": "cfl", "settings": {"start_round": 1}},
    {"method": "oracle", "settings": {"warmup": 1}, "eval_every": 2},
    {"method": "fedavg", "target": 0.3, "ft_epochs": 1, "own_models": True},
    {"method": "fedavg", "clock": {"up": [1e3] * 6, "dropout": 0.2, "deadline": 1.0}},
    {"method": "ifca+fedavgm"},
]
NEWCOMERS = {"clients": 9, "unseen": 0.34, "unseen_epochs": 1}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[[Dataset], None]:
    """Puts a data set where the command looks for one; the toy's is there already."""

    def put(dataset: Dataset) -> None:
        monkeypatch.setattr("flbench.federation.loading.load_dataset", lambda name, root: dataset)

    put(toy_dataset())
    return put


def kept(result: Result, folder: Path, edit: Callable[[dict[str, Any]], None] | None = None) -> str:
    """Write a result into a folder, changed by hand."""
    table = json.loads(result.canonical())
    if edit is not None:
        edit(table)
    path = folder / "seed-0.json"
    write_atomically(path, Result.model_validate(table).canonical().encode())
    return str(path)


def last(errors: str) -> str:
    """The last line of standard error; the first says which packages run."""
    first, *_, line = errors.splitlines(keepends=True)
    assert mentions(first, "note", "installed"), first
    return line


# --- the same run again -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: f"{kind['method']}-{len(kind)}")
def test_a_run_comes_out_the_same_from_its_file(
    kind: dict[str, Any], play_toy: Play, typed: Typed, there: object, tmp_path: Path
) -> None:
    result = play_toy(**kind).result
    rounds = result.suite["rounds"]
    file = kept(result, tmp_path / "here")
    before = Path(file).read_bytes()
    code, out, err = typed("verify", file)
    assert code == 0, out
    first, *lines, last = out.splitlines()
    assert first == f"{file}: {rounds} of {rounds} rounds played again"
    assert lines[0] == mentioning("environment", "same bytes")
    assert len(lines) == 15
    assert all(line.endswith(": same bytes") for line in lines[1:])
    assert last == mentioning("agrees", "last")
    assert f"round {rounds}/{rounds}" in err
    code, out, _ = typed("verify", file, "--rounds", "2")
    assert code == 0, out
    assert out.splitlines()[0] == f"{file}: 2 of {rounds} rounds played again"
    assert out.splitlines()[-1] == mentioning("agrees", "last")
    assert Path(file).read_bytes() == before
    assert list((tmp_path / "here").iterdir()) == [Path(file)], "nothing is left"


@pytest.mark.slow
def test_newcomers_are_compared_too(
    play_toy: Play, typed: Typed, there: Callable[[Dataset], None], tmp_path: Path
) -> None:
    data = toy_dataset(samples=108)
    there(data)
    result = play_toy("fedavg", dataset=data, **NEWCOMERS).result
    assert result.unseen is not None
    assert typed("verify", kept(result, tmp_path))[0] == 0

    def edit(table: dict[str, Any]) -> None:
        unseen = table["unseen"]
        unseen["correct_tuned"][0] = 0 if unseen["correct_tuned"][0] else 1
        shares = [a / b for a, b in zip(unseen["correct_tuned"], unseen["test"], strict=True)]
        table["summary"]["unseen_accuracy_tuned"] = sum(shares) / len(shares)

    code, out, _ = typed("verify", kept(result, tmp_path, edit))
    assert code == 1
    (line,) = [line for line in out.splitlines() if line.startswith("  unseen")]
    assert line.startswith("  unseen clients: differs by 0.")
    assert mentions(line, "same bytes", "unseen.correct_tuned")


@pytest.mark.slow
def test_a_file_of_version_1_is_verified(
    play_toy: Play, typed: Typed, there: object, tmp_path: Path
) -> None:
    result = play_toy("fedavg").result
    file = Path(kept(result, tmp_path))
    table = json.loads(file.read_text())
    for name in ("scores", "tuning", "digest"):
        del table[name]
    for name in ("churn", "ece"):
        del table["summary"][name]
    del table["clients"]["labels"], table["curves"]["slowest_down"], table["environment"]["numpy"]
    file.write_text(json.dumps({**table, "schema_version": 1}))
    code, out, _ = typed("verify", str(file), "--write")
    assert code == 0, out
    assert read_result(file).status == "reproduced"
    assert read_result(file).curves.keys() == table["curves"].keys()


@dataclass(frozen=True)
class Asks:
    """Keeps what the core tells about the length of the run."""

    heard: list[tuple[int, int]]

    @fl.hookimpl
    def plan(self, state: fl.State, ctx: fl.Context) -> None:
        self.heard.append((ctx.round, ctx.rounds))


@pytest.mark.slow
def test_a_method_is_told_the_whole_number_of_rounds(play_toy: Play) -> None:
    heard: list[tuple[int, int]] = []
    whole = play_toy(composition(("asks", Asks(heard))), rounds=5, eval_every=2, ft_epochs=1)
    job = replace(whole.job, out=whole.job.out / "again")
    del heard[:]
    run, state = prepare(job, toy_dataset())
    run.checkpoint = None
    cut = play(job, run, state, 3, target=None)
    assert heard == [(1, 5), (2, 5), (3, 5)]
    assert cut.curves["accuracy"] == whole.result.curves["accuracy"][:3]
    assert cut.curves["accuracy"][2] is None, "round 3 is not the last"
    assert "accuracy_fine_tuned" not in cut.curves
    assert not job.checkpoint.exists()


# --- what differs -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return player(tmp_path_factory.mktemp("toy"))("fedavg").result


@pytest.mark.slow
def test_one_number_that_was_changed_is_found(
    result: Result, typed: Typed, there: object, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["curves"]["train_loss"][1] += 0.5

    file = kept(result, tmp_path, edit)
    before = Path(file).read_bytes()
    code, out, _ = typed("verify", file, "--write")
    assert code == 1
    (line,) = [line for line in out.splitlines() if "by round: differs" in line]
    assert line.startswith("  loss by round: differs by 0.")
    assert mentions(line, "same bytes", "curves.train_loss")
    assert out.splitlines()[-1] == "it differs"
    assert Path(file).read_bytes() == before
    code, out, _ = typed("verify", file, "--rounds", "1")
    assert code == 0, "round 1 is as it was"
    end = (
        "it agrees in its first 1 of 3 rounds, to the last byte; the end of the run was not judged"
    )
    assert out.splitlines()[-1] == end
    assert typed("verify", file, "--tolerance", "0.9")[0] == 1, "it is for other environments"

    def elsewhere(table: dict[str, Any]) -> None:
        edit(table)
        table["environment"]["torch"] = "1.0"

    code, out, _ = typed("verify", kept(result, tmp_path, elsewhere))
    assert code == 1
    assert ", allowed are 0.01 (curves.train_loss)" in out
    code, out, _ = typed("verify", file, "--tolerance", "0.9")
    assert code == 0
    assert "loss by round: within tolerance, 0." in out
    assert "it agrees" in out.splitlines()
    code, _, err = typed("verify", file, "--tolerance", "0.9", "--write")
    assert code == 1
    assert mentions(err, "tolerance of 0.01", "got 0.9")
    assert read_result(Path(file)).status == "self-reported"


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [False, True])
def test_forged_groups_and_losses_are_not_called_reproduced(
    lacking: bool, result: Result, typed: Typed, there: object, tmp_path: Path
) -> None:
    """ARI 1 and a hundredth of the loss, in a file that contradicts itself nowhere.

    It says that it was computed elsewhere; it may also leave out what would give it away.
    """

    def edit(table: dict[str, Any]) -> None:
        clients = table["clients"]
        clients["group"] = [0] * len(clients["test"])  # as found: all of them in one group
        clients["loss"] = [loss / 100 for loss in clients["loss"]]
        table["environment"]["torch"] = "1.0"
        if lacking:
            del table["curves"]["loss"], table["curves"]["ari"]
        summary = recount(Result.model_validate(table))
        table["summary"] |= {name: summary[name] for name in ("ari", "nmi", "purity", "loss_mean")}

    file = kept(result, tmp_path, edit)
    assert (result.summary["ari"], read_result(Path(file)).summary["ari"]) == (0, 1)
    code, out, err = typed("verify", file, "--write")
    assert code == 1, out
    assert read_result(Path(file)).status == "self-reported"
    if lacking:
        assert last(err).startswith(f"flbench: {file}: 'curves.loss': field required")
    else:
        assert mentions(out.splitlines(), "clients", "are 0", "clients.group")
        assert mentions(out.splitlines(), "summary", "1.0000", "are 0.01", "summary.ari")


def test_a_run_of_two_codes_is_never_called_reproduced(
    result: Result, typed: Typed, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        change = {"round": 1, "plugin": "fedavg", "before": "a", "after": "b"}
        table["source_changes"] = [change]

    file = kept(result, tmp_path, edit)
    code, _, err = typed("verify", file, "--write")
    assert code == 1
    assert mentions(err, file, "changed")
    assert read_result(Path(file)).status == "self-reported"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("leaderboard/results/toy/toy/fedavg/01234567/seed-0.json", "--suite=toy"),
        ("a b/results/toy/toy/m/f/seed-0.json", "--suite=toy --results 'a b/results' --out 'a b'"),
        ("elsewhere/seed-0.json", "--suite=toy"),
        ("mine/toy/toy/m/f/seed-0.json", "--suite=toy --results mine --out board"),
    ],
)
def test_the_command_that_shows_it_names_the_folder_of_the_results(
    path: str, words: str, result: Result
) -> None:
    assert shown_by([(Path(path), result)]) == f"flbench leaderboard {words}"


@pytest.mark.slow
def test_only_a_whole_run_that_agrees_is_called_reproduced(
    result: Result, typed: Typed, there: object, tmp_path: Path
) -> None:
    file = kept(result, tmp_path)
    code, _, err = typed("verify", file, "--rounds", "2", "--write")
    assert code == 1
    assert mentions(err, "--write", "reproduced")
    assert read_result(Path(file)).status == "self-reported"
    code, out, _ = typed("verify", file, "--write")
    assert code == 0
    assert out.splitlines()[-1] == mentioning(file, "flbench leaderboard --suite=toy")
    done = read_result(Path(file))
    assert Path(file).read_text() == done.canonical(as_read=True) == done.canonical()
    assert done == result.model_copy(update={"status": "reproduced"})
    assert typed("verify", file, "--rounds", "3")[0] == 0, "what is reproduced can be again"


@pytest.mark.parametrize("mark", ["data", "partition", "initial_weights", "cohorts"])
def test_another_beginning_is_named_and_nothing_is_played(
    mark: str, result: Result, typed: Typed, there: object, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["fingerprint"][mark] = "0"

    code, out, err = typed("verify", kept(result, tmp_path, edit))
    here = getattr(result.fingerprint, mark)
    told = f"not the same run, nothing was played: fingerprint.{mark}: 0 in the file, {here} here"
    assert (code, out, last(err)) == (1, "", f"flbench: {told}\n")


def test_a_file_that_contradicts_itself_is_not_played(
    result: Result, typed: Typed, there: object, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["summary"]["ari"] = 0.9

    file = kept(result, tmp_path, edit)
    code, out, err = typed("verify", file)
    assert (code, out) == (1, "")
    assert mentions(last(err), file, "summary.ari", "0 expected", "got 0.9")


def signed(table: dict[str, Any]) -> None:
    """Give it the fingerprints of what it says now."""
    job = job_of(Result.model_validate(table), Path())
    table["fingerprint"] |= {"suite": job.suite.hash(), "config": job.fingerprint}


@pytest.mark.slow
def test_a_plugin_of_another_version_is_told_and_one_that_is_not_there_refused(
    result: Result,
    typed: Typed,
    there: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def older(table: dict[str, Any]) -> None:
        table["method"]["plugins"][0]["version"] = "0.0.1"
        signed(table)

    code, out, err = typed("verify", kept(result, tmp_path, older))
    assert code == 0
    assert mentions(err, "flbench 0.0.1", flbench.__version__)

    def changed(table: dict[str, Any]) -> None:
        table["method"]["plugins"][0]["source"] = "0" * 12
        signed(table)

    code, out, err = typed("verify", kept(result, tmp_path, changed))
    assert code == 0
    assert mentions(err, "fedavg", flbench.__version__)

    def elsewhere(table: dict[str, Any]) -> None:
        table["environment"] |= {"device": "cuda:0", "processor": "NVIDIA H100"}
        signed(table)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = typed("verify", kept(result, tmp_path, elsewhere))
    assert code == 0
    assert mentions(err, "NVIDIA H100", "played")

    def strange(table: dict[str, Any]) -> None:
        table["method"]["name"] = table["method"]["plugins"][0]["name"] = "fedmine"
        table["method"]["plugins"][0] |= {"distribution": "my-fl", "version": "2.0"}
        signed(table)

    code, out, err = typed("verify", kept(result, tmp_path, strange))
    assert (code, out) == (1, "")
    assert last(err).startswith("flbench: unknown method 'fedmine'")
    assert mentions(err, "my-fl==2.0", "pip install my-fl==2.0")


@pytest.mark.slow
def test_other_parameters_and_uses_are_refused(
    result: Result, typed: Typed, there: object, tmp_path: Path
) -> None:
    def more(table: dict[str, Any]) -> None:
        table["method"]["params"] = {"mu": 1}
        signed(table)

    def told(table: dict[str, Any]) -> None:
        table["method"]["plugins"][0]["uses_true_groups"] = True
        signed(table)

    _, _, err = typed("verify", kept(result, tmp_path, more))
    assert last(err) == mentioning("method.params", "{'mu': 1}")

    def idle(table: dict[str, Any]) -> None:
        one = table["method"]["plugins"][0]
        table["method"]["plugins"] = [{**one, "name": "oracle"}, one]
        table["method"]["name"] = "oracle+fedavg"
        signed(table)

    _, _, err = typed("verify", kept(result, tmp_path, idle))
    assert last(err) == mentioning("method.name", "oracle+fedavg", "oracle")
    code, _, err = typed("verify", kept(result, tmp_path, told))
    assert code == 1
    assert mentions(last(err), "fedavg", "plugin")


@pytest.mark.slow
def test_rounds_that_are_not_there_are_refused(
    play_toy: Play, typed: Typed, there: object, tmp_path: Path
) -> None:
    file = kept(play_toy("fedavg", rounds=4, eval_every=2).result, tmp_path)
    for rounds in ("1", "5"):
        code, _, err = typed("verify", file, "--rounds", rounds)
        assert code == 1
        assert err == f"flbench: --rounds: expected 2 to 4, got {rounds}\n"


def test_no_tolerance_lets_everything_pass(typed: Typed, result: Result, tmp_path: Path) -> None:
    assert typed("verify", kept(result, tmp_path), "--tolerance", "inf")[0] == 2


def test_a_part_of_a_data_set_is_not_taken_for_another(
    result: Result, typed: Typed, there: object, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["dataset"] = table["suite"]["dataset"] = "toy[a,b]"
        signed(table)

    code, _, err = typed("verify", kept(result, tmp_path, edit))
    assert (code, last(err)) == (1, mentioning("toy[a,b]", "toy"))


def test_what_it_was_computed_with_is_taken_up(result: Result) -> None:
    def engine(**told: str) -> tuple[object, ...]:
        found = engine_of(result.model_copy(update={"environment": told}))
        return found.executor, found.accelerator, found.precision, found.threads

    assert engine() == ("auto", "auto", "32-true", 1)
    known = {"executor": "vectorised", "device": "cpu", "threads": "3", "precision": "bf16-mixed"}
    assert engine(**known) == ("vectorised", "cpu", "bf16-mixed", 3)
    assert engine_of(result, "vectorised").executor == "vectorised"
    fell_back = {"executor": "sequential, as lanes failed", "device": "cuda:0"}
    assert engine(**fell_back) == ("vectorised", "auto", "32-true", 1), "they fail again"
    assert engine(device="cpu") == ("sequential", "cpu", "32-true", 1), "as all files were before"
    assert engine(executor="sequential", device="cpu")[0] == "sequential", "whatever auto is here"
    odd = {"executor": "rm -rf", "device": "cuda:0", "threads": "99999999"}
    assert engine(**odd) == ("auto", "auto", "32-true", 1)


def test_what_is_portable_is_run_portably_where_that_is_possible(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere the numbers agree within the tolerance, as those of any file."""
    told = result.model_copy(update={"environment": {"processor": NAME}})
    for machine, possible in (("x86_64", True), ("AMD64", True), ("arm64", False)):
        monkeypatch.setattr(platform, "machine", lambda there=machine: there)
        assert engine_of(told).portable is possible
        assert limits_of(told, engine_of(told)) == (SETTINGS if possible else {})
        assert not engine_of(result).portable


def test_what_avx2_computed_is_run_with_avx2_on_a_processor_with_more(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, and where a file does not say what computed it, nothing is limited."""
    monkeypatch.setattr(instructions, "to_compute_as", lambda name: {"LIBRARY": name})
    stated = {"processor": "AuthenticAMD AVX2"}
    limits = []
    for told in ({"device": "cpu", **stated}, {"device": "cuda:0", **stated}, {"device": "cpu"}):
        one = result.model_copy(update={"environment": told})
        limits.append(limits_of(one, engine_of(one)))
    assert limits == [{"LIBRARY": "AuthenticAMD AVX2"}, {"LIBRARY": ""}, {"LIBRARY": ""}]


@pytest.mark.slow
def test_another_environment_is_told(
    play_toy: Play, typed: Typed, there: object, tmp_path: Path
) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["environment"] |= {"torch": "1.0", "threads": "2"}
        del table["environment"]["processor"]

    code, out, _ = typed("verify", kept(play_toy("fedavg").result, tmp_path, edit))
    assert code == 0
    line = out.splitlines()[1]
    assert line.startswith("  environment: torch 1.0, here ")
    assert "threads" not in line, "it was taken up"
    here = processor(torch.device("cpu"))
    assert line.endswith(f"; processor not known, here {here}"), "as in older files"


# --- the docs -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_the_docs_argue_for_the_tolerance_that_there_is(result: Result) -> None:
    text = " ".join((ROOT / "docs" / "submitting.md").read_text(encoding="utf-8").split())
    assert f"The tolerance is {TOLERANCE:g}:" in text
    assert [part.name for part in compare(result, result, 3) if part.name not in text] == []
    rows: dict[Path, list[float]] = {}
    for path, one in read_results(ROOT / "leaderboard" / "results"):
        if "accuracy_mean" in one.summary:  # not of numbers, nor of several labels
            rows.setdefault(path.parent, []).append(float(one.summary["accuracy_mean"] or 0))
    spread = [stdev(row) for row in rows.values() if len(row) > 1]
    assert median(spread) > TOLERANCE


def test_the_docs_say_what_came_of_audits() -> None:
    text = " ".join((ROOT / "docs" / "submitting.md").read_text(encoding="utf-8").split())
    told = re.search(r"The first ([\d,]+) lines of the log", text)
    assert told is not None
    lines = int(told[1].replace(",", ""))
    first = read_audits(ROOT / "leaderboard" / "audits.jsonl")[:lines]
    found = list({(one.run, one.digest): one for one in first if one.whole}.values())
    came = Counter(one.outcome for one in found)
    same, agree, differ = (came[outcome] for outcome in ("same bytes", "agrees", "differs"))
    assert len(first) == lines
    assert f"hold {len(found):,} files of which all rounds" in text
    assert f"{same} gave the same bytes, {agree} agreed, {differ} did not" in text
    sets = Counter(one.file.split("/")[1] for one in found)
    wrong = Counter(one.file.split("/")[1] for one in found if not one.agrees)
    assert all(f"{count} of {sets[name]:,} on" in text for name, count in wrong.items())
    begun = [one for one in first if not one.whole and "/cifar10/" in one.file]
    rows = {Path(one.file).parent for one in begun}
    assert all(one.agrees for one in begun)
    assert f"the first rounds of all {len(rows)} rows on CIFAR-10 agree" in text
