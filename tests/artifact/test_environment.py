"""Environment of an artifact: pinned versions, and the source as pip takes it."""

from __future__ import annotations

import importlib.metadata
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from mentions import mention
from packaging.requirements import Requirement

import flbench
from flbench.artifact import environment
from flbench.errors import UserError


def test_everything_that_flbench_needs_is_pinned_to_what_is_installed() -> None:
    lines = environment.pinned(("flbench", "absent-package")).splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    needed = [Requirement(text) for text in importlib.metadata.requires("flbench") or []]
    plain = {one.name for one in needed if one.marker is None}
    assert plain <= pins.keys()
    assert "markupsafe" in pins, "what torch needs is pinned, too"
    assert all(version == importlib.metadata.version(name).partition("+")[0]
               for name, version in pins.items())  # fmt: skip
    assert "flbench" not in pins


@pytest.mark.slow
def test_the_archive_is_the_commit_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        options = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *options, *words], check=True)

    git("init", "-q")
    for part in environment.PARTS:
        folder = part if "." not in part and part != "LICENSE" else ""
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / (f"{part}/__init__.py" if folder else part)).write_text(part)
    (tmp_path / "other.txt").write_text("no part")
    git("add", ".")
    git("commit", "-qm", "begin")
    assert environment.uncommitted(tmp_path) == []
    first = environment.archive(tmp_path)
    (tmp_path / "flbench" / "__init__.py").write_text("changed")
    assert environment.uncommitted(tmp_path) == ["flbench/__init__.py"]
    assert environment.archive(tmp_path) == first
    with tarfile.open(fileobj=io.BytesIO(first)) as opened:
        names = opened.getnames()
    assert any(name.endswith("/flbench/__init__.py") for name in names)
    assert not any(name.endswith("other.txt") for name in names)
    assert len(environment.commit(tmp_path)) == 40


def test_a_folder_that_git_does_not_know_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=mention("git", "clone")):
        environment.commit(tmp_path)


def test_the_source_is_the_clone_whose_core_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, site, other = (tmp_path / name for name in ("clone", "site", "other"))
    for root in (clone, site, other):
        shutil.copytree(
            Path(flbench.__file__).parent, root / "flbench",
            ignore=lambda folder, names: [name for name in names if name == "__pycache__"],
        )  # fmt: skip
    for root in (clone, other):
        (root / ".git").mkdir()
    monkeypatch.setattr(flbench, "__file__", str(site / "flbench" / "__init__.py"))
    assert environment.source_root(clone / "leaderboard" / "results") == clone
    assert environment.source_root(tmp_path / "else") is None
    (other / "flbench" / "metrics.py").write_text("changed = 1")
    assert environment.source_root(other) is None, "it is not what runs"
    monkeypatch.setattr(flbench, "__file__", str(clone / "flbench" / "__init__.py"))
    assert environment.source_root(tmp_path) == clone
