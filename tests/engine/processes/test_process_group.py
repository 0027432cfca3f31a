"""Several processes end where one does: how work is dealt and gathered, and what if one dies.

Most tests play the processes as threads that take turns; the slow ones start real ones.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import grids
import in_threads
import pytest
import torch
from every import run_of, same_state, stable
from forked import Command, typed, waited
from hypothesis import given
from hypothesis import strategies as st
from in_processes import call
from in_threads import Fake, together
from mentions import mention, mentioning, mentions
from torch import Tensor
from toy import Play, Played, composition, install, player, toy_dataset
from typer.testing import CliRunner

from flbench import ClientModule, Context, Personal, Stage, Start, State, hookimpl
from flbench.cli.main import app
from flbench.core.bank_budget import RowStore
from flbench.core.client_module import LocalWork
from flbench.core.per_client import PER_CLIENT, all_marked
from flbench.core.state import Dispatched, Upload
from flbench.core.types import Extras
from flbench.engine.distributed import DistributedExecutor, gathered
from flbench.engine.lanes.vectorised import Vectorised
from flbench.engine.options import FELL_BACK, EngineOptions
from flbench.engine.processes import process_group
from flbench.engine.processes.fabric import join_process_group, open_fabric
from flbench.engine.processes.process_group import ALONE, ProcessGroup, assign
from flbench.engine.processes.workers import is_rank_zero, rank_zero_output
from flbench.engine.sequential import Sequential
from flbench.errors import Diverged, FlbenchError, PluginError, ProcessDied, UnknownName, UserError
from flbench.plugin.arguments import tensors
from flbench.testing.subprocesses import in_process_group

# --- dealing ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_everyone_is_dealt_once_and_the_hands_are_level(weights: list[int], hands: int) -> None:
    dealt = assign(weights, hands)
    assert len(dealt) == hands
    assert sorted(place for part in dealt for place in part) == list(range(len(weights)))
    assert all(part == sorted(part) for part in dealt)
    loads = [sum(weights[place] for place in part) for part in dealt]
    assert max(loads) - min(loads) <= max(weights, default=0)
    assert assign(weights, hands) == dealt


def test_the_heaviest_is_dealt_first() -> None:
    assert assign([1, 1, 1, 1, 4], 2) == [[4], [0, 1, 2, 3]]
    assert assign([7, 7], 3) == [[0], [1], []], "there may be nothing for somebody"
    assert ProcessGroup(1, 2).share([5, 1, 4, 2]) == [2, 3]
    assert ALONE.share([3, 1, 2]) == [0, 1, 2]


def test_alone_nothing_is_exchanged() -> None:
    table = torch.ones(2, 3)
    assert ALONE.all_gather_object("a") == ["a"]
    assert ALONE.broadcast_object(7) == 7
    assert ALONE.all_reduce_sum(table) is table
    assert ALONE.attempt(lambda: "done") == "done"
    assert join_process_group(EngineOptions(accelerator="cpu")) == ALONE
    assert ProcessGroup.of(open_fabric(EngineOptions(accelerator="cpu"))) == ALONE


# --- processes played by threads ----------------------------------------------------------------


class Talks(ClientModule):
    """Uploads extras of several types and shapes."""

    def on_local_end(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "flags": y[:3] > 1,
            "count": torch.tensor(len(y)),
            "mean": x.double().mean(dim=0),
            "gap": torch.tensor(float("nan")),
            "zero": torch.tensor(-0.0),
            "empty": torch.zeros(2, 0),
        }


@dataclass(frozen=True)
class Talking:
    @hookimpl
    def client_module(self, net: Any, ctx: Context) -> ClientModule:
        return Talks(net, ctx.local)


def work_of(executor: Sequential, candidates: int = 2) -> tuple[Dispatched, Stage]:
    """A stage of all clients with several candidates, some of which are not trained."""
    row, clients = executor.workspace.row.clone(), torch.arange(6)
    active = torch.ones(6, candidates, dtype=torch.bool)
    active[1, 0] = False
    scale = torch.linspace(0.5, 1.5, 6 * candidates).view(6, candidates, 1)
    crosses = torch.ones(6, len(row), dtype=torch.bool)
    start = Dispatched(
        scale * row, active, torch.arange(candidates), crosses, crosses,
        extras={"told": clients.float()}, client_memory={"kept": torch.eye(6)},
    )  # fmt: skip
    return start, Stage("train", clients, 2, losses=True)


class Packed(Fake):
    """A process whose objects are sent as bytes in tables, as those of real ones."""

    def all_gather_object(self, value: Any) -> list[Any]:
        return ProcessGroup.all_gather_object(self, value)

    def all_gather(self, table: torch.Tensor) -> torch.Tensor:
        return torch.stack(Fake.all_gather_object(self, table))


@pytest.mark.parametrize("longest", [0, 1, 100, 101, 10_000])
def test_objects_of_any_length_arrive(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "SMALL", 100 + len(pickle.dumps("")))
    monkeypatch.setattr(in_threads, "Fake", Packed)
    words = ["a", "b" * longest, ""]
    heard = together(3, lambda group: group.all_gather_object(words[group.rank]))
    assert heard == [words] * 3


TENSORS = {
    "plain": torch.arange(6.0).view(2, 3),
    "transposed": torch.arange(6).view(2, 3).t(),
    "scalar": torch.tensor(True),
    "empty": torch.empty(0, 3, dtype=torch.float64),
    "bfloat16": torch.ones(2).bfloat16(),
    "one of many": torch.arange(1000.0)[3:4],
}


def test_tensors_arrive_with_their_types_and_shapes() -> None:
    text = bytes(process_group._pickled(TENSORS))
    assert len(text) < 1500, "of a view only what it shows"
    for name, tensor in pickle.loads(text).items():
        assert tensor.dtype == TENSORS[name].dtype
        assert tensor.shape == TENSORS[name].shape
        assert torch.equal(tensor, TENSORS[name])
        assert tensor.data_ptr() % 64 == 0, "at another place a product may have other bits"


@pytest.mark.parametrize("holder", [None, 0, 1])
def test_memory_that_no_process_uses_is_shared_again(
    holder: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "SHARED", 0)
    positions = [[0, 2], [1, 3]]

    def twice(ranks: ProcessGroup) -> tuple[bool, list[Any], list[Any]]:
        own = torch.full((2, 3), float(ranks.rank))
        table = ranks.stack(own, positions)
        place, view = table.data_ptr(), table[1:] if holder == ranks.rank else table[:0].clone()
        del table
        again = ranks.stack(own + 5, positions)
        return again.data_ptr() == place, again[:, 0].tolist(), view[:, 0].tolist()

    for rank, (reused, rows, held) in enumerate(together(2, twice)):
        assert reused == (holder is None)
        assert rows == [5, 6, 5, 6]
        assert held == ([1, 0, 1] if rank == holder else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["at once", "in blocks", "shared", "in a file", "no room", "several machines"]
)
@pytest.mark.parametrize(
    "size", [1, 2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4)), 7]
)
def test_an_upload_is_the_same_bits_however_clients_are_dealt(
    size: int, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to one another, or written to one table in memory or in a file of one machine."""
    monkeypatch.setattr(process_group, "SHARED", 10**9 if way in ("at once", "in blocks") else 0)
    if way != "at once":
        monkeypatch.setattr(process_group, "BLOCK", 0)
    memory, files = tmp_path / "memory", tmp_path / "files"
    memory.mkdir()
    monkeypatch.setattr(process_group, "MEMORY", str(memory))
    heard, told = [], Fake.broadcast
    monkeypatch.setattr(Fake, "broadcast", lambda *a: heard.append(a[1].numel()) or told(*a))
    if way == "no room":
        monkeypatch.setattr(process_group.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    elif way == "several machines":
        monkeypatch.setattr(process_group, "machine", lambda: str(threading.get_ident()))
    ragged: dict[str, Any] = {"dataset": toy_dataset(samples=103), "partition": "iid"}
    run = player(tmp_path)(composition(("talks", Talking())), rounds=1, **ragged).run
    start, stage = work_of(run.executor)
    whole = run.executor.fit(start, stage, LocalWork(), 5)
    if way == "in a file":
        run.executor.tables.store = RowStore(0, files)
    ends = together(
        size,
        lambda ranks: DistributedExecutor(run.executor, ranks).fit(start, stage, LocalWork(), 5),
    )
    assert len(set(whole.samples.tolist())) > 1, "clients differ in size"
    assert size == 1 or any(heard) == (way not in ("shared", "in a file", "at once"))
    assert files.is_dir() == (way == "in a file")
    assert not list(memory.iterdir()) + list(files.glob("*")), "nothing is left"
    for end in ends:
        assert list(end.extras) == list(whole.extras)
        found, expected = (dict(tensors(upload, "upload")) for upload in (end, whole))
        assert found.keys() == expected.keys()
        for one, other in ((found[name], expected[name]) for name in expected):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert one.numpy().tobytes() == other.numpy().tobytes()


def test_clients_are_dealt_by_samples_and_candidates(play_toy: Play) -> None:
    run = play_toy("fedavg", rounds=1).run
    start, stage = work_of(run.executor)
    seen: list[list[int]] = []
    fit = run.executor.fit_into

    def fitted(rows: Any, part: Dispatched, few: Stage, work: Any, round_: int) -> Any:
        seen.append(few.clients.tolist())
        assert torch.equal(part.client_memory["kept"], torch.eye(6)[few.clients])
        assert part.extras["told"].tolist() == few.clients.tolist()
        return fit(rows, part, few, work, round_)

    with patch.object(run.executor, "fit_into", fitted):
        together(
            2,
            lambda ranks: DistributedExecutor(run.executor, ranks).fit(
                start, stage, LocalWork(), 1
            ),
        )
    sizes = run.executor.samples.sizes("train")
    assert sorted(seen) == sorted(assign((sizes * start.active.sum(dim=1)).tolist(), 2))


@all_marked
@dataclass(frozen=True)
class More(Upload):
    """An upload with fields that nobody in the engine has heard of."""

    number: Tensor = field(default_factory=lambda: torch.zeros(0), metadata=PER_CLIENT)
    tables: Extras = field(default_factory=dict, metadata=PER_CLIENT)
    words: list[str] = field(default_factory=list, metadata=PER_CLIENT)


def test_processes_exchange_every_field_of_an_upload(play_toy: Play) -> None:
    run = play_toy("fedavg", rounds=1).run
    start, stage = work_of(run.executor)
    fit = run.executor.fit_into

    def fitted(rows: Any, part: Dispatched, few: Stage, work: Any, round_: int) -> Upload:
        own = few.clients
        more = {"number": 2 * own, "tables": {"a": 3 * own}, "words": list(map(str, own.tolist()))}
        return More(**vars(fit(rows, part, few, work, round_)), **more)

    with patch.object(run.executor, "fit_into", fitted):
        ends: list[Any] = together(
            4,
            lambda ranks: DistributedExecutor(run.executor, ranks).fit(
                start, stage, LocalWork(), 1
            ),
        )
    for end in ends:
        assert torch.equal(end.number, 2 * stage.clients)
        assert torch.equal(end.tables["a"], 3 * stage.clients)
        assert end.words == [str(client) for client in stage.clients.tolist()]


def test_a_part_of_the_clients_has_the_same_candidates(play_toy: Play) -> None:
    start, _ = work_of(play_toy("fedavg", rounds=1).run.executor)
    start = replace(start, rows=torch.tensor([1, 0]))
    part = start.select(torch.tensor([4, 2]))
    assert part.rows is not None
    assert part.rows.tolist() == [1, 0], "rows belong to candidates, not to clients"
    assert torch.equal(part.params, start.params[[4, 2]])


def test_a_stage_without_clients_needs_nobody(play_toy: Play) -> None:
    run = play_toy(composition(("talks", Talking())), rounds=1).run
    start, stage = work_of(run.executor)
    none = torch.empty(0, dtype=torch.int64)
    fields = {
        n: getattr(start, n)[none] for n in ("params", "active", "sent_mask", "returned_mask")
    }
    start = replace(start, **fields, extras={}, client_memory={})
    stage = replace(stage, clients=none)
    whole = run.executor.fit(start, stage, LocalWork(), 1)
    for end in together(
        2, lambda ranks: DistributedExecutor(run.executor, ranks).fit(start, stage, LocalWork(), 1)
    ):
        assert end.params.shape == whole.params.shape == (0, 2, 28)
        assert end.loss_start.shape == whole.loss_start.shape
        assert end.extras == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        *(pytest.param(name, marks=pytest.mark.long) for name in ("dc-pfl", "fedfomo", "ifca")),
        *("fedavg", "pfedlia", "scaffold"),
    ],
)
def test_runs_end_in_the_same_bits_on_three_processes(method: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "clients": 8, "unseen": 0.25, "unseen_epochs": 1, "ft_epochs": 1, "own_models": True,
    }  # fmt: skip
    one = run_of(player(tmp_path / "one"), method, **changes)

    def play(ranks: ProcessGroup) -> Any:
        played = run_of(player(tmp_path / "three"), method, **changes)
        return played, stable(played), played.result.environment

    threes = together(3, play)
    for three, text, told in threes:
        assert isinstance(three.run.executor, DistributedExecutor)
        assert same_state(three.state, one.state)
        assert text == stable(one)
        assert (told["ranks"], told["executor"]) == ("3", "sequential")
    assert [three.run.checkpoint is None for three, _, _ in threes] == [False, True, True]


