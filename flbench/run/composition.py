"""Methods by name (`pfedlia`, `pfedlia+fedavgm`) and their parameters (`--set`, presets)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from flbench.core import hookspecs
from flbench.core.hookspecs import hook_marks, implemented_hooks
from flbench.core.parameters import Parameter, Presets, checked, declared, refuse_unused
from flbench.core.setting_text import written
from flbench.errors import BadParameter, PluginError, UnknownName, UserError, in_one_line, text_of
from flbench.plugin.isolation import IsolatedPlugin
from flbench.plugin.registry import Entry, find, load_entry
from flbench.plugin.source_inspection import loaded_source
from flbench.results.hashed_fields import hashed
from flbench.results.schema import Method, Plugin, problem_text
from flbench.suite import Suite, suite_field, suite_fields
from flbench.tasks import TaskName


@dataclass(frozen=True)
class MethodStack:
    """The plugins of one method, in the order they were named, and how a result names them.

    Attributes:
        layers: names and plugins.
        described: what a result says of them.
        within_one_network: names of those that do not say that they run across networks.
        row_per_client: whether one of them keeps a model per client.
        tasks: names of those that are not defined for all tasks, with those that they know.
    """

    layers: tuple[tuple[str, Any], ...]
    described: Method
    within_one_network: tuple[str, ...] = ()
    row_per_client: bool = False
    tasks: tuple[tuple[str, tuple[TaskName, ...]], ...] = ()

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


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin's class, found and imported, before it has parameters."""

    entry: Entry
    kind: Any
    fields: Mapping[str, Parameter]
    presets: Presets
    defaults: Mapping[str, Any]

    def field(self, key: str) -> str | None:
        """The field that a `--set` key names: `field` or `plugin.field`; None = none of it."""
        owner, dot, field = key.partition(".")
        if key in self.fields:
            return key
        return field if dot and owner == self.entry.name and field in self.fields else None

    def build(
        self, settings: Mapping[str, object], preset: str | None, *, stated: bool = False
    ) -> object:
        """An instance; its constructor runs as third-party code.

        Args:
            stated: a file says it, which may be of an older version: what has no effect is taken.

        Raises:
            BadParameter: a value does not fit its field or has no effect, or the plugin refuses it.
        """
        entry, given = self.entry, dict(self.presets.get(preset or "", {}))
        for key in sorted(settings, key=lambda key: "." in key):  # the full name wins
            if field := self.field(key):
                given[field] = settings[key]
        values = dict(self.defaults) | checked(f"method '{entry.name}'", self.kind, given)
        if not stated:
            refuse_unused(f"method '{entry.name}'", self.fields, values)
        try:
            with IsolatedPlugin(entry.name).acting(f"{entry.name}.__init__"):
                return self.kind(**values)
        except KeyboardInterrupt:
            raise
        except (ValueError, UserError) as error:  # what it says to the person
            text = text_of(error) or type(error).__name__
            raise BadParameter(f"method '{entry.name}': {text}") from error
        except BaseException as error:  # SystemExit as well
            raise BadParameter(f"method '{entry.name}': {in_one_line(error)}") from error


