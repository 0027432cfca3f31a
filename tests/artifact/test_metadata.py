"""Metadata for a DOI: by the schema of CFF, and the same facts in all three files."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from citation import Citation

from flbench.artifact.metadata import ArtifactCard, files_of
from flbench.papers.paper import load_paper


def card(**more: Any) -> ArtifactCard:
    about = {"title": 'A "title": of it', "summary": "One line.", "authors": ("Lovelace, Ada",)}
    return ArtifactCard(**{**about, "day": "2026-11-28", "paper": load_paper("pfedlia"), **more})


@pytest.mark.parametrize("authors", [("Lovelace, Ada", "A group: with a colon"), ()])
@pytest.mark.parametrize("paper", ["pfedlia", "dc-pfl", "fedc2i", "flis", ""])
def test_the_citation_fits_the_schema(authors: tuple[str, ...], paper: str) -> None:
    one = card(authors=authors, paper=load_paper(paper) if paper else None)
    found = Citation.model_validate(yaml.safe_load(files_of(one)["CITATION.cff"]))
    assert found.title == 'A "title": of it'
    assert len(found.authors) == max(1, len(authors))
    assert [ref.url for ref in found.references] == ([load_paper(paper).link] if paper else [])


def test_all_files_say_the_same() -> None:
    files = files_of(card())
    cff = yaml.safe_load(files["CITATION.cff"])
    zenodo, codemeta = (json.loads(files[name]) for name in (".zenodo.json", "codemeta.json"))
    assert {cff["title"], zenodo["title"], codemeta["name"]} == {'A "title": of it'}
    assert cff["authors"] == [{"family-names": "Lovelace", "given-names": "Ada"}]
    assert zenodo["creators"] == [{"name": "Lovelace, Ada"}]
    (author,) = codemeta["author"]
    assert (author["familyName"], author["givenName"]) == ("Lovelace", "Ada")
    assert {cff["license"].lower(), zenodo["license"]} == {"apache-2.0"}
    assert str(cff["date-released"]) == zenodo["publication_date"] == codemeta["dateCreated"]
    assert zenodo["related_identifiers"][0]["identifier"] == cff["references"][0]["url"]


def test_authors_of_papers_are_persons() -> None:
    cff = yaml.safe_load(files_of(card())["CITATION.cff"])
    assert cff["references"][0]["authors"][0] == {"family-names": "Rokvic", "given-names": "L."}
