"""What a run keeps beside its result: names, digests, and a result that names other files."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_runs import SAVED, kept_spec, played_to_disk
from mentions import mention, mentions
from toy import Play

from flbench.errors import UserError
from flbench.results.audits import content_digest
from flbench.results.files import read_result, save_result
from flbench.results.kept_files import KeepOptions, digest_of_file, said_of_saved, saved_path
from flbench.results.schema import Result, SavedFile


def test_the_digest_of_a_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "abc"
    path.write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert digest_of_file(path) == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_saved_files_that_were_changed_are_refused_and_missing_ones_said(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, rounds=1)
    result = played_to_disk(spec)
    assert read_result(spec.path) == result
    path = saved_path(spec.path, "predictions", 0)
    assert said_of_saved(spec.path, result).count("as the run wrote it") == 2
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=mention(path.name, "SHA-256")):
        said_of_saved(spec.path, result)
    path.unlink()
    assert mentions(said_of_saved(spec.path, result), path.name, "not beside it")
    assert said_of_saved(spec.path, result.model_copy(update={"saved": None})) == ""


@pytest.mark.parametrize(
    "name",
    ["seed-1.models.safetensors", "../seed-0.models.safetensors", "/etc/passwd", "seed-0.json"],
)
def test_a_result_names_no_other_file(name: str, tmp_path: Path, play_toy: Play) -> None:
    result = play_toy("fedavg", rounds=1).result
    named = {"models": SavedFile(name=name, sha256="0" * 64)}
    path = tmp_path / "seed-0.json"
    save_result(path, result.model_copy(update={"saved": named}))
    with pytest.raises(UserError, match=mention("saved.models.name", "seed-0.models.safetensors")):
        read_result(path)


def test_what_is_saved_changes_no_digest_of_the_content(play_toy: Play) -> None:
    result = play_toy("fedavg", rounds=1).result
    read = Result.model_validate(result.model_dump(exclude={"saved"}))
    named = {"models": SavedFile(name="seed-0.models.safetensors", sha256="0" * 64)}
    assert content_digest(read.model_copy(update={"saved": named})) == content_digest(read)


def test_what_a_complete_result_lacks(tmp_path: Path) -> None:
    spec = kept_spec(tmp_path, keep=KeepOptions(models=True), rounds=1)
    result = played_to_disk(spec)
    assert spec.lacking(result) == []
    asked = kept_spec(tmp_path, keep=KeepOptions(True, True, True), rounds=1)
    assert asked.lacking(result) == ["saved predictions", "a checkpoint"]
    assert KeepOptions().saved == []
    assert SAVED.saved == ["models", "predictions"]
