"""Made results of which figures are drawn, and readers of the SVG files."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
from made_results import SUITE

from flbench import figures
from flbench.results.schema import Change, Clients, Fingerprint, Method, Result, ScoreMatrix
from flbench.results.score_encoding import encode

SVG = "{http://www.w3.org/2000/svg}"
USE = f"{SVG}use"
EVIL = '<b>&"$x_1$ a'

Rows = Sequence[tuple[str, Sequence[Result]]]


def made(
    name: str = "one",
    accuracy: Sequence[float | None] = (0.2, None, 0.625),
    *,
    seed: int = 0,
    correct: Sequence[int] = (1, 2, 3, 4),
    group: list[int] | None = None,
    mb: float | None = 1.0,
    membership: Sequence[tuple[int, list[int]]] = ((1, [0, 0, 0, 0]),),
    matrix: np.ndarray | None = None,
    columns: Any = "clients",
    row_ids: list[int] | None = None,
    labels: list[dict[int, int]] | None = None,
    **changes: Any,
) -> Result:
    """A result of clients with four test samples each, under any name, however odd."""
    n = len(correct)
    scores = None
    if matrix is not None:
        cells, low, high = encode(matrix)
        scores = ScoreMatrix(
            round=2,
            columns=columns,
            row_ids=row_ids or list(range(len(matrix))),
            column_ids=list(range(matrix.shape[1])),
            low=low,
            high=high,
            cells=cells,
        )
    known = [value for value in accuracy if value is not None]
    marks = Fingerprint(
        config="c", suite="s", data="d", partition="p", initial_weights="w", cohorts="c"
    ).model_copy(update={"config": name})
    method = Method(name="one", params=changes.pop("params", {}), plugins=[])
    result = Result(
        suite={**SUITE, "rounds": len(accuracy)},
        dataset="toys",
        method=method,
        seed=seed,
        fingerprint=changes.pop("fingerprint", marks),
        summary={"accuracy_mean": sum(correct) / 4 / n, "mb_per_client": mb},
        curves={"accuracy": list(accuracy), "loss": [v and 1 - v for v in accuracy]},
        clients=Clients(
            train=[4] * n,
            validation=[1] * n,
            test=[4] * n,
            correct=list(correct),
            loss=[1.0] * n,
            group=group,
            bytes=[1] * n,
            labels=labels,
        ),
        membership=[Change(round=number, labels=told) for number, told in membership],
        scores=scores,
        bytes={},
        notes=[],
        warnings=[],
        seconds={},
        environment={},
        **changes,
    )
    summary = {"accuracy_mean": known[-1] if known else None, "mb_per_client": mb}
    named = method.model_copy(update={"name": name})
    return result.model_copy(update={"method": named, "summary": summary})


SQUARE = np.array([[2.0, 1, -1, -3], [1, 2, -2, -1], [-1, -2, 2, np.nan], [-3, -1, 1, 2]])


def full(name: str, seed: int = 0) -> Result:
    """A result of which everything can be drawn."""
    return made(
        name,
        seed=seed,
        group=[1, 0, 1, 0],
        membership=[(1, [0, 0, 0, 0]), (2, [5, 6, 5, 6])],
        matrix=SQUARE,
        labels=[{0: 3}, {1: 2, 0: 1}, {0: 3}, {1: 3}],
    )


def as_rows(*results: Result) -> list[tuple[str, list[Result]]]:
    """A row of each result."""
    return [(one.method.name, [one]) for one in results]


@functools.cache
def drawn(name: str = "one", title: str = "a title") -> dict[str, bytes | None]:
    """Every figure of the same two rows."""
    rows = [(name, [full(name), full(name, 1)]), ("two", [full("two")])]
    return {
        "curves": figures.curves(rows, title),
        "pareto": figures.pareto(rows, title),
        "clients": figures.clients(rows, title),
        "scores": figures.scores(rows[:1], title),
        "memberships": figures.memberships(rows[:1], title),
        "partition": figures.partition(rows[:1], title),
        "critical_difference": figures.critical_difference({name: 1.2, "two": 1.8}, 1, 5, title),
    }


FIGURES = sorted(
    ("clients", "critical_difference", "curves", "memberships", "pareto", "partition", "scores")
)


def root_of(svg: bytes | None) -> ElementTree.Element:
    assert svg is not None
    return ElementTree.fromstring(svg)


def texts(svg: bytes | None) -> list[str]:
    return ["".join(text.itertext()) for text in root_of(svg).iter(f"{SVG}text")]


def desc(svg: bytes | None) -> str:
    told = root_of(svg).findtext(f"{SVG}desc")
    assert told is not None
    return told
