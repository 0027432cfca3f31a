"""Compare the public API with that of the last release, with griffe's rules.

    python docs/tools/check_api.py          what would break whoever uses the last release
    python docs/tools/check_api.py --write  at a release: write the public names of this version

The public names of the last release are a file, `docs/tools/api.txt`, as not every clone has tags.
A breaking change is allowed before 1.0 if a fragment for authors of plugins names it in backticks
(`docs/changelog/+SLUG.plugins.md`); the next version then has a higher minor number
(`RELEASING.md`).

What is public (docs/stability.md): the names that `flbench/__init__.py` imports, `flbench.testing`,
and the hooks. In the file a module is a class, annotations are left out, as they are not promised,
and inherited names are there, so that a method may move to a base class.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
RELEASED = Path(__file__).with_name("api.txt")
FRAGMENTS = ROOT / "docs" / "changelog"
FIRST = (
    "# The public names of flbench {version}; `python docs/tools/check_api.py --write` writes them."
)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
HOOKS = "hookspecs"
"""What holds the hooks in the file, wherever they are specified."""


def public_names(root: Path) -> str:
    """The public names of the flbench below a folder, with their signatures, as Python code."""
    package = griffe.load("flbench", search_paths=[str(root)], try_relative_path=False)
    assert isinstance(package, griffe.Module)
    homes = {
        name: path.removeprefix("flbench.")
        for name, path in package.imports.items()
        if path.startswith("flbench.")
    }
    hooks = homes["hookimpl"].rpartition(".")[0]
    shown = {name: package[home] for name, home in homes.items()} | {"testing": package["testing"]}
    lines = [FIRST.format(version=version_of(root))]
    for name in sorted(shown):
        lines += rendered(name, shown[name], "")
    lines.append(f"class {HOOKS}:")
    for name, hook in sorted(hooks_of(package[hooks])):
        lines += rendered(name, hook, "    ")
    return "\n".join(lines) + "\n"


def hooks_of(item: griffe.Object) -> Iterator[tuple[str, griffe.Function]]:
    """The hooks that a module specifies, also those inside its classes."""
    for name, member in item.members.items():
        if isinstance(member, griffe.Class):
            yield from hooks_of(member)
        elif isinstance(member, griffe.Function) and any(
            "hookspec" in str(one.value) for one in member.decorators
        ):
            yield name, member


def rendered(name: str, item: griffe.Object | griffe.Alias, indent: str) -> Iterator[str]:
    """The lines of one name; of a module or a class also those of its public members."""
    item = item.final_target if isinstance(item, griffe.Alias) else item
    if isinstance(item, griffe.Function):
        yield f"{indent}def {name}({signature(item.parameters)}): ..."
    elif isinstance(item, griffe.Attribute):
        is_field = item.parent is not None and item.parent.is_class
        yield f"{indent}{name} = {item.value if is_field and item.value is not None else '...'}"
    else:
        yield f"{indent}class {name}:"
        inside = [
            line
            for member_name, member in sorted(members(item).items())
            for line in rendered(member_name, member, f"{indent}    ")
        ]
        yield from inside or [f"{indent}    pass"]


def members(item: griffe.Object) -> dict[str, griffe.Object | griffe.Alias]:
    """Public members of a module or a class, inherited ones too; of a module no submodules."""
    if not item.is_module:
        return {name: one for name, one in item.all_members.items() if is_promised(name)}
    if not item.exports:
        own = {name: one for name, one in item.members.items() if is_promised(name)}
        return {name: one for name, one in own.items() if not (one.is_alias or one.is_module)}
    homes = {name: item.imports.get(name, f"{item.path}.{name}") for name in map(str, item.exports)}
    return {name: item.modules_collection.get_member(home) for name, home in homes.items()}


def is_promised(name: str) -> bool:
    """Whether a name has no underscore in front; constructors and calls are promised too."""
    return not name.startswith("_") or name in ("__init__", "__call__")


def signature(parameters: griffe.Parameters) -> str:
    """Parameters as Python writes them, without annotations."""
    found: list[str] = []
    last = None
    for one in parameters:
        kind = one.kind
        if kind is griffe.ParameterKind.keyword_only and last not in (
            griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional,
        ):  # fmt: skip
            found.append("*")
        if last is griffe.ParameterKind.positional_only and kind is not last:
            found.append("/")
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind.value, "")
        default = "" if stars or one.default is None else f"={one.default}"
        found.append(f"{stars}{one.name}{default}")
        last = kind
    if last is griffe.ParameterKind.positional_only:
        found.append("/")
    return ", ".join(found)


def version_of(root: Path) -> str:
    """The version that a source tree says it is."""
    source = (root / "flbench" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)
    assert found is not None
    return found[1]


def broken(old: str, new: str) -> list[tuple[str, str]]:
    """What breaks whoever uses `old`: the name, and what became of it, by griffe's rules."""
    before, now = (griffe.visit("flbench", Path("api.txt"), text) for text in (old, new))
    found = []
    for one in griffe.find_breaking_changes(before, now):
        line = COLOURS.sub("", one.explain(griffe.ExplanationStyle.ONE_LINE))
        found.append((one.obj.path, line.partition(": ")[2]))
    return found


def untold(names: Iterable[str], fragments: str) -> list[str]:
    """Those of some names that no text has in backticks: `fl.Stage.epochs`, or its last parts."""
    said = {short(word.partition("(")[0]) for word in re.findall(r"`([^`]+)`", fragments)}
    return [
        name
        for name in dict.fromkeys(map(short, names))
        if not said & {name.split(".", at)[-1] for at in range(name.count(".") + 1)}
    ]


def short(path: str) -> str:
    """A name as a text has it: without the package, `hookspecs` and `__init__`."""
    parts = path.removeprefix("fl.").split(".")
    return ".".join(one for one in parts if one not in ("flbench", HOOKS, "__init__"))


def judge(old: str, new: str, version: str, fragments: str) -> list[str]:
    """What is wrong with what breaks between two lists of names, a line for each.

    Args:
        old: as `public_names` writes it, of the last release.
        new: of this version.
        version: what this version says it is; until a release, that of the last one.
        fragments: the fragments for authors of plugins.
    """
    released = re.findall(r"\d+\.\d+", old.partition("\n")[0])[0]
    changes = broken(old, new)
    if not changes:
        return []
    if version.count(".") == 2 and not version.endswith(".0") and version.startswith(released):
        return [f"{version} is a patch, which breaks nothing: raise the minor version"]
    return [
        f"no fragment names `{name}`: keep it, or write docs/changelog/+SLUG.plugins.md"
        for name in untold((path for path, _ in changes), fragments)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 = a breaking change that no fragment names, or that a patch may not have."""
    parser = argparse.ArgumentParser(description="Compare the public API with the last release.")
    parser.add_argument("--write", action="store_true", help="write the names of this version")
    new = public_names(ROOT)
    if parser.parse_args(arguments).write:
        RELEASED.write_text(new, encoding="utf-8")
        print(f"{RELEASED.relative_to(ROOT)}: the public names of flbench {version_of(ROOT)}")
        return 0
    old = RELEASED.read_text(encoding="utf-8")
    told = [one.read_text(encoding="utf-8") for one in FRAGMENTS.glob("*.plugins.md")]
    for path, change in broken(old, new):
        print(f"{path}: {change}")
    wrong = judge(old, new, version_of(ROOT), "\n".join(told))
    print(*(wrong or ["public API: nothing breaks that no fragment names"]), sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
