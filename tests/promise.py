"""What a release promised and a later one must keep (docs/stability.md), line by line.

A line is what `flbench show api --signatures` prints; `flbench/promised.py` shows one of each kind.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from flbench.api import Parameter, parameters


def version(text: str) -> tuple[int, int]:
    """`"0.2.1"` -> (0, 2)."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def split(line: str) -> tuple[str, str, str]:
    """A line of the snapshot: what it is, its name, the rest."""
    kind, _, rest = line.partition(" ")
    if kind == "command":
        name, _, words = re.sub(r" (?=[A-Z]|--|-)", "\n", rest, count=1).partition("\n")
        return kind, name, words
    name = re.match(r"[\w.-]+(\(\w*\))?(?= since)|[\w.-]+", rest)
    assert name is not None
    return kind, name.group(), rest[name.end() :]


def taken(rest: str) -> tuple[list[Parameter], set[str]]:
    """The parameters in `(a: int, b: int = 1) -> Tensor`, and the ancestors in `() < One, Two`."""
    rest, _, ancestors = rest.partition(") < ")
    (node,) = ast.parse(f"def f{rest}{')' if ancestors else ''}: ...").body
    assert isinstance(node, ast.FunctionDef)
    return parameters(node.args), set(filter(None, ancestors.split(", ")))


def broken_call(kind: str, name: str, old: str, new: str, gone: Collection[str]) -> str:
    """What a function, class or hook no longer keeps; "" = nothing."""
    (was, above), (now, still) = taken(old), taken(new)
    if above - still:
        return f"inherits from {', '.join(sorted(above - still))}"
    known = {one.name: one for one in now}
    was = [one for one in was if one.name in known or f"{name}({one.name})" not in gone]
    order = [one.name for one in was if one.kind != "named"]
    if [one.name for one in now if one.kind != "named"][: len(order)] != order:
        return f"takes ({', '.join(order)}) first and in this order: append what is new at the end"
    known = {one.name: one for one in now}
    if lost := [one.name for one in was if one.name not in known]:
        return f"takes '{lost[0]}'"
    if kind == "hook":
        return ""  # plugins name the arguments they want
    optional = [one.name for one in was if one.default is not None]
    if asked := [one for one in optional if known[one].default is None]:
        return f"needs no '{asked[0]}': give it its default again"
    added = [one for one in now if one.name not in {old.name for old in was}]
    if name.startswith("ClientModule.") and added:
        return f"is overridden with ({', '.join(order)}): plugins would not take '{added[0].name}'"
    needed = [p.name for p in added if p.default is None and p.kind not in ("rest", "options")]
    return f"works without '{needed[0]}': give it a default" if needed else ""


def broken_command(old: str, new: str) -> str:
    """What a command no longer takes, or newly demands; "" = nothing."""
    was, now = old.split(), new.split()
    places = [word for word in now if word[0] != "-"]
    spelt = {spelling: word for word in now for spelling in word.strip("!").split("/")}
    for at, word in enumerate([word for word in was if word[0] != "-"]):
        if places[at : at + 1] not in ([word], [word.strip("!")]):
            return f"takes {word.strip('!')} at place {at + 1}"
    for word in was:
        for spelling in word.strip("!").split("/"):
            if spelling not in spelt:
                return f"takes {spelling}"
            if spelt[spelling].endswith("!") > word.endswith("!"):
                return f"works without {spelling}"
    names = {spelling for word in was for spelling in word.strip("!").split("/")}
    added = [word for word in now if word[-1] == "!" and not {*word[:-1].split("/")} & names]
    return f"works without {added[0][:-1]}" if added else ""


def options(rest: str) -> set[str]:
    """The texts a `Literal` allows."""
    return set(re.findall(r'"[^"]*"', rest)) if "Literal[" in rest else set()


def broken(promised: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """A line for every promise of a release that no longer holds."""
    current = {split(line)[:2]: split(line)[2] for line in now[1:]}
    gone = {
        name for kind, name, rest in map(split, promised[1:])
        if kind == "deprecated"
        and version(re.findall(r"goes in ([\d.]+)", rest)[0]) <= version(now[0].split()[1])
    }  # fmt: skip
    for kind, name, rest in map(split, promised[1:]):
        new, what = current.get((kind, name)), ""
        free = kind in ("type", "deprecated") or {name, name.partition(".")[0], f"{name}()"} & gone
        if new is None:
            what = "" if free else "is there: deprecate it first (docs/stability.md)"
        elif kind == "command":
            what = broken_command(rest, new)
        elif kind in ("def", "class", "hook"):
            what = broken_call(kind, name, rest, new, gone)
        elif options(rest) - options(new):
            what = f"allows {', '.join(sorted(options(rest) - options(new)))}"
        if what:
            yield f"promised in {promised[0]}: {kind} {name} {what}"
