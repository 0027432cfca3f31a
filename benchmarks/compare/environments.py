"""Environments of other frameworks: torch and numpy are those of this one, the rest is installed.

A `.pth` file in the new environment names this environment's packages, so both sides compute with
the same torch, and nothing large is installed twice. The framework is installed without the
requirements that it names, because some of them pin an old torch; what it needs is listed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from flbench.errors import UserError
from flbench.results.files import write_atomically

READY = "flbench-compare-ready.json"


@dataclass(frozen=True)
class Framework:
    """Another framework.

    Attributes:
        package: what pip installs, with its version.
        needs: packages that it imports and flbench does not have.
        driver: name of its program in `drivers`.
    """

    package: str
    needs: tuple[str, ...]
    driver: str


FRAMEWORKS = {
    "fluke-fl": Framework(
        "fluke-fl==0.8.1",
        (
            "cerberus",
            "diskcache",
            "hydra-core",
            "antlr4-python3-runtime==4.9.3",
            "omegaconf",
            "pandas",
            "psutil",
            "python-dateutil",
            "pytz",
            "seaborn",
            "six",
            "tzdata",
        ),
        "drive_fluke",
    ),
    "cfla": Framework("cfla==1.0.4", ("tqdm", "pandas"), "drive_cfla"),
    "flwr": Framework(
        "flwr==1.42.0",
        (
            "grpcio",
            "grpcio-health-checking",
            "protobuf<7",
            "cryptography",
            "cffi",
            "pycparser",
            "pycryptodome",
            "iterators",
        ),
        "drive_flwr",
    ),
    "fedlab": Framework(
        "fedlab==1.3.0",
        ("munch", "nvidia-ml-py", "pandas", "python-dateutil", "pytz", "six", "tzdata"),
        "drive_fedlab",
    ),
    "pfl": Framework(
        "pfl==0.6.0",
        (
            "absl-py",
            "attrs",
            "dill",
            "dm-tree",
            "dp-accounting==0.5.0",
            "mpmath",
            "multiprocess<0.71",
            "prv-accountant<0.3",
            "wrapt",
        ),
        "drive_pfl",
    ),
    "flgo": Framework(
        "flgo==0.4.4",
        ("nvidia-ml-py", "prettytable", "pynvml", "toolz", "tqdm", "ujson", "wcwidth"),
        "drive_flgo",
    ),
    "appfl": Framework(
        "appfl==1.12.0",
        (
            "antlr4-python3-runtime==4.9.3",
            "colorama",
            "lz4",
            "omegaconf",
            "opacus",
            "opt-einsum",
        ),
        "drive_appfl",
    ),
}


def ensure(framework: Framework, folder: Path) -> Path:
    """The Python of a framework's environment, which is made if there is none.

    Raises:
        UserError: it cannot be made, such as without a package index.
    """
    python = folder / "bin" / "python"
    wanted = {"packages": [framework.package, *framework.needs], "prefix": sys.prefix}
    marker, text = folder / READY, json.dumps(wanted).encode()
    if marker.is_file() and marker.read_bytes() == text:
        return python
    try:
        run(sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder))
        site = Path(run(str(python), "-c", "import site; print(site.getsitepackages()[0])").strip())
        ours = [entry for entry in sys.path if Path(entry).name == "site-packages"]
        shared = ours or [sysconfig.get_path("purelib")]
        (site / "flbench-shared.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        run(*pip, "--no-deps", framework.package, *framework.needs)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"the environment of {framework.package} cannot be made in {folder}: {last(error)};"
            " a package index is needed, or --python PATH of a Python that has the framework"
        ) from error
    write_atomically(marker, text)
    return python


def run(*command: str) -> str:
    """Run a command; return its standard output."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def last(error: Exception) -> str:
    """The last line of what a program wrote to standard error, or the error's text, shortened."""
    text = getattr(error, "stderr", None) or str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ")[:160] if lines else str(error)
