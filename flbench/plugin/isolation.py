"""Isolation: restore process-wide settings after third-party code ran.

All plugins run in one process. What one of them changes of the process would change the numbers of
the others, so it is restored and named in one line. The table below holds what changes numbers or
where files are written; `docs/third-party-code.md` says what is promised, and what is not. torch
and numpy are not imported here: their settings count once something else has imported them.
"""

from __future__ import annotations

import ctypes
import operator
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from flbench.errors import FlbenchError, PluginError, escaped, in_one_line

T = TypeVar("T")


@dataclass(frozen=True)
class GlobalSetting:
    """A setting that all code of a process shares.

    Attributes:
        module: the module that holds it; not read before that is imported.
        read: gives the value, from the module; None = unknown.
        same: whether an old and a new value count as equal.
    """

    name: str
    module: str
    read: Callable[[ModuleType], Any]
    write: Callable[[ModuleType, Any], object]
    same: Callable[[Any, Any], bool] = operator.eq

    def change(self, old: Any, new: object) -> str:  # noqa: ANN401 - any setting's value
        """What a warning says of a change."""
        if self.name in SHARED:
            return (
                f"drew from {self.name} or seeded it; restored, so its numbers repeat:"
                " use ctx.rng(...)"
            )
        if isinstance(new, dict):  # the environment
            names = ", ".join(os.fsdecode(key) for key in old if new.get(key) != old[key])
            return f"changed {self.name} ({names}); restored"
        return f"changed {self.name} to {new}; restored"


SHARED = PYTHON, NUMPY, TORCH = (
    "Python's global generator", "numpy's global generator", "torch's global generator",
)  # fmt: skip
"""Names of the three global generators. Those of accelerators are not watched."""


TWISTER = 624 * 4 + 4
"""Bytes of the state of numpy's Mersenne Twister in memory: its words, and the place in them."""
_seen: tuple[bytes, tuple[Any, ...]] | None = None
"""The last state of numpy's global generator: as it lies in memory, and as it is restored."""


def _numpy_state(random: ModuleType) -> tuple[Any, ...] | None:
    """State of numpy's global generator; None where it is not the usual Mersenne Twister.

    numpy takes long to give it, and it is read twice for each hook of a plugin. So it is compared
    with the last one in memory first. Beside the twister numpy keeps one normal number for later;
    while there is one, that comparison would not tell whether it was drawn.
    """
    global _seen
    raw = _in_memory(random.get_bit_generator())
    if _seen is not None and raw == _seen[0]:
        return _seen[1]
    state = random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    twister = state["state"]
    key, place = twister["key"].tobytes(), int(twister["pos"])
    found = key, place, state["has_gauss"], state["gauss"]
    as_thought = raw == key + place.to_bytes(4, sys.byteorder)
    _seen = (raw, found) if as_thought and not state["has_gauss"] else None
    return found


def _in_memory(generator: Any) -> bytes:  # noqa: ANN401 - numpy is not imported here
    """The bytes of a Mersenne Twister; b"" of another generator."""
    if type(generator).__name__ != "MT19937":
        return b""
    return ctypes.string_at(generator.ctypes.state_address, TWISTER)


def _set_numpy_state(random: ModuleType, state: tuple[Any, ...]) -> None:
    key, *rest = state
    random.set_bit_generator(random.MT19937())  # a plugin may have set another
    random.set_state(("MT19937", memoryview(key).cast("I"), *rest))


