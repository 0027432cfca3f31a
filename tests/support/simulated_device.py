"""A device beside the CPU, simulated: its tensors are in the memory of the host, and are marked.

An operation that is given tensors of both devices fails where torch's would, so that what was
forgotten to be copied is found on machines without an accelerator. The marks are on the storages,
so views have them too. Whatever an operation makes of marked tensors is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from flbench.core.model_bank import ModelBank
from flbench.run import setup

DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
BOTH = {"copy_", "_to_copy", "_foreach_copy_", "lift_fresh", "set_"}
"""Operations that take tensors of both devices."""
INDEXED = {"index", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations whose positions may be the host's, of a tensor of the device."""
NORM = "batch_norm"
"""In the name of operations for which torch makes weights of its own in lanes, here on the host."""


def plain(tensor: Tensor) -> Tensor:
    """The tensor inside of those that `torch.func` makes."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def is_marked(tensor: Tensor) -> bool:
    """Whether a tensor is on the device."""
    if isinstance(tensor, ModelBank):
        return tensor._store.device == DEVICE
    with torch._C.DisableTorchFunction():
        return getattr(plain(tensor).untyped_storage(), "is_of_device", False)


def mark(tensor: Tensor, *, here: bool = True) -> None:
    """Say whether a tensor is on the device."""
    with torch._C.DisableTorchFunction():
        plain(tensor).untyped_storage().is_of_device = here  # type: ignore[attr-defined]


def tensors(value: object) -> list[Tensor]:
    """The tensors in arguments or results."""
    return [one for one in tree_flatten(value)[0] if isinstance(one, Tensor)]


def mixed(name: str) -> RuntimeError:
    """What torch says of tensors of two devices."""
    return RuntimeError(f"{name}: expected all tensors on one device, found cuda:0 and cpu")


class Generator(torch.Generator):
    """A generator of the device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device."""
        return DEVICE


class OfEither(torch.Generator):
    """In place of `torch.Generator`, which makes generators of the host or of the device."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        """What `torch.Generator` makes."""
        return Real() if torch.device(device).type == "cpu" else Generator()


Real = torch.Generator


class Checks(TorchDispatchMode):
    """Refuses operations on tensors of both devices, and marks what is made on the device."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        name, given = func.overloadpacket.__name__, tensors((args, kwargs))
        marks = [is_marked(one) for one in given]
        here = any(marks)
        if name in BOTH:
            here = bool(marks) and marks[0]
        elif name == "index_put":
            pass  # of autograd, into zeros that it makes where nothing can be marked
        elif name in INDEXED:
            here = marks[0]
            values = tensors(args[2:3])  # what `index_put` writes
            if any(one.ndim and is_marked(one) != here for one in values) or any(marks) > here:
                raise mixed(name)
        elif NORM in name:
            here = marks[0]
        elif here and any(one.ndim for one, mark in zip(given, marks, strict=True) if not mark):
            raise mixed(name)
        source = kwargs.get("generator")
        if source is not None and given and isinstance(source, Generator) != here:
            raise RuntimeError(f"{name}: the generator is of another device")
        result = func(*args, **kwargs)
        if here:
            for one in tensors(result):
                mark(one)
        return result


class Devices(TorchFunctionMode):
    """Answers which device a tensor is on, makes tensors on the device, and copies between both."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name, own = getattr(func, "__name__", ""), getattr(func, "__self__", None)
        if own is Tensor.device:
            return DEVICE if is_marked(args[0]) else HOST
        if own is Tensor.is_cuda:
            return is_marked(args[0])
        if own is Tensor.is_cpu:
            return not is_marked(args[0])
        if name == "get_device" and args:
            return 0 if is_marked(args[0]) else -1
        if name in ("numpy", "__array__") and is_marked(args[0]):
            if not (name == "numpy" and kwargs.get("force")):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return args[0].detach().clone().numpy(force=True)
        if name in ("pin_memory", "share_memory_") and is_marked(args[0]):
            raise RuntimeError(f"{name}: it is on the device")
        if name == "pin_memory":
            return args[0]
        if name in WHOLE:
            with _disable_current_modes():
                result = func(*args, **kwargs)
            mark(result, here=any(map(is_marked, tensors(args))))
            return result
        if name == "_parse_to":
            return func(*args, **kwargs)
        wanted: list[torch.device] = []
        if name in ("cpu", "cuda"):
            wanted, func, args = [torch.device(name)], Tensor.clone, args[:1]
        else:
            args, kwargs = tree_map(lambda one: self._of_host(one, name, wanted), (args, kwargs))
        if name == "to" and len(args) > 1 and isinstance(args[1], Tensor):
            wanted = [DEVICE if is_marked(args[1]) else HOST]
            args = (args[0], HOST, args[1].dtype, *args[2:])
        result = func(*args, **kwargs)
        if wanted and isinstance(result, Tensor):
            here = wanted[0].type != "cpu"
            if is_marked(result) != here:
                if args and isinstance(args[0], Tensor) and name in ("to", "cpu", "cuda"):
                    result = result.clone()
                mark(result, here=here)
            elif name in ("cpu", "cuda"):
                result = args[0]
        return result

    def _of_host(self, value: object, name: str, wanted: list[torch.device]) -> object:
        """An argument with the host in place of the device, which is what was wanted."""
        if isinstance(value, torch.device):
            device = value
        elif isinstance(value, str) and name in {"to", *FACTORIES} and value.startswith("cuda"):
            device = torch.device(value)
        elif isinstance(value, str) and name in {"to", *FACTORIES} and value == "cpu":
            device = HOST
        else:
            return value
        wanted.append(device)
        return HOST


WHOLE = {"one_hot", "pad_sequence"}
"""Functions that make tensors where their arguments are, which here is the host."""
FACTORIES = {
    "tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "linspace", "eye", "rand",
    "randn", "randint", "randperm", "empty_like", "zeros_like", "ones_like", "full_like",
    "rand_like", "randn_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor",
    "empty_strided", "tril_indices", "triu_indices",
}  # fmt: skip
"""Functions that take the name of a device."""


class DeviceFabric(Fabric):
    """A Fabric whose device is the simulated one."""

    @property
    def device(self) -> torch.device:
        """The device."""
        return DEVICE

    def to_device(self, obj: Any) -> Any:
        """Move a module or a tensor to the device."""
        return obj.to(DEVICE)


def fabric_of(engine: object) -> Fabric:
    """What `open_fabric` gives on a machine with the device."""
    return DeviceFabric(accelerator="cpu", devices=1)


def read(self: ModelBank, index: int) -> Tensor:
    """A row of a bank, which is where the bank is."""
    device, self._store.device = self._store.device, HOST
    try:
        with torch._C.DisableTorchFunction():
            return READ(self, index)
    finally:
        self._store.device = device


READ = ModelBank.read


def state_of(device: object = None) -> Tensor:
    """State of the default generator of the device, which is the host's here."""
    return Real().get_state()


@contextmanager
def simulated_device() -> Iterator[None]:
    """Let runs be computed on the simulated device."""
    with (
        patch.object(setup, "open_fabric", fabric_of),
        patch.object(torch, "Generator", OfEither),
        patch.object(ModelBank, "read", read),
        patch.object(torch.cuda, "get_rng_state", state_of),
        patch.object(torch.cuda, "set_rng_state", lambda *_: None),
        patch.object(torch.cuda, "mem_get_info", lambda device=None: (2**30, 2**31)),
        patch.object(torch.cuda, "manual_seed", lambda seed: None),
        patch.object(torch.cuda, "get_device_name", lambda device=None: "simulated"),
        Devices(),
        Checks(),
    ):
        yield
