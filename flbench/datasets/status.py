"""The report of `flbench data`: which data sets are there and complete, and where to get others.

A loader's module can describe its data sets in tables by name: ABOUT (a DatasetInfo, or in place of
the table one for all), FOUND (a function of the root that returns the files found, or None), FETCH
(a function of the root that downloads them) and MD5 (a function that returns the md5 of the
originals, by path under the root).
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.doubts import doubts, some
from flbench.datasets.files import Found
from flbench.errors import MissingData, PluginError, UserError, text_of
from flbench.federation.loading import entry_name, load_dataset, of, takes_argument
from flbench.plugin.isolation import produced
from flbench.plugin.registry import entries, find, load_entry

UNKNOWN = DatasetInfo(source="not said", licence="not said")
ABSENT = Found("-", 0, whole=False)


@dataclass(frozen=True)
class StatusRow:
    """One data set and its files under a data root.

    Attributes:
        state: present, part, absent, argument (the data set takes one), broken, or unknown (its
            module does not name its files).
        where: path of the files, relative to the root.
        found: number of samples in the files; 0 = unknown until it is loaded.
    """

    name: str
    state: str
    about: DatasetInfo
    where: str = "-"
    found: int = 0

    @property
    def samples(self) -> str:
        """Number of samples, "24,000 of 60,000" for a part; "-" = unknown until it is loaded."""
        if not self.found and self.state != "absent":
            return "-"
        if self.about.samples and self.state != "present":
            return f"{self.found:,} of {self.about.samples:,}"
        return f"{self.found:,}" if self.found else "-"


def report(root: Path, name: str = "", check: bool = False, fetch: bool = False) -> list[str]:
    """The lines of `flbench data` about one data set, or about all of them ("").

    `fetch` downloads its files first; `check` loads it, or all that are there, and compares the
    number of samples and md5.

    Raises:
        UnknownName: no installed package has this data set.
        UserError: it cannot be fetched, or the check fails.
    """
    if fetch:
        download(name, root)
    if check:
        return checked(name, root) if name else check_all(root)
    if name:
        lines = details(surveyed(entry_name(name), root), root)
        if ":" in name:
            lines.insert(-1, f"  to check   flbench data {shlex.quote(name)} --check")
        return lines
    return table([surveyed(one, root) for one in entries("datasets")], root)


def surveyed(name: str, root: Path) -> StatusRow:
    """The state of one data set under a root, from file names and headers only."""
    try:
        load = load_entry(find("datasets", name))
    except PluginError as error:
        return StatusRow(name, "broken", UNKNOWN, str(error))
    about = of(load, "ABOUT", name) or UNKNOWN
    if takes_argument(load):
        return StatusRow(name, "argument", about, about.fetch)
    look = of(load, "FOUND", name)
    if look is None and about.fetch and not about.files:
        return StatusRow(name, "unknown", about)
    look = look or (lambda root: whole(about, root))
    try:
        found = produced(name, f"data set '{name}'", Found, lambda: look(root) or ABSENT)
    except UserError as error:
        return StatusRow(name, "broken", about, str(error))
    if found is ABSENT:
        return StatusRow(name, "absent", about)
    state = "present" if found.whole else "part"
    return StatusRow(name, state, about, found.where, found.samples)


def whole(about: DatasetInfo, root: Path) -> Found | None:
    """The complete data set if all its files are there, else None."""
    if not about.files:
        return Found("built in", about.samples, True)
    if not all((root / file).exists() for file in about.files):
        return None
    return Found(str(Path(about.files[0]).parent), about.samples, True)


def table(rows: list[StatusRow], root: Path) -> list[str]:
    """A table with one line per data set."""
    cells = [("name", "state", "where", "samples", "licence", "source")]
    cells += [(r.name, r.state, r.where, r.samples, r.about.licence, r.about.source) for r in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    return [f"data root: {root}", *(line.rstrip() for line in lines)]


def details(row: StatusRow, root: Path) -> list[str]:
    """The lines about one data set."""
    files = ", ".join(row.about.files)
    fetch = row.about.fetch
    if row.about.files and fetch.startswith("flbench data"):
        command, mark, rest = fetch.partition(" --fetch")
        fetch = f"{command}{mark} --data-root {shlex.quote(str(root))}{rest}"
    fields = {
        "state": row.state,
        "where": row.where,
        "samples": row.samples,
        "licence": row.about.licence,
        "source": row.about.source,
        "files": f"{files} under {root}" if files else "",
        "to use it" if row.state == "argument" else "to get it": fetch,
    }
    return [row.name, *(f"  {key:<9}  {value}" for key, value in fields.items() if value)]


def check_all(root: Path) -> list[str]:
    """Load and check all data sets that are there."""
    lines, wrong = [], []
    for name in entries("datasets"):
        state = surveyed(name, root).state
        if state == "argument":
            continue
        try:
            lines.append(f"{name}: absent" if state == "absent" else checked(name, root)[0])
        except MissingData:
            lines.append(f"{name}: absent")
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("; ".join(wrong))
    return lines


def checked(name: str, root: Path) -> list[str]:
    """Load a data set and describe it: in one line what it is, then what is in it.

    Raises:
        UserError: it cannot be loaded, or has another number of samples than expected.
    """
    row = surveyed(entry_name(name), root)
    data = load_dataset(name, root)
    count = len(data.y)
    if row.found and count != row.found:
        raise UserError(f"{name}: expected {row.found:,} samples, got {count:,}")
    shape = "x".join(str(size) for size in data.x.shape[1:])
    what = "numbers to predict" if data.task == "numbers" else "labels"
    targets = f"{data.classes} {what}"
    facts = [f"{name}: {count:,} samples of {shape}", targets]
    if data.domains is not None:
        facts.append(f"{len(data.domains.unique())} domains")
    if data.test is not None:
        facts.append(f"{int(data.test.sum()):,} of the test part")
    if data.name != name:
        facts.append(f"loaded as {data.name}")
    if row.state == "part":
        facts.append(f"a part: {row.samples}" if " of " in row.samples else "a part")
    return [", ".join([*facts, *compare_md5(row.name, root)]), *contents(data)]


def contents(data: Dataset) -> list[str]:
    """What is in a data set, as far as it says so, as lines of a page (`facts`)."""
    return [f"  {key:<8}  {text}" for key, text in facts(data)]


def facts(data: Dataset) -> list[tuple[str, str]]:
    """What is in a data set, as far as it says so: labels, domains, features, parts, notes."""
    found = targets(data)
    if data.domains is not None:
        sizes = torch.bincount(data.domains)
        names = f": {some(data.domain_names)}" if data.domain_names else ""
        found.append(("domains", f"{len(sizes):,}, {spread(sizes.tolist())} samples{names}"))
    if data.features:
        found.append(("features", some(data.features)))
    if not data.x.is_floating_point():
        found.append(("tokens", f"{int(data.x.min())} to {int(data.x.max())}"))
    notes = (*data.notes, *doubts(data))
    return [*found, ("tested", _tested(data)), *(("note", note) for note in notes)]


def targets(data: Dataset) -> list[tuple[str, str]]:
    """What is predicted: samples of each class or label; range, mean and deviation of numbers."""
    named = data.label_names or tuple(str(label) for label in range(data.classes))
    if data.task == "numbers":
        columns = data.y.view(len(data.y), -1).double().T
        pairs = zip(named, columns, strict=True)
        return [("targets", "; ".join(_range(*pair) for pair in list(pairs)[:5]))]
    if data.task == "labels":
        counts = data.y.sum(dim=0).tolist()
        none = int((data.y.sum(dim=1) == 0).sum())
        shown = [f"{name} {count:,}" for name, count in zip(named, counts, strict=True)]
        rest = f"; {none:,} samples have none" if none else ""
        return [("labels", f"any number for each sample: {some(shown)}{rest}")]
    if data.y.ndim > 1:
        return []
    counts = torch.bincount(data.y, minlength=data.classes).tolist()
    shown = [f"{name} {count:,}" for name, count in zip(named, counts, strict=True) if count]
    return [("labels", some(shown))]


def _range(name: str, column: torch.Tensor) -> str:
    """The range, mean and deviation of the numbers of a column, shape (m,)."""
    low, high, mean = float(column.min()), float(column.max()), float(column.mean())
    deviation = float(column.std(correction=0))
    return f"{name} {low:.4g} to {high:.4g}, mean {mean:.4g}, deviation {deviation:.4g}"


def spread(sizes: Sequence[int]) -> str:
    """The least, the median and the largest of some numbers.

    Example:
        >>> spread([3, 1, 1200])
        'least 1, median 3, most 1,200'
    """
    ordered = sorted(sizes)
    return f"least {ordered[0]:,}, median {ordered[len(ordered) // 2]:,}, most {ordered[-1]:,}"


def _tested(data: Dataset) -> str:
    """The part that clients are tested on."""
    if data.test is not None and (data.keeps_test or data.gap is not None):
        return f"its own test part, whole: {int(data.test.sum()):,} samples"
    if data.test is not None:
        return "its own test part, where the suite's test_set is not 'own'"
    if data.gap is not None:
        return f"the last part of each domain in time, {data.gap:,} samples after the others"
    return "a part that suites draw"


def compare_md5(name: str, root: Path) -> list[str]:
    """A text on whether the files are the originals; empty if their md5 is unknown."""
    listed = of(load_entry(find("datasets", name)), "MD5", name)
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
    """Download a data set's files into the data root."""
    if not name:
        raise UserError("--fetch expects the name of a data set: flbench data NAME --fetch")
    name = entry_name(name)
    row = surveyed(name, root)
    get = of(load_entry(find("datasets", name)), "FETCH", name)
    if get is None:
        instead = row.about.fetch or "it needs no files"
        raise UserError(f"data set '{name}' is not fetched by a command: {instead}")
    try:
        get(root)
    except (OSError, RuntimeError) as error:
        why = text_of(error)
        raise UserError(f"data set '{name}' could not be fetched into {root}: {why}") from None