@pytest.mark.parametrize("executor", ["auto", "vectorised"])
def test_in_lanes_three_processes_are_one_up_to_rounding(executor: str, tmp_path: Path) -> None:
    """Groups and bytes are equal; each process calls the module for other clients together."""
    changes: dict[str, Any] = {"clients": 8, "participation": 1.0, "rounds": 2}

    def play(ranks: ProcessGroup | None = None) -> tuple[Played, dict[str, str]]:
        played = player(tmp_path)("fedavg", executor=executor, **changes)
        return played, played.result.environment

    one, _ = play()
    for three, told in together(3, play):
        assert (told["ranks"], told["executor"]) == ("3", "vectorised")
        torch.testing.assert_close(three.state.models, one.state.models, rtol=1e-4, atol=1e-6)
        assert torch.equal(three.state.membership.home, one.state.membership.home)
        assert three.run.ledger.totals == one.run.ledger.totals


def test_the_processes_of_a_run_leave_lanes_together(tmp_path: Path) -> None:
    """Where the clients of one of them are what lanes cannot train."""

    def play(ranks: ProcessGroup) -> tuple[str | None, str]:
        played = player(tmp_path)("fedavg", executor="auto", clients=8, participation=1.0, rounds=1)
        run = played.run
        assert isinstance(run.executor, DistributedExecutor)
        inner = cast(Vectorised, run.executor.inner)
        start, stage = work_of(run.executor)
        if ranks.rank == 1:
            inner.leave_lanes("its clients are odd")
        run.executor.fit(start, stage, LocalWork(), 2)
        return inner.reason, run.executor.name

    reasons, names = zip(*together(3, play), strict=True)
    assert reasons == ("they failed in another process", "its clients are odd", reasons[0])
    assert set(names) == {FELL_BACK}


