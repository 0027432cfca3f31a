"""Portable arithmetic: the same bits on every x86-64 processor that has AVX2.

Environment variables limit the libraries below torch to what all such processors have
(`instructions.py`).

In this mode MKL begins some functions with an approximate instruction, whose last bits each vendor
has chosen in its own way. numpy computes these functions without it.
"""

from __future__ import annotations

import ctypes
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flbench.engine.machine import instructions
from flbench.errors import UserError

if TYPE_CHECKING:
    import torch

SETTINGS = {**instructions.AVX2, "MKL_CBWR": "COMPATIBLE"}  # MKL's mode AVX2 depends on the vendor
"""The variables by which libraries are limited."""
COMPATIBLE = 3
"""What MKL calls the mode of that name."""
NAME = "portable AVX2"
"""The processor, where it makes no difference which one it is."""
APPROXIMATED = {
    "sqrt": "sqrt", "tan": "tan", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
}  # fmt: skip
"""The functions of torch that numpy computes, and what it calls them."""
_overrides: list[torch.library.Library] = []


def limit() -> None:
    """Limit the libraries that are not in use yet, in this process and those that it starts."""
    instructions.limit(SETTINGS)


def is_possible() -> bool:
    """Whether this is an x86-64 machine."""
    return platform.machine().lower() in ("x86_64", "amd64")


def is_on() -> bool:
    """Whether this process computes portably."""
    return bool(_overrides)


def turn_on(device: torch.device) -> None:
    """Compute portably from now on; once it is on, it stays.

    Raises:
        UserError: the device is no such processor; torch has no MKL that can be asked; or a library
            was in use before it was limited.
    """
    import torch

    if is_on() and device.type == "cpu":
        return
    if device.type != "cpu" or not is_possible():
        what = device.type if device.type != "cpu" else platform.machine()
        raise UserError(f"--portable: expected an x86-64 processor with AVX2, got {what}")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        raise UserError("--portable: expected a processor with AVX2, this one has none")
    if unlimited := list(_unlimited()):
        variables = " ".join(f"{name}='{value}'" for name, value in SETTINGS.items())
        raise UserError(
            f"--portable: {', '.join(unlimited)} can no longer be limited in this process: begin"
            f" another one, with {variables} in its environment"
        )
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced
        for name, other in APPROXIMATED.items():
            _replace(library, name, other)
    _overrides.append(library)


def _unlimited() -> Iterator[str]:
    """The libraries that are in use as the processor suggests."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_info

    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        yield "torch"
    if _mkl_mode() != COMPATIBLE:
        yield "MKL"
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if any(name == "X86_V4" or name.startswith("AVX512") for name in found):
        yield "numpy"
    others = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
    if any(one["architecture"] != SETTINGS["OPENBLAS_CORETYPE"] for one in others):
        yield "OpenBLAS"


def _mkl_mode() -> int:
    """The mode that torch's MKL computes in.

    Raises:
        UserError: there is no MKL, or none that says it.
    """
    import torch

    file = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:
        return int(ctypes.CDLL(str(file)).mkl_serv_cbwr_get(1))
    except (OSError, AttributeError):
        raise UserError("--portable: expected a torch that has MKL within, as its wheels") from None


def _replace(library: torch.library.Library, name: str, other: str) -> None:
    """Let numpy compute a function of torch on CPUs, also in place and into another tensor."""
    import numpy as np
    import torch

    function = getattr(np, other)

    def compute(x: torch.Tensor) -> torch.Tensor:
        numbers = x.is_floating_point() or x.is_complex()
        kind = x.dtype if numbers else torch.get_default_dtype()
        exact = torch.promote_types(kind, torch.float32)  # numpy has no bfloat16
        with np.errstate(all="ignore"):
            result = function(x.to(exact).numpy(force=True))
        return torch.from_numpy(np.asarray(result)).to(kind)

    def into(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result = compute(x)
        if not torch.can_cast(result.dtype, out.dtype):
            raise RuntimeError(f"{name}: expected a tensor of {result.dtype}, got {out.dtype}")
        return out.resize_(x.shape).copy_(result)

    library.impl(name, compute, "CPU")
    library.impl(f"{name}_", lambda x: into(x, x), "CPU")
    library.impl(f"{name}.out", lambda x, out: into(out, x), "CPU")
