"""Checkpoints: the State, the ledger and the history in one safetensors file, never pickled.

A checkpoint is written under a temporary name and then moved into place, so the file always holds a
whole round. It is written when rounds have taken a second since the last one, and a hundred times
as long as writing it; and when an error or the user stops the run. Only a killed process loses
whole rounds: of that time, or of ten minutes at most. While sinks work, no rounds are lost, so
their time does not count. `checkpoint_file.py` says what keeps it from damage.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

from safetensors import SafetensorError, safe_open
from torch import Tensor

from flbench.core.bank_budget import RowStore
from flbench.core.model_bank import ModelBank, all_finite
from flbench.core.state import Membership, State
from flbench.core.types import Scope
from flbench.engine.ledger import CommunicationLedger
from flbench.errors import MachineError, PluginError, UserError, in_one_line
from flbench.plugin.arguments import Marks
from flbench.plugin.validation import Expect
from flbench.results.schema import Fingerprint
from flbench.run import core_digest
from flbench.run.checkpoint_file import Damaged, discard, generations, read_content, write_file
from flbench.run.history import History
from flbench.run.own_models import OwnModels

LONGEST = 600.0
"""It is written at the latest when so many seconds have passed."""
SCOPES = frozenset(get_args(Scope))
UNFIT = (
    AssertionError, AttributeError, LookupError, TypeError, ValueError,
    PluginError, SafetensorError,
)  # fmt: skip
"""What reading a file raises that holds something else than a run."""
OPTIONS = {"threads": "--threads", "compile": "--compile"}
"""Key of an environment -> the option by which a person sets it."""


@dataclass(frozen=True)
class Origin:
    """Which run a checkpoint is of, and what computes it.

    Attributes:
        sources: of each plugin a hash of its source files; what is not known is "".
        device: type of the device that computes it.
        environment: what else decides its bits, by the keys of a result's environment.
        core_parts: part of the core -> its digest (`core_digest.py`), to name what has changed.
    """

    method: str
    seed: int
    marks: Fingerprint
    sources: Mapping[str, str]
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    core_parts: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON-plain data."""
        plain = {name: dict(one) for name, one in vars(self).items() if isinstance(one, Mapping)}
        return {**vars(self), "marks": self.marks.model_dump(), **plain}


class Resumed(NamedTuple):
    """A run as its checkpoint has it, what a person should know of it, and the file it was in."""

    state: State
    ledger: CommunicationLedger
    history: History
    messages: list[str]
    file: Path


class Packed(NamedTuple):
    """A whole round as it will be written: tables by name, and everything else as plain data.

    The tables are no copies; `marks` tell whether a plugin has written to one of them since.
    """

    tables: dict[str, Tensor]
    plain: dict[str, Any]
    marks: Marks


