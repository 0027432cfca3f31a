"""Numbers that a client has and did not send: with others in their place, nobody else may notice.

They are the scalars of its upload that do not cross (outside `returned_mask`, and candidates that
it does not keep), what it keeps itself (`Report.kept`, the memory of a coder), and of a row that
it alone trained the scalars that depend on these. A hook is asked again with other numbers in
their place; of its answer only what is the client's own may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from flbench.core import client_memory
from flbench.core.state import (
    Dispatched,
    Membership,
    Models,
    Personal,
    Scores,
    Setup,
    Stage,
    State,
    Upload,
)
from flbench.core.types import Extras
from flbench.plugin.arguments import tensors
from flbench.testing.hook_recorder import same_bits

Shake = Callable[[Tensor], Tensor]


def larger(tensor: Tensor) -> Tensor:
    """Other numbers in the same order, shape as given; NaN and infinite numbers stay."""
    if tensor.dtype == torch.bool:
        return ~tensor
    if not tensor.is_floating_point():
        return tensor + 1
    return torch.where(tensor.isfinite(), 1.5 * tensor + 0.25, tensor)


def turned(tensor: Tensor) -> Tensor:
    """Other numbers in the opposite order, shape as given; NaN and infinite numbers stay."""
    if not tensor.is_floating_point():
        return larger(tensor)
    return torch.where(tensor.isfinite(), -0.5 * tensor - 0.25, tensor)


@dataclass(eq=False)
class Shadow:
    """What each client has and did not send, with other numbers in its place.

    Attributes:
        shake: gives the other numbers.
        entries: client -> name of a memory -> the place of its entry, and that entry: its own id
            in one of scope "client", its own row in one of scope "model".
        rows: client -> row of the bank -> that row, shape (W,).
        scores: client -> the scores that it gives, as the last call of `score` had them.
        unsent: client -> scalars of its upload that did not cross, shape (c, W), bool.
    """

    shake: Shake
    entries: dict[int, dict[str, tuple[int, Tensor]]] = field(default_factory=dict)
    rows: dict[int, dict[int, Tensor]] = field(default_factory=dict)
    scores: dict[int, Tensor] = field(default_factory=dict)
    unsent: dict[int, Tensor] = field(default_factory=dict)

    def holders(self, *given: object) -> set[int]:
        """Clients that have something unsent in what is given to a hook."""
        tables: dict[type, list[Mapping[int, Any]]] = {
            State: [self.entries, self.rows],
            Upload: [self.unsent],
            Scores: [self.scores],
        }
        found = [table for one in given for table in tables.get(type(one), [])]
        return {client for table in found for client, held in table.items() if len(held)}

    def of(self, value: Any, clients: set[int]) -> Any:  # noqa: ANN401 - as it is given
        """What is given to a hook, with other numbers of some clients."""
        match value:
            case State():
                return self._state(value, clients)
            case Upload():
                return self._upload(value, clients)
            case Scores():
                values = value.values.clone()
                for client in clients & self.scores.keys():
                    values[value.row_ids == client] = self.scores[client]
                return replace(value, values=values)
        return value

    def _state(self, state: State, clients: set[int]) -> State:
        memory = dict(state.memory)
        for client in clients:
            for name, (place, entry) in self.entries.get(client, {}).items():
                table = memory[name]
                if table.ndim == entry.ndim + 1 and place < len(table):
                    memory[name] = client_memory.store(table, torch.tensor([place]), entry[None])
        rows = {k: row for c in clients for k, row in self.rows.get(c, {}).items()}
        models = state.models.clone() if rows else state.models
        for k, row in rows.items():
            if k < len(models):
                models[k] = row
        return replace(state, models=models, memory=memory)

    def _upload(self, upload: Upload, clients: set[int]) -> Upload:
        params = upload.params.clone()
        for index, client in enumerate(upload.ids.tolist()):
            if client in clients and client in self.unsent:
                other = self.shake(params[index])
                params[index] = torch.where(self.unsent[client], other, params[index])
        return replace(upload, params=params)

    def kept(self, before: State, after: State, acting: Tensor, sent: Mapping[int, Tensor]) -> None:
        """Find what acting clients, ids of shape (n,), have put into their own memories.

        Args:
            before: the state when the stage began, `after` the same with what they keep.
            sent: client -> all numbers that it sent: these may be known of what it keeps.
        """
        for name, scope in after.scopes.items():
            old, new = before.memory.get(name), after.memory[name]
            if scope != "client" or old is None or old is new:
                continue
            for client in acting.tolist():
                entry = new[client]
                if old.shape == new.shape and same_bits(old[client], entry):
                    continue
                other = self.shake(entry)
                if client in sent and entry.is_floating_point():
                    other = torch.where(torch.isin(entry, sent[client].to(entry)), entry, other)
                self.entries.setdefault(client, {})[name] = (client, other)
                if same_bits(entry, other):
                    del self.entries[client][name]

    def trained(self, upload: Upload, start: Dispatched, state: State) -> None:
        """Find the scalars of uploads that did not cross: others than they were, or own before."""
        self.unsent.clear()
        for index, client in enumerate(upload.ids.tolist()):
            own = torch.zeros_like(start.returned_mask[index])
            for k, row in self.rows.get(client, {}).items():
                own |= row != state.models[k]
            moved = (upload.params[index] != start.params[index]) | own
            known = start.returned_mask[index] | start.at_server[index]
            stays = (~known).expand_as(moved).clone()
            if upload.rows is None:
                stays |= (torch.arange(len(moved)) != upload.chosen[index])[:, None]
            if bool((moved & stays).any()):
                self.unsent[client] = moved & stays

    def forget(self, client: int) -> None:
        """What a client has is known: it was sent beside the upload."""
        for table in (self.entries, self.rows, self.scores, self.unsent):
            table.pop(client, None)

    def learn(self, client: int, plain: object, other: object, state: State) -> None:
        """Go on with what a hook made of a client's own numbers: `plain`, or `other` of `state`."""
        if isinstance(plain, Scores) and isinstance(other, Scores):
            own = plain.row_ids == client
            if bool(own.any()) and other.values.shape == plain.values.shape:
                self.scores[client] = other.values[own]
        if isinstance(plain, (Scores, Membership, Models)) and type(other) is type(plain):
            entries = self.entries.setdefault(client, {})
            for name, table in plain.memory.items():
                entries.pop(name, None)
                place = own_entry(state.scopes.get(name), client, _home(plain, state))
                if place >= 0 and not same_bits(table[place], other.memory[name][place]):
                    entries[name] = (place, other.memory[name][place])
        held = self.rows.get(client, {})
        if isinstance(plain, Membership) and plain.parent is not None:
            parents = plain.parent.tolist()
            held = {k: held[parent] for k, parent in enumerate(parents) if parent in held}
        banks = _bank(plain), _bank(other)
        if banks[0] is not None and banks[1] is not None and len(banks[0]) == len(banks[1]):
            passed = {k for k, row in held.items() if k < len(banks[1]) and _is(banks[1][k], row)}
            own_rows = {own_row(_home(plain, state), client), *passed} - {-1}
            held = {k: banks[1][k] for k in own_rows if not _is(banks[0][k], banks[1][k])}
        self.rows[client] = held

    def passes_on(self, client: int, plain: object, other: object) -> object:
        """The other answer; rows of the client that nobody used are as in the plain one."""
        if not isinstance(plain, Models) or not isinstance(other, Models):
            return other
        held = self.rows.get(client, {})
        kept = [k for k, row in held.items() if k < len(other.rows) and _is(other.rows[k], row)]
        if not kept or other.rows.shape != plain.rows.shape:
            return other
        rows = torch.as_tensor(other.rows).clone()
        rows[kept] = torch.stack([torch.as_tensor(plain.rows[k]) for k in kept])
        return replace(other, rows=rows)


