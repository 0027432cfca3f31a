"""Marks of parameters that have an effect only where another one has some values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from mentions import mention, mentions

from flbench.core.effect import not_with, only_with
from flbench.core.parameters import checked, declared, refuse_unused
from flbench.errors import BadParameter
from flbench.plugin.registry import find, load_entry
from flbench.run.composition import compose
from flbench.suite import Suite, load_suite, unused_settings


@dataclass(frozen=True)
class Soft:
    """A method of these tests; `again` has an effect beside two others."""

    way: Literal["hard", "soft", "softer"] = "hard"
    rounds: int = 0
    width: Annotated[float, only_with("way", "soft", "softer"), "of something"] = 1.0
    again: Annotated[bool, only_with("way", "soft"), not_with("rounds", 0, 1)] = False


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"width": 2}, ("'width'", "way is soft or softer", "width=2.0", "way=hard", "width=1.0")),
        ({"way": "hard", "width": 2.0}, ("'width'", "way=hard", "set way=soft")),
        ({"way": "softer", "again": True, "rounds": 5}, ("'again'", "way is soft", "way=softer")),
        ({"way": "soft", "again": True}, ("'again'", "rounds is not 0 or 1", "again=false")),
        ({"way": "soft", "again": True, "rounds": 1}, ("'again'", "rounds=1")),
    ],
)
def test_a_value_without_effect_is_refused(values: dict[str, Any], named: tuple[str, ...]) -> None:
    typed = checked("method 'soft'", Soft, values)
    with pytest.raises(BadParameter, match=mention("method 'soft'", *named)) as at:
        refuse_unused("method 'soft'", declared(Soft), typed)
    assert "\n" not in str(at.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"width": 1.0},  # its default, whatever the rest
        {"way": "soft", "width": 2.0},
        {"way": "softer", "width": 2.0},
        {"way": "soft", "again": True, "rounds": 2},
        {"way": "soft", "again": False, "rounds": 0},
    ],
)
def test_what_has_an_effect_or_its_default_is_taken(values: dict[str, Any]) -> None:
    refuse_unused("method 'soft'", declared(Soft), values)


def test_a_parameter_says_where_it_has_an_effect() -> None:
    found = declared(Soft)
    assert found["width"].note == "of something; only where way is soft or softer"
    assert found["again"].note == "only where way is soft; only where rounds is not 0 or 1"
    assert found["width"].doc == "of something"


def test_a_condition_names_a_parameter_that_is_there() -> None:
    def network(width: Annotated[int, only_with("way", "soft")] = 1) -> None: ...

    with pytest.raises(TypeError, match="no 'way'"):
        declared(network)


WITHOUT_EFFECT: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"local.momentum": 0.9, "local.optimizer": "adam"}, {"local.optimizer": "rmsprop"}),
    ({"local.momentum": 0.9, "local.optimizer": "adamw"}, {"local.momentum": 0.0}),
    ({"test_samples": 30}, {"test_set": "proportional"}),
    ({"test_samples": 30, "test_set": "labels"}, {"test_samples": 200}),
    ({"unseen_epochs": 2}, {"unseen": 0.2}),
    ({"common_head": True}, {"further_models": ["mlp"]}),
    ({"clock.stragglers": {"share": 0.5, "factor": 3}}, {"clock.seconds_per_step": 0.1}),
    ({"clock.deadline": 5.0, "clock.dropout": 0.1}, {"clock.up": 1e6}),
    ({"unseen": 0.2, "clients": 4}, {"unseen": 0.25}),
    ({"unseen": 0.1, "clients": 4, "unseen_epochs": 2}, {"clients": 10}),
    (
        {"clock.stragglers": {"share": 0.1, "factor": 3}, "clock.up": 1, "clients": 4}
        | {"clock.seconds_per_step": 1},
        {"clients": 10},
    ),
    ({"clock.down": [1.0, 2.0, 3.0], "clients": 2}, {"clients": 3}),
]
"""What is set, and what has to be set as well so that it has an effect, or is its default."""


@pytest.mark.parametrize(("settings", "mend"), WITHOUT_EFFECT)
def test_a_setting_of_a_suite_without_effect_is_refused(
    settings: dict[str, object], mend: dict[str, object]
) -> None:
    wrong = next(iter(settings))
    with pytest.raises(BadParameter, match=mention("suite 'iid'", f"'{wrong}'")):
        load_suite("iid", overrides=settings)
    assert isinstance(load_suite("iid", overrides=settings | mend), Suite)


def test_what_a_file_says_without_effect_stays_as_it_is(tmp_path: Path) -> None:
    """Its hash is that of results, and a newer flbench reads it as the older one did."""
    iid = Path(str(load_entry(find("suites", "iid")))).read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(f"unseen_epochs = 2\n{iid}", encoding="utf-8")
    suite = load_suite(str(tmp_path / "mine.toml"))
    ((setting, why),) = unused_settings(suite)
    assert (suite.unseen_epochs, setting) == (2, "unseen_epochs")
    assert mentions(why, "unseen is not 0", "unseen_epochs=2", "set unseen_epochs=0")
    assert not list(unused_settings(load_suite("iid")))
    params = {"kmeans_transform": "clip"}
    assert compose("pfedlia", params, stated=True).described.params["kmeans_transform"] == "clip"


def test_a_share_of_a_file_may_be_no_whole_client() -> None:
    """A person asks for fewer clients: the suite's own share is told of, and no error."""
    suite = load_suite("answers-persons", overrides={"clients": 4})
    ((setting, why),) = unused_settings(suite)
    assert (suite.training_clients, setting) == (4, "unseen")
    assert mentions(why, "a client or more", "unseen=0.2", "4", "0.25")
    with pytest.raises(BadParameter, match=mention("unseen=0.1", "9", "0.112")):
        load_suite("iid", overrides={"unseen": 0.1, "clients": 9})
    assert load_suite("iid", overrides={"unseen": 0.112, "clients": 9}).training_clients == 8


def test_a_suite_that_has_newcomers_can_be_run_without() -> None:
    suite = load_suite("answers-persons")
    assert suite.unseen
    without = {"unseen": 0, "unseen_epochs": 0}
    assert load_suite("answers-persons", overrides=without).training_clients == suite.clients


def test_presets_have_no_value_without_effect() -> None:
    (layer,) = compose("pfedlia", preset="robust").layers
    assert (layer[1].mode, layer[1].kmeans_transform) == ("peer", "signed_sqrt")
    with pytest.raises(BadParameter, match=mention("'kmeans_transform'", "mode=central")):
        compose("pfedlia", {"mode": "central"}, "robust")


def test_one_parameter_for_several_methods_names_the_one_without_effect() -> None:
    compose("dc-pfl", {"t_obs": 4})
    with pytest.raises(BadParameter, match=mention("'dc-pfl-nodc'", "fixed is none", "fixed=0.8")):
        compose("dc-pfl-nodc", {"t_obs": 4})
