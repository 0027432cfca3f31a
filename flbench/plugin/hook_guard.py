"""Guard: what stands between a run and a plugin's hooks.

Whatever a hook raises becomes one line that names plugin and hook, who answered is remembered, and
a stranger leaves the world as it was (`strangers`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any, NamedTuple

from flbench.errors import FlbenchError, PluginError, Undefined, UserError, in_one_line, text_of
from flbench.plugin.isolation import IsolatedPlugin
from flbench.plugin.process_state import TORCH

LISTENERS = ("run_started", "round_finished", "run_finished")


ADDED = (TORCH,)
"""What `client_module` may draw from: the core has seeded it for what a method adds."""


class HookResult(NamedTuple):
    """What a plugin answered, and its name."""

    plugin: str
    value: Any


class HookGuard:
    """Stands in for a plugin: nothing but its hooks, each wrapped."""

    def __init__(self, plugin: object, guest: IsolatedPlugin, warn: Callable[[str], None]) -> None:
        home = plugin if inspect.ismodule(plugin) else type(plugin)
        for attribute in vars(home) if inspect.ismodule(home) else dir(home):
            options = getattr(inspect.getattr_static(home, attribute), "flbench_impl", None)
            if options is not None:
                hook = options.get("specname") or attribute
                function = getattr(plugin, attribute)
                if not _is_ours(plugin):
                    function = _visiting(hook, function, guest)
                call: Callable[..., HookResult | None] = (
                    _listening(guest.name, hook, function, warn)
                    if hook in LISTENERS
                    else _answering(guest.name, hook, function)
                )
                vars(call).update(
                    flbench_impl=options
                )  # of a static method it is not the function's
                setattr(self, attribute, call)


def _is_ours(plugin: object) -> bool:
    """Whether it is part of flbench; a suite is not, for it calls anybody's partition."""
    home = plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__
    return home.startswith("flbench.") and home != "flbench.suite"


def _visiting(hook: str, function: Callable[..., Any], guest: IsolatedPlugin) -> Callable[..., Any]:
    who = f"{guest.name}.{hook}"
    quiet = ADDED if hook == "client_module" else ()

    @functools.wraps(function)
    def call(*args: object) -> object:
        with guest.acting(who, quiet):
            return function(*args)

    return call


def _answering(
    name: str, hook: str, function: Callable[..., Any]
) -> Callable[..., HookResult | None]:
    @functools.wraps(function)
    def call(*args: object) -> HookResult | None:
        try:
            value = function(*args)
        except Undefined as error:
            raise Undefined(f"{name}: {text_of(error)}") from error
        except UserError as error:
            raise PluginError(f"{name}.{hook}: {text_of(error)}") from error
        except (FlbenchError, KeyboardInterrupt):
            raise
        except FrozenInstanceError as error:
            told = f"{text_of(error)}: a plugin keeps nothing; declare a memory in `setup`"
            raise PluginError(f"{name}.{hook}: {told}") from error
        except BaseException as error:  # SystemExit as well
            raise PluginError(f"{name}.{hook} raised {in_one_line(error)}") from error
        return None if value is None else HookResult(name, value)

    return call


def _listening(
    name: str, hook: str, function: Callable[..., Any], warn: Callable[[str], None]
) -> Callable[..., None]:
    @functools.wraps(function)
    def call(*args: object) -> None:
        try:
            function(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit as well
            warn(f"{name}.{hook} failed ({in_one_line(error)}); the run goes on")

    return call
