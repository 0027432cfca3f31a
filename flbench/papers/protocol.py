"""Protocol: how the suites of a scale differ from what the paper did, computed from both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from math import isclose
from typing import TYPE_CHECKING

from flbench.papers.paper import Paper, PaperTable, Scale, Source, Stated, plugin_of
from flbench.papers.reproduction import ReproducedValue, by_part
from flbench.suite import Suite, load_suite, suite_field

if TYPE_CHECKING:
    from flbench.results.schema import Result
    from flbench.run.composition import LoadedMethod

DERIVED = {
    "images": "samples that the clients hold, without a common test part",
    "samples": "training samples a client, mean",
    "train_share": "share of a client's samples that it trains on",
    "seeds": "runs of each cell",
}
"""What a protocol states beside settings; all but the share are counted in results."""
COUNTED = 0.005
"""Relative difference of a counted number that remainders of splits may make."""
MOST_OF_SERVER = 1 / 9
"""The server's samples are at most a tenth of all, so a ninth of what the clients hold."""
SPLIT = ("validation_fraction", "test_fraction")
"""Settings of which the share that is trained on is made."""
StatedValue = int | float | str | None
SuiteOnData = tuple[str, str]


@dataclass(frozen=True)
class Departure:
    """A setting in which a scale differs from the paper, or about which the paper says nothing.

    Attributes:
        stated: what the paper says; its value is None where it says nothing.
        here: our value -> the suites and data sets that have it.
    """

    stated: Stated
    here: dict[str, list[SuiteOnData]]


def departures(
    paper: Paper, table: PaperTable, scale: Scale, found: Sequence[ReproducedValue]
) -> list[Departure]:
    """How a scale of a table differs from the protocol of the paper, in the order of its file.

    Settings of the scale that the protocol does not mention come last. A setting that only the
    person can give (`Scale.needs`) is taken to be as the paper has it.

    Args:
        found: the numbers of the table at this scale; results among them are counted.
    """
    from flbench.run.composition import load_method

    rows: dict[tuple[str, StatedValue], Departure] = {}
    load = cache(load_method)
    ran = any(one.results for one in found)
    for place, numbers in by_part(found).items():
        if place[1] not in scale.on:
            continue
        results = [result for one in numbers for result in one.results]
        setting = _Setting.of(table, scale, place, results, load)
        for stated in _stated_of(paper, table, scale, place):
            ours = setting.value(stated.what)
            if stated.what in scale.needs or ours is None or same(stated, ours):
                continue
            if stated.what == "seeds" and ran and not results:
                continue  # how many are planned says nothing of the runs that stand there
            row = rows.setdefault((stated.what, stated.value), Departure(stated, {}))
            row.here.setdefault(text(ours), []).append(place)
    order = [one.what for one in (*paper.protocol, *table.protocol)]
    order.insert(order.index("train_share") + 1 if "train_share" in order else 0, "samples")
    place_of = {what: at for at, what in reversed(list(enumerate(order)))}
    return sorted(rows.values(), key=lambda one: place_of.get(one.stated.what, len(order)))


def _stated_of(
    paper: Paper, table: PaperTable, scale: Scale, place: SuiteOnData
) -> Iterator[Stated]:
    """What the protocol says of a suite on a data set, and settings of the scale that it lacks."""
    own = [one for one in (*paper.protocol, *table.protocol) if one.about(*place)]
    yield from own
    known = {one.what: one for one in own}
    if "samples" not in known and (computed := _samples(known)) is not None:
        yield computed
    methods = {plugin_of(method)[0] for method in table.methods}
    covered = {*known, *(SPLIT if "train_share" in known else ())}
    for key in sorted(_settings(scale, place).keys() - covered):
        if suite_field(key) is not None or key.partition(".")[0] in methods:
            yield Stated(what=key)


def _samples(known: Mapping[str, Stated]) -> Stated | None:
    """The training samples of a client as they follow from what is stated, if it is."""
    parts = [known.get(name) for name in ("images", "train_share", "clients")]
    numbers = [
        one.value for one in parts if one is not None and isinstance(one.value, (int, float))
    ]
    if len(numbers) < len(parts):
        return None
    images, share, clients = numbers
    sources = {one.source for one in parts if one is not None}
    where = "samples held x share / clients"
    weakest: tuple[Source, ...] = ("inferred", "script", "supplement", "paper")
    source = next(one for one in weakest if one in sources)
    return Stated(what="samples", value=images * share / clients, source=source, where=where)


def _settings(scale: Scale, place: SuiteOnData) -> dict[str, StatedValue]:
    """The settings of a scale on a data set; those of suites by their full names."""
    given = {**scale.settings, **scale.on.get(place[1], {})}
    return {suite_field(key) or key: value for key, value in given.items()}


