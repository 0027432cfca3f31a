"""Banks: to whoever uses them a tensor, but rows are shared and written one by one."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mentions import mentioning
from toy import Play, composition, toy_dataset

from flbench import Setup, State, hookimpl
from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import (
    ModelBank,
    all_finite,
    mean_of,
    plain,
    row_of,
    take,
    writes,
)
from flbench.core.state import Membership, Scores
from flbench.engine import batchnorm
from flbench.engine.ledger import CommunicationLedger
from flbench.engine.options import EngineOptions
from flbench.errors import PluginError
from flbench.results.schema import Fingerprint
from flbench.run import checkpoint
from flbench.run.checkpoint import CheckpointWriter, Origin
from flbench.run.history import History

ROWS, WIDTH = 5, 4
EVEN = torch.tensor([True, False, True, False])


def start() -> tuple[ModelBank, torch.Tensor]:
    row = torch.arange(float(WIDTH))
    return ModelBank.repeated(row, ROWS, RowStore(10**6)), row.expand(ROWS, -1).clone()


def one(index: Any, value: Any) -> Callable[[torch.Tensor], None]:
    return lambda table: table.__setitem__(index, value)


def share(table: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> None:
    if isinstance(table, ModelBank):
        table.share(mask, values)
    else:
        table[:, mask] = values


PAIR, SOME = torch.tensor([3, 1]), torch.tensor([True, False, False, True, True])
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows by ids": one(PAIR, torch.full((2, WIDTH), 7.0)),
    "rows by a list": one([0, -1], torch.randn(2, WIDTH)),
    "rows by a mask": one(SOME, torch.randn(3, WIDTH)),
    "one row into many": one(PAIR, torch.full((WIDTH,), 2.5)),
    "a number into rows": one(slice(1, 3), 9.0),
    "a row": one(2, torch.ones(WIDTH)),
    "a row by a tensor": one(torch.tensor(2), torch.full((WIDTH,), 4.0)),
    "part of a row": one((0, EVEN), torch.tensor([5.0, 6.0])),
    "part of rows": one((PAIR, slice(0, 2)), torch.zeros(2, 2)),
    "a column": one((slice(None), 1), torch.arange(5.0)),
    "some scalars of all rows": one((slice(None), EVEN), torch.tensor([1.0, 2.0])),
    "pairs": one((PAIR, torch.tensor([0, 2])), torch.tensor([8.0, 9.0])),
    "everything": one(..., 3.0),
    "nothing": one(torch.tensor([], dtype=torch.int64), torch.empty(0, WIDTH)),
    "nothing of some scalars": one(
        (torch.tensor([], dtype=torch.int64), slice(0, 2)), torch.empty(0, 2)
    ),
    "a row in place": lambda table: table[4].mul_(2),
    "a row after a read": lambda table: table[1].add_(table[0]),
    "all in place": lambda table: table.add_(1),
    "rows += x": lambda table: table.__setitem__(PAIR, table[PAIR] + 1),
    "shared scalars": lambda table: share(table, EVEN, torch.tensor([0.5, 0.25])),
    "other shared scalars": lambda table: share(table, ~EVEN, torch.tensor([-1.0, -2.0])),
}
MEAN = lambda table: mean_of(table, torch.tensor([0, 1, 1, 4]))  # noqa: E731
READS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda table: table[PAIR],
    lambda table: table[SOME, :2],
    lambda table: table[1:4],
    lambda table: table[None, 0],
    lambda table: table[0, None],
    lambda table: table[2],
    lambda table: table[-1, 1],
    lambda table: table[:, EVEN],
    lambda table: table[PAIR, torch.tensor([0, 1])],
    lambda table: table[..., 1],
    lambda table: table[torch.tensor([], dtype=torch.int64)],
    lambda table: table[torch.tensor([[0, 1], [2, 3]])],
    lambda table: torch.stack(list(table)),
    lambda table: table.double().mean(dim=0),
    lambda table: torch.cat([table, table]),
    lambda table: table == table[0],
    lambda table: table.unique(dim=0),
    lambda table: table.expand(2, -1, -1),
    lambda table: torch.as_tensor(table.tolist()),
    lambda table: torch.as_tensor(table.cpu().numpy().copy()),
    lambda table: torch.where(EVEN, table, 0),
    lambda table: take(table, PAIR)[:],
    lambda table: row_of(table, 3),
    lambda table: plain(table),
    MEAN,
    lambda table: torch.as_tensor([len(table), *table.shape]),
)


@given(st.lists(st.tuples(st.sampled_from(sorted(WRITES)), st.booleans()), max_size=8))
@example(
    [("a row after a read", False), ("one row into many", False), ("a row after a read", False)]
)
@example([("nothing of some scalars", False)])
@example([("a row in place", False), ("a row in place", True)])
@example([("shared scalars", False), ("a row", False), ("other shared scalars", True)])
@settings(max_examples=50, deadline=None)
@pytest.mark.slow
def test_a_bank_is_the_tensor_it_stands_for(deeds: list[tuple[str, bool]]) -> None:
    """Whatever is written, copied and read, in any order; copies never see each other."""
    bank, table = start()
    left_behind: list[tuple[ModelBank, torch.Tensor]] = []
    for name, copied in deeds:
        if copied:
            left_behind.append((bank, table))
            bank, table = bank.clone(), table.clone()
        WRITES[name](bank)
        WRITES[name](table)
        assert torch.equal(bank.dense(), table)
    for read in READS:
        found, expected = read(bank), read(table)
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, expected, rtol=1e-6 if read is MEAN else 0, atol=0)
    for old, expected in left_behind:
        assert torch.equal(old.dense(), expected)


def test_a_copy_does_not_see_what_its_original_becomes() -> None:
    for copied in (ModelBank.clone, lambda bank: bank.take(torch.arange(ROWS))):
        bank, table = start()
        bank[4].mul_(2)
        other = copied(bank)
        bank[4].mul_(2)
        assert torch.equal(other[4], table[4] * 2)
        assert torch.equal(bank[4], table[4] * 4)


def test_rows_that_were_not_written_are_stored_once() -> None:
    bank, _ = start()
    assert len(bank.stored) == 1
    other = bank.clone()
    other[PAIR] = torch.ones(2, WIDTH)
    assert len(other.stored) == 3
    assert other._rows[0] is bank._rows[0]
    store = bank._store
    assert store.used == 3 * WIDTH * 4
    del other
    assert store.used == WIDTH * 4, "what nobody holds is forgotten"


def test_what_is_shared_costs_one_row_however_many_there_are() -> None:
    bank, _ = start()
    bank[0] = torch.zeros(WIDTH)
    before = bank._store.used
    bank.share(EVEN, torch.tensor([1.0, 2.0]))
    assert bank._store.used == before


def test_reading_what_is_shared_does_not_write_it_into_rows_of_another_bank() -> None:
    bank, table = start()
    other = bank.clone()
    bank.share(EVEN, torch.tensor([1.0, 2.0]))
    assert bank.read(3)[EVEN].tolist() == [1.0, 2.0]
    assert torch.equal(other[3], table[3])


def test_copies_leave_the_process_as_plain_tensors() -> None:
    bank, table = start()
    assert torch.equal(pickle.loads(pickle.dumps(bank)), table)
    buffer = io.BytesIO()
    torch.save(bank, buffer)
    assert torch.equal(copy.deepcopy(bank).dense(), table)
    assert repr(bank) == mentioning("ModelBank", "5 rows", "4 scalars", "1 rows")


@pytest.mark.parametrize(
    ("values", "finite"),
    [([3e38, 3e38], True), ([1.0, torch.nan], False), ([1.0, -torch.inf], False)],
)
def test_a_sum_that_overflows_is_of_finite_values(values: list[float], finite: bool) -> None:
    assert all_finite(torch.tensor(values)) is finite


def test_only_what_is_new_is_looked_at_for_infinity() -> None:
    bank, _ = start()
    bank[1] = torch.tensor([1.0, torch.inf, 0, 0])
    assert not all_finite(bank)
    assert all_finite(bank.clone()), "it was refused when it was written"
    other = bank.clone()
    other.share(EVEN, torch.tensor([torch.nan, 1.0]))
    assert not all_finite(other)
    assert not all_finite(torch.tensor([1.0, torch.nan]))


# --- in runs ----------------------------------------------------------------------------------

SLOW = ("lg-fedavg", "clusterfl", "fedc2i", "dc-pfl", "scaffold", "fedrod", "flis-dc")
PERSONAL = [
    "local-only", "fedrep", "fedfomo",
    *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", PERSONAL)
def test_a_run_whose_models_lie_in_files_is_the_same_run(play_toy: Play, method: str) -> None:
    options = {"ft_epochs": 1, "server_samples": 8, "dataset": toy_dataset(samples=100)}
    pair = [
        play_toy(method, engine=EngineOptions(accelerator="cpu", bank_budget=budget), **options)
        for budget in (None, 0)
    ]
    assert isinstance(pair[0].run.services.store, RowStore)
    assert torch.equal(plain(pair[0].state.models), plain(pair[1].state.models))
    results = [json.loads(played.result.canonical()) for played in pair]
    for result in results:
        del result["seconds"], result["environment"], result["digest"]
    assert results[0] == results[1]
    if method in ("local-only", "fedrep", "lg-fedavg"):
        assert isinstance(pair[1].state.models, ModelBank)
        assert pair[1].run.services.store.used == 0 < pair[1].run.services.store.spilled


def test_a_round_of_personal_models_stores_what_it_trained(play_toy: Play) -> None:
    for method in ("local-only", "fedrep"):
        played = play_toy(method, rounds=1)
        models = played.state.models
        assert isinstance(models, ModelBank)
        assert len(models.stored) == 3 + 1, "the cohort's rows, and the initial one"


@pytest.mark.slow
def test_a_plugin_may_write_into_its_copy_as_into_any_tensor(play_toy: Play) -> None:
    def rows(state: State, upload: Any) -> torch.Tensor:
        table = state.models.clone()
        for client, row in zip(upload.ids.tolist(), upload.selected(), strict=True):
            table[client].copy_(row).mul_(0.5)
        table[:, 0] += 1
        return table

    def method(own: Callable[[Any], torch.Tensor]) -> Any:
        class Halves:
            @hookimpl
            def setup(self, ctx: Any) -> Setup:
                return Setup(models=own(ctx), membership=Membership(ctx.everybody))

            @hookimpl
            def aggregate(self, state: State, upload: Any) -> Any:
                from flbench import Models

                return Models(rows(state, upload))

        return composition(("halves", Halves()))

    shared = play_toy(method(lambda ctx: ctx.repeated(ctx.initial)))
    dense = play_toy(method(lambda ctx: ctx.initial.expand(ctx.clients, -1).clone()))
    assert isinstance(shared.state.models, ModelBank)
    assert type(dense.state.models) is torch.Tensor
    assert torch.equal(plain(shared.state.models), dense.state.models)


def test_models_that_are_not_finite_are_refused_in_a_bank_too(play_toy: Play) -> None:
    class Bad:
        @hookimpl
        def setup(self, ctx: Any) -> Setup:
            rows = ctx.repeated(ctx.initial * torch.inf)
            return Setup(models=rows, membership=Membership(ctx.everybody))

    with pytest.raises(PluginError, match="models that are not finite"):
        play_toy(composition(("bad", Bad())))


def test_buffers_of_ones_own_are_kept_row_by_row() -> None:
    class Layout:
        buffers, parameters = 2, 2

    layout: Any = Layout()
    memory = batchnorm.declare("local", layout, torch.arange(4.0), 3, RowStore(100))
    assert isinstance(memory[batchnorm.OWN].value, ModelBank)


# --- checkpoints ------------------------------------------------------------------------------

MARKS = Fingerprint(
    config="c", suite="s", initial_weights="w", cohorts="h", data="d", partition="p"
)
ORIGIN = Origin("toy", 0, MARKS, {}, "cpu")


def test_a_checkpoint_holds_equal_rows_once_and_gives_the_bank_back(tmp_path: Path) -> None:
    bank, _ = start()
    bank[PAIR] = torch.randn(2, WIDTH)
    bank.share(EVEN, torch.tensor([1.0, 2.0]))
    bank[2] = torch.randn(WIDTH)
    memory = {"m.table": bank.clone(), "m.plain": torch.arange(3)}
    state = State(3, bank, Membership(torch.arange(ROWS)), memory, {"m.table": "client"})
    keeper = CheckpointWriter(tmp_path / "a.safetensors", ORIGIN)
    keeper.keep(state, CommunicationLedger(ROWS), History())
    store = RowStore(0, tmp_path)
    again, *_ = checkpoint.load_checkpoint(tmp_path / "a.safetensors", store, ORIGIN)
    assert isinstance(again.models, ModelBank)
    assert len(again.models.stored) == len(bank.stored) == 4
    for one, other in ((again.models, bank), (again.memory["m.table"], bank)):
        assert torch.equal(plain(one), plain(other))
    assert torch.equal(again.memory["m.plain"], torch.arange(3))
    assert store.used == 0 < store.spilled


def rounds_on_disk(path: Path) -> int:
    return checkpoint.load_checkpoint(path, RowStore(10**6), ORIGIN)[0].round


@pytest.mark.parametrize(
    ("took", "expected"),
    [(0.79, [1, 1, 1, 1, 5, 5, 5]), (0.1, [1, 2, 3, 4, 5, 6, 7]), (9.0, [1, 1, 1, 1, 1, 6, 6])],
)
def test_a_large_checkpoint_waits_until_its_writing_is_cheap(
    took: float, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty times what it takes, or what is the longest."""
    monkeypatch.setattr(checkpoint, "LONGEST", 45.0)
    now, path = [0.0], tmp_path / "a.safetensors"
    monkeypatch.setattr(checkpoint, "pause", lambda writing: 50 * writing)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    write = checkpoint.write

    def slow(*arguments: Any) -> None:
        now[0] += took
        write(*arguments)

    monkeypatch.setattr(checkpoint, "write", slow)
    keeper, ledger, history = CheckpointWriter(path, ORIGIN), CommunicationLedger(ROWS), History()
    seen = []

    def rounds() -> None:
        for round_ in range(1, 8):
            now[0] += 10
            state = State(round_, torch.zeros(1, 2), Membership(torch.zeros(ROWS).long()))
            history.seconds["total"] = now[0]
            keeper.keep(state, ledger, history)
            ledger.send("up", torch.arange(ROWS), "later", 1)
            history.add_round({"loss": 0.5}, None)
            history.warnings.append("later")
            seen.append(rounds_on_disk(path))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), keeper.guarding():
        rounds()
    assert seen == expected
    again, kept, past, *_ = checkpoint.load_checkpoint(path, RowStore(10**6), ORIGIN)
    assert past.curves == {"loss": [0.5] * 6}
    assert past.warnings == ["later"] * 6
    assert kept.per_client["up"].tolist() == [6 * 4] * ROWS
    assert again.round == 7, "an interrupted run loses no whole round"
    assert kept.total("up") == 6 * ROWS * 4, "as it was when the round was whole"


