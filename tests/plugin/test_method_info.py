"""The catalogue: what is read of a method's source is what the imported method is."""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mentions import mentions
from methods_page import KINDS, page, table
from suites_page import page as suites_page
from toy import install, python

from flbench.cli import list as cli_list
from flbench.cli.list import listing, plain
from flbench.cli.main import main
from flbench.core.hookspecs import implemented_hooks
from flbench.core.parameters import declared
from flbench.plugin.method_info import (
    MethodInfo,
    WrittenParameter,
    departures,
    method_info,
)
from flbench.plugin.registry import Entry, diagnose, entries, load_entry

METHODS = {
    name: entry for name, entry in entries("methods").items() if entry.distribution == "flbench"
}
PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
each = pytest.mark.parametrize("name", METHODS)


def mine(monkeypatch: pytest.MonkeyPatch, folder: Path, **classes: str) -> dict[str, MethodInfo]:
    """Cards of a stranger's methods: `name="module:Class source"` in a package of its own."""
    points = "[flbench.methods]\n"
    for name, source in classes.items():
        module, _, text = source.partition(":")
        points += f"{name} = {module}:{name.title()}\n"
        if text:
            install(folder / module, f"dist-{module}", "", **{module: text})
            monkeypatch.syspath_prepend(str(folder / module))
    install(folder / "points", "strangers", points)
    monkeypatch.syspath_prepend(str(folder / "points"))
    return {name: method_info(entries("methods")[name]) for name in classes}


Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Run `flbench ...` in this process; gives exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flbench", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


# --- what is read is what is there ------------------------------------------------------------


@each
def test_every_method_names_what_it_is_and_where_it_comes_from(name: str) -> None:
    told, real = method_info(METHODS[name]), load_entry(METHODS[name])
    assert told.name == name
    assert told.summary == real.__doc__.partition("\n")[0]
    assert told.summary.endswith(".")
    assert told.kind in ("global", "personalised", "clustered", "client", "server")
    assert (told.paper, told.year, told.kind) == (real.paper, real.year, real.kind)
    assert 1980 < told.year < 2030
    assert told.source.startswith(told.paper)
    assert str(told.year) in told.source
    assert told.text == sys.modules[real.__module__].__doc__.strip()
    assert told.package.startswith("flbench ")


@each
def test_hooks_are_those_of_the_class(name: str) -> None:
    assert sorted(method_info(METHODS[name]).hooks) == sorted(
        implemented_hooks(load_entry(METHODS[name]))
    )


def test_fedavg_has_no_hook_and_no_parameter() -> None:
    told = method_info(METHODS["fedavg"])
    assert told.hooks == told.parameters == ()


@each
def test_parameters_and_defaults_are_those_of_the_dataclass(name: str) -> None:
    told, real = method_info(METHODS[name]).parameters, load_entry(METHODS[name])
    fields, hints = dataclasses.fields(real), declared(real)
    assert [(p.name, p.default) for p in told] == [(f.name, repr(f.default)) for f in fields]
    names = vars(sys.modules[real.__module__])
    for p in told:
        hint = hints[p.name].hint
        bare = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        assert eval(p.type, names) == bare
        assert p.doc == hints[p.name].doc
        assert p.doc, "what it means stands beside it"


def test_method_info_by_hand() -> None:
    told = method_info(METHODS["oracle"])
    meaning = "rounds of fedavg before the groups are used"
    assert told.parameters == (WrittenParameter("warmup", "int", "20", meaning),)
    assert told.source == "Rokvic, Danassis, Faltings, IJCNN 2025"
    assert method_info(METHODS["fedavgm"]).source == "Hsu, Qi, Brown, arXiv 1909.06335 (2019)"


