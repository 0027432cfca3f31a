"""Suite: a benchmark setting as data, read from one TOML file.

Section `[on.<data set>]` holds the fields that differ when the suite runs on another data set.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from flbench.core.clock_settings import SPEEDS, ClockSettings, with_traces
from flbench.core.effect import conditions, not_with, only_with, without_effect
from flbench.core.hookspecs import hookimpl
from flbench.core.local_training import LocalTraining
from flbench.core.parameters import checked, declared, refuse_unused
from flbench.core.period_settings import PeriodSettings, starts_of
from flbench.core.setting_text import parse, written
from flbench.errors import BadParameter, PluginError, UnknownName, UserError, field_of, text_of
from flbench.metrics import Rule
from flbench.plugin.registry import entries, find, load_entry
from flbench.results.files import read_bounded
from flbench.results.hashed_fields import DESCRIBES, LATER, annotated_fields, described, hashed

if TYPE_CHECKING:
    import numpy as np

    from flbench.core.dataset import Indices, Partition

LARGEST = 2**20
"""Bytes of a suite's file."""
Fraction = Annotated[float, Field(gt=0, lt=1)]
PositiveCount = Annotated[int, Field(ge=1)]
MOST_ROUNDS = 100_000
"""A result of more would be too large to be read, and the cohorts of all are drawn first."""
KINDS = ("name", "distribution")
"""Keys of a table that say which parameters it has."""
COMPONENTS = {"partition": ("partitions", 4), "model": ("models", 2)}
"""Fields that name a function: its kind, and how many of its arguments are no parameters."""


class Component(BaseModel):
    """A partition, network, metric or plugin: the name of its entry point, and its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, without the name."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """Name and parameters as one word; of a class of torchmetrics without its modules.

        Example:
            >>> Component(name="auroc", average="weighted").label
            'auroc:average=weighted'
        """
        name = self.name.rpartition(".")[2] if self.name.startswith("torchmetrics.") else self.name
        texts = {key: "none" if v is None else v for key, v in self.params.items()}
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in texts.items()}
        return ":".join([name, *(f"{key}={text}" for key, text in texts.items())])


NamedComponent = Annotated[
    Component, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)
]


def metric_of(text: str) -> Component:
    """A metric as a person types it: its name, and parameters after colons.

    Example:
        >>> metric_of("top-k:k=3").params
        {'k': 3}

    Raises:
        BadParameter: a parameter has no value, or is there twice.
    """
    name, *pairs = text.split(":")
    params = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or key == "name":
            raise BadParameter(f"metric '{text}': expected NAME:KEY=VALUE, as in top-k:k=3")
        if key in params:
            raise BadParameter(f"metric '{text}': '{key}' is there twice: give one of them")
        params[key] = parse(value)
    return Component(name=name, **params)


Asked = Annotated[Component, BeforeValidator(lambda v: metric_of(v) if isinstance(v, str) else v)]


def _ids(value: object, info: ValidationInfo) -> object:
    """Client ids; "0-3, 7" stands for 0, 1, 2, 3 and 7.

    Of a range that goes beyond the clients it gives the first id that is not there.
    """
    if isinstance(value, (list, tuple)):
        return value
    found, clients = list[int](), info.data.get("clients", 0)
    for part in str(value).split(","):
        first, _, last = part.strip().partition("-")
        ends = first, last or first
        if not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
            raise PydanticCustomError("ids", "client ids expected, such as [0, 1] or '0-3, 7'")
        low, high = map(int, ends)
        found += range(low, min(high, max(low, clients)) + 1)
    return found


def _held_out(value: object) -> object:
    """A share of the clients, or names of domains, sorted; one name may stand alone."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    names = [value] if isinstance(value, str) else value
    if isinstance(names, (list, tuple)) and {type(one) for one in names} in ({int}, {str}):
        return tuple(sorted({str(one) for one in names}))
    raise PydanticCustomError(
        "unseen", "a share expected, from 0 to below 1, or names of domains, such as ['site-7']"
    )


