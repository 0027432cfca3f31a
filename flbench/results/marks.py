"""How each field of a result is compared with that of its replay, and how far apart numbers may be.

Each field of a result carries a `Mark`. Where the environment is equal, every field that is judged
has equal bytes; elsewhere its numbers are within the limits of their `NumberKind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

How = Literal[
    "not", "fields", "equal", "curves", "summary", "sums", "bytes", "values", "groups",
    "scores", "notes", "reported",
]  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """How a field is compared.

    Attributes:
        how: "not" = it is not compared, as it differs from run to run or names the code; "fields" =
            each of its fields by its own mark; else the function in `submission/comparison.py`.
        whole: whether only a complete run has it.
        kind: of its numbers, where the function does not know it.
    """

    how: How
    whole: bool = True
    kind: str = ""


NOT = Mark("not")
FIELDS = Mark("fields", whole=False)
FIELDS_AT_END = Mark("fields")
EQUAL = Mark("equal", whole=False)
"""Equal on every machine, and known before the first round."""
EQUAL_AT_END = Mark("equal")
"""The same, but known of a complete run only."""
CURVES = Mark("curves", whole=False)
SUMMARY = Mark("summary")
ANSWERS = Mark("sums", kind="clients")
LOSSES = Mark("sums", kind="losses")
"""Sums over the test samples of each client, as ANSWERS; compared as means."""
BYTES = Mark("bytes")
VALUES = Mark("values")
GROUPS = Mark("groups", whole=False)
SCORES = Mark("scores")
NOTES = Mark("notes", whole=False)
REPORTED = Mark("reported")
"""Compared in an equal environment; elsewhere a difference is reported, and allowed."""


@dataclass(frozen=True)
class NumberKind:
    """A kind of number.

    Attributes:
        name: of the kind, as docs/submitting.md has it.
        mean: how far entries may be apart on average, in units of the tolerance.
        most: how far any one of them may be apart.
    """

    name: str
    mean: float
    most: float


KINDS = {
    kind.name: kind
    for kind in (
        NumberKind("exact", 0, 0),  # settings, counts of samples, true groups
        NumberKind("recomputed", 1e-4, 1e-4),  # numbers that follow from those
        NumberKind("share", 1, 3),  # accuracies and calibration, means over clients
        NumberKind("loss", 1, 10),
        NumberKind("losses", 10, 50),  # of each client
        NumberKind("metric", 1, 3),  # what was asked for
        NumberKind("clients", 1, 10),  # a number of each client, entries of scores
        NumberKind(
            "extreme", 5, 5
        ),  # of the worst client or decile, and the deviation over clients
        NumberKind("groups", 1, 10),  # groups, and numbers that follow from them
        NumberKind("bytes", 1, 1),
        NumberKind("notes", 1, 10),  # all of one name
        NumberKind("other", 1, 1),  # epochs, seconds of the simulated clock
        NumberKind(
            "threshold", inf, inf
        ),  # the round in which a curve is highest, or reaches a target
        NumberKind("reported", inf, inf),  # warnings
    )
}
"""The kinds by name; docs/submitting.md argues for their limits."""
