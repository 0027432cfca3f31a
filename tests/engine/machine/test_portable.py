"""Portable arithmetic: libraries are limited before they compute; numpy takes some functions."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mentions import mention

from flbench.engine.machine import portable
from flbench.engine.options import EngineOptions
from flbench.engine.processes.fabric import open_fabric
from flbench.errors import UserError

CPU = torch.device("cpu")
needs_avx2 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64")
    or torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="needs an x86-64 processor with AVX2",
)


def in_a_new_process(code: str, folder: Path, *on: str) -> str:
    """What a program prints that limits the libraries before it imports them."""
    program = f"from flbench.engine.machine import portable\nportable.limit()\n{code}"
    command = [*on, sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_avx2
def test_libraries_that_are_in_use_cannot_be_limited_any_more() -> None:
    torch.ones(2, 2) @ torch.ones(2, 2)
    with pytest.raises(UserError, match=mention("MKL_CBWR='COMPATIBLE'", "longer")):
        portable.turn_on(CPU)
    assert not portable.is_on()


def test_other_devices_and_processors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=mention("x86-64 processor", "AVX2", "got meta")):
        portable.turn_on(torch.device("meta"))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UserError, match="got aarch64"):
        portable.turn_on(CPU)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    with pytest.raises(UserError, match="this one has none"):
        portable.turn_on(CPU)


@needs_avx2
def test_each_library_that_is_not_limited_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy
    import threadpoolctl

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(portable, "_mkl_mode", lambda: 1)
    config = {"SIMD Extensions": {"found": ["X86_V3", "X86_V4"]}}
    monkeypatch.setattr(numpy, "show_config", lambda mode: config)
    blas = [
        {"internal_api": "openmp", "architecture": None},
        {"internal_api": "openblas", "architecture": "SkylakeX"},
    ]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: blas)
    with pytest.raises(UserError, match=mention("portable", "torch", "MKL", "numpy", "OpenBLAS")):
        portable.turn_on(CPU)


def test_a_torch_without_its_mkl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", "/nowhere/torch/__init__.py")
    with pytest.raises(UserError, match=mention("torch", "MKL")):
        portable._mkl_mode()


def test_compiled_code_is_refused() -> None:
    with pytest.raises(UserError, match="drop --compile"):
        open_fabric(EngineOptions(portable=True, compile=True))


FUNCTIONS = """
import json
import numpy as np
import torch
from flbench.engine.machine.instructions import limited
from flbench.engine.machine.processor import processor

cpu = torch.device("cpu")
before, mode = processor(cpu), portable._mkl_mode()
portable.turn_on(cpu)
portable.turn_on(cpu)  # once is enough
found = {"before": before, "name": processor(cpu), "mode": mode}
found["limited"] = limited(portable.SETTINGS)
wrong = []
for dtype in (torch.float32, torch.float64):
    x = torch.rand(40, 50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for name, other in portable.APPROXIMATED.items():
        function, inside = getattr(torch, name), getattr(torch.Tensor, f"{name}_")
        for table in (x, x.t(), x[::2, 1::3], x[0, 0]):
            exact = torch.from_numpy(np.asarray(getattr(np, other)(table.numpy())))
            wrong.append((function(table) != exact).sum())
            wrong.append((inside(table.clone()) != exact).sum())
            wrong.append((function(table, out=torch.empty(0, dtype=dtype)) != exact).sum())
    root = x.clone().requires_grad_()
    root.sqrt().sum().backward()
    wrong.append((root.grad - 0.5 / x.sqrt()).abs().max() > 1e-4)
found["negative"] = bool(torch.tensor([-1.0]).sqrt().isnan())
short = torch.tensor([4.0]).bfloat16().sqrt()
inside = x.clone().requires_grad_()
inside.clone().sqrt_().sum().backward()
wrong.append((inside.grad != root.grad).sum())
for dtype in (torch.complex64, torch.complex128):
    z = torch.tensor([3 - 4j, -0.5 + 0.25j], dtype=dtype)
    wrong.append((z.sqrt().square() - z).abs().max() > 1e-5)
    wrong.append((z.conj().sqrt() != z.sqrt().conj()).sum())
    wrong.append((z.atan().tan() - z).abs().max() > 1e-5)
found["refused"] = []
for write in (lambda i: i.sqrt_(), lambda i: torch.sqrt(torch.ones(2), out=i)):
    try:
        write(torch.tensor([4, 9]))
    except RuntimeError as error:
        found["refused"].append(str(error))
found["wrong"] = int(sum(wrong))
found["others"] = torch.tensor([4, 9]).sqrt().tolist(), short.item(), str(short.dtype)
print(json.dumps(found))
"""


@needs_avx2
def test_functions_that_mkl_approximates_are_those_of_numpy(tmp_path: Path) -> None:
    """Also of views, of complex numbers, in place, into another tensor.

    And a process is named when it is on.
    """
    refusal = "sqrt: expected a tensor of torch.float32, got torch.int64"
    found = json.loads(in_a_new_process(FUNCTIONS, tmp_path))
    assert found.pop("before") != portable.NAME
    assert found == {
        "name": portable.NAME,
        "limited": True,
        "mode": portable.COMPATIBLE,
        "wrong": 0,
        "negative": True,
        "refused": [refusal] * 2,
        "others": [[2.0, 3.0], 2.0, "torch.bfloat16"],
    }


BITS = """
import hashlib
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
portable.turn_on(torch.device("cpu"))
draw = torch.Generator().manual_seed(0)


def bits(*tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()


def trained(network, shape, optimizer):
    torch.manual_seed(0)
    for part in network.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    optimizer = optimizer(network.parameters(), lr=0.05)
    for _ in range(2):
        x, y = torch.randn(*shape, generator=draw), torch.randint(10, shape[:1], generator=draw)
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    return bits(*network.parameters())


convolutions = nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()
dense = nn.Linear(16 * 5 * 5, 84), nn.ReLU(), nn.Linear(84, 10)
lenet = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), *dense)
perceptron = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))
print(trained(lenet, (32, 3, 32, 32), torch.optim.SGD))
print(trained(perceptron, (11, 64), torch.optim.Adam))
x = torch.randn(200, 37, generator=draw)
print(bits(torch.cdist(x, x), x.double() @ x.t().double(), torch.linalg.svdvals(x)))
print(bits(x.exp(), x.softmax(1), x.tanh(), x.erf(), x.abs().log(), x.norm(dim=1)))
u = x.tanh()
print(bits(x.abs().sqrt(), x.tan(), u.asin(), u.double().acos(), x.atan()))
"""
EMULATOR = "qemu-x86_64"


@needs_avx2
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason="needs qemu-user")
@pytest.mark.parametrize("model", ["Haswell", "EPYC-Rome"])
def test_an_emulated_processor_gives_the_same_bits(model: str, tmp_path: Path) -> None:
    """Its vendor, caches and approximations are others."""
    here = in_a_new_process(BITS, tmp_path)
    assert here == in_a_new_process(BITS, tmp_path, EMULATOR, "-cpu", model)
    assert len({*here.split()}) == 5
