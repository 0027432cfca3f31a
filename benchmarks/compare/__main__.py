"""Compare methods with other frameworks' own implementations: `flbench compare`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from flbench.cli.main import guarded
from flbench.errors import FlbenchError, Interrupted, UserError
from flbench.results.files import refuse_unwritable, write_atomically

from .environments import FRAMEWORKS, ensure
from .pairs import PAIRS, Pair, find


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0, or that of an error, with one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="flbench compare",
        description="Play one federation with flbench and with another framework's own"
        " implementation of a method, and say where they part.",
    )
    parser.add_argument("framework", nargs="?", help="see --list")
    parser.add_argument("method", nargs="?", help="a method of flbench; none = all of --list")
    parser.add_argument("--list", action="store_true", help="frameworks and methods")
    parser.add_argument("--python", type=Path, help="a Python that has the framework")
    parser.add_argument("--environments", type=Path, help="folder of the environments")
    parser.add_argument("--out", type=Path, help="write a JSON file per pair into this folder")
    options = parser.parse_args(arguments)
    # the other side runs in a folder of its own; links stay, a virtual environment is found by one
    python = options.python and options.python.absolute()
    environments = (options.environments or cache()).absolute()
    try:
        if options.list:
            for one in PAIRS:
                print(f"{one.framework:10} {one.method:12} {one.variant}".rstrip())
            return 0
        pairs = wanted(options.framework, options.method)
        from .report import examine  # an interruption of its imports is caught too

        for pair in pairs:
            if options.out is not None:
                refuse_unwritable(file_of(options.out, pair))
            framework = FRAMEWORKS[pair.framework]
            report = examine(pair, python or ensure(framework, environments / pair.framework))
            print(line(report), flush=True)
            if options.out is not None:
                save(file_of(options.out, pair), report)
    except KeyboardInterrupt:
        print("flbench: interrupted; pairs that are printed are complete", file=sys.stderr)
        return Interrupted.exit_code
    except FlbenchError as error:
        print(f"flbench: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def wanted(framework: str | None, method: str | None) -> list[Pair]:
    """The pairs of a framework, or of a framework and a method."""
    if framework not in FRAMEWORKS:
        names = ", ".join(FRAMEWORKS)
        raise UserError(f"expected a framework ({names}), got '{framework or ''}'; see --list")
    if method is None:
        return [one for one in PAIRS if one.framework == framework]
    if not (found := find(framework, method)):
        names = ", ".join(dict.fromkeys(p.method for p in PAIRS if p.framework == framework))
        raise UserError(f"expected a method that {framework} has ({names}), got '{method}'")
    return found


def cache() -> Path:
    """Where environments are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "flbench" / "compare"


def line(report: dict[str, Any]) -> str:
    """One line for the terminal."""
    name = " ".join(filter(None, [report["framework"], report["method"], report["variant"]]))
    if report["equal"]:
        return f"{name}: equal to rounding ({report['compared']} models)"
    first = report["first_difference"]
    text = f"{name}: parts in round {first['round']}, {first['model']}, {first['tensor']}"
    text += f", by {first['difference']:g}"
    explanation = report.get("explanation")
    if explanation is None:
        return f"{text}; not explained"
    equal = "equal" if explanation["equal"] else "NOT equal"
    return f"{text}; {equal} with this change: {explanation['change']}"


def file_of(folder: Path, pair: Pair) -> Path:
    """Where the report of a pair is written."""
    return folder / f"{pair.name}.json"


def save(file: Path, report: dict[str, Any]) -> None:
    """Write a report, whole or not at all."""
    text = json.dumps(report, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    write_atomically(file, text.encode())


if __name__ == "__main__":
    sys.exit(guarded(lambda: sys.exit(main())))
