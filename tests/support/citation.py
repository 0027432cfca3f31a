"""CITATION.cff by the schema of CFF 1.2.0, as far as ours use it: unknown keys are refused.

Source: https://github.com/citation-file-format/citation-file-format/blob/1.2.0/schema.json
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]
Link = Annotated[str, Field(pattern=r"^(https|http|ftp|sftp)://.+")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CffPerson(Strict):
    family: Text = Field(alias="family-names")
    given: Text = Field(alias="given-names")
    orcid: Annotated[str, Field(pattern=r"^https://orcid\.org/[0-9]{4}(-[0-9X]{4}){3}$")] | None = (
        None
    )


class CffEntity(Strict):
    name: Text


Authors = Annotated[list[CffPerson | CffEntity], Field(min_length=1)]


class CffReference(Strict):
    type: Literal["article", "software", "conference-paper"]
    title: Text
    authors: Authors
    url: Link | None = None


class CffIdentifier(Strict):
    type: Literal["doi", "url", "swh", "other"]
    value: Text
    description: Text | None = None


class Citation(Strict):
    cff_version: Literal["1.2.0"] = Field(alias="cff-version")
    message: Text
    title: Text
    authors: Authors
    type: Literal["software", "dataset"] = "software"
    abstract: Text | None = None
    version: Text | None = None
    released: date | None = Field(default=None, alias="date-released")
    license: Literal["Apache-2.0"]
    keywords: list[Text] = Field(default=[], min_length=1)
    doi: (
        Annotated[str, Field(pattern=r"^10\.\d{4,9}(\.\d+)?/[A-Za-z0-9:/_;\-.()\[\]\\]+$")] | None
    ) = None
    identifiers: list[CffIdentifier] = []
    code: Link | None = Field(default=None, alias="repository-code")
    url: Link | None = None
    references: list[CffReference] = []
