"""Third-party code that misbehaves: what it changes is restored, what it raises is one line."""

from __future__ import annotations

import importlib
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_results import made
from mentions import mention, mentioning, mentions
from toy import (
    Play,
    Typed,
    bad,
    composition,
    install,
    python,
    refused,
    toy_suite,
)

from flbench import ClientModule, UserError, hookimpl
from flbench.datasets import status
from flbench.errors import BadParameter, Diverged, PluginError, in_one_line, text_of
from flbench.federation.loading import load_dataset
from flbench.plugin.isolation import (
    EVERYTHING,
    GENERATORS,
    IsolatedPlugin,
    produced,
    restore,
    snapshot,
)
from flbench.plugin.registry import entries, find
from flbench.plugin.source_inspection import loaded_source, source_hash
from flbench.results.schema import Result
from flbench.run.composition import MethodStack, compose
from flbench.run.import_probe import tried
from flbench.run.networks import build_network
from flbench.submission.admission import other_environment
from flbench.suite import load_suite
from flbench.sweeps import request

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


NOT_ENVIRONMENT = EVERYTHING[:-1]
"""pytest writes the name of the running test into the environment."""


@pytest.fixture(autouse=True)
def _all_is_restored() -> Iterator[None]:
    """No test leaves a setting changed; restore() gives what it had to restore."""
    before = snapshot(NOT_ENVIRONMENT)
    yield
    assert restore(before) == []


# --- what it changes --------------------------------------------------------------------------

