"""What is said of natural clients, from results that never ran: numbers by hand."""

from __future__ import annotations

from math import atanh, sqrt, tanh
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_results import made, skip, twice, write
from made_tasks import as_numbers
from mentions import mentions
from natural_answers import (
    NOT_RUN,
    alone,
    answers,
    clustered,
    defaults,
    gain,
    in_full,
    in_short,
    kendall,
    lacking,
    large_of_pictures,
    many_clients,
    overall,
    personal,
    predicted,
    rates,
    reference,
    searched,
    spearman,
    with_itself,
)

from flbench.leaderboard.table import Table, tables
from flbench.plugin.method_info import method_infos
from flbench.results.schema import Result, Tuning

NATURAL = {"name": "plots", "partition": {"name": "natural"}, "local": {"epochs": 2, "lr": 0.1}}
DRAWN = {"name": "drawn", "partition": {"name": "iid"}}
BASELINE = {"baseline": True}
PICTURES: dict[str, Any] = {"suite": DRAWN, "mark": "drawn000", "dataset": "cifar10"}


def natural(method: str, correct: list[int], **fields: Any) -> list[Result]:
    """Four clients of 100 test samples, two seeds."""
    given = {"suite": NATURAL, "mark": "natural0", "dataset": "plots", **fields}
    return twice(made(method=method, correct=correct, **given))


def reference_rows() -> list[Result]:
    return [
        *natural("fedavg", [50, 60, 70, 80], plugin=BASELINE),
        *natural("local-only", [55, 55, 65, 65], plugin=BASELINE, alone=True, trained_epochs=8),
        *natural("own-majority", [40, 40, 40, 40]),
        *natural("centralised-id", [60, 60, 60, 60], plugin={"pools_data": True}),
    ]


def table_of(folder: Path, *found: Any) -> Table:
    (table,) = tables(write(folder, *found))
    return table


def cells(lines: list[str]) -> list[list[str]]:
    """The rows of a grid, without its headings, each without the link at its start."""
    rows = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")][1:] for row in rows]


def both(lines: list[str]) -> tuple[list[str], list[str]]:
    """The only rows of the two grids of `alone`."""
    (at,) = [at for at, line in enumerate(lines) if at and "best alone |" in line]
    ((one,), (other,)) = cells(lines[:at]), cells(lines[at:])
    return one, other


def test_a_difference_by_hand(tmp_path: Path) -> None:
    """The same four clients differ by 10, 10, 20, 20 points in both seeds: each counts once."""
    rows = [*natural("fedavg", [50, 60, 70, 80]), *natural("ditto", [60, 70, 90, 100])]
    table = table_of(tmp_path, *rows)
    found = gain(*(defaults(table)[name] for name in ("ditto", "fedavg")))
    half = 3.1824 * sqrt(4 * 0.05**2 / 3 / 4)  # t of 3 degrees
    assert found is not None and found.of_clients
    assert (found.mean, found.low, found.high) == pytest.approx(
        (0.15, 0.15 - half, 0.15 + half), abs=1e-4
    )
    assert found.text.endswith("°")


def test_of_errors_a_lower_one_is_better(tmp_path: Path) -> None:
    rows = [*natural("fedavg", [50, 60, 70, 80]), *natural("ditto", [60, 70, 90, 100])]
    table = table_of(tmp_path, *map(as_numbers, rows))
    found = gain(*(defaults(table)[name] for name in ("ditto", "fedavg")))
    assert found is not None and found.mean == pytest.approx(0.15)


def test_whether_anything_beats_training_alone(tmp_path: Path) -> None:
    """ditto: 15 points above each client alone; fedavg: 5 on average, not by its interval."""
    rows = [*reference_rows(), *natural("ditto", [70, 70, 80, 80])]
    found, own = both(alone([table_of(tmp_path, *rows)]))
    assert found[0] == "3", "fedavg, ditto and own-majority have a rank"
    assert found[1:4] == ["0.600", "8.0", "`ditto` 0.750"]
    assert found[4] == "+0.150 [+0.150, +0.150]°"
    assert found[5:] == ["1 of 3", "1", "1", "1"], (
        "better: ditto, after Holm too; worse: own-majority"
    )
    assert own[:6] == ["not run"] * 6
    assert own[6] == "0.400" and own[7].startswith("+0.200 [") and own[8] == "2 of 2"
    assert own[9:] == ["`local-only` 0.600", "+0.150 [+0.150, +0.150]°", "1 of 3", "1", "1"]


