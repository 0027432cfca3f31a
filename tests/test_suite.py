"""A suite's fields, beside one another."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from mentions import mention
from toy import toy_suite

from flbench.errors import UnknownName, UserError
from flbench.plugin.registry import entries, find, load_entry
from flbench.suite import _place, build_suite, load_suite


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": 6, "unseen": 2}])
def test_fields_are_not_compared_with_one_that_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError) as caught:
        toy_suite(**wrong, not_judged=[9])
    assert f"'{list(wrong)[-1]}'" in str(caught.value)
    assert "not_judged" not in str(caught.value)


def test_a_distribution_chooses_parameters_of_the_clock_alone() -> None:
    clock = ["clock.up.distribution", "clock.up.median"]
    assert sorted(reversed(clock), key=_place) == clock
    other = ["partition", "partition.distribution"]
    assert sorted(reversed(other), key=_place) == other, "a parameter of somebody's partition"


@pytest.mark.parametrize(
    "settings",
    [
        {"partition.alpha": 0.5, "partition": "dirichlet"},
        {"partition.alpha": 0.5, "partition.name": "dirichlet"},
        {"model.hidden": 8, "model": "mlp"},
        {
            "clock.up.median": 1e6,
            "clock.up.sigma": 0.5,
            "clock.up.distribution": "lognormal",
        },
    ],
)
def test_settings_hold_in_any_order(settings: dict[str, object]) -> None:
    suite = load_suite("iid", None, settings)
    assert suite == load_suite("iid", None, dict(reversed(settings.items())))
    found = suite.model_dump()
    for name in next(iter(settings)).split("."):
        found = found[name]
    assert found == next(iter(settings.values()))


@pytest.mark.parametrize(
    ("suite", "settings", "same"),
    [
        ("byzantine-sign-flip", {"partition.alpha": 1}, {"partition.alpha": 1.0}),
        (
            "iid",
            {"partition": {"name": "dirichlet", "alpha": 1}},
            {"partition": "dirichlet", "partition.alpha": 1.0},
        ),
        ("iid", {"model.hidden": 8.0}, {"model.hidden": 8}),
    ],
)
def test_equal_settings_have_one_fingerprint(
    suite: str, settings: dict[str, object], same: dict[str, object]
) -> None:
    assert load_suite(suite, None, settings).hash() == load_suite(suite, None, same).hash()


def test_whole_epochs_are_written_as_whole_and_hashed_so() -> None:
    whole, same, half = (load_suite("iid", None, {"local.epochs": one}) for one in (5, 5.0, 1.5))
    assert whole.hash() == same.hash() != half.hash()
    written = [json.dumps(one.settings()["local"]["epochs"]) for one in (whole, same, half)]
    assert written == ["5", "5", "1.5"]
    for wrong in (0, -1, float("inf"), float("nan"), "many"):
        with pytest.raises(UserError, match=mention("local.epochs", "default 5")):
            load_suite("iid", None, {"local.epochs": wrong})


def test_the_optimiser_is_in_the_hash_only_where_it_is_another_one() -> None:
    usual, named, other = (
        load_suite("iid", None, one)
        for one in ({}, {"local.optimizer": "sgd"}, {"local.optimizer": "rmsprop"})
    )
    assert usual.hash() == named.hash() != other.hash()


def test_parameters_of_components_are_checked_before_a_run() -> None:
    with pytest.raises(UserError, match=mention("dirichlet", "alhpa")):
        load_suite("byzantine-sign-flip", None, {"partition.alhpa": 1})
    with pytest.raises(UserError, match="model 'mlp': 'hidden' expects int"):
        load_suite("iid", None, {"model.hidden": "many"})


def test_a_suite_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Windows' editors write one."""
    plain = Path("benchmarks/natural-writers.toml")
    marked = tmp_path / plain.name
    marked.write_bytes(codecs.BOM_UTF8 + plain.read_bytes())
    assert load_suite(str(marked)).hash() == load_suite("natural-writers").hash()


def test_a_newer_suite_takes_the_place_of_one_and_no_hash_moves(tmp_path: Path) -> None:
    path = Path(str(load_entry(find("suites", "iid"))))
    text = path.read_text(encoding="utf-8")
    older = tmp_path / "iid.toml"
    older.write_text(f'superseded_by = "newer"\n{text}', encoding="utf-8")
    found, before = load_suite(str(older)), load_suite("iid")
    assert (before.superseded_by, found.superseded_by) == ("", "newer")
    assert (found.hash(), found.settings()) == (before.hash(), before.settings())
    older.write_text(f'superseded_by = "iid"\n{text}', encoding="utf-8")
    with pytest.raises(UserError, match=mention("superseded_by", "iid", "another")):
        load_suite(str(older))


