"""What a submitted file says of whose code it ran: its names, and the hashes of their sources.

What is installed here is compared; nothing of the file is imported. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution

from flbench.leaderboard.audited import installed_source
from flbench.plugin.registry import Entry, entries, one_of
from flbench.plugin.source_inspection import class_flag
from flbench.results.schema import Plugin, Result
from flbench.run.composition import FLAGS

PROSE = ("suite.paper", "warnings", "notes.value")
"""Fields that hold text for a person; every other key and text of a file is an identifier."""
ALIKE = str.maketrans("01i", "oll")
"""Characters that look like others in one font or another."""


def unreadable(result: Result) -> Iterator[str]:
    """Identifiers with other characters than the printable ones of ASCII: they can look alike.

    Keys count as the names of what lies below them, so a field is named by its place.
    """
    table = result.model_dump(exclude_unset=True)
    for field, text in _texts("", table):
        if not (text.isascii() and text.isprintable()):
            yield f"{field!a}: letters, digits and signs of ASCII expected, got {text!a}"


def _texts(field: str, value: object) -> Iterator[tuple[str, str]]:
    """Every identifier below a field, with its place."""
    if field in PROSE:
        return
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield field, str(key)
            yield from _texts(f"{field}.{key}" if field else str(key), one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(field, one)


def shape_of(name: str) -> str:
    """What two names share that a reader takes for one.

    Example:
        >>> shape_of("FedAvg") == shape_of("fed-avg"), shape_of("f1is") == shape_of("flis")
        (True, True)
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return plain.translate(ALIKE).replace("rn", "m").replace("vv", "w")


def imitations(result: Result) -> Iterator[str]:
    """Names that a reader takes for those of something installed, and code that is not that."""
    for kind, name in _names(result):
        known = entries(kind)
        if name in known:
            continue
        shape = shape_of(name)
        like = [one for one in known if shape_of(one) == shape]
        yield from (
            f"{one_of(kind)} '{name}' looks like the installed '{one}': choose another name"
            for one in like
        )
    for plugin in result.plugins:
        yield from _unlike(plugin, result.method.params)


def _names(result: Result) -> Iterator[tuple[str, str]]:
    """The kind and name of everything that an entry point may offer."""
    suite = result.suite
    yield "suites", suite["name"]
    yield "models", suite["model"]["name"]
    yield from (("datasets", name) for name in re.split(r"[:\[\],]", result.dataset) if name)
    yield from (("methods", plugin.name) for plugin in result.plugins)


def _installed(package: str) -> tuple[str, str]:
    """The name and version of an installed package, which may be asked for by another spelling.

    The name that was asked for and no version, where there is none, or its metadata are broken.
    """
    try:
        found = distribution(package)
        return found.metadata["Name"] or package, found.version or ""
    except (PackageNotFoundError, ValueError, TypeError, KeyError):
        return package, ""


def _unlike(plugin: Plugin, params: Mapping[str, object]) -> Iterator[str]:
    """How a plugin of a file is not the one that is installed under its name or its package's."""
    entry = entries("methods").get(plugin.name)
    name, version = _installed(plugin.distribution)
    if name != plugin.distribution:
        yield f"the package of {plugin.name} is '{name}', got '{plugin.distribution}'"
    elif entry and entry.distribution != name:
        yield (
            f"{plugin.name} is the method of {entry.distribution}, got one of {name}: another"
            " method needs another name"
        )
    elif version != plugin.version:
        return  # nothing to compare with
    elif entry is None:
        yield f"{name} {plugin.version}, which is installed here, has no method '{plugin.name}'"
    elif (here := installed_source(plugin.name)) and plugin.source != here:
        yield (
            f"{plugin.name} of {name} {plugin.version} has the source {here}, as installed here,"
            f" got '{plugin.source}': run it with the code of a release"
        )
    else:
        yield from _declared(plugin, entry, params)


def _declared(plugin: Plugin, entry: Entry, params: Mapping[str, object]) -> Iterator[str]:
    """What a plugin of a file says of itself other than the installed one, or its parameters."""
    for flag in FLAGS:
        own = params.get(flag, params.get(f"{plugin.name}.{flag}"))
        said = class_flag(entry.module(), entry.target(), flag) if own is None else bool(own)
        if said is not None and said != getattr(plugin, flag):
            text = f"{flag} = {said}, got {getattr(plugin, flag)}"
            yield f"'method.plugins.{flag}': {plugin.name} has {text}: submit what the run wrote"
