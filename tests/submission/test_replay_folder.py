"""A replay that was stopped goes on with its rounds, and leaves nothing when it has ended."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from mentions import mentioning, mentions
from toy import Play, Typed, toy_dataset

import flbench as fl
from flbench.errors import Diverged
from flbench.results.events import RoundRecord
from flbench.results.files import read_result, write_atomically
from flbench.run import runner
from flbench.run.core_digest import UNKNOWN
from flbench.run.run_folder import held
from flbench.submission import replay_folder
from flbench.terminal.console import Console

LOG = ("--log", "log.jsonl")


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch, checkpoint_every_round: None) -> None:
    """The toy's data are here."""
    monkeypatch.setattr("flbench.federation.loading.load_dataset", lambda name, root: toy_dataset())


@pytest.fixture
def file(play_toy: Play, tmp_path: Path) -> str:
    """A result of five rounds."""
    path = tmp_path / "here" / "seed-0.json"
    write_atomically(path, play_toy("pfedlia", rounds=5).result.canonical().encode())
    return str(path)


@pytest.fixture
def stopped(
    file: str, typed: Typed, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> str:
    """What is said when the command is stopped in round 3."""
    shown = Console.round_finished

    @fl.hookimpl
    def stop(self: Console, record: RoundRecord) -> None:
        shown(self, record)
        if record.round == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Console, "round_finished", stop)
        code, _, err = typed("verify", file, *getattr(request, "param", ()))
    assert code == 130
    assert len(list(replay_folder.cache().iterdir())) == 1
    return err


def rounds_of(err: str) -> list[int]:
    """The rounds whose lines were printed."""
    return [int(found) for found in re.findall(r"round (\d+)/5", err)]


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [(), LOG], indirect=True, ids=["alone", "log"])
def test_it_goes_on_after_its_last_whole_round(
    stopped: str, file: str, typed: Typed, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert mentions(stopped, "type", "again")
    words = request.node.callspec.params["stopped"]
    code, out, err = typed("verify", file, *words)
    assert code == 0, err
    assert "to the last byte" in out
    (last,) = re.findall(r"goes on after round (\d), where it was stopped", err)
    assert int(last) in (2, 3)
    assert min(rounds_of(err)) > int(last), "nothing is played twice"
    assert list(replay_folder.cache().iterdir()) == []
    assert sorted(one.name for one in (tmp_path / "here").iterdir()) == ["seed-0.json"]
    code, _, err = typed("verify", file)
    assert (code, "goes on" in err) == (0, False)


@pytest.mark.slow
def test_what_other_code_has_played_is_not_gone_on_with(
    stopped: str, file: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = replay_folder.cache().iterdir()
    monkeypatch.setattr(replay_folder, "code_of", lambda spec: {"pfedlia": "of tomorrow"})
    code, _, err = typed("verify", file)
    assert (code, "goes on" in err) == (0, False)
    assert list(replay_folder.cache().iterdir()) == [old]
    os.utime(old, (0, time.time() - replay_folder.LONGEST - 1))
    assert typed("verify", file)[0] == 0
    assert list(replay_folder.cache().iterdir()) == [], "a month has passed"


@pytest.mark.slow
def test_it_begins_anew_with_another_torch(
    stopped: str, file: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(replay_folder, "environment_of", lambda spec: {"core": "", "torch": "9.9"})
        assert "goes on after" not in typed("verify", file)[2]
    assert "goes on after" in typed("verify", file)[2]


@pytest.mark.slow
def test_it_begins_anew_where_the_sources_of_the_core_are_missing(
    stopped: str, file: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = replay_folder.cache().iterdir()
    monkeypatch.setattr(replay_folder, "folder_of", lambda *told: old)
    monkeypatch.setattr(replay_folder, "environment_of", lambda spec: {"core": UNKNOWN})
    code, _, err = typed("verify", file)
    assert (code, "goes on after" in err) == (0, False)


@pytest.mark.slow
def test_it_begins_anew_with_another_content(stopped: str, file: str, typed: Typed) -> None:
    result = read_result(Path(file))
    changed = result.model_copy(update={"warnings": ["another content"]})
    write_atomically(Path(file), changed.canonical().encode())
    assert "goes on after" not in typed("verify", file)[2]


@pytest.mark.slow
def test_it_begins_anew_with_another_number_of_rounds(
    stopped: str, file: str, typed: Typed
) -> None:
    code, _, err = typed("verify", file, "--rounds", "2")
    assert (code, "goes on" in err) == (0, False)
    assert "goes on after round" in typed("verify", file)[2]


@pytest.mark.slow
def test_one_that_diverges_is_not_kept(
    file: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: object) -> None:
        assert len(list(replay_folder.cache().iterdir())) == 1
        raise Diverged("round 5 diverged")

    monkeypatch.setattr(runner, "build_result", diverge)
    assert typed("verify", file)[0] == 3
    assert not replay_folder.cache().exists()


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_is_played_all_the_same(file: str, typed: Typed) -> None:
    replay_folder.cache().parent.mkdir()
    replay_folder.cache().write_text("a file")
    code, out, err = typed("verify", file)
    assert (code, out.splitlines()[-1]) == (0, mentioning("agrees", "last"))
    told = f"were it stopped, it would begin anew: {replay_folder.cache()}"
    assert told in err, err


@pytest.mark.slow
def test_two_commands_do_not_share_its_rounds(stopped: str, file: str, typed: Typed) -> None:
    (checkpoint,) = replay_folder.cache().rglob("*.checkpoint.safetensors")
    with held(checkpoint.with_name("seed-0.json")):
        code, _, err = typed("verify", file)
    assert (code, "goes on after" in err) == (0, False)
    assert "would begin anew: another process plays the same" in err
    assert "goes on after round" in typed("verify", file)[2]