def _set_torch_state(torch: ModuleType, state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


SMALLEST = 5e-324
"""The smallest denormal number; 0 where the processor flushes such numbers."""
ATTENTION = ("flash", "math", "mem_efficient", "cudnn")


def _attention(torch: ModuleType) -> tuple[bool, ...]:
    """Which kernels of attention may be chosen."""
    return tuple(getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in ATTENTION)


def _set_attention(torch: ModuleType, enabled: tuple[bool, ...]) -> None:
    for name, on in zip(ATTENTION, enabled, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(on)


def _working_directory(os: ModuleType) -> str | None:
    """None where the working directory was removed."""
    try:
        folder: str = os.getcwd()
    except OSError:
        return None
    return folder


def _set_working_directory(os: ModuleType, folder: str) -> None:
    with suppress(FileNotFoundError):  # it was removed
        os.chdir(folder)


def _environment(os: ModuleType) -> dict[Any, Any]:
    """The variables, encoded: `os.environ.copy()` decodes each, which is 100 times slower."""
    variables: dict[Any, Any] = vars(os.environ)["_data"]
    return variables.copy()


def _set_environment(os: ModuleType, variables: Mapping[Any, Any]) -> None:
    os.environ.update({os.fsdecode(k): os.fsdecode(v) for k, v in variables.items()})


def _is_kept(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> bool:
    """Whether the variables have their values; libraries may add others when they are imported."""
    return old.items() <= new.items()


GENERATORS = (
    GlobalSetting(PYTHON, "random", lambda _: random.getstate(), lambda _, s: random.setstate(s)),
    GlobalSetting(NUMPY, "numpy.random", _numpy_state, _set_numpy_state),
    GlobalSetting(
        TORCH, "torch", lambda torch: torch.get_rng_state().numpy().tobytes(), _set_torch_state
    ),
)
DEFAULTS = (
    GlobalSetting(
        "torch's default dtype", "torch",
        lambda torch: torch.get_default_dtype(),
        lambda torch, dtype: torch.set_default_dtype(dtype),
    ),
    GlobalSetting(
        "torch's default device", "torch",
        lambda torch: str(torch.get_default_device()),
        # None costs no torch function mode
        lambda torch, device: torch.set_default_device(None if device == "cpu" else device),
    ),
    GlobalSetting(
        "torch's number of threads", "torch",
        lambda torch: torch.get_num_threads(),
        lambda torch, count: torch.set_num_threads(count),
    ),
    GlobalSetting(
        "torch's grad mode", "torch",
        lambda torch: torch.is_grad_enabled(),
        lambda torch, on: torch.set_grad_enabled(on),
    ),
    GlobalSetting(
        "torch's deterministic algorithms", "torch",
        lambda torch: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda torch, how: torch.use_deterministic_algorithms(how[0], warn_only=how[1]),
    ),
    GlobalSetting(
        "torch's float32 matmul precision", "torch",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, precision: torch.set_float32_matmul_precision(precision),
    ),
    GlobalSetting(
        "torch's cudnn settings", "torch",
        lambda torch: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        lambda torch, how: torch.backends.cudnn.set_flags(_benchmark=how[0], _deterministic=how[1]),
    ),
    GlobalSetting(
        "torch's autocast", "torch",
        lambda torch: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        lambda torch, how: (
            torch.set_autocast_enabled("cpu", how[0]), torch.set_autocast_dtype("cpu", how[1])
        ),
    ),
    GlobalSetting(
        "torch's use of oneDNN", "torch",
        lambda torch: torch.backends.mkldnn.enabled,
        lambda torch, on: torch.backends.mkldnn.set_flags(_enabled=on),
    ),
    GlobalSetting("torch's attention kernels", "torch", _attention, _set_attention),
    GlobalSetting(
        "torch's flushing of denormal numbers", "torch",
        lambda _: SMALLEST * 1.0 == 0.0,  # torch does not tell
        lambda torch, on: torch.set_flush_denormal(on),
    ),
    GlobalSetting("the working directory", "os", _working_directory, _set_working_directory),
    GlobalSetting("the environment", "os", _environment, _set_environment, _is_kept),
)  # fmt: skip
"""All settings but the generators."""
EVERYTHING = (*GENERATORS, *DEFAULTS)

Snapshot = list[tuple[GlobalSetting, Any]]
"""Settings with their values; None = unknown."""


def snapshot(settings: Sequence[GlobalSetting] = EVERYTHING) -> Snapshot:
    """The values of those settings whose modules are imported."""
    modules = sys.modules
    return [(one, one.read(modules[one.module])) for one in settings if one.module in modules]


def restore(before: Snapshot) -> list[tuple[str, str]]:
    """Set every value that changed to what it was; name and description of each change."""
    changes = []
    for setting, old in before:
        module = sys.modules[setting.module]
        if old is not None and not setting.same(old, new := setting.read(module)):
            setting.write(module, old)
            changes.append((setting.name, setting.change(old, new)))
    return changes


@contextmanager
def streams_kept() -> Iterator[None]:
    """Keep standard output and standard error where they are, whatever third-party code sets."""
    output, errors = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


class IsolatedPlugin:
    """Runs a plugin's code and restores the settings that it changed.

    Args:
        warn: called once for each setting that the plugin changed; None = print to standard error.
    """

    def __init__(self, name: str, warn: Callable[[str], None] | None = None) -> None:
        self.name = name
        self._warn = warn or (lambda line: print(f"flbench: {escaped(line)}", file=sys.stderr))
        self._warned: set[str] = set()

    @contextmanager
    def acting(self, what: str, quiet: Collection[str] = ()) -> Iterator[None]:
        """Run its code in the block; what it prints goes to standard error.

        Args:
            what: the part of it that runs, as in "x.setup".
            quiet: names of settings that are restored without a warning.
        """
        before = snapshot()
        try:
            with streams_kept(), redirect_stdout(sys.stderr):  # standard output is for tables
                yield
        finally:
            self.restore(before, what, quiet)

    def restore(self, before: Snapshot, what: str, quiet: Collection[str] = ()) -> None:
        """Restore the settings; warn of each change that was not warned of before."""
        for name, change in restore(before):
            if name not in quiet and name not in self._warned:
                self._warned.add(name)
                self._warn(f"{what} {change}")


def produced(name: str, owner: str, kind: type[T], make: Callable[[], object]) -> T:
    """What code of a plugin makes; it may draw from the global generators.

    Args:
        name: of the plugin.
        owner: what messages call it, such as "data set 'x'".
        kind: the type that is expected.
        make: runs the code.

    Raises:
        PluginError: it makes another type, or raises what is no error of flbench.
    """
    try:
        with IsolatedPlugin(name).acting(owner, quiet=SHARED):
            found = make()
    except FlbenchError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{owner} raised {in_one_line(error)}") from error
    if not isinstance(found, kind):
        raise PluginError(f"{owner} returned {type(found).__name__}, expected {kind.__name__}")
    return found
