"""The leaderboard's pages: a pure function of a folder of result files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_results import made, page, skip, twice, write
from mentions import mention, mentions

from flbench.errors import UserError
from flbench.leaderboard.build import board
from flbench.leaderboard.grouping import (
    mean_std,
    metric_column,
    refuse_mixed,
    rows_of,
    signed,
)
from flbench.leaderboard.markdown import anchor, columns, escaped
from flbench.leaderboard.pages import index, overview, page_of, suite_page
from flbench.leaderboard.row_details import details
from flbench.leaderboard.table import tables as tables_of
from flbench.metrics import METRICS
from flbench.results.files import write_atomically
from flbench.results.schema import Result, Tuning

HEADER = [heading for heading, _, _ in columns([])]


def tables(text: str) -> dict[str, list[dict[str, str]]]:
    """The page's tables as title -> rows -> cells by column."""
    found: dict[str, list[dict[str, str]]] = {}
    for part in text.split("\n## ")[1:]:
        title, *lines = part.partition("\n### ")[0].split("\n")
        header, _, *rows = ([c.strip() for c in ln.split("|")[1:-1]] for ln in lines if "|" in ln)
        assert [heading for heading in header if heading in HEADER] == HEADER
        found[title] = [dict(zip(header, row, strict=True)) for row in rows]
    return found


def only_table(folder: Path) -> list[dict[str, str]]:
    (rows,) = tables(page(folder)).values()
    return rows


def test_mean_and_sample_standard_deviation_by_hand() -> None:
    # deviations -.4/3, -.1/3, .5/3; squares sum to .42/9; over n - 1 = 2
    assert mean_std([0.5, 0.6, 0.8]) == "0.6333 ± 0.1528"
    # DSLR cells of FedC2I: 24, 24, 25 of 32 and 23, 25, 26 of 32
    assert mean_std([2400 / 32, 2400 / 32, 2500 / 32], 2) == "76.04 ± 1.80"
    assert mean_std([2300 / 32, 2500 / 32, 2600 / 32], 2) == "77.08 ± 4.77"


def test_one_seed_has_no_spread_and_no_seed_has_no_mean() -> None:
    assert mean_std([0.25]) == "0.2500"
    assert mean_std([]) == "-"
    assert mean_std([1.0, 2.0], 1, spread=False) == "1.5"
    assert mean_std([0.5, 0.5]) == "0.5000 ± 0.0000"


def test_a_mean_over_some_seeds_says_over_how_many() -> None:
    shown = metric_column(next(one for one in METRICS if one.name == "megabits_to_target"))[2]
    for known, cell in (([1.5, 2.5], "2.00"), ([2.0], "2.00 (1 of 2)"), ([], "-")):
        row = SimpleNamespace(results=[None, None], column=lambda name, known=known: known)
        assert shown(row) == cell


def test_a_row_is_the_mean_over_its_seeds(tmp_path: Path) -> None:
    numbers = {"ari": 0.5, "groups": 3, "accuracy_worst_decile": 0.25, "mb_per_client": 1.5}
    others = {"ari": 1.0, "groups": 2, "accuracy_worst_decile": 0.75, "mb_per_client": 2.5}
    write(
        tmp_path,
        made(0.8, seed=10, seconds=4.0, **numbers),
        made(0.5, seed=2, **others),
        made(0.6, seed=0, **numbers),
    )
    (row,) = only_table(tmp_path)
    assert row == {
        "rank": "1",
        "method": "fedavg",
        "ties": "a",
        "accuracy": "0.6333 ± 0.1528",
        "95 % interval": "0.2539 to 1.0000",
        "worst decile": "0.4167",
        "to oracle": "-",
        "gain": "-",
        "ARI": "0.667",
        "groups": "2.7",
        "seconds": "2.0",
        "MB/client": "1.83",
        "seeds": "0, 2, 10",
        "status": "self-reported",
        "package": "flbench 1.0",
    }


