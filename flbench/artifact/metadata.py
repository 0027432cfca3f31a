"""Metadata of an artifact, for an archive that gives it a DOI, and for who cites it.

Three files with the same facts: `CITATION.cff` (https://citation-file-format.github.io, 1.2.0),
`.zenodo.json` (https://developers.zenodo.org, deposit metadata) and `codemeta.json`
(https://codemeta.github.io, 2.0).
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from typing import Any

import flbench
from flbench.papers.paper import Paper

LICENSE = "Apache-2.0"
"""Of flbench, whose result files these are."""
KEYWORDS = ("federated learning", "personalised federated learning", "benchmark", "reproducibility")
ANONYMOUS = "Anonymous"
"""Who made an artifact that names nobody, as for a review."""


@dataclass(frozen=True)
class ArtifactCard:
    """What is said of an artifact.

    Attributes:
        title, summary: a line each.
        authors: as "Family, Given", or the name of a group; empty = they are not named.
        day: on which it was made, as 2026-11-28.
        paper: whose tables it has; None = a study's.
        distributions: packages beside flbench that its methods come from, with their versions.
    """

    title: str
    summary: str
    authors: tuple[str, ...]
    day: str
    paper: Paper | None
    distributions: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The authors, or that they are anonymous."""
        return self.authors or (ANONYMOUS,)


def files_of(card: ArtifactCard) -> dict[str, bytes]:
    """The files by their names."""
    return {
        "CITATION.cff": citation(card).encode(),
        ".zenodo.json": f"{json.dumps(zenodo(card), indent=2, ensure_ascii=False)}\n".encode(),
        "codemeta.json": f"{json.dumps(codemeta(card), indent=2, ensure_ascii=False)}\n".encode(),
    }


def citation(card: ArtifactCard) -> str:
    """The text of `CITATION.cff`; strings are written as JSON, which is YAML."""
    lines = ["cff-version: 1.2.0", "message: If you use this artifact, please cite it."]
    lines += [f"title: {_text(card.title)}", "type: dataset", f"abstract: {_text(card.summary)}"]
    lines += ["authors:", *(f"  - {_line(_person(name))}" for name in card.names)]
    lines += [f"version: {_text(flbench.__version__)}", f"date-released: {card.day}"]
    lines += [f"license: {LICENSE}", "keywords:", *(f"  - {word}" for word in KEYWORDS)]
    if card.paper is not None:
        lines += ["references:", "  - type: article", f"    title: {_text(card.paper.title)}"]
        lines += ["    authors:"]
        lines += [f"      - {_line(_person(name))}" for name in _authors(card.paper)]
        lines += [f"    url: {_text(card.paper.link)}"]
    return "\n".join(lines) + "\n"


def zenodo(card: ArtifactCard) -> dict[str, Any]:
    """What Zenodo reads."""
    related = [] if card.paper is None else [
        {"identifier": card.paper.link, "relation": "isSupplementTo", "scheme": "url"}
    ]  # fmt: skip
    return {
        "title": card.title,
        "description": card.summary,
        "upload_type": "dataset",
        "creators": [{"name": name} for name in card.names],
        "license": LICENSE.lower(),
        "keywords": list(KEYWORDS),
        "publication_date": card.day,
        "version": flbench.__version__,
        **({"related_identifiers": related} if related else {}),
    }


def codemeta(card: ArtifactCard) -> dict[str, Any]:
    """What software catalogues read."""
    return {
        "@context": "https://doi.org/10.5063/schema/codemeta-2.0",
        "@type": "SoftwareSourceCode",
        "name": card.title,
        "description": card.summary,
        "author": [
            {
                "@type": "Person",
                "familyName": name["family-names"],
                "givenName": name["given-names"],
            }
            if "family-names" in (name := _person(text))
            else {"@type": "Organization", "name": name["name"]}
            for text in card.names
        ],
        "license": f"https://spdx.org/licenses/{LICENSE}",
        "keywords": list(KEYWORDS),
        "dateCreated": card.day,
        "programmingLanguage": "Python",
        "runtimePlatform": f"Python {platform.python_version()}",
        "softwareRequirements": [f"flbench=={flbench.__version__}", *card.distributions],
        **({"referencePublication": card.paper.link} if card.paper else {}),
    }


def _person(name: str) -> dict[str, str]:
    """A name as CFF has it.

    Example:
        >>> _person("Lovelace, Ada"), _person("The flbench developers")
        ({'family-names': 'Lovelace', 'given-names': 'Ada'}, {'name': 'The flbench developers'})
    """
    family, comma, given = (part.strip() for part in name.partition(","))
    return {"family-names": family, "given-names": given} if comma else {"name": name}


def _authors(paper: Paper) -> list[str]:
    """The authors of a paper as "Family, Given"; a name without given names stays as it is."""
    names = paper.authors.replace(" and ", ", ").split(", ")
    parts = [name.strip().rpartition(" ") for name in names if name.strip()]
    return [f"{family}, {given}" if given else family for given, _, family in parts]


def _line(table: dict[str, str]) -> str:
    """A mapping of texts in one line of YAML."""
    return f"{{{', '.join(f'{key}: {_text(value)}' for key, value in table.items())}}}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
