"""`flbench new NAME`: write a complete package: code, tests, README, licence, CI.

A template is a folder, `plugins/template/<kind>/`: a package named `flbench-my-<kind>` that builds
without changes. A new package is a copy of it with other names.
"""

from __future__ import annotations

import keyword
import re
import shlex
import tempfile
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from flbench import __version__
from flbench.errors import UnknownName, UserError
from flbench.plugin.registry import KINDS as INSTALLED
from flbench.plugin.registry import entries

KINDS = ("method", "suite", "dataset", "model", "sink")
LICENCES = ("MIT", "BSD-3-Clause", "Apache-2.0", "none")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
CREATED_BY_TOOLS = re.compile(r"__pycache__|build|dist|.+\.egg-info|\..+_cache")
"""Folders that tools such as pip and pytest create in a template."""
COMMANDS = re.compile(r"^## Work on it\n\n((?:    .+\n)+)", re.MULTILINE)
"""The first commands, in a package's README."""


def new(
    name: Annotated[str, typer.Argument(help="what people will type, such as my-method")],
    kind: Annotated[str, typer.Option(help=", ".join(KINDS))] = "method",
    licence: Annotated[str, typer.Option(help=", ".join(LICENCES))] = "MIT",
    author: Annotated[
        str, typer.Option(help="who holds the copyright [default: The authors of flbench-NAME]")
    ] = "",
    out: Annotated[Path, typer.Option(help="where to put the folder flbench-NAME")] = Path(),
) -> None:
    """Write a package that offers a method, suite, data set, model or sink of your own."""
    if kind not in KINDS:
        raise UnknownName("kind", kind, KINDS, listed="there are")
    if licence not in LICENCES:
        raise UnknownName("licence", licence, LICENCES, listed="there are")
    if not author.isprintable() or set(author) & set('"\\'):
        raise UserError(f'--author: expected one line without " and \\, got {author!r}')
    texts = template(kind, licence)
    refuse(name, kind, texts)
    folder = out / f"flbench-{name}"
    if not out.is_dir():
        raise UserError(f"--out: expected a folder, there is no '{out}': create it first")
    if folder.exists() or folder.is_symlink():
        raise UserError(f"'{folder}' is there already: move it away, or choose another name")
    author = author.strip() or f"The authors of {folder.name}"
    texts = filled(texts, words(name, kind, licence, author, date.today().year))
    write(folder, texts)
    commands = COMMANDS.findall(texts["README.md"])
    print(f"wrote {folder} (the {kind} {name}, licence {licence}); type next:\n")
    print(f"    cd {shlex.quote(str(folder))}\n{''.join(commands)}", end="")


def template(kind: str, licence: str) -> dict[str, str]:
    """The files of a template, path -> text, with the text of a licence unless it is "none"."""
    root = Path(str(files("flbench_plugins"))) / "template"
    texts = {
        path.relative_to(root / kind).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / kind).rglob("*"))
        if path.is_file() and not any(map(CREATED_BY_TOOLS.fullmatch, path.relative_to(root).parts))
    }
    del texts["LICENSE"]
    chosen = root / "licences" / f"{licence}.txt"
    return texts | ({"LICENSE": chosen.read_text("utf-8")} if licence != "none" else {})


def refuse(name: str, kind: str, texts: Mapping[str, str]) -> None:
    """Refuse a name that is not valid, already in use, or taken in the texts of the template."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"new: expected lower-case words joined by hyphens, such as my-{kind}, got {name!r}"
        )
    for entry in (entry for one in INSTALLED for entry in entries(one).values()):
        if (entry.kind, entry.name) == (f"{kind}s", name):
            raise UserError(f"new: {entry} is installed already: choose another name")
        if entry.module().partition(".")[0] == module_of(name):
            raise UserError(
                f"new: the module {module_of(name)} is installed already, for {entry}: choose"
                " another name"
            )
    taken = rf"^(from|import) .*\b{class_of(name)}\b"
    if keyword.iskeyword(class_of(name)) or any(
        re.search(taken, text, re.MULTILINE) for text in texts.values()
    ):
        raise UserError(f"new: {class_of(name)} means something else in Python: add a word")


def module_of(name: str) -> str:
    """The module of a name.

    Example:
        >>> module_of("my-method"), class_of("my-method")
        ('flbench_my_method', 'MyMethod')
    """
    return f"flbench_{name.replace('-', '_')}"


def class_of(name: str) -> str:
    """The class of a name."""
    return "".join(map(str.capitalize, name.split("-")))


def words(name: str, kind: str, licence: str, author: str, year: int) -> dict[str, str]:
    """Text in the template -> text in the package."""
    terms = 'license = "{}"\nlicense-files = ["LICENSE"]\n'
    return {
        f"my-{kind}": name,
        f"my_{kind}": name.replace("-", "_"),
        class_of(f"my-{kind}"): class_of(name),
        "2026 The authors": f"{year} {author}",
        '"The authors"': f'"{author}"',
        "flbench>=0.2.0": f"flbench>={__version__}",
        terms.format("MIT"): "" if licence == "none" else terms.format(licence),
        "Licence: MIT.": f"Licence: {licence}.",
    }


def filled(texts: Mapping[str, str], words: Mapping[str, str]) -> dict[str, str]:
    """Files with other words in texts and paths; inserted text is not replaced again.

    Example:
        >>> filled({"one.txt": "one or two"}, {"one": "two", "two": "three"})
        {'two.txt': 'two or three'}
    """
    known = re.compile("|".join(map(re.escape, words)))

    def fill(text: str) -> str:
        return known.sub(lambda found: words[found[0]], text)

    return {fill(path): fill(text) for path, text in texts.items()}


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files into a new folder, all of them or none."""
    try:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".flbench-") as beside:
            whole = Path(beside) / folder.name
            for path, text in texts.items():
                file = whole / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
            whole.rename(folder)
    except OSError as error:
        raise UserError(f"new: '{folder}' cannot be written: {error.strerror}") from None
