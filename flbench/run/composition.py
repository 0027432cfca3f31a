"""Methods by name: `pfedlia`, or `pfedlia+fedavgm` for several plugins asked in turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from inspect import getattr_static
from typing import Any

from flbench.core.hookspecs import hookimpl
from flbench.core.parameters import Presets, checked
from flbench.errors import BadParameter, PluginError, UnknownName, UserError, in_one_line, text_of
from flbench.plugin.entry import Entry
from flbench.plugin.isolation import IsolatedPlugin
from flbench.plugin.registry import find, load_entry
from flbench.plugin.source_inspection import source_hash
from flbench.results.schema import Method, Plugin
from flbench.run.settings import _given, fields_of


@dataclass(frozen=True)
class MethodStack:
    """The plugins of one method, in the order they were named, and how a result names them."""

    layers: tuple[tuple[str, Any], ...]
    described: Method

    @property
    def uses_true_groups(self) -> bool:
        """Whether a plugin openly asks for the truth."""
        return any(plugin.uses_true_groups for plugin in self.described.plugins)

    @property
    def pools_data(self) -> bool:
        """Whether a plugin trains on all clients' data in one place."""
        return any(plugin.pools_data for plugin in self.described.plugins)

    @property
    def paper_leak(self) -> bool:
        """Whether a plugin asks to decide on test data, as its paper does."""
        return any(plugin.paper_leak for plugin in self.described.plugins)


def compose(
    text: str, settings: Mapping[str, object] | None = None, preset: str | None = None
) -> MethodStack:
    """Build the plugins of `name` or `name+name`.

    Plugins without hooks (fedavg: the defaults themselves) add nothing and are left out of the
    name where others are there, so `pfedlia+fedavg` is `pfedlia`.

    Args:
        text: names joined by "+".
        settings: `--set` values; those that a plugin declares are taken, others ignored (see
            `suite_overrides`). Keys are `field` or `plugin.field`.
        preset: name of a preset; plugins that have it start from its values, not their defaults.

    Raises:
        UnknownName: no such method.
        BadParameter: a value does not fit its field, or the plugin refuses it.
        PluginError: a plugin cannot be imported, or is not a frozen dataclass of plain values.
    """
    names = [name.strip() for name in text.split("+")]
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"method '{text}': expected distinct names joined by '+'")
    built = []
    for name in names:
        entry = find("methods", name)
        kind = load_entry(entry)
        if not (isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen):  # type: ignore[attr-defined]
            raise PluginError(f"method '{name}': {entry.value} is not a frozen dataclass")
        of_preset = presets_of(kind).get(preset or "", {})
        given = {**of_preset, **_given(name, fields_of(entry, kind), settings or {})}
        values = checked(f"method '{name}'", kind, given)
        built.append((entry, _made(entry, kind, values)))
    check_compatible([(entry.name, plugin) for entry, plugin in built])
    acting = [(entry, plugin) for entry, plugin in built if _hooks_of(plugin)] or built[:1]
    alone = len(acting) == 1
    described = Method(
        name="+".join(entry.name for entry, _ in acting),
        params={
            key if alone else f"{entry.name}.{key}": value
            for entry, plugin in acting
            for key, value in _params(entry, plugin).items()
        },
        plugins=[
            Plugin(
                name=entry.name,
                distribution=entry.distribution,
                version=entry.version,
                uses_true_groups=bool(getattr(plugin, "uses_true_groups", False)),
                paper_leak=bool(getattr(plugin, "paper_leak", False)),
                pools_data=bool(getattr(plugin, "pools_data", False)),
                baseline=bool(getattr(plugin, "baseline", False)),
                source=source_hash(entry.module()),
            )
            for entry, plugin in acting
        ],
    )
    return MethodStack(tuple((entry.name, plugin) for entry, plugin in acting), described)


def _made(entry: Entry, kind: Callable[..., Any], values: Mapping[str, object]) -> object:
    """A method with its parameters; its constructor runs as a guest."""
    try:
        with IsolatedPlugin(entry.name).acting(f"{entry.name}.__init__"):
            return kind(**values)
    except KeyboardInterrupt:
        raise
    except (ValueError, UserError) as error:  # what it says to the person
        told = text_of(error) or type(error).__name__
        raise BadParameter(f"method '{entry.name}': {told}") from error
    except BaseException as error:  # SystemExit as well
        raise BadParameter(f"method '{entry.name}': {in_one_line(error)}") from error


def _params(entry: Entry, plugin: Any) -> dict[str, object]:  # noqa: ANN401 - a dataclass
    """What a result says of a method's parameters.

    Raises:
        PluginError: a value that no result file can hold; better now than after the last round.
    """
    for field in fields(plugin):
        try:
            json.dumps(asdict(plugin)[field.name], allow_nan=False)
        except Exception as error:
            raise PluginError(
                f"{entry}: '{field.name}' is {getattr(plugin, field.name)!r:.80}, expected numbers,"
                f" text, lists or tables of them: {in_one_line(error)}"
            ) from None
    return asdict(plugin)


def presets_of(kind: object) -> Presets:
    """The presets a method declares."""
    presets: Presets = getattr(kind, "presets", {})
    return presets


def without_preset(preset: str, texts: list[str]) -> list[str]:
    """Those of some methods that do not have a preset: they run with their defaults.

    Raises:
        UnknownName: none of them has it.
    """
    lacking, known = [], set[str]()
    for text in texts:
        kinds = [load_entry(find("methods", name.strip())) for name in text.split("+")]
        offered = {name for kind in kinds for name in presets_of(kind)}
        known |= offered
        if preset not in offered:
            lacking.append(text)
    if preset not in known:
        raise UnknownName(f"preset of {', '.join(texts)}", preset, known, listed="there are")
    return lacking


def check_compatible(plugins: Sequence[tuple[str, object]]) -> None:
    """Refuse plugins that cannot go together.

    Raises:
        UserError: two group the clients, or two average, or two replace the local objective; one
            keeps a model per client and another would group them; one pools all data and
            another would treat clients apart.
    """
    refused = f"'{'+'.join(name for name, _ in plugins)}' cannot be composed"
    meanings = {
        "cluster": "decide who is grouped with whom",
        "aggregate": "decide how models are averaged",
        "client_module": "replace the local objective",
    }
    for hook, meaning in meanings.items():
        rivals = [name for name, plugin in plugins if hook in _hooks_of(plugin)]
        if len(rivals) > 1:
            raise UserError(
                f"{refused}: {rivals[0]} and {rivals[1]} both {meaning}; name one of them"
            )
    for name, plugin in plugins:
        others = [(one, _hooks_of(other)) for one, other in plugins if one != name]
        grouping = [one for one, hooks in others if "cluster" in hooks]
        if grouping and getattr(plugin, "row_per_client", False):
            raise UserError(
                f"{refused}: {name} keeps a model per client, so nothing may regroup them, and"
                f" {grouping[0]} does"
            )
        apart = [one for one, hooks in others if {"cluster", "aggregate", "personalise"} & {*hooks}]
        if apart and getattr(plugin, "pools_data", False):
            raise UserError(
                f"{refused}: {name} has one trainer for all data; {apart[0]} treats clients apart"
            )


def _hooks_of(plugin: object) -> list[str]:
    marker, kind = f"{hookimpl.project_name}_impl", type(plugin)
    marked = ((name, getattr(getattr_static(kind, name), marker, None)) for name in dir(kind))
    return [options.get("specname") or name for name, options in marked if options is not None]
