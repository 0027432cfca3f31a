"""The leaderboard: a pure function of a folder of result files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from toy import player

from flbench.errors import UserError
from flbench.leaderboard import HEADER, mean_std, page, rows_of
from flbench.result_files import result_path, write_atomically
from flbench.results import Result


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return player(tmp_path_factory.mktemp("toy"))("fedavg").result


def made(
    result: Result,
    accuracy: float,
    *,
    method: str = "fedavg",
    seed: int = 0,
    config: str | None = None,
    suite: str = "5u1te000",
    dataset: str = "toy",
    told: bool = False,
    leak: bool = False,
    baseline: bool = False,
    **summary: Any,
) -> Result:
    """A result of a method that never ran."""
    plugin = {
        "name": method, "uses_true_groups": told, "paper_leak": leak, "baseline": baseline,
    }  # fmt: skip
    described = {"name": method, "plugins": [result.method.plugins[0].model_copy(update=plugin)]}
    marks = {"config": config or f"c-{method}", "suite": suite}
    return result.model_copy(
        update={
            "seed": seed,
            "dataset": dataset,
            "method": result.method.model_copy(update=described),
            "fingerprint": result.fingerprint.model_copy(update=marks),
            "summary": {**result.summary, "accuracy_mean": accuracy, **summary},
        }
    )


def write(folder: Path, *results: Result) -> Path:
    for one in results:
        marks = one.fingerprint
        place = result_path(
            folder / marks.suite, "toy", one.dataset, one.method.name, marks.config, one.seed
        )
        assert not place.exists()
        write_atomically(place, one.canonical().encode())
    return folder


def tables(text: str) -> dict[str, list[dict[str, str]]]:
    """The page's tables as title -> rows -> cells by column."""
    found: dict[str, list[dict[str, str]]] = {}
    for part in text.split("\n## ")[1:]:
        title, *lines = part.split("\n")
        header, _, *rows = ([c.strip() for c in ln.split("|")[1:-1]] for ln in lines if "|" in ln)
        assert header == list(HEADER)
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


def test_a_row_is_the_mean_over_its_seeds(result: Result, tmp_path: Path) -> None:
    numbers = {"ari": 0.5, "groups": 3, "accuracy_worst_decile": 0.25, "mb_per_client": 1.5}
    others = {"ari": 1.0, "groups": 2, "accuracy_worst_decile": 0.75, "mb_per_client": 2.5}
    write(
        tmp_path,
        made(result, 0.8, seed=10, **numbers),
        made(result, 0.5, seed=2, **others),
        made(result, 0.6, seed=0, **numbers),
    )
    (row,) = only_table(tmp_path)
    assert row == {
        "rank": "1",
        "method": "fedavg",
        "accuracy": "0.6333 ± 0.1528",
        "worst decile": "0.4167",
        "to oracle": "-",
        "gain": "-",
        "ARI": "0.667",
        "groups": "2.7",
        "MB/client": "1.83",
        "seeds": "0, 2, 10",
        "status": "self-reported",
    }


def test_distances_to_the_oracle_and_above_the_better_baseline(
    result: Result, tmp_path: Path
) -> None:
    told = {"oracle": 0.9, "local-only": 0.6, "fedavg": 0.7, "ifca": 0.85, "cfl": 0.65}
    plain = ("local-only", "fedavg")
    rows = [
        made(result, value, method=name, told=name == "oracle", baseline=name in plain)
        for name, value in told.items()
    ]
    rows.append(made(result, 0.5, method="ifca", seed=7))  # the others have no such seed
    write(tmp_path, *rows)
    found = {row["method"]: (row["to oracle"], row["gain"]) for row in only_table(tmp_path)}
    assert found["ifca"] == ("+0.0500", "+0.1500")
    assert found["cfl"] == ("+0.2500", "-0.0500")
    assert found["oracle"] == ("-", "+0.2000")
    assert found["fedavg"] == ("+0.2000", "-")
    assert found["local-only"] == ("+0.3000", "-")
    alone = tmp_path / "alone"
    write(alone, made(result, 0.8, method="ifca"), made(result, 0.7, baseline=True))
    (first, _) = only_table(alone)
    assert (first["to oracle"], first["gain"]) == ("-", "-"), "both baselines must be there"


