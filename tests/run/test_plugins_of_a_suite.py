"""Plugins that a suite brings: they join every method, and are told as settings of the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mentions import mention, mentioning, mentions
from toy import Play, Typed, toy_suite

from flbench.errors import BadParameter, Undefined, UnknownName, UserError
from flbench.plugin.registry import Entry
from flbench.plugin.source_inspection import loaded_source
from flbench.run import setup
from flbench.run.composition import compose, joined
from flbench.run.setup import code_of
from flbench.submission.admission import _plugins as not_installable
from flbench.submission.admission import other_environment
from flbench.submission.verification import again
from flbench.sweeps.launchers import sources_of

FLIP = {"name": "sign-flip", "attackers": [0, 5], "scale": 3}
JOINED: dict[str, Any] = {"plugins": [FLIP], "not_judged": [0, 5]}
SUITE = """
version = 1
summary = "attacked"
paper = "none"
dataset = "digits"
clients = 6
rounds = 1
not_judged = [0]
partition = "iid"
model = "mlp"

[[plugins]]
name = "label-flip"
attackers = [0]
"""


def test_they_do_what_they_do_where_a_person_names_them(play_toy: Play) -> None:
    """Bit for bit; but the method keeps its name."""
    brought = play_toy("median", rounds=2, **JOINED)
    params = {"sign-flip.attackers": [0, 5], "sign-flip.scale": 3}
    named = play_toy(compose("sign-flip+median", params), rounds=2, not_judged=[0, 5])
    plain = play_toy("median", rounds=2, not_judged=[0, 5])
    assert torch.equal(brought.state.models, named.state.models)
    assert not torch.equal(brought.state.models, plain.state.models)
    assert brought.result.method.name == "median"
    assert brought.result.suite["plugins"] == [FLIP]
    assert "plugins" not in plain.result.suite, "older results keep their fingerprint"
    (plugin,) = brought.result.suite_plugins or ()
    (by_hand,) = (one for one in named.result.method.plugins if one.name == "sign-flip")
    assert plugin == by_hand
    assert [one.name for one in brought.result.plugins] == ["median", "sign-flip"]
    assert plain.result.suite_plugins is None
    assert "suite_plugins" not in plain.result.canonical(), "as in older files"
    assert brought.job.fingerprint != plain.job.fingerprint


def test_they_are_asked_before_the_method() -> None:
    suite = toy_suite(plugins=["sign-flip", {"name": "qsgd", "levels": 2}])
    stack = joined(suite, compose("top-k"))
    assert [name for name, _ in stack.layers] == ["sign-flip", "qsgd", "top-k"]
    assert stack.layers[1][1] == compose("qsgd", {"levels": 2}).layers[0][1]
    plain = compose("top-k")
    assert joined(toy_suite(), plain) is plain


@pytest.mark.parametrize(
    ("plugins", "error", "text"),
    [
        (["sign-flop"], UnknownName, "sign-flip"),
        ([{"name": "sign-flip", "size": 3}], UnknownName, "plugin 'sign-flip' 'size'"),
        ([{"name": "sign-flip", "share": 3}], BadParameter, "'share' expects float"),
        (["sign-flip", "sign-flip"], UserError, "'toy' brings 'sign-flip': name it once"),
        (["krum"], UserError, "'krum' brings"),
        (["trimmed-mean"], UserError, "both decide how models are averaged"),
    ],
)
def test_what_cannot_be_is_refused(plugins: Any, error: type[Exception], text: str) -> None:
    wanted = text.replace("'krum' brings", "'toy' brings 'krum': name it once")
    with pytest.raises(error, match=wanted):
        joined(toy_suite(plugins=plugins), compose("krum"))


def test_a_plugin_within_one_network_leaves_no_method_across_networks(play_toy: Play) -> None:
    wide = {"further_models": [{"name": "mlp", "hidden": 5}]}
    with pytest.raises(Undefined, match=mention("median", "2 different")):
        play_toy("fedavg", plugins=["median"], **wide)


def test_their_code_is_part_of_what_a_checkpoint_and_a_worker_compare(play_toy: Play) -> None:
    job = play_toy("median", rounds=1, **JOINED).job
    code = {one.name: one.source for one in compose("median+sign-flip").described.plugins}
    assert all(code.values())
    assert code.items() <= code_of(job).items()
    assert code_of(job).items() <= sources_of(job).items(), "networks and flbench too"


def test_so_is_that_of_metrics_of_other_packages(
    play_toy: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = play_toy("fedavg", rounds=1, metrics=("f1", "ece")).job
    assert not [name for name in code_of(job) if name.startswith("metric ")], "of the core"
    theirs = Entry("metrics", "f1", f"{__name__}:f1", "theirs", "1.0")
    monkeypatch.setattr(setup, "entries", lambda kind: {"f1": theirs})
    found = {name: code for name, code in code_of(job).items() if name.startswith("metric ")}
    assert found == {"metric f1": loaded_source(__name__)}
    assert loaded_source(__name__) != ""


def test_a_result_says_where_their_code_has_changed(play_toy: Play, tmp_path: Path) -> None:
    result, told = play_toy("median", rounds=1, **JOINED).result, list[str]()
    (plugin,) = result.suite_plugins or ()
    other = plugin.model_copy(update={"source": "0" * 12})
    changed = result.model_copy(update={"suite_plugins": [other]})
    again(changed, tmp_path, tmp_path, told.append)
    assert told == [mentioning("sign-flip", plugin.version)]
    (line,) = other_environment(changed, result)
    assert line.startswith("sign-flip of flbench")
    unreleased = plugin.model_copy(update={"version": "1.0.dev3"})
    brought = result.model_copy(update={"suite_plugins": [unreleased]})
    assert any(mentions(line, "1.0.dev3", "sign-flip") for line in not_installable(brought))
    unsaid = result.model_copy(update={"suite_plugins": None})
    again(unsaid, tmp_path, tmp_path, told.append)
    assert len(told) == 1, "of older files it is not known"


@pytest.mark.slow
def test_a_person_sees_them(tmp_path: Path, typed: Typed) -> None:
    suite, out = tmp_path / "attacked.toml", tmp_path / "out"
    suite.write_text(SUITE, encoding="utf-8")
    assert (
        "plugins = [{'name': 'label-flip', 'attackers': [0]}]"
        in typed("show", "suite", str(suite))[1]
    )
    code, _, told = typed("run", "-p", "label-flip", "-s", str(suite), "--out", str(out))
    assert code != 0
    assert mentions(told, "attacked", "label-flip")
    assert not out.exists(), "refused before anything runs"
    assert typed("run", "-p", "fedavg", "-s", str(suite), "--out", str(out))[0] == 0
    (result,) = out.rglob("seed-0.json")
    shown = typed("show", "result", str(result))[1]
    assert mentions(shown, "label-flip", "0")
    assert typed("verify", str(result))[0] == 0
