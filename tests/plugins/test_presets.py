"""Presets: a paper's parameters under a name, laid under `--set`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mentions import mention

from flbench.errors import UnknownName
from flbench.plugin.method_info import method_infos
from flbench.plugin.registry import entries
from flbench.run.composition import compose, load_method, without_preset

METHODS = sorted(entries("methods"))


def params(text: str, preset: str | None = None, **settings: object) -> dict[str, object]:
    return compose(text, settings, preset).described.params


@pytest.mark.slow
def test_every_preset_fits_its_method_and_is_listed_without_importing_it() -> None:
    listed = {one.name: one.presets for one in method_infos()}
    found = {name: load_method(name).plugins[0].presets for name in METHODS}
    assert listed == found
    for name, presets in found.items():
        defaults = params(name)
        for preset, values in presets.items():
            assert params(name, preset) == defaults | dict(values), (name, preset)


def test_the_presets_are_the_papers_comparisons() -> None:
    assert params("flis-dc", "flis")["beta"] == 0.4
    assert params("flis-hc", "flis")["beta"] == 0.45
    assert params("ifca", "flis")["k"] == 2
    assert params("per-fedavg", "flis") | {"alpha": 0.01, "beta": 0.01} == params(
        "per-fedavg", "flis"
    )
    assert params("fesem", "pfedlia")["k"] == 5
    assert params("fedfomo", "pfedlia")["variant"] == "flbench"
    assert params("pfedlia", "robust")["kmeans_transform"] == "signed_sqrt"
    assert params("local-only", "dc-pfl")["schedule"] == "full"
    assert params("fedprox", "fedc2i")["mu"] == 0.01


def test_what_is_set_lies_over_the_preset() -> None:
    assert params("flis-dc", "flis", beta=0.7)["beta"] == 0.7
    assert compose("flis-dc", {"flis-dc.beta": 0.7}, "flis").described.params["beta"] == 0.7


def test_of_composed_plugins_each_takes_its_own_preset() -> None:
    found = params("ifca+fedprox", "flis")
    assert (found["ifca.k"], found["fedprox.mu"]) == (2, 0.01)


def test_methods_without_the_preset_are_named_and_keep_their_defaults() -> None:
    assert without_preset(
        "flis", [load_method(name) for name in ("fedavg", "flis-dc", "ifca+fedavgm")]
    ) == ["fedavg"]
    assert params("fedavg", "flis") == params("fedavg")


def test_a_preset_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=mention("fedavg", "flis-dc", "fils", "flis")):
        without_preset("fils", [load_method(name) for name in ("fedavg", "flis-dc")])


@pytest.mark.slow
def test_the_command_takes_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from flbench.cli.main import app

    command = ["run", "-p", "fedavg,fesem", "-s", "pathological-noniid", "--rounds", "1"]
    app([*command, "--preset", "pfedlia", "--out", str(tmp_path)], standalone_mode=False)
    told = capsys.readouterr()
    assert "fedavg has no preset 'pfedlia'" in told.out + told.err
    (found,) = [json.loads(p.read_text()) for p in tmp_path.rglob("fesem/**/seed-0.json")]
    assert found["method"]["params"]["k"] == 5
