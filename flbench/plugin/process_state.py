"""Settings that all code of a process shares: read them, compare them, restore them.

The table holds what changes numbers or where files are written: the global generators, torch's
defaults, the working directory and the environment (`docs/third-party-code.md`). torch and numpy
are not imported here: their settings count once something else has imported them.
"""

from __future__ import annotations

import operator
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


def _new_value(name: str, old: object, new: object) -> str:
    return f"changed {name} to {new}; restored"


@dataclass(frozen=True)
class GlobalSetting:
    """A setting that all code of a process shares.

    Attributes:
        name: as a warning names it.
        module: the module that holds it; not read before that is imported.
        read: gives the value.
        write: sets a value.
        initial: the value after the import of the module; None = unknown.
        same: whether two values are equal.
        describe: what a warning says, given name, old and new value.
    """

    name: str
    module: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    initial: Any = None
    same: Callable[[Any, Any], bool] = operator.eq
    describe: Callable[[str, Any, Any], str] = _new_value


# --- generators -------------------------------------------------------------------------------


def _drawn(name: str, old: object, new: object) -> str:
    return f"drew from {name} or seeded it; restored, so its numbers repeat: use ctx.rng(...)"


def _numpy_state() -> tuple[Any, ...] | None:
    """State of numpy's global generator; None where it is not the usual Mersenne Twister."""
    state = sys.modules["numpy.random"].get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    return (
        state["state"]["key"].tobytes(),
        state["state"]["pos"],
        state["has_gauss"],
        state["gauss"],
    )


def _set_numpy_state(state: tuple[Any, ...]) -> None:
    numpy, (key, *rest) = sys.modules["numpy"], state
    numpy.random.set_bit_generator(numpy.random.MT19937())  # a plugin may have set another
    numpy.random.set_state(("MT19937", numpy.frombuffer(key, dtype=numpy.uint32), *rest))


def _torch_state() -> bytes:
    state: bytes = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return state


def _set_torch_state(state: bytes) -> None:
    torch = sys.modules["torch"]
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


SHARED = PYTHON, NUMPY, TORCH = (
    "Python's global generator", "numpy's global generator", "torch's global generator",
)  # fmt: skip
"""Names of the three global generators. Those of accelerators are not watched."""
GENERATORS = (
    GlobalSetting(PYTHON, "random", random.getstate, random.setstate, describe=_drawn),
    GlobalSetting(NUMPY, "numpy.random", _numpy_state, _set_numpy_state, describe=_drawn),
    GlobalSetting(TORCH, "torch", _torch_state, _set_torch_state, describe=_drawn),
)


# --- defaults ---------------------------------------------------------------------------------


def _of_torch(
    name: str, initial: object, read: Callable[[Any], Any], write: Callable[[Any, Any], object]
) -> GlobalSetting:
    """A setting of torch; `read` and `write` are given the module."""
    return GlobalSetting(
        f"torch's {name}",
        "torch",
        lambda: read(sys.modules["torch"]),
        lambda value: write(sys.modules["torch"], value),
        initial,
    )


def _set_device(torch: Any, device: str) -> None:  # noqa: ANN401 - torch itself
    torch.set_default_device(
        None if device == "cpu" else device
    )  # None costs no torch function mode


def _working_directory() -> str | None:
    """None where the working directory was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _set_working_directory(folder: str) -> None:
    with suppress(FileNotFoundError):  # it was removed
        os.chdir(folder)


def _environment() -> dict[Any, Any]:
    """The variables, encoded: `os.environ.copy()` decodes each, which is 100 times slower."""
    variables: dict[Any, Any] = vars(os.environ)["_data"]
    return variables.copy()


def _set_environment(variables: Mapping[Any, Any]) -> None:
    os.environ.update({os.fsdecode(k): os.fsdecode(v) for k, v in variables.items()})


def _is_kept(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> bool:
    """Whether the variables have their values; libraries may add others when they are imported."""
    return old.items() <= new.items()


def _changed_variables(name: str, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> str:
    names = ", ".join(os.fsdecode(key) for key in old if new.get(key) != old[key])
    return f"changed {name} ({names}); restored"


DEFAULTS = (
    _of_torch(
        "default dtype", "torch.float32",
        lambda torch: str(torch.get_default_dtype()),
        lambda torch, dtype: torch.set_default_dtype(getattr(torch, dtype.removeprefix("torch."))),
    ),
    _of_torch(
        "default device", "cpu",
        lambda torch: str(torch.get_default_device()),
        _set_device,
    ),
    _of_torch(
        "number of threads", None,
        lambda torch: torch.get_num_threads(),
        lambda torch, count: torch.set_num_threads(count),
    ),
    _of_torch(
        "grad mode", True,
        lambda torch: torch.is_grad_enabled(),
        lambda torch, on: torch.set_grad_enabled(on),
    ),
    _of_torch(
        "deterministic algorithms", (False, False),
        lambda torch: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda torch, how: torch.use_deterministic_algorithms(how[0], warn_only=how[1]),
    ),
    _of_torch(
        "float32 matmul precision", "highest",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, precision: torch.set_float32_matmul_precision(precision),
    ),
    _of_torch(
        "cudnn settings", (False, False),
        lambda torch: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        lambda torch, how: torch.backends.cudnn.set_flags(_benchmark=how[0], _deterministic=how[1]),
    ),
    GlobalSetting("the working directory", "os", _working_directory, _set_working_directory),
    GlobalSetting(
        "the environment", "os", _environment, _set_environment,
        same=_is_kept, describe=_changed_variables,
    ),
)  # fmt: skip
"""All settings but the generators."""
EVERYTHING = (*GENERATORS, *DEFAULTS)

# --- snapshot and restore ---------------------------------------------------------------------

Snapshot = list[tuple[GlobalSetting, Any]]
"""Settings with their values; None = unknown."""


def snapshot(settings: Sequence[GlobalSetting] = EVERYTHING) -> Snapshot:
    """The values of some settings."""
    return [(one, one.read() if one.module in sys.modules else one.initial) for one in settings]


def restore(before: Snapshot) -> list[tuple[str, str]]:
    """Set every value that changed to what it was; name and description of each change."""
    changes = []
    for setting, old in before:
        if old is not None and setting.module in sys.modules:
            new = setting.read()
            if not setting.same(old, new):
                setting.write(old)
                changes.append((setting.name, setting.describe(setting.name, old, new)))
    return changes
