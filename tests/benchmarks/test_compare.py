import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mentions import mention, mentioning, mentions

from flbench.errors import FlbenchError, UserError
from flbench.run.context import RunContext
from flbench_benchmarks.compare import __main__ as command
from flbench_benchmarks.compare import environments, ours, report
from flbench_benchmarks.compare.__main__ import main
from flbench_benchmarks.compare.changes import CHANGES
from flbench_benchmarks.compare.comparison import (
    TOLERANCE,
    compare,
    played,
    relative_difference,
    unmoved,
)
from flbench_benchmarks.compare.environments import FRAMEWORKS, Framework, ensure
from flbench_benchmarks.compare.exchange import Exchange, read, split, write
from flbench_benchmarks.compare.pairs import PAIRS, Explanation, Pair, find
from flbench_benchmarks.compare.report import examine

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "leaderboard" / "other-implementations"
PARAMETERS = [["a", [2, 2]], ["b", [1]]]


def exchange(**changes: list[float]) -> Exchange:
    models = {
        "1/server": [1.0, 2.0, 3.0, 4.0, 0.5],
        "1/client-2": [1.0, 2.0, 3.0, 4.0, 0.5],
        "2/server": [2.0, 2.0, 2.0, 2.0, 2.0],
    }
    models |= {
        name.replace("_", "/").replace("client2", "client-2"): v for name, v in changes.items()
    }
    arrays = {name: np.array(v, dtype=np.float32) for name, v in models.items()}
    return Exchange({"parameters": PARAMETERS, "cohorts": [[0], [1]]}, arrays)


def test_a_file_is_read_as_it_was_written_and_always_has_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a", exchange())
    write(tmp_path / "b", exchange())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found = read(tmp_path / "a")
    assert found.facts == exchange().facts
    assert found.rounds() == 2
    np.testing.assert_array_equal(found.arrays["1/server"], exchange().arrays["1/server"])