def test_a_number_that_no_seed_has_is_a_dash(result: Result, tmp_path: Path) -> None:
    write(tmp_path, made(result, 0.5, ari=None), made(result, 0.5, seed=1, ari=None))
    assert only_table(tmp_path)[0]["ARI"] == "-"
    write(tmp_path, made(result, 0.5, seed=2, ari=0.25))
    assert only_table(tmp_path)[0]["ARI"] == "0.250"


def test_rows_are_ranked_by_their_mean_accuracy(result: Result, tmp_path: Path) -> None:
    write(
        tmp_path,
        made(result, 0.9, method="lucky", seed=0),
        made(result, 0.3, method="lucky", seed=1),
        made(result, 0.7, method="best"),
        made(result, 0.5, method="worst"),
        made(result, 0.6, method="a-tie"),
    )
    rows = only_table(tmp_path)
    assert [row["method"] for row in rows] == ["best", "a-tie", "lucky", "worst"]
    assert [row["rank"] for row in rows] == ["1", "2", "2", "4"]


@pytest.mark.parametrize("why", ["told", "leak"])
def test_reference_rows_are_shown_but_not_ranked(why: str, result: Result, tmp_path: Path) -> None:
    write(
        tmp_path,
        made(result, 0.9, method="first"),
        made(result, 0.8, method="oracle", **{why: True}),
        made(result, 0.7, method="second"),
    )
    rows = only_table(tmp_path)
    assert [(row["rank"], row["method"]) for row in rows] == [
        ("1", "first"), ("reference", "oracle"), ("2", "second"),
    ]  # fmt: skip
    assert rows[1]["accuracy"] == "0.8000"


def test_a_composition_with_a_reference_plugin_is_a_reference(result: Result) -> None:
    honest, told = made(result, 0.5, method="a"), made(result, 0.5, method="b", told=True)
    plugins = [*honest.method.plugins, *told.method.plugins]
    both = honest.method.model_copy(update={"name": "a+b", "plugins": plugins})
    (rows,) = rows_of([honest.model_copy(update={"method": both}), honest]).values()
    assert [(row.name, row.reference) for row in rows] == [("a", False), ("a+b", True)]


def test_rows_of_different_suites_never_share_a_table(result: Result, tmp_path: Path) -> None:
    write(
        tmp_path,
        made(result, 0.9, suite="aaaaaaaa"),
        made(result, 0.5, suite="aaaaaaaa", method="other"),
        made(result, 0.7, suite="bbbbbbbb", seed=1),
    )
    found = tables(page(tmp_path))
    assert list(found) == ["toy on toy [aaaaaaaa]", "toy on toy [bbbbbbbb]"]
    assert [[row["method"] for row in rows] for rows in found.values()] == [
        ["fedavg", "other"], ["fedavg"],
    ]  # fmt: skip
    assert [rows[0]["seeds"] for rows in found.values()] == ["0", "1"], "seeds do not mix"
    assert [rows[0]["rank"] for rows in found.values()] == ["1", "1"], "each table counts anew"


def test_data_sets_never_share_a_table(result: Result) -> None:
    found = rows_of([made(result, 0.5), made(result, 0.6, dataset="other")])
    assert list(found) == ["toy on other [5u1te000]", "toy on toy [5u1te000]"]


def test_two_parameter_sets_of_one_method_are_kept_apart(result: Result, tmp_path: Path) -> None:
    write(
        tmp_path,
        made(result, 0.5, config="11111111"),
        made(result, 0.7, config="11111111", seed=1),
        made(result, 0.8, config="22222222"),
        made(result, 0.4, method="alone"),
    )
    rows = only_table(tmp_path)
    assert [(row["method"], row["accuracy"]) for row in rows] == [
        ("fedavg (22222222)", "0.8000"),
        ("fedavg (11111111)", "0.6000 ± 0.1414"),
        ("alone", "0.4000"),
    ]


