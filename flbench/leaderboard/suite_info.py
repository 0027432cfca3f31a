"""What the installed suites and methods say about a table: version, command, printed numbers."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from flbench.core.setting_text import parse
from flbench.errors import UnknownName, UserError
from flbench.plugin.method_info import method_info
from flbench.plugin.registry import entries
from flbench.results.schema import Method
from flbench.suite import DESCRIPTIVE, Suite, load_suite

NO_SETTINGS = DESCRIPTIVE | {"name", "version", "dataset"}


def suite_of(name: str, dataset: str) -> Suite | None:
    """The installed suite of a name as it runs on a data set; None where there is none."""
    try:
        return load_suite(name, dataset)
    except UnknownName:
        return None


def command(suite: Suite, settings: Mapping[str, Any], fingerprint: str, seeds: int) -> str:
    """What to type to run a method NAME under the settings of a table, in one line.

    It is empty where nothing gives exactly these settings, of an older version for instance.
    `suite` is the installed one; `settings` and their `fingerprint` are from the result files.
    """
    ours = dict(flat(suite.settings()))
    left_out = {  # by settings, as they have the default, which is not the suite's own value
        name: Suite.model_fields[name].default
        for name in suite.settings().keys() - settings.keys() - NO_SETTINGS
    }
    sets = {
        key.removesuffix(".name"): value
        for key, value in flat({**settings, **left_out})
        if key not in NO_SETTINGS and (key not in ours or ours[key] != value)
    }
    try:
        same = load_suite(suite.name, suite.dataset, sets).hash() == fingerprint
        usual = load_suite(suite.name).dataset
    except UserError:
        return ""
    if not same or any(parse(_text(value)) != value for value in sets.values()):
        return ""
    words = ["flbench", "run", "-p", "NAME", "-s", suite.name]
    words += [] if suite.dataset == usual else ["--dataset", suite.dataset]
    for key, value in sorted(sets.items()):
        words += ["--set", f"suite.{key}={_text(value)}"]
    text = shlex.join([*words, "--seeds", str(seeds)])
    return text if text.isprintable() else ""


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf of settings."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object) -> str:
    """A value as `--set` reads it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def departures(method: Method) -> int:
    """How many of a method's parameters are not what the installed plugins declare.

    What is not installed, or no plain constant, does not count.
    """
    known = entries("methods")
    count = 0
    for plugin in method.plugins:
        if plugin.name in known:
            prefix = "" if len(method.plugins) == 1 else f"{plugin.name}."
            for parameter in method_info(known[plugin.name]).parameters:
                value = method.params.get(prefix + parameter.name, ...)
                count += value is not ... and not _is(value, parameter.default)
    return count


def _is(value: object, written: str) -> bool:
    try:
        default = ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return True
    return bool(value == (list(default) if isinstance(default, tuple) else default))
