"""Ways to damage a checkpoint, and what the refusal must say of each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from flbench.run.checkpoint_file import CONTENT, seal

Damage = Callable[[Path, Random], None]


def bit_anywhere(path: Path, rng: Random) -> None:
    """Flip one bit."""
    _flip(path, rng.randrange(8 * path.stat().st_size))


def bit_in_header(path: Path, rng: Random) -> None:
    """Flip one bit of the header or of its length."""
    size = int.from_bytes(path.read_bytes()[:8], "little")
    _flip(path, rng.randrange(8 * (8 + size)))


def bit_in_digest(path: Path, rng: Random) -> None:
    """Flip one bit of the digest, or of its name."""
    at = path.read_bytes().index(b'"digest":"')
    _flip(path, 8 * at + rng.randrange(8 * (64 + 11)))


def some_bits(path: Path, rng: Random) -> None:
    """Flip two to twenty bits."""
    for place in rng.sample(range(8 * path.stat().st_size), rng.randint(2, 20)):
        _flip(path, place)


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place // 8] ^= 1 << place % 8
    path.write_bytes(data)


def truncated(path: Path, rng: Random) -> None:
    """Cut the end off."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def zeroed_tail(path: Path, rng: Random) -> None:
    """Zero the end, as file systems do that had no time to write it."""
    data = path.read_bytes()
    kept = rng.randrange(len(data) - 1)
    path.write_bytes(data[:kept] + bytes(len(data) - kept))


def zeroed_sector(path: Path, rng: Random) -> None:
    """Zero 512 bytes."""
    data = bytearray(path.read_bytes())
    at = 512 * rng.randrange((len(data) + 511) // 512)
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)


def sectors_exchanged(path: Path, rng: Random) -> None:
    """Exchange two pieces of 512 bytes."""
    data = bytearray(path.read_bytes())
    one, other = (512 * place for place in rng.sample(range(len(data) // 512), 2))
    data[one : one + 512], data[other : other + 512] = (
        data[other : other + 512], data[one : one + 512],
    )  # fmt: skip
    path.write_bytes(data)


def bytes_appended(path: Path, rng: Random) -> None:
    """Append something."""
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 100)))


def bytes_inserted(path: Path, rng: Random) -> None:
    """Insert something, so that all that follows is moved."""
    data = path.read_bytes()
    at = rng.randrange(len(data))
    path.write_bytes(data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at:])


def noise(path: Path, rng: Random) -> None:
    """Random bytes in its place."""
    path.write_bytes(rng.randbytes(rng.randint(0, 2000)))


def a_result(path: Path, rng: Random) -> None:
    """A file of JSON in its place."""
    path.write_text(json.dumps({"schema_version": 2, "seed": rng.randint(0, 9)}))


def not_finite(path: Path, rng: Random) -> None:
    """NaN or infinity in a table, without a new digest."""
    _rewritten(path, rng, table="", sealed=False)


def not_finite_sealed(path: Path, rng: Random) -> None:
    """NaN or infinity in a model, with a new digest."""
    _rewritten(path, rng, table="models", sealed=True)


def _rewritten(path: Path, rng: Random, table: str, *, sealed: bool) -> None:
    tensors, header = _read(path)
    names = [n for n, t in tensors.items() if t.is_floating_point() and t.numel()]
    chosen = tensors[rng.choice([n for n in names if n.startswith(table)] or names)]
    chosen.view(-1)[rng.randrange(chosen.numel())] = rng.choice([torch.nan, torch.inf])
    save_file(tensors, path, metadata=header)
    if sealed:
        seal(path)


def altered_content(path: Path, rng: Random) -> None:
    """Another round, seed or curve, without a new digest."""
    tensors, header = _read(path)
    content: dict[str, Any] = json.loads(header[CONTENT])
    choices: list[Callable[[], object]] = [
        lambda: content.update(round=content["round"] + rng.choice([-1, 1, 10**9])),
        lambda: content.update(seconds=rng.choice([-1.0, 1e300, None])),
        lambda: content["origin"].update(seed=rng.randint(1, 99)),
        lambda: content["history"]["curves"].pop("accuracy"),
        lambda: content["history"]["curves"]["accuracy"].append(0.5),
        lambda: content.pop(rng.choice(sorted(content))),
    ]
    rng.choice(choices)()
    save_file(tensors, path, metadata={**header, CONTENT: json.dumps(content)})


def missing_content_sealed(path: Path, rng: Random) -> None:
    """Without a part of the content, or of a wrong type, with a new digest."""
    tensors, header = _read(path)
    content: dict[str, Any] = json.loads(header[CONTENT])
    name = rng.choice(sorted(content.keys() - {"seconds", "scopes"}))
    if rng.random() < 0.5:
        content.pop(name)
    else:
        content[name] = rng.choice([None, "text", [1]]) if name != "round" else None
    save_file(tensors, path, metadata={**header, CONTENT: json.dumps(content)})
    seal(path)


def missing_table_sealed(path: Path, rng: Random) -> None:
    """Without the models, or without who has which, with a new digest."""
    tensors, header = _read(path)
    gone = rng.choice(["models", "home"])
    kept = {name: table for name, table in tensors.items() if not name.startswith(gone)}
    save_file(kept, path, metadata=header)
    seal(path)


def other_shape_sealed(path: Path, rng: Random) -> None:
    """A table with a row, a column or a dimension more or less, or of another type, sealed."""
    tensors, header = _read(path)
    name = rng.choice([name for name, table in tensors.items() if table.numel()])
    table = tensors[name]
    others = [table[None], table.double() if table.dtype != torch.float64 else table.float()]
    if table.dim():
        others += [table[1:], torch.cat([table, table])]
    tensors[name] = rng.choice(others)
    owned = {name: one.contiguous().clone() for name, one in tensors.items()}
    save_file(owned, path, metadata=header)
    seal(path)


def other_scope_sealed(path: Path, rng: Random) -> None:
    """A memory without a scope, with one that there is not, or a scope of no memory, sealed."""
    tensors, header = _read(path)
    content: dict[str, Any] = json.loads(header[CONTENT])
    scopes = content["scopes"]
    name = rng.choice([*scopes, "toy.none"])
    if name in scopes and rng.random() < 0.5:
        del scopes[name]
    else:
        scopes[name] = "server"
    save_file(tensors, path, metadata={**header, CONTENT: json.dumps(content)})
    seal(path)


def older_format(path: Path, rng: Random) -> None:
    """A whole checkpoint of an older or a newer version."""
    tensors, header = _read(path)
    header["format"] = rng.choice(["1", "2", "3", "4", "6", "33"])
    if header["format"] in "12":
        del header["digest"]
    save_file(tensors, path, metadata=header)
    if "digest" in header:
        seal(path)


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118


DAMAGED = re.compile(r"damaged checkpoint \(|no checkpoint of a run \(")
OTHER_FORMAT = re.compile(r"expected checkpoint format \d+, found \d+")

DAMAGES: dict[str, tuple[Damage, re.Pattern[str]]] = {
    one.__name__.replace("_", " "): (one, OTHER_FORMAT if one is older_format else DAMAGED)
    for one in (
        bit_anywhere, bit_in_header, bit_in_digest, some_bits, truncated, zeroed_tail,
        zeroed_sector, sectors_exchanged, bytes_appended, bytes_inserted, noise, a_result,
        not_finite, not_finite_sealed, altered_content, missing_content_sealed,
        missing_table_sealed, other_shape_sealed, other_scope_sealed, older_format,
    )
}  # fmt: skip
"""Name -> what it does to a file, and what the refusal says of it."""
