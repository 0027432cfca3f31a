"""The package of the tutorial: its code is what the pages show, it installs, and passes the kit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import plugins_page
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "docs" / "tutorial-package"
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\w+ (\S+\.\w+) ?(\S*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {"flbench_kindred.py", "pyproject.toml", "tests/test_kindred.py"}
STEPS = {"home = torch.as_tensor(fl.clustering.cut(merges, 0.8))"}
"""Lines of a step that the last one replaces."""


def test_the_last_block_of_each_file_is_the_file() -> None:
    whole = {file: text for file, mode, text in BLOCKS if not mode}
    assert {*whole} == FILES
    for file, text in whole.items():
        assert text == (PACKAGE / file).read_text(encoding="utf-8"), file


def test_every_step_is_on_the_way_to_the_package() -> None:
    """The nine lines, and what is added to them, are lines of the package."""
    final = {line.strip() for line in (PACKAGE / "flbench_kindred.py").read_text().splitlines()}
    steps = [text for file, _, text in BLOCKS if file == "flbench_kindred.py"]
    assert len(steps) == 5 and len(steps[0].splitlines()) == 9
    lines = {line.strip() for text in steps for line in text.splitlines()}
    assert lines - final == STEPS


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("packages")
    source = shutil.copytree(PACKAGE, folder / "source")  # pip builds where it lies
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--target", str(folder / "home"), str(source)], check=True)
    return folder / "home"


@pytest.mark.slow
@pytest.mark.long
def test_it_installs_and_its_metadata_are_noted(home: Path) -> None:
    (found,) = plugins_page.installed([str(home)])
    assert found in plugins_page.noted()


@pytest.mark.slow
@pytest.mark.long
def test_it_passes_the_kit(home: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, str(PACKAGE / "tests")],
        env={**os.environ, "PYTHONPATH": str(home)}, cwd=home,
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d\d passed", done.stdout.splitlines()[-1])
