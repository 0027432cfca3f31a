"""Drawings: the figures of a paper's page, from results and from tables of studies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flbench.errors import UserError
from flbench.papers.claims import ResultPlace, StoredResults
from flbench.papers.paper import Claim, Drawn, Paper
from flbench.results.files import slug
from flbench.results.schema import Result

FOLDER = "figures"
"""Of the figures, beside the pages."""
Runs = Sequence[tuple[str, Sequence[Result]]]
"""Name of a row, and its results over seeds."""
OF_ROWS = ("pairs", "matrices", "bars", "lines")
"""Kinds that draw rows of a study, and functions of `flbench.figures`; others draw results."""
StudyRows = Sequence[Mapping[str, Any]]


def file_of(card: Paper, claim: Claim, number: int) -> str:
    """The name of the file of a claim's figure, counted from 0."""
    mark = f"-{number + 1}" if len(claim.drawn) > 1 else ""
    words = slug(f"{card.name} {claim.where}").lower()
    return f"{words.replace('.', '').replace(',', '')}{mark}.svg"


def study_rows(study: str, out: Path) -> StudyRows | None:
    """The rows of a study's table, in `studies` beside the folder of results or below it.

    Returns:
        None where there is no table.

    Raises:
        UserError: the file is no table.
    """
    places = (out.parent / "studies", out / "studies")
    found = next((f for p in places if (f := p / f"{study}.json").is_file()), None)
    if found is None:
        return None
    try:
        rows: StudyRows = json.loads(found.read_text(encoding="utf-8"))["rows"]
        if not rows or not all(isinstance(row, dict) for row in rows) or isinstance(rows, dict):
            raise LookupError
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{found}: expected JSON with a list of tables 'rows'") from None
    return rows


def drawings(card: Paper, stored: StoredResults) -> Iterator[tuple[str, bytes]]:
    """Every figure of a card that has something to draw: the name of its file, and the file."""
    for claim in card.claims:
        for number, drawn in enumerate(claim.drawn):
            svg = _svg(claim, drawn, stored)
            if svg is not None:
                yield file_of(card, claim, number), svg


def has_data(claim: Claim, drawn: Drawn, stored: StoredResults) -> bool:
    """Whether there is something to draw."""
    if drawn.kind in OF_ROWS:
        return bool(_rows(claim, drawn, stored.out))
    return bool(_runs(claim, drawn, stored))


def _svg(claim: Claim, drawn: Drawn, stored: StoredResults) -> bytes | None:
    """One figure; None = there is nothing to draw."""
    from flbench import figures

    if drawn.kind in OF_ROWS:
        svg: bytes | None = getattr(figures, drawn.kind)(
            _rows(claim, drawn, stored.out), drawn.names, drawn.title
        )
        return svg
    runs = _runs(claim, drawn, stored)
    if drawn.kind == "curves":
        return figures.curves(runs, drawn.title)
    if drawn.kind == "scores":
        return figures.scores(runs, drawn.title)
    (wanted,) = drawn.names
    noted = (figures.notes(one, drawn.title) for _, (one, *_) in runs)
    return next((svg for notes in noted for name, svg in notes if name == wanted), None)


def _rows(claim: Claim, drawn: Drawn, out: Path) -> StudyRows:
    """The rows of the claim's study that are drawn."""
    rows = study_rows(claim.study, out) or ()
    wanted = {**drawn.only, **({"suite": drawn.suite} if drawn.suite else {})}
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _runs(claim: Claim, drawn: Drawn, stored: StoredResults) -> Runs:
    """The runs that are drawn, named by their methods."""
    found = stored.table(drawn.table, drawn.scale) if drawn.table else stored.study(claim.study)
    return [
        (method, rows[method])
        for place, rows in found.items()
        if _wanted(drawn, place)
        for method in (drawn.methods or rows)
        if method in rows
    ]


def _wanted(drawn: Drawn, place: ResultPlace) -> bool:
    suite, dataset = place
    return drawn.suite in ("", suite) and drawn.dataset in ("", dataset)
