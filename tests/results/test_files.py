"""Result files: canonical text, written whole or not at all, read with one clear line."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mentions import mention, mentioning, mentions
from toy import Play, player

from flbench.core.state import Scores
from flbench.datasets import data_root
from flbench.errors import MachineError, UserError
from flbench.results import files
from flbench.results.files import (
    PARTIAL,
    atomic_write,
    plain_path,
    read_bounded,
    read_result,
    read_results,
    read_skips,
    real_path,
    refuse_unwritable,
    remove_partial_files,
    result_path,
    save_result,
    slug,
    user_path,
    write_atomically,
)
from flbench.results.schema import (
    SCHEMA,
    VOLATILE,
    Change,
    Result,
    ScoreMatrix,
    Skip,
    check_note,
    unfit,
)
from flbench.results.score_encoding import decode, encode
from flbench.run.history import History
from flbench.submission.replay_folder import cache


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return player(tmp_path_factory.mktemp("toy"))("fedavg").result


def rejected(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_result(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


def changed(result: Result, **changes: Any) -> str:
    table = json.loads(result.canonical())
    return json.dumps({**table, **changes})


def older(table: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A file's table as version 2 had it, which has no digest."""
    rest = {key: value for key, value in table.items() if key != "digest"}
    return {**rest, "schema_version": 2, **changes}


RARE = {"client_metrics", "energy", "own", "saved", "source_changes", "suite_plugins", "task"}
"""Keys that a file has only where there is something to say."""


def test_canonical_text_has_one_sorted_line_per_top_level_key(result: Result) -> None:
    text = result.canonical()
    first, *lines, last, nothing = text.split("\n")
    assert (first, last, nothing) == ("{", "}", "")
    keys = [json.loads("{" + line.removesuffix(",") + "}").popitem()[0] for line in lines]
    assert keys == sorted({*Result.model_fields, "digest"} - RARE), "as in files from before them"
    assert all(line.endswith(",") for line in lines[:-1])
    assert not lines[-1].endswith(",")
    table = json.loads(text)
    del table["digest"]
    whole = result.model_dump(mode="json", exclude=RARE)
    assert table["clients"] == {k: v for k, v in whole["clients"].items() if k != "values"}
    assert {**table, "clients": 0} == {**whole, "clients": 0}


def test_canonical_text_is_sorted_in_depth(result: Result) -> None:
    shuffled = result.model_copy(
        update={
            "summary": dict(reversed(result.summary.items())),
            "suite": {**{"zz": {"b": 1, "a": 2}}, **result.suite},
        }
    )
    text = shuffled.canonical()
    assert '"zz":{"a":2,"b":1}' in text
    names: list[list[str]] = []
    json.loads(text, object_pairs_hook=lambda pairs: names.append([key for key, _ in pairs]))
    assert all(keys == sorted(keys) for keys in names)
    reordered = result.model_copy(update={"summary": dict(reversed(result.summary.items()))})
    assert reordered.canonical() == result.canonical()


@pytest.mark.slow
def test_two_runs_of_the_same_thing_differ_in_the_volatile_keys_only(
    result: Result, play_toy: Play
) -> None:
    same = {"seconds": {}, "environment": {}, "energy": None, "saved": None}
    again = play_toy("fedavg").result
    assert {*same, "digest"} == set(VOLATILE)
    one, other = (r.model_copy(update=same).canonical() for r in (result, again))
    assert one == other
    seeded = play_toy("fedavg", seed=1).result.model_copy(update=same)
    assert seeded.canonical() != one