def test_in_short_what_beats_a_client_alone(tmp_path: Path) -> None:
    """ditto beats what each client does alone on the plots; on the fields nothing does."""
    plots = [*reference_rows(), *natural("ditto", [70, 70, 80, 80])]
    given: dict[str, Any] = {"suite": {**NATURAL, "name": "fields"}, "mark": "natural1"}
    fields = [
        *natural("fedavg", [50, 50, 60, 60], plugin=BASELINE, **given),
        *natural("local-only", [55, 55, 65, 65], plugin=BASELINE, alone=True, **given),
        *natural("linear-alone", [60, 60, 70, 70], plugin=BASELINE, alone=True, **given),
    ]
    found = tables(write(tmp_path, *plots, *fields))
    (above, below) = in_short(found)
    assert mentions(above, "1 of 2", "`plots`", "1 of 3")
    assert mentions(below, "1 of 2", "`fields`", "`linear-alone` 0.650 for 0.550")
    assert in_short([]) == []


def test_training_alone_in_every_round(tmp_path: Path) -> None:
    """15 points less than that are 5 points more than training as often as cohorts would."""
    full = natural("local-only", [65, 65, 75, 75], plugin=BASELINE, alone=True, config="full",
                   params={"schedule": "full"})  # fmt: skip
    rows = [*reference_rows(), *natural("ditto", [70, 70, 80, 80]), *full]
    table = table_of(tmp_path, *rows)
    found, own = both(alone([table]))
    assert found[1] == "0.600" and found[4] == "+0.150 [+0.150, +0.150]°"
    assert own[0] == "0.700" and own[1].startswith("+0.100 ["), "over as often as cohorts would"
    assert own[2:6] == ["+0.050 [+0.050, +0.050]°", "1 of 3", "1", "1"]
    assert own[9].startswith("`local-only (") and own[10:] == [own[2], "1 of 3", "1", "1"]
    row = in_full(table)
    assert row is not None and row.mean == 0.7


def test_one_of_many_may_be_better_by_chance(tmp_path: Path) -> None:
    """ditto gains 15, 15, 15 and 3 points: p is .028, more than a half of .05."""
    rows = [*reference_rows(), *natural("ditto", [70, 70, 80, 68])]
    found, _ = both(alone([table_of(tmp_path, *rows)]))
    assert found[5:] == ["1 of 3", "0", "0", "1"]


def test_beside_nobody_nothing_is_counted(tmp_path: Path) -> None:
    rows = natural("local-only", [55, 55, 65, 65], plugin=BASELINE)
    found, own = both(alone([table_of(tmp_path, *rows)]))
    assert found[2] == "-" and found[5:] == ["0 of 0", "0", "0", "0"]
    assert own[9:] == ["`local-only` 0.600", "+0.000 [+0.000, +0.000]°", "0 of 0", "0", "0"]


def test_the_best_of_what_a_client_can_do_alone(tmp_path: Path) -> None:
    tuning = Tuning(budget=3, tried=3, seeds=[1000], score="s", lr=0.3)
    rows = [
        *reference_rows(),
        *natural("ditto", [70, 70, 80, 80]),
        *natural("linear-alone", [72, 72, 78, 78], plugin=BASELINE),
        *natural("local-only", [75, 75, 85, 85], tuning=tuning, config="tuned", plugin=BASELINE),
    ]
    found, own = both(alone([table_of(tmp_path, *rows)]))
    assert found[4] == "+0.150 [+0.150, +0.150]°"
    assert own[9].startswith("`local-only") and own[9].endswith(" 0.800")
    assert own[10:] == ["-0.050 [-0.050, -0.050]°", "0 of 4", "0", "0"]