@pytest.mark.parametrize(
    ("ablation", "whole"),
    [("dc-pfl-nola", "dc-pfl"), ("dc-pfl-nodc", "dc-pfl"), ("fedc2i-lambda", "fedc2i")],
)
def test_an_ablation_inherits_what_it_does_not_change(ablation: str, whole: str) -> None:
    one, other = method_info(METHODS[ablation]), method_info(METHODS[whole])
    assert one.summary.startswith("Ablation of ")
    assert one.summary != other.summary
    for name in ("paper", "year", "kind", "text"):
        assert getattr(one, name) == getattr(other, name)
    assert set(other.hooks) <= set(one.hooks)
    assert [p.name for p in one.parameters] == [p.name for p in other.parameters]


def test_what_departs_is_said_once() -> None:
    """A paragraph of the documentation, or a constant of the class."""
    info = method_info(METHODS["fedasync"])
    assert info.departs == "every client trains all the time."
    assert method_info(METHODS["fedavg"]).departs == ""
    assert departures("A.\n\nDepartures: one;\n    two.\n\nMore.\n\nDeparture: three.") == (
        "one; two. three."
    )
    assert departures("It departs. Departed: no.") == ""


# --- strangers --------------------------------------------------------------------------------

FAMILY = '''"""A family."""
from dataclasses import dataclass
from typing import Annotated, ClassVar
from elsewhere import Stranger
from flbench import hookimpl

@dataclass(frozen=True)
class Mixin(Stranger):
    extra: bool = False

    @hookimpl
    def plan(self): ...

@dataclass(frozen=True)
class Base:
    paper: ClassVar[str] = "Base, 2020"
    year: ClassVar[int] = 2020
    kind: ClassVar = "global"
    flags: ClassVar[tuple] = (1, 2)
    a: Annotated[float, "first", 3, "and last"] = 1e-3
    b: "int" = 2

    @hookimpl
    def score(self): ...

    @staticmethod
    @hookimpl(tryfirst=True)
    def cluster(): ...

    def helper(self): ...

@dataclass(frozen=True)
class Child(Mixin, Base):
    """A child."""

    kind = "clustered"
    year = None
    a: float = 5.0
    c: str = "x|y"

    def cluster(self): ...

    @hookimpl(specname="aggregate")
    def mean(self): ...
'''


def test_inheritance_within_a_module_by_hand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = mine(monkeypatch, tmp_path, child=f"family:{FAMILY}")["child"]
    assert told.summary == "A child."
    assert (told.paper, told.year, told.kind) == ("Base, 2020", 0, "clustered")
    assert told.hooks == ("score", "plan", "aggregate"), "cluster lost its mark"
    assert told.parameters == (
        WrittenParameter("a", "float", "5.0", ""),
        WrittenParameter("b", "'int'", "2", ""),
        WrittenParameter("extra", "bool", "False", ""),
        WrittenParameter("c", "str", "'x|y'", ""),
    )
    base = mine(monkeypatch, tmp_path / "again", base="family:")["base"]
    assert base.parameters[0] == WrittenParameter("a", "float", "0.001", "first and last")
    assert (base.summary, base.year, base.hooks) == ("A family.", 2020, ("score", "cluster"))
    assert "family" not in sys.modules


ODD = {
    "without metadata": (
        '"""An odd method."""\nclass Odd:\n    x: int\n    @hookimpl\n    def plan(self): ...\n',
        ("An odd method.", ("plan",), ("x",), "An odd method."),
    ),
    "wrong metadata": (
        'class Odd:\n    """Odd."""\n    paper = 3\n    year = "soon"\n    kind = 4\n',
        ("Odd.", (), (), ""),
    ),
    "a function": ('"""Odd."""\ndef Odd(): ...\n', ("Odd.", (), (), "")),
    "another name": ('"""Odd."""\nclass Even: ...\n', ("Odd.", (), (), "")),
    "syntax error": ("class Odd(:\n", ("", (), (), "")),
    "no text": ("\0\1", ("", (), (), "")),
    "no file": ("", ("", (), (), "")),
}


