"""What `flbench data` says: which data sets are there, whether they are whole, where to get more.

A loader's module may say more of its data sets in tables by name: ABOUT (or one About), FOUND (a
function of the root: what lies there, or None), FETCH (a function of the root that downloads) and
MD5 (a function that gives the md5 of the original files, by path under the root).
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flbench.core.dataset import DatasetInfo
from flbench.datasets.files import Found
from flbench.errors import MissingData, PluginError, UserError
from flbench.federation.loading import load_dataset, takes_argument
from flbench.plugin.registry import entries, find, load_entry

UNSAID = DatasetInfo(source="not said", licence="not said")


@dataclass(frozen=True)
class Row:
    """One data set and what lies of it under a data root.

    Attributes:
        state: present, part, absent, door (it takes an argument), broken, or unknown (it does not
            say where its files lie).
        where: the place, relative to the root.
        samples: how many, "24,000 of 60,000" of a part; "-" = known when it is loaded.
    """

    name: str
    state: str
    where: str
    samples: str
    about: DatasetInfo


def report(root: Path, name: str = "", check: bool = False, fetch: bool = False) -> list[str]:
    """The lines of `flbench data`.

    Args:
        name: a data set; "" = all.
        check: load it (of all: those that are there) and compare it with what is known of it.
        fetch: download its files first.

    Raises:
        UnknownName: nobody offers it.
        UserError: it cannot be fetched, or is not what it should be.
    """
    if fetch:
        download(name, root)
    if check:
        return checks(root, name)
    if name:
        return details(surveyed(name.partition(":")[0], root), root)
    return table([surveyed(one, root) for one in entries("datasets")], root)


def surveyed(name: str, root: Path) -> Row:
    """What lies of one data set under a root; only file names and headers are looked at."""
    entry = find("datasets", name)
    try:
        load = load_entry(entry)
    except PluginError as error:
        return Row(name, "broken", str(error), "-", UNSAID)
    module = sys.modules[load.__module__]
    about = of(module, "ABOUT", name) or UNSAID
    if takes_argument(load):
        return Row(name, "door", about.fetch, "-", about)
    look = of(module, "FOUND", name)
    if look is None and about.fetch and not about.files:
        return Row(name, "unknown", "-", "-", about)
    try:
        found = look(root) if look else whole(about, root)
    except UserError as error:
        return Row(name, "broken", str(error), "-", about)
    if found is None:
        return Row(name, "absent", "-", f"0 of {about.samples:,}" if about.samples else "-", about)
    count = f"{found.samples:,}" if found.samples else "-"
    if found.whole:
        return Row(name, "present", found.where, count, about)
    known = found.samples and about.samples
    return Row(
        name, "part", found.where, f"{count} of {about.samples:,}" if known else count, about
    )


def of(module: ModuleType, constant: str, name: str) -> Any:  # noqa: ANN401 - as the constant is
    """What a module says of one of its data sets, or None."""
    said = getattr(module, constant, None)
    return said.get(name) if isinstance(said, dict) else said


def whole(about: DatasetInfo, root: Path) -> Found | None:
    """All of a data set, if all its files are there."""
    if not about.files:
        return Found("built in", about.samples, True)
    if not all((root / file).exists() for file in about.files):
        return None
    return Found(str(Path(about.files[0]).parent), about.samples, True)


def table(rows: list[Row], root: Path) -> list[str]:
    """One line for each data set, in columns."""
    head = ("name", "state", "where", "samples", "licence", "source")
    cells = [
        head,
        *((r.name, r.state, r.where, r.samples, r.about.licence, r.about.source) for r in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    return [f"data root: {root}", *(line.rstrip() for line in lines)]


def details(row: Row, root: Path) -> list[str]:
    """All that is known of one data set."""
    files = ", ".join(row.about.files)
    fetch = row.about.fetch
    if row.about.files and fetch.startswith("flbench data"):
        command, mark, rest = fetch.partition(" --fetch")
        fetch = f"{command}{mark} --data-root {shlex.quote(str(root))}{rest}"
    said = {
        "state": row.state,
        "where": row.where,
        "samples": row.samples,
        "licence": row.about.licence,
        "source": row.about.source,
        "files": f"{files} under {root}" if files else "",
        "door" if row.state == "door" else "to get it": fetch,
    }
    return [row.name, *(f"  {key:<9}  {value}" for key, value in said.items() if value)]


def checks(root: Path, name: str = "") -> list[str]:
    """Load one data set, or all that are there, and compare with what is known of them.

    Raises:
        UserError: one of them cannot be loaded, or has another number of samples.
    """
    if name:
        return [checked(name, root)]
    lines, wrong = [], []
    for row in [surveyed(one, root) for one in entries("datasets")]:
        if row.state == "absent":
            lines.append(f"{row.name}: absent")
        elif row.state != "door":
            try:
                lines.append(checked(row.name, root))
            except MissingData:
                lines.append(f"{row.name}: absent")
            except UserError as error:
                wrong.append(str(error))
    if wrong:
        raise UserError("; ".join(wrong))
    return lines


def checked(name: str, root: Path) -> str:
    """Load a data set and say what it is.

    Raises:
        UserError: it cannot be loaded, or has another number of samples than was found.
    """
    row = surveyed(name.partition(":")[0], root)
    data = load_dataset(name, root)
    count, expected = len(data.y), row.samples.partition(" ")[0].replace(",", "")
    if row.state in ("present", "part") and expected.isdecimal() and count != int(expected):
        raise UserError(f"{name}: expected {int(expected):,} samples, got {count:,}")
    shape = "x".join(str(size) for size in data.x.shape[1:])
    told = [f"{name}: {count:,} samples of {shape}", f"{data.classes} labels"]
    if data.domains is not None:
        told.append(f"{len(data.domains.unique())} domains")
    if data.test is not None:
        told.append(f"{int(data.test.sum()):,} of the test part")
    if data.name != name:
        told.append(f"loaded as {data.name}")
    if row.state == "part":
        told.append(f"a part: {row.samples}" if " of " in row.samples else "a part")
    return ", ".join([*told, *md5_said(row.name, root)])


def md5_said(name: str, root: Path) -> list[str]:
    """Whether files are the originals, where their md5 is known and they are there."""
    listed = of(sys.modules[load_entry(find("datasets", name)).__module__], "MD5", name)
    known = {root / file: md5 for file, md5 in (listed() if listed else {}).items()}
    if not known or not all(path.is_file() for path in known):
        return []
    other = [
        path.name
        for path, md5 in known.items()
        if hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() != md5
    ]
    return [f"not the original by md5: {' '.join(other)}" if other else "the originals by md5"]


def download(name: str, root: Path) -> None:
    """Fetch a data set's files into the data root.

    Raises:
        UserError: it has none to fetch by a command, or they do not come.
    """
    if not name:
        raise UserError("--fetch expects the name of a data set: flbench data NAME --fetch")
    row = surveyed(name, root)
    get = of(sys.modules[load_entry(find("datasets", name)).__module__], "FETCH", name)
    if get is None:
        told = row.about.fetch or "it needs no files"
        raise UserError(f"data set '{name}' is not fetched by a command: {told}")
    try:
        get(root)
    except (OSError, RuntimeError) as error:
        told = " ".join(str(error).split())
        raise UserError(f"data set '{name}' could not be fetched into {root}: {told}") from None
