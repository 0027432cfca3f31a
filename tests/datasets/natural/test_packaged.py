"""Files of installed packages: found without an import, compared by hash, read as plain CSV."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from mentions import mention

from flbench.datasets.natural.packaged import PackagedFile, found_in, read_csv, text_of_file
from flbench.errors import MissingData, UserError

TEXT = '"","id","c","p"\n"1",1,"x",0.5\n"2",2,NA,NA\n"3",1,"y",2\n'
Made = Callable[..., PackagedFile]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A package with an archive that has one file; importing it fails."""
    folder = tmp_path / "archive_of_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemError('a package runs no code')")
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str = TEXT, mark: str = "", member: str = "a/t.csv") -> PackagedFile:
        data = text.encode()
        with tarfile.open(folder / "r.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("a/t.csv")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        return PackagedFile(
            folder.name, "1.0", "r.tar.gz", mark or sha256(data).hexdigest(), member
        )

    return make


def test_columns_by_hand(made: Made) -> None:
    """The column of row numbers has no name, and is left out."""
    found = read_csv(made())
    assert list(found) == ["id", "c", "p"]
    assert found["id"].tolist() == [1.0, 2.0, 1.0]
    assert found["c"].tolist() == ["x", "", "y"]
    np.testing.assert_equal(found["p"], [0.5, np.nan, 2.0])


def test_it_is_found_without_an_import(made: Made, tmp_path: Path) -> None:
    file = made()
    found = found_in(file, tmp_path)
    assert found is not None
    assert found.whole
    assert text_of_file(file) == TEXT


def test_another_version_is_refused(made: Made) -> None:
    with pytest.raises(UserError, match=mention("a/t.csv", "archive_of_tests 1.0", "pip install")):
        read_csv(made(mark="0" * 64))


def test_what_is_not_there_says_what_to_type(made: Made, tmp_path: Path) -> None:
    absent = PackagedFile("nowhere_of_tests", "1.0", "t", "0" * 64)
    with pytest.raises(MissingData, match=mention("nowhere_of_tests", "pip install")):
        text_of_file(absent)
    assert found_in(absent, tmp_path) is None
    file = made()
    lacking = PackagedFile(file.package, "1.0", "other.gz", "0" * 64)
    with pytest.raises(MissingData, match=mention("archive_of_tests", "other.gz")):
        text_of_file(lacking)
    with pytest.raises(UserError, match=mention("r.tar.gz")):
        text_of_file(made(member="a/none.csv"))
