"""Install packages as pip would, but with uv, which is faster; with pip where uv cannot.

python .ci/install.py [OPTION...] REQUIREMENT...

pip unpacks one wheel after the other: 50,000 files for flbench and its tests. uv does not read the
settings of pip, so it is told of those that say where packages are and which versions are taken.
Where UV_RESOLUTION asks for the oldest versions, pip is not tried, which takes the newest.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys

PIP = [sys.executable, "-I", "-m", "pip"]
UV = [sys.executable, "-I", "-m", "uv", "pip", "install", "-q", "--python", sys.executable]

OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
"""uv's option for a setting of pip."""


def settings() -> dict[str, str]:
    """What pip is told by its files and by PIP_..., which counts more."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    pairs = [line.partition("=") for line in listed.stdout.splitlines()]
    given: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for key, _, value in pairs:
            if key.startswith(section):
                given[key.removeprefix(section)] = ast.literal_eval(value)
    return given


def with_uv(words: list[str]) -> bool:
    """Install with uv; whether it could."""
    if subprocess.run([*PIP, "install", "-q", "uv"], check=False).returncode:
        return False
    given = settings()
    said = [
        word
        for setting, option in OPTIONS.items()
        for value in given.get(setting, "").split()
        for word in (option, value)
    ]
    trusted = {"SSL_CERT_FILE": given["cert"]} if "cert" in given else {}
    best = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # all indexes count alike, as for pip
    command = [*UV, *said, *words]
    return not subprocess.run(command, env=os.environ | trusted | best, check=False).returncode


def main(words: list[str]) -> int:
    """Install what pip would; its exit code."""
    if "--no-deps" not in words:
        if with_uv(words):
            return 0
        if "UV_RESOLUTION" in os.environ:
            return 1
    return subprocess.run([*PIP, "install", *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