CHANGES: dict[str, tuple[str, Callable[[], object]]] = {
    "random.seed": ("drew from Python's global generator", lambda: random.seed(3)),
    "random.random": ("drew from Python's global generator", random.random),
    "np.random.seed": ("drew from numpy's global generator", lambda: np.random.seed(3)),
    "np.random.normal": ("drew from numpy's global generator", np.random.standard_normal),
    "torch.manual_seed": ("drew from torch's global generator", lambda: torch.manual_seed(3)),
    "torch.rand": ("drew from torch's global generator", lambda: torch.rand(1)),
    "dtype": (
        "changed torch's default dtype to torch.float64",
        lambda: torch.set_default_dtype(torch.float64),
    ),
    "device": (
        "changed torch's default device to meta", lambda: torch.set_default_device("meta"),
    ),
    "threads": (
        "changed torch's number of threads to 3", lambda: torch.set_num_threads(3),
    ),
    "grad": (
        "changed torch's grad mode to False",
        lambda: torch.set_grad_enabled(False),
    ),
    "deterministic": (
        "changed torch's deterministic algorithms to (True, True)",
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    "precision": (
        "changed torch's float32 matmul precision to medium",
        lambda: torch.set_float32_matmul_precision("medium"),
    ),
    "cudnn": (
        "changed torch's cudnn settings to (True, False)",
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
    ),
    "autocast": (
        "changed torch's autocast to (True, torch.bfloat16)",
        lambda: torch.set_autocast_enabled("cpu", True),
    ),
    "oneDNN": (
        "changed torch's use of oneDNN to False",
        lambda: torch.backends.mkldnn.set_flags(_enabled=False),
    ),
    "attention": (
        "changed torch's attention kernels to (False, True, True, True)",
        lambda: torch.backends.cuda.enable_flash_sdp(False),
    ),
    "denormal": (
        "changed torch's flushing of denormal numbers to True",
        lambda: torch.set_flush_denormal(True),
    ),
    "cwd": ("changed the working directory to /", lambda: os.chdir("/")),
    "environ": ("changed the environment (PATH)", lambda: os.environ.update(PATH="", NEW_X="1")),
    "pop": ("changed the environment (PATH)", lambda: os.environ.pop("PATH")),
}  # fmt: skip


def settings() -> list[str]:
    """Every setting as text; of the environment what is changed below."""
    read = [f"{one.name}: {value!r:.20000}" for one, value in snapshot(NOT_ENVIRONMENT)]
    return [*read, os.environ["PATH"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_hook_changes_is_restored_with_one_warning(
    play_toy: Play, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, change = CHANGES[name]
    monkeypatch.delenv("NEW_X", raising=False)
    before = settings()
    seen: list[list[str]] = []

    def plan(self: Any) -> None:
        seen.append(settings())
        change()

    played = play_toy(bad(plan=plan), rounds=2)
    assert seen == [before, before], "also when the second round began"
    assert settings() == before
    assert not torch.overrides._get_current_function_mode_stack(), "a device slows every call"
    (warning,) = played.said
    assert warning.startswith(f"bad.plan {text}")
    assert "restored" in warning
    assert played.run.history.last == play_toy("fedavg", rounds=2).run.history.last


def test_each_setting_has_a_warning_of_its_own(play_toy: Play) -> None:
    names = ("dtype", "cwd", "pop", "random.seed")

    def setup(self: Any) -> None:
        for name in names:
            CHANGES[name][1]()

    said = play_toy(bad(setup=setup), rounds=1).said
    assert len(said) == len(names)
    for name in names:
        assert sum(line.startswith(f"bad.setup {CHANGES[name][0]}") for line in said) == 1


def test_another_bit_generator_of_numpy_is_replaced() -> None:
    said: list[str] = []
    expected = np.random.get_state(legacy=False)["state"]["key"].copy()
    with IsolatedPlugin("x", said.append).acting("x.plan"):
        np.random.set_bit_generator(np.random.PCG64(3))
    assert mentions(said[0], "x.plan", "numpy")
    assert (np.random.get_state(legacy=False)["state"]["key"] == expected).all()


def test_the_cached_normal_of_numpy_is_restored() -> None:
    first = snapshot(GENERATORS)
    np.random.standard_normal()  # the second of the pair is cached: drawing it moves nothing else
    before = np.random.get_state(legacy=False)["has_gauss"]
    said: list[str] = []
    with IsolatedPlugin("x", said.append).acting("x.plan"):
        np.random.standard_normal()
    assert len(said) == 1
    assert np.random.get_state(legacy=False)["has_gauss"] == before == 1
    restore(first)


def test_the_state_of_numpy_is_compared_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy takes long to give it, and nothing has moved since the last hook as a rule."""
    first = snapshot(GENERATORS)
    np.random.seed(5)
    (known,) = [state for one, state in snapshot(GENERATORS) if one.module == "numpy.random"]
    monkeypatch.setattr(np.random, "get_state", None)
    assert restore(snapshot(GENERATORS)) == []
    monkeypatch.undo()
    np.random.random()
    (moved,) = [state for one, state in snapshot(GENERATORS) if one.module == "numpy.random"]
    assert (moved[0], moved[1]) != (known[0], known[1])
    restore(first)


def test_global_generators_repeat_for_who_uses_them(play_toy: Play) -> None:
    drawn: list[tuple[float, float, float]] = []

    def plan(self: Any) -> None:
        drawn.append((random.random(), float(np.random.random()), float(torch.rand(()))))

    played = play_toy(bad(plan=plan), rounds=3)
    assert len(set(drawn)) == 1
    assert [line.partition(" drew from ")[2].partition("'s")[0] for line in played.said] == [
        "Python", "numpy", "torch",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_module_may_draw_its_first_weights_from_torch(play_toy: Play) -> None:
    weights: list[torch.Tensor] = []

    def client_module(self: Any, net: Any, ctx: Any) -> ClientModule:
        weights.append(torch.nn.Linear(3, 3).weight.detach())
        return ClientModule(net, ctx.local)

    before = torch.get_rng_state()
    for seed in (0, 0, 1):
        assert play_toy(bad(client_module=client_module), rounds=1, seed=seed).said == []
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2]), "the core seeded it with the run's seed"
    assert torch.get_rng_state().equal(before)


def test_variables_that_somebody_adds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEW_X", raising=False)
    said: list[str] = []
    with IsolatedPlugin("x", said.append).acting("x.plan"):
        os.environ["NEW_X"] = "1"
    assert (os.environ["NEW_X"], said) == ("1", [])


def test_a_removed_working_directory_is_no_error(tmp_path: Path) -> None:
    said: list[str] = []
    here = Path.cwd()
    try:
        gone = tmp_path / "gone"
        gone.mkdir()
        os.chdir(gone)
        with IsolatedPlugin("x", said.append).acting("x.plan"):
            gone.rmdir()
        assert not said or "working directory" in said[0]
    finally:
        os.chdir(here)


@pytest.mark.slow
def test_torch_is_not_imported_to_be_watched() -> None:
    told = python(
        "import sys\n"
        "from flbench.plugin.isolation import IsolatedPlugin\n"
        "with IsolatedPlugin('x', print).acting('importing x'):\n"
        "    print('hello')\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    assert told.splitlines() == ["False False"]


# --- while clients train ----------------------------------------------------------------------


class Rude(ClientModule):
    """Changes defaults at every batch."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        torch.set_float32_matmul_precision("medium")
        os.environ["PATH"] = "/nowhere"
        return super().training_step(batch, batch_idx)


def rude(self: Any, net: Any, ctx: Any) -> ClientModule:
    return Rude(net, ctx.local)


def test_what_training_changes_is_restored_at_the_next_round(play_toy: Play) -> None:
    path, seen = os.environ["PATH"], []

    def plan(self: Any) -> None:
        seen.append((torch.get_float32_matmul_precision(), os.environ["PATH"]))

    played = play_toy(bad(client_module=rude, plan=plan), rounds=2)
    assert seen == [("highest", path)] * 2
    assert os.environ["PATH"] == path
    part = "bad's training or evaluation changed"
    assert played.said == [
        mentioning(part, "torch", "float32", "medium"),
        f"{part} the environment (PATH); restored",
    ]


def test_what_a_term_changes_is_restored(play_toy: Play) -> None:
    def term(module: ClientModule) -> torch.Tensor:
        torch.set_float32_matmul_precision("medium")
        return torch.zeros(())

    (warning,) = play_toy(bad(local_term=lambda self: term), rounds=1).said
    assert mentions(warning, "torch", "float32")
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_evaluation_changes_is_restored(play_toy: Play) -> None:
    class Predicts(ClientModule):
        def predict(self, x: torch.Tensor) -> torch.Tensor:
            torch.set_float32_matmul_precision("medium")
            return super().predict(x)

    def client_module(self: Any, net: Any, ctx: Any) -> ClientModule:
        return Predicts(net, ctx.local)

    assert "medium" in play_toy(bad(client_module=client_module), rounds=2).said[0]
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_a_failed_run_changed_is_restored(play_toy: Play) -> None:
    class Diverges(Rude):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) * torch.nan

    def client_module(self: Any, net: Any, ctx: Any) -> ClientModule:
        return Diverges(net, ctx.local)

    with pytest.raises(Diverged):
        play_toy(bad(client_module=client_module))
    assert torch.get_float32_matmul_precision() == "highest"


# --- what it prints ---------------------------------------------------------------------------


def test_what_a_hook_prints_goes_to_standard_error(
    play_toy: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(self: Any) -> None:
        print("one")

    assert play_toy(bad(plan=plan), rounds=1).said == []
    assert capsys.readouterr() == ("", "one\n")
    with suppress(ValueError), IsolatedPlugin("x").acting("x.plan"):
        raise ValueError
    print("a table")
    assert capsys.readouterr() == ("a table\n", "")


@pytest.mark.slow
def test_the_table_of_a_run_stays_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    text = (
        "from dataclasses import dataclass\nfrom flbench import hookimpl\n"
        "print('at import')\nimport random; random.seed(0)\n"
        "import torch; torch.set_default_dtype(torch.float64)\n"
        "@dataclass(frozen=True)\nclass Loud:\n"
        "    def __post_init__(self): print('when made')\n"
        "    @hookimpl\n    def plan(self): print('in a hook')\n"
    )
    install(tmp_path / "s", "loud", "[flbench.methods]\nloud = loud_m:Loud\n", loud_m=text)
    monkeypatch.syspath_prepend(str(tmp_path / "s"))
    small = ("-s", "iid", "--rounds", "1", "--set", "suite.clients=4", "--set", "epochs=1")
    code, out, errors = typed("run", "-p", "loud,fedavg", *small)
    sys.modules.pop("loud_m")
    assert code == 0
    prints = {"at import", "when made", "in a hook"}
    assert not prints & set(out.splitlines())
    assert prints <= set(errors.splitlines())
    assert mentions(errors, "torch", "torch.float64")
    assert "generator" not in errors, "libraries draw from them when they are imported"
    results = {p.parts[-3]: p for p in Path("flbench-results").rglob("seed-0.json")}
    loud, plain = (Result.model_validate_json(results[n].read_text()) for n in ("loud", "fedavg"))
    assert loud.curves == plain.curves
    assert loud.method.plugins[0].source == source_hash("loud_m") != ""


# --- where it ends ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "line"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit"),
        (AssertionError(), "AssertionError"),
        (ValueError("one\n  two\n"), "ValueError: one two"),
        (KeyError("gone"), "KeyError: 'gone'"),
    ],
)
def test_whatever_a_hook_raises_is_one_line(
    play_toy: Play, error: BaseException, line: str
) -> None:

    def plan(self: Any, ctx: Any) -> None:
        raise error

    assert refused(play_toy, bad(plan=plan)) == f"round 1: bad.plan raised {line}"

    @dataclass
    class Sink:
        @hookimpl
        def round_finished(self) -> None:
            torch.set_float32_matmul_precision("medium")
            raise error

    played = play_toy("fedavg", rounds=1, sinks=(("mine", Sink()),))
    assert played.said == [
        mentioning("mine.round_finished", "torch", "float32", "medium"),
        f"mine.round_finished failed ({line}); the run goes on",
    ]
    assert played.state.round == 1


def test_ctrl_c_passes(play_toy: Play) -> None:
    def stop(self: Any) -> None:
        torch.set_float32_matmul_precision("medium")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_toy(bad(plan=stop))
    with pytest.raises(KeyboardInterrupt):
        play_toy("fedavg", sinks=(("bad", bad(round_finished=stop).layers[0][1]),))
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_a_hook_tells_the_person_is_one_line(play_toy: Play) -> None:
    def plan(self: Any) -> None:
        raise UserError("expected\n7 clients")

    assert refused(play_toy, bad(plan=plan)) == "round 1: bad.plan: expected 7 clients"


def test_errors_in_one_line_by_hand() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert in_one_line(Mute()) == "Mute"
    assert text_of(ValueError("x" * 501)) == "x" * 500 + " ..."
    assert text_of(ValueError("x" * 500)) == "x" * 500


# --- how it begins ----------------------------------------------------------------------------


def offer(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    name: str = "odd",
    kind: str = "methods",
) -> None:
    """Install something whose module holds a text."""
    head = "from dataclasses import dataclass, field\nfrom flbench import UserError\n"
    install(
        folder, name, f"[flbench.{kind}]\n{name} = {name}_b:Odd\n", **{f"{name}_b": head + text}
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, f"{name}_b", raising=False)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("raise SystemExit('bye')\nOdd = 1", "SystemExit: bye"),
        ("raise SystemExit\nOdd = 1", "SystemExit"),
        ("assert False\nOdd = 1", "AssertionError"),
        ("class Stop(BaseException): ...\nraise Stop('one\\ntwo')\nOdd = 1", "Stop: one two"),
    ],
)
def test_what_ends_an_import_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: str
) -> None:
    offer(tmp_path, monkeypatch, text)
    with pytest.raises(PluginError) as caught:
        compose("odd")
    assert str(caught.value) == mentioning("odd", "1.0 cannot", "odd_b:Odd", line, "uninstall odd")