def test_distances_to_the_oracle_and_above_the_better_baseline(tmp_path: Path) -> None:
    told = {"oracle": 0.9, "local-only": 0.6, "fedavg": 0.7, "ifca": 0.85, "cfl": 0.65}
    plain = ("local-only", "fedavg")
    rows = [
        made(
            value,
            method=name,
            plugin={"uses_true_groups": name == "oracle", "baseline": name in plain},
            alone=name == "local-only",
        )
        for name, value in told.items()
    ]
    rows = twice(*rows)
    rows.append(made(0.5, method="ifca", seed=7))  # the others have no such seed
    write(tmp_path, *rows)
    found = {row["method"]: (row["to oracle"], row["gain"]) for row in only_table(tmp_path)}
    assert found["ifca"] == ("+0.0500", "+0.1500")
    assert found["cfl"] == ("+0.2500", "-0.0500")
    assert found["oracle"] == ("-", "+0.2000")
    assert found["fedavg"] == ("+0.2000", "-")
    assert found["local-only"] == ("+0.3000", "-")
    ranks = {row["method"]: row["rank"] for row in only_table(tmp_path)}
    assert ranks["local-only"] == ranks["oracle"] == "reference"
    assert ranks["fedavg"] == "2", "the other baseline is ranked"
    alone = tmp_path / "alone"
    write(alone, made(0.8, method="ifca"), made(0.7, plugin={"baseline": True}))
    (first, _) = only_table(alone)
    assert (first["to oracle"], first["gain"]) == ("-", "-"), "both baselines must be there"


def test_a_number_that_no_seed_has_is_a_dash(tmp_path: Path) -> None:
    write(tmp_path, made(0.5, ari=None), made(0.5, seed=1, ari=None))
    assert only_table(tmp_path)[0]["ARI"] == "-"
    write(tmp_path, made(0.5, seed=2, ari=0.25))
    assert only_table(tmp_path)[0]["ARI"] == "0.250 (1 of 3)"


def test_rows_are_ranked_by_their_mean_accuracy(tmp_path: Path) -> None:
    write(
        tmp_path,
        *twice(
            made(0.9, method="lucky"),
            made(0.7, method="best"),
            made(0.5, method="worst"),
            made(0.6, method="a-tie"),
        ),
        made(0.0, method="lucky", seed=2),
    )
    rows = only_table(tmp_path)
    assert [row["method"] for row in rows] == ["best", "a-tie", "lucky", "worst"]
    assert [row["rank"] for row in rows] == ["2", "3", "3", "4"], (
        "on seeds 0 and 1, which all share, lucky is above; but nobody passes the row above"
    )
    lacks = "0, 1 (lacks 2)"
    assert [row["seeds"] for row in rows] == [lacks, lacks, "0, 1, 2", lacks]


def test_a_row_of_one_seed_has_no_rank(tmp_path: Path) -> None:
    write(tmp_path, *twice(made(0.9, method="a"), made(0.8, method="c")), made(0.85, method="b"))
    found = [(row["method"], row["rank"], row["ties"]) for row in only_table(tmp_path)]
    assert found == [("a", "1", "a"), ("b", "-", "-"), ("c", "2", "b")]


def test_few_seeds_that_vary_separate_nobody_in_a_large_table(tmp_path: Path) -> None:
    # d = .3 and .32: t = 31 with one degree of freedom, p = .0205: below .05, above .05 / 3
    write(tmp_path, made(0.8, method="a"), made(0.82, method="a", seed=1))
    write(tmp_path, *twice(made(0.5, method="b")))
    assert [row["rank"] for row in only_table(tmp_path)] == ["1", "2"]
    write(tmp_path, made(0.4, method="c"), made(0.6, method="c", seed=1))
    assert [row["rank"] for row in only_table(tmp_path)] == ["-", "-", "-"], "no order"
    assert [row["ties"] for row in only_table(tmp_path)] == ["a", "a", "a"]


