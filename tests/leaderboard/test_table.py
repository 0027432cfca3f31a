"""The leaderboard's tables as data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from committed import committed_tables
from made_results import SUITE, described, made, skip, write
from mentions import mentioning
from toy import python

from flbench.core.seeding import late_ones_last
from flbench.core.setting_text import parse
from flbench.federation.feature_scale import SCALE, SUMS
from flbench.federation.target_scale import SCALE as TARGET_SCALE
from flbench.federation.target_scale import SUMS as TARGET_SUMS
from flbench.leaderboard.across import contenders
from flbench.leaderboard.grouping import ResultGroup, distances, grouped
from flbench.leaderboard.suite_info import command, departures, suite_of
from flbench.leaderboard.table import Table, cohort_epochs, same_clients, tables
from flbench.results.schema import Result, SourceChange, Tuning
from flbench.suite import load_suite

PATHO = {"name": "pathological-noniid", "version": 2}
ROOT = Path(__file__).parents[2]


def only(folder: Path, *found: Any) -> Table:
    (table,) = tables(write(folder, *found))
    return table


def test_an_entry_holds_every_number_of_its_row(tmp_path: Path) -> None:
    search = Tuning(budget=3, tried=3, seeds=[9], score="loss")
    told = {"unseen_accuracy": 0.25, "unseen_accuracy_tuned": 0.75}
    table = only(
        tmp_path,
        made(0.5, method="m", params={"x": 1}, correct=[0, 1], test=[2, 2], ari=0.5, groups=2),
        made(0.7, method="m", params={"x": 1}, correct=[2, 2], test=[2, 2], seed=2, groups=3),
        made(0.9, seed=1, alone=True, plugin={"baseline": True}, correct=[2, 2], test=[2, 2]),
        made(0.8, method="m", tuning=search, config="t", correct=[1, 2], test=[2, 2], **told),
    )
    best, tuned, row = table.rows
    assert (row.name, row.method, row.seeds, row.lacks) == ("m", "m", (0, 2), (1,))
    assert row.headlines == [0.25, 1.0]
    assert row.mean == 0.625
    assert row.column("ari") == [0.5]
    assert row.column("groups") == [2, 3]
    assert row.column("mb_per_client") == [1, 1]
    assert row.seconds == 1
    assert row.column("accuracy_worst_decile") == [0.25, 1.0]
    # two seeds say nothing of others: of the clients, t of 2 degrees of freedom times .125
    assert row.interval == pytest.approx((0.625 - 4.30265 * 0.125, 1.0), abs=1e-5), (
        "no accuracy is beyond 1"
    )
    assert (row.rank, row.ties, row.reference, row.outdated) == (1, "a", "", "")
    assert row.folder == "5u1te000/toy/toy/m/c-m-5u1te000"
    assert [one.seed for one in row.results] == [0, 2]
    assert (row.plugins[0].distribution, row.plugins[0].version) == ("flbench", "1.0")
    joined = ("unseen_accuracy", "unseen_accuracy_tuned")
    assert [row.column(name) for name in joined] == [[], []]
    assert (tuned.name, tuned.tuning, tuned.rank) == ("m (tuned, budget 3)", search, None)
    assert [tuned.column(name) for name in joined] == [[0.25], [0.75]]
    assert best.reference == "trains alone, nothing is exchanged"
    assert (best.rank, best.ties) == (None, "")
    assert (table.main, table.tuned, table.compared) == ((best, row), (tuned,), (row,))
    assert table.seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("up", "why"),
    [
        ({"model": 0}, "trains alone, nothing is exchanged"),
        ({"model": 0, SUMS: 24, TARGET_SUMS: 8}, "trains alone, nothing is exchanged"),
        ({"model": 0, "labels": 4}, ""),
    ],
)
def test_who_scales_samples_together_still_trains_alone(
    tmp_path: Path, up: dict[str, int], why: str
) -> None:
    down = {SCALE: 16, TARGET_SCALE: 8, "model": 0}
    found = made(alone=True, plugin={"baseline": True})
    found = found.model_copy(update={"bytes": {"down": down, "peer": {}, "up": up}})
    (row,) = only(tmp_path, found).rows
    assert row.reference == why


@pytest.mark.parametrize(("devices", "seconds"), [("cc", 15), ("cg", 10), ("cgg", 25), ("ccg", 15)])
def test_the_times_of_a_row_are_of_one_kind_of_device(
    tmp_path: Path, devices: str, seconds: float
) -> None:
    """The first seed takes 10 seconds, the next 20, then 30."""
    found = [
        made(0.5, seed=seed, seconds=10.0 * (seed + 1)).model_copy(
            update={"environment": {"device": {"c": "cpu", "g": f"cuda:{seed}"}[device]}}
        )
        for seed, device in enumerate(devices)
    ]
    (row,) = only(tmp_path, *found).rows
    assert row.seconds == seconds


def test_a_table_knows_what_is_installed(tmp_path: Path) -> None:
    search = Tuning(budget=3, tried=3, seeds=[9], score="loss")
    table = only(
        tmp_path,
        made(0.8, method="pfedlia", dataset="cifar10", suite=PATHO),
        made(0.7, method="pfedlia", dataset="cifar10", suite=PATHO, tuning=search, config="t"),
        made(0.6, method="pfedlia", dataset="cifar10", suite=PATHO, version="0.1", config="o"),
    )
    assert table.title == mentioning("pathological-noniid", "cifar10", "5u1te000")
    assert table.settings["rounds"] == 3
    assert table.summary == load_suite("pathological-noniid").summary
    first, second, third = table.rows
    assert first.printed["accuracy_mean"] == 0.8608
    assert first.plugins[0].distribution == "flbench"
    assert second.tuning == search
    assert third.status == "outdated"
    assert third.rank is None


def test_a_row_with_a_run_of_two_codes_is_not_reproducible(tmp_path: Path) -> None:
    change = SourceChange(round=1, plugin="fedavg", before="a", after="b")
    mixed = made(seed=1).model_copy(update={"source_changes": [change]})
    table = only(tmp_path, made(status="reproduced"), mixed)
    assert table.rows[0].status == "not reproducible, reproduced"


def test_the_papers_number_belongs_to_the_row_at_defaults(tmp_path: Path) -> None:
    def ours(config: str, **params: Any) -> Result:
        return made(
            0.5, method="pfedlia", config=config, params=params, dataset="cifar10", suite=PATHO
        )

    table = only(
        tmp_path, ours("1", warmup=10, mode="central"), ours("2", warmup=20, mode="central")
    )
    assert {row.name: (row.default, bool(row.printed)) for row in table.rows} == {
        "pfedlia (warmup=10)": (False, False),
        "pfedlia (warmup=20)": (True, True),
    }


def test_the_nearest_row_is_not_at_defaults_if_it_departs_from_them(tmp_path: Path) -> None:
    def ours(warmup: int) -> Result:
        return made(
            0.5, method="pfedlia", config=str(warmup), params={"warmup": warmup}, dataset="cifar10",
            suite=PATHO,
        )  # fmt: skip

    table = only(tmp_path, ours(10), made(0.4, method="fedavg", dataset="cifar10", suite=PATHO))
    (row,) = (row for row in table.rows if row.method == "pfedlia")
    assert (row.nearest, row.default, bool(row.printed)) == (True, False, True)
    assert [*contenders(table)] == ["fedavg"]


def test_a_method_that_lacks_a_seed_of_most_does_not_take_it_from_all(tmp_path: Path) -> None:
    seeds = {"fedavg": 2, "ditto": 2, "apfl": 1, "ifca": 3}
    rows = [made(0.5, method=name, seed=at) for name, many in seeds.items() for at in range(many)]
    assert sorted(contenders(only(tmp_path, *rows))) == ["ditto", "fedavg", "ifca"]


def test_work_is_not_measured_by_an_outdated_row(tmp_path: Path) -> None:
    def timed(seconds: float, method: str, version: str = "2") -> Result:
        one = made(
            method=method, version=version, config=f"{version}{method}",
            plugin={"baseline": method == "fedavg"},
        )  # fmt: skip
        times = {"total": seconds, "train": seconds}
        return one.model_copy(update={"seconds": times, "environment": {}})

    rows = only(
        tmp_path, timed(5.0, "fedavg", version="1"), timed(10.0, "fedavg"), timed(30.0, "m")
    ).main
    assert {row.method: row.work for row in rows} == {"fedavg": 1.0, "m": 3.0}


def test_one_cohort_is_of_whole_clients(tmp_path: Path) -> None:
    suite = {"participation": 0.6, "rounds": 10}
    (row,) = only(tmp_path, made(suite=suite)).rows  # 2 of 4 clients, not 2.4
    assert cohort_epochs(row) == 10 * row.results[0].suite["local"]["epochs"] * 2 / 4


def test_departures_are_counted_from_the_installed_defaults() -> None:
    assert departures(described("pfedlia", warmup=20, mode="central")) == 0
    assert departures(described("pfedlia", warmup=21, mode="peer")) == 2
    assert departures(described("pfedlia+ifca", **{"pfedlia.warmup": 7, "ifca.clusters": 2})) == 1
    assert departures(described("not-installed", anything=3)) == 0


def test_a_row_is_outdated_by_its_suite_or_by_its_plugin(tmp_path: Path) -> None:
    old = {**PATHO, "version": 1}
    (table,) = tables(write(tmp_path, made(suite=old), made(method="b", suite=old)))
    assert [row.outdated for row in table.rows] == ["suite version 1; 2 is installed"] * 2
    assert table.main == ()
    assert table.compared == ()
    assert table.command == ""
    write(tmp_path, made(method="a+b", version="1.0.1", mark="other000"))
    second, first = tables(tmp_path)
    assert [row.outdated for row in first.rows] == [""]
    assert [row.outdated for row in second.rows] == ["suite version 1; 2 is installed"] * 2
    third: dict[str, Any] = {"mark": "third000", "suite": {"name": "z"}}
    write(tmp_path, made(method="a", version="1.0.1rc1", config="a", **third))
    write(tmp_path, made(method="c", version="no version", config="c", **third))
    assert [row.outdated for row in tables(tmp_path)[-1].rows] == ["", ""], "nothing newer here"
    write(tmp_path, made(method="a+b", version="1.0.1", config="ab", **third))
    stale = {row.method: row.outdated for row in tables(tmp_path)[-1].rows}
    assert stale["a"] == mentioning("1.0.1rc1", "1.0.1")
    assert stale["c"] == ""


def test_a_suite_that_is_not_installed_is_no_mistake(tmp_path: Path) -> None:
    table = only(tmp_path, made(suite={"name": "mine", "version": 99}))
    assert (table.summary, table.command) == ("", "")
    assert table.rows[0].outdated == ""
    assert suite_of("mine", "digits") is None


def test_what_is_not_defined_is_kept_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path, made(), skip("s", "s: no"), made(method="b", mark="01234567"))
    first, second = tables(tmp_path)
    assert first.undefined == ()
    assert second.undefined == (("s", "s: no"),)
    assert second.not_defined == ("Not defined here: s: no.",)


def test_methods_with_the_same_numbers_are_named(tmp_path: Path) -> None:
    for seed in (0, 1):
        write(tmp_path, made(correct=[50, 60], seed=seed))
        write(tmp_path, made(correct=[50, 60], seed=seed, method="same"))
        write(tmp_path, made(correct=[50, 60 + seed], seed=seed, method="later"))
        write(tmp_path, made(correct=[60, 50], seed=seed, method="turned"))
    write(tmp_path, made(correct=[50, 60], method="shorter"))
    (table,) = tables(tmp_path)
    assert table.copies == ("The same numbers in every client and seed: fedavg, same.",)


def test_methods_that_lack_the_same_share_a_line(tmp_path: Path) -> None:
    reasons = {"b": "b: no clock: set up, ...", "c": "few samples", "d": "d: no clock: set up, ..."}
    skips = [skip(method, reason) for method, reason in reasons.items()]
    assert only(tmp_path, made(), *skips).not_defined == (
        "Not defined here: b, d: no clock: set up, ...",
        "Not defined here: c: few samples.",
    )


def test_stale_rows_are_no_measure_for_others(tmp_path: Path) -> None:
    def baseline(version: str, accuracy: float, method: str) -> Result:
        plugin = {"baseline": True}
        return made(
            accuracy, method=method, version=version, plugin=plugin, config=f"{version}{method}"
        )

    table = only(
        tmp_path,
        baseline("1", 0.9, "f"),
        baseline("2", 0.4, "f"),
        baseline("1", 0.5, "l"),
        made(0.8, method="m"),
    )
    gains = {row.name: row.gain for row in table.main}
    assert gains["m"] == pytest.approx(0.3)


def test_tuned_rows_are_measured_by_tuned_baselines_where_there_are_some(tmp_path: Path) -> None:
    search = Tuning(budget=4, tried=4, seeds=[9], score="loss")
    plain = {"baseline": True}
    table = only(
        tmp_path,
        made(0.9, method="f", plugin=plain),
        made(0.3, method="l", plugin=plain),
        made(0.5, method="f", plugin=plain, tuning=search, config="f"),
        made(0.8, method="m", tuning=search, config="m"),
    )
    assert {row.method: row.gain for row in table.tuned} == {"m": pytest.approx(0.3), "f": None}


def test_a_command_gives_exactly_the_tables_settings() -> None:
    changes = {"rounds": 7, "local.lr": 0.5, "model": "lenet5", "headline": "validation"}
    suite = load_suite("noisy-noniid", "cifar10", changes)
    usual = load_suite("noisy-noniid", "cifar10")
    words = shlex.split(command(usual, suite.settings(), suite.hash(), 3))
    assert words[:8] == [
        "flbench", "run", "-p", "NAME", "-s", "noisy-noniid", "--dataset", "cifar10",
    ]  # fmt: skip
    assert words[-2:] == ["--seeds", "3"]
    sets = dict(word.split("=") for word in words[9:-2:2])
    assert sets == {f"suite.{key}": str(value) for key, value in changes.items()}
    read = {key.removeprefix("suite."): parse(value) for key, value in sets.items()}
    assert load_suite("noisy-noniid", "cifar10", read).hash() == suite.hash()
    other = {**suite.settings(), "version": 1}
    assert command(usual, other, "an older mark", 3) == "", "no command gives another version"
    assert command(usual, {**SUITE, "strange": 1}, suite.hash(), 3) == ""


def test_a_command_says_what_settings_leave_out() -> None:
    """A field that was added later and has its default, where the suite has another value."""
    usual = load_suite("primary-secondary-mid")
    suite = load_suite("primary-secondary-mid", None, {"test_samples": 200})
    assert "test_samples" not in suite.settings()
    words = shlex.split(command(usual, suite.settings(), suite.hash(), 1))
    assert words[6:8] == ["--set", "suite.test_samples=200"]


@pytest.mark.slow
def test_every_committed_table_of_the_installed_version_says_how_to_run_it() -> None:
    found = committed_tables()
    assert len(found) >= 13
    for table in found:
        current = table.settings["version"] == load_suite(table.suite).version
        assert bool(table.command) == current, table.title
    places = [(one.suite, one.dataset, one.joins_late, one.fingerprint) for one in found]
    assert places == sorted(places)


def test_distances_are_over_common_seeds() -> None:
    rows = grouped([made(0.5), made(0.9, seed=1), made(0.8, seed=1, method="b")])
    (b, fedavg) = next(iter(rows.values()))
    assert (b.method, fedavg.seeds) == ("b", (0, 1))
    assert distances(b, [b, fedavg]) == (None, None)


@pytest.mark.slow
@pytest.mark.long
def test_tables_pages_and_figures_import_no_torch() -> None:
    said = python(
        "import sys\n"
        "from pathlib import Path\n"
        "from flbench.leaderboard.build import board\n"
        f"files = board(Path({str(ROOT / 'leaderboard/results/label-swap')!r}), Path('.'))\n"
        "print(len(files), [name for name in ('torch', 'lightning', 'wandb', 'flbench_plugins')"
        " if name in sys.modules])\n"
    )
    count, _, found = said.partition(" ")
    assert int(count) >= 5
    assert found.strip() == "[]"


def test_who_is_the_same_client_in_every_seed() -> None:
    """Of ten clients three join late, whom each seed draws; of the others one is not judged."""
    suite = {"partition": {"name": "natural"}, "clients": 10, "unseen": 0.3}
    rows = [
        ResultGroup("m", (made(seed=seed, suite=suite, test=[9, 9, 0, 9, 9, 9, 9]),))
        for seed in range(4)
    ]
    found = same_clients(rows)
    assert found is not None
    for seed, ids in found.items():
        order = late_ones_last(10, 3, seed)
        assert order[:7] == sorted(order[:7]) and len({*order}) == 10
        assert ids.tolist() == [*order[:2], *order[3:7]]
    assert len({tuple(ids) for ids in found.values()}) > 1
    named = made(suite={**suite, "unseen": ["a", "b", "c"]}, test=[9] * 7)
    assert same_clients([ResultGroup("m", (named,))])[0].tolist() == [*range(7)]  # type: ignore[index]
    dealt = made(suite={**suite, "partition": {"name": "dirichlet"}})
    assert same_clients([ResultGroup("m", (dealt,))]) is None


def test_the_text_on_a_paper_is_that_of_the_installed_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file says of it is in no fingerprint."""
    write(tmp_path, made(suite={"paper": "a proven optimum"}))
    (table,) = tables(tmp_path)
    assert table.settings["paper"] == "a proven optimum", "of a suite that is not installed"
    installed = Mock(paper="Table I", printed={}, hash=lambda: table.fingerprint, version=1)
    monkeypatch.setattr("flbench.leaderboard.table.suite_of", lambda name, dataset: installed)
    (table,) = tables(tmp_path)
    assert table.settings["paper"] == "Table I"
