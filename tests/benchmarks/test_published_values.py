"""The papers' printed numbers: they are data of the suites, change nothing and can be shown."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from flbench.cli.main import main
from flbench.plugin.registry import entries
from flbench.suite import Suite, load_suite

SUITES = sorted(entries("suites"))
WITH = {
    "digit-5": {"digit-5", "digit-5[mnist,usps,mnist-m]"},
    "dirichlet-0.1": {"fashion-mnist", "cifar10", "cifar100"},
    "label-skew-20": {"fashion-mnist", "cifar10", "cifar100", "svhn"},
    "label-skew-30": {"fashion-mnist", "cifar10", "cifar100", "svhn"},
    "noisy-noniid": {"fashion-mnist", "cifar10", "cifar100"},
    "office-10": {"office-caltech"},
    "own-shares-high": {"fashion-mnist", "cifar10"},
    "own-shares-low": {"fashion-mnist", "cifar10"},
    "own-shares-mid": {"fashion-mnist", "cifar10"},
    "pathological-noniid": {"fashion-mnist", "cifar10", "cifar100"},
    "primary-secondary-high": {"fashion-mnist", "cifar10"},
    "primary-secondary-low": {"fashion-mnist", "cifar10"},
    "primary-secondary-mid": {"fashion-mnist", "cifar10"},
}
DOMAINS = {
    "digit-5": ("mnist", "svhn", "usps", "synth-digits", "mnist-m"),
    "office-caltech": ("amazon", "caltech", "dslr", "webcam"),
}
FRACTIONS = {"accuracy_mean", "accuracy_std", "unseen_accuracy_tuned"} | {
    f"accuracy_{domain}" for domains in DOMAINS.values() for domain in domains
}
AMOUNTS = {
    "rounds_to_target", "communication_rounds", "megabits_to_target", "link_seconds", "seconds"
}  # fmt: skip


def numbers(suite: Suite) -> list[tuple[str, str, str, float]]:
    """Data set, method, name and number of everything a suite's paper prints."""
    return [
        (dataset, method, name, number)
        for dataset, methods in suite.printed.items()
        for method, summary in methods.items()
        for name, number in summary.items()
    ]


@pytest.mark.slow
def test_every_suite_loads_and_prints_what_its_paper_prints() -> None:
    found = {name: load_suite(name).printed for name in SUITES}
    assert {name: set(printed) for name, printed in found.items() if printed} == WITH
    names = {name.partition("[")[0] for name in set().union(*found.values())}
    assert names <= set(entries("datasets"))
    for name, printed in found.items():
        for dataset in printed:
            assert load_suite(name, dataset).printed == printed


@pytest.mark.slow
def test_every_printed_number_has_a_known_name_and_a_sensible_size() -> None:
    for dataset, method, quantity, number in (
        one for name in WITH for one in numbers(load_suite(name))
    ):
        place = (dataset, method, quantity, number)
        assert method.partition(" (")[0] in entries("methods"), place
        known = quantity if quantity in FRACTIONS else quantity.removesuffix("_std")
        assert known in FRACTIONS | AMOUNTS, place
        assert math.isfinite(number) and number >= 0, place
        if known in FRACTIONS:
            assert number <= 1, place
        else:
            assert number > 1, place


def test_of_three_domains_of_digit_5_the_mean_of_each_is_printed() -> None:
    printed = load_suite("digit-5").printed
    three, five = printed["digit-5[mnist,usps,mnist-m]"], printed["digit-5"]
    domains = [f"accuracy_{name}" for name in ("mnist", "usps", "mnist-m")]
    assert {*three} == {name for name, known in five.items() if domains[0] in known}
    for name, known in three.items():
        assert {domain: known[domain] for domain in domains} == {
            domain: five[name][domain] for domain in domains
        }
        mean = sum(known[domain] for domain in domains) / 3
        assert known["accuracy_mean"] == pytest.approx(mean, abs=5.1e-5)


def test_every_printed_method_has_an_accuracy() -> None:
    for name in WITH:
        for methods in load_suite(name).printed.values():
            assert all(summary["accuracy_mean"] >= 0.1 for summary in methods.values()), name


