"""Trial: import what is installed where it can hurt nobody, in a process of its own.

One process imports name after name; when it dies or hangs, the name it was at is to blame, and
another process goes on with the rest.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import TextIO

from flbench.errors import UserError, in_one_line
from flbench.plugin.diagnostics import diagnose
from flbench.plugin.entry import Entry
from flbench.plugin.registry import find, load_entry

PATIENCE = 60.0
"""Seconds that one name may take."""


CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " import flbench.run.import_probe as t; t.child()"
)


def tried(entries: Sequence[Entry], patience: float = PATIENCE) -> dict[tuple[str, str], str]:
    """Import each, and of methods make an instance with its defaults.

    Args:
        entries: what to import; those that are known to be broken are left out.
        patience: seconds that one may take.

    Returns:
        Kind and name -> why it failed, in one line; only those that did.
    """
    todo = [(entry.kind, entry.name) for entry in entries if not diagnose(entry)]
    found: dict[tuple[str, str], str] = {}
    while todo:
        told, end = _in_a_process(todo, patience)
        found |= {name: why for name, why in zip(todo, told, strict=False) if why}
        if len(told) < len(todo):
            found[todo[len(told)]] = f"importing it {end}"
        todo = todo[len(told) + 1 :]
    return found


def _in_a_process(todo: Sequence[tuple[str, str]], patience: float) -> tuple[list[str], str]:
    """What a fresh process says of each, up to where it ended; and how it ended."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as report:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(sys.path)],
            input=json.dumps({"todo": list(todo), "patience": patience}),
            text=True,
            stdout=report,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        report.seek(0)
        lines = report.read().splitlines()
    told = [json.loads(line) for line in lines if line.startswith('"')]
    if any(line.startswith("Timeout") for line in lines):
        return told, f"takes longer than {patience:g} s"
    if done.returncode < 0:
        return told, f"ends the process by signal {-done.returncode}"
    return told, f"ends the process with exit code {done.returncode}"


def child() -> None:
    """The other process: reads what to import, says a line of JSON for each."""
    asked = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # whatever is printed, by whoever
    for kind, name in asked["todo"]:
        faulthandler.dump_traceback_later(asked["patience"], exit=True, file=report)
        _tell(report, _attempt(kind, name))
    faulthandler.cancel_dump_traceback_later()
    os._exit(0)  # threads that somebody started are not waited for


def _tell(report: TextIO, why: str) -> None:
    report.write(json.dumps(why) + "\n")
    report.flush()


def _attempt(kind: str, name: str) -> str:
    """Why a name cannot be loaded; "" where it can."""
    try:
        if kind == "methods":
            from flbench.plugin.hooks import HookCaller
            from flbench.run.composition import compose

            HookCaller(("suite", object()), compose(name).layers)
        else:
            load_entry(find(kind, name))
    except UserError as error:
        return str(error)
    except Exception as error:
        return in_one_line(error)
    return ""
