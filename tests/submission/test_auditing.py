"""Running many result files again: nothing stops the others, and nothing is lost."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from made_results import made
from mentions import mention, mentioning, mentions
from toy import Typed, player, toy_dataset

import flbench
from flbench.errors import Diverged, MissingData, UserError
from flbench.leaderboard.audited import installed_source
from flbench.results.audits import Audit, append_audit, content_digest, read_audits
from flbench.results.files import read_result, write_atomically
from flbench.results.schema import Result
from flbench.run.core_digest import UNKNOWN
from flbench.submission import auditing, replay_folder
from flbench.submission.auditing import (
    AuditTask,
    FileVerdict,
    at_hand,
    audit_of,
    draw,
    expected_seconds,
)
from flbench.submission.consistency import recount
from flbench.submission.replay_folder import own_audits, own_log
from flbench.submission.verification import NotTheSameRun, Replay, first_rounds


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return player(tmp_path_factory.mktemp("toy"))("fedavg").result


class Replays:
    """In place of running: what each file gives, by the seconds in it; counts what was played."""

    def __init__(self) -> None:
        self.played: list[float] = []
        self.executors: list[str | None] = []
        self.instead: dict[float, BaseException] = {}
        self.changes: dict[float, dict[str, Any]] = {}
        self.earlier = 0.0

    def __call__(self, result: Result, *_: object, executor: str | None) -> Replay:
        number = result.seconds["total"]
        if number in self.instead:
            raise self.instead[number]
        self.played.append(number)
        self.executors.append(executor)
        return Replay(result.model_copy(update=self.changes.get(number, {})), self.earlier)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    found = Replays()
    monkeypatch.setattr(auditing, "replay", found)
    return found


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's data are here."""
    monkeypatch.setattr(auditing, "has_data", lambda name, root: True)


@pytest.fixture
def files(result: Result, tmp_path: Path) -> list[str]:
    """Four files below `R`, which tell each other apart by their seconds: 1 to 4."""
    paths = []
    for number in range(1, 5):
        path = tmp_path / "R" / str(number) / "seed-0.json"
        one = result.model_copy(update={"seconds": {"total": float(number)}})
        write_atomically(path, one.canonical().encode())
        paths.append(path.relative_to(tmp_path).as_posix())
    return paths


def test_what_differs_or_cannot_be_run_stops_no_other(
    files: list[str], result: Result, replays: Replays, typed: Typed
) -> None:
    worse = [None if value is None else value - 0.5 for value in result.curves["accuracy"]]
    replays.changes[2.0] = {"curves": {**result.curves, "accuracy": worse}}
    replays.instead[3.0] = MissingData("no data here")
    code, out, err = typed("verify", "R")
    assert code == 1
    assert mentions(err, "2 of 4 files", "come")
    lines = out.splitlines()
    assert lines[0].startswith(f"[1/4] {files[0]}: agrees, to the last byte (0.")
    assert lines[1].startswith(f"[2/4] {files[1]}: differs (0.")
    assert mentions(lines[1], "0.5000", "curves.accuracy")
    assert lines[2] == mentioning("3/4", files[2])
    assert lines[4:] == [
        mentioning("2 agree", "2 of them", "1 differ", "1 cannot", "0 are left"),
        f"  differs: {files[1]}",
        f"  cannot be run: {files[2]}",
        f"log: {own_log()}",
    ]
    assert replays.played == [1, 2, 4]
    assert [(one.file, one.outcome) for one in own_audits()] == [
        (files[0], "same bytes"), (files[1], "differs"), (files[3], "same bytes"),
    ]  # fmt: skip


def test_an_interrupted_command_goes_on_where_it_stopped(
    files: list[str], replays: Replays, typed: Typed
) -> None:
    replays.instead[3.0] = KeyboardInterrupt()
    code, out, err = typed("verify", *files)
    assert code == 130
    assert out.splitlines()[2:] == [
        mentioning("2 agree", "2 of them", "0 differ", "0 cannot", "2 are left"),
        f"  left: {files[2]}",
        f"  left: {files[3]}",
    ]
    assert mentions(err, own_log(), "played")
    replays.instead.clear()
    code, out, _ = typed("verify", *files)
    assert code == 0
    assert replays.played == [1, 2, 3, 4], "nothing is played twice"
    lines = out.splitlines()
    assert lines[0] == mentioning("1/4", files[0], "byte")
    assert mentions(lines[4], "4 agree", "4 of them", "0 differ")


