"""The log of audits: lines are appended whole, and a line that was cut off is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_results import made

from flbench.errors import MachineError, UserError
from flbench.results.audits import (
    LOG,
    Audit,
    append_audit,
    content_digest,
    latest,
    latest_part,
    read_audits,
    run_key,
)


def audit(**changes: Any) -> Audit:
    told = {
        "file": "toy/seed-0.json", "run": "c-0", "digest": "0" * 64, "outcome": "agrees",
        "rounds": 3, "whole": True, "tolerance": 0.01, "seconds": 1.5, "date": "2026-01-02",
        "flbench": "0.2.0", "torch": "2.0", "sources": {"fedavg": "abc"},
    }  # fmt: skip
    return Audit.model_validate(told | changes)


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    log = tmp_path / "new" / "audits.jsonl"
    assert read_audits(log) == []
    found = [audit(), audit(outcome="differs", how="accuracy by round: differs by 0.5\nand more")]
    for one in found:
        append_audit(log, one)
    assert read_audits(log) == found
    lines = log.read_bytes().splitlines()
    assert len(lines) == 2, "a line each, whatever stands in it"
    before = log.read_bytes()
    append_audit(log, audit(run="c-1"))
    assert log.read_bytes().startswith(before), "nothing that is there changes"


@pytest.mark.parametrize("cut", [2, 20, 200])
def test_a_line_that_was_cut_off_is_not_there_and_the_next_is_whole(
    cut: int, tmp_path: Path
) -> None:
    log = tmp_path / "audits.jsonl"
    append_audit(log, audit())
    append_audit(log, audit(run="c-1"))
    log.write_bytes(log.read_bytes()[:-cut])
    assert read_audits(log) == [audit()]
    append_audit(log, audit(run="c-2"))
    assert read_audits(log) == [audit(), audit(run="c-2")]


def test_a_last_line_without_its_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    """As an editor, or a merge by hand, leaves it."""
    log = tmp_path / "audits.jsonl"
    append_audit(log, audit())
    log.write_bytes(log.read_bytes()[:-1])
    assert read_audits(log) == [audit()]
    append_audit(log, audit(run="c-2"))
    assert read_audits(log) == [audit(), audit(run="c-2")]


@pytest.mark.parametrize("text", ["my notes", "a\nb", '{"status": "reproduced"}', "{\n}\n"])
def test_what_is_no_log_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=r"no audit|a log of audits"):
        read_audits(path)
    assert path.read_text() == text
    if not text.startswith("{"):
        with pytest.raises(UserError, match="expected a log of audits, got other text"):
            append_audit(path, audit())


def test_what_is_no_audit_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "audits.jsonl"
    append_audit(log, audit())
    line = json.loads(log.read_text())
    for bad, what in (
        ("{}", "line 2: no audit: 'file': field required"),
        ("what?", "line 2: no audit: "),
        (json.dumps({**line, "outcome": "fine"}), "'outcome'"),
        (json.dumps({**line, "date": "today"}), "'date'"),
        (json.dumps({**line, "date": "2026-02-30"}), "'date'"),
        (json.dumps({**line, "date": "2999-01-01"}), "'date'"),
        (json.dumps({**line, "rounds": 0}), "no round was played"),
        (json.dumps({**line, "how": "nothing was played"}), "nothing was played: 'differs'"),
    ):
        log.write_text(f"{json.dumps(line)}\n{bad}\n")
        with pytest.raises(UserError, match="line 2: no audit: ") as error:
            read_audits(log)
        assert what in str(error.value)
    with pytest.raises(MachineError):
        append_audit(tmp_path, audit())


def test_the_digest_is_of_the_content_and_not_of_the_status() -> None:
    one = made(0.5)
    assert content_digest(one) == content_digest(one.model_copy(update={"status": "reproduced"}))
    assert content_digest(one) != content_digest(made(0.25))
    assert content_digest(one) != content_digest(one.model_copy(update={"seconds": {"total": 9.0}}))
    assert run_key(made(seed=4)) == "c-fedavg-5u1te000-4"


def test_the_last_whole_audit_counts_and_a_difference_always_does() -> None:
    key = ("c-0", "0" * 64)
    first, last = audit(date="2026-01-01"), audit(date="2026-01-03")
    part = audit(whole=False, rounds=1)
    rounds = {"c-0": first.rounds}
    assert latest([first, last, part], rounds) == {key: last}
    wrong = audit(whole=False, rounds=0, outcome="differs")
    assert latest([last, wrong], rounds) == {key: wrong}
    assert latest([wrong, last], rounds) == {key: last}
    assert latest([part], rounds) == {}


def test_an_agreement_of_less_than_the_run_or_by_a_wider_tolerance_does_not_count() -> None:
    one, rounds = audit(date="2026-01-01"), {"c-0": audit().rounds}
    assert latest([one], {"c-0": one.rounds + 1}) == latest([one], {}) == {}
    wide = audit(tolerance=1.0)
    assert latest([wide], rounds) == {}
    assert latest_part([audit(tolerance=1.0, whole=False)]) == {}
    wrong = audit(tolerance=1.0, outcome="differs")
    assert list(latest([one, wrong], rounds).values()) == [wrong]


ROOT = Path(__file__).parents[2]


def test_the_log_of_the_repository_can_be_read() -> None:
    found = read_audits(ROOT / "leaderboard" / LOG)
    assert all(one.file.endswith(f"/seed-{one.run.rpartition('-')[2]}.json") for one in found)


def test_the_docs_name_every_key_of_a_line() -> None:
    text = (ROOT / "docs" / "submitting.md").read_text(encoding="utf-8")
    assert [name for name in Audit.model_fields if f"`{name}`" not in text] == []
