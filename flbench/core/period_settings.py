"""PeriodSettings: from which round on the data of some clients change, or they are not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from flbench.metrics import period_starts
from flbench.results.hashed_fields import LATER

WholeNumber = Annotated[int, Field(ge=0, strict=True)]
PeriodKind = Literal["exchange", "swap-labels", "rotate", "leave", "come"]
OWN: dict[str, tuple[str, ...]] = {
    "swap-labels": ("labels",),
    "rotate": ("degrees",),
    "leave": ("until",),
}
"""Fields that only some kinds of change have."""


class PeriodSettings(BaseModel):
    """One change of a suite: in which round, of whom, and what changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: int = Field(ge=2, strict=True, description="first round of the change")
    change: PeriodKind = Field(
        description="`exchange`: these clients get each other's data, each those of a client of"
        " another true group; `swap-labels`: pairs of labels change places; `rotate`: images are"
        " turned; `leave`: they are not there any more; `come`: they were not there before"
    )
    groups: Annotated[tuple[WholeNumber, ...], LATER] = Field(
        default=(), description="true groups whose clients change; empty = all"
    )
    clients: Annotated[tuple[WholeNumber, ...], LATER] = Field(
        default=(), description="ids of clients that change; empty = all"
    )
    share: Annotated[float, LATER] = Field(
        default=1.0,
        gt=0,
        le=1,
        description="share of these clients, of each true group where there are some; the seed says"
        " which",
    )
    labels: Annotated[tuple[tuple[WholeNumber, WholeNumber], ...], LATER] = Field(
        default=(), description="of `swap-labels`: the pairs, as `[[0, 1], [2, 3]]`"
    )
    degrees: Annotated[Literal[0, 90, 180, 270], LATER] = Field(
        default=0, description="of `rotate`: by how much"
    )
    until: Annotated[int | None, LATER] = Field(
        default=None, ge=3, description="of `leave`: the round in which they are back; none = never"
    )

    @model_validator(mode="after")
    def _fits(self) -> PeriodSettings:
        for kind, names in OWN.items():
            for name in names:
                is_set = getattr(self, name) != PeriodSettings.model_fields[name].default
                if is_set and kind != self.change:
                    raise _wrong(f"no '{name}' expected, as the change is '{self.change}'")
        named = [label for pair in self.labels for label in pair]
        if self.change == "swap-labels" and (not named or len(set(named)) < len(named)):
            raise _wrong("'labels' expected: pairs such as [[0, 1], [2, 3]], each label once")
        if self.change == "rotate" and not self.degrees:
            raise _wrong("'degrees' expected: 90, 180 or 270")
        if self.until is not None and self.until <= self.start:
            raise _wrong(f"'until' expected after 'start', {self.start}")
        return self


def _wrong(text: str) -> PydanticCustomError:
    return PydanticCustomError("period", "{text}", {"text": text})


def starts_of(changes: Sequence[PeriodSettings], rounds: int) -> list[int]:
    """First rounds of the periods after the first one, of those that a run has, ascending."""
    return period_starts([(change.start, change.until) for change in changes], rounds)
