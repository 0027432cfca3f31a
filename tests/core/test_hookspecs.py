"""The order of hooks in the drawing of `core/hookspecs.py` is that of a run."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from toy import composition

from flbench.core import hookspecs
from flbench.core.hookspecs import hookimpl
from flbench.core.types import STAGE_KINDS
from flbench.engine.options import EngineOptions
from flbench.run.runner import execute
from flbench.run.spec import RunSpec
from flbench.testing.small_run import small_dataset, small_suite

HOOKS = [name for name, spec in vars(hookspecs).items() if hasattr(spec, "flbench_spec")]


def tracer(asked: list[str]) -> object:
    """A plugin with every hook, which writes down who is asked and decides nothing."""

    def traced(hook: str) -> Any:
        def call(self: object, **given: object) -> None:
            asked.append(f"{hook} {given['phase']}" if "phase" in given else hook)

        names = list(inspect.signature(getattr(hookspecs, hook)).parameters)
        # pluggy reads the arguments of a hook from its signature
        namespace: dict[str, Any] = {"call": call}
        passed = ", ".join(f"{name}={name}" for name in names)
        exec(f"def {hook}(self, {', '.join(names)}): return call(self, {passed})", namespace)
        return hookimpl(namespace[hook])

    return dataclass(frozen=True)(type("Tracer", (), {hook: traced(hook) for hook in HOOKS}))()


def drawn(text: str) -> list[str]:
    """The hooks of a drawing, each with its phase, in order."""
    found: list[str] = []
    for line in text.splitlines():
        words = line.strip(" │├└─┐┘")
        first, _, rest = words.partition("  ")
        hooks = [name for name in first.split(", ") if name in HOOKS]
        phase = re.search(r'phase "(\w+)"', rest)
        found += [f"{hook} {phase[1]}" if phase else hook for hook in hooks]
    return found


@pytest.mark.slow
def test_the_order_of_hooks_is_the_traced_one(tmp_path: Path) -> None:
    asked: list[str] = []
    spec = RunSpec(
        suite=small_suite(rounds=1, clients=9, unseen=0.34, unseen_epochs=1),
        method=composition(("tracer", tracer(asked))),
        seed=0,
        data_root=tmp_path,
        out=tmp_path,
        engine=EngineOptions(executor="sequential", accelerator="cpu"),
        say=lambda message: None,
    )
    execute(spec, lambda name, root: small_dataset(samples=108))
    assert asked == drawn(hookspecs.__doc__ or "")
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    (loop,) = re.findall(r"```text\n(State.+?)```", page, re.DOTALL)
    one_round = asked[asked.index("plan") : asked.index("round_finished")]
    assert re.findall(rf"\b(?:{'|'.join(HOOKS)})\b", loop) == [
        one.partition(" ")[0] for one in one_round
    ]
    for kind, about in STAGE_KINDS.items():
        (named,) = re.findall(rf'(not )?"{kind}"', loop) or ["not "]
        assert bool(named) != about.aggregates, kind
    assert set(HOOKS) == {one.partition(" ")[0] for one in asked}, "every hook is in the drawing"