def test_canonical_text_is_stable_over_a_file(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    write_atomically(path, result.canonical().encode())
    assert read_result(path) == result
    assert read_result(path).canonical().encode() == path.read_bytes()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", ["summary", "curves", "seconds"])
def test_numbers_that_are_none_are_refused(place: str, number: float, result: Result) -> None:
    table: dict[str, Any] = {**getattr(result, place)}
    table["accuracy_mean"] = [0.5, number] if place == "curves" else number
    with pytest.raises(ValueError, match="not JSON compliant"):
        result.model_copy(update={place: table}).canonical()


def test_the_path_of_a_result() -> None:
    path = result_path(Path("out"), "patho", "digits", "pfedlia+oracle", "0123abcd", 7)
    assert path.as_posix() == "out/patho/digits/pfedlia+oracle/0123abcd/seed-7.json"


def test_no_name_is_too_long_for_a_file_or_hides_another() -> None:
    assert slug("../../a b:c") == "a-b-c"
    one, other = slug("ä" * 200), slug("ä" * 199 + "b")
    assert one != other
    assert max(len(name.encode()) for name in (one, other)) <= 60
    assert slug("x" * 60) == "x" * 60


def test_a_written_file_is_whole_and_alone_and_its_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "seed-0.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a", "a/b", "file", "folder/new/b"])
def test_what_can_be_written_is_tried_without_a_trace(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    refuse_unwritable(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("name", "why"),
    [("file/b", "a part of the path is a file"), ("folder", "a folder is in the place of a file")],
)
def test_what_cannot_be_written_is_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one")
    (tmp_path / "folder").mkdir()
    with pytest.raises(MachineError, match=f"^{tmp_path / name}: .*; {why}"):
        refuse_unwritable(tmp_path / name)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """What another one writes just now is locked, and stays; so does what has another name."""
    left, written = tmp_path / ".a.json.abcd0123.partial", tmp_path / ".b.json.abcd0123.partial"
    others = [tmp_path / name for name in (".c.partial", "d.json.abcd0123.partial")]
    for file in (left, written, *others):
        file.write_bytes(b"half")
    (tmp_path / ".e.json.abcd0123.partial").mkdir()
    (tmp_path / ".e.json.abcd0123.partial" / "e.json").write_bytes(b"half")
    with written.open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        write_atomically(tmp_path / "other.json", b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([written, *others, tmp_path / "other.json"])


def removed_while_it_is_made(monkeypatch: pytest.MonkeyPatch, make: str) -> list[str]:
    """Lets another one lock the first temporary of two, and remove it when it is written to."""
    made, real = [], getattr(tempfile, make)

    def of_two(*args: Any, **kwargs: Any) -> Any:
        given = real(*args, **kwargs)
        made.append(name := given if isinstance(given, str) else given[1])
        if len(made) == 1:
            fcntl.flock(os.open(name, os.O_RDONLY), fcntl.LOCK_EX)
        return given

    monkeypatch.setattr(tempfile, make, of_two)
    return made


def test_what_another_process_is_about_to_remove_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between the making of the folder and the lock on it."""
    made = removed_while_it_is_made(monkeypatch, "mkdtemp")
    atomic_write(tmp_path / "a.json", lambda path: (os.rmdir(made[0]), path.write_bytes(b"whole")))
    assert (tmp_path / "a.json").read_bytes() == b"whole"
    assert len(made) == 2


def test_what_a_library_puts_in_the_place_of_the_file_is_locked_too(tmp_path: Path) -> None:
    """Another process looks for what killed ones left while the file is written."""

    def write(path: Path) -> None:
        path.with_name("other").write_bytes(b"whole")
        path.with_name("other").rename(path)
        remove_partial_files.__wrapped__(str(tmp_path))
        assert path.read_bytes() == b"whole"

    atomic_write(tmp_path / "a.json", write)
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_file_that_was_being_written_is_recognised(number: int, tmp_path: Path) -> None:
    code = f"""
        import os
        from pathlib import Path
        from flbench.cli.interruption import heed_interruptions
        from flbench.results.files import atomic_write
        heed_interruptions()
        atomic_write(Path("a.json"), lambda _: os.kill(os.getpid(), {int(number)}))
    """
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode != 0
    left = [file.name for file in tmp_path.iterdir()]
    assert len(left) == (number == signal.SIGKILL)
    assert all(PARTIAL.fullmatch(name) for name in left)
    ignored = (Path(__file__).parents[2] / ".gitignore").read_text().split()
    assert all(any(fnmatch(name, line) for line in ignored) for name in left)
    write_atomically(tmp_path / "b.json", b"whole")
    assert [file.name for file in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize("text", ["~nobody-of-this-name", "~nobody-of-this-name/a.csv"])
def test_a_user_that_there_is_not_has_no_folder(text: str) -> None:
    with pytest.raises(UserError, match=mention("nobody-of-this-name", "user")):
        user_path(text)


def test_no_home_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # so it is, of an unknown user
    assert user_path("a/~b") == Path("a/~b")
    monkeypatch.delenv("FLBENCH_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for needs in (lambda: user_path("~/a"), data_root, cache):
        with pytest.raises(UserError, match="HOME is not set"):
            needs()


def test_a_link_that_leads_back_can_be_named(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert real_path(loop / "a") == loop / "a"
    assert real_path(tmp_path / "b" / ".." / "c") == tmp_path / "c"


def test_folders_that_are_not_there_need_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    for text, plain in (
        ("a/../b", "b"), ("../b", "../b"), ("a/b/../../c", "c"), ("/../b", "/../b"),
        ("link/../b", "link/../b"), ("a/../link/../b", "link/../b"), ("./a/..", "."),
    ):  # fmt: skip
        assert plain_path(Path(text)) == Path(plain)
    path = result_path(Path("a/../b"), "suite", "data", "method", "0", 1)
    assert path.parts[:2] == ("b", "suite")


def test_what_was_there_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    path, former = tmp_path / "a", tmp_path / "former"
    for content in ("one", "two", "three"):
        atomic_write(path, lambda temporary, text=content: temporary.write_text(text), former)
    assert (path.read_text(), former.read_text()) == ("three", "two")
    assert sorted(tmp_path.iterdir()) == [path, former]


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    write_atomically(tmp_path / "a" / "b", b"one")
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_written_file_honours_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    path, before = tmp_path / "seed-0.json", os.umask(umask)
    try:
        write_atomically(path, b"one")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    ("number", "fails"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)]
)
def test_a_file_system_need_not_sync_folders(
    number: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", sync)
    path = tmp_path / "seed-0.json"
    with pytest.raises(MachineError, match="output error") if fails else nullcontext():
        write_atomically(path, b"one")
    assert path.read_bytes() == b"one"


@pytest.mark.parametrize("failing", ["replace", "chmod", "write_bytes"])
@pytest.mark.parametrize("error", [OSError(28, "disk full"), KeyboardInterrupt()], ids=repr)
def test_a_write_that_fails_leaves_nothing_behind(
    failing: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "seed-0.json"
    path.write_bytes(b"old")
    seen: list[list[Path]] = []

    def fail(*_: object) -> None:
        seen.append(sorted(tmp_path.iterdir()))
        raise error

    monkeypatch.setattr(Path if failing == "write_bytes" else os, failing, fail)
    with pytest.raises(MachineError if isinstance(error, OSError) else KeyboardInterrupt):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert len(seen[0]) == 2, "there was a temporary file"
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_folder_that_cannot_be_synced_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is in its place by then, so no temporary one is left to be removed."""
    path, sync = tmp_path / "seed-0.json", files._sync

    def fail(one: Path) -> None:
        if one.is_dir():
            raise OSError(errno.EIO, "Input/output error")
        sync(one)

    monkeypatch.setattr(files, "_sync", fail)
    with pytest.raises(MachineError, match="Input/output error"):
        write_atomically(path, b"whole")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"whole"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace = tmp_path / "seed-0.json", os.replace
    found: list[bytes] = []

    def look(source: str, target: Path) -> None:
        assert not path.exists()
        found.append(Path(source).read_bytes())
        assert list(read_results(tmp_path)) == [], "a temporary file is no result file"
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    write_atomically(path, b"whole")
    assert found == [b"whole"]


def test_a_file_that_is_not_there_or_no_json_is_one_line_naming_it(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    assert mentions(rejected(path), "read", "result")
    path.write_text("{ half")
    assert mentions(rejected(path), "read", "result")
    assert rejected(tmp_path) == mentioning("file", "got a folder")


def test_a_file_of_another_shape_is_one_line_naming_the_field(
    result: Result, tmp_path: Path
) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text("[]")
    assert rejected(path).startswith("no result file: ")
    path.write_text("{}")
    assert rejected(path) == mentioning("suite", "required")
    path.write_text(changed(result, seed="zero"))
    assert mentions(rejected(path), "seed", "integer")
    path.write_text(changed(result, status="verified"))
    assert rejected(path).startswith("no result file: 'status': ")
    path.write_text(changed(result, method={"name": "x", "params": {}, "plugins": [{}]}))
    assert rejected(path) == mentioning("method.plugins.0.name", "required")


def test_a_newer_schema_is_refused_whatever_else_the_file_says(
    result: Result, tmp_path: Path
) -> None:
    path = tmp_path / "seed-0.json"
    expected = f"schema version {SCHEMA + 1}, expected at most {SCHEMA}; upgrade flbench"
    path.write_text(changed(result, schema_version=SCHEMA + 1))
    assert rejected(path) == expected
    path.write_text(json.dumps({"schema_version": SCHEMA + 1}))
    assert rejected(path) == expected
    path.write_text(result.canonical())
    assert read_result(path) == result


def test_results_of_a_folder_come_in_path_order_and_nothing_else_is_read(
    result: Result, tmp_path: Path
) -> None:
    for seed, place in ((1, "b/x"), (0, "b/x"), (3, "a/y/z")):
        path = tmp_path / place / f"seed-{seed}.json"
        write_atomically(path, result.model_copy(update={"seed": seed}).canonical().encode())
    (tmp_path / "b" / "notes.json").write_text("not ours")
    found = list(read_results(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path, _ in found] == [
        "a/y/z/seed-3.json", "b/x/seed-0.json", "b/x/seed-1.json",
    ]  # fmt: skip
    assert [result.seed for _, result in found] == [3, 0, 1]
    assert list(read_results(tmp_path / "nowhere")) == []


def test_nan_is_refused_wherever_it_hides(play_toy: Play) -> None:
    result = play_toy("fedavg").result
    noted = result.model_copy(update={"notes": [{"round": 1, "name": "x", "value": float("nan")}]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        noted.canonical()


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b'{"schema_version": "x"}', b'{"schema_version": null}', b"[NaN]", b"[]"]
)
def test_what_is_no_result_file_is_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        read_result(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


# --- what is odd is refused in one line that names the field ------------------------------------


def put(table: dict[str, Any], field: str, value: object) -> dict[str, Any]:
    """A copy with another value at a dotted place; `...` takes it away."""
    copy: Any = json.loads(json.dumps(table))
    *way, last = (int(part) if part.isdigit() else part for part in field.split("."))
    place = copy
    for part in way:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dict(copy)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A file with scores of six clients, newcomers, a note, and a change of one client."""
    play = player(tmp_path_factory.mktemp("scored"))
    one = play("flis-hc", participation=1.0, server_samples=6, own_models=True).result
    table: dict[str, Any] = json.loads(one.canonical())
    table["membership"] = [
        {"round": 1, "labels": [0, 0, 0, 1, 1, 1], "clients": None},
        {"round": 2, "labels": [1], "clients": [0]},
    ]
    table["notes"] = [{"round": 1, "name": "x", "value": 1}]
    unseen = {"epochs": 1, "train": [1], "test": [2], "correct": [1], "correct_tuned": [2]}
    table["unseen"] = {**unseen, "group": None}
    f1 = {"name": "f1", "package": "p 1", "higher_is_better": True, "values": [0.5, None] * 3}
    table["client_metrics"] = {"f1": f1}
    return table


DEEP = json.loads("[" * 30 + "]" * 30)
LINE = "one line of at most 200 printable characters expected"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("suite.local", ..., "'suite.local': field required"),
        ("suite.clients", ..., "'suite.clients': field required"),
        ("suite.local.epochs", "<b>", "'suite.local.epochs': input should be a valid number"),
        ("suite.participation", "0.5", "'suite.participation': input should be a valid number"),
        ("suite.version", 0, "'suite.version': input should be greater than or equal to 1"),
        ("suite.dataset", ..., "'suite.dataset': field required"),
        ("suite.eval_every", [1], "'suite.eval_every': input should be a valid integer"),
        ("suite.eval_every", 0, "'suite.eval_every': input should be greater than or equal to 1"),
        ("suite.name", "a\nb", f"'suite.name': {LINE}"),
        ("suite.paper", "\x1b[31m", "'suite.paper': text without control characters"),
        ("suite.deep", DEEP, "'suite.deep': at most 20 levels expected"),
        ("dataset", " ", "'dataset': a name expected, got nothing"),
        ("dataset", "x" * 201, f"'dataset': {LINE}"),
        ("dataset", "\ud800", f"'dataset': {LINE}"),
        ("method.name", "a\u202eb", f"'method.name': {LINE}"),
        ("method.params.k", 10**400, "'method.params.k': numbers up to"),
        ("fingerprint.suite", "../up", "'fingerprint.suite': string should match pattern"),
        ("seed", -1, "'seed': input should be greater than or equal to 0"),
        ("summary.accuracy_mean", ..., "'summary.accuracy_mean': a number expected"),
        ("summary.accuracy_mean", None, "'summary.accuracy_mean': a number expected"),
        ("summary.accuracy_mean", 0.99, "'summary.accuracy_mean': 0."),
        ("summary.mb_per_client", -1.0, "'summary.mb_per_client': 0 to 9007199254740992 expected"),
        ("summary.ari", 10**400, "'summary.ari': "),
        ("curves.accuracy", [0.5], "'curves.accuracy': 3 rounds expected, got 1"),
        ("curves.accuracy.1", 1.5, "'curves.accuracy.1': 0 to 1 expected, got 1.5"),
        ("curves.loss.1", 1e200, "'curves.loss.1': numbers up to 1e+100 expected"),
        ("clients.test", [], "'clients.test': at least one client expected"),
        ("clients.train", [1], "'clients.train': 6 entries expected as in 'test', got 1"),
        ("clients.group", [0], "'clients.group': 6 entries expected as in 'test', got 1"),
        ("clients.labels", [{}], "'clients.labels': 6 entries expected as in 'test', got 1"),
        ("clients.labels.0", {"10000": 1}, "'clients.labels.0.10000': "),
        ("clients.labels.0", {"-1": 1}, "'clients.labels.0.-1': "),
        ("clients.correct.0", 10**6, "'clients.correct.0': at most the "),
        ("clients.correct.0", -1, "'clients.correct.0': input should be greater than or"),
        ("clients.group.0", 10**30, "'clients.group.0': input should be less than or"),
        ("suite.not_judged", [6], "'suite.not_judged': clients 0 to 5 expected, got 6"),
        ("suite.not_judged", [9], "'suite.not_judged': clients 0 to 5 expected, got 9"),
        ("suite.not_judged", "0", "'suite.not_judged': input should be a valid list"),
        ("suite.not_judged", [2], "'clients.test.2': 0 expected, as 'suite.not_judged' names"),
        ("client_metrics.f1.values", [1.0], "'client_metrics.f1.values': 6 entries expected"),
        ("client_metrics.f1.values.0", 1e200, "'client_metrics.f1.values.0': numbers up to"),
        ("client_metrics", {"loss": 3}, "'client_metrics.loss': input should be a valid"),
        ("client_metrics.f1.values", [None] * 7, "'client_metrics.f1.values': 6 entries expected"),
        ("suite_plugins", [], "'suite_plugins': nothing expected, as in 'suite'"),
        ("source_changes", [], "'source_changes': at least one entry, or nothing, expected"),
        ("curves.accuracy.1", -0.1, "'curves.accuracy.1': 0 to 1 expected, got -0.1"),
        ("unseen.correct.0", 3, "'unseen.correct.0': at most the 2 test samples expected, got 3"),
        ("unseen.correct_tuned", [], "'unseen.correct_tuned': 1 entries expected as in 'test'"),
        ("own", ..., "'own': field required, as 'suite.own_models' is true"),
        ("suite.own_models", ..., "'own': nothing expected, unless 'suite.own_models' is true"),
        ("own.correct.0", 4, "'own.correct.0': at most the 3 test samples expected, got 4"),
        ("own.trained", [True], "'own.trained': 6 entries expected as in 'test', got 1"),
        ("own.test.0", 9, "'own.test': the same numbers as in 'clients.test' expected"),
        ("membership.0.labels", [0], "'membership.0.labels': 6 entries expected, got 1"),
        ("membership.0.clients", [0], "'membership.0.clients': null expected: the first change"),
        ("membership.1.clients", [6], "'membership.1.clients': clients 0 to 5 expected, got 6"),
        ("membership.1.clients", [], "'membership.1.clients': at least one entry expected"),
        ("membership.1.clients", [1, 1], "'membership.1.clients': each once expected"),
        ("membership.1.labels", [1, 2], "'membership.1.labels': 1 entries expected, got 2"),
        ("membership.1.round", 10**9, "'membership.1.round': a round from 1 to 3, the last in"),
        ("membership.0.round", 3, "'membership.1.round': a round from 3 to 3, the last in"),
        ("curves", {}, "'membership.0.round': a round from 1 to 0, the last in"),
        ("membership.0.round", 0, "'membership.0.round': a round from 1 to 3, the last in"),
        ("membership.0.labels.0", -2, "'membership.0.labels.0': input should be greater than"),
        ("scores.cells", "AAAA", "'scores.cells': 36 bytes expected, one per row and column,"),
        ("scores.cells", "no base64", "'scores.cells': base64 expected"),
        ("scores.cells", "\u00e9", "'scores.cells': base64 expected"),
        ("scores.low", 1e9, "'scores.low': at most 'high', "),
        ("scores.high", 1e308, "'scores.high': numbers up to 1e+100 expected"),
        ("scores.row_ids", [], "'scores.row_ids': at least one entry expected"),
        ("scores.row_ids.0", 1, "'scores.row_ids': each once expected"),
        ("scores.column_ids.0", 6, "'scores.column_ids': clients 0 to 5 expected, got 6"),
        ("notes.0", {}, "'notes.0': a whole number 'round' and a text 'name' expected"),
        ("notes.0", {"round": 1, "name": "x"}, "'notes.0.value': field required"),
        ("notes.0.round", "1", "'notes.0': a whole number 'round' and a text 'name' expected"),
        ("notes.0.name", 1, "'notes.0': a whole number 'round' and a text 'name' expected"),
        ("tuning", {"budget": 0}, "'tuning.budget': input should be greater than or equal to 1"),
        (
            "tuning",
            {"budget": 2, "tried": 9, "seeds": [100], "score": "accuracy"},
            "'tuning.tried': at most the 2 of 'tuning.budget' expected, got 9",
        ),
        ("seconds", {"train": -3.0}, "'seconds.train': input should be greater than or equal to 0"),
        ("seconds", {"a\nb": 1.0}, f"'seconds.a\\nb': {LINE}"),
    ],
    ids=str,
)
def test_what_cannot_be_tabled_or_drawn_is_refused(
    field: str, value: object, told: str, scored: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps(older(scored)))
    read_result(path)
    path.write_text(json.dumps(put(scored, field, value)))
    assert rejected(path).startswith(f"no result file: {told}")


def test_numbers_that_follow_from_others_need_them(scored: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    target = put(scored, "summary.target", 0.5)
    path.write_text(json.dumps(older(target)))
    read_result(path)
    path.write_text(json.dumps(put(target, "curves.bytes_up", ...)))
    told = "no result file: 'curves.bytes_up': field required, as 'summary' has a target"
    assert rejected(path).startswith(told)
    nobody = put(scored, "clients.test", [0] * 6)
    path.write_text(json.dumps(put(nobody, "clients.correct", [0] * 6)))
    told = "no result file: 'clients.test': at least one client with test samples expected"
    assert rejected(path).startswith(told)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suite.paper", 2**53),
        ("suite.paper", -(2**53)),
        ("suite.deep", json.loads("[" * 20 + "]" * 20)),
        ("suite.deep", json.loads('{"a":' * 19 + "1" + "}" * 19)),
        ("dataset", "x" * 200),
        ("summary.mb_per_client", 0.0),
        ("summary.loss_mean", 1e100),
        ("summary.loss_mean", -1e100),
        ("curves.accuracy.1", None),
        ("curves.accuracy.1", 0.0),
        ("curves.accuracy.1", 1.0),
        ("clients.labels.0", {"9999": 1}),
        ("clients.group", [2**31, -1, 0, 0, 0, 0]),
        ("client_metrics.f1.values", [None] * 6),
        ("membership.1.round", 3),
        ("membership.1.clients", [5]),
        ("unseen.correct", [2]),
    ],
    ids=str,
)
def test_what_just_fits_is_read(
    field: str, value: object, scored: dict[str, Any], tmp_path: Path
) -> None:
    """Numbers, names, depths and ids at the end of what is allowed; the next one is refused."""
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps(older(put(scored, field, value))))
    read_result(path)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (2**53 + 1, "numbers up to 9007199254740992 expected"),
        (json.loads("[" * 22 + "]" * 22), "at most 20 levels expected"),
        (json.loads('{"a":' * 21 + "1" + "}" * 21), "at most 20 levels expected"),
        ({"a": float("nan")}, "finite numbers expected"),
        (["a\x00"], "text without control characters expected"),
    ],
    ids=str,
)
def test_a_note_is_refused_as_soon_as_it_is_made(value: object, told: str) -> None:
    check_note("loss", {"a": [1, 0.5, "b", None, True]})
    with pytest.raises(ValueError, match=f"^note 'loss': {told}"):
        check_note("loss", value)


def test_parts_of_a_result_to_be_are_checked_without_the_rest(scored: dict[str, Any]) -> None:
    suite = scored["suite"]
    assert list(unfit({"suite": suite})) == []
    assert list(unfit({"suite": suite, "seed": -1})) == [("seed", mentioning("0", "greater"))]
    ((field, _),) = unfit({"suite": {**suite, "clients": 0}})
    assert field == "suite.clients"


def test_a_client_that_is_not_judged_has_no_value_of_a_metric(
    scored: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "seed-0.json"
    table = put(older(scored), "suite.not_judged", [0])
    right = [
        a / b for a, b in zip(table["clients"]["correct"], table["clients"]["test"], strict=True)
    ][1:]
    for field in ("clients.test.0", "clients.correct.0", "own.test.0", "own.correct.0"):
        table = put(table, field, 0)
    table = put(table, "summary.accuracy_mean", sum(right) / 5)
    path.write_text(json.dumps(table))
    assert rejected(path) == mentioning("client_metrics.f1.values.0", "expected")
    path.write_text(json.dumps(put(table, "client_metrics.f1.values.0", None)))
    found = read_result(path)
    assert found.not_judged == [0]
    assert found.clients.headline_values().tolist() == right


def test_a_run_whose_code_changed_is_never_reproduced(
    scored: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "seed-0.json"
    change = {"round": 1, "plugin": "toy", "before": "01", "after": "23"}
    table = {**older(scored), "source_changes": [change]}
    path.write_text(json.dumps(table))
    assert read_result(path).status == "self-reported"
    path.write_text(json.dumps({**table, "status": "reproduced"}))
    assert mentions(rejected(path), "status", "self-reported")
    del table["source_changes"]
    path.write_text(json.dumps({**table, "status": "reproduced"}))
    assert read_result(path).status == "reproduced"


def test_a_metric_cannot_have_the_name_of_another_number(
    scored: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "seed-0.json"
    f1 = scored["client_metrics"]["f1"]
    path.write_text(json.dumps({**scored, "client_metrics": {"accuracy": f1}}))
    assert mentions(rejected(path), "client_metrics.accuracy", "expected")


def test_what_a_run_was_told_is_kept_without_what_moves_a_terminal(
    scored: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps(older(scored, warnings=["a\x1b[31m\tb"])))
    assert read_result(path).warnings == ["a\ufffd[31m\tb"]


def test_a_file_that_is_too_deep_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text("[" * 10**5)
    assert rejected(path) == mentioning("read", "result")


def test_an_odd_reason_is_refused_too(scored: dict[str, Any], tmp_path: Path) -> None:
    suite, method = scored["suite"], scored["method"]
    good = {"suite": suite, "suite_hash": "0", "dataset": "d", "method": method, "reason": "no"}
    path = tmp_path / "skipped.json"
    path.write_text(Skip(**good).canonical())
    assert path.read_text().endswith("}\n")
    assert list(read_skips(tmp_path)) == [Skip(**good)]
    odd: list[tuple[dict[str, Any], str]] = [
        ({"suite": {"name": "x"}}, "'suite.version': field required"),
        ({"suite_hash": "../up"}, "'suite_hash': string should match pattern"),
        ({"reason": 1}, "'reason': input should be a valid string"),
    ]
    for changes, told in odd:
        path.write_text(json.dumps(good))
        assert [one.reason for one in read_skips(tmp_path)] == ["no"]
        path.write_text(json.dumps({**good, **changes}))
        with pytest.raises(UserError) as caught:
            list(read_skips(tmp_path))
        assert str(caught.value).startswith(f"{path}: no reason file: {told}")


# --- version 2 --------------------------------------------------------------------------------


def test_a_file_of_version_1_is_still_read(result: Result, tmp_path: Path) -> None:
    table = json.loads(result.canonical())
    for new in ("scores", "tuning"):
        del table[new]
    del table["clients"]["labels"]
    table["membership"] = [
        {"round": round_, "labels": labels} for round_, labels in result.memberships()
    ]
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps(older(table, schema_version=1)))
    read = read_result(path)
    assert (read.schema_version, read.is_digested) == (2, False)
    assert (read.scores, read.tuning, read.clients.labels) == (None, None, None)
    assert read.memberships() == result.memberships()
    assert read.curves == result.curves


def test_memberships_are_whole_whatever_was_written_down(result: Result) -> None:
    changes = [
        Change(round=1, labels=[0, 0, 1]),
        Change(round=4, labels=[2], clients=[1]),
        Change(round=6, labels=[1, 1, 1]),
    ]
    one = result.model_copy(update={"membership": changes})
    assert one.memberships() == [(1, [0, 0, 1]), (4, [0, 2, 1]), (6, [1, 1, 1])]


def test_metrics_are_of_the_groups_of_the_round_that_the_summary_reports(result: Result) -> None:
    changes = [Change(round=round_, labels=[round_] * 6) for round_ in (1, 2, 3)]
    one = result.model_copy(update={"membership": changes})

    def shown(round_: int | None, first: int = 0) -> Any:
        summary = {**result.summary, "round": round_}
        update = {"summary": summary, "membership": changes[first:]}
        labels = one.model_copy(update=update).outcome().labels
        return None if labels is None else labels.tolist()

    assert [shown(round_)[0] for round_ in (1, 2, 3, None)] == [1, 2, 3, 3]
    assert shown(1, first=1) == [2] * 6, "before the first change: as from it on"
    assert shown(1, first=3) is None


def test_newcomers_accuracies_by_hand(scored: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps(older(scored)))
    newcomers = read_result(path).outcome().newcomers
    assert newcomers is not None
    found = {name: values.tolist() for name, values in newcomers.items()}
    assert found == {"unseen_accuracy": [0.5], "unseen_accuracy_tuned": [1.0]}


def test_a_whole_number_stays_one_however_often_it_is_written(
    result: Result, tmp_path: Path
) -> None:
    one = result.model_copy(update={"curves": {"groups": [1, 2.5, None]}})
    path = tmp_path / "seed-0.json"
    path.write_text(one.canonical())
    assert '"groups":[1,2.5,null]' in one.canonical()
    assert read_result(path).canonical() == one.canonical()


def test_scores_come_back_within_a_step(result: Result) -> None:
    values = np.array([[-3.0, 0.0, np.nan], [1.0, 2.0, 0.77]])
    cells, low, high = encode(values)
    matrix = ScoreMatrix(
        round=3, columns="clients", row_ids=[0, 1], column_ids=[0, 1, 2],
        low=low, high=high, cells=cells,
    )  # fmt: skip
    back = matrix.values()
    assert np.isnan(back[0, 2])
    assert np.nanmax(np.abs(back - values)) <= (high - low) / 508 + 1e-12
    assert (back[0, 0], back[1, 1]) == (-3.0, 2.0)


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.full((2, 3), np.nan)])
def test_a_matrix_without_a_range_can_be_kept(values: Any) -> None:
    cells, low, high = encode(values)
    assert np.array_equal(decode(cells, low, high, 2), values, equal_nan=True)
    assert (low, high) == (0.0, 0.0)


def test_the_last_of_the_largest_score_matrices_is_kept() -> None:
    def scores(rows: int, value: float, *, columns: int = 2) -> Scores:
        ids = torch.arange(rows)
        return Scores(torch.full((rows, columns), value), ids, "models", torch.arange(columns))

    history = History()
    history.add_scores(1, None)
    history.add_scores(2, scores(1, 1.0, columns=1))
    assert history.scores is None, "one number is no matrix"
    for round_, rows in ((3, 3), (4, 5), (5, 5), (6, 2)):
        history.add_scores(round_, scores(rows, float(round_)))
    assert history.scores is not None
    assert (history.scores.round, history.scores.values.tolist()) == (5, [[5.0] * 2] * 5)
    history.add_scores(7, scores(201, 1.0, columns=200))
    assert history.scores.round == 5, "too large to keep"


def test_scores_are_kept_as_they_were_when_measured() -> None:
    values = torch.tensor([[0.1, 0.7], [float("nan"), 1 / 3]])
    history = History()
    history.add_scores(4, Scores(values, torch.tensor([2, 5]), "clients", torch.tensor([5, 7])))
    values[:] = 0  # a method may use its tensor again
    kept = history.scores
    assert kept is not None
    assert (kept.round, kept.columns, kept.row_ids, kept.column_ids) == (
        4,
        "clients",
        [2, 5],
        [5, 7],
    )
    expected = torch.tensor([[0.1, 0.7], [float("nan"), 1 / 3]]).double()
    torch.testing.assert_close(kept.values, expected, rtol=0, atol=0, equal_nan=True)
    again = History.of(json.loads(json.dumps(history.copy().plain())), kept.values)
    assert again.scores is not None
    assert vars(again.scores) == vars(kept)


@pytest.mark.slow
def test_scores_are_encoded_once_and_as_in_every_round(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[tuple[str, float, float]] = []
    keep = History.add_scores

    def recorded(history: History, round_: int, scores: Scores | None) -> None:
        keep(history, round_, scores)
        if scores is not None:
            rounds.append(encode(scores.values.double().cpu().numpy()))

    monkeypatch.setattr(History, "add_scores", recorded)
    found = play_toy("flis-hc", participation=1.0, server_samples=6).result.scores
    assert found is not None
    assert (found.cells, found.low, found.high) == rounds[-1]


@pytest.mark.slow
def test_a_run_leaves_scores_and_label_counts(play_toy: Play) -> None:
    played = play_toy("flis-hc", participation=1.0, server_samples=6)
    result = played.result
    assert result.scores is not None
    assert result.scores.values().shape == (len(result.clients.train),) * 2
    assert result.clients.labels is not None
    assert [sum(counts.values()) for counts in result.clients.labels] == result.clients.train


def test_the_schema_in_the_docs_is_the_models() -> None:
    docs = Path(__file__).parents[2] / "docs"
    schema = json.loads((docs / "result.schema.json").read_text(encoding="utf-8"))
    assert schema == Result.model_json_schema(), "flbench show schema > docs/result.schema.json"
    told = (docs / "results.md").read_text(encoding="utf-8")
    assert [name for name in Result.model_fields if f"`{name}`" not in told] == []
    assert [name for name in VOLATILE if f"`{name}`" not in told] == []


# --- the digest ---------------------------------------------------------------------------------


def test_a_file_that_was_changed_is_refused(result: Result, tmp_path: Path) -> None:
    path, text = tmp_path / "seed-0.json", result.canonical()
    path.write_text(text)
    assert read_result(path).is_digested
    note = "the file was damaged or edited; take the one the run wrote"
    for changed_text in (text.replace("0.", "0.0", 1), text + "\n", text.replace("[", "[ ", 1)):
        path.write_bytes(changed_text.encode())
        assert rejected(path) == mentioning("digest", note)
    lines = text.splitlines(keepends=True)
    (line,) = [one for one in lines if one.startswith('"digest"')]
    moved = "".join([lines[0], line, *(one for one in lines[1:] if one != line)])
    assert json.loads(moved) == json.loads(text)
    path.write_text(moved)
    assert mentions(rejected(path), "digest", "text")
    layouts = json.dumps(json.loads(text)), text.replace("\n", "\r\n")
    for lost in (text.replace(line, ""), *layouts):
        path.write_bytes(lost.encode())
        assert mentions(rejected(path), "digest", "in a line")


def test_no_bit_of_a_file_can_be_flipped(result: Result, tmp_path: Path) -> None:
    path, data = tmp_path / "seed-0.json", result.canonical().encode()
    for bit in range(5, 8 * len(data), 8 * len(data) // 60):
        at, mask = divmod(bit, 8)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << mask]) + data[at + 1 :])
        with pytest.raises(UserError):
            read_result(path)


def test_a_digest_is_checked_whatever_the_version(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "seed-0.json"
    path.write_text(result.canonical().replace('"schema_version": 3', '"schema_version": 2'))
    assert mentions(rejected(path), "digest", "text")
    path.write_text(result.model_copy(update={"schema_version": 2}).canonical())
    assert not read_result(path).is_digested


def test_a_summary_holds_metrics_and_nothing_else(result: Result, tmp_path: Path) -> None:
    table = older(json.loads(result.canonical()))
    table["summary"]["accuracy_boosted"] = 1.0
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps(table))
    told = "no result file: 'summary.accuracy_boosted': the name of a metric expected"
    assert rejected(path) == told


# --- what is read at all ------------------------------------------------------------------------


def test_a_pipe_or_a_large_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "seed-0.json")
    assert rejected(tmp_path / "seed-0.json") == mentioning("file", "got a pipe")
    monkeypatch.setattr(files, "LARGEST", 99)
    (tmp_path / "seed-1.json").write_text(" " * 100)
    assert rejected(tmp_path / "seed-1.json") == "expected at most 99 bytes"


def test_a_file_of_16_mib_is_read_and_no_larger_one(
    tmp_path: Path, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "seed-0.json"
    path.touch()
    os.truncate(path, 2**24)
    assert len(read_bounded(path, files.LARGEST)) == 2**24
    os.truncate(path, 2**24 + 1)
    assert rejected(path) == "expected at most 16,777,216 bytes"
    monkeypatch.setattr(files, "LARGEST", len(result.canonical()))
    save_result(path, result)
    assert read_result(path) == result


def test_a_folder_that_cannot_be_read_hides_no_file(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        write_atomically(tmp_path / f"{seed}" / f"seed-{seed}.json", result.canonical().encode())
    scandir = os.scandir

    def forbidden(folder: Path) -> Any:
        if Path(folder).name == "1":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(MachineError, match=mention("/1", "Permission denied")):
        list(read_results(tmp_path))


# --- a result that cannot be written ------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Disks on which nothing can be written; the first one is that of the run."""
    disks = [tmp_path / "out"]

    def replaced(source: str, target: Path) -> None:
        if any(target.is_relative_to(disk) for disk in disks):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    replace = os.replace
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(files, "WAIT", 0)
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return disks


def test_a_result_is_saved_elsewhere_or_printed(
    full: list[Path], result: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "s" / "seed-0.json"
    for folder in ("here", "temporary"):
        with pytest.raises(MachineError, match=f"No space.*saved as {tmp_path / folder}"):
            save_result(path, result)
        (kept,) = (tmp_path / folder).iterdir()
        assert read_result(kept) == result
        full.append(tmp_path / folder)
    with pytest.raises(MachineError, match="on standard output"):
        save_result(path, result)
    assert capsys.readouterr().out == result.canonical()


def test_the_writing_of_a_result_is_retried(
    full: list[Path], result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "seed-0.json"
    monkeypatch.setattr(files.time, "sleep", lambda seconds: full.clear())
    save_result(path, result)
    assert read_result(path) == result


def test_it_is_tried_four_times_in_a_second_and_a_half(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(files.time, "sleep", waited.append)

    def fail(path: Path, data: bytes) -> None:
        raise MachineError("full")

    monkeypatch.setattr(files, "write_atomically", fail)
    with pytest.raises(MachineError, match=mention("result", "standard")):
        save_result(tmp_path / "seed-0.json", result)
    assert waited == [0.5] * 3


def test_a_result_that_could_not_be_read_is_written_and_told(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST", 99)
    with pytest.raises(UserError, match=mention("written", "bytes")):
        save_result(tmp_path / "seed-0.json", result)
    assert (tmp_path / "seed-0.json").read_text() == result.canonical()