class CheckpointWriter:
    """Keeps the last whole round of a run at `path`; None = nowhere.

    What cannot be written is no error: `warn` is called once, and the run goes on. `last` is a
    round that stays in a file of its own when the run has ended (`continued.py`), and that file.
    """

    def __init__(
        self,
        path: Path | None,
        origin: Origin,
        warn: Callable[[str], None] = lambda message: None,
        last: tuple[int, Path] | None = None,
    ) -> None:
        self.path = path
        self.origin = origin
        self.last = last
        self._warn: Callable[[str], None] | None = warn
        self._pending: Packed | None = None
        self._spent = 0.0  # seconds of all rounds
        self._due = self._latest = -float("inf")  # seconds of rounds, and time of day

    def keep(self, state: State, ledger: CommunicationLedger, history: History) -> None:
        """Write a whole round, now or when it is due."""
        if self.path is None:
            return
        self._pending = pack(state, ledger, history, self.origin)
        self._spent = history.seconds.get("total", 0.0)
        if self._spent >= self._due or time.monotonic() >= self._latest:
            self.flush()

    def keep_last(self, state: State, ledger: CommunicationLedger, history: History) -> None:
        """Write the round that stays when the run has ended, if this is it."""
        if self.last is None or state.round != self.last[0]:
            return
        file = self.last[1]
        discard(file)  # of an earlier run
        try:
            write(file, pack(state, ledger, history, self.origin))
        except MachineError as error:
            if self._warn is not None:
                self._warn(f"{error}; no more rounds could follow this run")

    def flush(self) -> None:
        """Write the last whole round, if it is not written yet and is still what it was."""
        if self.path is None or self._pending is None:
            return
        if self._pending.marks.written():  # the error that ends the run says who wrote to it
            self._pending = None
            return
        began = time.monotonic()
        try:
            write(self.path, self._pending)
        except MachineError as error:
            if self._warn is not None:
                self._warn(f"{error}; the run goes on, but could not be resumed")
            self._warn = None
        ended = time.monotonic()
        self._pending, self._latest = None, ended + LONGEST
        writing = ended - began  # is added to `total`
        self._due = self._spent + writing + pause(writing)

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Write the last whole round also if the block ends with an error."""
        try:
            yield
        except BaseException:
            self.flush()
            raise


def pause(writing: float) -> float:
    """Seconds of rounds between a checkpoint that took `writing` seconds and the next one."""
    return max(1.0, 100 * writing)


def pack(state: State, ledger: CommunicationLedger, history: History, origin: Origin) -> Packed:
    """Everything the next round needs; nothing but what the round to come changes is copied."""
    tables = {"models": state.models, "home": state.membership.home}
    if state.membership.weights is not None:
        tables["weights"] = state.membership.weights
    tables |= {f"memory/{name}": tensor for name, tensor in state.memory.items()}
    tables |= {f"bits/{name}": moved.clone() for name, moved in ledger.client_bits.items()}
    if history.scores is not None:
        tables["scores"] = history.scores.values
    if history.own is not None:
        tables |= {"own/rows": history.own.rows, "own/trained": history.own.trained}
    plain = {
        "round": state.round,
        "seconds": state.seconds,
        "scopes": dict(state.scopes),
        "bits": {way: dict(items) for way, items in ledger.bits.items()},
        "history": history.copy().plain(),
        "origin": origin.plain(),
    }
    return Packed(tables, plain, Marks(tables))


def write(path: Path, packed: Packed) -> None:
    """Write a checkpoint, which says of each tensor where it is: memory may be on the host."""
    tensors: dict[str, Tensor] = {}
    for name, table in packed.tables.items():
        if isinstance(table, ModelBank):
            tensors |= {f"{name}#{part}": tensor for part, tensor in table.pack().items()}
        else:
            tensors[name] = table.detach()
    on_device = [name for name, tensor in tensors.items() if tensor.device.type != "cpu"]
    owned = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in owned.items():  # a file holds no two names of one memory
        if tensor.untyped_storage().data_ptr() in seen:
            owned[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    content = {
        **packed.plain,
        "on_device": on_device,
        "kinds": {name: kind(tensor) for name, tensor in owned.items()},
    }
    write_file(path, owned, json.dumps(content))


def kind(tensor: Tensor) -> list[Any]:
    """Type and shape of a tensor, as plain data."""
    return [str(tensor.dtype), *tensor.shape]


def expect_state(state: State, ledger: CommunicationLedger, width: int, clients: int) -> None:
    """Refuse a state that is of no run of so many clients, with models of so many scalars.

    Raises:
        PluginError: a table has another shape or type than its name, or the scope of a memory, say.
        ValueError: a memory has no scope, or none that there is.
    """
    expect, rows = Expect("it", None), len(state.models)
    expect.rows(state.models, (None, width), "one row per model")
    expect.membership(state.membership, rows, clients)
    if state.scopes.keys() != state.memory.keys() or not {*state.scopes.values()} <= SCOPES:
        raise ValueError(f"scopes {dict(state.scopes)} of memories {sorted(state.memory)}")
    expect.memory(state.memory, state, rows, clients)
    for moved in ledger.client_bits.values():
        expect.indices(moved, (clients,), "the bits of each client")


def load_checkpoint(
    path: Path,
    store: RowStore,
    origin: Origin,
    *,
    changed_source: bool = False,
    expect: Callable[[State, CommunicationLedger], None] = lambda state, ledger: None,
) -> Resumed:
    """Read the newest generation that is whole; banks go to the store row by row.

    Args:
        expect: refuses what does not fit the run (`expect_state`).
        changed_source: go on although what computes has changed; the history says so.

    Raises:
        Damaged: no generation is whole.
        UserError: it is of another format, of another run, or was computed otherwise.
    """
    messages: list[str] = []
    begin_anew = f"; to start over, delete {' and '.join(map(str, generations(path)))}"
    for file in generations(path):
        try:
            found = _load(file, store, origin, changed_source, expect)
        except Damaged as error:
            messages.append(str(error))
            continue
        except UserError as error:
            raise UserError(f"{error}{begin_anew}") from None
        where = f"; goes on from {file.name}, round {found.state.round}"
        spoken = [f"{message}{where}" for message in messages]
        if file != path and not messages:
            spoken = [f"{path}: is not there{where}"]
        return found._replace(messages=[*spoken, *found.messages])
    raise Damaged(f"{'; '.join(messages)}{begin_anew}")


def _load(
    file: Path,
    store: RowStore,
    origin: Origin,
    changed_source: bool,
    expect: Callable[[State, CommunicationLedger], None],
) -> Resumed:
    """Read one generation."""
    content = read_content(file)
    try:
        plain = json.loads(content)
        _refuse_another_run(file, plain["origin"], origin)
        changes = _changes(file, plain["origin"], origin, changed_source)
        with safe_open(file, framework="pt") as opened:
            names, on_device = list(opened.keys()), set(plain["on_device"])
            if not on_device <= set(names) or plain["kinds"].keys() != set(names):
                raise ValueError("it lacks a tensor, or has one too many")

            def read(name: str) -> Tensor:
                """A copy: what lies at odd places, as in a file, may give other bits."""
                tensor: Tensor = opened.get_tensor(name)
                if (found := kind(tensor)) != (expected := plain["kinds"][name]):
                    raise ValueError(f"{name}: expected {expected}, found {found}")
                return tensor.to(store.device if name in on_device else "cpu", copy=True)

            tables = _tables(names, read, store)
        found = Resumed(*_unpacked(plain, tables), [], file)
        if not all_finite(found.state.models):
            raise ValueError("a model is not finite")
        expect(found.state, found.ledger)
    except UNFIT as error:  # a digest that fits, of something else
        raise Damaged(f"{file}: no checkpoint of a run ({in_one_line(error)})") from None
    for name, before, after in changes:
        change = {"round": found.state.round, "plugin": name, "before": before, "after": after}
        found.history.source_changes.append(change)
        text = f"goes on with another {name} ({before} before, {after} now)"
        found.messages.append(
            f"{text} from round {found.state.round + 1} on; the result says so and can never be"
            " `reproduced`"
        )
    return found


def _refuse_another_run(file: Path, found: Mapping[str, Any], origin: Origin) -> None:
    """Refuse the checkpoint of another run, naming the first thing in which it differs."""
    pairs: dict[str, tuple[object, object]] = {
        "suite or other settings of it": (found["marks"]["suite"], origin.marks.suite),
        "method": (found["method"], origin.method),
        "seed": (found["seed"], origin.seed),
        "configuration": (found["marks"]["config"], origin.marks.config),
        "device": (found["device"], origin.device),
    }
    for name in ("data", "partition", "initial_weights", "cohorts"):
        pairs[name.replace("_", " ")] = found["marks"][name], getattr(origin.marks, name)
    for what, (came, expected) in pairs.items():
        if came != expected:
            other = f"a checkpoint of another {what}: expected {expected}, found {came}"
            raise UserError(f"{file}: {other}")


def _changes(
    file: Path, found: Mapping[str, Any], origin: Origin, consented: bool
) -> list[tuple[str, str, str]]:
    """What of code, libraries and options has changed: name, before, after.

    Raises:
        UserError: something has, without consent.
    """
    changes = []
    for kind in ("sources", "environment"):
        before, after = found[kind], getattr(origin, kind)
        names = sorted(before.keys() | after.keys())
        # A metric that is asked for from now on, or no longer, changes nothing that was measured.
        both = before.keys() & after.keys()
        names = [name for name in names if name in both or not name.startswith("metric ")]
        pairs = [(name, before.get(name, ""), after.get(name, "")) for name in names]
        changes += [one for one in pairs if one[1] != one[2] or core_digest.UNKNOWN in one]
    if changes and not consented:
        listed = ", ".join(
            f"{OPTIONS.get(name, name)} ({old} then, {new} now)" for name, old, new in changes
        )
        old, new = found["core_parts"], origin.core_parts
        parts = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        of_core = f" (core: {', '.join(parts)})" if parts else ""
        raise UserError(
            f"{file}: what computes has changed since: {listed}{of_core}; restore it, or mix both"
            " with --resume --changed-source, which the result will say"
        )
    return changes


def _unpacked(
    plain: dict[str, Any], tables: Mapping[str, Tensor]
) -> tuple[State, CommunicationLedger, History]:
    """What `pack` packed."""
    prefixed = {
        prefix: {n.removeprefix(prefix): t for n, t in tables.items() if n.startswith(prefix)}
        for prefix in ("memory/", "bits/")
    }
    state = State(
        round=int(plain["round"]),
        models=tables["models"],
        membership=Membership(tables["home"], tables.get("weights")),
        memory=prefixed["memory/"],
        scopes=plain["scopes"],
        seconds=plain["seconds"],
    )
    ledger = CommunicationLedger(len(state.membership.home), plain["bits"], prefixed["bits/"])
    return state, ledger, History.of(plain["history"], tables.get("scores"), _own(tables, state))


def _own(tables: Mapping[str, Tensor], state: State) -> OwnModels | None:
    """The clients' own models, if the file has them.

    Raises:
        ValueError: they are not those of the clients of the state.
    """
    if "own/rows" not in tables:
        return None
    rows, trained = tables["own/rows"], tables["own/trained"]
    clients, width = len(state.membership.home), state.models.shape[1]
    found = [*rows.shape], kind(trained)
    if not isinstance(rows, ModelBank) or found != ([clients, width], ["torch.bool", clients]):
        raise ValueError(f"own models: {found}, of {clients} clients")
    return OwnModels(rows, trained)


def _part(read: Callable[[str], Tensor], table: str, part: str) -> Tensor:
    return read(f"{table}#{part}")


def _tables(
    names: Sequence[str], read: Callable[[str], Tensor], store: RowStore
) -> dict[str, Tensor]:
    """All tables, banks put together."""
    tables = {}
    for name in names:
        table, bank, part = name.rpartition("#")
        if not bank:
            tables[name] = read(name)
        elif part == "index":
            parts = {other.rpartition("#")[2] for other in names if other.startswith(f"{table}#")}
            tables[table] = ModelBank.unpack(parts, partial(_part, read, table), store)
    return tables
