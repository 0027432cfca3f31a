"""Headings of tables, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_results import made, write

from flbench.leaderboard.headings import with_headings
from flbench.leaderboard.table import tables

FIVE = {"name": "pathological-noniid"}


def headings(folder: Path, *settings: dict[str, Any], dataset: str = "fashion-mnist") -> list[str]:
    for at, one in enumerate(settings):
        write(folder, made(mark=str(at) * 8, dataset=dataset, suite={**FIVE, **one}))
    found = {table.fingerprint: table.heading for table in with_headings(tables(folder))}
    return [found[str(at) * 8] for at, _ in enumerate(settings)]


def test_a_table_is_called_by_data_clients_and_rounds(tmp_path: Path) -> None:
    assert headings(tmp_path, {"rounds": 100}) == ["Fashion-MNIST, five groups, 100 rounds"]


@pytest.mark.parametrize(
    ("settings", "apart"),
    [
        (({"rounds": 30}, {"rounds": 100}), ("30 rounds", "100 rounds")),
        (
            ({"model": {"name": "lenet5"}}, {"model": {"name": "resnet18"}}),
            ("3 rounds, lenet5", "3 rounds, resnet18"),
        ),
        (({}, {"unseen": 0.2, "unseen_epochs": 5}), ("3 rounds", "3 rounds, 20 % join late")),
        (
            ({}, {"local": {"epochs": 2, "drop_last": True}}),
            ("3 rounds", "3 rounds, drop last"),
        ),
        (
            ({"local": {"epochs": 1}}, {"local": {"epochs": 2}}),
            ("3 rounds, epochs 1", "3 rounds, epochs 2"),
        ),
        (({}, {"version": 2}), ("3 rounds, 00000000", "3 rounds, 11111111")),
    ],
)
def test_tables_of_one_suite_are_told_apart_in_words(
    settings: tuple[dict[str, Any], ...], apart: tuple[str, ...], tmp_path: Path
) -> None:
    """By a fingerprint only where words say nothing."""
    assert headings(tmp_path, *settings) == [
        f"Fashion-MNIST, five groups, {one}" for one in apart
    ]  # fmt: skip


def test_of_what_is_not_installed_the_names_are_said(tmp_path: Path) -> None:
    write(tmp_path, made(dataset="of-nobody", suite={"name": "my-own-suite"}))
    (table,) = with_headings(tables(tmp_path))
    assert table.heading == "Of-nobody, my own suite, 3 rounds"
    assert table.shown == table.heading