Ids = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], BeforeValidator(_ids)]


class Suite(BaseModel):
    """A benchmark setting; every field can be set with `--set field=value`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="name of the suite")
    version: PositiveCount = Field(description="raised whenever a number can change")
    summary: Annotated[str, DESCRIBES] = Field(description="one line")
    title: Annotated[str, DESCRIBES] = Field(
        default="",
        description="who the clients are, in a few words, such as 'five groups': the leaderboard"
        " says them after the data set",
    )
    changes: Annotated[dict[str, str], DESCRIBES] = Field(
        default={}, description="changelog: version -> one line"
    )
    superseded_by: Annotated[str, DESCRIBES] = Field(
        default="",
        description="a suite that takes its place: results stay, and count in no comparison across"
        " suites",
    )
    paper: Annotated[str, DESCRIBES] = Field(
        default="", description="the paper and table it answers to"
    )
    printed: Annotated[dict[str, dict[str, dict[str, float]]], DESCRIBES] = Field(
        default={},
        description="what the paper prints: data set -> method -> name in a result's summary ->"
        " number; for context, not a target",
    )
    printed_judged: Annotated[Rule, DESCRIBES] = Field(
        default="served", description="with which model the paper judges a client there"
    )
    dataset: str = Field(description="data set")
    offline_dataset: Annotated[str, DESCRIBES] = Field(
        default="", description="a data set that needs no files, to run it anywhere"
    )
    partition: NamedComponent = Field(description="partition and its parameters")
    model: NamedComponent = Field(description="network and its parameters")
    further_models: Annotated[tuple[NamedComponent, ...], LATER] = Field(
        default=(),
        description="other networks: each client has `model` or one of these, drawn with equal"
        " probability",
    )
    common_head: Annotated[bool, LATER, not_with("further_models", ())] = Field(
        default=False, description="whether all networks end in one common layer"
    )
    clients: PositiveCount = Field(description="number of clients, N")
    participation: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.1, description="share of the clients sampled per round"
    )
    rounds: int = Field(ge=1, le=MOST_ROUNDS, description="number of rounds, R, at most 100,000")
    local: LocalTraining = Field(default=LocalTraining(), description="local training")
    test_fraction: Fraction = Field(default=0.25, description="share of a client's samples tested")
    validation_fraction: float = Field(
        default=0.2, ge=0, lt=1, description="share of the rest that methods may validate on"
    )
    split: Annotated[Literal["stratified", "random"], LATER] = Field(
        default="stratified",
        description="how test and validation samples are drawn of a client's own: each label at its"
        " share, or by chance alone, as samples that come later would be",
    )
    server_samples: int = Field(default=0, ge=0, description="samples the server owns")
    test_set: Annotated[Literal["own", "labels", "proportional"], LATER] = Field(
        default="own",
        description="test samples of a client: a share of its own samples; or, from a pool that no"
        " client trains on (the original test part), all samples of its labels, or `test_samples`"
        " of them in its own proportions",
    )
    test_samples: Annotated[PositiveCount, LATER, only_with("test_set", "proportional")] = Field(
        default=200, description="test samples per client where test_set is proportional"
    )
    test_sizes: Annotated[tuple[PositiveCount, ...], LATER] = Field(
        default=(),
        description="samples of each domain in that pool, where the data set has no test part;"
        " empty = `test_fraction` of each label in each domain",
    )
    buffers: Literal["global", "local", "reset"] = Field(
        default="global",
        description="BatchNorm statistics: averaged like parameters, kept by each client alone"
        " (`'local'`), or begun anew in every round (`'reset'`)",
    )
    eval_every: PositiveCount = Field(default=1, description="rounds between evaluations")
    unseen: Annotated[float | tuple[str, ...], BeforeValidator(_held_out), LATER] = Field(
        default=0,
        description="clients that join after the last round: a share of all, or names of domains,"
        " such as `['site-7']`: see Clients that join late",
    )
    unseen_epochs: Annotated[int, LATER, not_with("unseen", 0, ())] = Field(
        default=0, ge=0, description="local epochs of these clients before a second evaluation"
    )
    target: Annotated[float | None, DESCRIBES] = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="headline (accuracy, mAP or RMSE) whose first round and cost are reported",
    )
    ft_epochs: Annotated[int, LATER] = Field(
        default=0, ge=0, description="local epochs of all clients before a last evaluation"
    )
    own_models: Annotated[bool, LATER] = Field(
        default=False,
        description="whether clients are judged with their own models too: what each of them had"
        " after its last local training",
    )
    headline: Literal["last", "validation"] = Field(
        default="last", description="round the summary reports"
    )
    clock: Annotated[ClockSettings | None, LATER] = Field(
        default=None, description="how fast clients are: see The clock"
    )
    metrics: Annotated[tuple[Asked, ...], DESCRIBES] = Field(
        default=(), description="metrics of every client beside accuracy, as `--metric` takes them"
    )
    not_judged: Annotated[Ids, LATER] = Field(
        default=(),
        description="clients that train, but are in no test figure, such as attackers: ids, as"
        " `[0, 1]` or `'0-3, 7'`",
    )
    periods: Annotated[tuple[PeriodSettings, ...], LATER] = Field(
        default=(),
        description="rounds from which on the data of some clients change, or they are not there:"
        " see Periods",
    )
    plugins: Annotated[tuple[NamedComponent, ...], LATER] = Field(
        default=(),
        description="plugins that join every method, such as an attack, and their parameters: see"
        " Plugins of a suite",
    )

    @field_validator("superseded_by")
    @classmethod
    def _another_takes_its_place(cls, other: str, info: ValidationInfo) -> str:
        if other == info.data.get("name"):
            raise PydanticCustomError("superseded", "the name of another suite expected")
        return other

    @field_validator("unseen")
    @classmethod
    def _some_train(
        cls, unseen: float | tuple[str, ...], info: ValidationInfo
    ) -> float | tuple[str, ...]:
        clients = info.data.get("clients")
        if clients is not None and training_clients(clients, unseen) < 1:
            text = f"fewer names than clients expected ({clients}), as the others train"
            raise PydanticCustomError("unseen", "{text}", {"text": text})
        return unseen

    @field_validator("not_judged")
    @classmethod
    def _some_are_judged(cls, ids: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        clients, unseen = info.data.get("clients"), info.data.get("unseen")
        if clients is not None and unseen is not None:
            judged(ids, training_clients(clients, unseen))
        return tuple(sorted(set(ids)))

    @field_validator("test_sizes")
    @classmethod
    def _there_is_a_pool(cls, sizes: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if sizes and info.data.get("test_set") == "own":
            raise PydanticCustomError("pool", "none expected ([]), as test_set is 'own'")
        return sizes

    @field_validator("headline")
    @classmethod
    def _something_validates(cls, headline: str, info: ValidationInfo) -> str:
        if headline == "validation" and info.data.get("validation_fraction") == 0:
            raise PydanticCustomError(
                "headline", "'last' expected, as validation_fraction is 0: no round could be chosen"
            )
        return headline

    @field_validator("periods")
    @classmethod
    def _shows_the_last_round(
        cls, periods: tuple[PeriodSettings, ...], info: ValidationInfo
    ) -> tuple[PeriodSettings, ...]:
        if periods and info.data.get("headline") == "validation":
            raise PydanticCustomError(
                "periods",
                "none expected ([]), as headline is 'validation', which would choose"
                " among rounds with other data",
            )
        return periods

    @hookimpl(specname="partition")
    def partition_hook(
        self, labels: Indices, domains: Indices | None, clients: int, rng: np.random.Generator
    ) -> Partition:
        """Implement the `partition` hook with the function that the suite names."""
        function = load_entry(find("partitions", self.partition.name))
        owner = f"partition '{self.partition.name}'"
        params = checked(owner, function, self.partition.params, skip=4)
        partition: Partition = function(labels, domains, clients, rng, **params)
        return partition

    @property
    def training_clients(self) -> int:
        """Number of clients that take part in training, N; the others join after the last round."""
        return training_clients(self.clients, self.unseen)

    @property
    def unseen_domains(self) -> tuple[str, ...]:
        """Names of the domains that join after the last round, each a client of its own."""
        return self.unseen if isinstance(self.unseen, tuple) else ()

    @property
    def judged(self) -> list[int]:
        """Ids of the training clients that are judged, ascending.

        Raises:
            BadParameter: it names clients that are not there; a part of a data set has fewer.
        """
        try:
            return judged(self.not_judged, self.training_clients)
        except PydanticCustomError as error:
            raise BadParameter(f"suite '{self.name}': 'not_judged': {error}") from None

    @property
    def period_starts(self) -> list[int]:
        """First rounds of the periods after the first one."""
        return starts_of(self.periods, self.rounds)

    @property
    def networks(self) -> tuple[Component, ...]:
        """The networks that clients may have: `model`, then `further_models`."""
        return (self.model, *self.further_models)

    @property
    def cohort_size(self) -> int:
        """Number of clients sampled per round; see `cohort_size`."""
        return cohort_size(self.participation, self.training_clients)

    def hash(self) -> str:
        """Hash of the fields that can change a number, 8 hexadecimal digits."""
        return fingerprint(self.settings())

    def settings(self) -> dict[str, Any]:
        """The fields that can change a number, as plain data (`results/hashed_fields.py`)."""
        settings: dict[str, Any] = hashed(self, self.model_dump(mode="json"))
        return settings


DESCRIPTIVE = described(Suite)
"""Fields that change no model and no number of another field."""


def training_clients(clients: int, unseen: float | Sequence[str]) -> int:
    """Number of clients that do not join late.

    Args:
        clients: all of them.
        unseen: the share of those that join late, or the names of their domains.
    """
    late = int(unseen * clients + 1e-9) if isinstance(unseen, (int, float)) else len(unseen)
    return clients - late


def cohort_size(participation: float, clients: int) -> int:
    """Number of `clients` that are sampled per round: max(1, floor(participation * N))."""
    return max(1, int(participation * clients + 1e-9))


def judged(not_judged: Sequence[int], clients: int) -> list[int]:
    """Ids that are judged, of so many training clients; a validator's error where there is none."""
    wrong = [client for client in not_judged if client >= clients]
    if wrong:
        text = f"clients 0 to {clients - 1} expected in training, got {wrong[0]}"
        raise PydanticCustomError("ids", "{text}", {"text": text})
    found = [client for client in range(clients) if client not in set(not_judged)]
    if not found:
        raise PydanticCustomError("ids", "at least one client that is judged expected")
    return found


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Hash of plain data, independent of the order of keys, 8 hexadecimal digits."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def load_suite(
    name: str, dataset: str | None = None, overrides: Mapping[str, object] | None = None
) -> Suite:
    """Load a suite and apply the data set's section and the `--set` values.

    Args:
        name: an entry point of group `flbench.suites`, or the path of a TOML file.
        dataset: instead of the suite's, as `--dataset` names it; `--set dataset=NAME` is the same.
        overrides: dotted field -> value.

    Raises:
        UnknownName: no such suite or field.
        BadParameter: a field does not fit its type, or two data sets are asked for.
        PluginError: the entry point is no path.
    """
    if not name.endswith(".toml") and name not in entries("suites"):
        _refuse_file(Path(name))
    path = Path(name) if name.endswith(".toml") else _installed(name)
    if path.stem.startswith("."):
        raise BadParameter(
            f"suite '{name}': expected a name that does not begin with a dot, as it names a folder"
        )
    try:
        table = tomllib.loads(read_bounded(path, LARGEST).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadParameter(f"suite '{name}': cannot read {path}: {text_of(error)}") from None
    if table.setdefault("name", path.stem) != path.stem:
        raise BadParameter(
            f"suite '{name}': name = {table['name']!r}: expected none, as a suite is called like"
            f" its file, {path.stem}"
        )
    asked: Any = (overrides or {}).get("dataset", dataset)
    if dataset is not None and asked != dataset:
        raise BadParameter(
            f"--dataset {dataset} and --set dataset={written(asked)}: give one of them"
        )
    sections, dataset = table.pop("on", {}), asked or table.get("dataset", "")
    table["dataset"] = dataset
    if not isinstance(dataset, str):
        raise BadParameter(f"suite '{name}': 'dataset': expected a name, got {dataset!r}")
    section = sections.get(dataset, {}) if isinstance(sections, dict) else sections
    if not isinstance(section, dict):
        raise BadParameter(f"suite '{name}': expected tables [on.DATASET], got on = {sections!r}")
    _refuse_sections(name, sections)
    _merge(table, section)
    return build_suite(name, table, overrides, path.parent)


def _refuse_file(path: Path) -> None:
    """Refuse a file that is meant for a suite, but does not end in .toml.

    Raises:
        BadParameter: it is there, with another ending or none, or with .toml behind its name.
    """
    longer = path.with_name(f"{path.name}.toml") if path.name else path
    with suppress(OSError):  # a name that no file can have
        if longer.is_file():
            raise BadParameter(f"suite '{path}': expected the whole name of the file, {longer}")
        if path.is_file():
            raise BadParameter(f"suite '{path}': the file of a suite ends in .toml: rename it")


def _refuse_sections(name: str, sections: Mapping[str, Any]) -> None:
    """Refuse sections that would never be read: of a misspelt data set, or with misspelt fields.

    A name that is like no installed one may be that of a package that is not installed.

    Raises:
        UnknownName: there are such.
    """
    known = entries("datasets")
    for dataset, section in sections.items():
        entry = re.split(r"[:\[]", dataset)[0]
        if entry not in known and difflib.get_close_matches(entry.casefold(), known, cutoff=0.8):
            raise UnknownName(f"data set of [on.{dataset}] in suite '{name}'", entry, known)
        for field in section if isinstance(section, dict) else ():
            if field not in Suite.model_fields:
                what = f"field of [on.{dataset}] in suite '{name}'"
                raise UnknownName(what, field, suite_fields(), listed="there are")
            if field in ("name", "dataset"):
                raise BadParameter(
                    f"suite '{name}': [on.{dataset}] has '{field}': expected other fields, as the"
                    " section is of that data set, and a suite is called like its file"
                )


def _installed(name: str) -> Path:
    """The file of an installed suite."""
    entry = find("suites", name)
    path = load_entry(entry)
    if not isinstance(path, (str, os.PathLike)):
        got = type(path).__name__
        raise PluginError(f"{entry}: {entry.value} is {got}, expected the path of a TOML file")
    return Path(path)


def build_suite(
    name: str,
    table: Mapping[str, Any],
    overrides: Mapping[str, object] | None = None,
    folder: Path = Path(),
) -> Suite:
    """Build a suite from its fields and `--set` values: dotted field -> value.

    `name` is how errors name the suite; names of traces are relative to the `folder`. What a
    `--set` value leaves without effect goes back to its default, unless it is set as well: with
    `optimizer=adam` a suite has no momentum. What the fields themselves say without effect stays.

    Raises:
        UnknownName: no such field, or a component has no such parameter.
        BadParameter: a field or a parameter does not fit its type, or is set without effect.
    """
    merged, given = copy.deepcopy(dict(table)), set(_names(overrides or {}))
    for key, value in sorted((overrides or {}).items(), key=lambda pair: _place(pair[0])):
        change = _nested(key, value)
        _merge(merged, change)
        for field in COMPONENTS.keys() & change.keys():
            _convert(field, merged[field], change[field])
    if "clock" in merged:
        merged["clock"] = with_traces(merged["clock"], folder)
    try:
        suite = Suite.model_validate(merged)
        if _drop_without_effect(suite, merged, given):
            suite = Suite.model_validate(merged)
    except ValidationError as error:
        raise _refusal(name, error.errors()[0], merged) from None
    _refuse_other_types(name, merged, suite.model_dump())
    for setting, why in unused_settings(suite):
        if any(name == setting or name.startswith(f"{setting}.") for name in given):
            raise BadParameter(f"suite '{suite.name}': {why}")
    return suite


def _refuse_other_types(
    name: str, given: Mapping[Any, Any], read: Mapping[Any, Any], place: str = ""
) -> None:
    """Refuse texts and truth values that were read as numbers, as "5" and true as 5 and 1.

    Raises:
        BadParameter: there is one.
    """
    for key, value in given.items():
        found = read.get(key)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            _refuse_other_types(name, value, found, f"{place}{key}.")
        if isinstance(value, (list, tuple)) and isinstance(found, (list, tuple)):
            items, others = dict(enumerate(value)), dict(enumerate(found))
            _refuse_other_types(name, items, others, f"{place}{key}.")
        is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
        if is_number and isinstance(value, (bool, str)):
            raise BadParameter(
                f"suite '{name}': '{place}{key}' expects a number such as {written(found)}, got"
                f" {written(value)}"
            )


def unused_settings(suite: Suite) -> Iterator[tuple[str, str]]:
    """Fields of a suite and its tables that have no effect, and why (`effect.without_effect`)."""
    for place, kind, values in _tables(suite):
        yield from without_effect(annotated_fields(kind), values, place)
    clients, training, clock = suite.clients, suite.training_clients, suite.clock
    if suite.unseen and training == clients:
        yield "unseen", _nobody("unseen", f"unseen={suite.unseen}", clients)
    if clock is None:
        return
    if clock.stragglers is not None and not clock.stragglers.of(training):
        came = f"share={clock.stragglers.share:g}"
        yield "clock.stragglers", _nobody("clock.stragglers", came, training)
    for name in (*SPEEDS, "client_edge"):
        speed = getattr(clock, name)
        if isinstance(speed, tuple) and len(speed) > clients:
            yield (
                f"clock.{name}",
                f"'clock.{name}' has {len(speed)} numbers, one for each client; got"
                f" clients={clients}: leave out the last {len(speed) - clients}",
            )


def _nobody(setting: str, came: str, clients: int) -> str:
    """What is said of a share that is no whole client."""
    return (
        f"'{setting}' has an effect only where it is a client or more; got {came} of {clients}:"
        f" expected {math.ceil(1000 / clients) / 1000:g} or more"
    )


def _tables(suite: Suite) -> Iterator[tuple[str, type, dict[str, Any]]]:
    """The tables of a suite with marked fields: what goes before their names, class, values."""
    plain = suite.model_dump()
    yield "", Suite, plain
    yield "local.", LocalTraining, plain["local"]
    if plain["clock"] is not None:
        yield "clock.", ClockSettings, plain["clock"]


def _drop_without_effect(suite: Suite, table: dict[str, Any], given: set[str]) -> bool:
    """Take from the suite's fields what other values, that are given, leave without effect.

    Args:
        suite: with all that is given.
        table: its fields as they are written, changed in place.
        given: dotted fields.

    Returns:
        Whether there was one.
    """
    dropped = False
    for place, kind, values in _tables(suite):
        inner = table.get(place.removesuffix("."), {}) if place else table
        for name, _, marks in annotated_fields(kind):
            broken = [one for one in conditions(marks) if not one.holds(values)]
            by = {f"{place}{field}" for one in broken for field in one.fields}
            if by & given and f"{place}{name}" not in given and name in inner:
                del inner[name]
                dropped = True
    return dropped


def _names(table: Mapping[str, object], place: str = "") -> Iterator[str]:
    """The dotted names of nested tables and of all that is in them.

    Example:
        >>> list(_names({"local": {"lr": 1}, "clock.up": 2, "unseen": 0}))
        ['local', 'local.lr', 'clock.up', 'unseen']
    """
    for key, value in table.items():
        yield f"{place}{key}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{place}{key}.")


