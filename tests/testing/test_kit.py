"""The conformance kit: every built-in method holds, every planted bug breaks its law alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import in_processes
import planted_bugs
import planted_import
import pytest
from every import HAPPENED, LONG_CHECKS
from mentions import mention, mentioning, mentions
from planted_bugs import APART, FURTHER, RIGHT
from toy import Play, Typed, composition, install
from unseen_bugs import UNSEEN

from flbench import Conformance, hookimpl
from flbench.engine.lanes import vectorised
from flbench.engine.lanes.hooks import LaneHooks
from flbench.plugin.registry import entries, find, load_entry
from flbench.testing import CHECKS, check_results, parametrize_with_checks, subprocesses
from flbench.testing.check import CheckFailed, CheckResult, MethodUnderTest
from flbench.testing.edge_cases import check_result
from flbench.testing.hook_recorder import with_hook_recorder
from flbench.testing.kit import MethodCheck, method_under_test
from flbench.testing.registration import imported_by
from flbench.testing.small_run import small_suite
from flbench.testing.subprocesses import ProcessFailed, in_fresh_process, in_process_group

METHODS = [name for name, entry in entries("methods").items() if entry.distribution == "flbench"]
PAPERS = ("pfedlia", "flis-dc", "flis-hc", "fedc2i", "dc-pfl")
"""The systems that flbench exists for."""
ALWAYS = ("usual-run", "every-hook-answers")
"""Checks that no method is spared."""

PLANTED = {law: law.title().replace("-", "") for law in CHECKS}
"""The law, and the class whose mistake it must find."""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_built_in_method_conforms(method: str) -> None:
    """The methods of the papers make most checks, others two; `tox -e long` makes all of each."""
    most = [name for name in CHECKS if name not in LONG_CHECKS]
    conforms(method, most if method in PAPERS else ALWAYS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_every_built_in_method_passes_every_check(method: str) -> None:
    conforms(method, list(CHECKS))


def conforms(method: str, checks: Sequence[str]) -> None:
    found = list(check_results(method, checks))  # in one test: its runs are shared
    assert [str(result) for result in found if not result.ok] == []
    fails = method_under_test(method).conformance.fails.keys() & set(checks)
    assert {result.check for result in found if result.state == "xfailed"} == fails
    skipped = {result.check for result in found if result.state == "skipped"}
    on = set().union(*map(_on, fails)) & set(checks)
    assert skipped - {"declared-equal"} == on - {"declared-equal"}
    assert HAPPENED.get(method, bool)(method_under_test(method).usual_run), (
        "what makes it special took place"
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All plugins with a mistake, installed."""
    folder = tmp_path_factory.mktemp("planted")
    points = ["[flbench.methods]", "apart = planted_bugs:Apart"]
    for law, kind in PLANTED.items():
        home = planted_import if law == "discovered-alone" else planted_bugs
        points.append(f"planted-{law} = {home.__name__}:{kind}")
    points += [f"further-{kind.__name__} = planted_bugs:{kind.__name__}" for kind in FURTHER]
    points += [f"unseen-{kind.__name__} = unseen_bugs:{kind.__name__}" for kind in UNSEEN]
    points += [f"right-{kind.__name__} = planted_bugs:{kind.__name__}" for kind in RIGHT]
    install(folder, "unseen", "")  # the folder of `KeepsInAFile`
    install(folder, "planted", "\n".join(points) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("law", CHECKS)
@pytest.mark.usefixtures("planted")
def test_a_planted_bug_breaks_its_law_and_no_other(law: str) -> None:
    """Run are the checks that it requires, itself, and those that require it."""
    checks = [name for name in CHECKS if name == law or name in _after(law) | _on(law)]
    found = {result.check: result for result in check_results(f"planted-{law}", checks)}
    broken = {name: v.reason for name, v in found.items() if v.state == "failed"}
    assert list(broken) == [law]
    assert f"planted-{law}" in broken[law], "the line names the plugin"
    assert "\n" not in broken[law]
    aside = {name for name, v in found.items() if v.state == "skipped"} - {"declared-equal"}
    assert aside == _on(law) - {"declared-equal"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", FURTHER, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("planted")
def test_a_law_can_be_broken_in_other_ways(kind: type) -> None:
    law = FURTHER[kind]
    found = list(check_results(f"further-{kind.__name__}", [*sorted(_after(law)), law]))
    assert [result.check for result in found if result.state == "failed"] == [law]


@pytest.mark.slow
@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("planted")
def test_what_is_right_passes(kind: type) -> None:
    law = RIGHT[kind]
    found = list(check_results(f"right-{kind.__name__}", [*sorted(_after(law)), law]))
    assert [str(result) for result in found if result.state != "passed"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNSEEN, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("planted")
def test_what_no_check_sees_passes_the_nearest(kind: type) -> None:
    """Where this fails, a check has learnt to see it: shorten the list in docs/conformance.md."""
    (found,) = check_results(f"unseen-{kind.__name__}", [UNSEEN[kind]])
    assert found.state == "passed"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", UNSEEN, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("planted")
def test_what_no_check_sees_passes_all(kind: type) -> None:
    found = list(check_results(f"unseen-{kind.__name__}"))
    assert [str(result) for result in found if not result.ok] == []


def test_the_page_has_every_mistake_that_no_check_sees() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("## What no check can see")
    rows = [line.split("`")[1] for line in rest.splitlines() if line.startswith("- `")]
    assert rows == [kind.__name__ for kind in UNSEEN]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", APART, ids=lambda kind: kind.__name__)
@pytest.mark.usefixtures("planted")
def test_an_executor_that_asks_one_client_for_all_breaks_its_law(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake is planted in the executor; without it the law holds."""

    def verdict() -> CheckResult:
        one = MethodUnderTest("apart")
        one.conformance = Conformance(params={"module": kind.__name__})
        return one.run_check(CHECKS["vectorised-clients"])

    assert str(verdict()).split() == ["vectorised-clients", "passed"]

    @contextmanager
    def unseen(self: LaneHooks, lane: int, hook: str) -> Iterator[None]:
        self.load(lane)
        yield

    def once(self: LaneHooks, function: Any, *_: object, **__: object) -> list[Any]:
        self.load(0)
        return [function(self.module)]

    monkeypatch.setattr(LaneHooks, "check_side_effects", unseen)
    monkeypatch.setattr(vectorised, "no_draws", nullcontext)
    monkeypatch.setattr(LaneHooks, "call_per_lane", once)
    assert mentions(str(verdict()), "vectorised-clients", "failed", "--executor")
    assert "in round 1, stage 'train'" in str(verdict())


def _on(law: str) -> set[str]:
    """All laws that stand on one."""
    return {name for name in CHECKS if law in _after(name)}


def _after(name: str) -> set[str]:
    """All laws that a law stands on."""
    direct = {one.name for one in CHECKS[name].requires}
    return direct.union(*(_after(one) for one in direct))


# --- what an author declares ------------------------------------------------------------------

STRANGE = '''
from dataclasses import dataclass, field
from typing import ClassVar
import flbench as fl

@dataclass(frozen=True)
class Honest:
    """Knows that it cannot be alone."""
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        fails={"one-client": "it divides by the others", "plain-parameters": "long mended"}
    )

    @fl.hookimpl
    def setup(self, ctx):
        ctx.note("honest.share", 1 / (ctx.clients - 1))

@dataclass(frozen=True)
class Confused:
    """Speaks of a law that does not exist."""
    conformance: ClassVar[fl.Conformance] = fl.Conformance(fails={"one-clint": "a slip"})

@dataclass(frozen=True)
class Plain:
    """Says it with a dict."""
    conformance: ClassVar[dict] = {"rounds": 3}

@dataclass(frozen=True)
class Needy:
    """Has a parameter without a default."""
    mu: float

@dataclass(frozen=True)
class Mutable:
    """Has a parameter that can be changed."""
    names: list[str] = field(default_factory=list)

@dataclass(frozen=True)
class Dotted:
    """Says what it needs of the suite as one types it."""
    conformance: ClassVar[fl.Conformance] = fl.Conformance(
        suite={"local.epochs": 1, "momentum": 0.0}
    )

    @fl.hookimpl
    def setup(self, ctx):
        if ctx.local.momentum:
            raise fl.Undefined("it has no meaning under momentum")

@dataclass(frozen=True)
class Plainly(Dotted):
    """Forgets to say that."""
    conformance: ClassVar[fl.Conformance] = fl.Conformance()

@dataclass(frozen=True)
class Slip(Dotted):
    """Names a field that no suite has."""
    conformance: ClassVar[fl.Conformance] = fl.Conformance(suite={"local.epoch": 1})

@dataclass(frozen=True)
class Wrong(Dotted):
    """Gives a field a value that does not fit."""
    conformance: ClassVar[fl.Conformance] = fl.Conformance(suite={"local.epochs": "two"})
'''
POINTS = """[flbench.methods]
honest = strange_laws:Honest
confused = strange_laws:Confused
plain-dict = strange_laws:Plain
needy = strange_laws:Needy
mutable = strange_laws:Mutable
gone = strange_gone:Gone
dotted = strange_laws:Dotted
plainly = strange_laws:Plainly
slip = strange_laws:Slip
wrong = strange_laws:Wrong
"""


@pytest.fixture
def strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods whose authors declare something, installed."""
    install(tmp_path / "site", "strange", POINTS, strange_laws=STRANGE)
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.slow
@pytest.mark.usefixtures("strange")
def test_a_declared_failure_is_shown_and_must_be_taken_back_once_it_holds(typed: Typed) -> None:
    code, out, err = typed(
        "check", "honest", *(["--only", "one-client", "--only", "plain-parameters"])
    )
    assert code == 1
    mended = "declared to fail (long mended) but it passes: remove it from conformance.fails"
    assert out.splitlines() == [
        "honest [strange 1.0]",
        mentioning("one-client", "xfailed"),
        f"  plain-parameters          xpassed  {mended}",
        "  1 xfailed, 1 xpassed",
    ]
    assert err == mentioning("check", "1", "failed", "plain-parameters")


@pytest.mark.slow
@pytest.mark.usefixtures("strange")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "check: name a method (flbench list methods), or type --list"),
        (("nosuch",), "unknown method 'nosuch'"),
        (
            ("fedavg", "--only", "one-clent"),
            "unknown check 'one-clent'; did you mean 'one-client'?",
        ),
        (
            ("confused",),
            "unknown check in confused.conformance.fails 'one-clint'; did you",
        ),
        (
            ("plain-dict", "--only", "plain-parameters"),
            "plain-dict.conformance: expected fl.Conformance, got dict",
        ),
    ],
)
def test_what_cannot_be_checked_is_said_in_one_line(
    words: tuple[str, ...], said: str, typed: Typed
) -> None:
    code, _, err = typed("check", *words)
    assert code == 1
    assert err.startswith(f"flbench: {said}")
    assert err.count("\n") == 1


@pytest.mark.usefixtures("strange")
def test_a_parameter_without_a_default_is_found_before_a_run_is(typed: Typed) -> None:
    code, out, _ = typed("check", "needy", "--only", "plain-parameters")
    assert code == 1
    assert mentions(out, "mu", "flbench run")


@pytest.mark.slow
@pytest.mark.usefixtures("strange")
@pytest.mark.parametrize(
    ("method", "check", "said"),
    [
        ("needy", "plain-parameters", "needy: parameter 'mu' has no default"),
        ("mutable", "plain-parameters", "mutable: parameter 'names' is a list, which is mutable"),
        ("gone", "discovered-alone", "gone: "),
    ],
)
def test_a_check_as_a_test_fails_with_its_line(method: str, check: str, said: str) -> None:
    with pytest.raises(CheckFailed, match=f"^{said}"):
        MethodCheck(method, check)()


def test_what_a_method_imports_of_other_plugins_is_found() -> None:
    load_entry(find("methods", "ifca"))
    found = imported_by("fedprox")
    assert "flbench_plugins.ifca" in found
    assert not {"flbench_plugins.fedprox", "flbench_plugins"} & set(found)


def test_a_loss_that_is_not_finite_is_no_end_of_a_run(play_toy: Play) -> None:
    result = play_toy("fedavg", rounds=1).result
    tested = MethodUnderTest("fedavg")
    ends: Any = SimpleNamespace(result=result, last=SimpleNamespace(loss=[0.5] * 6))
    check_result(tested, ends)
    ends.last.loss[3] = float("nan")
    with pytest.raises(CheckFailed, match=mention("fedavg", "finite")):
        check_result(tested, ends)


@pytest.mark.slow
@pytest.mark.usefixtures("strange")
def test_the_suite_of_the_kit_is_changed_as_one_types_it() -> None:
    tested = MethodUnderTest("dotted")
    assert (tested.suite().local.epochs, tested.suite().local.momentum) == (1, 0.0)
    assert tested.suite().local.batch_size == small_suite().local.batch_size
    assert str(tested.run_check(CHECKS["usual-run"])).split() == ["usual-run", "passed"]


@pytest.mark.slow
@pytest.mark.usefixtures("strange")
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("slip", "unknown field in slip.conformance.suite 'local.epoch'; did you mean 'local.epo"),
        ("wrong", "wrong.conformance.suite: suite 'small': 'local.epochs': input should be a "),
        ("plainly", "is undefined on the federation of the kit (plainly: it has no meaning und"),
    ],
)
def test_what_the_suite_of_the_kit_cannot_be_is_said(method: str, said: str) -> None:
    found = MethodUnderTest(method).run_check(CHECKS["usual-run"])
    assert found.state == "failed"
    assert said in found.reason