def test_a_vector_is_split_into_tensors() -> None:
    tensors = split(np.arange(5.0), PARAMETERS)
    assert tensors["a"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert tensors["b"].tolist() == [4.0]
    with pytest.raises(ValueError, match="expected a vector of 5 scalars"):
        split(np.arange(4.0), PARAMETERS)


def test_a_difference_is_relative_to_the_largest_magnitude() -> None:
    assert relative_difference(np.array([1.0, -4.0]), np.array([1.0, -3.0])) == 0.25
    assert relative_difference(np.zeros(2), np.zeros(2)) == 0.0
    assert relative_difference(np.array([np.nan]), np.array([np.nan])) == np.inf


def test_rounding_is_equal() -> None:
    near = [2.0, 2.0, 2.0, 2.0 + 1e-6, 2.0]
    verdict = compare(exchange(), exchange(**{"2_server": near}))
    assert verdict.equal
    assert 1e-7 < verdict.largest < TOLERANCE
    assert (verdict.compared, verdict.round) == (3, None)


def test_the_first_tensor_that_parts_is_named() -> None:
    late, early = [9.0] * 5, [1.0, 2.0, 3.0, 4.0, 1.0]
    both = exchange(**{"2_server": late, "1_client2": early})
    verdict = compare(exchange(), both)
    assert not verdict.equal
    assert (verdict.round, verdict.model, verdict.tensor) == (1, "client-2", "b")
    assert verdict.difference == 0.5


def test_the_server_comes_before_the_clients_of_a_round() -> None:
    assert played(exchange()) == [(1, "server"), (1, "client-2"), (2, "server")]


def test_models_that_only_one_side_has_are_refused() -> None:
    with pytest.raises(ValueError, match=mention("3", "server")):
        compare(exchange(), exchange(**{"3_server": [0.0] * 5}))
    empty = Exchange({"parameters": PARAMETERS, "cohorts": []})
    with pytest.raises(ValueError, match="same models"):
        compare(empty, empty)


def moving(**models: list[float]) -> Exchange:
    start = {"initial": [0.0, 1.0], "start": [[0.0, 1.0], [5.0, 5.0]]}
    named = {f"1/{name.replace('_', '-')}": row for name, row in models.items()}
    arrays = {name: np.array(row, dtype=np.float32) for name, row in (start | named).items()}
    if "centre_0" not in models:
        del arrays["start"]
    return Exchange({}, arrays)


def test_models_that_do_not_move_show_nothing() -> None:
    assert unmoved(moving(server=[0.0, 1.0], client_0=[0.0, 1.0]))
    assert not unmoved(moving(server=[0.0, 1.0], client_0=[0.0, 2.0]))


def test_one_centre_that_moves_shows_nothing_of_groups() -> None:
    assert unmoved(moving(centre_0=[0.0, 1.0], centre_1=[6.0, 5.0]))
    assert unmoved(moving(centre_0=[3.0, 1.0], centre_1=[5.0, 5.0]))
    assert not unmoved(moving(centre_0=[3.0, 1.0], centre_1=[6.0, 5.0]))


@pytest.mark.slow
def test_our_side_gives_what_fedavg_by_hand_gives() -> None:
    """One round of full participation: means of gradient steps over batches in stored order."""
    import torch
    from torch import nn

    found = ours.play("fedavg", {}, ["server"], {"epochs": 1}, participation=1.0)
    total, counts = np.zeros(len(found.arrays["initial"])), []
    for client in range(ours.CLIENTS):
        net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
        initial = torch.from_numpy(found.arrays["initial"].copy())
        nn.utils.vector_to_parameters(initial, net.parameters())
        x, y = (torch.from_numpy(found.arrays[f"{name}/{client}"]) for name in "xy")
        optimiser = torch.optim.SGD(net.parameters(), 0.1)
        for a, b in zip(x.split(8), y.split(8), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(a), b).backward()
            optimiser.step()
        counts.append(len(y))
        flat = nn.utils.parameters_to_vector(net.parameters()).detach().double().numpy()
        total += len(y) * flat
    assert len(set(counts)) > 1, "sizes differ, so that weights are seen"
    assert relative_difference(total / sum(counts), found.arrays["1/server"]) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_moves_the_models(change: str) -> None:
    def uses(pair: Pair) -> bool:
        return pair.explanation is not None and pair.explanation.change == change

    pair = next(one for one in PAIRS if uses(one))
    share = pair.explanation.participation or pair.participation
    params = {**pair.params, **pair.explanation.params}
    sides = [
        ours.play(pair.method, params, pair.models, pair.local, which, share, pair.seconds)
        for which in (None, change)
    ]
    assert not compare(*sides).equal


@pytest.mark.slow
def test_clients_of_a_server_that_does_not_wait_arrive_by_their_speed() -> None:
    slow, fast = [8.0, 8.0, 8.0, 8.0, 1.0], [1.0, 8.0, 8.0, 8.0, 8.0]
    first, second = (
        np.array(ours.play("fedasync", {}, ["server"], {}, seconds=seconds).facts["arrivals"])
        for seconds in (slow, fast)
    )
    assert first.shape == (ours.ROUNDS, 3)
    assert (first == 4).sum() > (second == 4).sum()
    assert "arrivals" not in ours.play("fedavg", {}, ["server"], {}).facts


@pytest.mark.slow
def test_the_candidates_are_those_that_we_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    (pair,) = find("flgo", "power-of-choice")
    measured: list[list[int]] = []
    evaluate = RunContext.evaluate

    def noted(ctx, models, clients, split):
        if split == "train":
            measured.append(clients.tolist())
        return evaluate(ctx, models, clients, split)

    monkeypatch.setattr(RunContext, "evaluate", noted)
    ours.play(pair.method, pair.params, pair.models, pair.local, None, pair.participation)
    assert measured == pair.settings["candidates"]


FAKE = """
import sys
sys.path.insert(0, {drivers!r})
import torch
from play import flat, load, main, network, samples, train

def play(exchange):
    weighted = exchange.facts["settings"]["weighted"]
    net, played = network(exchange), {{}}
    for round_, cohort in enumerate(exchange.facts["cohorts"], 1):
        before, models, sizes = flat(net), [], []
        for client in cohort:
            load(net, before.clone())
            train(net, exchange, client)
            models.append(flat(net).double())
            sizes.append(len(samples(exchange, client)[1]) if weighted else 1)
        shares = torch.tensor(sizes).double() / sum(sizes)
        load(net, (shares @ torch.stack(models)).float())
        played[f"{{round_}}/server"] = flat(net)
    return played, ["nothing"]

main("torch", play)
"""
"""A framework that has FedAvg, weighted or not."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The driver's file of a framework called fake, which is played with our own Python."""
    drivers, path = str(report.DRIVERS), tmp_path / "drive_fake.py"
    path.write_text(FAKE.format(drivers=drivers), encoding="utf-8")
    monkeypatch.setattr(report, "DRIVERS", tmp_path)
    monkeypatch.setitem(FRAMEWORKS, "fake", Framework("fake", (), "drive_fake"))
    return path


def fake_pair(weighted: bool) -> Pair:
    return Pair(
        "fake",
        "fedavg",
        "FedAvg",
        settings={"weighted": weighted},
        reason="clients count alike",
        explanation=Explanation("uniform weights on our side", change="uniform-weights"),
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("fake")
def test_a_framework_with_the_same_fedavg_is_equal() -> None:
    found = examine(fake_pair(weighted=True), Path(sys.executable))
    assert (found["equal"], found["compared"], found["reason"]) == (True, ours.ROUNDS, "")
    assert "explanation" not in found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("fake")
def test_a_framework_with_other_weights_parts_and_the_change_explains_it() -> None:
    found = examine(fake_pair(weighted=False), Path(sys.executable))
    first = found["first_difference"]
    assert not found["equal"]
    assert (first["round"], first["model"], first["tensor"]) == (1, "server", "body.1.weight")
    assert first["difference"] > 1e-3
    assert found["explanation"]["equal"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("fake")
def test_a_wrong_reason_is_found_out() -> None:
    wrong = Explanation("the update of round 1 is dropped", change="first-update-is-lost")
    pair = replace(fake_pair(weighted=False), explanation=wrong)
    found = examine(pair, Path(sys.executable))
    assert not found["explanation"]["equal"]


@pytest.mark.slow
def test_a_driver_that_fails_gives_one_line(fake: Path) -> None:
    fake.write_text("raise RuntimeError('no such strategy')", encoding="utf-8")
    with pytest.raises(
        FlbenchError, match=mention("drive_fake", "failed", "RuntimeError", "no such")
    ) as error:
        examine(fake_pair(weighted=True), Path(sys.executable))
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.long
def test_a_play_in_which_nothing_moves_is_refused(fake: Path) -> None:
    pair = replace(fake_pair(weighted=True), local={"lr": 1e-12})
    with pytest.raises(FlbenchError, match=mention("fake-fedavg", "models that move")):
        examine(pair, Path(sys.executable))


def test_every_pair_has_a_framework_and_a_name_of_its_own() -> None:
    assert {one.framework for one in PAIRS} <= set(FRAMEWORKS)
    names = [one.name for one in PAIRS]
    assert len(set(names)) == len(names)
    assert all(one.explanation.change in {None, *CHANGES} for one in PAIRS if one.explanation)


def test_every_pair_has_a_result_and_every_result_a_pair() -> None:
    assert {path.stem for path in REPORTS.glob("*.json")} == {one.name for one in PAIRS}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_result_is_equal_or_explained(pair) -> None:
    found = json.loads((REPORTS / f"{pair.name}.json").read_text(encoding="utf-8"))
    assert found["equal"] == (not pair.reason)
    assert found["params"] == dict(pair.params)
    assert found["settings"] == dict(pair.settings)
    assert found["equal"] or found["explanation"]["equal"]


def test_the_page_is_that_of_the_files() -> None:
    path = ROOT / "docs" / "tools" / "other_implementations_page.py"
    spec = importlib.util.spec_from_file_location("other_implementations_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (ROOT / "docs" / "other-implementations.md").read_text(encoding="utf-8")
    assert text == module.page(module.read(REPORTS))


def test_every_defect_has_an_entry_of_its_own_with_a_mend() -> None:
    text = (ROOT / "docs" / "other-implementations.md").read_text(encoding="utf-8")
    text = " ".join(text.split())
    for pair in PAIRS:
        if pair.mend:
            assert text.count(f": {pair.reason} After round ") == 1, pair.name
            assert f"To mend it: {pair.mend} " in text, pair.name


@pytest.mark.slow
def test_the_groups_of_flhc_are_several_and_not_of_one_client_each() -> None:
    (pair,) = find("cfla", "flhc")
    found = ours.play(pair.method, pair.params, pair.models, pair.local, None, pair.participation)
    last = {
        found.arrays[f"{ours.ROUNDS}/client-{client}"].tobytes() for client in range(ours.CLIENTS)
    }
    assert 1 < len(last) < ours.CLIENTS


def test_what_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) != 0
    names = ", ".join(FRAMEWORKS)
    assert f"expected a framework ({names}), got 'nothing'" in capsys.readouterr().err
    assert main(["fedlab", "nothing"]) != 0
    assert mentions(capsys.readouterr().err, "method", "fedavg")


def test_an_interruption_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "wanted", stopped)
    assert main(["fedlab"]) == 130
    assert capsys.readouterr().err == mentioning("interrupted", "complete")


def test_the_list_has_every_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(PAIRS)


def test_a_report_that_cannot_be_written_is_refused_before_a_play(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "afile").touch()
    words = ["--out", str(tmp_path / "afile"), "--python", "no-python"]
    assert main(["fedlab", "fedavg", *words]) == 1
    assert mentions(capsys.readouterr().err, "fedlab-fedavg.json", "Not a directory")


@pytest.mark.parametrize("words", [["--python", "venv/python"], ["--environments", "venv"]])
def test_paths_are_those_of_the_folder_in_which_it_is_typed(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side runs in a folder of its own; a link is what makes an environment."""
    found: list[Path] = []

    def examined(_: Pair, python: Path) -> None:
        found.append(python)
        raise UserError("enough")

    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "examine", examined)
    monkeypatch.setattr(command, "ensure", lambda _, folder: folder / "python")
    assert main(["fedlab", "fedavg", *words]) == 1
    (python,) = found
    assert python.is_absolute()
    assert python.parent in (tmp_path / "venv", tmp_path / "venv" / "fedlab")


@pytest.mark.parametrize("left", [b"", b'{"packages": ["fe', b"[]"])
def test_an_environment_with_a_damaged_marker_is_made_again(
    left: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def run(*command: str) -> str:
        made.append(command[0])
        return str(tmp_path)

    monkeypatch.setattr(environments, "run", run)
    framework = Framework("fedlab==1.3.0", (), "drive_fedlab")
    (tmp_path / environments.READY).write_bytes(left)
    for _ in range(2):
        ensure(framework, tmp_path)
    assert len(made) == 3, "once"


@pytest.mark.slow
@pytest.mark.long
def test_without_an_index_one_line_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match=mention("package", "needed")) as error:
        ensure(Framework("fedlab==1.3.0", (), "drive_fedlab"), tmp_path / "fedlab")
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_a_pair_is_played_in_an_environment_from_the_index(tmp_path: Path) -> None:
    if "fedlab" in sys.modules:  # pragma: no cover - never in our own environment
        pytest.fail("the framework is imported here")
    (pair,) = find("fedlab", "scaffold")
    report = examine(pair, ensure(FRAMEWORKS["fedlab"], tmp_path / "fedlab"))
    assert report["equal"]
    assert report["compared"] == ours.ROUNDS
