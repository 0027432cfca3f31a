# ruff: noqa: E501 - tables of texts, and of what is said of them
"""What is broken is said without importing it, and the rest goes on: see docs/strangers.md."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from toy import Play, Typed, install

from flbench import UserError
from flbench.errors import PluginError
from flbench.plugin.diagnostics import diagnose, hooks
from flbench.plugin.entry import KINDS, Entry
from flbench.plugin.registry import entries, find, load_entry, source_file

GOOD = """\"\"\"A sound method.\"\"\"
from dataclasses import dataclass
from flbench import hookimpl

__version__ = "1.0.0"

@dataclass(frozen=True)
class Sound:
    @hookimpl
    def cluster(self, state, ctx): ...

    @hookimpl(specname="aggregate")
    def mean(self, upload, size=3, *, more=None): ...
"""
HOOK = GOOD.replace("Sound", "Odd").replace('__version__ = "1.0.0"\n', "")

# name -> the rows of the docs it shows, entry point, its module's text, what is said of it
BROKEN: dict[str, tuple[str, str, str | None, str]] = {
    "gone": ("its module is missing", "gone_x:Odd", None, "there is no module 'gone_x'"),
    "inside": ("its module is missing", "sound.deep:Odd", None, "there is no module 'sound.deep'"),
    "syntax": ("its text is no Python", "syntax_x:Odd", "x = 1\nclass Odd(:\n", "syntax_x.py, line 2: invalid syntax"),
    "latin": ("its text is no Python", "latin_x:Odd", "x = '\udce9'", "latin_x.py, line 1: (unicode error) 'utf-8' codec can't decode byte 0xe9"),
    "zero": ("its text is no Python", "zero_x:Odd", "\0", "its module: source code string cannot contain null bytes"),
    "nobody": ("its module lacks the object", "nobody_x:Odd", "class Old: ...\n", "nobody_x.py defines no 'Odd'; did you mean 'Old'?"),
    "needs": ("it imports what is not installed", "needs_x:Odd", "import nowhere_to_be_found.part\nOdd = 1\n", "needs_x.py imports nowhere_to_be_found, which is not installed"),
    "from": ("it imports what is not installed", "from_x:Odd", "from nowhere_to_be_found import Odd\n", "from_x.py imports nowhere_to_be_found, which is not installed"),
    "private": ("it imports what flbench does not offer", "private_x:Odd", "from flbench import ClientModul\nOdd = 1\n", "has no 'ClientModul'; did you mean 'ClientModule'?"),
    "misspelt": ("it misspells a hook", "misspelt_x:Odd", HOOK.replace("cluster", "agregate"), "there is no hook 'agregate'; did you mean 'aggregate'?"),
    "renamed": ("it misspells a hook", "renamed_x:Odd", HOOK.replace('"aggregate"', '"mean"'), "there is no hook 'mean'"),
    "outside": ("a hook of it stands outside its class", "outside_x:Odd", HOOK + "\n@hookimpl\ndef score(self, upload): ...\n", "the hook 'score' stands outside the class Odd: indent it"),
    "argument": ("it asks a hook for what it does not give", "argument_x:Odd", HOOK.replace("state, ctx", "score"), "cluster takes 'score'; did you mean 'scores'?"),
    "fixed": ("it asks a hook for what it does not give", "fixed_x:Odd", HOOK.replace("@hookimpl\n    def cluster(self, state", "@hookimpl\n    @staticmethod\n    def cluster(score"), "cluster takes 'score'; did you mean 'scores'?"),
    "thawed": ("it is no frozen dataclass", "thawed_x:Odd", HOOK.replace("(frozen=True)", ""), "Odd is no frozen dataclass: write @dataclass(frozen=True) above its class"),
    "bare": ("it is no frozen dataclass", "bare_x:Odd", "class Odd: ...\n", "Odd is no frozen dataclass: write @dataclass(frozen=True) above its class"),
    "function": ("it is no frozen dataclass", "function_x:Odd", "def Odd(): ...\n", "Odd is no frozen dataclass: write @dataclass(frozen=True) above its class"),
    "malformed": ("its entry point names nothing", "not a module", None, "its entry point is 'not a module', expected 'module:object'"),
    "alone": ("its entry point names nothing", "bare_x", None, "its entry point is 'bare_x', expected 'module:object'"),
    "a/../b": ("its name cannot be typed", "function_x:Odd", None, "its name is 'a/../b', expected letters, digits and . _ -"),
    "liar": ("it lies about its version", "liar_x:Odd", GOOD.replace("1.0.0", "2.0").replace("Sound", "Odd"), "its package says version 1.0, liar_x.py says '2.0': make them one and install it again"),
}  # fmt: skip


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of broken methods, and a sound one."""
    folder = tmp_path / "site"
    points = "[flbench.methods]\nsound = sound:Sound\n"
    points += "".join(f"{name} = {value}\n" for name, (_, value, _, _) in BROKEN.items())
    install(folder, "flbench-odd", points, sound=GOOD)
    for _, value, text, _ in BROKEN.values():
        if text is not None:
            file = folder / f"{value.partition(':')[0]}.py"
            file.write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield folder
    for name in [name for name in sys.modules if name.endswith("_x") or name == "sound"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_said_without_importing_it(strangers: Path, name: str) -> None:
    assert BROKEN[name][3] in diagnose(entries("methods")[name])
    assert "\n" not in diagnose(entries("methods")[name])
    assert not {f"{name}_x", "sound"} & set(sys.modules)


@pytest.mark.parametrize("name", BROKEN)
def test_a_run_that_names_what_is_broken_is_one_line(
    strangers: Path, name: str, play_toy: Play
) -> None:
    with pytest.raises(UserError) as caught:
        play_toy(name, rounds=1)
    told = str(caught.value)
    assert "\n" not in told
    assert name in told
    if name not in (
        "misspelt",
        "renamed",
        "argument",
        "fixed",
        "thawed",
        "bare",
        "function",
        "alone",
    ):
        assert "flbench-odd 1.0" in told, "package and version"


def test_what_is_sound_is_not_called_broken(strangers: Path, play_toy: Play) -> None:
    assert diagnose(entries("methods")["sound"]) == ""
    assert play_toy("sound", rounds=1).said == []
    for kind in KINDS:
        for entry in entries(kind).values():
            assert entry.distribution != "flbench" or diagnose(entry) == "", entry


@pytest.mark.slow
def test_the_list_shows_what_is_broken_and_goes_on(strangers: Path, typed: Typed) -> None:
    code, out, errors = typed("list", "methods")
    assert (code, errors) == (0, "")
    lines = out.splitlines()
    for name, (*_, reason) in BROKEN.items():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"  {name} "))
        told = next(line for line in lines[at + 1 :] if line.strip().startswith("broken: "))
        assert reason in told, name
    assert out.count("broken: ") == len(BROKEN)
    assert "\n  pfedlia " in out
    rows = json.loads(typed("list", "--json")[1])["methods"]
    assert {row["name"] for row in rows if row["broken"]} == {*BROKEN}