def numbers_sent(upload: Upload, start: Dispatched) -> dict[int, Tensor]:
    """All numbers that each client sent, models as they are and as updates: client -> (m,)."""
    found = {}
    for index, client in enumerate(upload.ids.tolist()):
        mask, params = start.returned_mask[index] | start.at_server[index], upload.params[index]
        extras = [table[index].reshape(-1).float() for table in upload.extras.values()]
        models = [one[:, mask].reshape(-1) for one in (params, params - start.params[index])]
        found[client] = torch.cat([*models, *extras])
    return found


def _home(answer: object, state: State) -> Membership:
    """Which row serves whom after an answer."""
    return answer if isinstance(answer, Membership) else state.membership


def _bank(answer: object) -> Tensor | None:
    if isinstance(answer, Models):
        return answer.rows
    return answer.models if isinstance(answer, Membership) else None


def _is(one: Tensor, other: Tensor) -> bool:
    return same_bits(torch.as_tensor(one), torch.as_tensor(other))


def seen_by_others(answer: object, client: int, given: Sequence[object]) -> object:
    """What others than one client know of the answer of a hook to what it was given.

    Its own are what it starts from, but for what lives at the server, and what it is served, the
    scores that it gives, its entries of memory, a model that nobody shares with it, and the choice
    of its model where `weights` do not change with it, as the server then treats its upload as
    before.
    """
    match answer:
        case Dispatched():
            stage = given[1]
            assert isinstance(stage, Stage)
            at_server = torch.where(answer.at_server[:, None], answer.params, 0.0)
            return [_plain(answer.select(_others(stage.clients, client))), at_server]
        case Personal():
            state, clients = given
            assert isinstance(state, State) and isinstance(clients, Tensor)
            return _served(answer.select(_others(clients, client)), state)
        case Setup():
            scopes = {name: memory.scope for name, memory in answer.memory.items()}
            tables = {name: memory.value for name, memory in answer.memory.items()}
            places = answer.membership
            own = -1 if places is None else own_row(places, client)
            return {
                "memory": _memory(tables, scopes, client, places),
                "models": None if answer.models is None else _without(answer.models, own),
                "home": places and places.home,
            }
        case Scores() | Membership() | Models():
            state = given[0]
            assert isinstance(state, State)
            kept = _memory(answer.memory, state.scopes, client, _home(answer, state))
            return [_decided(answer, client, state), kept]
    return [one for _, one in tensors(answer, "plan")]


