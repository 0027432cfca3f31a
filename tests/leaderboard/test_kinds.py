"""Kinds of federation: of made settings, and of every built-in suite on its own data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_results import made, write

from flbench.leaderboard.kinds import by_kind, judged_alike, kind_of
from flbench.leaderboard.table import tables
from flbench.plugin.registry import entries
from flbench.suite import load_suite

NATURAL = {"partition": {"name": "natural"}}
DRAWN = {"partition": {"name": "dirichlet", "alpha": 0.1}}
ATTACK = {"plugins": [{"name": "of-an-attack"}]}
PERIODS = {"periods": [{"start": 5}]}
KINDS = {
    "natural tables": "answers-persons births-states births-states-number high-schools-control"
    " households-crackers marks-lecturers rodents-plots schools-star schools-star-score travellers",
    "natural text": "shakespeare-roles",
    "digits": "bits-budget device-mix digit-attributes dirichlet-0.1 dp-budget feature-shift fig3b"
    " iid label-skew-20 label-skew-30 label-swap natural-writers noisy-noniid own-shares-high"
    " own-shares-low own-shares-mid pathological-noniid primary-secondary-high"
    " primary-secondary-low primary-secondary-mid rotated several-networks slow-clients",
    "pictures": "digit-5 office-10 office-10-surf",
    "sensors": "sensors",
    "text": "lora-text nordic-text",
    "threats": "byzantine-label-flip byzantine-sign-flip",
    "drift": "come-and-go drift-groups",
}
KIND_OF = {suite: kind for kind, suites in KINDS.items() for suite in suites.split()}


@pytest.mark.parametrize(
    ("settings", "dataset", "kind"),
    [
        (NATURAL, "travellers", "natural tables"),
        (DRAWN, "travellers", "tables"),
        (NATURAL, "csv:mine.csv", "natural tables"),
        (NATURAL, "writers:digits", "digits"),
        (NATURAL, "leaf:FOLDER", "natural other data"),
        (DRAWN, "fashion-mnist", "pictures"),
        (DRAWN, "of-nobody", "other data"),
        ({**DRAWN, **ATTACK}, "fashion-mnist", "threats"),
        ({**NATURAL, **ATTACK, **PERIODS}, "travellers", "threats"),
        ({**NATURAL, **PERIODS}, "travellers", "drift"),
        ({**DRAWN, "plugins": [], "periods": []}, "digits", "digits"),
    ],
)
def test_a_kind_is_read_from_settings_and_data_set(
    settings: dict[str, Any], dataset: str, kind: str
) -> None:
    assert kind_of(settings, dataset) == kind


@pytest.mark.parametrize("name", sorted(entries("suites")))
def test_every_built_in_suite_has_a_kind_and_a_title(name: str) -> None:
    """A suite that is new needs a title, and its data set `TITLES` and `MEDIUM`."""
    suite = load_suite(name)
    kind = kind_of(suite.settings(), suite.dataset)
    assert suite.title
    assert "other data" not in kind
    assert kind == KIND_OF.get(name, kind)


def test_natural_clients_come_first_and_threats_and_drift_last(tmp_path: Path) -> None:
    for at, (settings, dataset) in enumerate(
        ((PERIODS, "digits"), (DRAWN, "of-nobody"), (ATTACK, "digits"), (DRAWN, "digits"),
         (DRAWN, "cifar10"), (NATURAL, "travellers"), (NATURAL, "shakespeare"))
    ):  # fmt: skip
        write(tmp_path, made(mark=str(at) * 8, dataset=dataset, suite={"name": "s", **settings}))
    assert list(by_kind(tables(tmp_path))) == [
        "natural tables", "natural text", "digits", "pictures", "threats", "drift", "other data",
    ]  # fmt: skip


def test_a_table_with_newcomers_counts_where_it_has_no_twin(tmp_path: Path) -> None:
    late = {"unseen": 0.2}
    write(tmp_path, made(mark="1" * 8, suite={"name": "a", **late}))
    write(tmp_path, made(mark="2" * 8, suite={"name": "b", **late}))
    write(tmp_path, made(mark="3" * 8, suite={"name": "b"}))
    kept = judged_alike(tables(tmp_path))
    assert [(table.suite, table.joins_late) for table in kept] == [("a", True), ("b", False)]
