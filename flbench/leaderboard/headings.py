"""Headings of tables: the data set, who the clients are, the rounds, and what else differs.

Tables of one suite and data set that differ in nothing of the first three are told apart by the
settings in which they differ; the fingerprint is the last resort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flbench.leaderboard.suite_info import flat, suite_of
from flbench.leaderboard.table import Table
from flbench.plugin.dataset_words import dataset_words

LONGEST = 40
"""Characters of a setting's value."""
LEFT_OUT = ("name", "version", "dataset", "model.name", "unseen_epochs")


def with_headings(found: Sequence[Table]) -> list[Table]:
    """The same tables, each with a heading that no other has."""
    networks: dict[str, set[str]] = {}
    for table in found:
        networks.setdefault(_federation(table), set()).add(_network(table))
    alike: dict[str, list[Table]] = {}
    for table in found:
        who = _federation(table)
        several = [_network(table)] if len(networks[who]) > 1 else []
        base = ", ".join([who, f"{table.settings['rounds']} rounds", *several])
        alike.setdefault(base, []).append(table)
    named: dict[int, str] = {}
    for base, tables in alike.items():
        apart = _apart(tables)
        for table, words in zip(tables, apart, strict=True):
            told = apart.count(words) == 1
            text = ", ".join([base, *words, *([] if told else [table.fingerprint])])
            named[id(table)] = text[:1].upper() + text[1:]
    return [replace(table, heading=named[id(table)]) for table in found]


def _federation(table: Table) -> str:
    """Data set and clients."""
    suite = suite_of(table.suite, table.dataset)
    who = suite.title if suite and suite.title else table.suite.replace("-", " ")
    return f"{dataset_words(table.dataset).title}, {who}"


def _network(table: Table) -> str:
    return str(table.settings["model"]["name"])


def _apart(tables: Sequence[Table]) -> list[list[str]]:
    """For each table, in words, the settings in which they differ."""
    settings = [_settings(table) for table in tables]
    keys = dict.fromkeys(key for one in settings for key in one)
    differ = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1]
    return [[words for key in differ if (words := _said(key, one.get(key)))] for one in settings]


def _settings(table: Table) -> dict[str, Any]:
    return {key: one for key, one in flat(table.settings) if key not in LEFT_OUT}


def _said(key: str, value: object) -> str:
    """A setting in words; "" where a table has it not.

    Example:
        >>> _said("local.lr", 0.1), _said("unseen", 0.2), _said("local.drop_last", True)
        ('lr 0.1', '20 % join late', 'drop last')
    """
    if value is None or value is False:
        return ""
    if key == "unseen":
        late = f"{100 * value:g} %" if isinstance(value, float) else "some"
        return f"{late} join late" if value else ""
    name = key.rpartition(".")[2].replace("_", " ")
    return name if value is True else f"{name} {_short(value)}"


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