@dataclass(frozen=True)
class LoadedMethod:
    """The plugins of `name` or `name+name` (`text`), found and imported, without parameters."""

    text: str
    plugins: tuple[LoadedPlugin, ...]

    @property
    def presets(self) -> set[str]:
        """The presets that at least one of the plugins has."""
        return {name for one in self.plugins for name in one.presets}

    def compose(
        self,
        settings: Mapping[str, object] | None = None,
        preset: str | None = None,
        *,
        stated: bool = False,
    ) -> MethodStack:
        """Build the plugins with their parameters.

        Plugins without hooks (fedavg: the defaults themselves) add nothing and are left out of the
        name where others are there, so `pfedlia+fedavg` is `pfedlia`.

        Args:
            settings: `field` or `plugin.field` -> value; what no plugin declares is ignored (see
                `suite_overrides`).
            preset: plugins that have it start from its values, not their defaults.
            stated: see `LoadedPlugin.build`.

        Raises:
            BadParameter: a value does not fit its field or has no effect, or the plugin refuses it.
            UserError: the plugins cannot go together.
        """
        plugins = [one.build(settings or {}, preset, stated=stated) for one in self.plugins]
        built = [(one.entry, plugin) for one, plugin in zip(self.plugins, plugins, strict=True)]
        check_compatible([(entry.name, plugin) for entry, plugin in built])
        acting = [pair for pair in built if implemented_hooks(type(pair[1]))] or built[:1]
        layers = tuple((entry.name, plugin) for entry, plugin in acting)
        try:
            described = _description(acting)
        except ValidationError as error:
            problem = error.errors()[0]
            field, what = ".".join(map(str, problem["loc"])), problem["msg"]
            raise BadParameter(
                f"method '{self.text}': no result file could hold it: {problem_text(field, what)}"
            ) from None
        return MethodStack(layers, described, **_of_plugins(layers))


def joined(suite: Suite, method: MethodStack) -> MethodStack:
    """A method with the plugins of a suite, which are asked as if they were named before its own.

    What a result says of the method stays the same; they are settings of the suite.

    Raises:
        UnknownName: no such plugin, or it has no such parameter.
        BadParameter: a value does not fit its field, or the plugin refuses it.
        UserError: the plugins cannot go together, or the method names one of the suite's.
    """
    if not suite.plugins:
        return method
    layers = layers_of(suite, method.layers)
    return replace(method, layers=layers, **_of_plugins(layers))