@pytest.mark.parametrize("name", ["sequential", "vectorised"])
def test_each_process_trains_and_evaluates_as_one_alone(name: str, play_toy: Play) -> None:
    executor = play_toy("fedavg", executor=name, rounds=1).run.executor
    assert executor.evaluates_in_lanes == (name == "vectorised")
    for shared in together(2, lambda ranks: DistributedExecutor(executor, ranks)):
        assert shared.name == name
        assert shared.evaluates_in_lanes == executor.evaluates_in_lanes


def test_clients_of_two_processes_that_keep_different_things_are_refused() -> None:
    stage, order = Stage("train", torch.arange(2), 1), torch.arange(2)
    tables = [{"m.k": torch.zeros(1, 2)}, {}]
    with pytest.raises(PluginError, match=mention("m.k", "clients")):
        gathered(tables, order, stage, 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "pfedlia"])
def test_metrics_of_clients_are_the_same_on_two_processes(method: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"metrics": ("auroc", "ece"), "not_judged": (1,)}
    one = run_of(player(tmp_path / "one"), method, **changes)
    assert one.result.client_metrics is not None
    for other in together(2, lambda ranks: run_of(player(tmp_path / "two"), method, **changes)):
        assert stable(other) == stable(one)


@pytest.mark.slow
def test_models_judged_with_predictors_after_adaptation_are_the_same(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Adapts:
        @hookimpl
        def personalise(self, state: State, clients: torch.Tensor) -> Personal:
            def predictor(module: Any, x: torch.Tensor) -> torch.Tensor:
                return module(x) + module.received["lift"]

            stage = Stage("train", clients, 1, name="adapt")
            home, lift = state.membership.home[clients], clients[:, None] * torch.eye(4)[0]
            other = Personal(row=home)
            return Personal(
                row=home, adaptation=stage, predictor=predictor,
                extras={"lift": lift}, others={"plain": other},
            )  # fmt: skip

    method = composition(("adapts", Adapts()))
    one = player(tmp_path)(method)
    for other in together(4, lambda ranks: player(tmp_path / "four")(method)):
        assert stable(other) == stable(one)


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [PluginError("client 3 failed"), Diverged("lost"), UnknownName("dice", "d6", ["d4"])],
    ids=lambda error: type(error).__name__,
)
def test_what_one_process_raises_all_raise(error: FlbenchError) -> None:
    def work(ranks: ProcessGroup) -> Any:
        def mine() -> int:
            if ranks.rank == 1:
                raise error
            return ranks.rank

        return ranks.attempt(mine)

    for end in together(3, work):
        assert type(end) is type(error)
        assert str(end) == str(error)
        assert end.exit_code == error.exit_code
    assert together(3, lambda ranks: ranks.attempt(lambda: ranks.rank)) == [0, 1, 2]


