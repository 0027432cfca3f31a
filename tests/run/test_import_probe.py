# ruff: noqa: E501 - tables of texts, and of what is said of them
"""Broken plugins: what metadata show, what `flbench list --load` and a run say of the rest."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mentions import mention, mentioning, mentions
from toy import Play, Typed, install

from flbench import UserError
from flbench.errors import PluginError
from flbench.plugin.registry import KINDS, Entry, diagnose, entries, find, load_entry, source_file

GOOD = """\"\"\"A sound method.\"\"\"
from dataclasses import dataclass
from flbench import hookimpl

@dataclass(frozen=True)
class Sound:
    @hookimpl
    def cluster(self, state, ctx): ...

    @hookimpl(specname="aggregate")
    def mean(self, upload, size=3, *, more=None): ...
"""
HOOK = GOOD.replace("Sound", "Odd")

# name -> entry point, what its metadata show to be wrong
METADATA: dict[str, tuple[str, str]] = {
    "malformed": ("not a module", "its entry point is 'not a module', expected 'module:object'"),
    "alone": ("sound", "its entry point is 'sound', expected 'module:object'"),
    "a/../b": ("sound:Sound", "its name is 'a/../b', expected letters, digits and . _ -"),
}

# name -> entry point, its module's text, what an import says of it
IMPORTS: dict[str, tuple[str, str | None, str]] = {
    "gone": ("gone_x:Odd", None, "ModuleNotFoundError: No module named 'gone_x'"),
    "inside": ("sound.deep:Odd", None, "ModuleNotFoundError: No module named 'sound.deep'"),
    "syntax": ("syntax_x:Odd", "x = 1\nclass Odd(:\n", "SyntaxError: invalid syntax (syntax_x.py, line 2)"),
    "latin": ("latin_x:Odd", "x = '\udce9'", "SyntaxError: (unicode error) 'utf-8' codec can't decode byte 0xe9"),
    "nobody": ("nobody_x:Odd", "class Old: ...\n", "AttributeError: module 'nobody_x' has no attribute 'Odd'"),
    "needs": ("needs_x:Odd", "import nowhere_to_be_found.part\nOdd = 1\n", "No module named 'nowhere_to_be_found'"),
    "private": ("private_x:Odd", "from flbench import ClientModul\nOdd = 1\n", "ImportError: cannot import name 'ClientModul' from 'flbench'"),
    "misspelt": ("misspelt_x:Odd", HOOK.replace("cluster", "agregate"), "misspelt: unknown hook 'agregate'; did you mean 'aggregate'?"),
    "renamed": ("renamed_x:Odd", HOOK.replace('"aggregate"', '"mean"'), "renamed: unknown hook 'mean'"),
    "argument": ("argument_x:Odd", HOOK.replace("state, ctx", "score"), "{'score'} are declared in the hookimpl but can not be found in the hookspec"),
    "thawed": ("thawed_x:Odd", HOOK.replace("(frozen=True)", ""), "method 'thawed': thawed_x:Odd is not a frozen dataclass"),
    "function": ("function_x:Odd", "def Odd(): ...\n", "method 'function': function_x:Odd is not a frozen dataclass"),
}  # fmt: skip


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of broken methods, and a sound one."""
    folder = tmp_path / "site"
    points = "[flbench.methods]\nsound = sound:Sound\n"
    points += "".join(f"{name} = {value[0]}\n" for name, value in (METADATA | IMPORTS).items())
    install(folder, "flbench-odd", points, sound=GOOD)
    for value, text, _ in IMPORTS.values():
        if text is not None:
            file = folder / f"{value.partition(':')[0]}.py"
            file.write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    for name in [name for name in sys.modules if name.endswith("_x") or name == "sound"]:
        del sys.modules[name]


@pytest.mark.usefixtures("broken")
def test_metadata_that_are_wrong_are_found_without_an_import() -> None:
    found = entries("methods")
    assert {name: diagnose(found[name]) for name in METADATA} == {
        name: reason for name, (_, reason) in METADATA.items()
    }
    assert {name for name in IMPORTS if diagnose(found[name])} == set()
    assert not {"gone_x", "needs_x", "sound"} & set(sys.modules)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", METADATA | IMPORTS)
