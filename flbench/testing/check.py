"""A conformance check: a property that every method must have, and the result of testing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from flbench.core.conformance import Conformance
from flbench.core.dataset import Dataset
from flbench.errors import FlbenchError, UnknownName, UserError
from flbench.plugin.registry import find, load_entry
from flbench.run.composition import MethodStack, compose, load_method, suite_overrides
from flbench.suite import Suite, suite_field, suite_fields
from flbench.testing.federations import SAMPLES, SmallFederation, federation_of
from flbench.testing.hook_recorder import Observer, with_hook_recorder
from flbench.testing.small_run import (
    SERVER_SAMPLES,
    SmallRun,
    run_small,
    small_suite,
)
from flbench.testing.watch import Watch

CheckState = Literal["passed", "failed", "xfailed", "xpassed", "skipped"]
STATE_WIDTH, NAME_WIDTH = 7, 24
"""Number of letters of the longest state and of the longest name of a check."""


class CheckFailed(AssertionError):
    """A check failed; the text says what was expected and what was found."""


class CheckSkipped(Exception):
    """A check does not apply to this method; the text is the reason."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one method.

    Attributes:
        check: its name.
        state: "xfailed" is a failure that the author declares (`Conformance.fails`); "xpassed" is
            declared to fail but passes; "skipped" where a required check did not pass, or the check
            does not apply to the method.
        reason: what failed, the declared reason, or why the check was skipped.
        blocked_by: the check that did not pass, for which this one was skipped.
    """

    check: str
    state: CheckState
    reason: str = ""
    blocked_by: str = ""

    @property
    def ok(self) -> bool:
        """Whether the check neither failed nor passed unexpectedly."""
        return self.state not in ("failed", "xpassed")

    def __str__(self) -> str:
        """One line."""
        return f"{self.check:<{NAME_WIDTH}}  {self.state:<{STATE_WIDTH}}  {self.reason}".rstrip()


@dataclass(frozen=True)
class Check:
    """A property that every method must have.

    Attributes:
        name: "same-seed-same-bytes".
        description: the property, in one sentence.
        function: tests a method; raises `CheckFailed` or `CheckSkipped`.
        requires: checks that must pass first; otherwise this one is skipped.
    """

    name: str
    description: str
    function: Callable[[MethodUnderTest], None]
    requires: tuple[Check, ...] = ()


def check(*requires: Check) -> Callable[[Callable[[MethodUnderTest], None]], Check]:
    """Decorate a function to make it a check; name and description are its name and docstring."""

    def decorate(function: Callable[[MethodUnderTest], None]) -> Check:
        name = function.__name__.replace("_", "-")
        description = (function.__doc__ or "").partition("\n")[0].rstrip(".")
        return Check(name, description, function, requires)

    return decorate


FIXED: Mapping[str, str] = {
    **dict.fromkeys(("name", "version", "summary"), "they are the kit's"),
    "clients": "the kit has six and relabels them",
    "unseen": "the check newcomers-served holds three clients back",
    "rounds": "say it with fl.Conformance(rounds=...)",
    "clock.dropout": "the check missing-clients sets it",
    "clock.deadline": "the check missing-clients sets it",
    "clock.absent": "the check missing-clients sets it",
}
"""Fields of the suite that an author cannot declare, and why."""


NETWORKS = "model", "further_models", "common_head"
"""Fields of a suite that go with its samples."""


@dataclass
class MethodUnderTest:
    """An installed method, what its author declares, and the results of its checks.

    Attributes:
        name: of the method.
        settings: what a person sets, as `--set`: parameters of the method and fields of the suite;
            they go before what the author declares.
    """

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)
    _results: dict[str, CheckResult] = field(default_factory=dict)

    @cached_property
    def plugin_class(self) -> Any:  # noqa: ANN401 - a class of third-party code
        """The plugin's class."""
        return load_entry(find("methods", self.name))

    @cached_property
    def conformance(self) -> Conformance:
        """What the author declares.

        Raises:
            UserError: the attribute `conformance` is not a `Conformance`.
        """
        declared = getattr(self.plugin_class, "conformance", Conformance())
        if not isinstance(declared, Conformance):
            found = type(declared).__name__
            raise UserError(f"{self.name}.conformance: expected fl.Conformance, got {found}")
        return declared

    @property
    def declared_failures(self) -> Mapping[str, str]:
        """Check -> reason why it is known to fail; empty if the plugin cannot be loaded."""
        return self.conformance.fails if "plugin_class" in vars(self) else {}

    @cached_property
    def suite_settings(self) -> Mapping[str, object]:
        """The part of `settings` that is meant for the suite.

        Raises:
            UserError: a key that neither the method nor the suite has, or that is the kit's.
        """
        found = suite_overrides(self.settings, [load_method(self.name)])
        return self._allowed(found, "--set")

    @cached_property
    def declared_suite(self) -> Mapping[str, object]:
        """The fields of the suite that the author declares, in dotted form.

        Raises:
            UserError: `conformance.suite` names a field that no suite has, or that is the kit's.
        """
        declared: dict[str, object] = {}
        source = f"{self.name}.conformance.suite"
        for key, value in self.conformance.suite.items():
            name = key if key in Suite.model_fields else suite_field(key)
            if name is None:
                raise UnknownName(f"field in {source}", key, suite_fields(), listed="there are")
            declared[name] = value
        return self._allowed(declared, source)

    def _allowed(self, fields: Mapping[str, object], source: str) -> Mapping[str, object]:
        """Fields of the suite, none of which the kit sets itself."""
        for name, value in fields.items():
            table = value if isinstance(value, Mapping) else {}
            for one in (name, *(f"{name}.{key}" for key in table)):
                if one in FIXED:
                    raise UserError(f"{source}: '{one}' cannot be set here: {FIXED[one]}")
            if name == "dataset":
                federation_of(str(value))
        return fields

    @property
    def params(self) -> dict[str, object]:
        """Parameters of the method: what the author declares, then what a person sets."""
        own = {key.removeprefix(f"{self.name}."): value for key, value in self.settings.items()}
        return {**self.conformance.params, **own}

    def compose(self, **params: object) -> MethodStack:
        """A new plugin, with the parameters for the kit and the given ones."""
        return compose(self.name, {**self.params, **params})

    def suite(self, **changes: Any) -> Suite:  # noqa: ANN401 - fields of a suite
        """The small suite with the author's settings, those of a person, and the given ones.

        A given `clock` keeps the other fields of the declared one.

        Raises:
            UserError: `conformance.suite` names a field that no suite has, or a wrong value.
        """
        given = {"server_samples": SERVER_SAMPLES, "rounds": self.conformance.rounds}
        declared = {**given, **self.declared_suite, **self.suite_settings}
        if isinstance(changes.get("clock"), dict):
            whole = declared.pop("clock", None)
            known = whole if isinstance(whole, Mapping) else {}
            changes = {**changes, "clock": {**known, **changes["clock"]}}
        try:
            return small_suite(**{**declared, **changes})
        except UserError as error:
            source = "--set" if self.suite_settings else f"{self.name}.conformance.suite"
            raise UserError(f"{source}: {error}") from None

    def elsewhere(self, dataset: str) -> Suite:
        """The suite of another small federation: its samples, with the networks that go with them.

        A step takes all samples of a client, unless the author says otherwise: it is quicker.

        Args:
            dataset: a name of `FEDERATIONS`.
        """
        settings = {**self.declared_suite, **self.suite_settings}
        of_samples = {*NETWORKS, *federation_of(dataset).settings}
        kept = {k: value for k, value in settings.items() if k.split(".")[0] not in of_samples}
        given = {"server_samples": SERVER_SAMPLES, "rounds": self.conformance.rounds}
        return small_suite(**{**given, "local.batch_size": 16, **kept, "dataset": dataset})

    @property
    def federation(self) -> SmallFederation:
        """The small federation in which the method is checked."""
        return federation_of(self.suite().dataset)

    def dataset(self, samples: int = SAMPLES) -> Dataset:
        """Samples of that federation."""
        return self.federation.samples(samples)

    def run(
        self,
        suite: Suite | None = None,
        dataset: Dataset | None = None,
        observer: Observer | None = None,
        **options: Any,  # noqa: ANN401 - see `run_small`
    ) -> SmallRun:
        """Run a new plugin, if given with an observer of its hooks; `options` as in `run_small`."""
        method = self.compose()
        if observer is not None:
            method = with_hook_recorder(method, observer)
        return run_small(method, suite or self.suite(), dataset, **options)

    @cached_property
    def watch(self) -> Watch:
        """What was seen in the usual run, and in the one with newcomers."""
        return Watch()

    @cached_property
    def usual_run(self) -> SmallRun:
        """The run without options; it is made once, and watched."""
        watch = self.watch
        return self.run(
            observer=watch.observe, around_fit=watch.around_fit, before_first_round=watch.attach
        )

    @cached_property
    def newcomers_run(self) -> SmallRun:
        """The run with nine clients, of which three join after the last round.

        It is made once, and watched.
        """
        return self.run_with_newcomers(
            observer=self.watch.observe, around_fit=self.watch.around_fit
        )

    def run_with_newcomers(
        self,
        changes: Mapping[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - see `run`
    ) -> SmallRun:
        """Run a new plugin with nine clients, of which three join after the last round.

        `changes` are further fields of the suite.
        """
        suite = self.suite(clients=9, unseen=0.34, unseen_epochs=1, **(changes or {}))
        return self.run(suite, self.dataset(108), **options)

    def failure(self, text: str) -> CheckFailed:
        """The exception of a failed check; its text begins with the method's name."""
        return CheckFailed(f"{self.name}: {text}")

    def run_check(self, check: Check) -> CheckResult:
        """The result of a check; it is run once."""
        if check.name not in self._results:
            self._results[check.name] = self._run_check(check)
        return self._results[check.name]

    def _run_check(self, check: Check) -> CheckResult:
        for required in check.requires:
            found = self.run_check(required)
            if found.state not in ("passed", "xpassed"):
                cause = found.blocked_by or required.name
                return CheckResult(check.name, "skipped", f"it requires {cause}", cause)
        failure = ""
        try:
            check.function(self)
        except CheckSkipped as reason:
            return CheckResult(check.name, "skipped", str(reason))
        except (CheckFailed, FlbenchError) as error:
            failure = str(error) if self.name in str(error) else f"{self.name}: {error}"
        except Exception as error:
            failure = f"{self.name}: raised {type(error).__name__}: {error}"
        declared = self.declared_failures.get(check.name, "")
        if failure and declared:
            return CheckResult(check.name, "xfailed", declared)
        if failure:
            return CheckResult(check.name, "failed", " ".join(failure.split()))
        if declared:
            text = f"declared to fail ({declared}) but it passes: remove it from conformance.fails"
            return CheckResult(check.name, "xpassed", text)
        return CheckResult(check.name, "passed")