def test_of_several_errors_all_raise_the_first() -> None:
    def work(ranks: ProcessGroup) -> Any:
        def mine() -> None:
            raise UserError(f"process {ranks.rank}")

        return ranks.attempt(mine)

    assert [str(end) for end in together(3, work)] == ["process 0"] * 3


def test_a_client_that_fails_in_one_process_ends_the_run_in_all(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Fails:
        @hookimpl
        def client_module(self, net: Any, ctx: Context) -> ClientModule:
            class Module(ClientModule):
                def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
                    if self.received["who"] == 4:
                        raise ValueError("no")
                    return super().training_step(batch, batch_idx)

            return Module(net, ctx.local)

        @hookimpl
        def dispatch(self, stage: Stage) -> Start:
            return Start(client_memory={"who": stage.clients})

    method = composition(("fails", Fails()))
    changes: dict[str, Any] = {"participation": 1.0}
    with pytest.raises(
        PluginError, match=mention("round 1", "client 4", "failed", "train")
    ) as caught:
        player(tmp_path)(method, **changes)
    for end in together(2, lambda ranks: player(tmp_path)(method, **changes)):
        assert type(end) is PluginError
        assert str(end) == str(caught.value)


def test_clients_that_upload_different_things_are_refused(play_toy: Play) -> None:
    class Moody(ClientModule):
        def on_local_end(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"mood": torch.zeros(int(self.received["told"]) + 1)}

    @dataclass(frozen=True)
    class Method:
        @hookimpl
        def client_module(self, net: Any, ctx: Context) -> ClientModule:
            return Moody(net, ctx.local)

        @hookimpl
        def dispatch(self, stage: Stage) -> Start:
            return Start(client_memory={"told": torch.zeros(len(stage.clients))})

    run = play_toy(composition(("moody", Method())), rounds=1).run
    start, stage = work_of(run.executor, candidates=1)
    start = replace(start, active=torch.ones(6, 1, dtype=torch.bool))

    def fit(ranks: ProcessGroup) -> Any:
        mine = torch.full((6,), float(ranks.rank))
        return DistributedExecutor(run.executor, ranks).fit(
            replace(start, extras={"told": mine}), stage, LocalWork(), 4
        )

    for end in together(2, fit):
        assert str(end) == mentioning("round 4", "train", "mood")


# --- one speaks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "RANK": "0", "NODE_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "RANK": "2"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"SLURM_PROCID": "3"}, False),
    ],
    ids=str,
)
def test_launchers_say_who_is_first(environment: dict[str, str], first: bool) -> None:
    assert is_rank_zero(environment) is first


