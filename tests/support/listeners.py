"""What the tests of sinks share: runs to listen to, a stand-in for wandb, a reader of its files."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy import Play, Played, toy_dataset

from flbench import Result, RoundRecord, RunInfo, hookimpl
from flbench.run.checkpoint_file import discard
from flbench.run.runner import execute
from flbench.run.spec import RunSpec

LIA = {"warmup": 1, "probe_epochs": 3}


def info(**changes: Any) -> RunInfo:
    known = RunInfo("fedavg", {}, "toy", "digits", 4, 3, 1, {}, "0123abcd", [0, 0, 1])
    return replace(known, **changes)


def record(round_: int, rounds: int, accuracy: float | None = 0.5, **more: Any) -> RoundRecord:
    return RoundRecord(round_, rounds, {"accuracy": accuracy}, **more)


def write(play_toy: Play, method: str, **told: Any) -> tuple[Result, Played]:
    """Play a toy run the way the command line does: sinks hear its start and its end as well."""
    sinks, settings = told.pop("sinks"), told.pop("settings", None)
    played = play_toy(method, settings=settings, **told)
    played.said.clear()
    discard(played.job.checkpoint)
    return listened(replace(played.job, sinks=sinks)), played


def listened(job: RunSpec) -> Result:
    """The result of a job, its sinks told."""
    return execute(job, lambda name, root: toy_dataset())


class Stop:
    """Ends a run after its second round, and keeps the checkpoint of the first."""

    def __init__(self, job: RunSpec) -> None:
        self.file, self.first = job.checkpoint, b""

    @hookimpl
    def round_finished(self, record: RoundRecord) -> None:
        if record.round == 1:
            self.first = self.file.read_bytes()
        else:
            raise KeyboardInterrupt


def cut_and_resumed(job: RunSpec, name: str, sinks: tuple[object, object]) -> Result:
    """A run of three rounds that dies after the second, and goes on from the checkpoint of the
    first, as another process would: with a sink of its own."""
    job.path.unlink(missing_ok=True)
    stop = Stop(job)
    with pytest.raises(KeyboardInterrupt):
        # The one named last hears first.
        listened(replace(job, sinks=(("stop", stop), (name, sinks[0])), resume=False))
    job.checkpoint.write_bytes(stop.first)
    return listened(replace(job, sinks=((name, sinks[1]),), resume=True))


# --- wandb, replaced --------------------------------------------------------------------------


class FakeRun:
    """Remembers what a W&B run is told; `fails` is the call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.starting_step, self.offline, self.resumed = 0, True, False
        self.dir, self.url = "here/run/files", "https://wandb/run"
        self.settings = SimpleNamespace(mode="offline")
        self.tags: tuple[str, ...] = ()
        self.notes = ""
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}
        self.settled: dict[str, Any] = {}
        self.config = SimpleNamespace(update=lambda told, **_: self.settled.update(told))
        self.artifacts: list[Any] = []
        self.finished = 0

    def rows(self) -> dict[int, dict[str, Any]]:
        """What each step holds."""
        found: dict[int, dict[str, Any]] = {}
        for step, row in self.logged:
            found.setdefault(step, {}).update(row)
        return found

    def curves(self) -> list[dict[str, Any]]:
        """The numbers of each step."""
        return [
            {name: value for name, value in row.items() if isinstance(value, float)}
            for _, row in sorted(self.rows().items())
        ]

    def _may_fail(self, call: str) -> None:
        if call == self.fails:
            raise OSError(f"{call}: no connection")

    def log(self, row: dict[str, Any], step: int) -> None:
        self._may_fail("log")
        assert not self.logged or step >= self.logged[-1][0], "steps only grow"
        self.logged.append((step, row))

    def log_artifact(self, artifact: Any) -> None:
        self._may_fail("log_artifact")
        self.artifacts.append(artifact)

    def finish(self, exit_code: int = 0) -> None:
        self._may_fail("finish")
        self.finished += 1
        self.exit_code = exit_code