def small_state() -> State:
    return State(1, torch.zeros(1, 2), Membership(torch.zeros(2).long()))


def test_a_checkpoint_holds_the_scores_exactly(tmp_path: Path) -> None:
    path, ids = tmp_path / "a.safetensors", torch.arange(2)
    values = torch.tensor([[0.1, float("nan")], [1 / 3, -7.0]], dtype=torch.float64)
    history = History()
    history.add_scores(1, Scores(values, ids, "clients", ids))
    CheckpointWriter(path, ORIGIN).keep(small_state(), CommunicationLedger(2), history)
    _, _, again, *_ = checkpoint.load_checkpoint(path, RowStore(10**6), ORIGIN)
    assert history.scores is not None
    assert again.scores is not None
    torch.testing.assert_close(again.scores.values, values, rtol=0, atol=0, equal_nan=True)
    one, other = (replace(scores, values=ids) for scores in (again.scores, history.scores))
    assert vars(one) == vars(other)


def test_nothing_is_kept_where_nothing_is_asked_for() -> None:
    keeper = CheckpointWriter(None, ORIGIN)
    keeper.keep(
        State(1, torch.zeros(1, 2), Membership(torch.zeros(2).long())),
        CommunicationLedger(2),
        History(),
    )
    keeper.flush()


