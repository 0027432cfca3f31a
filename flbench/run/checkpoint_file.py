"""The file of a checkpoint: safetensors with a digest over all of its bytes, in two generations.

The digest is written into the header, where its own 64 digits count as zeros. A new file takes the
place of the last one, which is kept as the generation before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from io import BufferedRandom, BufferedReader
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flbench.errors import UserError
from flbench.results.files import atomic_write

FORMAT = "5"
"""Version of the format, raised whenever a checkpoint can no longer be read as before."""
CONTENT = "flbench"
"""Key of the header that holds everything but tensors, as JSON."""
UNSEALED = "0" * 64
SEAL = re.compile(rb'"digest":"([0-9a-f]{64})"')
"""The digest in the header; within JSON texts the quotes would be escaped."""


class Damaged(UserError):
    """A checkpoint that is not as it was written."""


def previous(path: Path) -> Path:
    """Where the generation before the newest is kept.

    Example:
        >>> previous(Path("seed-0.checkpoint.safetensors")).name
        'seed-0.checkpoint.previous.safetensors'
    """
    return path.with_suffix(f".previous{path.suffix}")


def generations(path: Path) -> list[Path]:
    """The files of a checkpoint that are there, the newest first."""
    return [file for file in (path, previous(path)) if file.is_file()]


def discard(path: Path) -> None:
    """Remove a checkpoint, the generation before first: the newest is whole to the end."""
    for file in (previous(path), path):
        file.unlink(missing_ok=True)


def write_file(path: Path, tensors: Mapping[str, Tensor], content: str) -> None:
    """Write a checkpoint; what was there becomes the generation before."""
    header = {"format": FORMAT, "digest": UNSEALED, CONTENT: content}

    def fill(temporary: Path) -> None:
        save_file(dict(tensors), temporary, metadata=header)
        seal(temporary)

    atomic_write(path, fill, former=previous(path))


def seal(path: Path) -> None:
    """Write the digest of a file into its header."""
    with path.open("r+b") as file:
        _, at, digest = _digests(file)
        file.seek(at)
        file.write(digest)


def read_content(path: Path) -> str:
    """What a checkpoint holds beside tensors; its digest and format are checked first.

    Raises:
        Damaged: it is not as it was written, or is no checkpoint.
        UserError: it is of another format.
    """
    try:
        with path.open("rb") as file:
            stated, _, digest = _digests(file)
    except ValueError as error:  # no digest: of an older format, or no checkpoint
        found = _format(path)
        if found in (None, FORMAT):
            raise Damaged(f"{path}: damaged checkpoint ({error})") from None
        raise _other_format(path, found) from None
    if stated != digest:
        raise Damaged(f"{path}: damaged checkpoint (its digest does not fit its bytes)")
    if (found := _format(path)) != FORMAT:
        raise _other_format(path, found)
    with safe_open(path, framework="pt") as opened:
        content: str = opened.metadata()[CONTENT]
    return content


def _digests(file: BufferedReader | BufferedRandom) -> tuple[bytes, int, bytes]:
    """The digest that a file states, where it stands, and that of its bytes.

    Raises:
        ValueError: there is none.
    """
    start = file.read(8)
    size = int.from_bytes(start, "little")
    rest = file.seek(0, 2) - len(start)
    if size > rest:
        raise ValueError("its end is missing")
    file.seek(8)
    header = file.read(size)
    seal = SEAL.search(header)
    if seal is None:
        raise ValueError("it has no digest")
    zeroed = header[: seal.start(1)] + UNSEALED.encode() + header[seal.end(1) :]
    begun = hashlib.sha256(start + zeroed)
    digest = hashlib.file_digest(file, lambda: begun).hexdigest()
    return seal[1], 8 + seal.start(1), digest.encode()


def _format(path: Path) -> str | None:
    """The format that a checkpoint states, "none" in the oldest; None = it is no checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError):
        return None
    return header.get("format", "none") if CONTENT in header else None


def _other_format(path: Path, found: str | None) -> UserError:
    return UserError(
        f"{path}: expected checkpoint format {FORMAT}, found {found}; resume with the version of"
        " flbench that wrote it"
    )
