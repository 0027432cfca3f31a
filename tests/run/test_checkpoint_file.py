"""Damaged, foreign and older checkpoints: each is refused by its cause, or the one before is used.

`python tests/faults checkpoints` damages many more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mentions import mentioning, mentions
from safetensors import safe_open
from safetensors.torch import save_file
from simulated_device import DEVICE, simulated_device

from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank
from flbench.core.state import Membership, State
from flbench.engine.ledger import CommunicationLedger
from flbench.errors import MachineError, PluginError, UserError
from flbench.results.schema import Fingerprint
from flbench.run import checkpoint
from flbench.run.checkpoint import (
    CheckpointWriter,
    Origin,
    Resumed,
    expect_state,
    load_checkpoint,
)
from flbench.run.checkpoint_file import Damaged, discard, generations, previous, seal
from flbench.run.core_digest import UNKNOWN
from flbench.run.history import History
from flbench.run.own_models import OwnModels

MARKS = Fingerprint(
    config="c", suite="s", initial_weights="w", cohorts="h", data="d", partition="p"
)
ORIGIN = Origin(
    "toy",
    0,
    MARKS,
    {"toy": "0123"},
    "cpu",
    {"core": "ab12", "threads": "1"},
    {"lanes": "a", "rounds": "b"},
)


def written(path: Path, round_: int = 1, origin: Origin = ORIGIN) -> Path:
    state = State(round_, torch.rand(1, 2), Membership(torch.zeros(2).long()))
    CheckpointWriter(path, origin).keep(state, CommunicationLedger(2), History())
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint of two generations, rounds 1 and 2."""
    return written(written(tmp_path / "seed-0.checkpoint.safetensors"), 2)


def load(path: Path, origin: Origin = ORIGIN, *, changed_source: bool = False) -> Resumed:
    return load_checkpoint(path, RowStore(10**6), origin, changed_source=changed_source)


