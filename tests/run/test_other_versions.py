"""Results that other versions of a method have of the same settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kept_runs import kept_spec, played_to_disk

from flbench.engine.options import EngineOptions
from flbench.errors import UserError
from flbench.results.files import save_result
from flbench.results.schema import Result
from flbench.run.other_versions import (
    file_of_another_version,
    file_of_any_version,
    result_of_any_version,
)
from flbench.run.spec import RunSpec


@pytest.fixture
def ran(tmp_path: Path) -> tuple[RunSpec, Result]:
    """A run whose result is no longer at its place."""
    spec = kept_spec(tmp_path, rounds=1)
    result = played_to_disk(spec)
    spec.path.unlink()
    return spec, result


def put(spec: RunSpec, result: Result, folder: str, version: str) -> Path:
    """The result beside those of the run, as another version would have written it."""
    method = result.method.model_dump()
    method["plugins"][0]["version"] = version
    marks = result.fingerprint.model_copy(update={"config": folder})
    changed = {"method": type(result.method).model_validate(method), "fingerprint": marks}
    path = spec.path.parent.with_name(folder) / spec.path.name
    path.parent.mkdir()
    save_result(path, result.model_copy(update=changed))
    return path


def test_the_newest_other_version_stands_in(ran: tuple[RunSpec, Result]) -> None:
    spec, result = ran
    assert file_of_any_version(spec) is file_of_another_version(spec) is None
    put(spec, result, "a", "0.10")
    newest = put(spec, result, "b", "0.11.dev1")
    put(spec, result, "c", "0.9")
    put(spec, result, "d", "?")  # of a package without metadata
    assert file_of_any_version(spec) == newest
    assert file_of_another_version(spec) == newest.parent.with_name("a") / newest.name
    save_result(spec.path, result)
    assert file_of_any_version(spec) == spec.path


def test_a_copy_in_no_run_s_place_is_none_of_them(ran: tuple[RunSpec, Result]) -> None:
    """Such as a folder that was renamed by hand; in the run's own place it is refused."""
    spec, result = ran
    path = put(spec, result, "a", "0.0.1")
    kept = path.parent.with_name("kept") / path.name
    kept.parent.mkdir()
    kept.write_bytes(path.read_bytes())
    path.unlink()
    assert file_of_any_version(spec) is file_of_another_version(spec) is None
    spec.path.parent.mkdir(exist_ok=True)
    spec.path.write_bytes(kept.read_bytes())
    with pytest.raises(UserError, match=r"holds another run, fedavg/a/seed-0\.json: move it there"):
        result_of_any_version(spec)


def test_another_precision_is_no_other_version(ran: tuple[RunSpec, Result]) -> None:
    spec, result = ran
    put(spec, result, "a", result.method.plugins[0].version)
    assert file_of_another_version(spec) is None
    path = put(spec, result, "b", "0.0.1")
    assert file_of_another_version(spec) == path
    mixed = EngineOptions(accelerator="cpu", precision="bf16-mixed")
    assert file_of_another_version(replace(spec, engine=mixed)) is None
