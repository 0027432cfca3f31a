"""Memory that is free: of a device, of this machine, of the container or batch job that this is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FILES = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""A control group's limit -> what of it is in use, and what of that Linux can take back."""


def half_of_free(device: torch.device | None = None) -> int:
    """Half of the bytes that are free, or of the machine's memory if it is unknown what is free.

    Args:
        device: whose memory it is; None = the machine's.
    """
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0]) // 2
    free = free_memory()
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (whole if free is None else free) // 2


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be had without swapping; None = unknown, as on other systems than Linux.

    Args:
        root: folder in which `proc` and `sys` lie.
    """
    found = [*_of_machine(root / "proc/meminfo"), *_of_groups(root)]
    return min(found, default=None)


def _of_machine(file: Path) -> Iterator[int]:
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 2**10


def _of_groups(root: Path) -> Iterator[int]:
    """What is left of the limit of each control group that this process is in."""
    groups = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            top = groups / controllers  # nothing for version 2
            folder = top / path.strip("/")
            for one in (folder, *folder.parents):
                if one.is_relative_to(top):
                    yield from _of_group(one)


def _of_group(folder: Path) -> Iterator[int]:
    for limit, (used, reclaimable) in FILES.items():
        with suppress(OSError, ValueError):  # it has other files, or no limit ("max")
            most = int((folder / limit).read_text())
            stat = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
            yield most - int((folder / used).read_text()) + int(stat[reclaimable])
