"""Random wrong answers of hooks: each is one line that names the hook, or the run goes on.

An answer of a method is changed at a random place: a tensor gets another shape, type or content, a
field, a name or a function is something else. What is accepted must give a result that follows from
itself (`submission/consistency.py`).
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from every import METHODS, declared, rounds_of, settings_of
from fault_record import Fault
from torch import Tensor
from toy import player

from flbench.core import hookspecs
from flbench.errors import FlbenchError
from flbench.plugin.hooks import LISTENERS
from flbench.run.composition import compose
from flbench.submission.consistency import faults

ANYTHING: tuple[Any, ...] = (
    "text", 3, -1, 2.5, True, None, [], (), {}, b"x", object(), int, float("nan"), {1: 2},
    [1, 2, 3], torch.zeros(0), torch.tensor(1.0), np.zeros(2), lambda *given: 1,
)  # fmt: skip
TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "shorter": lambda t: t[:-1],
    "longer": lambda t: torch.cat([t, t[:1]]),
    "transposed": lambda t: t.transpose(0, -1),
    "one dimension more": lambda t: t[None],
    "empty": lambda t: t[:0],
    "one number": lambda t: t.reshape(-1)[0],
    "float64": lambda t: t.double(),
    "float16": lambda t: t.half(),
    "int64": lambda t: t.nan_to_num().long(),
    "bool": lambda t: t.bool(),
    "complex": lambda t: t.to(torch.complex64),
    "NaN": lambda t: torch.where(torch.rand(t.shape) < 0.5, torch.nan, t.double()),
    "infinite": lambda t: t.double() / 0,
    "negated": lambda t: -t,
    "zero": torch.zeros_like,
    "large": lambda t: t * 1e30,
    "plus 1000": lambda t: t + 1000,
    "the first row again": lambda t: t[torch.zeros(len(t), dtype=torch.int64)],
    "turned around": lambda t: t.flip(0),
    "with gradients": lambda t: t.float().requires_grad_(),
    "without data": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "list": lambda t: t.tolist(),
    "array": lambda t: t.numpy(force=True),
}
"""Changes of a tensor; those that it cannot have leave it as it is."""


def names(count: int) -> list[str]:
    """The cases; each number has a method, a hook and a change of its own."""
    return [f"{number:04}" for number in range(count)]


def changed(rng: Random, value: Any) -> tuple[Any, str]:
    """A value that is changed at a random place, and what was done."""
    if isinstance(value, torch.nn.Module) or rng.random() < 0.1:
        return rng.choice(ANYTHING), " is something else"
    if isinstance(value, Tensor):
        how = rng.choice(list(TENSORS))
        try:
            return TENSORS[how](value), f" is {how}"
        except (RuntimeError, IndexError, TypeError):
            return value, " is as it was"
    if is_dataclass(value) and not isinstance(value, type):
        given = [one.name for one in fields(value) if getattr(value, one.name) is not None]
        name = rng.choice(given)
        new, what = changed(rng, getattr(value, name))
        return replace(value, **{name: new}), f".{name}{what}"
    if isinstance(value, Mapping):
        name = rng.choice([*value, "new", "a.b", "", 1])
        new, what = changed(rng, value.get(name))
        return {**value, name: new}, f"[{name!r}]{what}"
    if isinstance(value, (list, tuple)) and value:
        at = rng.randrange(len(value))
        new, what = changed(rng, value[at])
        more = rng.choice([[new], [new], [], [new, new]])
        return [*value[:at], *more, *value[at + 1 :]], f"[{at}]{what}, {len(more)} times"
    if callable(value):
        seed = rng.random()
        return lambda *given: changed(Random(seed), value(*given))[0], " gives something else"
    return rng.choice(ANYTHING), " is something else"


@dataclass
class Changed:
    """A plugin's hook whose answer is changed once, at its `count`-th answer."""

    rng: Random
    count: int
    what: str = ""

    def around(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The hook with the change."""

        @functools.wraps(hook)
        def call(plugin: object, *given: Any) -> Any:
            answer = hook(plugin, *given)
            self.count -= answer is not None
            if answer is None or self.count != 0:
                return answer
            answer, self.what = changed(self.rng, answer)
            return answer

        return call


def inject(name: str) -> Fault:
    """Play one case."""
    rng = Random(f"answer {name}")
    method = rng.choice(METHODS)
    stack = compose(method, settings_of(method))
    (label, plugin), *others = reversed(stack.layers)
    marks = hookspecs.hook_marks(type(plugin))
    own = [attribute for attribute, _ in marks if attribute not in LISTENERS]
    if not own:
        return Fault(name, "no hook", "accepted")
    hook = rng.choice(own)
    change = Changed(rng, rng.choice([1, 1, 2]))
    wrong = type(
        type(plugin).__name__, (type(plugin),), {hook: change.around(getattr(type(plugin), hook))}
    )
    mutant = object.__new__(wrong)
    vars(mutant).update(vars(plugin))
    stack = replace(stack, layers=(*reversed(others), (label, mutant)))
    suite = {"server_samples": 8, **declared(method).suite, "clients": 8}
    torch.manual_seed(0)
    outcome, problem, message = "accepted", "", ""
    with tempfile.TemporaryDirectory(prefix="flbench-faults-") as folder:
        try:
            result = player(Path(folder))(
                stack, rounds=min(4, rounds_of(method)), unseen=rng.choice([0, 0, 0.25]),
                executor=rng.choice(["sequential", "vectorised"]), **suite,
            ).result  # fmt: skip
            result.canonical()
            problem = next(iter(faults(result)), "")
        except FlbenchError as error:
            outcome, message = "refused", str(error)
            problem = "more than one line" if "\n" in message else ""
        except Exception as error:
            outcome, problem, message = "refused", "a traceback", repr(error)[:300]
    return Fault(name, hook, outcome, problem, message=f"{method}.{hook}{change.what}: {message}")
