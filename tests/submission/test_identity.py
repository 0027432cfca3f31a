"""Names and sources of what arrives: ASCII, no look-alike, and the code that is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from toy import player

import flbench
from flbench.plugin.registry import KINDS, entries
from flbench.plugin.source_inspection import class_flag
from flbench.results.files import read_results, write_atomically
from flbench.results.schema import SCHEMA, YOUNGER, Result
from flbench.submission.admission import gathered, problems
from flbench.submission.consistency import ASKED_FOR, job_of
from flbench.submission.identity import imitations, shape_of, unreadable

BOARD = Path(__file__).resolve().parents[2] / "leaderboard" / "results"
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return player(tmp_path_factory.mktemp("runs"))("fedavg").result


def asked(result: Result, edit: Edit, folder: Path) -> list[str]:
    """What is said of a file that was edited, whose fingerprints fit again."""
    table = json.loads(result.canonical())
    edit(table)
    edited = Result.model_validate(table)
    job = job_of(edited, folder / "out")
    marks = {"suite": job.suite.hash(), "config": job.fingerprint}
    marked = edited.fingerprint.model_copy(update=marks)
    path = folder / "seed-0.json"
    write_atomically(path, edited.model_copy(update={"fingerprint": marked}).canonical().encode())
    return problems(path, gathered(folder / "board", [path], new_table=True))


def named(name: str, **about: str) -> Edit:
    def edit(table: dict[str, Any]) -> None:
        table["method"]["name"] = name
        table["method"]["plugins"][0] |= {"name": name, **about}

    return edit


LOOKS = {
    "cyrillic": "fed\u0430vg",
    "full-width": "\uff46edavg",
    "invisible": "fed\u3164avg",
    "accent": "fedav\u01f5",
    "long s": "fedprox\u017f",
}


@pytest.mark.parametrize("name", LOOKS.values(), ids=LOOKS)
def test_a_method_s_name_is_of_ascii(name: str, result: Result, tmp_path: Path) -> None:
    found = asked(result, named(name, distribution="theirs"), tmp_path)
    assert found
    assert all(line.isascii() and line.isprintable() for line in found), "they can be told apart"


PLACES: dict[str, Edit] = {
    "suite": lambda table: table["suite"].update(name="t\u043ey"),
    "network": lambda table: table["suite"]["model"].update(name="ml\u0440"),
    "distribution": named("fedmine", distribution="flb\u0435nch"),
    "version": named("fedmine", distribution="theirs", version="1.\u0660"),
    "source": named("fedmine", distribution="theirs", source="\u0430" * 12),
    "parameter": lambda table: table["method"].update(params={"m\u03c5": 1}),
    "value": lambda table: table["method"].update(params={"kind": "\u0430da"}),
    "environment": lambda table: table["environment"].update(torch="2.1\u0417.0"),
    "item": lambda table: table["bytes"]["peer"].update({"m\u043edel": 0}),
    "curve": lambda table: table["curves"].update({"l\u043ess": table["curves"]["loss"]}),
    "note": lambda table: table["notes"].append({"round": 1, "name": "\u0435ps", "value": 0}),
}


@pytest.mark.parametrize("edit", PLACES.values(), ids=PLACES)
def test_so_is_everything_that_names_something(edit: Edit, result: Result, tmp_path: Path) -> None:
    found = asked(result, edit, tmp_path)
    assert [line for line in found if "expected, got" in line or "digits and .,+- , got" in line]
    assert all(line.isascii() for line in found)


def test_what_is_written_for_a_person_is_in_any_script(result: Result, tmp_path: Path) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["suite"]["paper"] = "\u5f20\u4e09 2024"
        table["warnings"].append("\u00fcber")
        table["notes"].append({"round": 1, "name": "said", "value": {"\u00fc": "\u00df"}})

    assert asked(result, edit, tmp_path) == []


@pytest.mark.parametrize(
    "name", ["FedAvg", "fed-avg", "Fed_Avg", "f3davg", "fedl1a", "pfedIia", "ifca.", "fl1s-hc"]
)
def test_names_that_look_like_an_installed_one_are_refused(
    name: str, result: Result, tmp_path: Path
) -> None:
    """`f3davg` and `fedl1a` look like none."""
    found = asked(result, named(name, distribution="theirs"), tmp_path)
    told = [line for line in found if line.startswith(f"method '{name}' looks like the installed")]
    assert len(told) == (name not in ("f3davg", "fedl1a"))


def test_so_are_those_of_a_suite_a_data_set_and_a_network(result: Result, tmp_path: Path) -> None:
    def edit(table: dict[str, Any]) -> None:
        table["suite"]["name"], table["suite"]["model"]["name"] = "noisy-nonild", "M1P"
        table["suite"]["dataset"] = table["dataset"] = "Digits"

    found = asked(result, edit, tmp_path)
    for told in ("suite 'noisy-nonild' looks", "model 'M1P' looks", "dataset 'Digits' looks"):
        assert [line for line in found if line.startswith(told)], found


def test_no_two_installed_names_look_alike() -> None:
    """Otherwise nobody could submit a result of one of them without a remark on the other."""
    for kind in KINDS:
        names = entries(kind)
        pairs = combinations(names, 2)
        assert [pair for pair in pairs if len({*map(shape_of, pair)}) == 1] == [], kind


def test_names_and_sources_are_held_against_what_is_installed(
    result: Result, tmp_path: Path
) -> None:
    here, source = flbench.__version__, result.plugins[0].source
    assert source
    known = f"fedavg of flbench {here} has the source {source}, as installed here, got"
    told = {
        f"{known} '0bad0bad0bad'": {"source": "0bad0bad0bad"},
        f"{known} ''": {"source": ""},
        "fedavg is the method of flbench, got one of theirs": {"distribution": "theirs"},
        "the package of fedavg is 'flbench', got 'FlBench'": {"distribution": "FlBench"},
        f"flbench {here}, which is installed here, has no method 'fedmine'": {"name": "fedmine"},
        "fedavg is the method of flbench, got one of numpy": {"distribution": "numpy"},
    }
    for line, about in told.items():
        found = asked(result, named(**{"name": "fedavg", **about}), tmp_path)
        assert len(found) == 1, found
        assert found[0].startswith(line)
    older = named("fedavg", version="0.0.1", source="0bad0bad0bad")
    assert asked(result, older, tmp_path) == [], "that version's code is not here"
    theirs = named("fedmine", distribution="theirs", version="3.0", source="0bad0bad0bad")
    assert asked(result, theirs, tmp_path) == [], "nor is that package"


@pytest.mark.slow  # reads every file
def test_files_of_a_version_lack_what_is_younger_and_nothing_else() -> None:
    """What the newest files of a method on a suite have, its older ones have or may lack."""
    files: dict[tuple[object, ...], list[tuple[int, set[str]]]] = {}
    for _, one in read_results(BOARD):
        keys = {f"curves.{key}" for key in one.curves} | {f"summary.{key}" for key in one.summary}
        asked = bool(one.suite.get("unseen")), one.summary.get("target"), one.own is None
        row = (one.suite["name"], one.dataset, one.method.name, *asked)
        files.setdefault(row, []).append((one.schema_version, keys))
    lacking = {
        (version, field)
        for found in files.values()
        for version, keys in found
        for newest, others in found
        if newest == SCHEMA > version
        for field in others - keys - YOUNGER[version]
    }
    assert lacking == set()


@pytest.mark.slow
@pytest.mark.long
def test_every_committed_file_is_readable_and_names_nothing_anew() -> None:
    for path, one in read_results(BOARD):
        assert [*unreadable(one)] == [], path
        assert [line for line in imitations(one) if "looks like" in line] == [], path


def test_what_arrives_has_all_that_a_run_has_now(result: Result, tmp_path: Path) -> None:
    def edit(table: dict[str, Any]) -> None:
        for field in fields:
            part, _, name = field.partition(".")
            table.pop(part) if not name else table[part].pop(name)

    told = "field required of what arrives: run it again (--force)"
    fields = sorted(YOUNGER[SCHEMA] - ASKED_FOR.keys())  # its suite has no plugins and no clock
    assert "reads" in fields
    assert asked(result, edit, tmp_path) == [f"'{field}': {told}" for field in fields]


CLASSES = """
from typing import Annotated, ClassVar
from elsewhere import Unknown
class Plain: pass
class Says: flag = True
class Typed: flag: ClassVar[bool] = True
class Below(Says): pass
class Over(Says): flag = False
class Asked: flag: bool = True
class Asks:
    @property
    def flag(self): return True
class Beyond(Unknown): pass
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Plain", False), ("Says", True), ("Typed", True), ("Below", True), ("Over", False),
        ("Asked", None), ("Asks", None), ("Beyond", None), ("Nowhere", None),
    ],
)  # fmt: skip
def test_what_a_class_says_is_read_without_an_import(
    name: str, said: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "that_says.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert class_flag("that_says", name, "flag") is said
    assert "that_says" not in sys.modules
    assert class_flag("that_is_nowhere", name, "flag") is None
