"""`flbench.SuiteResults`: table, columns, figures and differences of several results."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_results import made, twice
from mentions import mention, mentions

import flbench as fl
from flbench.errors import BadParameter, UnknownName, UserError
from flbench.plugin.own_objects import own_method

FEDAVG = twice(made(correct=[50, 60, 70, 80]))
MINE = twice(made(method="Mine-own-0123456789ab", correct=[60, 70, 90, 80]))
RESULTS = fl.SuiteResults((*FEDAVG, *MINE), {"ditto on toy": "not today"})


def test_it_is_a_sequence_of_results() -> None:
    assert list(RESULTS) == [*FEDAVG, *MINE]
    assert (len(RESULTS), RESULTS[-1]) == (4, MINE[1])
    with pytest.raises(UserError, match=mention("one.method.name == 'fedavg'")):
        RESULTS["fedavg"]


def test_the_table_has_every_method_and_what_has_no_result() -> None:
    table = RESULTS.table()
    assert mentions(table, "fedavg", "0.6500") and mentions(
        table, "Mine-own-0123456789ab", "0.7500"
    )
    assert mentions(table, "ditto on toy", "not today")


def test_columns_have_a_row_for_each_result(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RESULTS.columns()
    assert found["method"] == [one.method.name for one in RESULTS]
    assert found["accuracy_mean"] == [0.65, 0.65, 0.75, 0.75]
    assert {len(column) for column in found.values()} == {4}
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    assert RESULTS.frame() == found
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=mention("pip install pandas", "columns")):
        RESULTS.frame()


def test_the_difference_is_that_of_pairs() -> None:
    found = RESULTS.better("Mine", "fedavg")
    # of clients 10, 10, 20, 0 in both seeds: mean 0.1, squares 0.02 a seed, 6 degrees of freedom
    half = 2.4469118 * np.sqrt(0.04 / 6 / 8)
    assert found.gain == pytest.approx(0.1)
    assert found.interval == pytest.approx((0.1 - half, 0.1 + half))
    assert (found.seeds, found.headline) == ((0, 1), "accuracy")
    assert found.separable and half < 0.1
    back = RESULTS.better("fedavg", "Mine")
    assert (back.gain, back.interval) == (-found.gain, tuple(-one for one in found.interval[::-1]))
    assert mentions(str(found), "Mine-own-0123456789ab", "fedavg", "+0.1000", "2 seeds")


def test_a_difference_says_which_is_better() -> None:
    better, worse = RESULTS.better("Mine", "fedavg"), RESULTS.better("fedavg", "Mine")
    assert mentions(str(better), "+0.1000", "better") and mentions(str(worse), "-0.1000", "worse")
    alone = fl.SuiteResults((FEDAVG[0], MINE[0])).better("Mine", "fedavg")
    assert mentions(str(alone), "better" if alone.interval[0] > 0 else "apart", "1 seed")
    same = fl.SuiteResults((*FEDAVG, *twice(made(method="ditto", correct=[80, 70, 60, 50]))))
    assert mentions(str(same.better("ditto", "fedavg")), "+0.0000", "cannot be told apart")


@dataclass(frozen=True)
class Halfway:
    share: float = 0.5

    @fl.hookimpl
    def weights(self, uploads: fl.Upload) -> None:
        return None


def test_a_method_of_ones_own_is_named_by_its_object() -> None:
    name = own_method(Halfway)[0].name
    half = twice(made(method=name, params={"share": 0.5}, correct=[60, 70, 90, 80]))
    one = fl.SuiteResults((*FEDAVG, *half))
    for typed in (Halfway(), Halfway, "Halfway", "Halfway (share=0.5)", name):
        assert one.better(typed, "fedavg").one == name
    most = twice(made(method=name, params={"share": 0.9}, config="c2", correct=[60, 70, 90, 80]))
    two = fl.SuiteResults((*one, *most))
    assert two.better(Halfway(0.9), Halfway()).one == f"{name} (share=0.9)"
    with pytest.raises(UserError, match="several rows"):
        two.better(Halfway, "fedavg")
    with pytest.raises(UnknownName, match="there are"):
        one.better("Halfway (share=0.4)", "fedavg")
    with pytest.raises(UserError, match="frozen dataclass"):
        one.better(3, "fedavg")


def test_one_seed_says_nothing_of_others() -> None:
    found = fl.SuiteResults((FEDAVG[0], MINE[0])).better("Mine", "fedavg")
    assert isnan(found.p) and not found.separable and found.seeds == (0,)
    assert mentions(str(found), "1 seed")
    with pytest.raises(UserError, match=mention("seed")):
        fl.SuiteResults((FEDAVG[0], MINE[1])).better("Mine", "fedavg")


def test_figures_are_those_of_the_command(tmp_path: Path) -> None:
    figure = RESULTS.plot("accuracy")
    assert figure._repr_svg_() == figure.svg and "<svg" in figure.svg
    assert RESULTS.plot("curves") == figure, "as the command calls it"
    assert figure.save(tmp_path / "a.svg").read_text(encoding="utf-8") == figure.svg
    with pytest.raises(BadParameter, match=mention(".svg")):
        figure.save(tmp_path / "a.png")
    with pytest.raises(UnknownName, match="pie"):
        RESULTS.plot("pie")
    with pytest.raises(UserError, match=mention("scores")):
        RESULTS.plot("scores")


def test_of_several_suites_one_is_named() -> None:
    other = made(suite={"name": "other"}, mark="0therma2k")
    both = fl.SuiteResults((*FEDAVG, other))
    with pytest.raises(UserError, match=mention("suite", "other", "toy")):
        both.plot()
    assert both.plot(suite="other").svg
    with pytest.raises(UnknownName, match="nowhere"):
        both.plot(suite="nowhere")
    with pytest.raises(UnknownName, match="ditto"):
        RESULTS.better("ditto", "fedavg")


def test_a_name_of_several_rows_is_refused() -> None:
    rows = [made(method="fedprox", params={"mu": mu}, config=f"c{mu}") for mu in (0.1, 0.2)]
    found = fl.SuiteResults((*FEDAVG, *rows))
    with pytest.raises(UserError, match=mention("fedprox (mu=0.1)", "fedprox (mu=0.2)")):
        found.better("fedprox", "fedavg")
    assert found.better("fedprox (mu=0.1)", "fedavg").one == "fedprox (mu=0.1)"
