"""World: what all code of a process shares, and whoever changes it changes for everybody.

Here are the things that would change another's numbers, where files land, what a person is told or
whether Ctrl-C is heard; each can be read and written. Nothing heavy is imported here: what belongs
to torch or numpy does not exist before somebody imports them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

ABSENT = object()
"""Stands for the value of what nobody has imported."""


SIGNALS = (signal.SIGINT, signal.SIGTERM)


State = Mapping[str, Any]


def _equal(old: object, new: object) -> bool:
    return bool(old == new)


@dataclass(frozen=True)
class GlobalSetting:
    """Something that everybody shares.

    Attributes:
        name: as a person knows it.
        read: gives its value.
        write: puts a value back.
        module: where it lives.
        first: what it is when its module has just been imported; None = nobody knows.
        same: whether a value is another one.
        text: says what became of it, given both; None = "changed NAME to NEW; it was put back".
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    module: str = "sys"
    first: Callable[[], Any] | None = None
    same: Callable[[Any, Any], bool] = _equal
    text: Callable[[Any, Any], str] | None = None

    def now(self) -> Any:  # noqa: ANN401 - whatever it is
        """Its value; ABSENT where its module has not been imported yet."""
        return self.read() if self.module in sys.modules else ABSENT

    def told(self, old: object, new: object) -> str:
        """What became of it, in a line; "" = not worth a word."""
        if self.text is None:
            return f"changed {self.name} to {new}; it was put back"
        return self.text(old, new)


def _torch() -> Any:  # noqa: ANN401 - not imported here
    return sys.modules["torch"]


def _random() -> Any:  # noqa: ANN401 - numpy.random, not imported here
    return sys.modules["numpy.random"]


# --- generators -------------------------------------------------------------------------------


def _drawn(name: str) -> Callable[[Any, Any], str]:
    return lambda old, new: (
        f"drew from {name} or seeded it; it was put back, so its numbers repeat: use ctx.rng(...)"
    )


def _draws() -> tuple[Any, State]:
    generator = _random().get_bit_generator()
    return generator, generator.state


def _draw_on(value: tuple[Any, State]) -> None:
    generator, state = value
    _random().set_bit_generator(generator)
    generator.state = state


def _same_draws(old: tuple[Any, State], new: tuple[Any, State]) -> bool:
    return old[0] is new[0] and _plain(old[1]) == _plain(new[1])


def _plain(state: State) -> dict[str, object]:
    """The state of numpy's generator, its words as bytes."""
    words = {k: v.tobytes() if hasattr(v, "tobytes") else v for k, v in state["state"].items()}
    return {**state, "state": words}


SHARED = PYTHON, NUMPY, TORCH = (
    "Python's global generator", "numpy's global generator", "torch's global generator",
)  # fmt: skip


GENERATORS = (
    GlobalSetting(PYTHON, random.getstate, random.setstate, text=_drawn(PYTHON)),
    GlobalSetting(NUMPY, _draws, _draw_on, "numpy.random", same=_same_draws, text=_drawn(NUMPY)),
    GlobalSetting(
        TORCH,
        lambda: _torch().get_rng_state(),
        lambda state: _torch().set_rng_state(state),
        "torch",
        same=lambda old, new: bool(old.equal(new)),
        text=_drawn(TORCH),
    ),
)


# --- defaults ---------------------------------------------------------------------------------


def _default(
    name: str, first: object, read: Callable[[Any], Any], write: Callable[[Any, Any], object]
) -> GlobalSetting:
    """One of torch's; `first` is its value in a torch that nobody has touched."""
    return GlobalSetting(
        f"torch's {name}",
        lambda: read(_torch()),
        lambda value: write(_torch(), value),
        "torch",
        None if first is None else lambda: first,
        lambda old, new: str(old) == str(new),
    )


def _place_on(torch: Any, device: object) -> None:  # noqa: ANN401 - torch itself
    """Let new tensors lie on a device; on CPUs they do where nobody asks for anything."""
    torch.set_default_device(None if str(device) == "cpu" else device)


def _here() -> str:
    """The working directory; "" where somebody removed it."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _go(folder: str) -> None:
    with suppress(FileNotFoundError):  # somebody removed it
        os.chdir(folder)


def _kept(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Libraries set variables of their own when they are imported; those may stay."""
    return all(new.get(name) == value for name, value in old.items())


def _lost(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    names = ", ".join(name for name in old if new.get(name) != old[name])
    return f"changed the environment ({names}); it was put back"


def _handlers() -> tuple[Any, ...]:
    return tuple(map(signal.getsignal, SIGNALS))


def _handle(handlers: tuple[Any, ...]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(SIGNALS, handlers, strict=True):
            if handler is not None:  # not Python's
                signal.signal(number, handler)


def _filter(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index] # a list
    with warnings.catch_warnings():
        pass  # its ends tell every module that the filters changed


def _decide(torch: Any, how: tuple[bool, bool]) -> None:  # noqa: ANN401 - torch itself
    torch.use_deterministic_algorithms(how[0], warn_only=how[1])


DEFAULTS = (
    _default(
        "default dtype", "torch.float32",
        lambda torch: torch.get_default_dtype(),
        lambda torch, dtype: torch.set_default_dtype(getattr(torch, str(dtype)[6:])),
    ),
    _default("default device", "cpu", lambda torch: torch.get_default_device(), _place_on),
    _default(
        "number of threads", None,
        lambda torch: torch.get_num_threads(),
        lambda torch, count: torch.set_num_threads(count),
    ),
    _default(
        "grad mode", True,
        lambda torch: torch.is_grad_enabled(),
        lambda torch, on: torch.set_grad_enabled(on),
    ),
    _default(
        "deterministic algorithms", (False, False),
        lambda torch: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        _decide,
    ),
    _default(
        "float32 matmul precision", "highest",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, precision: torch.set_float32_matmul_precision(precision),
    ),
    _default(
        "cudnn settings", (False, False),
        lambda torch: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        lambda torch, how: torch.backends.cudnn.set_flags(_benchmark=how[0], _deterministic=how[1]),
    ),
    GlobalSetting(
        "numpy's error handling",
        lambda: sys.modules["numpy"].geterr(),
        lambda how: sys.modules["numpy"].seterr(**how),
        "numpy",
    ),
    GlobalSetting("the working directory", _here, _go),
    GlobalSetting("the environment", os.environ.copy, os.environ.update, same=_kept, text=_lost),
    GlobalSetting(
        "the handling of Ctrl-C or SIGTERM", _handlers, _handle,
        text=lambda old, new: "changed who hears Ctrl-C or SIGTERM; it was put back",
    ),
    GlobalSetting(
        "the filters of warnings", lambda: list(warnings.filters), _filter,
        text=lambda old, new: "",  # libraries add some when they are imported
    ),
)  # fmt: skip
"""What is no generator; numbers and files of all that follows hang on it."""


SPEECH = (
    GlobalSetting(
        "sys.stderr",
        lambda: sys.stderr,
        lambda stream: setattr(sys, "stderr", stream),
        same=lambda old, new: old is new,
        text=lambda old, new: "replaced sys.stderr; it was put back",
    ),
)
"""Where messages go."""


EVERYTHING = (*GENERATORS, *DEFAULTS, *SPEECH)
