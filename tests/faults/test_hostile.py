"""A small part of `python tests/faults results` and `inputs`; and that they can fail."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import damaged_results
import hostile_inputs
import pytest
from fault_record import Fault
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_command import MARK, typed

from flbench.cli import main
from flbench.errors import FlbenchError
from flbench.results import files
from flbench.suite import load_suite


def wrong(found: list[Fault]) -> list[tuple[str, str, str]]:
    return [(one.name, one.wrong, one.message) for one in found if one.wrong]


# --- damaged results ----------------------------------------------------------------------------


@pytest.mark.slow
def test_damaged_results_are_refused_by_every_command() -> None:
    found = [damaged_results.inject(name) for name in damaged_results.names(100)]
    assert wrong(found) == []
    assert {one.kind for one in found} == set(damaged_results.DAMAGES)


@pytest.mark.slow
def test_a_whole_result_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the damage is what is refused."""
    monkeypatch.chdir(tmp_path)
    for run in damaged_results.RUNS:
        Path("seed-0.json").write_bytes(damaged_results.whole(run))
        done = typed("show", "result", "seed-0.json")
        assert (done.code, done.wrong) == (0, "")
        assert "its digest agrees" in done.output


@pytest.mark.slow
@pytest.mark.long
def test_without_a_digest_damaged_results_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_refuse_changed", lambda path, text: None)
    names = [name for name in damaged_results.names(300) if "edited" in name]
    found = [damaged_results.inject(name) for name in names]
    assert sum(one.wrong == "accepted" for one in found) > 10


# --- hostile inputs -----------------------------------------------------------------------------


@pytest.mark.slow
def test_hostile_inputs_are_one_line_and_leave_nothing_elsewhere() -> None:
    found = [hostile_inputs.inject(name) for name in hostile_inputs.names(66)]
    assert wrong(found) == []
    assert {one.outcome for one in found} == {"refused", "prepared", "accepted"}


@pytest.mark.slow
def test_a_traceback_and_a_file_elsewhere_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in hostile_inputs.names(22) if name.startswith("--plugin")]
    monkeypatch.setattr(main, "exit_code", lambda command: 1 // 0)
    assert {hostile_inputs.inject(name).wrong for name in names} == {"traceback"}

    def elsewhere(command: object) -> int:
        Path("../odd").write_text(MARK)
        return 0

    monkeypatch.setattr(main, "exit_code", elsewhere)
    assert {hostile_inputs.inject(name).wrong for name in names} == {"file outside"}

    def markup(command: object) -> int:
        Path("out/page.html").write_text(MARK)
        return 0

    monkeypatch.setattr(main, "exit_code", markup)
    assert {hostile_inputs.inject(name).wrong for name in names} == {"markup"}


@pytest.mark.slow
@settings(deadline=None, max_examples=60, derandomize=True)
@given(text=st.text(max_size=200), key=st.sampled_from(["clients", "dataset", "on", "local"]))
def test_a_suite_of_any_text_is_loaded_or_refused(text: str, key: str) -> None:
    file = Path(hostile_inputs.ROOT, "benchmarks", "iid.toml")
    whole = file.read_text(encoding="utf-8")
    odd = Path(files.tempfile.gettempdir()) / "flbench-odd.toml"
    for written in (text, f"{key} = {text}\n{whole}", f"{whole}\n{text}"):
        odd.write_text(written, encoding="utf-8", errors="surrogatepass")
        with suppress(FlbenchError):
            load_suite(str(odd))
    odd.unlink()


@pytest.mark.slow
@settings(deadline=None, max_examples=60, derandomize=True)
@given(key=st.sampled_from(hostile_inputs.keys()), value=st.text(max_size=60))
def test_a_setting_of_any_text_is_taken_or_refused(key: str, value: str) -> None:
    words = ("run", "-p", "ifca", "-s", "iid", "--rounds", "1", "--set", f"{key}={value}")
    with hostile_inputs.bounded():
        done = typed(*words)
    assert done.wrong == ""
    assert done.code != 0