EXPECTED = {
    "tuple_type": "expected a list, as [...]",
    "model_type": "expected a table, as {...}",
    "dict_type": "expected a table, as {...}",
}
"""What is said in place of pydantic's words, by its type of error."""
AS_COMPONENT = 'expected a name, or a table such as {name = "mlp", hidden = 64}'
"""What is said of a partition or network."""


def _refusal(name: str, problem: Any, table: object) -> UserError:  # noqa: ANN401 - pydantic's
    """The error of a field that does not fit: what was expected, its default, what came."""
    field = field_of(problem["loc"], table)
    path = field.split(".")
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return UnknownName(f"field of suite '{name}'", field, suite_fields(), listed="there are")
    if problem["type"] == "missing":
        return BadParameter(f"suite '{name}': '{field}' is missing; it has no default")
    expected = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
    if problem["type"] in EXPECTED:
        is_component = field in COMPONENTS and problem["type"] != "tuple_type"
        expected = AS_COMPONENT if is_component else EXPECTED[problem["type"]]
    known = Suite.model_fields.get(path[0])
    default = known.default if known is not None and not known.is_required() else None
    if isinstance(default, LocalTraining):
        default = getattr(default, path[-1], default)
    default_text = "" if default is None else f", default {default!r}"
    got = f"got {problem['input']!r}"
    return BadParameter(f"suite '{name}': '{field}': {expected}{default_text}; {got}")


