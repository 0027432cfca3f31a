"""`flbench.testing.try_out`: one short run of whatever a test is about."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from toy import install

from flbench.errors import BadParameter, UnknownName, UserError
from flbench.results.files import read_result
from flbench.results.schema import Result
from flbench.testing import try_out


def measured(result: Result) -> dict[str, object]:
    return {**result.curves, "correct": result.clients.correct}


@pytest.mark.slow
def test_without_arguments_the_defaults_play_one_round() -> None:
    result = try_out()
    assert measured(result) == measured(try_out(plugin="fedavg"))
    assert [one.distribution for one in result.method.plugins] == ["(unpublished)"]
    assert (result.dataset, len(result.clients.train), result.seed) == ("digits", 6, 0)
    assert len(result.curves["accuracy"]) == 1


@pytest.mark.slow
def test_every_part_can_be_another() -> None:
    result = try_out(
        "fedprox+ifca", "iid", "digits-shift", "mlp", rounds=2, seed=3, clients=4, mu=0.5
    )
    assert result.method.name == "fedprox+ifca"
    assert result.method.params["fedprox.mu"] == 0.5
    assert (result.suite["name"], result.dataset) == ("iid", "digits-shift")
    assert result.suite["model"] == {"name": "mlp"}
    assert (len(result.curves["loss"]), result.seed, len(result.clients.train)) == (2, 3, 4)
    assert measured(result) != measured(try_out("fedprox+ifca", "iid", "digits-shift", "mlp"))


def test_settings_are_those_of_the_command_line() -> None:
    asked: dict[str, object] = {"local.lr": 0.01, "model.hidden": 3, "fedprox.mu": 2.0}
    result = try_out("fedprox", **asked)
    assert result.suite["local"]["lr"] == 0.01
    assert result.suite["model"] == {"name": "mlp", "hidden": 3}
    assert result.method.params == {"mu": 2.0}
    with pytest.raises(UnknownName, match="unknown parameter 'nonsense'"):
        try_out("fedprox", nonsense=1)
    with pytest.raises(BadParameter, match="'clients'"):
        try_out(clients=0)
    with pytest.raises(UnknownName, match="unknown sink 'telex'"):
        try_out(sinks=["telex"])


@pytest.mark.slow
def test_nothing_stays_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    try_out(sinks=["csv"])
    result = try_out(sinks=["csv"], out=tmp_path / "kept")
    assert list((tmp_path / "temporary").iterdir()) == []
    (file,) = tmp_path.rglob("seed-0.json")
    assert read_result(file) == result
    assert [path.parts[-2:] for path in tmp_path.rglob("*.csv")] == [("csv", "metrics.csv")]


def test_it_plays_whatever_was_played_before(tmp_path: Path) -> None:
    first = try_out(out=tmp_path)
    (file,) = tmp_path.rglob("seed-0.json")
    kept = first.model_copy(update={"warnings": ["kept"]})
    file.write_text(kept.canonical(), encoding="utf-8")
    assert try_out(out=tmp_path).warnings == []


def test_data_lie_where_they_are_said_to_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path))
    code = (
        "import flbench as fl, torch\n"
        "def load(root):\n"
        "    m = int((root / 'samples').read_text())\n"
        "    return fl.Dataset('mine', torch.zeros(m, 3), torch.arange(m) % 2, 2)\n"
    )
    install(
        tmp_path,
        "flbench-mine",
        "[flbench.datasets]\nmine = flbench_mine:load\n",
        flbench_mine=code,
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "samples").write_text("60", encoding="utf-8")
    with pytest.raises(UserError, match="data set 'mine' raised FileNotFoundError"):
        try_out(dataset="mine")
    clients = try_out(dataset="mine", data_root=tmp_path).clients
    assert sum(clients.train + clients.validation + clients.test) == 60


def test_what_a_run_says_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import flbench as fl\n"
        "class Bad:\n"
        "    @fl.hookimpl\n"
        "    def run_finished(self, result): raise ValueError('no paper')\n"
    )
    install(tmp_path, "flbench-bad", "[flbench.sinks]\nbad = flbench_bad:Bad\n", flbench_bad=code)
    monkeypatch.syspath_prepend(tmp_path)
    try_out(sinks=["bad"])
    assert "no paper" in capsys.readouterr().err