def test_ctrl_c_while_importing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, monkeypatch, "raise KeyboardInterrupt\nOdd = 1\n")
    with pytest.raises(KeyboardInterrupt):
        compose("odd")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("raise ValueError('rate above 1')", "rate above 1"),
        ("raise UserError('one\\ntwo')", "one two"),
        ("raise ValueError", "ValueError"),
        ("assert False", "AssertionError"),
        ("raise TypeError('so')", "TypeError: so"),
        ("{}['x']", "KeyError: 'x'"),
        ("raise SystemExit(1)", "SystemExit: 1"),
    ],
)
def test_what_a_constructor_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, line: str
) -> None:
    text = f"@dataclass(frozen=True)\nclass Odd:\n    def __post_init__(self):\n        {body}\n"
    offer(tmp_path, monkeypatch, text)
    with pytest.raises(BadParameter) as caught:
        compose("odd")
    assert str(caught.value) == f"method 'odd': {line}"


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("x: 'Nowhere' = 1", "its fields cannot be read: NameError: name 'Nowhere' is not defined"),
        ("x: object = object", "'x' is <class 'object'>, expected numbers, text, lists or tables"),
        ("x: float = float('inf')", "'x' is inf, expected numbers, text, lists or tables"),
    ],
)
def test_fields_that_no_file_can_hold_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, line: str
) -> None:
    offer(tmp_path, monkeypatch, f"@dataclass(frozen=True)\nclass Odd:\n    {field}\n")
    with pytest.raises(PluginError) as caught:
        compose("odd")
    assert str(caught.value).startswith(f"method 'odd' of odd 1.0: {line}")