# --- writes are counted, and a copy may share nothing -----------------------------------------


def a_bank(budget: int | None = None) -> ModelBank:
    return ModelBank.repeated(torch.arange(3.0), 4, RowStore(budget))


COUNTED: dict[str, Callable[[ModelBank], object]] = {
    "a row": lambda bank: bank[1].add_(1),
    "a part of a row": lambda bank: bank[1][:2].zero_(),
    "a row that was read": lambda bank: bank.read(1).add_(1),
    "one row by number": lambda bank: bank.__setitem__(2, torch.zeros(3)),
    "rows": lambda bank: bank.__setitem__([0, 3], 7.0),
    "columns": lambda bank: bank.__setitem__((slice(None), 1), 7.0),
    "all in place": lambda bank: bank.mul_(2),
    "common scalars": lambda bank: bank.share(torch.tensor([True, False, False]), torch.ones(1)),
    "a scalar": lambda bank: bank.__setitem__((0, 1), 5.0),
}
UNCOUNTED: dict[str, Callable[[ModelBank], object]] = {
    "a row": lambda bank: bank[1].sum(),
    "a row twice": lambda bank: (bank[-1], bank[3]),
    "all rows": lambda bank: [row.sum() for row in bank],
    "a row by number": lambda bank: bank.read(1).sum(),
    "rows": lambda bank: bank[[0, 1]].zero_(),
    "columns": lambda bank: bank[:, 1].zero_(),
    "a mean": lambda bank: bank.mean_of(torch.tensor([0, 1])),
    "a copy": lambda bank: bank.clone()[0].zero_(),
    "a copy's rows": lambda bank: bank.clone().__setitem__([0, 1], 0.0),
    "other rows": lambda bank: bank.take(torch.tensor([1, 1]))[0].zero_(),
    "an array": lambda bank: bank.numpy().fill(0),
    "a sum": lambda bank: bank + 1,
    "a copy apart": lambda bank: bank.apart().mul_(2),
}


