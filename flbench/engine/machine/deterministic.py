"""Settings of torch with which a CUDA device gives the same bits again.

By default the libraries below torch choose algorithms there that add in another order each time,
and convolutions round their inputs to 10 bits of mantissa (TF32).
"""

from __future__ import annotations

import os

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""The variable with which cuBLAS is told to use fixed memory; it is read at the first product."""


def turn_on(device: torch.device) -> None:
    """Compute deterministically in float32 on a CUDA device; nothing happens for another one.

    torch warns of an operation that has no deterministic algorithm there.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - mypy
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