@pytest.mark.slow
@pytest.mark.long
def test_a_crash_or_a_hang_of_one_import_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = "@dataclass(frozen=True)\nclass Odd:\n    x: int = 1\n"
    cases = {
        "exits": "import os; os._exit(7)\nOdd = 1\n",
        "hangs": "while True: ...\nOdd = 1\n",
        "prints": f"print('\"x\"'); import os; os.write(1, b'y')\n{sound}",
        "raises": "raise RuntimeError('a\\nb')\nOdd = 1\n",
        "segfaults": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\nOdd = 1\n",
        "spawns": f"import os, time\nif not os.fork(): time.sleep(30); os._exit(0)\n{sound}",
        "sound": sound,
    }
    for name, text in cases.items():
        offer(tmp_path, monkeypatch, text, name, "partitions")
    known = entries("partitions")
    found = tried([known["hangs"], known["sound"]], patience=3)
    found |= tried([known[name] for name in [*cases, "iid"] if name != "hangs"])
    why = found.pop(("partitions", "raises"))
    assert mentions(why, "RuntimeError", "a b", "uninstall raises")
    assert found == {
        ("partitions", "exits"): mentioning("code 7", "importing"),
        ("partitions", "hangs"): mentioning("3 s", "importing"),
        ("partitions", "segfaults"): mentioning("signal 11", "importing"),
    }


