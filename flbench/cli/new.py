"""`flbench new NAME`: write a complete package: code, tests, README, licence, CI.

A template is a folder, `plugins/template/<kind>/`: a package named `flbench-my-<kind>` that builds
without changes. A new package is a copy of it with other names. `plugins/template/methods/<kind>/`
has the files in which other methods differ from the method of the server.
"""

from __future__ import annotations

import fcntl
import keyword
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from flbench import __version__
from flbench.errors import UnknownName, UserError
from flbench.locks import locked_folder
from flbench.plugin.registry import KINDS as INSTALLED
from flbench.plugin.registry import entries

KINDS = ("method", "suite", "dataset", "model", "sink")
METHODS = ("personalised", "clustered", "client", "server")
"""Kinds of methods: what a method decides; "method" is "server"."""
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TEMPORARY = ".flbench-new-"
"""What the name of a folder begins with that is not whole yet."""
CREATED_BY_TOOLS = re.compile(r"__pycache__|build|dist|.+\.egg-info|\..+_cache")
"""Folders that tools such as pip and pytest create in a template."""
COMMANDS = re.compile(r"^## Work on it\n\n((?:    .+\n)+)", re.MULTILINE)
"""The first commands, in a package's README."""


def new(
    name: Annotated[str, typer.Argument(help="what people will type, such as my-method")],
    kind: Annotated[
        str,
        typer.Option(help=f"{', '.join(KINDS)}; of methods also {', '.join(METHODS)}"),
    ] = "method",
    paper: Annotated[
        str, typer.Option(help="a method's paper, such as 'Ada, Babbage, ICML 2026'")
    ] = "",
    year: Annotated[int, typer.Option(min=0, help="the year of the paper")] = 0,
    author: Annotated[
        str, typer.Option(help="who holds the copyright [default: The authors of flbench-NAME]")
    ] = "",
    out: Annotated[Path, typer.Option(help="where to put the folder flbench-NAME")] = Path(),
) -> None:
    """Write a package that offers a method, suite, data set, model or sink of your own."""
    if kind not in KINDS + METHODS:
        raise UnknownName("kind", kind, KINDS + METHODS, listed="there are")
    for option, text in (("author", author), ("paper", paper)):
        if not text.isprintable() or set(text) & set('"\\'):
            raise UserError(f'--{option}: expected one line without " and \\, got {text!r}')
    texts, variety = template(kind), kind
    kind = "method" if kind in METHODS else kind
    if (paper or year) and kind != "method":
        raise UserError(f"--paper and --year are of methods, not of a {kind}")
    refuse(name, kind, texts)
    folder = out / f"flbench-{name}"
    if not out.is_dir():
        raise UserError(f"--out: expected a folder, there is no '{out}': create it first")
    if folder.exists() or folder.is_symlink():
        raise UserError(f"'{folder}' is there already: move it away, or choose another name")
    author = author.strip() or f"The authors of {folder.name}"
    replaced = words(name, kind, author, date.today().year)
    texts = filled(texts, replaced | paper_words(paper.strip().rstrip("."), year))
    write(folder, texts)
    commands = COMMANDS.findall(texts["README.md"])
    sort = f"{variety} method" if variety in METHODS else kind
    print(f"wrote {folder} (the {sort} {name}, licence MIT); type next:\n")
    print(f"    cd {shlex.quote(str(folder))}\n{''.join(commands)}", end="")


def template(kind: str) -> dict[str, str]:
    """The files of a template, path -> text."""
    root = Path(str(files("flbench_plugins"))) / "template"
    texts = _texts(root / ("method" if kind in METHODS else kind))
    if kind in METHODS and kind != "server":
        about = _summary(texts)
        texts |= _texts(root / "methods" / kind)
        texts["README.md"] = texts["README.md"].replace(about, _summary(texts))
    return texts