def test_what_lacks_is_not_run(tmp_path: Path) -> None:
    table = table_of(tmp_path, *natural("ditto", [70, 70, 80, 80]))
    found, own = both(alone([table]))
    assert [found[1], *found[4:]] == ["not run"] * 6
    assert own == ["not run"] * 14
    (found,) = cells(personal([table]))
    assert found == ["`ditto` 0.750", *["not run"] * 6]
    for empty in (alone([]), personal([]), clustered([]), rates([]), many_clients([])):
        assert NOT_RUN in empty
    assert NOT_RUN in predicted([], [])


def test_whether_personalisation_beats_one_model_that_knows_the_client(tmp_path: Path) -> None:
    rows = [*reference_rows(), *natural("ditto", [70, 70, 80, 80])]
    (found,) = cells(personal([table_of(tmp_path, *rows)]))
    assert found[0] == "`ditto` 0.750"
    assert found[1].startswith("0.600: +0.150 [")
    assert found[2:] == ["not run"] * 5


def test_whether_clustering_finds_groups_and_pays(tmp_path: Path) -> None:
    """ifca is better and finds less; fedgroup finds all groups, and one model for all is better."""
    rows = [
        *reference_rows(),
        *natural("ifca", [62, 71, 79, 88], ari=0.25, groups=2),
        *natural("fedgroup", [45, 55, 65, 75], ari=1.0, groups=4),
        *natural("oracle", [60, 70, 80, 90], plugin={"uses_true_groups": True}, ari=1.0),
    ]
    (found,) = cells(clustered([table_of(tmp_path, *rows)]))
    assert found[0] == "`ifca` 0.750"
    assert found[1].startswith("+0.100 [") and found[3].startswith("+0.150 [")
    assert found[2] == "1 of 2", "ifca"
    assert found[4:7] == ["`fedgroup` 1.00", "0.62", "0.25"]
    assert found[7:10] == ["2 of 4 clients", "none", "`fedgroup`"]
    assert found[10] == "+0.100 [+0.100, +0.100]°"
    assert found[11].startswith("+0.150 [")


def test_an_oracle_that_never_used_its_groups_says_nothing_of_them(tmp_path: Path) -> None:
    late = natural("oracle", [60, 70, 80, 90], plugin={"uses_true_groups": True}, ari=0.0)
    rows = [*reference_rows(), *natural("ifca", [62, 71, 79, 88], ari=0.25), *late]
    (found,) = cells(clustered([table_of(tmp_path, *rows)]))
    assert found[7:] == ["1 of 4 clients", "`ifca`", "none", "-", "-"]


def test_correlations_by_hand() -> None:
    one, other = np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 2, 3, 5, 4])
    found = spearman(one, other)
    half = 1.959964 * sqrt((1 + 0.9**2 / 2) / 2)
    assert found.value == pytest.approx(0.9)  # 1 - 6 * 2 / (5 * 24)
    assert (found.low, found.high) == pytest.approx(
        (tanh(atanh(0.9) - half), tanh(atanh(0.9) + half))
    )
    tau = kendall(one, other)
    assert tau.value == pytest.approx(0.8)  # 9 pairs agree, 1 does not
    assert (tau.low, tau.methods) == (pytest.approx(tanh(atanh(0.8) - 1.959964 * sqrt(0.437))), 5)
    assert spearman(one, np.ones(5)).value == 0
    assert spearman(one, -one).value == pytest.approx(-1)
    assert spearman(one, one).high == pytest.approx(1)


METHODS = ["fedavg", "ditto", "apfl", "ifca", "fedrep", "fedper", "scaffold", "fedprox"]


def eight(accuracies: list[int], **fields: Any) -> list[Result]:
    """Eight methods, each with one accuracy of all clients."""
    pairs = zip(METHODS, accuracies, strict=True)
    return [one for name, value in pairs for one in natural(name, [value] * 4, **fields)]


