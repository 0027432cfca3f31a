"""Laws: what must hold for every method, how one is judged, and how the verdict reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from flbench.core.conformance import Conformance
from flbench.core.dataset import Dataset
from flbench.core.hookspecs import hookimpl
from flbench.errors import FlbenchError, UserError
from flbench.plugin.registry import find, load_entry
from flbench.run.composition import MethodStack, compose
from flbench.suite import Suite
from flbench.testing.small_run import SERVER, SmallRun, play_small, small_suite

MARK = f"{hookimpl.project_name}_impl"


Outcome = Literal["holds", "broken", "known", "mended", "not judged"]


OUTCOMES, NAMES = 10, 24
"""Widths of the longest outcome and of the longest law's name, in letters."""


class Broken(AssertionError):
    """A law does not hold; the text says what was expected and what came."""


@dataclass(frozen=True)
class Verdict:
    """What became of a law.

    Attributes:
        law: its name.
        outcome: "known" is broken as declared; "mended" was declared to be broken and holds;
            "not judged" where a law it stands on is broken, or the method is excused from it.
        why: what broke, the declared reason, or why it was not judged.
    """

    law: str
    outcome: Outcome
    why: str = ""

    @property
    def good(self) -> bool:
        """Whether nobody has to do anything."""
        return self.outcome not in ("broken", "mended")

    def __str__(self) -> str:
        """One line."""
        return f"{self.law:<{NAMES}}  {self.outcome:<{OUTCOMES}}  {self.why}".rstrip()


@dataclass(frozen=True)
class Law:
    """Something that must hold for every method.

    Attributes:
        name: "same-seed-same-bytes".
        says: what must hold, in one sentence.
        check: raises `Broken` where it does not.
        after: laws it stands on; where one of them is broken, it is not judged.
    """

    name: str
    says: str
    check: Callable[[Case], None]
    after: tuple[Law, ...] = ()


def law(*after: Law) -> Callable[[Callable[[Case], None]], Law]:
    """Make a law of a function: its name and the first line of its docstring.

    Args:
        after: laws it stands on.
    """

    def made(check: Callable[[Case], None]) -> Law:
        name = check.__name__.replace("_", "-")
        says = (check.__doc__ or "").partition("\n")[0].rstrip(".")
        return Law(name, says, check, after)

    return made


@dataclass
class Case:
    """A method before the laws: its plugin, its author's word, its usual run.

    Attributes:
        method: an installed name.
    """

    method: str
    _verdicts: dict[str, Verdict] = field(default_factory=dict)

    @cached_property
    def kind(self) -> Any:  # noqa: ANN401 - a stranger's class
        """The plugin's class."""
        return load_entry(find("methods", self.method))

    @cached_property
    def hooks(self) -> set[str]:
        """The hooks it answers."""
        marked = {
            name: getattr(getattr(self.kind, name, None), MARK, None) for name in dir(self.kind)
        }
        return {told.get("specname") or name for name, told in marked.items() if told is not None}

    @cached_property
    def told(self) -> Conformance:
        """What the author says.

        Raises:
            UserError: it is no `Conformance`.
        """
        told = getattr(self.kind, "conformance", Conformance())
        if not isinstance(told, Conformance):
            came = type(told).__name__
            raise UserError(f"{self.method}.conformance: expected fl.Conformance, got {came}")
        return told

    def composed(self, **params: object) -> MethodStack:
        """A fresh plugin, with the author's parameters for the kit and the given ones."""
        return compose(self.method, {**self.told.params, **params})

    def suite(self, **changes: Any) -> Suite:  # noqa: ANN401 - fields of a suite
        """The small suite as this method needs it."""
        return small_suite(
            **{
                "rounds": self.told.rounds,
                "server_samples": SERVER,
                **self.told.suite,
                **changes,
            }
        )

    def play(
        self,
        suite: Suite | None = None,
        dataset: Dataset | None = None,
        **how: Any,  # noqa: ANN401 - see `play_small`
    ) -> SmallRun:
        """A run of a fresh plugin; `how` as in `play_small`."""
        return play_small(self.composed(), suite or self.suite(), dataset, **how)

    @cached_property
    def usual(self) -> SmallRun:
        """The usual run, played once."""
        return self.play()

    def breaks(self, text: str) -> Broken:
        """What a law raises: the method's name comes first."""
        return Broken(f"{self.method}: {text}")

    def judge(self, law: Law) -> Verdict:
        """What becomes of one law; judged once."""
        if law.name not in self._verdicts:
            self._verdicts[law.name] = self._judged(law)
        return self._verdicts[law.name]

    def _judged(self, law: Law) -> Verdict:
        for other in law.after:
            if self.judge(other).outcome not in ("holds", "mended"):
                return Verdict(law.name, "not judged", f"it stands on {other.name}")
        why = ""
        try:
            law.check(self)
        except NotJudged as reason:
            return Verdict(law.name, "not judged", str(reason))
        except (Broken, FlbenchError) as error:
            why = str(error) if self.method in str(error) else f"{self.method}: {error}"
        except Exception as error:
            why = f"{self.method}: raised {type(error).__name__}: {error}"
        declared = self.told.fails.get(law.name, "") if "kind" in vars(self) else ""
        if why and declared:
            return Verdict(law.name, "known", declared)
        if why:
            return Verdict(law.name, "broken", " ".join(why.split()))
        if declared:
            said = f"declared to fail ({declared}) but it holds: take it out of conformance.fails"
            return Verdict(law.name, "mended", said)
        return Verdict(law.name, "holds")


class NotJudged(Exception):
    """A law that says nothing about this method; the text says why."""