@pytest.mark.slow
@pytest.mark.long
def test_the_option_load_imports_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    offer(tmp_path / "site", monkeypatch, "raise RuntimeError('old')\nOdd = 1\n")
    assert "broken" not in typed("list", "methods")[1]
    code, out, _ = typed("list", "methods", "--load")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "broken" in line]
    assert mentions(line.strip(), "broken", "odd", "1.0 cannot")
    assert "odd_b" not in sys.modules


# --- which code it was ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_mark_is_of_the_files_that_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "acme_m"
    folder.mkdir()
    texts = {
        "__init__": "", "method": "from . import sums\nfrom acme_m.deep import x\nimport os\n",
        "sums": "from .rest import y\n", "deep": "x = 1\n", "rest": "y = 1\n", "other": "z = 1\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    first = source_hash("acme_m.method")
    assert re.fullmatch(r"[0-9a-f]{12}", first)
    (folder / "other.py").write_text("z = 2\n")
    assert source_hash("acme_m.method") == first, "nobody imports it"
    marks = {first}
    for name in ("__init__", "method", "sums", "deep", "rest"):
        (folder / f"{name}.py").write_text(texts[name] + "# changed\n")
        marks.add(source_hash("acme_m.method"))
    assert len(marks) == 6
    alone = source_hash("acme_m.other")
    (folder / "__init__.py").write_text("")
    assert source_hash("acme_m.other") != alone, "its package runs as well"
    assert source_hash("nowhere_to_be_found") == source_hash("math") == ""
    assert source_hash("acme_m.method") != source_hash("acme_m.other") != ""


@pytest.mark.slow
def test_a_mark_is_of_all_that_a_distribution_brings_and_a_module_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`py-modules = [a, b]` are two top-level modules."""
    texts = {"beside_m": "import beside_h, apart_h\n", "beside_h": "x = 1\n"}
    install(tmp_path, "beside", "", **texts)
    (tmp_path / "beside-1.0.dist-info" / "top_level.txt").write_text("beside_m\nbeside_h\n")
    install(tmp_path, "apart", "", apart_h="x = 1\n")
    (tmp_path / "apart-1.0.dist-info" / "top_level.txt").write_text("apart_h\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = source_hash("beside_m")
    (tmp_path / "apart_h.py").write_text("x = 2\n")
    assert source_hash("beside_m") == first, "another distribution has a version of its own"
    (tmp_path / "beside_h.py").write_text("x = 2\n")
    assert source_hash("beside_m") != first


def test_the_mark_is_of_the_code_that_runs_not_of_what_the_file_says_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "later_m.py"
    file.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = importlib.import_module("later_m")
    first = loaded_source("later_m")
    assert first == source_hash("later_m") != ""
    file.write_text("x = 22\n")
    assert (loaded_source("later_m"), before.x) == (first, 1)
    del sys.modules["later_m"]
    assert loaded_source("later_m") == source_hash("later_m") != first, "not imported: as it is"
    assert importlib.import_module("later_m").x == 22
    assert loaded_source("later_m") == source_hash("later_m")
    del sys.modules["later_m"]


def test_the_mark_is_no_part_of_a_fingerprint(play_toy: Play) -> None:
    job = play_toy("fedavg", rounds=1).job
    described = job.method.described
    plugin = described.plugins[0].model_copy(update={"source": "0" * 12})
    assert described.plugins[0].source == source_hash("flbench_plugins.fedavg") != plugin.source
    other = described.model_copy(update={"plugins": [plugin]})
    assert replace(job, method=replace(job.method, described=other)).fingerprint == job.fingerprint


def test_changed_code_under_one_version_is_pointed_out() -> None:
    def told(*sources: str, version: str = "1.0") -> list[str]:
        before, result = (
            made(seed=seed, method="mine", version=number, plugin={"source": source})  # type: ignore[dict-item]
            for seed, source, number in zip((0, 1), sources, ("1.0", version), strict=True)
        )
        return list(other_environment(result, before))

    assert told("a", "a") == told("a", "") == told("", "b") == []
    assert told("a", "b", version="1.1") == []
    assert told("a", "b") == [mentioning("1.0 is not", "seeds 0", "1")]


def test_results_from_before_say_nothing_of_their_source() -> None:
    assert made().method.plugins[0].source == ""


def test_settings_have_distinct_names() -> None:
    names = [setting.name for setting in EVERYTHING]
    assert len(set(names)) == len(names)
    assert composition(("x", object())).described.plugins[0].source == ""


# --- data sets and networks -------------------------------------------------------------------

LOUD = """
import torch
import flbench as fl

def loud(root):
    print("here I am")
    torch.set_default_dtype(torch.float64)
    return fl.Dataset("loud", torch.zeros(40, 3).float(), torch.arange(40) % 2, 2)

def broken(root):
    raise KeyError("gone")

def leaving(root):
    raise SystemExit("bye")

def net(shape, classes):
    torch.set_default_dtype(torch.float64)
    return torch.nn.Linear(3, classes, dtype=torch.float32)
"""
LOUD_POINTS = """[flbench.datasets]
loud = loud_things:loud
broken = loud_things:broken
leaving = loud_things:leaving
[flbench.models]
loud-net = loud_things:net
"""


@pytest.fixture
def loud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets and a network that misbehave, installed."""
    install(tmp_path / "site", "loud-things", LOUD_POINTS, loud_things=LOUD)
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.slow
@pytest.mark.usefixtures("loud")
def test_what_a_data_set_and_a_network_change_is_restored(
    typed: Typed, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "-p", "fedavg", "-s", "iid", "--rounds", "1", "--dataset", "loud"]
    words += ["--set", "clients=4", "--set", "participation=1.0"]
    code, out, err = typed(*words, "--set", "model={name='loud-net'}")
    assert code == 0, err
    assert "here I am" not in out
    assert "here I am" in err
    assert mentions(err, "loud", "torch")
    assert mentions(err, "loud-net", "torch")
    assert torch.get_default_dtype() == torch.float32


GIVEN = """
def Odd(root):
    usual = dict(name="odd", x=torch.zeros(9, 3), y=torch.arange(9) % 3, classes=3)
    return fl.Dataset(**{{**usual, **dict({})}})
"""
ODD: list[tuple[str, str, str]] = [
    ("datasets", "def Odd(root): pass", "data set 'odd' returned NoneType, expected Dataset"),
    (
        "datasets",
        "def Odd(root): return fl.Dataset('odd', torch.zeros(9, 3).double(), torch.arange(9), 9)",
        "data set 'odd': x is torch.float64 of shape (9, 3), expected torch.float32 or torch.int64"
        " with one entry for each sample",
    ),
    (
        "datasets",
        "def Odd(root): return fl.Dataset('odd', torch.zeros(9, 3), torch.zeros(8).long(), 4)",
        "data set 'odd': y is torch.int64 of shape (8,), expected torch.int64 with one entry for"
        " each sample",
    ),
    (
        "datasets",
        "def Odd(root): return fl.Dataset('odd', torch.zeros(9, 3), [0] * 9, 4)",
        "data set 'odd': y is list, expected torch.int64 with one entry for each sample",
    ),
    (
        "datasets",
        "def Odd(root): return fl.Dataset('odd', torch.zeros(0, 3), torch.zeros(0).long(), 4)",
        "data set 'odd' has no samples",
    ),
    (
        "datasets",
        "def Odd(root): return fl.Dataset('odd', torch.zeros(4, 3), torch.arange(4) + 1, 4)",
        "data set 'odd': y holds labels 1..4, expected 0..3",
    ),
    (
        "datasets",
        GIVEN.format("x=torch.zeros(9, 3).requires_grad_()"),
        "data set 'odd': x takes a gradient, expected plain data (detach())",
    ),
    (
        "datasets",
        GIVEN.format("test=torch.ones(9).bool()"),
        "data set 'odd': test marks all samples, expected some to train on",
    ),
    (
        "datasets",
        GIVEN.format("domains=torch.arange(9) - 1"),
        "data set 'odd': domains hold -1, expected 0 or more",
    ),
    (
        "datasets",
        GIVEN.format("domains=torch.arange(9) % 3, domain_names=('a',)"),
        "data set 'odd': 1 domain_names, expected 3 or none",
    ),
    (
        "datasets",
        GIVEN.format("label_names=('a', 'b')"),
        "data set 'odd': 2 label_names, expected 3 or none",
    ),
    ("models", "def Odd(shape, classes): pass", "model 'odd' returned NoneType, expected Module"),
    (
        "suites",
        "Odd = {'rounds': 1}",
        "suite 'odd' of odd 1.0: odd_b:Odd is dict, expected the path of a TOML file",
    ),
    (
        "sinks",
        "class Odd:\n    def __init__(self): raise ValueError('no display')",
        "sink 'odd' raised ValueError: no display",
    ),
]


@pytest.mark.parametrize(("kind", "text", "line"), ODD, ids=[line for *_, line in ODD])
def test_what_a_package_gives_wrongly_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, text: str, line: str
) -> None:
    offer(tmp_path, monkeypatch, f"import flbench as fl\nimport torch\n{text}\n", kind=kind)
    use: dict[str, Callable[[], object]] = {
        "datasets": lambda: load_dataset("odd", tmp_path),
        "models": lambda: build_network(toy_suite(model="odd"), (3,), 4, 0),
        "suites": lambda: load_suite("odd"),
        "sinks": lambda: request.build_sink("odd"),
    }
    with pytest.raises(PluginError) as caught:
        use[kind]()
    assert str(caught.value) == line