def _texts(folder: Path) -> dict[str, str]:
    """The files of a folder, path -> text, without what tools leave there."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(map(CREATED_BY_TOOLS.fullmatch, path.relative_to(folder).parts))
    }


def _summary(texts: Mapping[str, str]) -> str:
    """What the first line of a method's module says."""
    return texts["flbench_my_method.py"].partition("\n")[0].partition(": ")[2]


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
    class_name = class_of(name)
    taken = rf"^((from|import) .*|class )\b{class_name}\b"
    own = class_of(f"my-{kind}")  # the template's class, whose place it takes
    if keyword.iskeyword(class_name) or any(
        class_name != own and re.search(taken, text, re.MULTILINE) for text in texts.values()
    ):
        raise UserError(f"new: {class_name} means something else in Python: add a word")


def module_of(name: str) -> str:
    """The module of a name.

    Example:
        >>> module_of("my-method"), class_of("my-method")
        ('flbench_my_method', 'MyMethod')
    """
    return f"flbench_{name.replace('-', '_')}"


def class_of(name: str) -> str:
    """The class of a name, as a person would write it.

    Example:
        >>> [class_of(name) for name in ("fedprox", "pfedhn", "dp-sgd", "big-step", "clusterfl")]
        ['FedProx', 'PFedHN', 'DPSGD', 'BigStep', 'ClusterFL']
    """
    return "".join(map(_capitals, name.split("-")))


def _capitals(word: str) -> str:
    """A word of a name: what follows "fed" begins anew; abbreviations are in capitals."""
    for start, shown in (("pfed", "PFed"), ("fed", "Fed")):
        if word.startswith(start):
            return shown + _capitals(word.removeprefix(start))
    if len(word) > 3 and word.endswith("fl"):
        return word.removesuffix("fl").capitalize() + "FL"
    abbreviation = len(word) > 1 and not set(word) & set("aeiouy")
    return word.upper() if abbreviation else word.capitalize()


def words(name: str, kind: str, author: str, year: int) -> dict[str, str]:
    """Text in the template -> text in the package."""
    return {
        f"my-{kind}": name,
        f"my_{kind}": name.replace("-", "_"),
        f"My{kind.capitalize()}": class_of(name),
        "2026 The authors": f"{year} {author}",
        '"The authors"': f'"{author}"',
        "flbench>=0.2.0,<0.3": f"flbench>={__version__},<{next_breaking(__version__)}",
    }


def next_breaking(version: str) -> str:
    """The first version that may break what a version promises (docs/stability.md).

    Example:
        >>> next_breaking("0.2.1"), next_breaking("1.4.0")
        ('0.3', '2')
    """
    major, minor = map(int, version.split(".")[:2])
    return str(major + 1) if major else f"0.{minor + 1}"


def paper_words(paper: str, year: int) -> dict[str, str]:
    """The paper of a method, and its year, where the template has its own; without, no line."""
    constant = "    {}: ClassVar[{}] = {}\n".format
    return {
        "My paper.\n\n": f"{paper}.\n\n" if paper else "",
        constant("paper", "str", '"My paper"'): constant("paper", "str", f'"{paper}"')
        * bool(paper),
        constant("year", "int", 2026): constant("year", "int", year) * bool(year),
    }


def filled(texts: Mapping[str, str], words: Mapping[str, str]) -> dict[str, str]:
    """Files with other words in texts and paths; inserted text is not replaced again.

    Example:
        >>> filled({"one.txt": "one or two"}, {"one": "two", "two": "three"})
        {'two.txt': 'two or three'}
    """
    longest = sorted(words, key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, longest)))

    def fill(text: str) -> str:
        return known.sub(lambda found: words[found[0]], text)

    return {fill(path): fill(text) for path, text in texts.items()}


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files into a new folder, all of them or none."""
    try:
        remove_left(folder.parent)
        with locked_folder(folder.parent, TEMPORARY) as temporary:
            whole = temporary / folder.name
            for path, text in texts.items():
                file = whole / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
            whole.rename(folder)
    except OSError as error:
        raise UserError(f"new: '{folder}' cannot be written: {error.strerror}") from None


def remove_left(parent: Path) -> None:
    """Remove the temporary folders that killed commands left; what is locked stays."""
    for path in parent.glob(f"{TEMPORARY}????????"):
        with suppress(OSError):  # it is locked, somebody else's, no folder, or gone
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(handle)