@pytest.mark.slow
def test_the_others_are_silent_and_leave_with_the_same_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    for error, code in ((Diverged("a"), 3), (UserError("b"), 1), (ProcessDied("c"), 4)):
        with pytest.raises(SystemExit) as caught, rank_zero_output(2, 1):
            cry(error)
        assert caught.value.code == code
    with pytest.raises(SystemExit) as caught, rank_zero_output(1, 2):
        raise KeyboardInterrupt
    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "")
    with pytest.raises(KeyError), rank_zero_output(2, 1):
        raise KeyError("a fault of ours is told with all its lines")


def test_one_process_speaks_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(Diverged), rank_zero_output(1, 1):
        cry(Diverged("a"))
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(Diverged), rank_zero_output(2, 1):
        cry(Diverged("a"))
    assert capsys.readouterr() == ("said\nsaid\n", "cried\ncried\n")


def cry(error: BaseException) -> None:
    print("said")
    print("cried", file=sys.stderr)
    raise error


def test_a_launcher_with_other_plans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "3")
    for engine in (EngineOptions(accelerator="cpu"), EngineOptions(accelerator="cpu", devices=2)):
        with pytest.raises(UserError, match=r"torchrun started 3 processes, expected [12]"):
            open_fabric(engine)


# --- precision --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["16-mixed", "64-true", "bf16-true", "bf16", "high"])
def test_a_precision_that_is_not_supported_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"--precision {name}: expected 32-true or bf16-mixed$"):
        open_fabric(EngineOptions(accelerator="cpu", precision=name))