# (percent or amount, typed from the papers)
TYPED = [
    ("pathological-noniid", "cifar10", "oracle", "accuracy_mean", 86.08),
    ("pathological-noniid", "cifar10", "fesem", "accuracy_std", 8.24),
    ("pathological-noniid", "fashion-mnist", "fedproto", "accuracy_mean", 93.93),
    ("pathological-noniid", "cifar100", "pfedlia", "accuracy_mean", 68.13),
    ("noisy-noniid", "cifar10", "pfedlia", "accuracy_mean", 74.52),
    ("noisy-noniid", "fashion-mnist", "fedfomo", "accuracy_mean", 85.11),
    ("noisy-noniid", "cifar100", "fedavg", "accuracy_std", 20.67),
    ("label-skew-20", "fashion-mnist", "scaffold", "accuracy_std", 28.7),
    ("label-skew-20", "cifar10", "flis-dc", "accuracy_mean", 89.47),
    ("label-skew-20", "cifar100", "ifca", "accuracy_mean", 71.84),
    ("label-skew-20", "svhn", "per-fedavg", "accuracy_mean", 93.32),
    ("label-skew-20", "cifar10", "ifca", "rounds_to_target", 25),
    ("label-skew-20", "cifar100", "flis-hc", "rounds_to_target", 37),
    ("label-skew-20", "svhn", "flis-hc", "unseen_accuracy_tuned", 95.11),
    ("label-skew-20", "cifar100", "lg-fedavg", "unseen_accuracy_tuned", 10.63),
    ("label-skew-30", "cifar10", "local-only", "accuracy_mean", 65),
    ("label-skew-30", "svhn", "cfl", "accuracy_std", 4.77),
    ("label-skew-30", "cifar10", "ifca", "megabits_to_target", 16.66),
    ("label-skew-30", "cifar100", "per-fedavg", "megabits_to_target", 6356.06),
    ("dirichlet-0.1", "cifar10", "flis-dc", "accuracy_mean", 60.33),
    ("dirichlet-0.1", "fashion-mnist", "scaffold", "accuracy_mean", 10.0),
    ("dirichlet-0.1", "cifar100", "ifca", "accuracy_mean", 47.67),
    ("digit-5", "digit-5", "fedc2i", "accuracy_mean", 85.50),
    ("digit-5", "digit-5", "fedc2i", "accuracy_mnist-m", 83.60),
    ("digit-5", "digit-5", "fedrod", "accuracy_synth-digits", 82.07),
    ("digit-5", "digit-5", "fedc2i-class-local", "accuracy_mean", 79.32),
    ("digit-5", "digit-5", "fedc2i (gamma=10)", "accuracy_mean", 84.26),
    ("office-10", "office-caltech", "fedprox", "accuracy_webcam", 86.44),
    ("office-10", "office-caltech", "fedc2i-lambda", "accuracy_std", 2.85),
    ("office-10", "office-caltech", "fedc2i (gamma=1)", "accuracy_mean", 64.20),
    ("primary-secondary-low", "cifar10", "per-fedavg", "communication_rounds", 189),
    ("primary-secondary-mid", "fashion-mnist", "dc-pfl", "accuracy_mean", 91.3),
    ("primary-secondary-mid", "cifar10", "fedavg", "link_seconds", 331),
    ("primary-secondary-high", "cifar10", "clusterfl", "accuracy_mean", 77.4),
    ("primary-secondary-high", "fashion-mnist", "local-only", "seconds", 119),
]


def test_printed_numbers_are_those_of_the_papers() -> None:
    for suite, dataset, method, name, typed in TYPED:
        scale = 100 if name in FRACTIONS else 1
        found = load_suite(suite).printed[dataset][method][name]
        assert found * scale == pytest.approx(typed), (suite, dataset, method, name)


def test_the_settings_of_a_suite_do_not_depend_on_what_is_printed() -> None:
    suite = load_suite("noisy-noniid")
    bare = suite.model_copy(update={"printed": {}})
    other = suite.model_copy(update={"printed": {"cifar10": {"fedavg": {"accuracy_mean": 0.5}}}})
    assert suite.hash() == bare.hash() == other.hash()
    assert "printed" not in suite.settings()


@pytest.mark.parametrize(("dataset", "same"), [("cifar10", True), ("fashion-mnist", True),
                                               ("cifar100", False)])  # fmt: skip
def test_pfedlia_equals_its_oracle_where_the_paper_says_so(dataset: str, same: bool) -> None:
    rows = load_suite("pathological-noniid").printed[dataset]
    assert (rows["pfedlia"] == rows["oracle"]) is same


def test_pfedlia_s_local_only_on_fashion_mnist_is_printed_twice_and_its_noisy_oracle_never() -> (
    None
):
    clean, noisy = (load_suite(f"{kind}-noniid").printed for kind in ("pathological", "noisy"))
    assert clean["fashion-mnist"]["local-only"] == noisy["fashion-mnist"]["local-only"]
    assert not any("oracle" in rows for rows in noisy.values())


@pytest.mark.parametrize(("suite", "dataset"), [("digit-5", "digit-5"),
                                                ("office-10", "office-caltech")])  # fmt: skip
def test_fedc2i_s_averages_are_those_of_its_domains(suite: str, dataset: str) -> None:
    rows = load_suite(suite).printed[dataset]
    with_domains = [row for row in rows.values() if len(row) > 2]
    assert len(with_domains) == 7
    for row in with_domains:
        each = [row[f"accuracy_{domain}"] for domain in DOMAINS[dataset]]
        if row["accuracy_mean"] == 0.6487:  # fedavg on office: fits a caltech of 38.96, not 38.90
            assert row["accuracy_caltech"] == 0.389
            each[1] = 0.3896
        assert sum(each) / len(each) == pytest.approx(row["accuracy_mean"], abs=1.01e-4)
    assert rows["fedc2i"].items() >= rows["fedc2i (gamma=5)"].items(), "gamma is 5 unless said"