def test_seconds_of_rounds_that_were_played_before_are_noted(
    files: list[str], replays: Replays, typed: Typed
) -> None:
    replays.earlier = 1000.0
    assert typed("verify", files[0], "--log", "log.jsonl")[0] == 0
    (audit,) = own_audits()
    assert 1000 <= audit.seconds < 1100


@pytest.mark.slow
def test_the_log_answers_only_the_same_question(
    files: list[str], replays: Replays, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed("verify", *files[:2])[0] == 0
    for words in (("--rounds", "2"), ("--tolerance", "0.5")):
        del replays.played[:]
        assert typed("verify", *files[:2], *words)[0] == 0
        assert replays.played == [1, 2]
    del replays.played[:]
    table = json.loads(Path(files[0]).read_text())
    edited = Result.model_validate({**table, "warnings": ["other"]})
    write_atomically(Path(files[0]), edited.canonical().encode())
    assert typed("verify", *files[:2])[0] == 0
    assert replays.played == [1], "another content"
    with monkeypatch.context() as patch:
        patch.setattr(auditing, "is_current", lambda sources: False)
        assert typed("verify", *files[:2])[0] == 0
    assert replays.played == [1, 1, 2], "another code"
    assert own_audits()[-1].core == auditing.core()
    monkeypatch.setattr(auditing, "core", lambda: "9" * 12)
    del replays.played[:]
    assert typed("verify", *files[:2])[0] == 0
    assert replays.played == [1, 2], "another core, once"
    assert own_audits()[-1].core == "9" * 12
    monkeypatch.setattr(auditing, "core", lambda: UNKNOWN)
    for _ in range(2):
        del replays.played[:]
        assert typed("verify", *files[:2])[0] == 0
        assert replays.played == [1, 2], "what is not known equals nothing"


def test_another_executor_is_asked_where_one_differs(
    files: list[str], result: Result, replays: Replays, typed: Typed
) -> None:
    worse = [None if value is None else value - 0.5 for value in result.curves["accuracy"]]
    replays.changes[2.0] = {"curves": {**result.curves, "accuracy": worse}}
    assert typed("verify", "R")[0] == 1
    assert replays.executors == [None] * 4
    replays.changes.clear()
    assert typed("verify", "R")[0] == 1, "the log says so"
    assert len(replays.played) == 4
    assert typed("verify", "R", "--executor", "vectorised")[0] == 0
    assert replays.played[4:] == [2.0]
    assert replays.executors[4:] == ["vectorised"]
    assert [one.executor for one in own_audits()] == [None] * 4 + ["vectorised"]
    assert typed("verify", "R")[0] == 0, "what agrees by one executor is not asked of another"
    assert len(replays.played) == 5


@pytest.mark.parametrize("error", [NotTheSameRun("not the same run"), Diverged("round 1 diverged")])
def test_another_beginning_and_a_run_that_diverges_differ(
    error: Exception, files: list[str], replays: Replays, typed: Typed
) -> None:
    replays.instead[1.0] = error
    code, out, _ = typed("verify", *files[:2])
    assert code == 1
    assert out.splitlines()[0].endswith(f"s): {error}")
    first, second = own_audits()
    ended = isinstance(error, Diverged)  # so it was played
    assert (first.outcome, first.how) == ("differs", str(error))
    assert (first.rounds > 0, first.whole) == (ended, ended)
    assert (second.outcome, second.how, second.whole) == ("same bytes", "", True)
    assert {*first.sources} == {*second.sources}, "the code that refused it"
    replays.instead.clear()
    assert typed("verify", *files[:2])[0] == ended, "another data folder may be the answer"
    assert replays.played == ([2] if ended else [2, 1])


# --- whose log is believed ----------------------------------------------------------------------


def forged(result: Result, path: Path) -> Path:
    """A file that claims another accuracy, whose numbers fit together."""
    clients = result.clients.model_copy(update={"correct": result.clients.test})
    one = result.model_copy(update={"clients": clients})
    exact = {"accuracy": [None if v is None else 1.0 for v in result.curves["accuracy"]]}
    one = one.model_copy(update={"curves": {**result.curves, **exact}})
    summary = {**result.summary, "accuracy_mean": 1.0, **recount(one)}
    one = one.model_copy(update={"summary": summary})
    write_atomically(path, one.canonical().encode())
    return path


def praising(path: Path, log: Path) -> None:
    """A log that says that a file came out to the last byte, by the code that is installed."""
    result = read_result(path)
    sources = {one.name: one.source for one in result.plugins}
    append_audit(
        log,
        line_of(
            result, outcome="same bytes", flbench=flbench.__version__, sources=sources,
            torch=torch.__version__,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("words", [(), ("--log", "flbench-verified.jsonl")], ids=["cwd", "named"])
@pytest.mark.parametrize("name", ["flbench-verified.jsonl", "verified.jsonl", "audits.jsonl"])
def test_a_log_that_came_with_the_files_answers_nothing(
    name: str, words: tuple[str, ...], files: list[str], result: Result, replays: Replays,
    typed: Typed,
) -> None:  # fmt: skip
    replays.changes[1.0] = {"clients": result.clients, "summary": result.summary}
    bad = forged(read_result(Path(files[0])), Path(files[0]))
    praising(bad, Path(name))
    code, out, _ = typed("verify", *files[:2], "--write", *words)
    assert (code, replays.played) == (1, [1, 2]), out
    assert "known from the log" not in out
    assert [read_result(Path(file)).status for file in files[:2]] == ["self-reported", "reproduced"]


def test_no_log_at_all_stops_nothing(files: list[str], replays: Replays, typed: Typed) -> None:
    """A cache that cannot be written: everything is played, and nothing is known the next time."""
    replay_folder.cache().parent.write_text("a file")
    for _ in range(2):
        code, out, err = typed("verify", *files[:2])
        assert (code, out.splitlines()[-1]) == (0, "log: no log")
        assert mentions(err, "stopped", "begin")
    assert replays.played == [1, 2, 1, 2]


def test_what_is_known_is_in_every_log_once(
    files: list[str], replays: Replays, typed: Typed
) -> None:
    assert typed("verify", files[0], "--log", "one.jsonl")[0] == 0
    for _ in range(2):
        assert typed("verify", *files[:2], "--log", "two.jsonl")[0] == 0
    assert replays.played == [1, 2]
    assert read_audits(Path("two.jsonl")) == own_audits()
    assert [one.file for one in own_audits()] == files[:2]


def test_a_relative_cache_is_none(
    files: list[str], replays: Replays, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would be beside the files in whose folder the command is typed."""
    monkeypatch.chdir(tmp_path)
    for value in ("cache", "./cache", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert replay_folder.cache() == Path.home() / ".cache/flbench/verify"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    praising(Path(files[0]), own_log())
    assert own_log() == tmp_path / "flbench" / "verified.jsonl"
    assert len(own_audits()) == 1
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert own_audits() == [], "it is somebody else's"


@pytest.mark.parametrize("count", [1, 2])
def test_a_file_that_is_changed_while_it_is_played_is_not_called_reproduced(
    count: int, files: list[str], replays: Replays, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = replays.__call__

    def changing(result: Result, *args: object, **words: Any) -> Any:
        forged(read_result(Path(files[0])), Path(files[0]))
        return played(result, *args, **words)

    monkeypatch.setattr(auditing, "replay", changing)
    code, out, err = typed("verify", *files[:count], "--write")
    assert mentions(out + err, "changed", "played")
    assert code == (count == 1)
    assert read_result(Path(files[0])).status == "self-reported"
    assert read_result(Path(files[0])).summary["accuracy_mean"] == 1


LONG = "/".join(["x" * 90] * 3)


@pytest.mark.parametrize("folder", ["a\nb", "\x1b[31m", LONG, "\udcff", "\u202e"])
def test_a_file_has_a_line_in_the_log_wherever_it_lies(
    folder: str, files: list[str], replays: Replays, typed: Typed
) -> None:
    there = Path(folder, "seed-0.json")
    there.parent.mkdir(parents=True)
    Path(files[0]).rename(there)
    code, out, err = typed("verify", str(there), files[1], "--log", "log.jsonl")
    assert (code, replays.played) == (0, [1, 2]), err
    assert mentions(out, "2 agree", "2 of them")
    for log in (Path("log.jsonl"), own_log()):
        first, second = (one.file for one in read_audits(log))
        assert second == files[1]
        assert len(first) <= 200
        assert first.isprintable()
        assert first.endswith("seed-0.json")
    assert "(known from the log)" in typed("verify", str(there), files[1])[1]


def test_a_file_in_another_s_place_is_told(
    result: Result, replays: Replays, typed: Typed, tmp_path: Path
) -> None:
    own = Path(result.method.name, result.fingerprint.config, "seed-0.json")
    text, places = result.canonical(), (own, own.with_name("seed-1.json"), Path("ditto/01234567"))
    for place in (*places[:2], places[2] / "seed-0.json"):
        write_atomically(tmp_path / "R" / place, text.encode())
    _, out, _ = typed("verify", "R")
    told = [line.partition(": ")[2] for line in out.splitlines()[:3]]
    held = f": it holds another run than its place says: {own.as_posix()}"
    assert [line.endswith(held) for line in told] == [True, False, True]
    _, out, _ = typed("verify", f"R/{places[1].as_posix()}")
    assert out.splitlines()[-1] == held.removeprefix(": ")


def test_a_file_that_is_no_log_stays_as_it_is(
    files: list[str], replays: Replays, typed: Typed, tmp_path: Path
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    code, _, err = typed("verify", "R", "--log", "notes.txt")
    assert (code, notes.read_text(), replays.played) == (1, "mine", [])
    assert mentions(err, "notes.txt", "a log of audits")


@pytest.mark.usefixtures("data")
def test_a_folder_whose_data_are_elsewhere_is_one_line(
    files: list[str], typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "at_hand", lambda found, root: [])
    code, _, err = typed("verify", "R", "--sample", "1")
    assert code == 1
    assert mentions(err, "its 4 result files all lack", "--data-root")


@pytest.mark.parametrize("more", [False, True])
def test_a_folder_without_results_is_refused(
    more: bool, files: list[str], replays: Replays, typed: Typed
) -> None:
    Path("empty").mkdir()
    code, _, err = typed("verify", "empty", *(files[:1] if more else []))
    assert (code, replays.played) == (1, [])
    assert err == mentioning("empty", "result file", "found none")


def test_write_calls_those_reproduced_that_agree(
    files: list[str], result: Result, replays: Replays, typed: Typed
) -> None:
    replays.changes[2.0] = {"bytes": {}}
    code, out, _ = typed("verify", *files[:2], "--write")
    assert code == 1
    assert f"  {files[0]} is called reproduced" in out.splitlines()
    assert read_result(Path(files[0])).status == "reproduced"
    assert read_result(Path(files[1])).status == "self-reported"
    command = "flbench leaderboard --suite=toy"
    assert out.splitlines()[-1] == mentioning("1 file", command)
    del replays.played[:]
    _, out, _ = typed("verify", *files[:2], "--write")
    assert replays.played == [], "the status is no content"
    assert "called reproduced" not in out, "it is already"


def test_what_was_killed_before_it_wrote_the_status_writes_it_later(
    files: list[str], result: Result, replays: Replays, typed: Typed
) -> None:
    assert typed("verify", *files[:2])[0] == 0
    _, out, _ = typed("verify", *files[:2], "--write")
    assert replays.played == [1, 2], "the log knows that they agree"
    assert [read_result(Path(file)).status for file in files[:2]] == ["reproduced"] * 2
    table = json.loads(Path(files[2]).read_text())
    change = {"round": 1, "plugin": "fedavg", "before": "a", "after": "b"}
    mixed = Result.model_validate({**table, "source_changes": [change]})
    write_atomically(Path(files[2]), mixed.canonical().encode())
    _, out, _ = typed("verify", *files[1:3], "--write")
    assert mentions(out.splitlines(), files[2], "changed")
    assert read_result(Path(files[2])).status == "self-reported"


# --- audits -------------------------------------------------------------------------------------


def found(seconds: list[float]) -> list[tuple[Path, Result]]:
    """Files with so many seconds, one for each."""
    return [(Path(f"{at}.json"), made(seed=at, seconds=one)) for at, one in enumerate(seconds)]


def line_of(result: Result, **changes: Any) -> Audit:
    told = {
        "file": "f", "run": "r", "digest": content_digest(result), "outcome": "agrees",
        "rounds": 3, "whole": True, "tolerance": 0.01, "seconds": 1.0, "date": "2026-01-02",
        "flbench": "0.2.0", "torch": "2.0", "sources": {},
    }  # fmt: skip
    return Audit.model_validate(told | changes)


def test_the_lot_is_that_of_the_seed_and_of_nothing_else() -> None:
    here = found([5, 4, 3, 2, 1, 6, 7, 8])
    one = draw(here, [], 3, seed=0)
    assert len({*one}) == 3
    assert draw(here[::-1], [], 3, seed=0) == one
    draws = {tuple(draw(here, [], 3, seed=seed)) for seed in range(20)}
    assert len(draws) > 10
    drawn = {path for paths in draws for path in paths}
    assert drawn == {path for path, _ in here}, "every file can be drawn"
    assert draw(here, [], 99, seed=0) == sorted(
        (path for path, _ in here), key=lambda path: dict(here)[path].seconds["total"]
    ), "short runs first"


def test_what_was_audited_least_is_drawn_first_so_an_audit_goes_on() -> None:
    here = found([1.0] * 6)
    by_path = dict(here)
    first = draw(here, [], 2, seed=0)
    second = draw(here, [line_of(by_path[path]) for path in first], 2, seed=0)
    assert not {*first} & {*second}
    assert {*first, *second} == {*draw(here, [], 4, seed=0)}, "the same four, in two steps"


def test_rows_that_were_never_audited_come_first() -> None:
    """Three seeds of a row, of which one was audited, and one seed of each of two others."""
    here = found([1.0] * 5)
    folders = ["a", "a", "a", "b", "c"]
    placed = [
        (Path(folder, path.name), result)
        for folder, (path, result) in zip(folders, here, strict=True)
    ]
    audits = [line_of(placed[0][1])]
    for seed in range(8):
        drawn = draw(placed, audits, 4, seed=seed)
        assert {path.parent.name for path in draw(placed, audits, 2, seed=seed)} == {"b", "c"}
        assert placed[0][0] not in drawn, "of a row, files that were audited least"
    path, result = placed[3]
    placed[3] = path, result.model_copy(update={"status": "reproduced"})
    assert draw(placed, audits, 1, seed=0) == [placed[4][0]]


def test_a_sample_is_spread_over_methods_and_rows() -> None:
    """Four methods with three rows of two seeds each: of one of them all rows were audited."""
    placed, audits = [], []
    for at, (method, row, seed) in enumerate(product("abcd", range(3), range(2))):
        one = made(seed=seed, seconds=float(at), method=method)
        placed.append((Path(method, str(row), f"{seed}.json"), one))
        audits += [line_of(one)] if method == "d" else []
    for seed in range(8):
        drawn = draw(placed, audits, 6, seed=seed, methods=4)
        assert {path.parts[0] for path in drawn} == set("abcd"), "also the audited one"
        assert len({path.parent for path in drawn}) == 6
        assert drawn == sorted(drawn, key=lambda path: dict(placed)[path].seconds["total"])
        assert {path.parts[0] for path in draw(placed, audits, 9, seed=seed)} == set("abc")
    assert len(draw(placed, audits, 99, seed=0, methods=1)) == 12, "one of each row"
    with pytest.raises(UserError, match=mention("--methods 5", "4 methods")):
        draw(placed, audits, 9, seed=0, methods=5)


def test_an_audit_of_other_code_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from flbench.leaderboard import audited

    monkeypatch.setattr(audited, "installed_source", lambda name: "new")
    here = found([1.0] * 6)
    first = draw(here, [], 2, seed=0)
    old = [line_of(dict(here)[path], sources={"fedavg": "old"}) for path in first]
    assert draw(here, old, 2, seed=0) == first
    new = [line_of(dict(here)[path], sources={"fedavg": "new"}) for path in first]
    assert draw(here, new, 2, seed=0) != first


def test_an_audit_of_fewer_rounds_does_not_count() -> None:
    here = found([1.0] * 6)
    first = draw(here, [], 2, seed=0)
    part = [line_of(dict(here)[path], whole=False, rounds=2) for path in first]
    assert draw(here, part, 2, seed=0) == draw(here, part, 2, seed=0, rounds=3) == first
    assert not {*draw(here, part, 2, seed=0, rounds=2)} & {*first}
    other = [one.model_copy(update={"outcome": "differs", "rounds": 0}) for one in part]
    assert not {*draw(here, other, 2, seed=0)} & {*first}, "they were not played, as they differ"


def test_long_runs_can_be_left_out() -> None:
    here = found([1.0, 5.0, 2.0])
    assert draw(here, [], 9, seed=0, most_seconds=2) == [Path("0.json"), Path("2.json")]
    with pytest.raises(UserError, match=mention("0.5 seconds", "3")):
        draw(here, [], 9, seed=0, most_seconds=0.5)


def test_the_first_rounds_take_their_share_of_the_seconds() -> None:
    (_, long), *_ = found([6.0])
    assert long.suite["rounds"] == 3
    assert [expected_seconds(long, rounds) for rounds in (None, 1, 2, 9)] == [6, 2, 4, 6]
    late = long.model_copy(update={"suite": {**long.suite, "eval_every": 2}})
    assert [first_rounds(late, most) for most in (None, 1, 2, 9)] == [3, 2, 2, 3]
    here = found([1.0, 6.0])
    assert draw(here, [], 9, seed=0, most_seconds=2) == [Path("0.json")]
    assert draw(here, [], 9, seed=0, most_seconds=2, rounds=1) == [Path("0.json"), Path("1.json")]


def test_only_runs_whose_data_are_there_are_drawn(tmp_path: Path) -> None:
    (_, one), *_ = found([1.0])
    here = ["digits", "rotated:digits"]
    names = [*here, "npz:mine.npz", "rotated:csv:digits", "hub:digits", "fashion-mnist"]
    names += ["rotated:mnist", "digit-5[mnist,usps]", "nobody-has-it"]
    many = [
        (Path(name), one.model_copy(update={"suite": {**one.suite, "dataset": name}}))
        for name in names
    ]
    assert [path.name for path, _ in at_hand(many, tmp_path)] == here


def test_only_runs_whose_kind_of_device_is_there_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, one), *_ = found([1.0])
    suite = {**one.suite, "dataset": "digits"}
    many = [
        (Path(device), one.model_copy(update={"environment": {"device": device}, "suite": suite}))
        for device in ("cpu", "cuda:0", "")
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [path.name for path, _ in at_hand(many, tmp_path)] == ["cpu", ""]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert at_hand(many, tmp_path) == many


def test_what_is_left_out_is_counted(
    files: list[str], replays: Replays, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "at_hand", lambda found, root: found[1:])
    code, out, _ = typed("verify", "R", "--sample", "1")
    assert code == 0
    assert mentions(out, "1 of 3 result", "1 lack")


def test_a_line_of_the_log_names_the_code_of_networks_outside_the_core(result: Result) -> None:
    suite = {**result.suite, "model": {"name": "fedopt-cnn"}}
    verdict = FileVerdict(
        Path("f"), result.model_copy(update={"suite": suite}), 1, None, (), "", 1.0
    )
    line = audit_of(verdict, AuditTask(Path("f"), "f", 3, 0.01, Path()))
    assert line.sources["network fedopt-cnn"] == installed_source("network fedopt-cnn") != ""


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--methods", "2"], "--sample N"), (["--seed", "0"], "--sample N"),
        (["--most-seconds", "9"], "--sample N"), (["--sample", "1", "--methods", "2"], "--methods"),
        (["--sample", "1", "--write", "--rounds", "1"], "drop --rounds"),
        (["R", "--sample", "1"], "2 paths"), (["R/1/seed-0.json", "--sample", "1"], "2 paths"),
    ],
)  # fmt: skip
def test_a_sample_is_drawn_from_one_folder_and_its_options_need_it(
    words: list[str], named: str, files: list[str], replays: Replays, typed: Typed
) -> None:
    code, _, err = typed("verify", "R", *words)
    assert code != 0
    assert named in err
    assert replays.played == []
    assert not Path("audits.jsonl").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_long_runs_can_be_audited_by_their_first_rounds(
    files: list[str], replays: Replays, typed: Typed
) -> None:
    code, out, _ = typed("verify", "R", "--sample", "9", "--rounds", "1")
    assert code == 0
    first, end = out.splitlines()[1], out.splitlines()[-2]
    assert "seed-0.json: agrees in its first 1 rounds, to the last byte (" in first
    assert end.startswith("4 agree, 4 of them to the last byte, 4 of them in their first rounds")
    assert mentions(out, "4 of 4 result", "3 s"), "a third of ten"
    assert {(one.rounds, one.whole) for one in read_audits(Path("audits.jsonl"))} == {(1, False)}


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_the_command_audits_others_every_time(
    files: list[str], replays: Replays, typed: Typed
) -> None:
    code, out, _ = typed("verify", "R", "--sample", "3")
    assert code == 0
    first, *_, last = out.splitlines()
    assert first.startswith("3 of 4 result files; they took ")
    assert last == "log: audits.jsonl"
    assert replays.played == sorted(replays.played)
    assert typed("verify", "R", "--sample", "1")[0] == 0
    assert sorted(replays.played) == [1, 2, 3, 4], "the one that was left"
    lines = read_audits(Path("audits.jsonl"))
    assert sorted(one.file for one in lines) == [f"{n}/seed-0.json" for n in range(1, 5)]
    assert typed("verify", "R", "--sample", "4")[0] == 0
    assert len(replays.played) == 8, "an audit runs again what the log knows"
    assert len(read_audits(Path("audits.jsonl"))) == 8
    replays.changes[1.0] = {"bytes": {}}
    assert typed("verify", "R", "--sample", "4", "--most-seconds", "1")[0] == 1
    assert typed("verify", "nowhere", "--sample", "1")[0] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_real_runs_come_out_the_same(
    result: Result, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stands in for the runs here: two in one process, and what the log holds of them."""
    monkeypatch.setattr("flbench.federation.loading.load_dataset", lambda name, root: toy_dataset())
    other = player(tmp_path / "other")("ifca").result
    for number, one in enumerate((result, other)):
        write_atomically(tmp_path / f"R/{number}/seed-0.json", one.canonical().encode())
    code, out, err = typed("verify", "R", "--sample", "2")
    assert code == 0, out + err
    assert mentions(out, "2 agree", "2 of them")
    (one, two) = read_audits(Path("audits.jsonl"))
    sources = {
        plugin.name: plugin.source for run in (result, other) for plugin in run.method.plugins
    }
    assert {**one.sources, **two.sources} == sources
    assert one.torch == result.environment["torch"]
    assert one.processor == result.environment["processor"] != ""
    known = {run.summary["trained_epochs"] for run in (result, other)}
    assert {one.trained_epochs, two.trained_epochs} == known
    assert (one.whole, one.rounds, one.flbench) == (True, 3, flbench.__version__)
