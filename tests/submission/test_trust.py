"""Files of somebody else: what they name is not imported, made, opened or obeyed by a terminal."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from made_results import sealed
from mentions import mention, mentioning, mentions
from pydantic import ValidationError
from toy import Typed, install

import flbench
from flbench.core.dataset import DatasetInfo
from flbench.core.parameters import OpensFile, declared
from flbench.datasets import derived
from flbench.datasets.hub import fetching
from flbench.errors import UserError, escaped
from flbench.federation.loading import load_dataset
from flbench.results.files import read_result
from flbench.results.schema import Plugin, Result
from flbench.submission import trust
from flbench.submission.consistency import job_of
from flbench.submission.trust import outside, will_run
from flbench.submission.verification import _where_from

ROOT = Path(__file__).resolve().parents[2]
BASE = next(iter(sorted((ROOT / "leaderboard/results/iid/digits/fedavg").rglob("seed-0.json"))))
Edit = Callable[[dict[str, Any]], None]

# --- a bait, and who touches it ----------------------------------------------------------------

TOUCHED: list[str] = []
"""Files below a bait that were opened or listed, and connections that were tried."""
BAIT: list[str] = []


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if BAIT and event in ("open", "os.listdir", "os.scandir"):
        if str(arguments[0]).startswith(BAIT[0]):
            TOUCHED.append(str(arguments[0]))
    elif BAIT and event in ("socket.connect", "socket.getaddrinfo"):
        TOUCHED.append(event)


sys.addaudithook(_heard)


@pytest.fixture
def bait(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of everything that a file may want to be opened; nothing of it may be.

    Its model has Python of its own, which is run by what trusts its name.
    """
    folder = tmp_path_factory.mktemp("bait")
    model = folder / "jinaai-clip"
    model.mkdir()
    auto = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (model / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    (model / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    x, y = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    np.savez(folder / "mine.npz", x=x, y=y)
    (folder / "mine.csv").write_text("label,a\n0,1\n1,2\n")
    torch.save({}, folder / "weights.pth")
    BAIT.append(str(folder))
    TOUCHED.clear()
    yield folder
    BAIT.clear()


def forged(edit: Edit) -> str:
    """The text of a result file of which something was changed, with everything that fits."""
    table = json.loads(BASE.read_text(encoding="utf-8"))
    edit(table)
    with suppress(ValidationError, UserError):
        job = job_of(Result.model_validate(table), Path())
        table["fingerprint"] |= {"suite": job.suite.hash(), "config": job.fingerprint}
    return sealed(table)


def asks(name: str, **params: object) -> Edit:
    """A metric beside accuracy."""

    def edit(table: dict[str, Any]) -> None:
        values = [0.5] * len(table["clients"]["test"])
        about = {"package": "torchmetrics 1.9.0", "higher_is_better": True, "values": values}
        table["client_metrics"] = {"odd": {"name": name, "params": params, **about}}
        ends = {"mean": 0.5, "std_clients": 0.0, "worst_decile": 0.5, "clients": len(values)}
        table["summary"] |= {f"odd_{key}": value for key, value in ends.items()}

    return edit


def puts(**settings: object) -> Edit:
    """Settings of the suite."""

    def edit(table: dict[str, Any]) -> None:
        table["suite"] |= settings
        table["dataset"] = table["suite"]["dataset"]

    return edit


ATTACKS: dict[str, Callable[[Path], Edit]] = {
    "a model with code": lambda bait: asks(
        "torchmetrics.multimodal.CLIPScore", model_name_or_path=str(bait / "jinaai-clip")
    ),
    "the same by its file": lambda bait: asks(
        "torchmetrics.multimodal.clip_score.CLIPScore", model_name_or_path=f"{bait}/jinaai-clip"
    ),
    "a hub": lambda bait: asks("torchmetrics.text.BERTScore", model_name_or_path="evil/evil"),
    "a wrapper": lambda bait: asks("torchmetrics.wrappers.BootStrapper", base_metric="x"),
    "thresholds": lambda bait: asks("MulticlassAUROC", thresholds=10**9),
    "a list of thresholds": lambda bait: asks("MulticlassAUROC", thresholds=[0.5] * 5000),
    "a callback": lambda bait: asks("MulticlassF1Score", dist_sync_fn="os.system"),
    "bins": lambda bait: asks("ece", bins=10**9),
    "an array": lambda bait: puts(dataset=f"npz:{bait}/mine.npz"),
    "a table": lambda bait: puts(dataset=f"csv:{bait}/mine.csv"),
    "an array that is turned": lambda bait: puts(dataset=f"rotated:npz:{bait}/mine.npz"),
    "texts": lambda bait: puts(dataset=f"text:{bait}"),
    "images": lambda bait: puts(dataset=f"images:{bait}@8"),
    "users": lambda bait: puts(dataset=f"leaf:{bait}"),
    "a folder with a script": lambda bait: puts(dataset=f"hub:{bait}/jinaai-clip"),
    "weights": lambda bait: puts(model={"name": "resnet18", "weights": f"{bait}/weights.pth"}),
    "weights of another network": lambda bait: puts(
        further_models=[{"name": "resnet18", "weights": f"{bait}/weights.pth"}]
    ),
    "a pretrained folder": lambda bait: puts(
        model={"name": "gpt2", "pretrained": f"{bait}/jinaai-clip"}
    ),
    "a trace": lambda bait: puts(clock={"up": {"trace": f"{bait}/mine.csv"}}),
    "a name that is a path": lambda bait: puts(name=f"{bait}/suite"),
    "a name that leads up": lambda bait: puts(name="../" * 30 + f"{bait}/suite"),
    "a network by its module": lambda bait: puts(model={"name": "os:system"}),
    "a partition by its module": lambda bait: puts(partition={"name": "os.system"}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_running_a_file_again_touches_nothing_that_it_names(
    attack: str, bait: Path, typed: Typed, tmp_path: Path
) -> None:
    Path("seed-0.json").write_text(forged(ATTACKS[attack](bait)), encoding="utf-8")
    before = sorted(bait.rglob("*"))
    TOUCHED.clear()
    code, out, err = typed("verify", "seed-0.json")
    assert TOUCHED == []
    assert code == 1, out + err
    assert err.splitlines()[-1].startswith("flbench: ")
    assert sorted(bait.rglob("*")) == before


@pytest.fixture
def hostile(bait: Path, typed: Typed, tmp_path: Path) -> int:
    """All of these files in the folder R, one of each; how many there are."""
    for name, attack in ATTACKS.items():
        file = tmp_path / "R" / name / "seed-0.json"
        file.parent.mkdir(parents=True)
        file.write_text(forged(attack(bait)), encoding="utf-8")
    TOUCHED.clear()
    return len(ATTACKS)


@pytest.mark.slow
def test_so_it_does_where_many_are_run(hostile: int, typed: Typed) -> None:
    code, out, err = typed("verify", "R", "--log", "log")
    assert (TOUCHED, code) == ([], 1)
    assert mentions(out, "0 agree", "0 of them", "0 differ", hostile), out
    code, out, err = typed("verify", "R", "--sample", "99")
    assert (TOUCHED, code) == ([], 1)
    drawn = re.match(r"(\d+) of \1 result files; (\d+) lack", out)
    assert drawn, out + err
    assert int(drawn[1]) + int(drawn[2]) == hostile
    assert f"; 0 differ; {drawn[1]} cannot be run; 0 are left" in out


@pytest.mark.slow
def test_so_it_does_where_files_are_read(hostile: int, typed: Typed) -> None:
    assert typed("show", "result", "R/a list of thresholds/seed-0.json")[0] == 0
    typed("export", "R")
    typed("leaderboard", "--results", "R", "--no-figures", "--out", "out")
    code, out, _ = typed("submit", "--check", "R")
    assert (TOUCHED, code) == ([], 1)
    for name in ("a model with code", "the same by its file", "a hub", "a wrapper", "thresholds"):
        said = f"R/{name}/seed-0.json: 'client_metrics': "
        assert any(line.startswith(said) for line in out.splitlines()), name


METRICS = (
    '{ name = "torchmetrics.multimodal.CLIPScore", model_name_or_path = "BAIT/jinaai-clip" }',
    '"torchmetrics.multimodal.CLIPScore:model_name_or_path=BAIT/jinaai-clip"',
    '"torchmetrics.text.BERTScore"',
    '{ name = "MulticlassAUROC", thresholds = [0.1, 0.2] }',
    '{ name = "ece", bins = 1000000000 }',
)


@pytest.mark.parametrize("metric", METRICS)
def test_a_suite_file_names_no_other_metrics(
    metric: str, bait: Path, typed: Typed, tmp_path: Path
) -> None:
    suite = (ROOT / "benchmarks/iid.toml").read_text(encoding="utf-8")
    metrics = f"metrics = [{metric.replace('BAIT', str(bait))}]\n"
    printed = "\n[printed.digits.fedavg]\naccuracy_mean = 0.5\n"
    Path("evil.toml").write_text(metrics + suite + printed, encoding="utf-8")
    lines = [
        'summary = "x"',
        'title = "x"',
        'authors = "x"',
        'venue = "x"',
        'link = "x"',
        "[tables.1]",
    ]
    lines += ['caption = "x"', 'suites = ["./evil.toml"]', 'datasets = ["digits"]']
    lines += ['methods = ["fedavg"]', "[tables.1.scale.small]", "on.digits = {}"]
    Path("paper.toml").write_text("\n".join(lines), encoding="utf-8")
    grid = 'summary = "x"\nsuites = ["./evil.toml"]\nmethods = ["fedavg"]\ncolumns = ["ari"]\n'
    Path("study.toml").write_text(grid, encoding="utf-8")
    TOUCHED.clear()
    for words in (
        ("run", "-p", "fedavg", "-s", "./evil.toml"),
        ("reproduce", "./paper.toml"),
        ("study", "./study.toml"),
    ):
        code, out, err = typed(*words)
        assert TOUCHED == []
        assert "metric" in out + err
        assert (code, err.splitlines()[-1][:9]) == (1, "flbench: "), (words, out, err)


# --- what a person lets it open ------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_person_names_as_well_is_opened(bait: Path, typed: Typed, tmp_path: Path) -> None:
    data = f"npz:{bait}/mine.npz"
    small = ("--rounds", "2", "--set", "clients=2", "--set", "participation=1.0")
    code, _, err = typed("run", "-p", "fedavg", "-s", "iid", "--dataset", data, *small)
    assert code == 0, err
    (file,) = map(str, tmp_path.rglob("seed-0.json"))
    code, _, err = typed("verify", file)
    assert code == 1
    assert f"add --open {data}" in err.splitlines()[-1]
    assert typed("verify", file, "--open", f"{data}x")[0] == 1
    code, out, _ = typed("verify", file, "--open", data)
    assert (code, out.splitlines()[-1]) == (0, mentioning("agrees", "last"))
    code, out, _ = typed("verify", file, "--open", data, "--log", "log.jsonl")
    assert code == 0, out


def test_a_mark_says_which_parameters_name_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their defaults are the package's own, and nothing is opened of None."""

    def build(
        shape: object,
        classes: int,
        weights: Annotated[str | None, OpensFile(), "a file"] = "own.pth",
        name: str = "x",
    ) -> None: ...

    assert [one.opens_file for one in declared(build, skip=2).values()] == [True, False]
    monkeypatch.setattr(trust, "load_entry", lambda entry: build)
    trust._opening.cache_clear()
    base = read_result(BASE)
    for weights, found in ((None, []), ("own.pth", []), ("other.pth", ["other.pth"]), (3, ["3"])):
        model = {"name": "mlp", "weights": weights, "name_": "x"}
        assert outside(base.model_copy(update={"suite": {**base.suite, "model": model}})) == found
    trust._opening.cache_clear()


def test_a_data_set_that_does_not_say_so_is_not_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    base = read_result(BASE).model_copy(update={"dataset": "rotated:digits"})
    assert outside(base) == []
    about = replace(derived.ABOUT["rotated"], derived=False)
    monkeypatch.setitem(derived.ABOUT, "rotated", about)
    assert outside(base) == ["rotated:digits"]
    assert DatasetInfo("", "").derived is False


# --- whose code runs -----------------------------------------------------------------------------


def test_the_packages_that_run_are_named_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    points = "[flbench.methods]\nacme = acme:Acme\n[flbench.metrics]\nnll = acme:nll\n"
    install(tmp_path / "site", "acme-fl", points, acme="raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    base = read_result(BASE)
    one = base.model_copy(update={"method": base.method.model_copy(update={"name": "acme"})})
    said = will_run([base, one])
    assert said.endswith(f": acme-fl 1.0 (method acme), flbench {flbench.__version__}")
    assert "trusted code" in said
    assert "acme" not in sys.modules
    text = forged(lambda table: asks("nll")(table))
    assert "(metric nll)" in will_run([Result.model_validate(json.loads(text))])
    Path("seed-0.json").write_text(text)
    for words in (("verify", "seed-0.json"), ("verify", "seed-0.json", "--log", "log")):
        code, _, err = typed(*words)
        assert code == 1
        assert err.splitlines()[0].startswith("  note: installed packages run now"), err


# --- what is printed -----------------------------------------------------------------------------


NO_PACKAGES = (
    ("x; touch ran", "1.0"), ("x", "1.0; touch ran"), ("$(touch ran)", "1"), ("x", "1 y"),
    ("--index-url=evil", "1"), ("x @ file:evil", "1.0"), ("x[y]", "1"), ("", "1"), ("x'", "1"),
    ("\u0445", "1"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "version"), NO_PACKAGES)
def test_nothing_is_printed_to_install_what_is_no_package(name: str, version: str) -> None:
    plugin = Plugin(name="x", distribution=name, version=version)
    assert "pip" not in _where_from([plugin])


def test_the_command_that_installs_packages_is_one_of_plain_words() -> None:
    plugins = [Plugin(name="x", distribution="A.b-c_d", version="1!2.0+local.1")]
    _, _, command = _where_from(plugins).rpartition(": ")
    assert shlex.split(command) == ["pip", "install", "A.b-c_d==1!2.0+local.1"]


@pytest.mark.parametrize("name", ["a'); import evil; ('", 'a"; touch ran; "', "$(id)\n`id`", "\\'"])
def test_the_command_that_fetches_holds_a_name_as_text(name: str) -> None:
    python, option, code = shlex.split(fetching(name))
    assert (python, option, "\n" in code) == ("python", "-c", False)
    _, call = ast.parse(code).body
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert [ast.literal_eval(one) for one in call.value.args] == [name]


def test_a_data_set_of_the_hub_runs_no_script(bait: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder, of a path, or of the cache, which the library is told."""
    asked: list[object] = []

    def load(path: str, trust_remote_code: bool | None = None) -> dict[str, object]:
        asked.append((path, trust_remote_code, config.HF_HUB_OFFLINE))
        return {}

    config = SimpleNamespace(HF_HUB_OFFLINE=False)
    library = SimpleNamespace(config=config, load_dataset=load)
    monkeypatch.setitem(sys.modules, "datasets", library)
    for name in (f"{bait}/jinaai-clip", f"{bait}/jinaai-clip/evil.py", "https://evil/x.py"):
        with pytest.raises(Exception, match=mention("not run", "script")):
            load_dataset(f"hub:{name}", Path())
    assert asked == []
    with pytest.raises(Exception, match="needs a split 'train'"):
        load_dataset("hub:somebody/set", Path())
    assert asked == [("somebody/set", False, True)]


ODD = "x\n\x1b[2J\r\u202egnp\u200b\u3164[red]\u001b]0;t\u0007flbench: it agrees"


@pytest.mark.parametrize(
    "words",
    [
        ("show", "result", "R/FILE.json"), ("diff", "R/FILE.json", "R/FILE.json"),
        ("verify", "R/FILE.json"), ("verify", "R", "--log", "log"),
        ("submit", "--check", "R/FILE.json"), ("export", "R/FILE.json"),
        ("plot", "R/FILE.json", "--kind", "curves"), ("leaderboard", "--results", "R/FILE.json"),
        ("run", "-p", "fedavg", "-s", "./FILE.toml"), ("show", "suite", "./FILE.toml"),
        ("show", "suite", "./seen.toml"), ("show", "method", "FILE"), ("data", "FILE"),
        ("reproduce", "FILE.toml"), ("study", "FILE.toml"), ("run", "-p", "FILE", "-s", "FILE"),
        ("run", "--FILE"), ("FILE",), ("run", "-p", "fedavg", "-s", "iid", "--seed", "FILE"),
        ("run", "-p", "fedavg", "-s", "iid", "--set", "FILE=1"), ("sync", "R/FILE.json"),
        ("run", "-p", "fedavg", "-s", "iid", "--metric", "FILE"),
        ("run", "-p", "fedavg", "-s", "iid", "--dataset", "FILE"), ("new", "FILE"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_line_holds_what_a_terminal_obeys(
    words: tuple[str, ...], typed: Typed, tmp_path: Path
) -> None:
    """Nor does a name begin a line of its own."""
    (tmp_path / "R").mkdir()
    (tmp_path / "R" / f"seed-{ODD}.json").write_text("{}")
    suite = (ROOT / "benchmarks/iid.toml").read_text(encoding="utf-8")
    (tmp_path / "seen.toml").write_text(f"{suite}\n[printed.digits.{json.dumps(ODD)}]\nx = 1\n")
    (tmp_path / f"{ODD}.toml").write_text('summary = "\\u001b[2J"\nname = 3\n')
    typed_words = [word.replace("R/FILE", f"R/seed-{ODD}").replace("FILE", ODD) for word in words]
    _, out, err = typed(*typed_words)
    assert out + err
    for line in (out + err).split("\n"):
        assert escaped(line) == line
        assert not line.startswith("flbench: it agrees")


@pytest.mark.parametrize("words", [("reproduce",), ("study",), ("show", "suite")])
def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(
    words: tuple[str, ...], typed: Typed, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "x.toml")
    code, _, err = typed(*words, "x.toml")
    assert code == 1
    assert mentions(err, "file", "got a pipe")
