"""The instructions that the libraries below torch use, and what limits them to those of AVX2.

By the processor and its vendor, these libraries choose their instructions and the order in which
they add. Each reads variables of its own when it is loaded, or computes for the first time.

Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
WIDE = "avx512f"
"""What the system calls the instructions beyond AVX2 that all libraries use."""
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own kernels
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # convolutions
    "OPENBLAS_CORETYPE": "Haswell",  # products of matrices of numpy and scipy
    # by their names before numpy 2.4, and since
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
    " AVX512_SPR X86_V4",
}
"""The variables that limit all libraries but MKL, which computes torch's products of matrices."""
SAME_VENDOR = {**AVX2, "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
"""The variables under which a processor computes as one of its vendor that has AVX2 alone."""


def limit(variables: Mapping[str, str]) -> None:
    """Limit the libraries that are not in use yet, in this process and those that it starts."""
    os.environ.update(variables)


def limited(variables: Mapping[str, str]) -> bool:
    """Whether the variables are set, so that what this process loads is limited."""
    return all(os.environ.get(name) == value for name, value in variables.items())


def to_compute_as(processor: str) -> Mapping[str, str]:
    """The variables under which this machine computes as one of its vendor with AVX2.

    Args:
        processor: what a result says of the one that computed it, such as "AuthenticAMD AVX2".

    Returns:
        Nothing where this machine computes so already, or cannot; and where some of the variables
        are set, because somebody has chosen.
    """
    there = [*vendor(), "AVX2"]
    chosen = any(name in os.environ for name in SAME_VENDOR)
    return SAME_VENDOR if processor.split() == there and _is_wide() and not chosen else {}


@cache
def vendor() -> tuple[str, ...]:
    """The vendor of the first CPU; nothing where the system does not say it."""
    return tuple(_said("vendor_id"))[:1]


@cache
def _is_wide() -> bool:
    """Whether the CPU has instructions beyond AVX2."""
    return any(WIDE in flags.split() for flags in _said("flags"))


def _said(name: str) -> Iterator[str]:
    """What the system says of each CPU under a name."""
    lines = CPU_INFO.read_text(encoding="utf-8").splitlines() if CPU_INFO.is_file() else []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            yield value.strip()
