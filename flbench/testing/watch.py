"""Watch: what several checks want to know about one run, written down while it runs once."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flbench.core.context import Context
from flbench.core.state import Dispatched, Membership, Stage, State, Upload
from flbench.plugin.arguments import tensors
from flbench.plugin.hooks import ADDED
from flbench.plugin.isolation import restore, snapshot
from flbench.run.rounds import Run
from flbench.testing.hook_recorder import same_bits
from flbench.testing.small_run import FitFunction

Arguments = Mapping[str, object]
T = TypeVar("T")


@dataclass
class Watch:
    """What happens in a run, beside its result; nothing of it changes the run.

    Attributes:
        asked: hooks of the method that were called.
        answered: hooks that returned something other than None at least once.
        averages_nobody: memberships that give clients a model which averages no client.
        written: inputs that hooks or local training wrote to.
        changed: what hooks changed in the process, or printed.
        active: round -> clients that took part in one of its stages.
        regrouped: rounds with new groups.
    """

    asked: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=lambda: {"setup"})
    averages_nobody: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    active: dict[int, set[int]] = field(default_factory=dict)
    regrouped: set[int] = field(default_factory=set)

    def attach(self, run: Run) -> None:
        """Write down who takes part in each round, and when clients are grouped anew."""
        dispatch, cluster = run.hooks.dispatch, run.hooks.cluster

        def watched_dispatch(state: State, stage: Stage, ctx: Context) -> Dispatched:
            self.active.setdefault(ctx.round, set()).update(stage.clients.tolist())
            return dispatch(state, stage, ctx)

        def watched_cluster(state: State, stage: Stage, *rest: Any) -> Membership | None:  # noqa: ANN401 - see hooks
            answer = cluster(state, stage, *rest)
            if answer is not None and answer.parent is not None:
                self.regrouped.add(state.round + 1)
            return answer

        vars(run.hooks).update(dispatch=watched_dispatch, cluster=watched_cluster)

    def answers(self, hook: str, _: Arguments, call: Callable[[], object]) -> object:
        """Observe which hooks return something."""
        answer = call()
        self.asked.add(hook)
        if answer is not None:
            self.answered.add(hook)
        return answer

    def observe(self, hook: str, arguments: Arguments, call: Callable[[], object]) -> object:
        """Observe everything about the call of a hook."""

        def without_writing() -> object:
            return self.unchanged(f"its hook {hook}", arguments, call)

        quiet = ADDED if hook == "client_module" else ()
        answer, changes = changes_of(lambda: self.answers(hook, {}, without_writing), quiet)
        self.changed.extend(f"its hook {hook} {change}" for change in changes)
        if isinstance(answer, Membership) and answer.weights is not None:
            used = answer.home[answer.home >= 0].unique()
            self.averages_nobody.extend(
                f"its hook {hook} gives clients the model of row {int(row)}, which averages no"
                " client"
                for row in used
                if not bool(answer.weights[row].sum() > 0)
            )
        return answer

    def around_fit(self, fit: FitFunction, start: Dispatched, *rest: Any) -> Upload:  # noqa: ANN401 - see `FitFunction`
        """Observe local training."""
        inputs = {"the input of clients": start}

        def without_writing() -> Upload:
            upload: Upload = self.unchanged("local training", inputs, lambda: fit(start, *rest))
            return upload

        upload, changes = changes_of(without_writing, ADDED)
        self.changed.extend(f"local training {change}" for change in changes)
        return upload

    def unchanged(self, who: str, inputs: Arguments, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the call returns
        """The answer of a call; what it writes to its inputs is written down."""
        found = [one for name, value in inputs.items() for one in tensors(value, name)]
        copies = [tensor.clone() for _, tensor in found]
        answer = call()
        pairs = zip(found, copies, strict=True)
        self.written.extend(
            f"{who} wrote to {path}"
            for (path, tensor), copy in pairs
            if not same_bits(tensor, copy)
        )
        return answer


def changes_of(call: Callable[[], T], free: Collection[str] = ()) -> tuple[T, list[str]]:
    """The answer of a call, and what it prints or changes in the process-wide state but `free`."""
    before, printed = snapshot(), io.StringIO()
    with redirect_stdout(printed):
        answer = call()
    changes = [change for name, change in restore(before) if name not in free]
    if printed.getvalue():
        text = printed.getvalue().strip()
        changes.append(f"prints {text!r}: use ctx.note or ctx.warn")
    return answer, changes
