"""The template as strangers meet it: wheels in a fresh environment, outside the repository.

Nothing is downloaded: what flbench stands on comes from the environment of the tests; flbench and
the packages do not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from flbench import __version__
from flbench.cli.new import CREATED_BY_TOOLS, KINDS, METHODS, next_breaking

pytestmark = [pytest.mark.slow, pytest.mark.wheels, pytest.mark.long]
ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "plugins" / "template"


def left(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if CREATED_BY_TOOLS.fullmatch(name)]


def pip(*arguments: object) -> None:
    quietly = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*quietly, *map(str, arguments)], check=True, timeout=300)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with an environment, and in it the wheels of flbench, the template, new packages."""
    home = tmp_path  # outside the repository
    wheel = ("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", home)
    install = ("--python", home / "env/bin/python", "install", "--no-deps", "--no-index")
    venv.create(home / "env")
    for folder in ("flbench", "plugins", "benchmarks"):  # a build in place would leave things there
        shutil.copytree(ROOT / folder, home / "copy" / folder, ignore=left)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, home / "copy")
    pip(*wheel, home / "copy")
    pip(*install, *home.glob("*.whl"))
    site = next((home / "env").glob("lib/python*/site-packages"))
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "lent.pth").write_text("\n".join(lent), encoding="utf-8")  # its own .pth do not count
    for kind in KINDS + METHODS[:-1]:  # the last one is the method of the server
        type_in(home, "flbench", "new", f"big-{kind}", "--kind", kind, "--author", "Ada Lovelace")
    shutil.copytree(home / "copy" / "plugins" / "template" / "method", home / "flbench-my-method")
    packages = [home / f"flbench-{name}" for name in names()]
    pip(*wheel, *packages)
    pip(*install, *(home.glob("flbench_*.whl")))
    for package in packages:  # only their tests stay: what they import is installed
        shutil.copytree(package / "tests", home / "tests" / package.name)
        shutil.rmtree(package)
    shutil.rmtree(home / "copy")
    return home


def names() -> list[str]:
    return [*(f"big-{kind}" for kind in KINDS + METHODS[:-1]), "my-method"]


def type_in(home: Path, command: str, *arguments: str) -> str:
    path = f"{home / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    done = subprocess.run(
        [str(home / "env" / "bin" / command), *arguments],
        cwd=home,
        env={**kept, "PATH": path, "FLBENCH_DATA": str(home / "empty"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_packages_build_install_appear_pass_their_tests_and_run(home: Path) -> None:
    """One test, so that one process builds all of it once."""
    flbench_comes_from_the_fresh_environment(home)
    its_wheel_holds_the_whole_template(home)
    the_packages_appear_in_the_list(home)
    the_packages_say_whose_they_are(home)
    their_own_tests_pass(home)
    they_run_together(home)


def flbench_comes_from_the_fresh_environment(home: Path) -> None:
    code = "import flbench, flbench_plugins as p; print(flbench.__file__, p.__file__)"
    for file in type_in(home, "python", "-c", code).split():
        assert Path(file).is_relative_to(home / "env")


def its_wheel_holds_the_whole_template(home: Path) -> None:
    (wheel,) = home.glob("flbench-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        start = "flbench_plugins/template/"
        held = {name.removeprefix(start) for name in archive.namelist() if name.startswith(start)}
    there = [path.relative_to(TEMPLATE) for path in TEMPLATE.rglob("*") if path.is_file()]
    assert held == {
        str(path) for path in there if not any(map(CREATED_BY_TOOLS.fullmatch, path.parts))
    }
    assert "method/.github/workflows/test.yml" in held


def the_packages_appear_in_the_list(home: Path) -> None:
    lines = type_in(home, "flbench", "list").splitlines()
    for name in names():
        (line,) = [line for line in lines if line.endswith(f"[flbench-{name} 0.1.0]")]
        assert line.split()[0] == name
        assert len(line.split()) > 5, "and says what it is"
    assert not [line for line in lines if "broken" in line]


def the_packages_say_whose_they_are(home: Path) -> None:
    for name in names():
        (wheel,) = home.glob(f"flbench_{name.replace('-', '_')}-0.1.0-py3-none-any.whl")
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = [one for one in archive.namelist() if one.endswith("dist-info/METADATA")]
            told = archive.read(metadata).decode()
            assert [one for one in archive.namelist() if one.endswith("licenses/LICENSE")]
            assert not [one for one in archive.namelist() if "tests" in one]
        assert f"\nAuthor: {'Ada Lovelace' if name != 'my-method' else 'The authors'}\n" in told
        assert "\nLicense-Expression: MIT\n" in told
        versions = f"<{next_breaking(__version__)},>={__version__}"
        assert f"\nRequires-Dist: flbench{versions}\n" in told


def their_own_tests_pass(home: Path) -> None:
    said = type_in(
        home, "python", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "tests"
    )
    assert " passed" in said
    assert "failed" not in said


def they_run_together(home: Path) -> None:
    parts = "--suite iid,big-suite --set model=big-model --sink big-sink"
    run = f"run --plugin big-method,my-method,fedavg {parts} --rounds 1"
    type_in(home, "flbench", *run.split())
    for suite in ("iid", "big-suite"):
        files = (home / "flbench-results" / suite / "digits").glob("*/*/seed-0.json")
        played = {path.parts[-3]: path for path in files}
        assert set(played) == {"big-method", "my-method", "fedavg"}
        for path in played.values():
            result = json.loads(path.read_text(encoding="utf-8"))
            assert result["suite"]["model"] == {"name": "big-model"}
            assert (path.with_suffix("") / "big-sink.txt").is_file()