@pytest.mark.parametrize("why", ["uses_true_groups", "paper_leak", "pools_data"])
def test_reference_rows_are_shown_but_not_ranked(why: str, tmp_path: Path) -> None:
    first, second = made(0.9, method="first"), made(0.7, method="second")
    write(tmp_path, *twice(first, made(0.8, method="oracle", plugin={why: True}), second))
    rows = only_table(tmp_path)
    assert [(row["rank"], row["method"]) for row in rows] == [
        ("1", "first"), ("reference", "oracle"), ("2", "second"),
    ]  # fmt: skip
    assert rows[1]["accuracy"] == "0.8000 ± 0.0000"


def test_a_composition_with_a_reference_plugin_is_a_reference() -> None:
    honest, told = made(0.5, method="a"), made(0.5, method="b", plugin={"uses_true_groups": True})
    plugins = [*honest.method.plugins, *told.method.plugins]
    both = honest.method.model_copy(update={"name": "a+b", "plugins": plugins})
    (rows,) = rows_of([honest.model_copy(update={"method": both}), honest]).values()
    assert [(row.name, row.reference) for row in rows] == [
        ("a", ""), ("a+b", "given the true groups"),
    ]  # fmt: skip


def test_an_attack_alone_is_a_reference_and_a_defence_against_it_is_none() -> None:
    attack = made(0.9, method="flip", params={"attackers": [], "share": 0.2})
    plugins = [*made(method="krum").method.plugins, *attack.method.plugins]
    both = attack.method.model_copy(update={"name": "krum+flip", "plugins": plugins})
    (rows,) = rows_of([attack, attack.model_copy(update={"method": both}), made()]).values()
    assert {row.name: row.reference for row in rows} == {
        "fedavg": "", "flip": "an attack: some of its clients harm the others", "krum+flip": "",
    }  # fmt: skip


def test_rows_of_different_suites_never_share_a_table(tmp_path: Path) -> None:
    write(
        tmp_path,
        *twice(made(0.9, mark="aaaaaaaa"), made(0.5, mark="aaaaaaaa", method="other")),
        *twice(made(0.7, mark="bbbbbbbb", seed=1)),
    )
    found = tables(page(tmp_path))
    assert list(found) == ["toy on toy [aaaaaaaa]", "toy on toy [bbbbbbbb]"]
    assert [[row["method"] for row in rows] for rows in found.values()] == [
        ["fedavg", "other"], ["fedavg"],
    ]  # fmt: skip
    assert [rows[0]["seeds"] for rows in found.values()] == ["0, 1", "1, 2"], "seeds do not mix"
    assert [rows[0]["rank"] for rows in found.values()] == ["1", "1"], "each table counts anew"


def test_data_sets_never_share_a_table() -> None:
    found = rows_of([made(0.5), made(0.6, dataset="other")])
    assert list(found) == ["toy on other [5u1te000]", "toy on toy [5u1te000]"]


def test_two_parameter_sets_of_one_method_are_kept_apart(tmp_path: Path) -> None:
    write(
        tmp_path,
        made(0.5, config="11111111"),
        made(0.7, config="11111111", seed=1),
        made(0.8, config="22222222"),
        made(0.4, method="alone"),
    )
    rows = only_table(tmp_path)
    assert [(row["method"], row["accuracy"]) for row in rows] == [
        ("fedavg (22222222)", "0.8000"),
        ("fedavg (11111111)", "0.6000 ± 0.1414"),
        ("alone", "0.4000"),
    ]


def test_rows_of_one_method_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    def told(config: str, accuracy: float, **params: object) -> Result:
        return made(accuracy, method="m", config=config, params=params)

    write(tmp_path, told("1", 0.5, mode="a", same=3), told("2", 0.6, mode="b", same=3))
    assert [row["method"] for row in only_table(tmp_path)] == ["m (mode=b)", "m (mode=a)"]