@pytest.mark.slow
def test_mixed_precision_is_another_run(play_toy: Play) -> None:
    exact, mixed = (
        play_toy("fedavg", engine=EngineOptions(accelerator="cpu", precision=name))
        for name in ("32-true", "bf16-mixed")
    )
    assert mixed.job.path.parent != exact.job.path.parent
    assert mixed.result.environment["precision"] == "bf16-mixed"
    assert mixed.state.models.dtype == torch.float32
    assert not torch.equal(mixed.state.models, exact.state.models)
    torch.testing.assert_close(mixed.state.models, exact.state.models, rtol=0, atol=0.05)


@pytest.mark.slow
def test_executors_agree_in_mixed_precision(play_toy: Play) -> None:
    pair = [
        play_toy("fedavg", engine=EngineOptions(name, accelerator="cpu", precision="bf16-mixed"))
        for name in ("sequential", "vectorised")
    ]
    torch.testing.assert_close(pair[0].state.models, pair[1].state.models, rtol=0, atol=0.01)


@pytest.mark.slow
def test_mixed_precision_works_from_the_command_line(tmp_path: Path) -> None:
    for name in ("32-true", "bf16-mixed"):
        call("-p", "fedavg", *SMALL, "--rounds", "1", "--precision", name, "--out", str(tmp_path))
    assert len(grids.stable(tmp_path)) == 2
    refused = CliRunner().invoke(
        app, ["run", "-p", "fedavg", *SMALL, "--precision", "8-bit", "--out", str(tmp_path)]
    )
    assert str(refused.exception) == mentioning("--precision 8-bit", "32-true or bf16-mixed")


# --- real processes -----------------------------------------------------------------------------