def refused(path: Path, origin: Origin = ORIGIN) -> str:
    with pytest.raises(UserError) as caught:
        load(path, origin)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def bit(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


def zeroed_tail(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, size - 9)
    os.truncate(path, size)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewritten(path: Path, tensor: float | None = None, sealed: bool = True, **more: str) -> None:
    """Write a checkpoint anew with other entries in its header, or with a number in its models."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = {**file.metadata(), **more}
    if tensor is not None:
        tensors["models"][0, 0] = tensor
    save_file(tensors, path, metadata=header)
    if sealed:
        seal(path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit of the header's length": lambda path: bit(path, 3),
    "a high bit of the header's length": lambda path: bit(path, 62),
    "a bit of the header": lambda path: bit(path, 8 * 60),
    "the last bit": lambda path: bit(path, 8 * path.stat().st_size - 1),
    "a zeroed tail": zeroed_tail,
    "half of it": half,
    "nothing": lambda path: os.truncate(path, 0),
    "seven bytes": lambda path: os.truncate(path, 7),
    "another file": lambda path: path.write_bytes(b'{"no": "checkpoint"}' * 9) and None,
    "a model that is not finite": lambda path: rewritten(path, float("nan"), sealed=False),
    "the same with a digest that fits": lambda path: rewritten(path, float("nan")),
    "no content, with a digest that fits": lambda path: rewritten(path, flbench="{}"),
    "no JSON, with a digest that fits": lambda path: rewritten(path, flbench="[1"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(name: str, path: Path) -> None:
    DAMAGES[name](path)
    found = load(path)
    assert found.state.round == 1
    (message,) = found.messages
    assert message.startswith(f"{path}: ")
    assert message.endswith(f"; goes on from {previous(path).name}, round 1")


@pytest.mark.parametrize("name", DAMAGES)
def test_without_another_one_the_damage_is_named(name: str, path: Path) -> None:
    previous(path).unlink()
    DAMAGES[name](path)
    with pytest.raises(Damaged) as caught:
        load(path)
    line = str(caught.value)
    assert line.startswith((f"{path}: damaged checkpoint (", f"{path}: no checkpoint of a run ("))
    assert line.endswith(f"; to start over, delete {path}")
    assert "\n" not in line


def other_table(path: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = file.metadata()
    save_file({**tensors, "models": change(tensors["models"])}, path, metadata=header)
    seal(path)


@pytest.mark.parametrize(
    "change", [torch.Tensor.double, torch.Tensor.flatten, lambda table: table[:, :1].clone()]
)
def test_a_table_of_another_kind_is_of_no_run(
    change: Callable[[torch.Tensor], torch.Tensor], path: Path
) -> None:
    """Its digest fits, as somebody made a new one."""
    previous(path).unlink()
    other_table(path, change)
    line = f"{path}: no checkpoint of a run (ValueError: models: expected ['torch.float32', 1, 2], "
    assert refused(path).startswith(line)


STATE_OF_TWO = State(
    1,
    torch.zeros(1, 3),
    Membership(torch.zeros(2).long()),
    {"toy.each": torch.zeros(2, 4), "toy.row": torch.zeros(1)},
    {"toy.each": "client", "toy.row": "model"},
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"models": torch.zeros(1, 2)}, "shape (1, 2), expected (any, 3)"),
        ({"models": torch.zeros(1, 3).double()}, "float64, expected float32"),
        ({"membership": Membership(torch.zeros(3).long())}, "shape (3,), expected (2,)"),
        ({"membership": Membership(torch.zeros(2))}, "float32, expected int64"),
        ({"membership": Membership(torch.ones(2).long())}, "clients to row 1, expected -1..0"),
        ({"scopes": {"toy.each": "client", "toy.row": "client"}}, "1 entries, expected 2"),
        ({"scopes": {"toy.each": "client"}}, "scopes"),
        ({"scopes": {"toy.each": "client", "toy.row": "server"}}, "scopes"),
    ],
)
def test_a_state_that_does_not_fit_the_run(changes: dict[str, Any], why: str) -> None:
    ledger = CommunicationLedger(2)
    expect_state(STATE_OF_TWO, ledger, 3, 2)
    with pytest.raises((PluginError, ValueError), match=re.escape(why)):
        expect_state(replace(STATE_OF_TWO, **changes), ledger, 3, 2)


@pytest.mark.parametrize(("clients", "width", "fits"), [(2, 2, True), (3, 2, False), (2, 3, False)])
def test_own_models_are_those_of_the_clients(
    clients: int, width: int, fits: bool, tmp_path: Path
) -> None:
    path, state = tmp_path / "one", State(1, torch.rand(1, 2), Membership(torch.zeros(2).long()))
    own = OwnModels.of_nobody(torch.rand(width), clients, RowStore(budget=None))
    CheckpointWriter(path, ORIGIN).keep(state, CommunicationLedger(2), History(own=own))
    if not fits:
        assert "own models" in refused(path)
        return
    found = load_checkpoint(path, RowStore(budget=None), ORIGIN).history.own
    assert found is not None and torch.equal(found.rows.dense(), own.rows.dense())
    assert not found.trained.any()


def test_bits_of_other_clients_do_not_fit_the_run() -> None:
    with pytest.raises(PluginError, match="the bits of each client"):
        expect_state(STATE_OF_TWO, CommunicationLedger(3), 3, 2)


@pytest.mark.parametrize(
    ("kept", "said"),
    [(-1, "its end is missing"), (0, "its digest does not fit its bytes")],
)
def test_a_file_that_ends_with_its_header_or_within_it(kept: int, said: str, path: Path) -> None:
    previous(path).unlink()
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    os.truncate(path, header + kept)
    assert refused(path).startswith(f"{path}: damaged checkpoint ({said})")


def test_every_bit_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors")
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 101):
        bit(path, place)
        with pytest.raises(Damaged):
            load(path)
        path.write_bytes(whole)
    assert load(path).state.round == 1


def test_of_two_damaged_ones_both_are_named(path: Path) -> None:
    half(path)
    zeroed_tail(previous(path))
    line = refused(path)
    assert line.count("damaged checkpoint") == 2
    assert line.endswith(f"; to start over, delete {path} and {previous(path)}")


def test_a_power_cut_between_two_names_leaves_the_one_before(path: Path) -> None:
    path.unlink()
    found = load(path)
    assert (found.state.round, len(found.messages)) == (1, 1)
    assert generations(path) == [previous(path)]
    discard(path)
    assert not list(path.parent.iterdir())


def test_a_whole_checkpoint_has_nothing_to_say(path: Path) -> None:
    found = load(path)
    assert (found.state.round, found.messages) == (2, [])
    assert sorted(path.parent.iterdir()) == sorted(generations(path))


@pytest.mark.parametrize("found", ["1", "2", "3", "4", "6", None])
def test_another_format_is_refused_by_its_name(found: str | None, path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = {**file.metadata(), "format": found}
    older = found in (None, "1", "2")
    kept = {k: v for k, v in header.items() if v is not None and not (older and k == "digest")}
    save_file(tensors, path, metadata=kept)
    if not older:
        seal(path)
    line = refused(path)
    assert line.startswith(f"{path}: expected checkpoint format 5, found {found or 'none'};")
    assert line.endswith(f"; to start over, delete {path} and {previous(path)}")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": "other"}, "method: expected other, found toy"),
        ({"seed": 7}, "seed: expected 7, found 0"),
        *(({name: "other"}, name.replace("_", " ")) for name in ("data", "partition", "cohorts")),
        ({"suite": "other"}, "suite or other settings of it: expected other, found s"),
        ({"config": "other"}, "configuration"),
        ({"initial_weights": "other"}, "initial weights"),
        ({"device": "cuda"}, "device: expected cuda, found cpu"),
    ],
)
def test_another_run_is_refused_by_what_differs(
    change: dict[str, object], named: str, path: Path
) -> None:
    told = {**vars(ORIGIN), **change}
    marks = MARKS.model_copy(update={k: v for k, v in change.items() if k not in ORIGIN.plain()})
    other = {name: told[name] for name in ("method", "seed", "device")}
    line = refused(path, replace(ORIGIN, marks=marks, **other))
    assert line.startswith(f"{path}: a checkpoint of another {named}")
    assert line.endswith(f"; to start over, delete {path} and {previous(path)}")


CHANGED = replace(ORIGIN, sources={"toy": "4567"})


def test_changed_code_is_refused_without_consent(path: Path) -> None:
    line = refused(path, CHANGED)
    assert mentions(line, path, "toy", "0123", "4567")
    assert "--resume --changed-source" in line


def test_code_that_was_not_used_before_is_changed_code(path: Path) -> None:
    more = replace(ORIGIN, sources={**ORIGIN.sources, "wrapper": "89ab"})
    assert "wrapper ( then, 89ab now)" in refused(path, more)
    written(path, 3, more)
    assert "wrapper (89ab then,  now)" in refused(path)


ELSEWHERE = {
    "core": ({"core": "cd34"}, "core (ab12 then, cd34 now) (core: lanes);"),
    "threads": ({"threads": "2"}, "--threads (1 then, 2 now);"),
    "torch": ({"torch": "2.9"}, "torch ( then, 2.9 now);"),
    "unknown": ({"core": UNKNOWN}, "core (ab12 then, unknown now) (core: lanes, rounds);"),
}
PARTS_OF = {"core": {"lanes": "c", "rounds": "b"}, "unknown": {}}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_another_core_library_or_option_is_refused_by_its_name(what: str, path: Path) -> None:
    change, said = ELSEWHERE[what]
    parts = PARTS_OF.get(what, ORIGIN.core_parts)
    other = replace(ORIGIN, environment={**ORIGIN.environment, **change}, core_parts=parts)
    line = refused(path, other)
    assert line.startswith(f"{path}: what computes has changed since: {said}")
    found = load(path, other, changed_source=True)
    ((name, after),) = change.items()
    before = ORIGIN.environment.get(name, "")
    assert found.history.source_changes == [
        {"round": 2, "plugin": name, "before": before, "after": after}
    ]


def test_other_code_of_a_metric_is_refused_and_a_new_or_dropped_metric_is_not(
    tmp_path: Path,
) -> None:
    def of(**metrics: str) -> Origin:
        named = {f"metric {name}": code for name, code in metrics.items()}
        return replace(ORIGIN, sources={**ORIGIN.sources, **named})

    path = written(tmp_path / "seed-0.checkpoint.safetensors", origin=of(f1="ab", auc="ab"))
    assert "metric f1 (ab then, cd now)" in refused(path, of(f1="cd", auc="ab"))
    assert not load(path, of(f1="ab", auc="ab", ece="ef")).history.source_changes
    assert not load(path, of(f1="ab")).history.source_changes


def test_a_core_whose_sources_are_missing_is_not_even_its_own(tmp_path: Path) -> None:
    origin = replace(ORIGIN, environment={"core": UNKNOWN}, core_parts={})
    path = written(tmp_path / "seed-0.checkpoint.safetensors", origin=origin)
    assert "core (unknown then, unknown now)" in refused(path, origin)


def test_with_consent_the_history_says_what_changed_and_keeps_saying_it(path: Path) -> None:
    state, ledger, history, messages, _ = load(path, CHANGED, changed_source=True)
    expected = [{"round": 2, "plugin": "toy", "before": "0123", "after": "4567"}]
    assert history.source_changes == expected
    assert len(messages) == 1
    CheckpointWriter(path, CHANGED).keep(state, ledger, history)
    assert load(path, CHANGED).history.source_changes == expected


def test_the_content_cannot_pass_for_the_digest(tmp_path: Path) -> None:
    history = History(notes=[{"round": 1, "name": f'"digest":"{"0" * 64}"', "value": 1}])
    path = tmp_path / "a.safetensors"
    state = State(1, torch.zeros(1, 2), Membership(torch.zeros(2).long()))
    CheckpointWriter(path, ORIGIN).keep(state, CommunicationLedger(2), history)
    assert load(path).history.notes == history.notes
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["flbench"])["round"] == 1


def test_shared_rows_and_shared_memory_come_back(tmp_path: Path) -> None:
    """A bank stores equal rows once; three names of one tensor are three tensors in the file."""
    bank = ModelBank.repeated(torch.tensor([1.0, 2.0, 3.0]), 4, RowStore(10**6))
    bank[2] = torch.tensor([4.0, 5.0, 6.0])
    bank.share(torch.tensor([True, False, False]), torch.tensor([9.0]))
    table = torch.tensor([7.0, 8.0])
    memory = {"toy.one": table, "toy.two": table, "toy.three": table, "toy.bank": bank}
    state = State(1, bank.clone(), Membership(torch.zeros(4).long()), memory)
    path = tmp_path / "a.safetensors"
    CheckpointWriter(path, ORIGIN).keep(state, CommunicationLedger(4), History())
    store = RowStore(10**6)
    found = load_checkpoint(path, store, ORIGIN).state
    for one in (found.models, found.memory["toy.bank"]):
        assert isinstance(one, ModelBank)
        assert one.tolist() == [[9, 2, 3], [9, 2, 3], [9, 5, 6], [9, 2, 3]]
        assert len(one.stored) == 2
    assert store.used == 2 * 2 * 3 * 4, "bytes: two rows of each bank"
    for name in ("toy.one", "toy.two", "toy.three"):
        assert found.memory[name].tolist() == [7.0, 8.0]


def test_memory_follows_the_groups_after_a_checkpoint(path: Path) -> None:
    memory = {"toy.drift": torch.tensor([[1.0], [2.0]])}
    state = State(3, torch.rand(2, 2), Membership(torch.arange(2)), memory, {"toy.drift": "model"})
    CheckpointWriter(path, ORIGIN).keep(state, CommunicationLedger(2), History())
    split = Membership(torch.arange(2), parent=torch.tensor([1, 0, 1]))
    found = load(path).state.regroup(split)
    assert found.memory["toy.drift"].tolist() == [[2.0], [1.0], [2.0]]


def test_weights_of_a_membership_come_back(path: Path) -> None:
    weights = torch.tensor([[0.25, 0.75], [0.0, 1.0]], dtype=torch.float64)
    state = State(3, torch.rand(2, 2), Membership(torch.arange(2), weights))
    CheckpointWriter(path, ORIGIN).keep(state, CommunicationLedger(2), History())
    found = load(path).state.membership
    assert found.weights is not None
    assert torch.equal(found.weights, weights)
    assert found.home.tolist() == [0, 1]


def test_every_table_comes_back_to_where_it_was(tmp_path: Path) -> None:
    """A method may keep memory on the host, for which it needs numpy, and more on the device."""
    origin, path = replace(ORIGIN, device="cuda"), tmp_path / "a.safetensors"
    with simulated_device():
        memory = {"toy.host": torch.zeros(2), "toy.device": torch.zeros(2, device=DEVICE)}
        models = torch.zeros(1, 2, device=DEVICE)
        state = State(1, models, Membership(torch.zeros(2).long()), memory)
        CheckpointWriter(path, origin).keep(state, CommunicationLedger(2), History())
        found = load_checkpoint(path, RowStore(10**6, device=DEVICE), origin).state
        tables = {"models": found.models, "home": found.membership.home, **found.memory}
        assert {name: table.device.type for name, table in tables.items()} == {
            "models": "cuda", "home": "cpu", "toy.host": "cpu", "toy.device": "cuda",
        }  # fmt: skip


def test_tables_come_back_at_even_places(path: Path) -> None:
    """Products of matrices may have other last bits where numbers lie at other places."""
    memory = {f"toy.{size}": torch.rand(size, dtype=torch.float64) for size in (1, 3, 5)}
    state = State(3, torch.rand(1, 2), Membership(torch.zeros(2).long()), memory)
    CheckpointWriter(path, ORIGIN).keep(state, CommunicationLedger(2), History())
    found = load(path).state
    assert [table.data_ptr() % 64 for table in (found.models, *found.memory.values())] == [0] * 4


class Clock:
    """A clock of which writing a checkpoint takes a given time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: float) -> None:
        self.now, self.takes, self.written = 0.0, takes, list[float]()
        monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(checkpoint, "write", self.write)

    def write(self, *_: object) -> None:
        self.written.append(self.now)
        self.now += self.takes