def test_a_tuned_row_is_told_by_its_budget_alone() -> None:
    search = Tuning(budget=8, tried=8, seeds=[100], score="accuracy")
    (rows,) = rows_of([
        made(0.5, method="m", params={"x": 1}),
        made(0.7, method="m", params={"x": 2}, tuning=search, config="t"),
    ]).values()  # fmt: skip
    assert [row.name for row in rows] == ["m (tuned, budget 8)", "m"]


def test_equal_accuracies_share_a_rank(tmp_path: Path) -> None:
    pairs = (("a", 0.7), ("b", 0.7), ("c", 0.5))
    write(tmp_path, *twice(*[made(accuracy, method=name) for name, accuracy in pairs]))
    assert [row["rank"] for row in only_table(tmp_path)] == ["1", "1", "3"]
    assert [row["ties"] for row in only_table(tmp_path)] == ["a", "a", "b"]


def test_the_status_of_every_seed_is_shown(tmp_path: Path) -> None:
    again = made(0.5, seed=1).model_copy(update={"status": "reproduced"})
    write(tmp_path, made(0.5), again)
    assert only_table(tmp_path)[0]["status"] == "reproduced, self-reported"


@pytest.mark.slow
def test_the_page_is_the_same_bytes_for_the_same_files(tmp_path: Path) -> None:
    every = [
        made(accuracy, method=method, seed=seed, mark=suite, config=config)
        for suite in ("aaaaaaaa", "bbbbbbbb")
        for method, config, accuracy in (("b", "1", 0.5), ("b", "2", 0.5), ("a", "3", 0.5))
        for seed in (0, 1, 2)
    ]
    one, other = write(tmp_path / "one", *every), write(tmp_path / "other", *reversed(every))
    shutil.copytree(one, tmp_path / "elsewhere" / "deep")
    text = page(one)
    assert text == page(one) == page(other) == page(tmp_path / "elsewhere")
    assert text.endswith("\n\nThe same numbers in every client and seed: a, b (1), b (2).\n")
    assert str(tmp_path) not in text
    assert [row["method"] for row in tables(text)["toy on toy [aaaaaaaa]"]] == [
        "a", "b (1)", "b (2)",
    ]  # fmt: skip
    write(one, made(0.6, method="new", mark="aaaaaaaa"))
    assert page(one) != text


def test_the_environment_does_not_show(tmp_path: Path) -> None:
    slow = made(0.5).model_copy(update={"environment": {"host": "here"}})
    one, other = write(tmp_path / "one", made(0.5)), write(tmp_path / "other", slow)
    assert page(one) == page(other)