@pytest.mark.slow
@pytest.mark.parametrize(("source", "expected"), ODD.values(), ids=ODD)
def test_what_a_stranger_does_not_say_stays_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: Typed, source: str, expected: Any
) -> None:
    told = mine(monkeypatch, tmp_path, odd=f"odd_method:{source}")["odd"]
    assert (told.paper, told.year, told.kind, told.source) == ("", 0, "", "")
    summary, hooks, parameters, text = expected
    assert (told.summary, told.hooks, told.text) == (summary, hooks, text)
    assert tuple(p.name for p in told.parameters) == parameters
    code, out, _ = typed("list", "methods")
    assert code == 0
    assert "\n  odd " in out
    assert "\n  pfedlia " in out
    assert f"\n## odd\n\n{f'{summary} *no paper named*'.strip()}.\n" in page([told])
    assert ("Settings: `x`." in page([told])) is bool(parameters)
    (row,) = [row for row in plain("methods") if row["name"] == "odd"]
    assert row == {
        "name": "odd", "summary": summary, "distribution": "strangers", "version": "1.0",
        "broken": diagnose(entries("methods")["odd"]),
        "paper": "", "year": 0, "kind": "", "hooks": list(hooks),
    }  # fmt: skip


def test_a_file_that_is_no_text_leaves_the_method_info_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "latin.py").write_bytes(b'"""Gr\xfc\xdfe."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    empty = MethodInfo("x", "", "", 0, "", (), (), {}, "", "d 1")
    assert method_info(Entry("methods", "x", "latin:X", "d", "1")) == empty


def test_methods_that_say_nothing_stand_on_the_page() -> None:
    silent = [MethodInfo(name, "", "", 0, "", (), (), {}, "", "d 1") for name in ("one", "two")]
    assert page(silent).count("*no paper named*") == 2


# --- the command line -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["plain", "json"])
def test_listing_methods_in_detail_imports_none_of_them(tmp_path: Path, more: list[str]) -> None:
    raises = '"""A stranger."""\nraise RuntimeError("imported")\n'
    install(tmp_path, "strangers", "[flbench.methods]\nodd = odd:Odd\n", odd=raises)
    told = python(
        f"import sys; sys.argv = ['flbench', 'list', 'methods', *{more}]\n"
        "from flbench.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = ('torch', 'numpy', 'lightning', 'sklearn', 'scipy', 'wandb', 'pluggy', 'odd')\n"
        "mine = ('flbench_plugins', 'flbench_benchmarks', 'flbench.datasets', 'flbench.models')\n"
        "print('IMPORTED', [name for name in (*heavy, *mine) if name in sys.modules])\n",
        tmp_path,
    )
    assert told.splitlines()[-1] == "IMPORTED []"
    assert "A stranger." in told
    assert "Control variates correct the drift of the clients." in told


@pytest.mark.slow
def test_the_list_of_methods_shows_kind_paper_and_hooks(typed: Typed) -> None:
    code, out, _ = typed("list", "methods")
    assert code == 0
    lines = out.splitlines()
    assert lines == listing("methods", details=True)
    place = next(i for i, line in enumerate(lines) if line.startswith("  oracle "))
    summary = "FedAvg within the true groups: an upper bound, never ranked."
    assert lines[place].endswith(f"  {summary}  [{method_info(METHODS['oracle']).package}]")
    assert lines[place + 1].strip() == (
        "clustered; Rokvic, Danassis, Faltings, IJCNN 2025; hooks: setup, cluster, join"
    )
    assert any(line.endswith("AISTATS 2017; hooks: none") for line in lines)
    whole = typed("list")[1]
    assert "hooks:" not in whole, "one line each where everything is listed"
    assert [line for line in whole.splitlines() if line.endswith(":")] == [
        "methods:", "suites:", "datasets:", "models:", "partitions:", "metrics:", "studies:",
            "papers:", "sinks:",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_list_can_be_read_by_machines(typed: Typed) -> None:
    rows = json.loads(typed("list", "methods", "--json")[1])
    assert rows == {"methods": plain("methods")}
    (row,) = [row for row in rows["methods"] if row["name"] == "fedprox"]
    assert row == {
        "name": "fedprox",
        "summary": "FedAvg with a proximal term that keeps clients near the model that they"
        " downloaded.",
        "distribution": "flbench",
        "version": METHODS["fedprox"].version,
        "broken": "",
        "paper": "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020",
        "year": 2020,
        "kind": "global",
        "hooks": ["local_term"],
    }
    everything = json.loads(typed("list", "--json")[1])
    assert everything["methods"] == rows["methods"]
    assert set(everything["suites"][0]) == {
        "name", "summary", "distribution", "version", "broken", "superseded_by",
    }  # fmt: skip


def test_two_packages_of_one_name_are_both_told(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dataclasses.replace(METHODS["oracle"], rivals=("theirs",))
    monkeypatch.setattr(cli_list, "entries", lambda kind: {"oracle": entry})
    told = listing("methods")
    assert told[1].endswith(f"[flbench {entry.version}, also offered by theirs]")
    rivals = f"flbench {entry.version} and theirs"
    assert told[2].strip() == f"broken: two packages offer it: {rivals}; uninstall one"


def test_the_page_of_methods_has_a_few_lines_for_each() -> None:
    infos = [method_info(entry) for entry in METHODS.values()]
    out = page(infos)
    assert [line[3:] for line in out.splitlines() if line.startswith("## ")] == list(METHODS)
    assert f"all {len(METHODS)} of them" in " ".join(out.split())
    rows = [line.split(" | ") for line in table(infos)[2:]]
    assert sum(int(row[1]) for row in rows) == len(METHODS)
    assert all(name in KINDS for name in {one.kind for one in infos})
    (oracle,) = [part for part in out.split("\n## ") if part.startswith("oracle\n")]
    assert mentions(" ".join(oracle.split()), "Rokvic", "IJCNN 2025", "(../plugins/oracle.py)")
    for one in infos:
        for parameter in one.parameters:
            assert f"`{parameter.name}=" in out


def test_what_stands_on_the_page_cannot_break_it() -> None:
    odd = WrittenParameter("x", "int | None", "'a|b'", "one\n  two")
    told = MethodInfo("odd", "A | <B>.", "P,\nQ*", 0, "a|b", (), (odd,), {}, "Text.", "d 1")
    assert table([told])[-1] == "| a\\|b | 1 | - | [odd](#odd) |"
    assert "A | \\<B>. *P, Q\\**." in page([told])
    assert "Settings: `x='a|b'`." in page([told])


@pytest.mark.parametrize(
    ("words", "line"),
    [(("list", "method"), "unknown kind 'method'; did you mean 'methods'? (installed: ")],
)
def test_what_cannot_be_listed_is_one_line(typed: Typed, words: list[str], line: str) -> None:
    code, out, errors = typed(*words)
    assert (code, out) == (1, "")
    assert errors.startswith(f"flbench: {line}")
    assert errors.count("\n") == 1


def test_plugins_are_methods_as_in_run(typed: Typed) -> None:
    assert typed("list", "plugins") == typed("list", "plugin") == typed("list", "methods")


def test_the_documentation_of_methods_is_what_they_say() -> None:
    built_in = page([method_info(entry) for entry in METHODS.values()])
    current = PAGE.read_bytes() == built_in.encode()
    assert current, "stale; type: python docs/tools/methods_page.py > docs/methods.md"


def test_the_page_of_suites_is_current() -> None:
    found = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")
    assert found == suites_page(), "stale; type: python docs/tools/suites_page.py > docs/suites.md"
    for kind in ("suites", "studies"):
        assert all(f"| `{name}` |" in found for name in entries(kind))
