"""HookGuard: registered with pluggy in place of a plugin.

What a hook raises becomes one line that names plugin and hook, an answer carries the plugin's name,
and process-wide settings are restored after third-party code ran (`isolation`).
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
"""Hooks of sinks: an error in one is a warning, and the run goes on."""
ADDED = (TORCH,)
"""Settings that `client_module` may change: layers draw their first weights from this generator,
which the core has seeded."""


class HookResult(NamedTuple):
    """What a plugin answered, and its name."""

    plugin: str
    value: Any


class HookGuard:
    """The hooks of a plugin, each wrapped, and nothing else of it."""

    def __init__(
        self, plugin: object, isolated: IsolatedPlugin, warn: Callable[[str], None]
    ) -> None:
        self._name = isolated.name
        home = plugin if inspect.ismodule(plugin) else type(plugin)
        for attribute in vars(home) if inspect.ismodule(home) else dir(home):
            options = getattr(inspect.getattr_static(home, attribute), "flbench_impl", None)
            if options is not None:
                hook = options.get("specname") or attribute
                function = getattr(plugin, attribute)
                if not _is_core(plugin):
                    function = _isolated(hook, function, isolated)
                call: Callable[..., HookResult | None] = (
                    _listener(self._name, hook, function, warn)
                    if hook in LISTENERS
                    else _answer(self._name, hook, function)
                )
                # `wraps` copies the mark of a function, but not that of a static method.
                vars(call).update(flbench_impl=options)
                setattr(self, attribute, call)

    def __repr__(self) -> str:
        """The plugin's name, for pluggy's messages."""
        return self._name


def _is_core(plugin: object) -> bool:
    """Whether it is part of flbench. A suite is not: it calls any package's partition."""
    home = plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__
    return home.startswith("flbench.") and home != "flbench.suite"


def _isolated(
    hook: str, function: Callable[..., Any], isolated: IsolatedPlugin
) -> Callable[..., Any]:
    what = f"{isolated.name}.{hook}"
    quiet = ADDED if hook == "client_module" else ()

    @functools.wraps(function)
    def call(*args: object) -> object:
        with isolated.acting(what, quiet):
            return function(*args)

    return call


def _answer(name: str, hook: str, function: Callable[..., Any]) -> Callable[..., HookResult | None]:
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
            hint = "a plugin keeps nothing; declare a memory in `setup`"
            raise PluginError(f"{name}.{hook}: {text_of(error)}: {hint}") from error
        except BaseException as error:  # SystemExit as well
            raise PluginError(f"{name}.{hook} raised {in_one_line(error)}") from error
        return None if value is None else HookResult(name, value)

    return call


def _listener(
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
