"""Kinds of federation: by which tables are put together, read from settings and the data set.

A suite whose plugins join every method is one of threats, one whose data change is one of drift;
any other is of what its samples are, with natural clients apart from drawn ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flbench.leaderboard.table import Table
from flbench.plugin.dataset_words import dataset_words

THREATS, DRIFT, OTHER = "threats", "drift", "other data"
AS_THEY_ARE = "natural"
"""The partition that leaves a data set's clients as they are; and what its kinds begin with."""


def kind_of(settings: Mapping[str, Any], dataset: str) -> str:
    """The kind of federation of a suite on a data set.

    Args:
        settings: of the suite, as a result file has them.
        dataset: its name, as in `--dataset`.

    Example:
        >>> kind_of({"periods": [{"start": 5}]}, "digits"), kind_of({}, "of-nobody")
        ('drift', 'other data')
    """
    if settings.get("plugins"):
        return THREATS
    if settings.get("periods"):
        return DRIFT
    words = dataset_words(dataset)
    as_they_are = settings.get("partition", {}).get("name") == AS_THEY_ARE
    medium = words.medium or OTHER
    return f"{AS_THEY_ARE} {medium}" if as_they_are and words.natural else medium


def by_kind(found: Sequence[Table]) -> dict[str, list[Table]]:
    """Tables by kind: natural clients first, then by name, threats and drift last."""
    kinds: dict[str, list[Table]] = {}
    for table in found:
        kinds.setdefault(kind_of(table.settings, table.dataset), []).append(table)

    def place(kind: str) -> tuple[int, str]:
        last = (THREATS, DRIFT, OTHER).index(kind) + 2 if kind in (THREATS, DRIFT, OTHER) else 1
        return (0 if kind.startswith(AS_THEY_ARE) else last), kind

    return {kind: kinds[kind] for kind in sorted(kinds, key=place)}


def judged_alike(found: Sequence[Table]) -> list[Table]:
    """The tables that count across suites.

    One in which some clients join after training is left out where the same suite and data set also
    have one in which all train: it is there to compare newcomers. Tables of suites that others
    take the place of are left out, too.
    """
    found = [one for one in found if not one.superseded_by]
    whole = {(one.suite, one.dataset) for one in found if not one.joins_late}
    return [one for one in found if not one.joins_late or (one.suite, one.dataset) not in whole]
