"""Run commands at the same time; fail if one fails.

python .ci/side_by_side.py COMMAND... [-- WORD...]

What a command prints is shown when it ends; the last one's is shown as it comes. Words after `--`
belong to the last command.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def run(command: list[str], shown: bool) -> tuple[list[str], int, str, float]:
    """Run one command; gives it with its exit code, its output and its seconds."""
    began = time.monotonic()
    output = None if shown else subprocess.PIPE
    errors = None if shown else subprocess.STDOUT
    done = subprocess.run(command, stdout=output, stderr=errors, text=True, check=False)
    return command, done.returncode, done.stdout or "", time.monotonic() - began


def main(words: list[str]) -> int:
    """Run all commands; 1 if one fails."""
    at = words.index("--") if "--" in words else len(words)
    commands = [shlex.split(word) for word in words[:at]]
    commands[-1] += words[at + 1 :]
    with ThreadPoolExecutor(len(commands)) as pool:
        done = list(pool.map(run, commands, [False] * (len(commands) - 1) + [True]))
    for command, code, output, seconds in done:
        said = "ok" if code == 0 else f"failed with exit code {code}"
        print(f"== {shlex.join(command)}: {said}, {seconds:.0f} s\n{output}", end="", flush=True)
    return int(any(code for _, code, _, _ in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