ONE_BY_ONE = ("--executor", "sequential")
"""In lanes two processes give the numbers of one up to rounding."""
SMALL = ("-s", "iid", "--set", "clients=12", "--accelerator", "cpu", *ONE_BY_ONE)
RAGGED = (
    "-p", "scaffold,pfedlia", *ONE_BY_ONE,
    "-s", "dirichlet-0.1", "--rounds", "3", "--accelerator", "cpu",
    "--set", "clients=12", "--set", "participation=0.25", "--set", "ft_epochs=1",
    "--set", "own_models=true",
    "--set", "pfedlia.warmup=1", "--set", "mode=peer", "--set", "topology=p2p",
    "--set", "p2p_train=per_receiver",
)  # fmt: skip
LONG = ("-p", "fedavg", *SMALL, "--rounds", "40", "--set", "local.epochs=1")
START, END = 120, 60
FLBENCH = ("-m", "flbench", "run")


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_leave_the_files_of_one(tmp_path: Path) -> None:
    code, said, cried = typed(["run", *RAGGED, "--devices", "2", "--out", "two"], tmp_path)
    assert code == 0, cried
    call(*RAGGED, "--out", str(tmp_path / "one"))
    assert grids.stable(tmp_path / "two") == grids.stable(tmp_path / "one")
    files = [path for path in (tmp_path / "two").rglob("*") if path.is_file()]
    assert len(files) == 2, "no checkpoint is left"
    told = [json.loads(path.read_text(encoding="utf-8"))["environment"] for path in files]
    assert {entry["ranks"] for entry in told} == {"2"}
    assert (
        sum(
            mentions(one, "scaffold", "dirichlet-0.1", "digits", "seed 0", "3 rounds")
            for one in cried.splitlines()
        )
        == 1
    )
    assert said.count("seed-0.json") == 2


@pytest.mark.slow
@pytest.mark.long
def test_large_uploads_in_shared_memory_end_in_the_files_of_one(tmp_path: Path) -> None:
    """Four models of 9 MB, written by two processes to one table."""
    wide = ("--set", "model.hidden=30000", "--set", "clients=40", "--set", "participation=0.1")
    few = ("--set", "epochs=1", "--rounds", "2", "--accelerator", "cpu")
    large = ("-p", "fedavg", "-s", "iid", *wide, *few)
    assert process_group.SHARED < 4 * 4 * 30_000 * (64 + 1 + 10)
    memory = Path(process_group.MEMORY)
    before = set(memory.glob(".flbench-*"))
    in_process_group(call, 2, *large, "--devices", "2", "--out", str(tmp_path / "two"))
    assert set(memory.glob(".flbench-*")) == before
    call(*large, "--out", str(tmp_path / "one"))
    assert grids.stable(tmp_path / "two") == grids.stable(tmp_path / "one") != {}


