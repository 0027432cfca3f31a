"""Import probe: import installed names in a separate process, and say which of them fail.

One process imports name after name. When it dies or hangs, the name that it was importing is
reported, and another process goes on with the rest.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from flbench.engine.processes.own_process import defer_imports
from flbench.errors import UserError, in_one_line, text_of
from flbench.plugin.registry import Entry, diagnose, find, load_entry

PATIENCE = 60.0
"""Seconds that one name may take."""
CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    " import flbench.run.import_probe as t; t.child()"
)


def tried(entries: Sequence[Entry], patience: float = PATIENCE) -> dict[tuple[str, str], str]:
    """Import each; make an instance of each method and sink, parse each TOML file.

    Args:
        entries: those whose metadata are wrong are left out.
        patience: seconds that one may take.

    Returns:
        Kind and name -> why it failed, in one line; only those that did.
    """
    todo = [(entry.kind, entry.name) for entry in entries if not diagnose(entry)]
    failed: dict[tuple[str, str], str] = {}
    while todo:
        answers, end = _in_a_process(todo, patience)
        failed |= {name: why for name, why in zip(todo, answers, strict=False) if why}
        if len(answers) < len(todo):
            failed[todo[len(answers)]] = f"importing it {end}"
        todo = todo[len(answers) + 1 :]
    return failed


def _in_a_process(todo: Sequence[tuple[str, str]], patience: float) -> tuple[list[str], str]:
    """What a fresh process reports of each name, up to where it ended; and how it ended."""
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
    answers = [json.loads(line) for line in lines if line.startswith('"')]
    if any(line.startswith("Timeout") for line in lines):
        return answers, f"takes longer than {patience:g} s"
    if done.returncode < 0:
        return answers, f"ends the process by signal {-done.returncode}"
    return answers, f"ends the process with exit code {done.returncode}"


def child() -> None:
    """The other process: reads the names, writes a line of JSON for each."""
    defer_imports()
    task = json.load(sys.stdin)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that nothing else is printed there
    for kind, name in task["todo"]:
        faulthandler.dump_traceback_later(task["patience"], exit=True, file=report)
        report.write(json.dumps(_attempt(kind, name)) + "\n")
        report.flush()
    faulthandler.cancel_dump_traceback_later()
    os._exit(0)  # do not wait for threads that a plugin started


def _attempt(kind: str, name: str) -> str:
    """Why a name cannot be loaded; "" where it can."""
    try:
        if kind == "methods":
            from flbench.run.composition import compose

            _register(methods=compose(name).layers)
            return ""
        found = load_entry(find(kind, name))
        if kind == "sinks":
            _register(sinks=[(name, found())])
        if isinstance(found, Path):
            tomllib.loads(found.read_text(encoding="utf-8"))
    except UserError as error:
        return str(error)
    except tomllib.TOMLDecodeError as error:
        return f"{found.name}: {text_of(error)}"
    except Exception as error:
        return in_one_line(error)
    return ""


def _register(
    methods: Sequence[tuple[str, object]] = (), sinks: Sequence[tuple[str, object]] = ()
) -> None:
    """Let pluggy check the hooks of plugins."""
    from flbench.plugin.hooks import HookCaller

    HookCaller(("suite", object()), methods, sinks)