def _decided(answer: Scores | Membership | Models, client: int, state: State) -> object:
    if isinstance(answer, Scores):
        return [answer.values[answer.row_ids != client], answer.column_ids]
    if isinstance(answer, Models):
        return _without(answer.rows, own_row(state.membership, client))
    own = own_row(answer, client)
    models = None if answer.models is None else _without(answer.models, own)
    if answer.weights is None:
        return [answer.home, answer.parent, models]
    groups = [_without(answer.home, client), _without(answer.weights, own)]
    return [*groups, answer.parent, models]


def _memory(
    tables: Extras, scopes: Mapping[str, str], client: int, home: Membership | None
) -> dict[str, Tensor]:
    """Memories without the client's own entries."""
    return {
        name: table if place < 0 else _without(table, place)
        for name, table in tables.items()
        for place in [own_entry(scopes.get(name), client, home)]
    }


def own_entry(scope: str | None, client: int, home: Membership | None) -> int:
    """The place of a client's entry in a memory: its id, or a row that it has alone; else -1."""
    if scope == "model" and home is not None:
        return own_row(home, client)
    return client if scope == "client" else -1


def _others(clients: Tensor, client: int) -> Tensor:
    """Positions of all clients but one, ids of shape (n,)."""
    return (clients != client).nonzero()[:, 0]


def _plain(answer: Dispatched | Stage | Personal) -> dict[str, object]:
    """The fields of what some clients get, without functions, which have no content to compare."""
    return {name: value for name, value in vars(answer).items() if not callable(value)}


def _served(personal: Personal, state: State) -> object:
    """What clients are tested with; in which row of the bank a model is says nothing."""
    return {
        **_plain(personal),
        "row": None,
        "params": torch.as_tensor(personal.models(state)),
        "adaptation": personal.adaptation and _plain(personal.adaptation),
        "others": {name: _served(one, state) for name, one in personal.others.items()},
    }


def same_content(one: object, other: object) -> bool:
    """Whether two answers hold the same tensors, bit for bit, and the same names and numbers."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_bits(torch.as_tensor(one), torch.as_tensor(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_content(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_content, one, other))
    return type(one) is type(other) and not isinstance(one, Tensor) and one == other


def own_row(membership: Membership, client: int) -> int:
    """The row of a client's model if nobody shares it, else -1."""
    row = int(membership.home[client])
    return row if int((membership.home == row).sum()) == 1 else -1


def _without(table: Tensor, row: int) -> Tensor:
    """All rows of a table but one."""
    return torch.as_tensor(table)[torch.arange(len(table)) != row]