@pytest.mark.slow
@pytest.mark.long
def test_torchrun_gives_the_same_and_only_one_process_speaks(tmp_path: Path) -> None:
    pair = ("-p", "fedavg,ifca", *SMALL, "--rounds", "2")
    call("-p", "fedavg", *SMALL, "--rounds", "2", "--out", str(tmp_path / "two"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "--standalone", *FLBENCH, *pair, "--devices", "2", "--out", "two"],
        cwd=tmp_path, capture_output=True, text=True, timeout=START + END,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sum(mentions(one, "--force", "complete") for one in done.stderr.splitlines()) == 1
    assert (
        sum(
            mentions(one, "ifca", "iid", "digits", "seed 0", "2 rounds")
            for one in done.stderr.splitlines()
        )
        == 1
    )
    assert done.stdout.count("seed-0.json") == 2
    call(*pair, "--out", str(tmp_path / "one"))
    assert grids.stable(tmp_path / "two") == grids.stable(tmp_path / "one")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The long run, undisturbed, in one process."""
    folder = tmp_path_factory.mktemp("whole")
    call(*LONG, "--out", str(folder))
    return folder


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Command]:
    """The long run in two processes, some rounds old."""
    command = Command(["run", *LONG, "--devices", "2", "--out", "out"], tmp_path)
    try:
        waited(lambda: any(tmp_path.rglob("*.safetensors")), START)
        yield command
    finally:
        command.kill()


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(word) for word in listed.split()]


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody has buried yet."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("victim", ["another", "the first"])
def test_a_killed_process_ends_the_run_which_can_go_on_in_one(
    victim: str, running: Command, whole: Path, tmp_path: Path
) -> None:
    (child,) = children(running.pid)
    os.kill(child if victim == "another" else running.pid, signal.SIGKILL)
    code, _, _ = running.finish(END)
    assert code == (4 if victim == "another" else -signal.SIGKILL)
    waited(lambda: not runs(child), END)
    cried = running.errors.read_text(encoding="utf-8")
    last = cried.splitlines()[-1]
    assert mentions(last, "flbench run --plugin fedavg --suite iid", "process")
    assert last.endswith("--devices 2 --resume")
    assert "Traceback" not in cried
    assert not any((tmp_path / "out").rglob("*.json"))
    call(*LONG, "--out", str(tmp_path / "out"), "--resume")
    assert grids.stable(tmp_path / "out") == grids.stable(whole)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("wait", "code"),
    [
        pytest.param(1.0, -signal.SIGKILL, marks=pytest.mark.long),
        pytest.param(0.1, 130, marks=pytest.mark.long),
        (0.5, 130),
    ],
)
def test_who_ends_while_modules_are_imported_leaves_no_process(
    wait: float, code: int, tmp_path: Path
) -> None:
    command = Command(["run", *LONG, "--devices", "2", "--out", "out"], tmp_path)
    waited(lambda: bool(children(command.pid)), START)
    (child,) = children(command.pid)
    time.sleep(wait)  # until it has begun to import
    os.kill(command.pid, signal.SIGKILL) if code < 0 else os.killpg(command.pid, signal.SIGINT)
    assert command.finish(END)[0] == code
    waited(lambda: not runs(child), START)
    assert "Traceback" not in command.errors.read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_interrupted_run_says_so_once(running: Command) -> None:
    (child,) = children(running.pid)
    os.killpg(running.pid, signal.SIGINT)
    code, _, cried = running.finish(END)
    assert code == 130
    assert sum(mentions(one, "interrupted", "whole") for one in cried.splitlines()) == 1
    waited(lambda: not runs(child), END)


FAILS = """
import os
from dataclasses import dataclass
from typing import ClassVar
import flbench as fl

if os.environ.get("LOCAL_RANK") == os.environ.get("ENDS"):
    if os.environ["WHEN"] == "at once":
        os._exit(7)
    import torch.distributed
    torch.distributed.new_group = lambda **_: os._exit(7)

class Module(fl.ClientModule):
    def training_step(self, batch, batch_idx):
        if self.received["who"] == 5:
            raise ValueError("no")
        return super().training_step(batch, batch_idx)

@dataclass(frozen=True)
class Fails:
    "Fails at one client."

    @fl.hookimpl
    def client_module(self, net, ctx):
        return Module(net, ctx.local)

    @fl.hookimpl
    def dispatch(self, stage):
        return fl.Start(client_memory={"who": stage.clients})
"""

UNBEGUN = "a process of this run died before it began"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "devices", "code", "line"),
    [
        ("never", 2, 1, "round 1: fails: client 5 failed in stage 'train': ValueError: no"),
        pytest.param("at once", 2, 4, UNBEGUN, marks=pytest.mark.long),
        ("before all have met", 3, 4, UNBEGUN),
    ],
)
def test_a_process_that_fails_takes_the_run_with_it(
    when: str, devices: int, code: int, line: str, tmp_path: Path
) -> None:
    install(tmp_path / "site", "fails", "[flbench.methods]\nfails = fails:Fails\n", fails=FAILS)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    words = ("run", "-p", "fails", *SMALL, "--set", "participation=1", "--devices", str(devices))
    environ = {} if when == "never" else {"ENDS": "1", "WHEN": when}
    ended, _, cried = typed(words, tmp_path, PYTHONPATH=path.strip(os.pathsep), **environ)
    assert ended == code
    assert cried.splitlines()[-1] == f"flbench: {line}"
    assert "Traceback" not in cried