STATE = State(1, torch.zeros(1, 2), Membership(torch.zeros(2).long()))


@pytest.mark.parametrize(
    ("takes", "waits"), [(0.001, 1.0), (1.0, 100.0), (12.0, 600.0), (90.0, 600.0)]
)
def test_a_checkpoint_is_written_when_it_is_due(
    takes: float, waits: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, takes)
    writer = CheckpointWriter(tmp_path / "a.safetensors", ORIGIN)
    for now in (5.0, 5.0 + takes + waits - 0.5, 5.0 + takes + waits):
        clock.now = now
        writer.keep(STATE, CommunicationLedger(2), History(seconds={"total": now}))
    assert clock.written == [5.0, 5.0 + takes + waits], "the first, and then when it is due"
    writer.flush()
    assert len(clock.written) == 2, "nothing is left to be written"


def test_the_time_of_sinks_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, takes=1.0)
    writer = CheckpointWriter(tmp_path / "a.safetensors", ORIGIN)
    for spent in (5.0, 60.0, 107.0):  # each round is followed by three minutes of a sink
        clock.now += spent + 180.0
        writer.keep(STATE, CommunicationLedger(2), History(seconds={"total": spent}))
    assert len(clock.written) == 2, "the first, and then after 100 seconds of rounds"


def test_what_cannot_be_written_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MachineError("a: full")

    monkeypatch.setattr(checkpoint, "write", fail)
    said: list[str] = []
    writer = CheckpointWriter(tmp_path / "a.safetensors", ORIGIN, said.append)
    for _ in range(2):
        writer.keep(STATE, CommunicationLedger(2), History())
        writer.flush()
    assert said == [mentioning("a", "resumed")]


def test_without_a_place_nothing_is_kept() -> None:
    writer = CheckpointWriter(None, ORIGIN)
    writer.keep(STATE, CommunicationLedger(2), History())
    writer.flush()
    assert writer.path is None
