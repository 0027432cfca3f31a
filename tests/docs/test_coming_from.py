"""What the page for users of other frameworks names of flbench exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup as Group

import flbench as fl
from flbench.cli.main import app
from flbench.core.hookspecs import hooks_for
from flbench.plugin.registry import KINDS, entries
from flbench.suite import Suite, suite_field

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
PARAMETERS = {"mu"}
"""Parameters of fedprox that the page sets."""
THEIRS = {"Reptile"}
"""What a last column names of another framework."""


def ours(page: str) -> Iterator[str]:
    """What stands in backticks in the last column of the tables, and in the text around them."""
    for line in page.splitlines():
        if not line.startswith("|"):
            yield from re.findall(r"`([^`]+)`", line) if "FL-bench" not in line else ()
        elif not line.startswith("|---"):
            yield from re.findall(r"`([^`]+)`", line.split(" | ")[-1])


@cache
def commands() -> dict[str, set[str]]:
    """Each command with its options."""
    group = typer.main.get_command(app)
    assert isinstance(group, Group)
    found = {}
    for name, command in group.commands.items():
        inner = command.commands.values() if isinstance(command, Group) else [command]
        params = [one for each in inner for one in each.params]
        found[name] = {word for one in params for word in (*one.opts, *one.secondary_opts)}
    return found


def known(kind: str, text: str) -> bool:
    """Whether names joined by + or , are installed."""
    return all(name in entries(kind) for name in re.split("[+,]", text))


def wrong(code: str) -> str:
    """What a piece of code names that there is not; "" if all is there."""
    all_commands = commands()
    words = shlex.split(code)
    if words[0] == "flbench":
        options = all_commands.get(words[1], set())
        if not options:
            return words[1]
    else:
        options = set().union(*all_commands.values())
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-") and word not in options:
            return word
        key = value.partition("=")[0]
        if word == "--set" and not (suite_field(key) or key.rpartition(".")[2] in PARAMETERS):
            return value
        kind = {"-p": "methods", "--plugin": "methods", "-s": "suites", "--sink": "sinks"}.get(word)
        if kind and value and not known(kind, value):
            return value
    if words[:2] == ["flbench", "show"] and words[2] in ("method", "suite"):
        return "" if known(f"{words[2]}s", words[3]) else words[3]
    if words[0] == "flbench" or words[0].startswith("-"):
        return ""
    if code.startswith("fl."):
        name = code[3:].partition("(")[0]
        return "" if hasattr(fl, name) else code
    if "/" in code:
        return "" if [*ROOT.glob(code)] else code
    exists = (
        suite_field(code) or code in Suite.model_fields or code in hooks_for("method")
        or code in THEIRS or code in fl.Dataset.__dataclass_fields__
        or any(code in entries(kind) for kind in KINDS)
    )  # fmt: skip
    return "" if exists else code


def test_all_that_it_names_of_flbench_exists() -> None:
    named = [*ours(PAGE)]
    assert len(named) > 100
    assert [code for code in named if wrong(code)] == []


def test_parameters_are_those_of_the_methods_beside_them() -> None:
    from flbench.run.composition import compose

    ((_, plugin),) = compose("fedprox").layers
    assert {*plugin.__dataclass_fields__} >= PARAMETERS


@pytest.mark.parametrize(
    "code",
    [
        "--round", "flbench runs -p fedavg", "flbench run -p fedagv -s iid", "local.rate",
        "flbench run --workers 4", "flbench run -p fedavg -s idd", "fl.run_sweet()", "dirichlets",
        "--set participations=1", "--sink csvs", "benchmark/*.toml", "flbench show method fedprx",
    ],
)  # fmt: skip
def test_what_there_is_not_is_found(code: str) -> None:
    assert wrong(code)
