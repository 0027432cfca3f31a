"""The tutorial does what it shows: files are written, commands typed, output is compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
LIGHT = ROOT / "tests" / "support" / "light"
SCRIPTS = {
    "flbench": ("flbench.cli.main", "main"),
    "pip": ("pip._internal.cli.main", "main"),
    "pytest": ("pytest", "console_main"),
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it goes to and how, its text."""

    language: str
    file: str
    mode: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    for found in re.finditer(
        r"^```(\w+) ?(\S*) ?(\S*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL
    ):
        yield Block(*found.groups())


def write(block: Block, folder: Path) -> None:
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if block.mode else ""
    both = before + block.text if block.mode == ">>" else block.text + before
    path.write_text(both, encoding="utf-8")


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a block and the output that is shown under it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def fits(shown: str, came: str) -> bool:
    """Whether output is what is shown; `...` stands for anything."""
    parts = [re.escape(part.strip()) for part in shown.strip().split("...")]
    return re.fullmatch(r"\s*" + r".*".join(parts) + r"\s*", came, re.DOTALL) is not None


def test_what_is_shown_must_come() -> None:
    assert fits("a ... c", "a b c\n")
    assert not fits("a ... c", "a b d\n")
    assert not fits("a", "a\nb")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment of its own that borrows what the tests have; nothing is downloaded."""
    home = tmp_path / "env"
    venv.create(home)
    site = next(home.glob("lib/python*/site-packages"))
    lent = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    (site / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
    for name, (module, function) in SCRIPTS.items():
        script = home / "bin" / name
        text = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        script.write_text(f"#!{home}/bin/python\n{text}", encoding="utf-8")
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    return {
        **kept,
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(LIGHT),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it so: do without isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "FLBENCH_DATA": str(tmp_path / "empty"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }


@pytest.mark.slow
@pytest.mark.long
def test_the_tutorial_does_what_it_shows(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "flbench-kindred"
    folder.mkdir()
    table = "leaderboard/results/feature-shift/digits-shift/fedavg"
    shutil.copytree(ROOT / table, tmp_path / "flbench" / table)  # as a clone has it
    typed, odd = 0, []
    for block in blocks(TUTORIAL.read_text(encoding="utf-8")):
        if block.file:
            write(block, folder)
            continue
        assert block.language == "console", f"a block that goes nowhere: {block.text}"
        for command, shown in commands(block.text):
            if command.startswith("cd "):
                folder = (folder / command.removeprefix("cd ")).resolve()
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if "flbench:" in shown else subprocess.PIPE,
                text=True,
                check=False,
                timeout=300,
            )
            if not fits(shown, done.stdout):
                odd.append(f"$ {command}\n{done.stdout}\n{done.stderr}")
            typed += 1
    assert not odd, "\n".join(odd)
    assert typed >= 12
    made = (tmp_path / "flbench" / table).parent / "kindred"
    assert len(list(made.rglob("seed-*.json"))) == 2


def test_the_first_method_has_nine_lines() -> None:
    first = next(blocks(TUTORIAL.read_text(encoding="utf-8")))
    assert len(first.text.splitlines()) == 9