def test_the_command_that_names_it_writes_nothing(strangers: Path, typed: Typed) -> None:
    code, out, errors = typed("run", "-p", "fedavg,liar", "-s", "iid", "--rounds", "1")
    assert (code, out) == (1, "")
    assert errors == (
        "flbench: method 'liar' of flbench-odd 1.0: its package says version 1.0, liar_x.py says"
        " '2.0': make them one and install it again\n"
    )
    assert not Path("flbench-results").exists()


# name -> a text that leaves open what an import finds: nothing is claimed
OPEN = {
    "elsewhere": "from json import dumps as Odd\n",
    "star": "from json import *\n",
    "getattr": "def __getattr__(name): ...\n",
    "globals": "globals()['Odd'] = 1\n",
    "branch": "if 1 > 2:\n    Odd = 1\nelse:\n    class Odd: ...\n",
    "walrus": "print(Odd := 3)\n",
    "loop": "for Odd in range(3): ...\n",
    "optional": "try:\n    import nowhere_to_be_found\nexcept ImportError:\n    pass\nOdd = 1\n",
    "typing": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nowhere_x\nOdd = 1\n",
    "path": "import sys\nsys.path.append('lib')\nimport nowhere_to_be_found\nOdd = 1\n",
    "heir": "from json import JSONDecoder\nclass Odd(JSONDecoder): ...\n",
    "wrapped": "import json\n@json.loads\nclass Odd: ...\n",
    "other": "import pluggy\nhookimpl = pluggy.HookimplMarker('x')\nfrom dataclasses import dataclass\n"
    "@dataclass(frozen=True)\nclass Odd:\n    @hookimpl\n    def mine(self): ...\n",
    "maybe": HOOK.replace("@hookimpl\n", "@hookimpl(optionalhook=True)\n").replace("cluster", "x"),
    "static": HOOK.replace("@hookimpl\n    def cluster(self, ", "@hookimpl\n    @staticmethod\n    def cluster("),
    "made": "__version__ = '2' + '.0'\nclass Even: ...\nOdd = Even\n",
    "kwargs": "import dataclasses\nhow = {}\n@dataclasses.dataclass(**how)\nclass Odd: ...\n",
    "later": "class Odd: ...\nOdd = str(Odd)\n",
}  # fmt: skip


@pytest.mark.parametrize("name", OPEN)
def test_where_the_text_leaves_it_open_nothing_is_claimed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = f"[flbench.methods]\nodd = {name}_y:Odd\n"
    install(tmp_path / "site", "flbench-odd", point, **{f"{name}_y": OPEN[name]})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert diagnose(entries("methods")["odd"]) == ""


