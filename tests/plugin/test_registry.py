"""What is installed: found by name and listed without being imported, broken packages included."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from annotated_types import Ge
from mentions import mention, mentioning, mentions
from toy import Play, install, python

from flbench import UserError, hookimpl
from flbench.cli.list import listing, plain
from flbench.errors import PluginError, UnknownName
from flbench.plugin import registry
from flbench.plugin.registry import (
    Entry,
    entries,
    find,
    source_file,
    summary_of,
    superseded_by,
)
from flbench.run import composition
from flbench.run.composition import compose

# --- method classes ---------------------------------------------------------------------------


@dataclass
class Thawed:
    """Not frozen."""

    rate: float = 0.1


class Bare:
    """No dataclass."""


def function() -> None:
    """No class."""


@dataclass(frozen=True)
class Frozen:
    """As it should be."""

    rate: float = 0.1

    @hookimpl
    def setup(self) -> None:
        return None


@dataclass(frozen=True)
class Whole:
    """A default without a decimal point, as people write it."""

    rate: float = 1
    sizes: tuple[float, ...] = (1, 2.5)

    @hookimpl
    def setup(self) -> None:
        return None


@dataclass(frozen=True)
class Unfit(Frozen):
    """A default that its own type does not have."""

    mode: Literal["a", "b"] = "c"  # type: ignore[assignment]


@dataclass(frozen=True)
class Negative(Frozen):
    """A default below its own bound."""

    rate: Annotated[float, Ge(0)] = -0.5


@dataclass(frozen=True)
class Listed(Frozen):
    """Presets that are no table."""

    presets = ("paper",)


def offered(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Let the registry offer a class of this module as the method `mine`."""
    entry = Entry("methods", "mine", f"{__name__}:{target}", "strangers", "3.1")
    monkeypatch.setattr(registry, "entries", lambda kind: {"mine": entry})
    monkeypatch.setattr(composition, "find", registry.find)


@pytest.mark.parametrize("target", ["Thawed", "Bare", "function"])
def test_a_method_that_is_no_frozen_dataclass_is_refused(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    offered(monkeypatch, target)
    with pytest.raises(PluginError) as caught:
        compose("mine")
    assert str(caught.value) == f"method 'mine': {__name__}:{target} is not a frozen dataclass"


def test_a_default_is_read_as_its_type_so_that_a_row_has_one_fingerprint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered(monkeypatch, "Whole")
    plain, given = compose("mine").described, compose("mine", {"rate": 1}).described
    assert plain == given
    assert type(plain.params["rate"]) is float


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("Unfit", "default of 'mode' is 'c', expected 'a' | 'b'"),
        ("Negative", "default of 'rate' is -0.5, expected float"),
        ("Listed", "presets is ('paper',), expected name -> parameter -> value"),
    ],
)
def test_what_no_run_of_it_could_have_is_refused_when_it_is_loaded(
    target: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, target)
    with pytest.raises(PluginError) as caught:
        compose("mine")
    assert mentions(str(caught.value), "method 'mine'", "strangers", said)


def test_a_method_that_is_a_frozen_dataclass_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, "Frozen")
    described = compose("mine", {"rate": 0.5}).described
    assert (described.name, described.params) == ("mine", {"rate": 0.5})
    assert [(p.distribution, p.version) for p in described.plugins] == [("strangers", "3.1")]


# --- what is installed ------------------------------------------------------------------------