@dataclass(frozen=True)
class _Setting:
    """A suite as a scale runs it, and all else that a protocol may state."""

    table: PaperTable
    scale: Scale
    place: SuiteOnData
    settings: Mapping[str, StatedValue]
    suite: Suite
    results: Sequence[Result]
    load: Callable[[str], LoadedMethod]

    @classmethod
    def of(
        cls,
        table: PaperTable,
        scale: Scale,
        place: SuiteOnData,
        results: Sequence[Result],
        load: Callable[[str], LoadedMethod],
    ) -> _Setting:
        settings = _settings(scale, place)
        overrides = {key: value for key, value in settings.items() if suite_field(key)}
        return cls(table, scale, place, settings, load_suite(*place, overrides), results, load)

    def value(self, what: str) -> StatedValue:
        """Our value; None where the scale has none, or it is counted and nothing was run."""
        if what == "seeds":
            seeds: dict[str, set[int]] = {}
            for one in self.results:
                seeds.setdefault(one.method.name, set()).add(one.seed)
            return min(map(len, seeds.values()), default=self.scale.seeds)  # some may have fewer
        if what == "train_share":
            return train_share(self.suite)
        if what == "server_samples" and self.results and self.suite.test_set == "own":
            held = counted("images", self.suite, self.results[0])
            return min(self.suite.server_samples, round(held * MOST_OF_SERVER))
        if what in DERIVED:
            return counted(what, self.suite, self.results[0]) if self.results else None
        if suite_field(what) is not None:
            return field_value(self.suite, what)
        owner, _, field = what.partition(".")
        if owner not in {plugin_of(method)[0] for method in self.table.methods}:
            return None
        method = self.load(owner)
        presets = self.scale.preferred(self.place[1])
        preset = next((name for name in presets if name in method.presets), None)
        composed = method.compose(self.settings, preset)
        defaults = {one.name: one.default for _, layer in composed.layers for one in fields(layer)}
        value = {**defaults, **composed.described.params}.get(field)  # later ones are in no result
        return None if value is MISSING else _plain(value)


def train_share(suite: Suite) -> float:
    """The share of a client's samples that it trains on; of a pool of test samples it has none."""
    tested = suite.test_fraction if suite.test_set == "own" else 0.0
    return (1 - tested) * (1 - suite.validation_fraction)


def counted(what: str, suite: Suite, result: Result) -> float:
    """`images` or `samples` of a run."""
    clients = result.clients
    train = sum(clients.train)
    if what == "samples":
        return train / len(clients.train)
    kept = sum(clients.validation) if suite.validation_fraction else 0  # else it is the test part
    held = train + kept + (suite.test_set == "own") * sum(clients.test)
    return held * suite.clients / len(clients.train)  # newcomers hold as much as the others


def field_value(suite: Suite, what: str) -> StatedValue:
    """A field of a suite by its name in `--set`; of a component without a field its name.

    Weights that are not given are random ones.
    """
    first, _, rest = what.partition(".")
    value = getattr(suite, first)
    if rest:
        params = getattr(value, "params", None)
        value = getattr(value, rest, None) if params is None else params.get(rest)
        if what == "model.weights":
            value = value or "random"
    return _plain(getattr(value, "name", value))


def _plain(value: object) -> StatedValue:
    """A value that a protocol can state."""
    return value if isinstance(value, (int, float, str)) else None if value is None else str(value)


def same(stated: Stated, ours: StatedValue) -> bool:
    """Whether our value is the paper's; never where it gives none."""
    if isinstance(stated.value, (int, float)) and isinstance(ours, (int, float)):
        may_differ = COUNTED if stated.what in ("images", "samples") else 1e-9
        return isclose(stated.value, ours, rel_tol=may_differ)
    return stated.value == ours


def text(value: StatedValue) -> str:
    """A value on a page.

    Example:
        >>> text(60000), text(479.92), text(0.75), text(True), text("lenet5")
        ('60,000', '480', '0.75', 'true', 'lenet5')
    """
    if value is None or isinstance(value, (bool, str)):
        return str(value).lower() if not isinstance(value, str) else value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def cells(one: Departure, places: Sequence[SuiteOnData]) -> tuple[str, str, str, str]:
    """A row of a table: what, what the paper has, where it stands, and what is had here.

    Args:
        places: all suites and data sets of the scale; where a value is that of all, none is named.
    """
    stated, value = one.stated, one.stated.value
    what = DERIVED.get(stated.what, stated.what)
    source = ", ".join(filter(None, (stated.source, stated.where)))
    if len(one.here) == 1 and len(next(iter(one.here.values()))) == len(places):
        here = next(iter(one.here))
    else:
        here = "; ".join(f"{ours} ({_named(at, places)})" for ours, at in one.here.items())
    return what, "not given" if value is None else text(value), source, here


def _named(at: Sequence[SuiteOnData], places: Sequence[SuiteOnData]) -> str:
    """Suites and data sets in few words: a data set alone if all its suites are meant."""
    names = []
    for suite, dataset in at:
        whole = {place for place in places if place[1] == dataset} <= set(at)
        names.append(dataset if whole else f"{suite} on {dataset}")
    return ", ".join(dict.fromkeys(names))