def test_rows_of_one_method_are_told_apart_by_what_differs(result: Result, tmp_path: Path) -> None:
    def told(config: str, accuracy: float, **params: object) -> Result:
        one = made(result, accuracy, method="m", config=config)
        return one.model_copy(update={"method": one.method.model_copy(update={"params": params})})

    write(tmp_path, told("1", 0.5, mode="a", same=3), told("2", 0.6, mode="b", same=3))
    assert [row["method"] for row in only_table(tmp_path)] == ["m (mode=b)", "m (mode=a)"]


def test_equal_accuracies_share_a_rank(result: Result, tmp_path: Path) -> None:
    pairs = (("a", 0.7), ("b", 0.7), ("c", 0.5))
    write(tmp_path, *[made(result, accuracy, method=name) for name, accuracy in pairs])
    assert [row["rank"] for row in only_table(tmp_path)] == ["1", "1", "3"]


def test_the_status_of_every_seed_is_shown(result: Result, tmp_path: Path) -> None:
    again = made(result, 0.5, seed=1).model_copy(update={"status": "reproduced"})
    write(tmp_path, made(result, 0.5), again)
    assert only_table(tmp_path)[0]["status"] == "reproduced, self-reported"


def test_the_page_is_the_same_bytes_for_the_same_files(result: Result, tmp_path: Path) -> None:
    every = [
        made(result, accuracy, method=method, seed=seed, suite=suite, config=config)
        for suite in ("aaaaaaaa", "bbbbbbbb")
        for method, config, accuracy in (("b", "1", 0.5), ("b", "2", 0.5), ("a", "3", 0.5))
        for seed in (0, 1, 2)
    ]
    one, other = write(tmp_path / "one", *every), write(tmp_path / "other", *reversed(every))
    shutil.copytree(one, tmp_path / "elsewhere" / "deep")
    text = page(one)
    assert text == page(one) == page(other) == page(tmp_path / "elsewhere")
    assert text.endswith("|\n")
    assert str(tmp_path) not in text
    assert [row["method"] for row in tables(text)["toy on toy [aaaaaaaa]"]] == [
        "a", "b (1)", "b (2)",
    ]  # fmt: skip
    write(one, made(result, 0.6, method="new", suite="aaaaaaaa"))
    assert page(one) != text


def test_seconds_and_environment_do_not_show(result: Result, tmp_path: Path) -> None:
    slow = made(result, 0.5).model_copy(update={"seconds": {"total": 9.0}, "environment": {}})
    one, other = write(tmp_path / "one", made(result, 0.5)), write(tmp_path / "other", slow)
    assert page(one) == page(other)


def test_an_empty_folder_is_a_page_without_tables(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert text.startswith("# Leaderboard\n")
    assert tables(text) == {}


def test_rows_of_other_data_never_share_a_table(result: Result, tmp_path: Path) -> None:
    one, other = made(result, 0.5, method="a"), made(result, 0.6, method="b")
    marks = other.fingerprint.model_copy(update={"partition": "another"})
    write(tmp_path, one, other.model_copy(update={"fingerprint": marks}))
    with pytest.raises(UserError, match="differ in partition, so they cannot share a table"):
        page(tmp_path)


def test_rows_that_share_their_parameters_are_still_told_apart(
    result: Result, tmp_path: Path
) -> None:
    pairs = (("1", 1), ("2", 1), ("3", 2))
    rows = []
    for config, x in pairs:
        row = made(result, 0.5, method="m", config=config)
        method = row.method.model_copy(update={"params": {"x": x}})
        rows.append(row.model_copy(update={"method": method}))
    write(tmp_path, *rows)
    assert [row["method"] for row in only_table(tmp_path)] == [
        "m (x=1, 1)",
        "m (x=1, 2)",
        "m (x=2)",
    ]