RAISES = '"""A stranger\'s method."""\nraise RuntimeError("built for another torch")\n'


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution whose method raises when it is imported."""
    folder = tmp_path / "site"
    install(
        folder,
        "flbench-stranger",
        "[flbench.methods]\nstrange = strange_method:Strange\n",
        strange_method=RAISES,
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_broken_plugin_is_listed_and_hides_nobody(stranger: Path) -> None:
    listed = entries("methods")
    assert {"fedavg", "local-only", "oracle", "pfedlia", "strange"} <= set(listed)
    assert list(listed) == sorted(listed)
    assert listed["strange"].distribution == "flbench-stranger"
    assert listed["strange"].version == "1.0"
    assert summary_of(listed["strange"]) == "A stranger's method."
    assert "strange_method" not in sys.modules


@pytest.mark.slow
def test_a_broken_plugin_does_not_disturb_a_run_that_does_not_name_it(
    stranger: Path, play_toy: Play
) -> None:
    assert play_toy("pfedlia", settings={"warmup": 1, "probe_epochs": 1}, rounds=2).said == []
    assert "strange_method" not in sys.modules


def test_naming_a_broken_plugin_is_one_line(stranger: Path) -> None:
    with pytest.raises(PluginError) as caught:
        compose("strange")
    assert str(caught.value) == mentioning(
        "strange",
        "flbench-stranger",
        "1.0 cannot",
        "strange_method:Strange",
        "RuntimeError",
        "built for another torch",
        "uninstall flbench-stranger",
    )
    with pytest.raises(PluginError, match="built for another torch"):
        compose("pfedlia+strange")


@pytest.mark.parametrize(
    ("points", "modules"),
    [
        ("[flbench.methods]\nodd = odd_method:Odd\n", {"odd_method": "class Odd(:\n"}),
        ("[flbench.methods]\nodd = gone_method:Odd\n", {}),
        ("[flbench.methods]\nodd = gone_package.method:Odd\n", {}),
        ("[flbench.methods]\nodd = odd_method\n", {"odd_method": ""}),
        ("[flbench.suites]\nodd = odd_suite:path\n", {"odd_suite": "path = 'elsewhere.toml'\n"}),
    ],
    ids=["syntax error", "no module", "no package", "no object", "suite kept elsewhere"],
)
def test_whatever_is_wrong_with_a_plugin_listing_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, points: str, modules: dict[str, str]
) -> None:
    install(tmp_path / "site", "flbench-odd", points, **modules)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    kind = points.partition("flbench.")[2].partition("]")[0]
    summaries = {name: summary_of(entry) for name, entry in entries(kind).items()}
    assert summaries.pop("odd") == ""
    assert all(summaries.values())
    assert len(summaries) >= 2


def test_two_packages_that_offer_one_name_are_an_error(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    install(other, "flbench-rival", "[flbench.methods]\nstrange = rival_method:Strange\n")
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(UserError, match=mention("strange", "packages")) as caught:
        find("methods", "strange")
    assert "flbench-stranger" in str(caught.value)
    assert "flbench-rival" in str(caught.value)
    assert "pathological-noniid" in entries("suites"), "other kinds are untouched"


def test_an_unknown_name_lists_what_is_installed_and_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        find("methods", "pfedlai")
    assert mentions(str(caught.value), "pfedlai", "pfedlia")
    for name in entries("methods"):
        assert name in str(caught.value)


def test_a_path_that_names_no_object_is_no_file() -> None:
    assert source_file(Entry("methods", "x", "gone_package.method:X", "d", "1")) is None
    assert summary_of(Entry("methods", "x", "gone_package.method:X", "d", "1")) == ""


@pytest.mark.slow
def test_listing_imports_nobody(stranger: Path) -> None:
    told = python(
        "import sys\n"
        "from flbench.plugin.registry import KINDS\n"
        "from flbench.plugin.registry import entries, summary_of\n"
        "for kind in KINDS:\n"
        "    for entry in entries(kind).values():\n"
        "        print(entry.name, '|', summary_of(entry))\n"
        "heavy = ('torch', 'numpy', 'lightning', 'sklearn', 'wandb', 'pluggy', 'strange_method')\n"
        "mine = ('flbench_plugins', 'flbench_benchmarks', 'flbench.datasets', 'flbench.models')\n"
        "print('IMPORTED', [name for name in (*heavy, *mine) if name in sys.modules])\n",
        stranger,
    )
    *lines, last = told.splitlines()
    assert last == "IMPORTED []"
    assert "strange | A stranger's method." in lines
    assert all(line.rpartition("| ")[2] for line in lines), "everything has a summary"


@pytest.mark.slow
def test_the_command_list_goes_on_over_a_broken_plugin(stranger: Path) -> None:
    told = python(
        "import sys; sys.argv = ['flbench', 'list', 'methods']\n"
        "from flbench.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print('TORCH', 'torch' in sys.modules)\n",
        stranger,
    )
    assert "strange" in told
    assert "pfedlia" in told
    assert "TORCH False" in told


def test_a_suite_says_which_one_takes_its_place_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flbench.plugin.registry.source_file", lambda entry: tmp_path / "x.py")
    (tmp_path / "old.toml").write_text('superseded_by = "new"\nsummary = "one"\n')
    (tmp_path / "broken.toml").write_text("superseded_by = ")
    old, method, broken, absent = (
        Entry(kind, name, "x:y", "d", "1")
        for kind, name in (
            ("suites", "old"), ("methods", "old"), ("suites", "broken"), ("suites", "absent"),
        )
    )  # fmt: skip
    assert [superseded_by(one) for one in (old, method, broken, absent)] == ["new", "", "", ""]
    monkeypatch.setattr("flbench.cli.list.entries", lambda kind: {"old": old})
    assert mentions(listing("suites"), "superseded by new")
    assert plain("suites")[0]["superseded_by"] == "new"