def test_modules_are_found_where_python_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "acme_space" / "part"
    deep.mkdir(parents=True)
    (deep / "__init__.py").write_text("import nowhere_to_be_found\n")
    (deep / "own.py").write_text("Odd = 1\n")
    (deep / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    (tmp_path / "acme_space" / "bare").mkdir()
    (tmp_path / "acme_space" / "bare" / "own.py").write_text("Odd = 1\n")
    (tmp_path / "acme_moves").mkdir()
    (tmp_path / "acme_moves" / "__init__.py").write_text("__path__.append('elsewhere')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def told(value: str) -> str:
        return diagnose(Entry("datasets", "x", value, "d", "1"))

    assert (
        source_file(Entry("datasets", "x", "acme_space.part.own:Odd", "d", "1")) == deep / "own.py"
    )
    needs = "part/__init__.py imports nowhere_to_be_found, which is not installed"
    assert told("acme_space.part.own:Odd") == told("acme_space.part:own") == needs
    assert told("acme_space.bare.own:Old").startswith("own.py defines no 'Old'")
    assert told("acme_space.part.fast:Odd") == "", "compiled"
    assert told("acme_space.gone:Odd") == "there is no module 'acme_space.gone'"
    assert told("acme_moves.gone:Odd") == "", "the package looks for its parts itself"
    assert told("math:pi") == told("sys:path") == told("zipimport:zipimporter") == ""
    assert told("json.decoder.deep:x") == "there is no module 'json.decoder.deep'"


def test_a_suite_that_is_no_toml_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    """Shows: its TOML does not parse."""
    code = "from pathlib import Path\nodd = Path(__file__).with_name('odd.toml')\n"
    install(tmp_path / "site", "odd-suites", "[flbench.suites]\nodd = odd_s:odd\n", odd_s=code)
    (tmp_path / "site" / "odd.toml").write_text("name = \n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert diagnose(entries("suites")["odd"]) == "odd.toml: Invalid value (at line 1, column 8)"
    code_, _, errors = typed("run", "-p", "fedavg", "-s", "odd")
    assert (code_, errors.count("\n")) == (1, 1)
    assert "Invalid value" in errors
    (tmp_path / "site" / "odd.toml").write_bytes(b"name = '\xe9'")
    assert "utf-8" in diagnose(entries("suites")["odd"])


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
    assert diagnose(known["lonely"]) == "its entry point is '', expected 'module:object'"
    assert diagnose(known["sound"]) == ""
    assert "version" in diagnose(known["unnamed"])
    assert "pfedlia" in known
    with pytest.raises(PluginError, match=r"method 'lonely' of no-value 1.0.*module:object"):
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
    """Shows: it takes a name that is taken."""
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
        assert str(caught.value) == f"two packages offer the method 'odd': {both}"
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
    told = diagnose(entries("methods")["odd"])
    assert {"odd-one 1.0", "odd-one 2.0"} <= set(re.findall(r"odd-one \d\.\d", told))


@pytest.mark.parametrize(
    ("version", "module", "lies"),
    [
        ("1.0", "__version__ = '1'\n", False),
        ("1.0", "__version__: str = '1.1'\n", True),
        ("1.0", "__version__ = 'soon'\n", True),
        ("1.0", "__version__ = '1.1'\n__version__ = '1.0'\n", False),  # not once and for all
        ("1.0", "if True:\n    __version__ = '1.1'\n", False),
        ("soon", "", True),
        ("", "", True),
    ],
)
def test_versions_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, module: str, lies: bool
) -> None:
    install(
        tmp_path / "s", "odd", "[flbench.datasets]\nodd = odd_v:x\n", odd_v=f"{module}x = len\n"
    )
    told = "Metadata-Version: 2.1\nName: odd\n" + (f"Version: {version}\n" if version else "")
    (tmp_path / "s" / "odd-1.0.dist-info" / "METADATA").write_text(told)
    monkeypatch.syspath_prepend(str(tmp_path / "s"))
    monkeypatch.delitem(sys.modules, "odd_v", raising=False)
    entry = entries("datasets")["odd"]
    assert bool(diagnose(entry)) == lies
    if lies:
        with pytest.raises(PluginError, match=r"^dataset 'odd' of odd .*version"):
            load_entry(entry)
    else:
        assert load_entry(entry) is len
    sys.modules.pop("odd_v", None)


def test_the_hooks_that_are_read_are_those_that_are_there() -> None:
    import inspect

    from flbench.core import hookspecs

    real = {
        name: tuple(inspect.signature(function).parameters)
        for name, function in vars(hookspecs).items()
        if hasattr(function, "flbench_spec")
    }
    assert hooks() == real
    assert len(real) == 13