def test_a_run_that_names_what_is_broken_is_one_line(name: str, play_toy: Play) -> None:
    with pytest.raises(UserError) as caught:
        play_toy(name, rounds=1)
    line = str(caught.value)
    assert (METADATA | IMPORTS)[name][-1] in line
    assert "\n" not in line
    assert name in line


@pytest.mark.usefixtures("broken")
def test_what_is_sound_is_not_called_broken(play_toy: Play) -> None:
    assert diagnose(entries("methods")["sound"]) == ""
    assert play_toy("sound", rounds=1).said == []
    for kind in KINDS:
        for entry in entries(kind).values():
            assert entry.distribution != "flbench" or diagnose(entry) == "", entry


@pytest.mark.slow
@pytest.mark.usefixtures("broken")
def test_the_list_shows_what_is_broken_and_goes_on(typed: Typed) -> None:
    code, out, errors = typed("list", "methods")
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    for name, (_, reason) in METADATA.items():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {name} "))
        assert next(s for s in map(str.strip, lines[at + 1 :]) if s[:8] == "broken: ")[8:] == reason
    assert out.count("broken: ") == len(METADATA)
    assert "\n  pfedlia " in out
    rows = json.loads(typed("list", "--json")[1])["methods"]
    assert {row["name"] for row in rows if row["broken"]} == {*METADATA}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("broken")
def test_the_list_says_what_imports_show(typed: Typed) -> None:
    rows = json.loads(typed("list", "methods", "--load", "--json")[1])["methods"]
    reasons = {row["name"]: row["broken"] for row in rows if row["broken"]}
    assert set(reasons) == {*METADATA, *IMPORTS}, "and no other method"
    for name, (_, _, reason) in IMPORTS.items():
        assert reason in reasons[name]


@pytest.mark.slow
def test_sinks_and_toml_files_are_loaded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    points = "[flbench.sinks]\nodd = odd_s:Odd\nthief = odd_s:Thief\n"
    points += "[flbench.suites]\nodd = odd_s:odd\n"
    code = "from pathlib import Path\nodd = Path(__file__).with_name('odd.toml')\n"
    code += "import flbench\nclass Odd:\n    @flbench.hookimpl\n    def round_ended(self): ...\n"
    code += "class Thief:\n    @flbench.hookimpl\n    def plan(self): ...\n"
    install(tmp_path / "site", "odd-things", points, odd_s=code)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for text, reason in (
        (b"name = \n", "odd.toml: Invalid value (at line 1, column 8)"),
        (b"name = '\xe9'", "UnicodeDecodeError: 'utf-8' codec"),
    ):
        (tmp_path / "site" / "odd.toml").write_bytes(text)
        rows = json.loads(typed("list", "suites", "--load", "--json")[1])["suites"]
        (why,) = [row["broken"] for row in rows if row["broken"]]
        assert reason in why
    rows = json.loads(typed("list", "sinks", "--load", "--json")[1])["sinks"]
    odd, thief = [row["broken"] for row in rows if row["broken"]]
    assert odd == mentioning("odd", "round_ended")
    assert mentions(thief, "thief.plan", "thief", "sink", "plan")
    (tmp_path / "site" / "odd.toml").write_text("name = \n")
    code_, _, errors = typed("run", "-p", "fedavg", "-s", "odd")
    assert (code_, errors.count("\n")) == (1, 1)
    assert "Invalid value" in errors


@pytest.mark.usefixtures("broken")
def test_the_command_that_names_it_writes_nothing(typed: Typed) -> None:
    code, out, errors = typed("run", "-p", "fedavg,alone", "-s", "iid", "--rounds", "1")
    assert (code, out) == (1, "")
    reason = METADATA["alone"][1]
    assert errors == mentioning("alone", "flbench-odd", "1.0", reason)
    assert not Path("flbench-results").exists()