def test_an_installed_suite_takes_the_place_of_one_that_is_superseded() -> None:
    places = {name: load_suite(name).superseded_by for name in entries("suites")}
    for new in filter(None, places.values()):
        assert places[new] == "", "the newest one is named"


def test_a_data_set_that_is_set_takes_its_section() -> None:
    named = load_suite("noisy-noniid", "cifar10")
    assert named.model.name == "resnet18"
    assert load_suite("noisy-noniid", overrides={"dataset": "cifar10"}) == named
    assert load_suite("noisy-noniid", "cifar10", {"dataset": "cifar10"}) == named
    with pytest.raises(UserError, match=mention("--dataset digits", "dataset=cifar10", "one of")):
        load_suite("noisy-noniid", "digits", {"dataset": "cifar10"})


@pytest.mark.parametrize(
    ("section", "facts"),
    [
        ("[on.digit]\nrounds = 3", ("on.digit", "digits")),
        ("[on.DIGITS]\nrounds = 3", ("on.DIGITS", "digits")),
        ("[on.usps]\nround = 3", ("on.usps", "round", "rounds")),
        ("[on.somebodys-own]\nrounds = 3", ()),
        ('[on."digit-5[mnist,usps]"]\nrounds = 3', ()),
    ],
)
def test_sections_that_would_never_be_read_are_refused(
    tmp_path: Path, section: str, facts: tuple[str, ...]
) -> None:
    path = tmp_path / "mine.toml"
    text = (Path(load_entry(find("suites", "iid")))).read_text(encoding="utf-8")
    path.write_text(f"{text}\n{section}\n", encoding="utf-8")
    if not facts:
        assert load_suite(str(path)).name == "mine"
        return
    with pytest.raises(UnknownName, match=mention(*facts)):
        load_suite(str(path))


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"clients": True}, "'clients' expects a number such as 1, got true"),
        ({"clients": "5"}, "'clients' expects a number such as 5, got \"5\""),
        ({"rounds": "2"}, "'rounds'"),
        ({"participation": True}, "'participation'"),
        ({"local": {"lr": "0.1"}}, "'local.lr'"),
        ({"local": {"epochs": True}}, "'local.epochs'"),
        ({"test_set": "labels", "test_sizes": [5, "6"]}, "'test_sizes.1'"),
        ({"test_set": "labels", "test_sizes": [True]}, "'test_sizes.0'"),
    ],
)
def test_no_text_and_no_truth_value_is_a_number(fields: dict[str, Any], fact: str) -> None:
    plain = {
        "name": "s", "version": 1, "summary": "", "dataset": "digits", "rounds": 1, "clients": 6,
        "partition": "iid", "model": "mlp",
    }  # fmt: skip
    assert build_suite("s", plain).clients == 6
    with pytest.raises(UserError, match=mention(fact)):
        build_suite("s", {**plain, **fields})


def test_the_file_of_a_suite_has_its_whole_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("version = 1\n", encoding="utf-8")
    with pytest.raises(UserError, match=mention("whole name", str(path))):
        load_suite(str(tmp_path / "mine"))
    with pytest.raises(UnknownName):
        load_suite("a" * 5000)
    path.rename(tmp_path / "mine.TOML")
    with pytest.raises(UserError, match=mention("ends in .toml")):
        load_suite(str(tmp_path / "mine.TOML"))


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"metrics": "f1"}, "'metrics': expected a list"),
        ({"model": 3}, "'model': expected a name, or a table"),
        ({"clock": 3}, "'clock': expected a table, as {...}"),
        ({"periods": 3}, "'periods': expected a list, as [...]"),
    ],
)
def test_another_kind_of_value_is_named_in_plain_words(fields: dict[str, Any], fact: str) -> None:
    plain = {
        "name": "s", "version": 1, "summary": "", "dataset": "digits", "rounds": 1, "clients": 6,
        "partition": "iid", "model": "mlp",
    }  # fmt: skip
    with pytest.raises(UserError, match=mention(fact)):
        build_suite("s", {**plain, **fields})
