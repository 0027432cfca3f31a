"""`flbench verify`: play a result file's run again, from nothing but the file, and compare."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.version import InvalidVersion, Version

from flbench.errors import BadParameter, UnknownName, UserError
from flbench.results.difference import SHARED_MARKS

if TYPE_CHECKING:
    from flbench.engine.options import EngineOptions
    from flbench.results.schema import Plugin, Result
    from flbench.run.spec import RunSpec

SEQUENTIAL, LANES = "sequential", "vectorised"

COMPUTED_BY = (
    "flbench", "core", "torch", "lightning", "numpy", "python", "machine", "device", "processor",
    "executor", "threads", "compile", "precision",
)  # fmt: skip
"""What of an environment may change the last bits of a number."""


def computed_otherwise(one: Result, other: Result) -> list[str]:
    """In what two results were not computed alike, or the first does not say that they were.

    Where there is nothing, the two have equal bytes.
    """
    pairs = [(key, one.environment.get(key), other.environment.get(key)) for key in COMPUTED_BY]
    found = [f"{key} {there}, here {here}" for key, there, here in pairs if there and there != here]
    found += [f"{key} not known, here {here}" for key, there, here in pairs if here and not there]
    ranks = [of.environment.get("ranks", "1") for of in (one, other)]
    if one.environment.get("executor") != SEQUENTIAL and ranks[0] != ranks[1]:
        found.append(f"processes {ranks[0]}, here {ranks[1]}")
    for plugin in other.plugins:
        mine = next((mine for mine in one.plugins if mine.name == plugin.name), None)
        if mine is None or not mine.source:
            found.append(f"source of {plugin.name} not known, here {plugin.source}")
        elif (mine.version, mine.source) != (plugin.version, plugin.source):
            code = (f"{one.version} ({one.source})" for one in (mine, plugin))
            found.append(f"{plugin.name} {', here '.join(code)}")
    if one.source_changes:
        found.append("the code changed within the run")
    if other.environment.get("device") != "cpu":
        found.append("processor of the device's host not known")
    return found


class Replay(NamedTuple):
    """What playing a run again gave.

    Attributes:
        earlier: seconds of its rounds that a command played before, which was stopped.
    """

    result: Result
    earlier: float


class NotTheSameRun(UserError):
    """What would be run here is not the run of the file: other data, parameters or code."""


def refuse_unpublished(result: Result) -> None:
    """Refuse a result of objects of a person's own, which no package offers.

    Raises:
        UserError: it is of some.
    """
    if names := result.unpublished:
        raise UserError(
            f"nobody else can run it again: {', '.join(names)} came from no package; publish the"
            " code as one (flbench new), and run it anew"
        )


def rounds_to_play(result: Result, wanted: int | None) -> int:
    """How many rounds to play; None = all of them.

    Raises:
        BadParameter: there are not so many, or none of them is evaluated.
    """
    rounds, every = int(result.suite["rounds"]), int(result.suite.get("eval_every", 1))
    first = min(every, rounds)
    if wanted is not None and not first <= wanted <= rounds:
        raise BadParameter(f"--rounds: expected {first} to {rounds}, got {wanted}")
    return wanted or rounds


def first_rounds(result: Result, most: int | None) -> int:
    """As many rounds as `most`, at least until one is evaluated; None = all of them."""
    rounds, every = int(result.suite["rounds"]), int(result.suite.get("eval_every", 1))
    return rounds if most is None else min(rounds, max(most, every))


def again(
    result: Result,
    data_root: Path,
    out: Path,
    say: Callable[[str], None],
    executor: str | None = None,
) -> RunSpec:
    """The job of a result, with the plugins that are installed here; says where versions differ.

    Args:
        executor: in place of the file's.

    Raises:
        NotTheSameRun: parameters of a plugin, or what it openly uses, are not what the file says.
        UserError: a plugin is not installed.
    """
    from flbench.run.composition import compose, plugins_of
    from flbench.submission.consistency import job_of

    stated = result.method
    try:
        method = compose(stated.name, stated.params, stated=True)
    except UnknownName as error:
        unknown = str(error).partition(" (")[0]  # the list of names that are known is long
        raise UserError(f"{unknown}; {_where_from(stated.plugins)}") from None
    here = method.described
    for field in ("name", "params"):
        there, mine = getattr(stated, field), getattr(here, field)
        if there != mine:
            raise NotTheSameRun(f"'method.{field}': {there} in the file, {mine} here")
    spec = job_of(result, out)
    brought = plugins_of(spec.suite) if result.suite_plugins else []
    for one, other in zip(result.plugins, (*here.plugins, *brought), strict=True):
        uses = {"uses_true_groups", "paper_leak", "pools_data"}
        if one.model_dump(include=uses) != other.model_dump(include=uses):
            raise NotTheSameRun(f"plugin {one.name} says here that it uses other things: {other}")
        package, there = (f"{plugin.distribution} {plugin.version}" for plugin in (one, other))
        if package != there:
            say(f"{one.name} is of {package} in the file, of {there} here")
        elif one.source and one.source != other.source:
            say(f"{one.name} {one.version} has another source here than in the file")
    if lacks_device(result):
        there = result.environment["processor"]
        say(f"it was played on {there}; here it can take many times as long")
    return replace(
        spec,
        method=method,
        data_root=data_root,
        engine=engine_of(result, executor),
        say=say,
    )


def _where_from(plugins: Iterable[Plugin]) -> str:
    """Which packages a file names, and the command that installs them, if they can be packages."""
    pairs = sorted({(one.distribution, one.version) for one in plugins})
    listed = ", ".join(repr(f"{name}=={version}") for name, version in pairs)
    if not all(_is_package(*pair) for pair in pairs):
        return f"the file names {listed}, which no package is called"
    words = ["pip", "install", *(f"{name}=={version}" for name, version in pairs)]
    return f"the file names {listed}; where you trust them: {shlex.join(words)}"


def _is_package(name: str, version: str) -> bool:
    """Whether a package can have this name (PEP 508) and version (PEP 440)."""
    is_named = re.fullmatch(r"[A-Z0-9]|[A-Z0-9][A-Z0-9._-]*[A-Z0-9]", name, re.I | re.A)
    try:
        return bool(is_named and Version(version))
    except InvalidVersion:
        return False


def lacks_device(result: Result) -> bool:
    """Whether a result was computed on a CUDA device, and here is none."""
    import torch

    return result.environment.get("device", "").startswith("cuda") and not torch.cuda.is_available()


def engine_of(result: Result, other: str | None = None) -> EngineOptions:
    """What comes nearest to how a result was computed, or the same with another executor."""
    from flbench.engine.machine.portable import NAME, is_possible
    from flbench.engine.options import EXACT, FELL_BACK, EngineOptions

    stated = result.environment
    on_cpu, threads = stated.get("device") == "cpu", stated.get("threads", "")
    known = {SEQUENTIAL: SEQUENTIAL, LANES: LANES, FELL_BACK: LANES}
    usual = SEQUENTIAL if on_cpu else "auto"  # of files from before the executor was named
    return EngineOptions(
        executor=other or known.get(stated.get("executor", ""), usual),
        accelerator="cpu" if on_cpu else "auto",
        precision=stated.get("precision", EXACT),
        threads=int(threads) if threads.isdecimal() and 0 < int(threads) <= 64 else 1,
        portable=stated.get("processor") == NAME and is_possible(),
    )


def limits_of(result: Result, engine: EngineOptions) -> Mapping[str, str]:
    """The variables under which the libraries compute as they did for a result, if they can here.

    Args:
        engine: how the run is played, see `engine_of`.
    """
    from flbench.engine.machine.instructions import to_compute_as
    from flbench.engine.machine.portable import SETTINGS

    stated = result.environment
    there = stated.get("processor", "") if stated.get("device") == "cpu" else ""
    return SETTINGS if engine.portable else to_compute_as(there)


def replay(
    result: Result,
    rounds: int,
    root: Path,
    say: Callable[[str], None],
    sink: object,
    *,
    executor: str | None = None,
) -> Replay:
    """Run the first rounds of a result's run again; see `again`. One that was stopped goes on.

    Args:
        say: prints a line.
        sink: listens to the run.

    Raises:
        NotTheSameRun: it does not begin as the file says; every mark that differs is named.
    """
    from flbench.federation.federation import data_hash
    from flbench.federation.loading import load_dataset
    from flbench.run.runner import play
    from flbench.run.setup import prepare
    from flbench.submission.replay_folder import cache, rounds_kept

    spec = again(result, root, cache(), say, executor)
    spec = replace(spec, sinks=(("console", sink),))
    with rounds_kept(spec, result, rounds) as spec:
        dataset = load_dataset(spec.suite.dataset.partition("[")[0], root)
        if "[" in spec.suite.dataset and dataset.name != spec.suite.dataset:
            raise UserError(f"the file is of {spec.suite.dataset}; what is there is {dataset.name}")
        run, state = prepare(spec, dataset)
        stated = result.fingerprint.data
        if stated != run.marks.data and stated == data_hash(dataset, samples_alone=True):
            marks = run.marks.model_copy(update={"data": stated})  # of an older version
            run.origin = replace(run.origin, marks=marks)
        unlike = [
            f"fingerprint.{name}: {stated} in the file, {here} here"
            for name in ("suite", *SHARED_MARKS)
            if (stated := getattr(result.fingerprint, name)) != (here := getattr(run.marks, name))
        ]
        if unlike:
            raise NotTheSameRun(f"not the same run, nothing was played: {'; '.join(unlike)}")
        if state.round:
            say(f"{spec.title}: goes on after round {state.round}, where it was stopped")
        earlier = run.history.seconds.get("total", 0.0)
        came = play(spec, run, state, rounds, target=None)
        return Replay(came, earlier)