def test_a_data_set_that_is_broken_ends_no_check_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "FOUND = lambda root: 1 / 0\ndef Odd(root): pass\n"
    offer(tmp_path, monkeypatch, text, kind="datasets")
    known = {name: find("datasets", name) for name in ("odd", "bigrams")}
    monkeypatch.setattr(status, "entries", lambda kind: known)
    assert status.surveyed("odd", tmp_path).state == "broken"
    with pytest.raises(UserError) as caught:
        status.report(tmp_path, check=True)
    assert str(caught.value) == mentioning("odd", "returned NoneType", "Dataset")


@pytest.mark.slow
@pytest.mark.usefixtures("loud")
@pytest.mark.parametrize(
    ("name", "said"),
    [("broken", "raised KeyError: 'gone'"), ("leaving", "raised SystemExit: bye")],
)
def test_a_data_set_that_fails_is_one_line(name: str, said: str, typed: Typed) -> None:
    code, _, err = typed("run", "-p", "fedavg", "-s", "iid", "--dataset", name)
    assert code == 1
    assert err.splitlines()[-1] == f"flbench: data set '{name}' {said}"


# --- messages ---------------------------------------------------------------------------------


def test_a_plugin_that_keeps_something_on_itself_is_refused(play_toy: Play) -> None:
    def aggregate(self: Any, upload: Any) -> None:
        self.seen = upload

    said = refused(play_toy, bad(aggregate=aggregate))
    assert said == mentioning("round 1", "bad.aggregate", "seen", "setup")