@pytest.mark.usefixtures("strange")
def test_a_check_asked_for_alone_shows_what_stands_before_it(typed: Typed) -> None:
    code, out, _ = typed("check", "needy", "--only", "resumed-run", "--only", "one-client")
    assert code == 1
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["plain-parameters", "failed"],
        ["resumed-run", "skipped"],
        ["one-client", "skipped"],
    ]
    assert "parameter 'mu' has no default" in lines[1]
    assert lines[2].endswith("it requires plain-parameters")


def test_the_laws_can_be_listed(typed: Typed) -> None:
    code, out, _ = typed("check", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(CHECKS)
    assert all(len(line) <= 120 for line in out.splitlines())


def test_the_page_has_every_law() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{one.name}` | {one.description} |" for one in CHECKS.values()]


def test_the_page_begins_with_what_authors_put_into_their_ci() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    first = page.splitlines()[:15]
    assert '@parametrize_with_checks("my-method")' in first
    tests = Path(__file__).parents[2] / "docs" / "tutorial-package" / "tests" / "test_kindred.py"
    assert tests.read_text(encoding="utf-8").replace("kindred", "my-method") in page


def test_a_test_is_named_after_method_and_law() -> None:
    (mark,) = [parametrize_with_checks("fedavg", "oracle")]
    assert mark.args[0] == "check"
    ids = [one.id for one in mark.args[1]]
    assert ids[0] == "fedavg-discovered-alone"
    assert len(ids) == 2 * len(CHECKS)


def test_a_hook_without_self_is_watched_too(play_toy: Play) -> None:
    @dataclass(frozen=True)
    class Static:
        @hookimpl
        @staticmethod
        def aggregate(upload: Any) -> None:
            return None

    asked: list[tuple[str, list[str]]] = []

    def observer(hook: str, arguments: Any, call: Any) -> object:
        asked.append((hook, list(arguments)))
        return call()

    play_toy(with_hook_recorder(composition(("static", Static())), observer), rounds=1)
    assert asked == [("aggregate", ["upload"])]


# --- fresh processes --------------------------------------------------------------------------


@pytest.mark.slow
def test_fresh_processes_answer_or_say_how_they_ended() -> None:
    assert in_process_group(in_processes.place, 2) == [["0", "127.0.0.1"], ["1", "127.0.0.1"]]
    assert in_fresh_process(len, "four") == 4
    with pytest.raises(ProcessFailed, match=r"a process died \(exit code 7\)"):
        in_fresh_process(in_processes.dies)
    with pytest.raises(ProcessFailed, match="ValueError: expected more"):
        in_fresh_process(in_processes.raises)
    assert "LOCAL_RANK" not in os.environ


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "TIMEOUT", 0.1)
    with pytest.raises(ProcessFailed, match=mention("0 s", "process")):
        in_fresh_process(time.sleep, 600)
