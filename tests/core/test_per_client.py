"""Some of the clients of what holds their numbers: laws for each type, made from its fields."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from flbench import Personal, Stage, Start, Upload
from flbench.core import state
from flbench.core.bank_budget import RowStore
from flbench.core.knowledge import noting
from flbench.core.model_bank import ModelBank
from flbench.core.per_client import (
    FOR_ALL,
    MASKS,
    PER_CLIENT,
    OfClients,
    all_marked,
    entries,
    joined,
)
from flbench.core.state import Dispatched, Scores
from flbench.plugin import hooks

CLIENTS = 5
WITH_CLIENTS = {Dispatched, Personal, Scores, Stage, Start, Upload}
OF_ALL_OR_ONE = {"Membership", "Memory", "Message", "Models", "Needs", "Schedule", "Setup", "State"}
KINDS = pytest.mark.parametrize(
    "kind", sorted(WITH_CLIENTS | {hooks.UploadWithNote}, key=lambda one: one.__name__)
)
PLACES = ([], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2], [3, 1], [0, 4, 4, 2, 0, 1, 3])


def one_client(name: str, client: int, number: int) -> Any:
    """What a client has in a field: of its own, so that no two fields are equal by chance."""
    return torch.tensor([100.0 * number + client, len(name)])


def table(name: str, clients: list[int], number: int) -> Tensor:
    rows = [one_client(name, client, number) for client in clients]
    return torch.stack(rows) if rows else torch.empty(0, 2)


def built(kind: Any, clients: list[int], *, deep: bool = True) -> Any:
    """An object about these clients, with a value of their own in all fields marked so."""
    values: dict[str, Any] = {}
    for number, one in enumerate(fields(kind)):
        least = one.metadata["clients"]
        values[one.name] = table(one.name, clients, number)
        if one.name == "logged":
            values[one.name] = [{"m": float(client)} for client in clients]
        elif "Stage" in str(one.type):
            values[one.name] = built(Stage, clients)
        elif "Personal]" in str(one.type):
            values[one.name] = {"other": built(kind, clients, deep=False)} if deep else {}
        elif str(one.type) == "Extras":
            values[one.name] = {"a": table("a", clients, number), "b": table("b", clients, -1)}
        if least is None:
            values[one.name] = torch.tensor([7.0, 8.0])
    return kind(**values)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    return bool(one == other)


def parted(whole: Any, places: list[int]) -> Any:
    return whole.select(torch.tensor(places, dtype=torch.int64))


@KINDS
def test_a_selection_is_what_is_built_of_these_clients(kind: Any) -> None:
    """Nobody, all, one twice, any order; every field of the type has a value of its own."""
    whole = built(kind, [*range(CLIENTS)])
    for places in PLACES:
        assert same(parted(whole, places), built(kind, places))


@KINDS
def test_what_is_parted_is_joined_again(kind: Any) -> None:
    whole = built(kind, [*range(CLIENTS)])
    for first in PLACES:
        for second in PLACES:
            parts = [parted(whole, places) for places in (first, second)]
            assert same(joined(parts), parted(whole, [*first, *second]))
            order = torch.tensor(second, dtype=torch.int64).argsort(stable=True)
            assert same(parts[1].select(order), parted(whole, sorted(second)))


@KINDS
def test_a_field_without_a_mark_is_refused_where_it_is_declared(kind: Any) -> None:
    new = make_dataclass("New", [("found", int, field(default=0))], bases=(kind,), frozen=True)
    with pytest.raises(TypeError, match=r"New\.found: expected field\(metadata=.*PER_CLIENT"):
        all_marked(new)
    old = built(kind, [0, 1])
    with pytest.raises(TypeError, match=r"New\.found"):
        new(**{one.name: vars(old)[one.name] for one in fields(kind)}).select(torch.arange(1))


@KINDS
def test_a_new_field_is_selected_and_joined_by_its_mark(kind: Any) -> None:
    """A table, a mapping and a list of clients; nothing beside the mark is to be written."""
    added = [
        (f"new_{name}", Any, field(default=None, metadata=PER_CLIENT))
        for name in ("table", "tables", "list")
    ]
    new = all_marked(make_dataclass("New", added, bases=(kind,), frozen=True))
    old = built(kind, [0, 1, 2])
    whole = new(
        **{one.name: vars(old)[one.name] for one in fields(kind)},
        new_table=torch.arange(3),
        new_tables={"a": torch.arange(3) + 10},
        new_list=("x", "y", "z"),
    )
    few = parted(whole, [2, 0])
    assert few.new_table.tolist() == [2, 0]
    assert few.new_tables["a"].tolist() == [12, 10]
    assert few.new_list == ["z", "x"]
    both = joined([few, parted(whole, [1])])
    assert both.new_table.tolist() == [2, 0, 1]
    assert both.new_tables["a"].tolist() == [12, 10, 11]
    assert both.new_list == ["z", "x", "y"]


def test_a_type_of_the_core_is_about_the_clients_of_a_stage_or_it_is_not() -> None:
    """Who adds a type says which."""
    kinds = {
        kind
        for kind in vars(state).values()
        if inspect.isclass(kind) and is_dataclass(kind) and kind.__module__ == state.__name__
    }
    assert {kind for kind in kinds if issubclass(kind, OfClients)} == WITH_CLIENTS
    assert {kind.__name__ for kind in kinds - WITH_CLIENTS} == OF_ALL_OR_ONE


def test_a_start_that_is_filled_in_has_all_fields_of_a_start() -> None:
    """`dispatch` merges them by these names."""
    names = {one.name for one in fields(Start)}
    assert names == {one.name for one in fields(Dispatched)}
    assert names == {*hooks.STARTS, "extras", "client_memory"}


@pytest.mark.parametrize("value", [None, 2, 0.5, "a", torch.tensor(3), (), {}])
def test_what_holds_for_all_stays(value: Any) -> None:
    assert same(entries(value, torch.tensor([1, 0])), value)


def test_a_number_of_a_stage_may_be_a_tensor() -> None:
    stage = Stage("train", torch.tensor([3, 5]), torch.tensor(2.0), steps=torch.tensor([4, 6]))
    few = stage.select(torch.tensor([1]))
    assert (few.schedule(0).epochs, few.schedule(0).limit) == (2.0, 6)


def test_a_mask_for_all_clients_stays_and_one_for_each_is_selected() -> None:
    one, each = torch.tensor([True, False, True]), torch.eye(3, dtype=torch.bool)
    few = Start(sent_mask=one, returned_mask=each).select(torch.tensor([2]))
    assert torch.equal(few.sent_mask, one)  # type: ignore[arg-type]
    assert few.returned_mask.tolist() == [[False, False, True]]  # type: ignore[union-attr]


def test_a_row_that_is_repeated_is_not_copied_and_a_bank_stays_a_bank() -> None:
    mask = torch.ones(1, 4, dtype=torch.bool).expand(6, 4)
    few = Dispatched(mask[:, None].float(), mask[:, :1], None, mask, mask).select(torch.arange(3))
    assert few.sent_mask.shape == (3, 4)
    assert few.sent_mask.untyped_storage().data_ptr() == mask.untyped_storage().data_ptr()
    bank = ModelBank.repeated(torch.ones(4), 6, RowStore(None))
    assert isinstance(Personal(params=bank).select(torch.arange(2)).params, ModelBank)


def test_a_selection_reads_nothing_of_clients() -> None:
    upload, found = built(Upload, [0, 1]), set[str]()
    with noting(found):
        few = upload.select(torch.tensor([1]))
    assert not found
    with noting(found):
        assert few.loss is not None
    assert found == {"losses"}


def test_parts_that_differ_in_what_holds_for_all_are_not_joined() -> None:
    parts = [Stage("train", torch.tensor([i]), 1 + i) for i in range(2)]
    with pytest.raises(ValueError, match=r"Stage\.epochs: expected one value .* \[1, 2\]"):
        joined(parts)
    sent = [Start(extras={name: torch.zeros(1)}) for name in "ab"]
    with pytest.raises(ValueError, match=r"Start\.extras"):
        joined(sent)
    some = [Start(params=torch.zeros(1, 1, 2)), Start()]
    with pytest.raises(ValueError, match=r"Start\.params"):
        joined(some)
    alike = [Stage("train", torch.tensor([i]), 1) for i in range(2)]
    assert joined(pickle.loads(pickle.dumps(alike))).clients.tolist() == [0, 1]


def test_an_example_with_a_mask_of_ones_own() -> None:
    @all_marked
    @dataclass(frozen=True)
    class Answer(OfClients):
        mask: Tensor = field(metadata=MASKS)
        name: str = field(default="", metadata=FOR_ALL)

    assert Answer(torch.eye(2), "ab").select(torch.tensor([1])).mask.tolist() == [[0.0, 1.0]]