def test_modules_are_found_where_python_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "acme_space" / "part"
    deep.mkdir(parents=True)
    (deep / "__init__.py").write_text("")
    (deep / "own.py").write_text("")
    (deep / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    (tmp_path / "acme_space" / "bare").mkdir()
    (tmp_path / "acme_space" / "bare" / "own.py").write_text("")
    (tmp_path / "acme_moves").mkdir()
    (tmp_path / "acme_moves" / "__init__.py").write_text("__path__.append('elsewhere')\n")
    (tmp_path / "acme_moves" / "own.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def at(value: str) -> Path | None:
        return source_file(Entry("datasets", "x", value, "d", "1"))

    assert at("acme_space.part.own:Odd") == deep / "own.py"
    assert at("acme_space.part:own") == deep / "__init__.py"
    assert at("acme_space.bare.own:Odd") == tmp_path / "acme_space" / "bare" / "own.py"
    assert at("acme_space.part.fast:Odd") is None, "compiled"
    assert at("acme_moves.own:Odd") is None, "the package looks for its parts itself"
    for value in ("acme_space.gone:Odd", "acme_space.bare:x", "math:pi", "sys:path", "json.decoder.deep:x", "?"):  # fmt: skip
        assert at(value) is None


def test_a_list_of_entry_points_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    install(
        site, "no-value", "[flbench.methods]\n# mine\nlonely\nsound = sound:Sound\n", sound=GOOD
    )
    install(site, "no-text", "[flbench.methods]\n")
    (site / "no_text-1.0.dist-info" / "entry_points.txt").write_bytes(
        b"[flbench.methods]\n\xff=a:b"
    )
    install(site, "no-metadata", "[flbench.methods]\nunnamed = sound:Sound\n")
    (site / "no_metadata-1.0.dist-info" / "METADATA").unlink()
    install(site, "no-letters", "[flbench.methods]\nunread = sound:Sound\n")
    (site / "no_letters-1.0.dist-info" / "METADATA").write_bytes(b"Name: \xff\n")
    monkeypatch.syspath_prepend(str(site))
    known = entries("methods")
    assert "version" in diagnose(known["unread"])
    assert diagnose(known["lonely"]) == mentioning("module:object")
    assert diagnose(known["sound"]) == ""
    assert "version" in diagnose(known["unnamed"])
    assert "pfedlia" in known
    with pytest.raises(PluginError, match=mention("lonely", "no-value")):
        load_entry(known["lonely"])


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        ("odd-one", "odd-two", True),
        ("odd-one", "Odd_One", True),  # one name by the rules of package indexes
        ("odd-one", "odd-one", False),  # installed twice: Python imports what lies first
    ],
)
def test_a_name_that_two_packages_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, taken: bool
) -> None:
    for folder, name in (("one", first), ("two", second)):
        install(tmp_path / folder, name, f"[flbench.methods]\nodd = {folder}_n:Odd\n",
                **{f"{folder}_n": GOOD.replace("Sound", "Odd")})  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path / "two"))
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    both = f"{first} 1.0 and {second} 1.0; uninstall one"
    assert diagnose(entries("methods")["odd"]) == (
        f"two packages offer it: {both}" if taken else ""
    )
    if taken:
        with pytest.raises(UserError) as caught:
            find("methods", "odd")
        assert str(caught.value) == mentioning("odd", both)
    else:
        assert find("methods", "odd").value == "one_n:Odd"


def test_two_versions_in_one_place_are_two_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "odd-one", "[flbench.methods]\nodd = odd_n:Odd\n")
    other = tmp_path / "odd_one-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-one\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[flbench.methods]\nodd = odd_n:Odd\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    why = diagnose(entries("methods")["odd"])
    assert {"odd-one 1.0", "odd-one 2.0"} <= set(re.findall(r"odd-one \d\.\d", why))


@pytest.mark.parametrize(
    ("version", "valid"), [("1.0", True), ("2.1.dev3+local", True), ("soon", False), ("", False)]
)
def test_a_version_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, valid: bool
) -> None:
    install(tmp_path / "s", "odd", "[flbench.datasets]\nodd = odd_v:x\n", odd_v="x = len\n")
    text = "Metadata-Version: 2.1\nName: odd\n" + (f"Version: {version}\n" if version else "")
    (tmp_path / "s" / "odd-1.0.dist-info" / "METADATA").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "s"))
    monkeypatch.delitem(sys.modules, "odd_v", raising=False)
    entry = entries("datasets")["odd"]
    assert (diagnose(entry) == "") == valid
    if valid:
        assert load_entry(entry) is len
    else:
        with pytest.raises(PluginError, match=r"^dataset 'odd' of odd .*version"):
            load_entry(entry)
    sys.modules.pop("odd_v", None)
