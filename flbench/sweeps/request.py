"""What a person asks for, resolved into runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flbench.plugin.registry import load_entry

if TYPE_CHECKING:
    from flbench.run.spec import RunSpec
    from flbench.terminal.console import Console


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """What the words after `flbench run` say, as `jobs_of` takes it; wrong ones are refused."""
    return dict(_parser().make_context("flbench run", list(arguments)).params)


@cache
def _parser() -> Any:  # noqa: ANN401 - a command of the click that typer is built on
    from flbench.cli.run import run

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(run)
    return typer.main.get_command(app)


def jobs_of(
    console: Console,
    *,
    plugin: list[str],
    suite: list[str],
    seed: int | None,
    seeds: int | None,
    rounds: int | None,
    settings: list[str] | None,
    preset: str | None,
    dataset: str | None,
    data_root: Path | None,
    out: Path,
    resume: bool,
    force: bool,
    sink: list[str] | None,
    compiled: bool,
    bank_budget: str | None,
    **engine: Any,  # noqa: ANN401 - options that `Engine` takes as they are
) -> list[RunSpec]:
    """The jobs that options of `flbench run` ask for, each once."""
    if seed is not None and seeds is not None:
        raise typer.BadParameter("--seed names one seed, --seeds N runs 0..N-1: give one of them")
    methods, chosen = names(plugin), read_settings(settings or [])
    with console.waiting("importing torch and lightning"):
        from flbench.datasets import data_root as locate
        from flbench.engine.options import EngineOptions, size
        from flbench.plugin.registry import find
        from flbench.run.composition import compose, without_preset
        from flbench.run.settings import suite_overrides
        from flbench.run.spec import RunSpec
        from flbench.suite import load_suite

        for method in without_preset(preset, methods) if preset is not None else ():
            console.say(f"{method} has no preset '{preset}': it runs with its defaults")
        composed = [compose(method, chosen, preset) for method in methods]
        import flbench.run.runner  # noqa: F401 - so that the wait is over when this block is

    overrides = suite_overrides(chosen, methods)
    if rounds is not None:
        overrides["rounds"] = rounds
    budget = None if bank_budget is None else size(bank_budget)
    sinks = {name: load_entry(find("sinks", name))() for name in names(sink or [])}
    sinks["console"] = console
    jobs = [
        RunSpec(
            suite=load_suite(name, dataset, overrides),
            method=method,
            seed=number,
            data_root=locate(data_root),
            out=out,
            engine=EngineOptions(compile=compiled, bank_budget=budget, **engine),
            resume=resume,
            force=force,
            sinks=tuple(sinks.items()),
            say=console.say,
        )
        for name in names(suite)
        for method in composed
        for number in (range(seeds) if seeds is not None else [seed or 0])
    ]
    return list({job.path: job for job in jobs}.values())


def names(values: Sequence[str]) -> list[str]:
    """Names given one by one, or several separated by commas."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def read_settings(pairs: list[str]) -> dict[str, object]:
    """`--set key=value` pairs, values read as TOML."""
    from flbench.core.parameters import parse

    found: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"--set expects KEY=VALUE, got '{pair}'")
        found[key.strip()] = parse(value.strip())
    return found


def words(
    plugin: Sequence[str],
    suite: Sequence[str],
    settings: Sequence[str],
    preset: str | None,
    others: Sequence[str],
) -> tuple[str, ...]:
    """What to type after `flbench run`."""
    named = {"--plugin": plugin, "--suite": suite, "--set": settings}
    found = [word for option, values in named.items() for one in values for word in (option, one)]
    return (*found, *(() if preset is None else ("--preset", preset)), *others)