def layers_of(suite: Suite, own: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The plugins of a suite, then those of a method; raises as `joined`."""
    added: list[tuple[str, Any]] = []
    for one in suite.plugins:
        if one.name in [name for name, _ in (*added, *own)]:
            raise UserError(f"suite '{suite.name}' brings '{one.name}': name it once")
        plugin = _load_plugin(one.name)
        checked(f"suite '{suite.name}': plugin '{one.name}'", plugin.kind, one.params)
        added.append((one.name, plugin.build(one.params, None, stated=True)))
    layers = (*added, *own)
    check_compatible(layers)
    return layers


def plugins_of(suite: Suite) -> list[Plugin]:
    """How a result names the plugins of a suite."""
    entries = [find("methods", one.name) for one in suite.plugins]
    return [_described(entry, load_entry(entry)) for entry in entries]


def _of_plugins(layers: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """What a method has of what its plugins say about themselves, by field of `MethodStack`."""
    return {
        "within_one_network": tuple(
            name for name, one in layers if not getattr(one, "across_networks", False)
        ),
        "row_per_client": any(getattr(one, "row_per_client", False) for _, one in layers),
        "tasks": tuple(
            (name, tuple(one.tasks)) for name, one in layers if getattr(one, "tasks", None)
        ),
    }


def load_method(text: str) -> LoadedMethod:
    """Find and import the plugins of `name` or `name+name`.

    Raises:
        UnknownName: no such method.
        PluginError: a plugin cannot be imported, or is not a frozen dataclass of typed fields.
    """
    names = [name.strip() for name in text.split("+")]
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"method '{text}': expected distinct names joined by '+'")
    return LoadedMethod(text, tuple(_load_plugin(name) for name in names))


def _load_plugin(name: str) -> LoadedPlugin:
    entry = find("methods", name)
    kind = load_entry(entry)
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen):  # type: ignore[attr-defined]
        raise PluginError(f"method '{name}': {entry.value} is not a frozen dataclass")
    try:
        known, presets = declared(kind), getattr(kind, "presets", {})
        if not isinstance(presets, Mapping) or not all(
            isinstance(one, Mapping) for one in presets.values()
        ):
            raise TypeError(f"presets is {presets!r:.60}, expected name -> parameter -> value")
        return LoadedPlugin(entry, kind, known, presets, _typed_defaults(kind))
    except Exception as error:
        raise PluginError(f"{entry}: its fields cannot be read: {in_one_line(error)}") from error


@cache
def _typed_defaults(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401
    """The defaults that become another value when they are read as their type, such as 1 as 1.0.

    A row with a default that is given and one without it are the same row.

    Raises:
        TypeError: a default does not fit its own type.
    """
    known = declared(kind)
    given = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    typed = dict[str, Any]()
    for name, value in given.items():
        if name in known:
            try:
                typed[name] = known[name].check("default", value)
            except BadParameter:
                expected = known[name].type
                raise TypeError(f"default of '{name}' is {value!r}, expected {expected}") from None
    return {name: one for name, one in typed.items() if type(one) is not type(given[name])}


def compose(
    text: str,
    settings: Mapping[str, object] | None = None,
    preset: str | None = None,
    *,
    stated: bool = False,
) -> MethodStack:
    """Find, import and build the plugins of a method; see `load_method`, `LoadedMethod.compose`."""
    return load_method(text).compose(settings, preset, stated=stated)


FLAGS = ("uses_true_groups", "paper_leak", "pools_data", "baseline")
"""What a plugin may openly say of itself."""


def _description(acting: Sequence[tuple[Entry, Any]]) -> Method:
    """How a result names plugins and their parameters."""
    alone = len(acting) == 1
    return Method(
        name="+".join(entry.name for entry, _ in acting),
        params={
            key if alone else f"{entry.name}.{key}": value
            for entry, plugin in acting
            for key, value in _params(entry, plugin).items()
        },
        plugins=[_described(entry, plugin) for entry, plugin in acting],
    )


def _described(entry: Entry, plugin: object) -> Plugin:
    """How a result names a plugin, which is an instance or its class."""
    return Plugin(
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        source=loaded_source(entry.module()),
        **{flag: bool(getattr(plugin, flag, False)) for flag in FLAGS},
    )


def _params(entry: Entry, plugin: Any) -> dict[str, object]:  # noqa: ANN401 - a dataclass
    """What a result says of a method's parameters, as its file will hold them: tuples are lists.

    Those that were added later (`fl.LATER`) are left out at their defaults.

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
    found: dict[str, object] = hashed(plugin, json.loads(json.dumps(asdict(plugin))))
    return found


def without_preset(preset: str, methods: Sequence[LoadedMethod]) -> list[str]:
    """Those of some methods that do not have a preset: they run with their defaults.

    Raises:
        UnknownName: none of them has it.
    """
    known = {name for method in methods for name in method.presets}
    if preset not in known:
        texts = ", ".join(method.text for method in methods)
        raise UnknownName(f"preset of {texts}", preset, known, listed="there are")
    return [method.text for method in methods if preset not in method.presets]


def suite_overrides(
    settings: Mapping[str, object], methods: Sequence[LoadedMethod]
) -> dict[str, object]:
    """The part of `--set` that is meant for the suite, given all methods that are asked for.

    Raises:
        UnknownName: a key that neither a method nor the suite declares.
        BadParameter: a bare key that both declare, or two keys of one field that differ.
    """
    plugins = [one for method in methods for one in method.plugins]
    found: dict[str, object] = {}
    keys: dict[str, str] = {}
    for key, value in settings.items():
        owners = [one.entry.name for one in plugins if one.field(key)]
        field = suite_field(key)
        if field and owners and not key.startswith("suite."):
            raise BadParameter(
                f"--set {key}: both the suite and {owners[0]} have it;"
                f" write suite.{key} or {owners[0]}.{key}"
            )
        if field:
            first = keys.setdefault(field, key)
            other = found.setdefault(field, value)
            if other != value and written(other) != written(value):  # nan is no nan
                raise BadParameter(
                    f"--set {first}={written(found[field])} and --set {key}={written(value)} are"
                    " one field of the suite: give one of them"
                )
        elif not owners:
            known = [f"{one.entry.name}.{field}" for one in plugins for field in one.fields]
            raise UnknownName("parameter", key, [*known, *suite_fields()], listed="declared")
    return found


def check_compatible(plugins: Sequence[tuple[str, object]]) -> None:
    """Refuse plugins that cannot go together.

    Raises:
        UserError: two score models, or group the clients, or average, or weigh the clients, or
            replace the local objective; one keeps a model per client and another would group them;
            one pools all data and another would treat clients apart; or no hook of one is ever
            asked.
    """
    refused = f"'{'+'.join(name for name, _ in plugins)}' cannot be composed"
    meanings = {
        "cluster": "decide who is grouped with whom",
        "aggregate": "decide how models are averaged",
        "weights": "decide how much clients count",
        "client_module": "replace the local objective",
        "score": "score the models",
    }
    hooks_of = {
        name: implemented_hooks(type(plugin), wrappers=False).keys() for name, plugin in plugins
    }
    for hook, meaning in meanings.items():
        rivals = [name for name, hooks in hooks_of.items() if hook in hooks]
        if len(rivals) > 1:
            raise UserError(
                f"{refused}: {rivals[0]} and {rivals[1]} both {meaning}; name one of them"
            )
    for name, plugin in plugins:
        others = [(one, hooks) for one, hooks in hooks_of.items() if one != name]
        grouping = [one for one, hooks in others if "cluster" in hooks]
        if grouping and getattr(plugin, "row_per_client", False):
            raise UserError(
                f"{refused}: {name} keeps a model per client, so nothing may regroup them, and"
                f" {grouping[0]} does"
            )
        apart = [one for one, hooks in others if {"cluster", "aggregate", "personalise"} & hooks]
        if apart and getattr(plugin, "pools_data", False):
            raise UserError(
                f"{refused}: {name} has one trainer for all data; {apart[0]} treats clients apart"
            )
    for name, plugin in plugins:
        if getattr(plugin, "reveals", "") == "sum":
            for other, reason in readers(name, plugins):
                raise UserError(f"{refused}: {other} {reason}, and {name} reveals sums only")
    for place, (name, _) in enumerate(plugins):
        later = plugins[place + 1 :]
        heard = [h for h in hooks_of[name] if not any(always_answers(o, h) for _, o in later)]
        if hooks_of[name] and not heard:
            raise UserError(
                f"{refused}: of {name} no hook is asked, {later[-1][0]} answers"
                f" {', '.join(sorted(hooks_of[name]))} before it; name one of them"
            )


def readers(secret: str, plugins: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """Who needs more than sums of what clients send beside a plugin that reveals no more; and why.

    A hook that takes an upload reads what single clients sent, unless its class says `reads_sums`.
    """
    names = [name for name, _ in plugins]
    for name, plugin in plugins:
        if name == secret:
            continue
        kind: type = type(plugin)
        marks = {mark.get("specname") or one: (one, mark) for one, mark in hook_marks(kind)}
        if "weights" in marks:
            yield name, "weighs clients otherwise than they weigh what they send"
        if getattr(plugin, "row_per_client", False):
            yield name, "keeps a model per client, which is a sum of one"
        if "encode" in marks and marks["encode"][1].get("tryfirst"):
            yield name, "changes what single clients sent (encode)"
        if "encode" in marks and names.index(name) > names.index(secret):
            yield name, f"codes what {secret} has hidden (name {secret} last)"
        if getattr(plugin, "reads_sums", False):
            continue
        for hook, (method, _) in marks.items():
            if "upload" in inspect.signature(getattr(plugin, method)).parameters:
                yield name, f"reads what single clients sent ({hook})"


def always_answers(plugin: object, hook: str) -> bool:
    """Whether plugins named before it are never asked for a hook: its answer is never None."""
    method = implemented_hooks(type(plugin), wrappers=False).get(hook)
    if method is None or not vars(hookspecs)[hook].flbench_spec["firstresult"]:
        return False
    answer = getattr(plugin, method).__annotations__.get("return", None)
    return answer is not None and "None" not in str(answer)
