"""A small part of `python tests/faults determinism`; and that it finds what differs."""

from __future__ import annotations

import sys
from pathlib import Path

import determinism
import pytest
from determinism import Surroundings, differing, lasting, results, typed_in
from forked import typed
from made_results import made

WORDS = ["-p", "pfedlia", "--set", "warmup=2", "--set", "probe_epochs=2"]


@pytest.mark.slow
@pytest.mark.long
def test_other_surroundings_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    suite = tmp_path / "small.toml"
    suite.write_text(determinism.SUITE, encoding="utf-8")
    words = ["run", "-s", str(suite), "--out", "out", *WORDS]
    code, _, errors = typed(words, tmp_path / "plain")
    assert code == 0, errors
    other = Surroundings(
        "other",
        environ=(("PYTHONHASHSEED", "1"), ("TZ", "Pacific/Kiritimati"), ("LC_ALL", "C")),
        flags=("-O",),
        folder="a b/\u00e9/deep",
        umask=0o077,
    )
    code, output = typed_in(tmp_path, WORDS, other)
    assert code == 0, output
    expected, found = (results(tmp_path / at / "out") for at in ("plain", other.folder))
    assert len(expected) == 1
    assert differing(expected, found) == {}


def test_what_lasts_is_compared_byte_by_byte() -> None:
    one = made(0.5)
    again = one.model_copy(update={"environment": {"python": "9"}})
    other = made(0.6)
    expected, same, changed = ({"a": lasting(r.canonical())} for r in (one, again, other))
    assert one.canonical() != again.canonical()
    assert differing(expected, same) == {}
    assert set(differing(expected, changed)) == {"a"}
    assert differing(expected, {}) == {"a": len(expected["a"])}


def test_every_axis_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "version_of", lambda python: "3.99")
    names = determinism.names([sys.executable])
    around = [determinism.surroundings(name.split("|")[2]) for name in names]
    assert {one.kind for one in around} >= {"hash seed", "folder", "language", "time zone", "umask"}
    assert {one.kind for one in around} >= {"optimised", "terminal", "plain"}
    assert (around[-1].python, around[-1].kind) == (sys.executable, "Python 3.99")
    assert len(set(names)) == len(names)