@pytest.mark.slow
@pytest.mark.usefixtures("loud")
def test_for_debugging_errors_have_tracebacks(
    typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "-p", "fedavg", "-s", "iid", "--dataset", "broken")
    assert "Traceback" not in typed(*words)[2]
    monkeypatch.setenv("FLBENCH_DEBUG", "1")
    code, _, err = typed(*words)
    assert code == 1
    assert 'loud_things.py", line' in err
    assert "KeyError: 'gone'" in err


@pytest.mark.slow
def test_a_result_of_code_that_has_changed_is_said_to_be_one(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from dataclasses import dataclass\nimport flbench as fl\n@dataclass(frozen=True)\n"
        "class Mine:\n    @fl.hookimpl\n    def setup(self):\n        return None\n"
    )
    site = tmp_path / "site"
    install(site, "mine", "[flbench.methods]\nmine-x = mine_x:Mine\n", mine_x=text)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    words = ("run", "-p", "mine-x", "-s", "iid", "--rounds", "1")
    assert typed(*words)[0] == 0
    assert "seed-0.json is complete; --force" in typed(*words)[2]
    (site / "mine_x.py").write_text(text + "\nMORE = 1\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mine_x")  # as in another process
    again = typed(*words)[2]
    assert mentions(again, "--force", "complete")


