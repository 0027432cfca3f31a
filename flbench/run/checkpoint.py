"""Checkpoints: the State, the ledger and the history in one safetensors file, never pickled.

A checkpoint is written under a temporary name and then moved into place, so the file always holds a
whole round. It is written when writing takes at most a fiftieth of the time since the last one, and
when an error or the user stops the run. Only a killed process loses whole rounds: at most fifty
times the duration of writing, or ten minutes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flbench.core.model_bank import ModelBank, RowStore
from flbench.core.state import Membership, State
from flbench.engine.communication import CommunicationLedger
from flbench.errors import MachineError, UserError
from flbench.results.files import atomic_write
from flbench.results.schema import Fingerprint
from flbench.run.history import History

FORMAT = "2"
"""Version of the format, raised whenever a checkpoint can no longer be read as before."""
SHARE = 50
"""It is written when this many times its writing's duration have passed, ..."""
LONGEST = 600.0
"""... or so many seconds."""


class Packed(NamedTuple):
    """A whole round as it will be written: tables by name, and everything else as plain data."""

    tables: dict[str, Tensor]
    plain: dict[str, Any]


class CheckpointWriter:
    """Keeps the last whole round of a run at `path`; None = nowhere.

    A run that goes on from it must agree with `marks`. What cannot be written is no error: `warn`
    is told once, and the run goes on.
    """

    def __init__(
        self,
        path: Path | None,
        marks: Fingerprint,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.path = path
        self.marks = marks
        self._warn: Callable[[str], None] | None = warn
        self._pending: Packed | None = None
        self._written = -float("inf")
        self._took = 0.0

    def keep(self, state: State, ledger: CommunicationLedger, history: History) -> None:
        """Write a whole round, now or when it is due."""
        if self.path is None:
            return
        self._pending = pack(state, ledger, history, self.marks)
        waited = time.monotonic() - self._written
        if waited >= min(SHARE * self._took, LONGEST):
            self.flush()

    def flush(self) -> None:
        """Write the last whole round, if it is not written yet."""
        if self.path is None or self._pending is None:
            return
        began = time.monotonic()
        try:
            write(self.path, self._pending)
        except MachineError as error:
            if self._warn is not None:
                self._warn(f"{error}; the run goes on, but could not be resumed")
            self._warn = None
        self._pending, self._written = None, time.monotonic()
        self._took = self._written - began

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Write the last whole round also if the block ends with an error."""
        try:
            yield
        except BaseException:
            self.flush()
            raise


def pack(state: State, ledger: CommunicationLedger, history: History, marks: Fingerprint) -> Packed:
    """Everything the next round needs; nothing but what the round to come changes is copied."""
    tables = {"models": state.models, "home": state.membership.home}
    if state.membership.weights is not None:
        tables["weights"] = state.membership.weights
    tables |= {f"memory/{name}": tensor for name, tensor in state.memory.items()}
    tables |= {f"bits/{name}": moved.clone() for name, moved in ledger.client_bits.items()}
    if history.scores is not None:
        tables["scores"] = history.scores.values
    plain = {
        "round": state.round,
        "seconds": state.seconds,
        "scopes": dict(state.scopes),
        "bits": {way: dict(items) for way, items in ledger.bits.items()},
        "history": history.copy().plain(),
        "fingerprint": marks.model_dump(),
    }
    return Packed(tables, plain)


def write(path: Path, packed: Packed) -> None:
    """Write a checkpoint."""
    tensors: dict[str, Tensor] = {}
    for name, table in packed.tables.items():
        if isinstance(table, ModelBank):
            tensors |= {f"{name}#{part}": tensor for part, tensor in table.pack().items()}
        else:
            tensors[name] = table.detach()
    owned = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    seen: set[int] = set()
    for name, tensor in owned.items():  # a file holds no two names of one memory
        if tensor.untyped_storage().data_ptr() in seen:
            owned[name] = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
    metadata = {"format": FORMAT, "flbench": json.dumps(packed.plain)}
    atomic_write(path, lambda temporary: save_file(owned, temporary, metadata=metadata))


def load_checkpoint(
    path: Path, store: RowStore, marks: Fingerprint
) -> tuple[State, CommunicationLedger, History]:
    """Read a checkpoint; models and memory go to the store, row by row where they are banks.

    Raises:
        UserError: the file is no checkpoint, or one of another format or of another run.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            found = metadata.get("format", "none")
            if "flbench" in metadata and found != FORMAT:
                raise UserError(
                    f"{path}: expected checkpoint format {FORMAT}, found {found}; delete the file"
                    " to start over, or resume with the version of flbench that wrote it"
                )
            plain = json.loads(metadata["flbench"])
            for name, value in marks.model_dump().items():
                if plain["fingerprint"].get(name) != value:
                    problem = f"its {name} is not this run's"
                    raise UserError(f"{path}: {problem}; delete it to start over")
            tables = _tables(list(file.keys()), file.get_tensor, store)
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no checkpoint ({error}); delete it to start over") from None
    prefixed = {
        prefix: {n.removeprefix(prefix): t for n, t in tables.items() if n.startswith(prefix)}
        for prefix in ("memory/", "bits/")
    }
    state = State(
        round=plain["round"],
        models=tables["models"],
        membership=Membership(tables["home"], tables.get("weights")),
        memory=prefixed["memory/"],
        scopes=plain["scopes"],
        seconds=plain["seconds"],
    )
    ledger = CommunicationLedger(len(state.membership.home), plain["bits"], prefixed["bits/"])
    return state, ledger, History.of(plain["history"], tables.get("scores"))


def _part(read: Callable[[str], Tensor], table: str, part: str) -> Tensor:
    return read(f"{table}#{part}")


def _tables(
    names: Sequence[str], read: Callable[[str], Tensor], store: RowStore
) -> dict[str, Tensor]:
    """All tables; models and memory on the device, banks put together."""
    tables = {}
    for name in names:
        table, bank, part = name.rpartition("#")
        if not bank:
            there = name.startswith(("models", "memory/"))
            tables[name] = read(name).to(store.device) if there else read(name)
        elif part == "index":
            parts = {other.rpartition("#")[2] for other in names if other.startswith(f"{table}#")}
            tables[table] = ModelBank.unpack(parts, partial(_part, read, table), store)
    return tables