def suite_fields() -> list[str]:
    """The fields that `--set` accepts; `partition` and `model` also take their own parameters."""
    local = [f"local.{name}" for name in LocalTraining.__dataclass_fields__]
    clock = [f"clock.{name}" for name in ClockSettings.model_fields]
    fixed = (DESCRIPTIVE - {"target"}) | {"name", "version", "local", "clock"}
    return [name for name in Suite.model_fields if name not in fixed] + local + clock


def suite_field(key: str) -> str | None:
    """The dotted suite field of a `--set` key, or None; `epochs` is `local.epochs`."""
    key = key.removeprefix("suite.")
    fields = suite_fields()
    if key in fields or key.startswith(("partition.", "model.", "clock.")):
        return key
    return next((field for field in fields if field == f"local.{key}"), None)


def _place(key: str) -> tuple[bool, int]:
    """Order of a `--set` key: what chooses a component goes before the component's parameters."""
    chooses = key.endswith(".name") or (key.startswith("clock.") and key.endswith(".distribution"))
    return not chooses, key.count(".")


def _convert(field: str, table: object, given: object) -> None:
    """Give the parameters of a component that `--set` names their types: 1 becomes 1.0.

    So equal settings have one fingerprint. Those of files stay as they are, and so do their
    fingerprints.
    """
    if not isinstance(given, Mapping) or not isinstance(table, dict):
        return
    name, (kind, skip) = table.get("name"), COMPONENTS[field]
    values = {key: table[key] for key in given if key != "name"}
    if values and isinstance(name, str):
        function = load_entry(find(kind, name))
        owner, known = f"{field} '{name}'", declared(function, skip=skip)
        table.update(checked(owner, function, values, skip=skip))
        refuse_unused(owner, known, {key: table[key] for key in known if key in table})


def _nested(key: str, value: object) -> dict[str, object]:
    """Nested tables of a dotted key: `a.b` -> {a: {b: value}}."""
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _merge(table: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Merge `other` into `table`, in depth; another component name drops the old parameters."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(table.get(key), dict):
            if any(value.get(kind, table[key].get(kind)) != table[key].get(kind) for kind in KINDS):
                table[key] = {}
            _merge(table[key], value)
        elif isinstance(value, Mapping) and isinstance(table.get(key), str):
            table[key] = {"name": table[key], **value}
        else:
            table[key] = value