class Own(BaseException):
    """Neither an Exception nor an interruption."""


def raises(*_: object) -> Any:
    raise Own("gone")


def module_with(**methods: Any) -> MethodStack:
    """A method whose ClientModule has these methods."""
    made = type("Module", (ClientModule,), methods)
    return bad(client_module=lambda self, net, ctx: made(net, ctx.local))


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
@pytest.mark.parametrize("method", ["training_step", "predict", "configure_optimizers"])
def test_whatever_a_module_raises_is_named(method: str, executor: str, play_toy: Play) -> None:
    assert "bad" in (line := refused(play_toy, module_with(**{method: raises}), executor=executor))
    assert "Own: gone" in line
    assert "\n" not in line


def test_whatever_makes_something_raises_is_named() -> None:
    with pytest.raises(PluginError, match=mention("x", "Own", "gone")):
        produced("x", "data set 'x'", int, raises)


def test_an_interruption_is_nobodys_error() -> None:
    def interrupt() -> object:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        produced("x", "data set 'x'", int, interrupt)


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_streams_that_are_taken_away_come_back(executor: str, play_toy: Play) -> None:
    def step(self: ClientModule, batch: Any, batch_idx: int) -> torch.Tensor:
        sys.stdout = sys.stderr = None
        return ClientModule.training_step(self, batch, batch_idx)

    def predict(self: ClientModule, x: torch.Tensor) -> torch.Tensor:
        sys.stdout = None
        return ClientModule.predict(self, x)

    before = sys.stdout, sys.stderr
    play_toy(module_with(training_step=step, predict=predict), executor=executor, rounds=1)
    assert (sys.stdout, sys.stderr) == before