def test_an_empty_folder_is_a_page_without_tables(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert text.startswith("# Leaderboard\n")
    assert tables(text) == {}


def test_rows_of_other_data_never_share_a_table(tmp_path: Path) -> None:
    one, other = made(0.5, method="a"), made(0.6, method="b")
    marks = other.fingerprint.model_copy(update={"partition": "another"})
    write(tmp_path, one, other.model_copy(update={"fingerprint": marks}))
    with pytest.raises(UserError, match=mention("differ", "partition")):
        page(tmp_path)


def test_one_target_holds_for_a_table() -> None:
    """What it takes to get there is compared."""
    other = made(method="b")
    other = other.model_copy(update={"summary": {**other.summary, "target": 0.1}})
    with pytest.raises(UserError, match=r"a and b differ in 'summary\.target'"):
        refuse_mixed([(Path("b"), made(method="a")), (Path("a"), other)])


def test_seeds_of_other_data_never_share_a_row(tmp_path: Path) -> None:
    """Seeds have partitions of their own, and no data of their own."""
    one, other = made(0.5, seed=0), made(0.6, seed=1)
    assert only_table(write(tmp_path / "same", one, other))
    marks = other.fingerprint.model_copy(update={"data": "another"})
    write(tmp_path / "other", one, other.model_copy(update={"fingerprint": marks}))
    with pytest.raises(UserError, match=mention("differ", "data")):
        page(tmp_path / "other")


def test_rows_that_share_their_parameters_are_still_told_apart(tmp_path: Path) -> None:
    pairs = (("1", 1), ("2", 1), ("3", 2))
    rows = []
    for config, x in pairs:
        rows.append(made(0.5, method="m", config=config, params={"x": x}))
    write(tmp_path, *rows)
    assert [row["method"] for row in only_table(tmp_path)] == [
        "m (x=1, 1)",
        "m (x=1, 2)",
        "m (x=2)",
    ]


# --- what else a section says ---------------------------------------------------------------------


def test_one_seed_says_that_only_clients_are_drawn(tmp_path: Path) -> None:
    write(tmp_path, made(correct=[0, 100, 0, 100]), made(0.5, method="b"), made(0.5, seed=1))
    write(tmp_path, *(made(0.5 + seed / 10, method="c", seed=seed) for seed in range(3)))
    rows = {row["method"]: row["95 % interval"] for row in only_table(tmp_path)}
    assert rows["b"] == "0.5000 to 0.5000 (clients only)"
    assert rows["fedavg"] == "0.1468 to 0.8532 (clients only)", "two seeds say nothing of others"
    assert "clients" not in rows["c"]


def test_gaps_are_shown_as_gaps(tmp_path: Path) -> None:
    write(tmp_path, made(), made(seed=1), made(seed=3), made(0.4, method="late", seed=3))
    write(tmp_path, made(0.9, method="elsewhere", mark="01234567"))
    text = page(tmp_path)
    first = tables(text)["toy on toy [5u1te000]"]
    assert [row["seeds"] for row in first] == ["0, 1, 3", "3 (lacks 0, 1)"]


def test_a_suite_of_which_there_are_only_skips_has_its_section(tmp_path: Path) -> None:
    write(tmp_path, skip("x", "x: no water\n## here"), made(mark="01234567", dataset="other"))
    text = page(tmp_path)
    part = text.split("\n## ")[2]
    assert part.startswith("toy on toy [5u1te000]\n\n4 clients, 50 % of them in each round")
    assert mentions(part, "x", "no water ## here")
    assert "|" not in part


def test_a_method_with_a_row_is_not_said_to_be_undefined(tmp_path: Path) -> None:
    write(tmp_path, skip("x", "x: no water"), skip("fedavg", "fedavg: it diverges"), made())
    text = page(tmp_path)
    assert "no water" in text
    assert "it diverges" not in text


def test_a_table_with_clients_that_join_late_is_the_last_and_says_so(tmp_path: Path) -> None:
    late = made(mark="01234567", suite={"unseen": 0.25}, correct=[9] * 4, test=[10] * 4)
    _, first, last = page(write(tmp_path, late, made())).split("\n## ")
    assert first.startswith(
        "toy on toy [5u1te000]\n\n4 clients, 50 % of them in each round, 3 rounds"
    )
    assert last.startswith("toy on toy [01234567]\n\n3 clients, 50 % of them in each round, 1 more")


def test_tuned_rows_are_ranked_among_themselves_beside_their_defaults(tmp_path: Path) -> None:
    def tuned(accuracy: float, method: str, budget: int = 8) -> Result:
        search = Tuning(budget=budget, tried=4, seeds=[100, 101], score="validation accuracy")
        return made(accuracy, method=method, tuning=search, config=f"t-{method}-{budget}")

    plain = {"baseline": True}
    rows = [
        made(0.5, method="a"), made(0.6, method="b"), tuned(0.7, "a"), tuned(0.8, "c"),
        tuned(0.9, "a", 16), made(0.3, plugin=plain), made(0.4, method="l", plugin=plain),
    ]  # fmt: skip
    write(tmp_path, *twice(*rows))
    (text,) = page(tmp_path).split("\n## ")[1:]
    main, eight, more = text.split("\n### ")
    assert [row["method"] for row in only_table(tmp_path)] == ["b", "a", "l", "fedavg"]
    assert [row["rank"] for row in only_table(tmp_path)] == ["1", "2", "3", "4"]
    assert eight.startswith(
        "Tuned, budget 8\n\nThe best of 8 sets of parameters each, by validation accuracy on"
        " seeds 100, 101; ranked among themselves.\n"
    )
    lines = [line.split(" | ") for line in eight.splitlines() if line.startswith("| ")]
    assert lines[0][4] == "at defaults"
    assert [line[2:5] for line in lines[1:]] == [
        ["c (tuned, budget 8)", "0.8000 ± 0.0000", "-"],
        ["a (tuned, budget 8)", "0.7000 ± 0.0000", "0.5000"],
    ]
    assert [line[0] for line in lines[1:]] == ["| 1", "| 2"]
    assert lines[1][8] == "+0.4000", "the better baseline has 0.4 at its defaults"
    assert more.startswith("Tuned, budget 16\n")
    assert "a (tuned, budget 16) | 0.9000 ± 0.0000 | 0.5000" in more
    assert "tuned" not in main


def test_what_the_paper_prints_stands_beside_ours(tmp_path: Path) -> None:
    def ours(accuracy: float, method: str, seed: int = 0) -> Result:
        return made(accuracy, method=method, seed=seed, dataset="cifar10", suite=PATHO)

    write(tmp_path, ours(0.86, "pfedlia"), ours(0.84, "pfedlia", 1), ours(0.9, "unknown"))
    rows = {row["method"]: row for row in only_table(tmp_path)}
    assert rows["pfedlia"]["paper"] == "0.8608 ± 0.0167"
    assert rows["pfedlia"]["to paper"] == "-0.0108"
    assert (rows["unknown"]["paper"], rows["unknown"]["to paper"]) == ("-", "-")
    write(tmp_path / "other", made(0.5, suite=PATHO))
    assert "paper" not in only_table(tmp_path / "other")[0]


PATHO = {"name": "pathological-noniid", "version": 2}


def test_outdated_rows_stand_apart_and_are_not_ranked(tmp_path: Path) -> None:
    rows = [
        made(0.9, method="a", version="1.2", config="old"),
        made(0.5, method="a", version="1.10", config="new"),
        made(0.6, method="b", version="1.0"),
    ]
    write(tmp_path, *twice(*rows))
    (text,) = page(tmp_path).split("\n## ")[1:]
    _, old = text.split("\n### ")
    rows = only_table(tmp_path)
    assert [(row["method"], row["rank"]) for row in rows] == [("b", "1"), ("a", "2")]
    line = "| a | 0.9000 ± 0.0000 | 0, 1 | flbench 1.2 | a 1.2; there are results of 1.10 |"
    assert old.splitlines()[-1] == line
    assert old.startswith("Outdated\n")
    write(
        tmp_path / "s",
        made(0.5, suite={**PATHO, "version": 1}),
        made(0.7, method="b", suite={**PATHO, "version": 1}),
    )
    (text,) = page(tmp_path / "s").split("\n## ")[1:]
    assert "| rank |" not in text
    assert text.count("| suite version 1; 2 is installed |") == 2


def test_names_cannot_end_a_cell(tmp_path: Path) -> None:
    write(tmp_path, made(method="m", params={"x": "a|b"}), made(method="m", config="c", params={}))
    assert "| m (x=a\\|b) |" in page(tmp_path)


# --- pages ----------------------------------------------------------------------------------------


def test_a_suites_page_links_rows_to_their_files(tmp_path: Path) -> None:
    results = write(tmp_path / "results", made(), made(method="b c", config="x"))
    text = suite_page(tables_of(results), "results", {})
    assert text.startswith("# toy\n\nGenerated by `flbench leaderboard`")
    assert "| [fedavg](results/5u1te000/toy/toy/fedavg/c-fedavg-5u1te000) |" in text
    assert "| [b c](results/5u1te000/toy/toy/b%20c/x) |" in text


@pytest.mark.slow
def test_the_page_of_an_installed_suite_says_what_it_is_and_how_to_run_it() -> None:
    root = Path(__file__).parents[2] / "leaderboard" / "results" / "noisy-noniid"
    text = suite_page(tables_of(root), "results", {})
    assert "Five groups of clients; half of them also hold a label of another group" in text
    assert re.search(r"^    flbench run -p NAME -s noisy-noniid --seeds \d+$", text, re.M)
    assert (
        "    flbench run -p NAME -s noisy-noniid --dataset cifar10 --set suite.local.lr=0.05"
        " --set suite.model=lenet5 --set suite.rounds=60 --seeds "
    ) in text


def test_the_index_leads_to_every_table_and_shows_what_was_run(tmp_path: Path) -> None:
    write(
        tmp_path, made(0.8), made(0.9, method="b"), skip("c", "c: no"), made(0.7, mark="01234567"),
        made(0.6, dataset="other", mark="8" * 8, method="d"),
    )  # fmt: skip
    first = index(tables_of(tmp_path), "**Mine.** 1 < 2\n")
    assert "\n## Findings\n\n**Mine.** 1 < 2\n\n## Where each table is\n" in first
    assert r"| [toy on toy \[5u1te000\]](toy.md#toy-on-toy-5u1te000) |" in first
    text = overview(tables_of(tmp_path), [], [], 4)
    assert r"| [toy on toy \[5u1te000\]](toy.md#toy-on-toy-5u1te000) | 2 | 0 | - | - |" in text
    assert "from 4 result files" in text
    titles = ("toy on other", "88888888"), ("toy on toy", "01234567"), ("toy on toy", "5u1te000")
    heading = "".join(["| method |", *(rf" {name} \[{mark}\] |" for name, mark in titles)])
    assert heading in text
    assert text.endswith(
        "| b | - | - | 0.9000 |\n| c | - | - | undefined |\n| d | 0.6000 | - | - |\n"
        "| fedavg | - | 0.7000 | 0.8000 |\n"
    )
    assert "## Findings" not in index(tables_of(tmp_path), " \n")


def test_a_method_that_was_only_tuned_has_no_number_at_defaults(tmp_path: Path) -> None:
    search = Tuning(budget=8, tried=4, seeds=[100], score="validation accuracy")
    write(tmp_path, made(0.8), made(0.9, method="b", tuning=search, config="t"))
    assert "| b | tuned only |\n" in overview(tables_of(tmp_path), [], [], 2)


def test_leaders_that_cannot_be_told_apart_are_counted(tmp_path: Path) -> None:
    same = [made(0.8), made(0.8, method="b"), made(0.8, method="a")]
    write(tmp_path, *twice(*same, made(0.1, method="z")))
    assert "| a and 2 not separable | 0.8000 |" in overview(tables_of(tmp_path), [], [], 4)


def test_a_table_that_separates_nobody_has_no_leader(tmp_path: Path) -> None:
    write(tmp_path, *twice(made(0.8), made(0.8, method="b")), made(0.9, method="once"))
    write(tmp_path, made(0.9, method="once", mark="8" * 8))
    text = overview(tables_of(tmp_path), [], [], 4)
    assert "| none of 2 separable | - |" in text
    assert "| 1 | 0 | - | - |" in text


def test_pages_have_sane_names() -> None:
    assert page_of("dirichlet-0.1") == "dirichlet-0.1.md"
    assert page_of("../up/there") == "up-there.md"
    assert [page_of(name) for name in ("README", "findings", "overview", "")] == [
        "suite-README.md", "suite-findings.md", "suite-overview.md", "suite-.md",
    ]  # fmt: skip
    assert anchor("label-swap on label-swap:digits [67e384d1]") == (
        "label-swap-on-label-swapdigits-67e384d1"
    )


def test_nothing_has_a_sign_of_its_own() -> None:
    assert signed(-0.00001) == "+0.0000"
    assert signed(-0.25) == "-0.2500"
    assert signed(None) == "-"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"test": [100, 0, 100, 100], "correct": [1, 0, 1, 1]}, "at least one test sample of each"),
        (
            {"test": [9, 9], "correct": [1, 1], "seed": 1, "suite": {"clients": 4}},
            "differ in their number of clients, so they cannot",
        ),
        ({"suite": {"rounds": 9}}, "the same 'fingerprint.suite' but are not the same"),
        ({"config": "c-fedavg-5u1te000", "seed": 1}, "the same 'fingerprint.config' but are not"),
    ],
)
def test_results_that_cannot_be_compared_are_one_line(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    write(tmp_path, made(), made(method="b", **change))
    with pytest.raises(UserError, match=told) as caught:
        page(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_suite_without_its_settings_is_one_line(tmp_path: Path) -> None:
    one = made()
    settings = {key: value for key, value in one.suite.items() if key != "rounds"}
    write(tmp_path, one.model_copy(update={"suite": settings}))
    with pytest.raises(UserError, match=mention("seed-0.json", "suite.rounds")):
        page(tmp_path)


ODD = "[x](javascript:y) a|b <script>z</script> `c` *d* _e_ f_g $h$ https://i ![j](k) \\ &amp;"


def test_no_name_becomes_markup_in_a_page(tmp_path: Path) -> None:
    shown = (
        r"\[x\](javascript:y) a\|b \<script\>z\</script\> \`c\` \*d\* \_e\_ f_g \$h\$ https\://i"
        r" \!\[j\](k) \\ \&amp;"
    )
    assert escaped(ODD) == shown
    suite = {"name": ODD, "paper": ODD, "model": {"name": ODD}}
    for at in range(2):
        one = made(0.5, method=f"{at} {ODD}", config=f"c{at}", suite=suite, dataset=ODD)
        write_atomically(tmp_path / f"results/{at}/seed-0.json", one.canonical().encode())
    write(tmp_path / "results", skip("none", ODD))
    files = board(tmp_path / "results", tmp_path / "out", draw=False)
    assert len(files) == 4
    assert all("/" not in name and not name.startswith(".") for name in files)
    for text in (data.decode() for data in files.values()):
        assert shown in text
        assert not re.search(r"(?<!\\)<|javascript:", text.replace(shown, ""))
        for part in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in part.splitlines()}) == 1


