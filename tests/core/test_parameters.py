"""Parameters: `--set`, the fields of methods, the fields of suites."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from annotated_types import Ge
from mentions import mention, mentioning, mentions

import flbench_benchmarks
from flbench import hookimpl
from flbench.core.local_training import LocalTraining
from flbench.core.parameters import checked, declared
from flbench.core.setting_text import parse
from flbench.errors import BadParameter, PluginError, UnknownName, UserError
from flbench.plugin.registry import entries, find, load_entry
from flbench.run.composition import compose, load_method, suite_overrides
from flbench.suite import (
    Component,
    fingerprint,
    load_suite,
    suite_field,
    suite_fields,
    unused_settings,
)

TOML = sorted(Path(flbench_benchmarks.__file__).parent.glob("*.toml"))

SUITE = """
version = 1
summary = "a suite of these tests"
dataset = "digits"
clients = 20
rounds = 5
partition = { name = "label-groups-noisy", groups = 2, extra_labels = 3 }
model = { name = "mlp", hidden = 7 }
local = { epochs = 2, lr = 0.5 }

[on.fashion-mnist]
clients = 40
model = "lenet5"
local = { lr = 0.25 }
"""


@dataclass(frozen=True)
class Clash:
    """A method of these tests that has a `rounds` and an `epochs` of its own."""

    uses_true_groups: ClassVar[bool] = True

    rounds: Annotated[int, Ge(1), "rounds of something", "else"] = 3
    epochs: int = 1
    mode: Literal["a", "b"] = "a"
    share: float | None = None

    def __post_init__(self) -> None:
        if self.share == 2:
            raise ValueError("share and rounds do not go together")

    @hookimpl
    def plan(self) -> None:
        """Answer nothing."""


@dataclass
class Thawed:
    rounds: int = 3


class NoDataclass:
    pass


def function(first: object, second: object, size: int, name: str = "x", *, free: Any = 1) -> None:
    """Something that takes parameters behind two of the core's."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the methods of this file beside the others."""

    def with_ours(group: str) -> list[EntryPoint]:
        ours = {"clash": "Clash", "thawed": "Thawed", "plain": "NoDataclass", "gone": "Gone"}
        points = [EntryPoint(name, f"{__name__}:{what}", group) for name, what in ours.items()]
        return [*entry_points(group=group), *(points if group == "flbench.methods" else [])]

    monkeypatch.setattr("flbench.plugin.registry.entry_points", with_ours)


