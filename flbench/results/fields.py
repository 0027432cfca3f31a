"""Types of the fields of a result file; each value that passes can be tabled and drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

LARGEST = 2**53
"""Whole numbers up to here are exact everywhere."""
LONGEST = 200
"""Characters of a name."""
WIDEST = 1e100
"""Numbers up to here can be drawn."""
DEEPEST = 20
"""Lists and tables within each other."""
BARRED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change the direction of text, or are no characters."""
Complaint = tuple[str, str]
"""A field, and what is wrong with it."""


def _text(value: str) -> str:
    """Replace control characters: messages may contain any text."""
    return BARRED.sub("\ufffd", value)


def _line(value: str) -> str:
    if not value.isprintable() or len(value) > LONGEST:
        raise PydanticCustomError(
            "line", f"one line of at most {LONGEST} printable characters expected"
        )
    return value


def _name(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("name", "a name expected, got nothing")
    return _line(value)


def _plain(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Any JSON value whose numbers, texts and depth are within reason."""
    if depth > DEEPEST:
        raise PydanticCustomError("plain", f"at most {DEEPEST} levels expected")
    if isinstance(value, str):
        if BARRED.search(value):
            raise PydanticCustomError("plain", "text without control characters expected")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _line(str(key))
            _plain(one, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _plain(one, depth + 1)
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise PydanticCustomError("plain", f"numbers up to {LARGEST} expected")
    elif isinstance(value, float) and not isfinite(value):
        raise PydanticCustomError("plain", "finite numbers expected")
    return value


def _number(value: float) -> float:
    if abs(value) > WIDEST:
        raise PydanticCustomError("number", f"numbers up to {WIDEST:g} expected")
    return value


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Name = Annotated[str, AfterValidator(_name)]
Mark = Annotated[str, Field(pattern=r"^[\w.+-]{1,64}$")]
"""A fingerprint; it is part of files' names."""
Plain = Annotated[Any, AfterValidator(_plain)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Group = Annotated[int, Field(ge=-1, le=2**31)]
"""-1 = in none."""
Label = Annotated[int, Field(ge=0, lt=10_000)]
Number = Annotated[float, AfterValidator(_number)]
Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Local(_Strict):
    epochs: Positive


class _Model(_Strict):
    name: Name


class Settings(_Strict):
    """What every result says of its suite; there is more, which no table needs."""

    name: Name
    version: Positive
    clients: Positive
    participation: Annotated[float, Field(gt=0, le=1)]
    rounds: Positive
    local: _Local
    model: _Model


def first_problem(error: ValidationError, table: object) -> str:
    """The first problem in one line, with its field.

    Args:
        table: what was validated.
    """
    problem = error.errors()[0]
    parts: list[str] = []
    for part in problem["loc"]:
        if not isinstance(table, (dict, list)):
            break  # what follows names a type, not a field
        parts.append(str(part))
        if isinstance(table, dict):
            table = table.get(part)
        else:
            table = table[part] if isinstance(part, int) and part < len(table) else None
    field, what = ".".join(parts), problem["msg"]
    what = what[:1].lower() + what[1:]
    if not field:
        return what
    return f"'{field if field.isprintable() else ascii(field)[1:-1]}': {what}"


def refuse(complaints: Iterator[Complaint]) -> None:
    """Refuse what there is a complaint about, inside a validator."""
    for field, what in complaints:
        raise PydanticCustomError("field", "{message}", {"message": f"'{field}': {what}"})


def settings(suite: Mapping[str, Any]) -> Iterator[Complaint]:
    """What is wrong with a suite's settings."""
    try:
        Settings.model_validate(suite)
    except ValidationError as error:
        field, _, what = first_problem(error, suite).partition(": ")
        yield f"suite.{field.strip(chr(39))}", what