@pytest.mark.parametrize("budget", [None, 0], ids=["memory", "files"])
@pytest.mark.parametrize("what", COUNTED)
def test_every_write_to_a_bank_is_counted(what: str, budget: int | None) -> None:
    bank = a_bank(budget)
    for _ in range(3):  # shared rows, rows of its own, rows that were written
        count = writes(bank)
        COUNTED[what](bank)
        assert writes(bank) > count


@pytest.mark.parametrize("what", UNCOUNTED)
def test_reading_a_bank_counts_nothing(what: str) -> None:
    bank = a_bank()
    bank.share(torch.tensor([True, False, False]), torch.ones(1))
    bank[2].mul_(3)
    table, count = bank.dense(), writes(bank)
    UNCOUNTED[what](bank)
    assert writes(bank) == count
    assert torch.equal(bank.dense(), table)


@pytest.mark.parametrize("budget", [None, 0], ids=["memory", "files"])
def test_a_copy_apart_shares_no_row(budget: int | None) -> None:
    bank = a_bank(budget)
    bank.share(torch.tensor([True, False, False]), torch.ones(1))
    bank[2].mul_(3)
    table, other = bank.dense(), bank.apart()
    assert torch.equal(other.dense(), table)
    assert len(other.stored) == len(bank.stored), "equal rows are one"
    for row in other.stored:
        row.data.fill_(9)
    other._common[1].fill_(9)  # type: ignore[index]
    assert torch.equal(bank.dense(), table)