class FakeArtifact:
    def __init__(self, name: str, type: str) -> None:
        self.name, self.type, self.files = name, type, []

    def add_file(self, path: str) -> None:
        assert Path(path).is_file()
        self.files.append(path)


def fake_wandb(
    monkeypatch: pytest.MonkeyPatch, fails: str = "", logged_in: bool = False, **run: Any
) -> Any:
    """Put a stand-in where `import wandb` looks; `run` is what its runs say of themselves."""
    runs: list[FakeRun] = []
    begun: list[dict[str, Any]] = []

    def init(**given: Any) -> FakeRun:
        opened = FakeRun(fails)
        vars(opened).update(run)
        opened._may_fail("init")
        begun.append(given)
        runs.append(opened)
        return opened

    def login(prompt: bool = True) -> bool:
        assert not prompt, "nobody is asked"
        FakeRun(fails)._may_fail("login")
        return logged_in

    fake = SimpleNamespace(
        init=init,
        login=login,
        Error=OSError,
        Settings=lambda **given: given,
        Table=lambda columns, data: ("table", columns, data),
        Html=lambda text, inject: ("html", text),
        Artifact=FakeArtifact,
        runs=runs,
        begun=begun,
    )
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


# --- wandb itself, offline --------------------------------------------------------------------


@contextmanager
def nobody_logged_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Everything wandb writes lands in a folder of the test; yields where offline runs lie."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        place = folder / name.lower()
        place.mkdir()
        monkeypatch.setenv(name, str(place))
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    import wandb

    wandb.teardown()
    yield folder / "wandb_dir" / "wandb"
    wandb.teardown()


class Offline:
    """What an offline run wrote.

    Attributes:
        rows: what each step holds, by name, the step itself left out.
        run: project, group, job type, tags, ...
        config, summary: by key; the last value told.
        artifacts: those of type "result".
    """

    def __init__(self, folder: Path) -> None:
        import wandb

        wandb.teardown()  # what was logged is written by another process; this waits for it
        (path,) = folder.glob("*.wandb")
        self.folder = folder
        self.rows: dict[int, dict[str, Any]] = {}
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.artifacts: list[Any] = []
        for one in _records(path):
            if one.HasField("run"):
                self.run = one.run
                self.config |= {
                    item.key: json.loads(item.value_json) for item in one.run.config.update
                }
            elif one.HasField("config"):
                self.config |= {item.key: json.loads(item.value_json) for item in one.config.update}
            elif one.HasField("history"):
                row = dict(map(_told, one.history.item))
                self.rows[row.pop("_step")] = row
            elif one.HasField("summary"):
                self.summary |= dict(map(_told, one.summary.update))
            elif one.HasField("artifact") and one.artifact.type == "result":
                self.artifacts.append(one.artifact)

    def curves(self) -> list[dict[str, float]]:
        """The numbers of each round."""
        return [
            {
                name: value
                for name, value in self.rows[step].items()
                if isinstance(value, (int, float)) and name[0] != "_" and "/" not in name
            }
            for step in sorted(self.rows)
        ]

    def table(self, name: str) -> dict[str, Any]:
        """The only table of a name: its columns and data."""
        (file,) = self.folder.glob(f"files/media/table/tables/{name}_*.table.json")
        found = json.loads(file.read_text())
        return {key: found[key] for key in ("columns", "data")}

    def figures(self) -> dict[str, str]:
        """The figures, by name."""
        files = self.folder.glob("files/media/html/figures/*.html")
        return {file.name.rsplit("_", 2)[0]: file.read_text() for file in files}


def _records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format with a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, whole, at, block = path.read_bytes(), b"", 7, 32768
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if block - at % block < 7:  # the rest of a block is padding
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last piece of one
            one = wandb_internal_pb2.Record()
            one.ParseFromString(whole)
            yield one
            whole = b""


def _told(item: Any) -> tuple[str, Any]:
    key = ".".join(item.nested_key) if item.nested_key else item.key
    return key, json.loads(item.value_json)