def test_orders_on_drawn_clients_beside_those_on_natural_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order on digits is that on the plots but for two neighbours: 1 - 6 * 2 / (8 * 63)."""
    monkeypatch.setattr("natural_answers.FULL", 8)
    drawn = eight([10, 20, 30, 40, 50, 60, 80, 70], suite=DRAWN, mark="drawn000", dataset="digits")
    write(tmp_path, *drawn, *eight([10, 20, 30, 40, 50, 60, 70, 80]))
    digits, plots = sorted(tables(tmp_path), key=lambda table: table.suite)
    found = overall([plots], [digits])
    assert found is not None and (found.value, found.methods) == (pytest.approx(1 - 12 / 504), 8)
    ((itself, all_digits, others, one),) = cells(predicted([plots], [digits]))
    assert itself.startswith("+1.00 ["), "its two seeds are equal"
    assert all_digits == one == found.text
    assert others == "-", "there is no other natural table"
    text = "\n".join(answers([digits, plots]))
    assert f"are not defined): {found.text}." in " ".join(text.split())


def test_the_order_of_one_seed_beside_that_of_the_others(tmp_path: Path) -> None:
    """Two neighbours change places in the second seed; a method without it is left out."""
    first, second = [10, 20, 30, 40, 50, 60, 70, 80], [10, 20, 30, 40, 50, 60, 80, 70]
    rows = [one for one in eight(first) if one.seed == 0]
    rows += [one for one in eight(second) if one.seed == 1]
    (alone,) = [one for one in natural("moon", [90] * 4) if one.seed == 0]
    table = table_of(tmp_path, *rows, alone)
    found = with_itself(table)
    assert found is not None
    assert (found.value, found.methods) == (pytest.approx(1 - 12 / 504), 8)


def test_a_table_of_one_seed_is_not_compared_with_itself(tmp_path: Path) -> None:
    rows = [one for one in eight([10, 20, 30, 40, 50, 60, 70, 80]) if one.seed == 0]
    assert with_itself(table_of(tmp_path, *rows)) is None


def test_two_orders_of_few_methods_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path, *natural("fedavg", [50] * 4), *natural("ditto", [60] * 4))
    (table,) = tables(tmp_path)
    assert overall([table], [table]) is None
    assert overall([table], []) is None


def test_whether_a_better_rate_changes_the_order(tmp_path: Path) -> None:
    """The last method becomes the first with three times the rate; the others keep theirs."""
    accuracies = [10, 20, 30, 40, 50, 60, 70, 80]
    tuned = []
    for name, value in zip(METHODS, accuracies, strict=True):
        first = name == METHODS[0]
        tuning = Tuning(budget=3, tried=3, seeds=[1000], score="s", lr=0.3 if first else 0.1)
        correct = [90 if first else value] * 4
        tuned += natural(name, correct, tuning=tuning, config=f"tuned-{name}")
    lines = rates([table_of(tmp_path, *eight(accuracies), *tuned)])
    (found,) = cells(lines)
    assert found[:2] == ["3", "8"]
    assert found[2].startswith("+0.50 ["), "7 of 28 pairs changed: (21 - 7) / 28"
    assert found[3:7] == ["1 of 8", "+0.100", "1", "`fedprox`, then 2"]
    assert found[7:] == ["`fedavg` 0.900", "not run", "1, 2"]
    said = " ".join(" ".join(lines).split())
    assert mentions(said, "ran 24 trials"), "three rates of eight methods"


def test_what_was_searched_for_with_parameters_is_a_row_of_its_own(tmp_path: Path) -> None:
    """The best of them is 20 points above training alone that was tuned as well."""
    only = Tuning(budget=3, tried=3, seeds=[1000], score="s", lr=0.3)
    both = Tuning(budget=12, tried=5, seeds=[1000, 1001], score="s", lr=0.3, both=True)
    rows = eight([10, 20, 30, 40, 50, 60, 70, 80])
    for name in [*METHODS, "local-only"]:
        correct = [70 if name == "local-only" else 90 if name == "ditto" else 60] * 4
        for kind, tuning in {"only": only, "both": both}.items():
            rows += natural(name, correct, tuning=tuning, config=f"{kind}-{name}")
    rows += natural("local-only", [50] * 4)
    table = table_of(tmp_path, *rows)
    first, second = cells(rates([table]))
    assert [first[0], second[0]] == ["3", "12, both"]
    assert first[7:9] == second[7:9] == ["`ditto` 0.900", "+0.200 [+0.200, +0.200]°"]
    assert [first[9], second[9]] == ["1, 2", "2, 2"]
    seconds = 9 * (3 + 10) * table.tuned[0].results[0].seconds["total"]
    assert searched([table]) == (9 * (3 + 10), pytest.approx(seconds))


def test_a_search_for_parameters_is_none_for_the_rate(tmp_path: Path) -> None:
    tuning = Tuning(budget=3, tried=3, seeds=[1000], score="s")
    rows = [
        one
        for name in METHODS
        for one in natural(name, [50] * 4, tuning=tuning, config=f"t-{name}")
    ]
    assert NOT_RUN in rates([table_of(tmp_path, *eight([10] * 8), *rows)])


def test_which_methods_have_no_row(tmp_path: Path) -> None:
    own = sorted(one.name for one in method_infos() if one.package.startswith("flbench "))
    given = made(suite=NATURAL).suite
    skipped = skip("scaffold", "no", mark="natural0", dataset="plots").model_copy(
        update={"suite": {**given, "clients": 4, "paper": ""}}
    )
    rest = [name for name in own if name not in {"scaffold", "apple", "fedc2i"}]
    rows = [one for name in rest for one in natural(name, [50, 60, 70, 80])]
    (found,) = cells(lacking([table_of(tmp_path / "most", *rows, skipped)]))
    assert found == [str(len(rest)), "`scaffold`", "`apple`, `fedc2i`"]
    (found,) = cells(lacking([table_of(tmp_path / "few", *natural("apfl", [50, 60, 70, 80]))]))
    assert found == ["1", "none", f"{len(own) - 1} methods"]


def test_of_drawn_clients_the_large_tables_of_pictures_say_what_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natural_answers.FULL", 3)
    few = [one for name in METHODS[:2] for one in natural(name, [50] * 4, suite=DRAWN, mark="few")]
    rows = [one for name in METHODS for one in natural(name, [50] * 4, **PICTURES)]
    found = tables(write(tmp_path, *rows, *few))
    (chosen,) = large_of_pictures(found)
    assert chosen.dataset == "cifar10"
    ((count, *_),) = cells(lacking([chosen]))
    assert count == "8"
    (line,) = [one for one in answers(found) if one.startswith("| [`drawn`]")]
    assert "| 8 | none |" in line


def test_one_seed_does_not_count_beside_several(tmp_path: Path) -> None:
    """The method that lacks a seed is the best of the one that it has, and is left out."""
    single = [one for one in natural("moon", [90] * 4) if one.seed == 0]
    rows = [*single, *natural("fedavg", [50] * 4), *natural("ditto", [60] * 4)]
    assert list(defaults(table_of(tmp_path / "some", *rows))) == ["ditto", "fedavg"]
    assert list(defaults(table_of(tmp_path / "one", *single))) == ["moon"]


def test_which_methods_fall_apart(tmp_path: Path) -> None:
    rows = [
        *reference_rows(),
        *natural("ditto", [70, 70, 80, 80]),
        *natural("apfl", [20, 30, 30, 40]),
        skip("scaffold", "no", mark="natural0", dataset="plots").model_copy(
            update={"suite": {**made(suite=NATURAL).suite, "clients": 4, "paper": ""}}
        ),
    ]
    table = table_of(tmp_path, *rows)
    assert NOT_RUN in many_clients([table]), "it has four clients"
    table.settings["clients"] = 1000
    (found,) = cells(many_clients([table]))
    assert found[0] == "4, 10"
    assert found[2:4] == ["0.650", "0.600"]
    assert "`apfl` 0.300" in found[5] and "ditto" not in found[5]
    assert found[6] == "`scaffold`"


def test_writers_of_digits_are_drawn(tmp_path: Path) -> None:
    suite = {**NATURAL, "name": "natural-writers"}
    drawn = natural("ditto", [70] * 4, suite=suite, dataset="writers:digits")
    text = "\n".join(answers(tables(write(tmp_path, *drawn))))
    assert text.count(NOT_RUN) == 7
    assert reference(tables(tmp_path)[0], "fedavg") is None