@pytest.fixture
def suite_file(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(SUITE, encoding="utf-8")
    return str(path)


def message(error: type[UserError], call: Any, *args: Any, **kwargs: Any) -> str:
    """The text of the error a call raises: one line."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


# ---- words that look like something else


def typed_words(
    word: Literal["none", "true", "5", "a"] = "a",
    text: str = "a",
    count: int | None = 3,
    flag: bool = False,
) -> None:
    """Parameters of words, and of what words look like."""


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("word", None, "none"), ("word", True, "true"), ("word", 5, "5"), ("word", "a", "a"),
        ("text", None, "none"), ("text", 0.5, "0.5"), ("text", 1, "1"),
        ("count", None, None), ("count", 5, 5), ("flag", True, True),
    ],
)  # fmt: skip
def test_a_parameter_of_words_takes_what_looks_like_a_value(
    name: str, given: object, read: object
) -> None:
    (found,) = checked("x", typed_words, {name: given}).values()
    assert (found, type(found)) == (read, type(read))


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("word", 6, "got 6"), ("flag", None, "got None"), ("count", "b", "got 'b'"),
        ("text", [1], "got [1]"), ("word", False, "got False"),
    ],
)  # fmt: skip
def test_what_is_no_word_of_a_parameter_is_named_as_it_came(
    name: str, given: object, said: str
) -> None:
    with pytest.raises(BadParameter, match=mention("x", f"'{name}'", said)):
        checked("x", typed_words, {name: given})


# ---- the right side of --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-1", -1), ("0.05", 0.05), ("1e-3", 0.001), ("1_000", 1000),
        ("true", True), ("False", False), ("True", True), ("false", False),
        ("none", None), ("None", None), ("null", None),
        ("peer", "peer"), ("signed_sqrt", "signed_sqrt"), ("'3'", "3"), ('"none"', "none"),
        ("fashion-mnist", "fashion-mnist"), ("a=b", "a=b"), ("", ""), ("007", "007"),
        ("[1, 2]", [1, 2]), ("{ groups = 3 }", {"groups": 3}), ("1\nx = 2", "1\nx = 2"),
        ("9" * 5000, "9" * 5000), ("[" * 5000, "[" * 5000),
    ],
)  # fmt: skip
def test_the_right_side_of_set_is_a_toml_value_none_or_text(text: str, value: object) -> None:
    parsed = parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


# ---- what is declared


def test_a_dataclass_declares_its_fields() -> None:
    found = declared(Clash)
    assert list(found) == ["rounds", "epochs", "mode", "share"]
    assert [field.default for field in found.values()] == [3, 1, "a", None]
    assert [field.type for field in found.values()] == ["int", "int", "'a' | 'b'", "float | None"]
    assert found["rounds"].doc == "rounds of something else"
    assert found["mode"].doc == ""


def test_a_function_declares_what_stands_behind_the_core_s_arguments() -> None:
    found = declared(function, skip=2)
    assert {name: field.default for name, field in found.items()} == {
        "size": None, "name": "x", "free": 1,
    }  # fmt: skip
    partition = declared(load_entry(find("partitions", "label-groups-noisy")), skip=4)
    assert list(partition) == ["groups", "order", "extra_labels", "extra_probability"]


def test_values_come_back_as_the_declared_type() -> None:
    found = checked("m", Clash, {"share": 1, "rounds": 4.0})
    assert found == {"share": 1.0, "rounds": 4}
    assert type(found["share"]) is float
    assert type(found["rounds"]) is int
    assert checked("m", Clash, {"share": None}) == {"share": None}
    assert checked("m", Clash, {}) == {}, "defaults are the target's own business"


class Speed(StrEnum):
    SLOW = "slow"


@dataclass
class Several:
    speed: Speed = Speed.SLOW
    sizes: list[int] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    where: Path = Path()
    on: bool = False


def test_texts_of_other_types_are_read_and_stand_for_no_number_within_lists() -> None:
    texts = {"speed": "slow", "where": "a/b", "on": "true"}
    assert checked("m", Several, texts) == {"speed": Speed.SLOW, "where": Path("a/b"), "on": True}
    assert checked("m", Several, {"sizes": [1, 2]}) == {"sizes": [1, 2]}
    for values in ({"sizes": [1, "2"]}, {"sizes": [True]}, {"shares": {"a": "0.5"}}):
        assert "stands for a number" in message(BadParameter, checked, "m", Several, values)


@pytest.mark.parametrize("value", ["4", True, "true"])
def test_no_text_and_no_truth_value_is_a_number(value: object) -> None:
    text = message(BadParameter, checked, "method 'm'", Clash, {"rounds": value})
    assert mentions(text, "'rounds' expects int", f"got {value!r}")


def test_a_bad_value_is_named_with_its_field_type_default_and_what_came() -> None:
    text = message(BadParameter, checked, "method 'm'", Clash, {"rounds": "many"})
    assert mentions(text, "m", "rounds", "int", "default 3", "got 'many'")
    text = message(BadParameter, checked, "method 'm'", Clash, {"rounds": 0})
    assert "'rounds' expects int, default 3; got 0" in text
    assert "greater than or equal to 1" in text
    text = message(BadParameter, checked, "method 'm'", Clash, {"mode": "c"})
    assert text == mentioning("m", "mode", "| 'b'", "a", "got 'c'")
    text = message(BadParameter, checked, "method 'm'", Clash, {"epochs": 1.5})
    assert "'epochs' expects int, default 1; got 1.5" in text
    text = message(BadParameter, checked, "method 'm'", Clash, {"epochs": None})
    assert mentions(text, "epochs", "int", "default 1", "got None")


def test_an_unknown_parameter_lists_what_there_is_and_suggests_the_nearest() -> None:
    text = message(UnknownName, checked, "method 'm'", Clash, {"round": 1})
    assert mentions(text, "m", "round", "rounds")
    assert "epochs, mode, rounds, share" in text
    text = message(UnknownName, checked, "method 'm'", Clash, {"zzzzzz": 1})
    assert "did you mean" not in text
    assert "epochs, mode, rounds, share" in text
    text = message(UnknownName, checked, "f", function, {"first": 1}, skip=2)
    assert "'first'" in text, "the core's arguments cannot be set"


# ---- methods


def test_a_method_takes_its_settings_bare_or_with_its_name() -> None:
    (name, plugin), *rest = compose("pfedlia", {"warmup": 2, "pfedlia.xi": 0.5, "rounds": 9}).layers
    assert (name, rest) == ("pfedlia", [])
    assert (plugin.warmup, plugin.xi, plugin.mode) == (2, 0.5, "central")
    assert compose("pfedlia", {"warmup": 2, "pfedlia.warmup": 5}).layers[0][1].warmup == 5


def test_a_composition_names_its_parameters_by_plugin() -> None:
    made = compose("oracle + fednova", {"warmup": 2, "mu": 0.5, "fednova.mu": 0.25})
    assert [name for name, _ in made.layers] == ["oracle", "fednova"]
    assert made.described.name == "oracle+fednova"
    assert made.described.params["oracle.warmup"] == 2
    assert made.described.params["fednova.mu"] == 0.25
    assert "warmup" not in made.described.params
    assert made.uses_true_groups, "oracle is told"
    assert not made.paper_leak
    assert not compose("pfedlia").uses_true_groups
    assert compose("pfedlia", {"paper_leak": True}).paper_leak


def test_a_method_alone_names_its_parameters_bare_and_where_it_came_from() -> None:
    described = compose("oracle").described
    assert described.params == {"warmup": 20}
    assert [plugin.name for plugin in described.plugins] == ["oracle"]
    assert described.plugins[0].distribution == "flbench"
    assert described.plugins[0].version


def test_plugins_without_hooks_are_left_out_where_others_are_there() -> None:
    alone, first, last = (compose(m) for m in ("pfedlia", "fedavg+pfedlia", "pfedlia+fedavg"))
    assert alone.described == first.described == last.described
    assert compose("fedavg").described.name == "fedavg"


@pytest.mark.parametrize("text", ["fedavg+fedavg", "oracle+pfedlia+oracle", "fedavg+", "", "a++b"])
def test_duplicate_and_missing_names_are_refused(text: str) -> None:
    expected = f"method '{text}': expected distinct names joined by '+'"
    assert message(UserError, compose, text) == expected


@pytest.mark.usefixtures("installed")
def test_a_method_that_is_no_frozen_dataclass_is_refused() -> None:
    text = message(PluginError, compose, "thawed")
    assert text == mentioning("thawed", f"{__name__}:Thawed")
    assert "is not a frozen dataclass" in message(PluginError, compose, "fedavg+plain")
    assert "'gone'" in message(PluginError, compose, "gone")
    assert compose("clash").described.params["rounds"] == 3


def test_an_unknown_method_lists_what_is_installed_and_suggests_the_nearest() -> None:
    text = message(UnknownName, compose, "pfedlai")
    assert mentions(text, "pfedlai", "pfedlia")
    assert all(name in text for name in entries("methods"))


@pytest.mark.usefixtures("installed")
def test_a_method_s_own_objection_is_a_bad_parameter() -> None:
    text = message(BadParameter, compose, "clash", {"share": 2})
    assert text == mentioning("clash", "share", "rounds")
    text = message(BadParameter, compose, "clash", {"clash.mode": "c"})
    assert text == mentioning("clash", "mode", "| 'b'", "a", "got 'c'")


# ---- what of --set is meant for the suite


def overrides(settings: dict[str, object], names: list[str]) -> dict[str, object]:
    """The suite's part of `--set` beside these methods."""
    return suite_overrides(settings, [load_method(name) for name in names])


def test_settings_are_told_apart() -> None:
    settings = {
        "epochs": 1, "local.lr": 0.5, "suite.rounds": 2, "clients": 7, "partition.groups": 3,
        "suite.model.hidden": 9, "pfedlia.warmup": 4, "xi": 0.1,
    }  # fmt: skip
    assert overrides(settings, ["pfedlia", "fedavg"]) == {
        "local.epochs": 1, "local.lr": 0.5, "rounds": 2, "clients": 7, "partition.groups": 3,
        "model.hidden": 9,
    }  # fmt: skip


def test_a_setting_only_needs_one_of_the_command_s_methods() -> None:
    assert overrides({"xi": 0.1}, ["fedavg", "oracle+pfedlia"]) == {}
    text = message(UnknownName, overrides, {"xi": 0.1}, ["fedavg", "oracle"])
    assert text.startswith("unknown parameter 'xi'")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("key", ["rounds", "epochs"])
def test_a_bare_key_that_suite_and_method_have_is_refused(key: str) -> None:
    text = message(BadParameter, overrides, {key: 2}, ["fedavg", "clash"])
    assert text == mentioning(f"--set {key}", f"suite.{key}", f"clash.{key}")
    assert overrides({f"clash.{key}": 2}, ["clash"]) == {}
    field = {"rounds": "rounds", "epochs": "local.epochs"}[key]
    assert overrides({f"suite.{key}": 2}, ["clash"]) == {field: 2}
    assert overrides({key: 2}, ["fedavg"]) == {field: 2}, "no clash, no question"


@pytest.mark.usefixtures("installed")
def test_what_is_written_for_the_suite_does_not_reach_the_method() -> None:
    settings = {"suite.rounds": 9, "clash.epochs": 4}
    params = compose("clash", settings).described.params
    assert (params["rounds"], params["epochs"]) == (3, 4)


def test_an_unknown_key_lists_fields_of_methods_and_suite_and_suggests_the_nearest() -> None:
    text = message(UnknownName, overrides, {"pfedlia.warmupp": 1}, ["pfedlia"])
    assert "did you mean 'pfedlia.warmup'?" in text
    text = message(UnknownName, overrides, {"round": 1}, ["oracle"])
    assert "did you mean 'rounds'?" in text
    assert "oracle.warmup" in text
    assert "local.lr" in text
    message(UnknownName, overrides, {"suite.warmup": 1}, ["oracle"])
    message(UnknownName, overrides, {"pfedlia.warmup": 1}, ["oracle"])


@pytest.mark.parametrize("key", ["name", "version", "summary", "changes", "paper", "local"])
def test_what_a_suite_is_called_cannot_be_set(key: str) -> None:
    assert suite_field(key) is None
    message(UnknownName, overrides, {key: 1}, ["fedavg"])


def test_keys_of_suites_are_resolved() -> None:
    assert suite_field("lr") == "local.lr"
    assert suite_field("suite.lr") == "local.lr"
    assert suite_field("local.lr") == "local.lr"
    assert suite_field("partition.anything") == "partition.anything"
    assert suite_field("partition") == "partition"
    assert suite_field("nothing") is None
    assert len(set(suite_fields())) == len(suite_fields())


# ---- suite files


def test_every_benchmark_is_a_file_and_installed() -> None:
    assert sorted(path.stem for path in TOML) == sorted(entries("suites"))


@pytest.mark.slow
def test_every_benchmark_loads_by_name_and_by_path_on_every_data_set() -> None:
    for path in TOML:
        suite = load_suite(path.stem)
        assert suite == load_suite(str(path))
        assert suite.name == path.stem
        for dataset in entries("datasets"):
            on = load_suite(path.stem, dataset)
            assert on.dataset == dataset
            assert not list(unused_settings(on))
            for kind, part, skip in (("partitions", on.partition, 4), ("models", on.model, 2)):
                checked(part.name, load_entry(find(kind, part.name)), part.params, skip=skip)


def test_a_suite_s_fields_and_defaults(suite_file: str) -> None:
    suite = load_suite(suite_file)
    assert (suite.name, suite.dataset, suite.clients, suite.rounds) == ("mine", "digits", 20, 5)
    assert suite.partition.name == "label-groups-noisy"
    assert suite.partition.params == {"groups": 2, "extra_labels": 3}
    assert suite.model.params == {"hidden": 7}
    assert suite.local == LocalTraining(epochs=2, lr=0.5)
    assert (suite.test_fraction, suite.validation_fraction) == (0.25, 0.2)


def test_the_section_of_a_data_set_is_applied(suite_file: str) -> None:
    suite = load_suite(suite_file, "fashion-mnist")
    assert (suite.dataset, suite.clients, suite.rounds) == ("fashion-mnist", 40, 5)
    assert suite.local == LocalTraining(epochs=2, lr=0.25), "laid over, in depth"
    assert (suite.model.name, suite.model.params) == ("lenet5", {}), "hidden was the mlp's"
    assert suite.partition.params == {"groups": 2, "extra_labels": 3}
    other = load_suite(suite_file, "somewhere")
    assert (other.dataset, other.clients, other.model.name) == ("somewhere", 20, "mlp")


def test_the_benchmarks_sections_are_applied() -> None:
    for name in ("noisy-noniid", "pathological-noniid"):
        assert load_suite(name).model.name == "mlp"
        assert load_suite(name, "fashion-mnist").model.name == "lenet5"
        assert load_suite(name, "fashion-mnist").local.lr == 0.05


def test_set_is_laid_over_the_section(suite_file: str) -> None:
    chosen = {"clients": 8, "local.lr": 0.125, "partition.groups": 4}
    suite = load_suite(suite_file, "fashion-mnist", chosen)
    assert suite.clients == 8
    assert suite.local == LocalTraining(epochs=2, lr=0.125)
    assert suite.partition.params == {"groups": 4, "extra_labels": 3}


@pytest.mark.parametrize("key", ["partition", "partition.name"])
def test_naming_another_component_drops_the_old_one_s_parameters(key: str, suite_file: str) -> None:
    suite = load_suite(suite_file, None, {key: "label-groups"})
    assert (suite.partition.name, suite.partition.params) == ("label-groups", {})
    suite = load_suite(suite_file, None, {key: "label-groups", "partition.groups": 4})
    assert (suite.partition.name, suite.partition.params) == ("label-groups", {"groups": 4})
    suite = load_suite(suite_file, None, {"partition.name": "label-groups-noisy"})
    assert suite.partition.params == {"groups": 2, "extra_labels": 3}, "it is the same one"


def test_a_bad_field_of_a_suite_is_named_with_what_was_expected_and_what_came(
    suite_file: str,
) -> None:
    text = message(BadParameter, load_suite, suite_file, None, {"participation": 1.5})
    assert mentions(text, "participation", "1", "default 0.1", "got 1.5")
    text = message(BadParameter, load_suite, suite_file, None, {"local.lr": -1})
    assert mentions(text, "local.lr", "0", "default 0.01", "got -1")
    text = message(BadParameter, load_suite, suite_file, None, {"headline": "best"})
    assert mentions(text, "headline", "last", "validation", "got 'best'")
    text = message(BadParameter, load_suite, suite_file, None, {"rounds": "abc"})
    assert mentions(text, "rounds", "integer")
    assert "got 'abc'" in text


def test_an_unknown_field_of_a_suite_lists_the_known_and_suggests_the_nearest(
    suite_file: str,
) -> None:
    text = message(UnknownName, load_suite, suite_file, None, {"local.ephocs": 1})
    assert "did you mean 'local.epochs'?" in text
    assert "participation" in text
    text = message(UnknownName, load_suite, suite_file, None, {"client": 1})
    assert "did you mean 'clients'?" in text


def test_a_suite_that_is_not_there_or_no_toml_is_one_clear_line(tmp_path: Path) -> None:
    text = message(UnknownName, load_suite, "noisy-noneid")
    assert "did you mean 'noisy-noniid'?" in text
    missing = tmp_path / "missing.toml"
    assert str(missing) in message(BadParameter, load_suite, str(missing))
    broken = tmp_path / "broken.toml"
    broken.write_text("clients = = 3\n", encoding="utf-8")
    text = message(BadParameter, load_suite, str(broken))
    assert str(broken) in text
    assert "line 1" in text
    broken.write_text("version = 1\n", encoding="utf-8")
    assert "'summary' is missing" in message(BadParameter, load_suite, str(broken))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("on = 3", "expected tables [on.DATASET], got on = 3"),
        ("name = 'yours'", "name = 'yours': expected none, as a suite is called like its file"),
        ("[on.digits]\ndataset = 'sensors'", "[on.digits] has 'dataset': expected other fields"),
        ("[on.digits]\nname = 'yours'", "[on.digits] has 'name': expected other fields"),
        ("on.digits = 3\ndataset = 'digits'", "expected tables [on.DATASET], got on = {"),
        ("dataset = ['a']", "'dataset': expected a name, got ['a']"),
        ("x = " + "[" * 9000, "cannot read"),
        ("x = " + "9" * 9000, "cannot read"),
    ],
    ids=["on", "name", "on-dataset", "on-name", "section", "dataset", "deep", "long"],
)
def test_a_suite_of_another_shape_is_one_clear_line(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(text, encoding="utf-8")
    assert told in message(BadParameter, load_suite, str(file))


@pytest.mark.parametrize("name", ["...toml", ".toml", "..toml"])
def test_a_suite_cannot_have_the_name_of_the_folder_above(
    name: str, suite_file: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(Path(suite_file).read_text(encoding="utf-8"), encoding="utf-8")
    assert mentions(message(BadParameter, load_suite, str(file)), "begin", "dot")


def test_a_suite_is_a_file_and_no_large_one(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe.toml", tmp_path / "large.toml"
    os.mkfifo(pipe)
    assert mentions(message(UserError, load_suite, str(pipe)), "file", "got a pipe")
    large.write_text("#" * (2**20 + 1), encoding="utf-8")
    assert "at most 1,048,576 bytes" in message(UserError, load_suite, str(large))


def test_a_round_is_validated_on_something(suite_file: str) -> None:
    both = {"headline": "validation", "validation_fraction": 0}
    told = message(BadParameter, load_suite, suite_file, None, both)
    assert mentions(told, "headline", "last", "validation_fraction", "0")
    for key, value in both.items():
        assert load_suite(suite_file, None, {key: value})


def test_a_partition_s_parameters_are_checked_when_it_is_asked(suite_file: str) -> None:
    import numpy as np

    labels, rng = np.arange(100) % 10, np.random.default_rng(0)
    suite = load_suite(suite_file, None, {"partition": "label-groups", "partition.groups": 2})
    assert len(suite.partition_hook(labels, None, 4, rng).clients) == 4
    noisy = Component(name="label-groups-noisy", group=2)
    suite = suite.model_copy(update={"partition": noisy})
    text = message(UnknownName, suite.partition_hook, labels, None, 4, rng)
    assert text == message(UnknownName, load_suite, suite_file, None, {"partition.group": 2})
    assert mentions(text, "label-groups-noisy", "group", "groups")
    text = message(BadParameter, load_suite, suite_file, None, {"partition.groups": "two"})
    assert mentions(text, "label-groups-noisy", "groups", "int", "default 5", "got 'two'")


@pytest.mark.parametrize(
    ("clients", "participation", "size"),
    [(100, 0.1, 10), (10, 0.05, 1), (6, 0.5, 3), (100, 0.29, 29), (7, 1.0, 7), (19, 0.1, 1)],
)
def test_the_cohort_is_the_floor_of_its_share(
    clients: int, participation: float, size: int, suite_file: str
) -> None:
    chosen = {"clients": clients, "participation": participation}
    assert load_suite(suite_file, None, chosen).cohort_size == size


def test_the_hash_covers_what_can_change_a_number_and_nothing_else(suite_file: str) -> None:
    base = load_suite(suite_file)
    said = {"summary": "other words", "paper": "a paper", "changes": {"1": "first"}}
    assert base.model_copy(update=said).hash() == base.hash()
    for change in ({"rounds": 6}, {"local.lr": 0.4}, {"partition.groups": 3}, {"buffers": "local"}):
        assert load_suite(suite_file, None, change).hash() != base.hash()
    assert len(base.hash()) == 8
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_a_truth_value_is_no_number() -> None:
    with pytest.raises(BadParameter, match=mention("warmup", "int", "default 20", "got True")):
        compose("pfedlia", {"warmup": True})


def test_a_type_reads_as_a_person_would_write_it() -> None:
    with pytest.raises(BadParameter, match=mention("min_samples", "int | None", "None", "got 1")):
        compose("pfedlia", {"min_samples": 1})
