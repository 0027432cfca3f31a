"""One version everywhere: the package, CITATION.cff and CHANGELOG.md."""

import re
from pathlib import Path

import pytest
import yaml
from citation import Citation
from pydantic import ValidationError

import flbench

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
RELEASES = dict(
    re.findall(
        r"^## \[(.+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
)


def test_the_citation_names_this_version_and_the_day_of_its_release() -> None:
    assert CITATION["version"] == flbench.__version__
    assert str(CITATION["date-released"]) == RELEASES[flbench.__version__]


def test_the_citation_is_ready_for_a_doi() -> None:
    """By the schema of CFF, before and after the line that a release adds (RELEASING.md)."""
    found = Citation.model_validate(CITATION)
    assert found.type == "software"
    assert found.abstract
    assert Citation.model_validate({**CITATION, "doi": "10.5281/zenodo.1234567"}).doi
    for wrong in ({"doi": "https://doi.org/10.5281/zenodo.1"}, {"licence": "MIT"}, {"authors": []}):
        with pytest.raises(ValidationError):
            Citation.model_validate({**CITATION, **wrong})


def test_the_changelog_begins_with_this_version() -> None:
    assert next(iter(RELEASES)) == flbench.__version__
