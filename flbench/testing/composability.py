"""Which methods go together: composed, and played for a few rounds, as `flbench run` meets them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

from flbench.core.conformance import Conformance
from flbench.core.dataset import Dataset
from flbench.errors import FlbenchError, MissingData, Undefined, UserError, text_of
from flbench.federation.loading import load_dataset
from flbench.plugin.registry import entries
from flbench.run.composition import LoadedMethod, load_method
from flbench.run.rounds import run_rounds
from flbench.run.runner import resolve_dataset
from flbench.run.setup import prepare
from flbench.run.spec import RunSpec
from flbench.sweeps.request import RunRequest, suite_of
from flbench.testing.small_run import run_small, small_suite

ROUNDS = 2
"""Rounds that are played of a suite."""
Load = Callable[[str, Path], Dataset]
"""Loads a data set by its name and the folder of all."""


@dataclass(frozen=True)
class CompositionOutcome:
    """What becomes of methods that are joined by "+".

    Attributes:
        text: the names, in the order in which they were asked for.
        what: "refused" before anything runs, "undefined" or "fails" when it is played, or "runs".
        why: the reason, in one line; "" = it runs.
    """

    text: str
    what: Literal["runs", "undefined", "refused", "fails"]
    why: str = ""

    def __str__(self) -> str:
        """One line."""
        return f"{self.text}: {self.what}" + (f": {self.why}" if self.why else "")


def outcome_of(text: str, asked: RunRequest | None = None) -> CompositionOutcome:
    """What becomes of methods that are joined by "+"; if only another order runs, `why` has it.

    Without `asked` they are played on the small federation of the conformance checks, with what
    their authors declare for it, for the rounds that show all of their steps.

    Args:
        asked: a suite with its settings, of which `ROUNDS` rounds are played.

    Raises:
        UnknownName: no such method, suite or setting.
        MissingData: files of the suite's data set are not there.
        UserError: anything else that is wrong with what was typed, such as a name that comes twice.
    """
    load = cache(load_dataset)
    found, names = _outcome(text, asked, load), text.split("+")
    if found.what != "runs" and len(names) == 2:
        turned = "+".join(reversed(names))
        if _outcome(turned, asked, load).what == "runs":
            return replace(found, why=f"{found.why}; {turned} runs")
    return found


def partners(name: str, asked: RunRequest | None = None) -> Iterator[CompositionOutcome]:
    """What becomes of a method alone, then with every other one, in an order that runs if one does.

    Raises:
        UserError: as `outcome_of`.
    """
    load = cache(load_dataset)
    alone = _outcome(name, asked, load)
    yield alone
    for other in entries("methods") if alone.what == "runs" else ():
        if other == name:
            continue
        found = []
        for text in (f"{name}+{other}", f"{other}+{name}"):
            try:
                found.append(_outcome(text, asked, load))
            except UserError as error:  # what is wrong with the other one, such as its import
                found.append(CompositionOutcome(text, "fails", text_of(error)))
            if found[-1].what == "runs":
                break
        yield found[-1] if found[-1].what == "runs" else found[0]


def _outcome(text: str, asked: RunRequest | None, load: Load) -> CompositionOutcome:
    """As `outcome_of`, with data sets from `load`."""
    method = load_method(text)
    try:
        play = _on_small(method) if asked is None else _on_suite(method, asked, load)
    except UserError as error:
        if type(error) is not UserError:  # a name, a value or a file: no matter of composition
            raise
        why = text_of(error).removeprefix(f"'{text}' cannot be composed: ")
        return CompositionOutcome(text, "refused", why)
    try:
        play()
    except MissingData:
        raise
    except Undefined as error:
        return CompositionOutcome(text, "undefined", text_of(error))
    except FlbenchError as error:
        return CompositionOutcome(text, "fails", text_of(error))
    return CompositionOutcome(text, "runs")


def _on_small(method: LoadedMethod) -> Callable[[], object]:
    """How a method is played on the small federation; raises as `LoadedMethod.compose`."""
    declared = {
        one.entry.name: getattr(one.kind, "conformance", Conformance()) for one in method.plugins
    }
    params = {
        f"{name}.{field}": value
        for name, own in declared.items()
        for field, value in own.params.items()
    }
    changes = {key: value for own in declared.values() for key, value in own.suite.items()}
    rounds = max(own.rounds for own in declared.values())
    suite = small_suite(**{"rounds": rounds, **changes})
    return partial(run_small, method.compose(params), suite, record_states=False)


def _on_suite(method: LoadedMethod, asked: RunRequest, load: Load) -> Callable[[], object]:
    """How the first rounds of a suite are played; raises as `suite_of`."""
    stack = method.compose(asked.settings)
    suite, _ = suite_of(replace(asked, methods=(method.text,)), lambda message: None)

    def play() -> None:
        with tempfile.TemporaryDirectory(prefix="flbench-") as nowhere:
            spec = RunSpec(
                suite, stack, seed=0, data_root=asked.root, out=Path(nowhere), engine=asked.engine
            )
            spec, take = resolve_dataset(spec, load)
            run, state = prepare(spec, take(spec.suite.dataset, spec.data_root))
            run.checkpoint = None
            run_rounds(run, state, min(ROUNDS, suite.rounds))

    return play