def test_flis_prints_rounds_for_20_and_costs_for_30_percent_of_the_same_methods() -> None:
    rounds, costs = (load_suite(f"label-skew-{share}").printed for share in (20, 30))
    for dataset, rows in rounds.items():
        reached = {method for method, row in rows.items() if "rounds_to_target" in row}
        assert reached == {m for m, row in costs[dataset].items() if "megabits_to_target" in row}
        assert not any("megabits_to_target" in row for row in rows.values())
    assert all(len(rows) == 11 for table in (rounds, costs) for rows in table.values())


@pytest.mark.parametrize("band", ["low", "mid", "high"])
def test_dc_pfl_prints_no_exchange_for_local_only_and_one_for_the_others(band: str) -> None:
    for rows in load_suite(f"primary-secondary-{band}").printed.values():
        assert set(rows) == {"local-only", "fedavg", "per-fedavg", "clusterfl", "dc-pfl"}
        for method, row in rows.items():
            assert ("link_seconds" in row) is (method != "local-only")
            assert row.get("link_seconds", 0) < row["seconds"]


@pytest.mark.parametrize("band", ["low", "mid", "high"])
def test_both_readings_of_dc_pfls_shares_print_the_same(band: str) -> None:
    """They differ in who draws the shares, and in a clock; the link counts one direction."""
    for dataset in ("digits", "fashion-mnist", "cifar10"):
        one, other = (
            load_suite(f"{n}-{band}", dataset) for n in ("primary-secondary", "own-shares")
        )
        assert other.printed == one.printed
        same = one.settings().keys() - {"name", "version", "partition"}
        assert {key: other.settings()[key] for key in same} == {
            key: one.settings()[key] for key in same
        }
        assert other.partition.params == {**one.partition.params, "per": "client"}
        assert other.clock is not None and one.clock is None
        assert (other.clock.down, other.clock.up) == (2e6, None)


def shown(
    args: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """The lines of `flbench show suite` where no data are."""
    monkeypatch.setattr(sys, "argv", ["flbench", "show", "suite", *args])
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path))
    capsys.readouterr()
    try:
        main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    else:
        code = 0
    assert code == 0
    return capsys.readouterr().out.splitlines()


def test_show_suite_prints_them_for_the_shown_data_set_after_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(("label-skew-20", "--dataset", "cifar10"), tmp_path, monkeypatch, capsys)
    at = lines.index("printed in the paper, cifar10, own models judged:")
    assert lines[at - 1].startswith("  headline = ")
    assert lines[at + 1 : at + 12] == [
        "  local-only  accuracy_mean 0.7922, accuracy_std 0.0167, unseen_accuracy_tuned 0.823,"
        " unseen_accuracy_tuned_std 0.01",
        "  fedavg      accuracy_mean 0.498, accuracy_std 0.033, unseen_accuracy_tuned 0.3101,"
        " unseen_accuracy_tuned_std 0.0183",
        "  fedprox     accuracy_mean 0.507, accuracy_std 0.017, unseen_accuracy_tuned 0.2756,"
        " unseen_accuracy_tuned_std 0.0324",
        "  fednova     accuracy_mean 0.465, accuracy_std 0.035, unseen_accuracy_tuned 0.3148,"
        " unseen_accuracy_tuned_std 0.0149",
        "  scaffold    accuracy_mean 0.491, accuracy_std 0.017, unseen_accuracy_tuned 0.3722,"
        " unseen_accuracy_tuned_std 0.0134",
        "  lg-fedavg   accuracy_mean 0.8631, accuracy_std 0.0082, rounds_to_target 33,"
        " unseen_accuracy_tuned 0.7798,"
        " unseen_accuracy_tuned_std 0.0161",
        "  per-fedavg  accuracy_mean 0.8546, accuracy_std 0.0056, rounds_to_target 60,"
        " unseen_accuracy_tuned 0.7379,"
        " unseen_accuracy_tuned_std 0.0051",
        "  ifca        accuracy_mean 0.8799, accuracy_std 0.0015, rounds_to_target 25,"
        " unseen_accuracy_tuned 0.8498,"
        " unseen_accuracy_tuned_std 0.0041",
        "  cfl         accuracy_mean 0.5111, accuracy_std 0.0101",
        "  flis-dc     accuracy_mean 0.8947, accuracy_std 0.0092, unseen_accuracy_tuned 0.8445,"
        " unseen_accuracy_tuned_std 0.0176",
        "  flis-hc     accuracy_mean 0.8935, accuracy_std 0.0046, rounds_to_target 24,"
        " unseen_accuracy_tuned 0.8534,"
        " unseen_accuracy_tuned_std 0.0011",
    ]
    assert lines[at + 12].startswith("how its data are divided cannot be shown")


@pytest.mark.slow
def test_show_suite_prints_none_where_the_paper_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for args in (("label-skew-20",), ("iid", "--dataset", "cifar10")):
        lines = shown(args, tmp_path, monkeypatch, capsys)
        assert not [line for line in lines if "printed" in line]