def test_suites_that_would_share_a_page_are_refused(tmp_path: Path) -> None:
    one, other = made(suite={"name": "a b"}), made(suite={"name": "a-b"}, mark="other")
    write(tmp_path, one, other)
    with pytest.raises(UserError, match=mention("a-b.md", "suites")):
        board(tmp_path, tmp_path / "out", draw=False)


def test_what_a_method_reads_at_no_byte_is_a_column_of_those_that_say_so(tmp_path: Path) -> None:
    """Numbers of samples are in the details alone; of a file that does not say nothing is shown."""
    samples = "numbers of samples"
    told = {"eager": ["label counts", "losses", samples], "usual": [samples], "older": None}
    ordered = zip(told, (0.8, 0.7, 0.6), strict=True)
    found = [made(accuracy, method=name) for name, accuracy in ordered]
    for one in found:
        write(tmp_path / "new", one.model_copy(update={"reads": told[one.method.name]}))
    cells = [row["reads"] for row in only_table(tmp_path / "new")]
    assert cells == ["label counts, losses", "-", "-"]
    (table,) = tables_of(tmp_path / "new")
    notes = [details(row, "", {}).get("notes") for row in table.rows]
    assert notes == [
        ["Reads of clients, at no byte: label counts, losses, numbers of samples."],
        ["Reads of clients, at no byte: numbers of samples."],
        None,
    ]
    write(tmp_path / "old", *found)
    assert "reads" not in only_table(tmp_path / "old")[0]
