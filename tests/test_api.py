"""The public names: documented, promised, and on the page."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy
import pytest
from promise import broken, version
from toy import Typed

import flbench
from flbench import api, hookspecs, reference
from flbench.api import Item
from flbench.deprecations import DEPRECATED, Going

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
NOW = Path(__file__).with_name("signatures.txt")
RELEASED = Path(__file__).with_name("signatures_released.txt")

ITEMS = [item for top in (*api.public(), *api.hooks()) for item in top.walk()]
CALLED = [item for item in ITEMS if item.kind in ("def", "class", "hook")]
TOOLS = ("averaging", "bank", "clustering", "curves", "personal", "scoring", "skew")


def named(items: Sequence[Item]) -> list[Any]:
    return [pytest.param(item, id=f"{item.kind}-{item.name}") for item in items]


def thing(item: Item) -> Any:
    """The object itself, imported."""
    if item.kind == "hook":
        return getattr(hookspecs, item.name)
    first, *rest = item.name.split(".")
    found = getattr(flbench, first, None) or importlib.import_module(f"flbench.{first}")
    for part in rest:
        found = getattr(found, part)
    return found


# --- read from the source ---------------------------------------------------------------------


def test_every_public_name_is_found_where_it_is_defined() -> None:
    tops = {item.name for item in api.public()} - set(api.BESIDE)
    assert tops == set(flbench.__all__) - {"__version__"}
    homes = {item.name: item.home.removeprefix("flbench.") for item in api.public()}
    served = {name: flbench._HOME_OF.get(name, name) for name in tops}
    assert {name: home.split(".")[0] for name, home in homes.items() if name in tops} == served, (
        "in flbench/__init__.py a name stands twice: in the block for type checkers and in _HOMES"
    )
    with pytest.raises(LookupError, match=r"flbench\.state defines no Tensor"):
        api.find("flbench.state", "Tensor")


@pytest.mark.parametrize("item", named(CALLED))
def test_what_is_read_is_what_python_sees(item: Item) -> None:
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "positional",
        inspect.Parameter.POSITIONAL_OR_KEYWORD: "plain",
        inspect.Parameter.VAR_POSITIONAL: "rest",
        inspect.Parameter.KEYWORD_ONLY: "named",
        inspect.Parameter.VAR_KEYWORD: "options",
    }
    target = thing(item)
    if item.kind == "class" and "__init__" not in vars(target) and issubclass(target, Exception):
        assert not item.parameters
        return
    seen = [*inspect.signature(target).parameters.values()]
    seen = seen[1:] if seen and seen[0].name == "self" else seen
    read = [(one.name, one.kind, one.default is not None) for one in item.parameters]
    assert read == [(p.name, kinds[p.kind], p.default is not p.empty) for p in seen]


def test_every_way_of_taking_a_parameter_is_written_as_python_would() -> None:
    def told(code: str) -> str:
        (node,) = ast.parse(f"def f({code}): ...").body
        assert isinstance(node, ast.FunctionDef)
        return ", ".join(api.listed(api.parameters(node.args)))

    for code in (
        "",
        "a, b: int = 1",
        "a, /, b, *c: str, d, e: int = 2, **f: int",
        "*, a",
        "a=1, /",
        "**f",
        "*c, d=3",
    ):
        assert told(code).replace(" = ", "=") == code.replace(" = ", "=")


def test_what_a_class_offers_is_read_with_its_members() -> None:
    code = """
@dataclass(frozen=True)
class Box(Lid):
    size: int
    notes: list[str] = field(default_factory=list)
    kind: ClassVar[str] = "box"
    '''What it is.'''
    made: ClassVar[list[str]] = [one for one in ("a", "b")]
    _hidden: int = 0

    @cached_property
    def area(self) -> int: ...
    @classmethod
    def of(cls, name: str) -> Box: ...
    @staticmethod
    def add(one: int, *more: int) -> int: ...
    def open(self, *, wide: bool = True) -> None: ...
    def _lock(self) -> None: ...
"""
    (node,) = ast.parse(code).body
    assert isinstance(node, ast.ClassDef)
    assert [item.signature for item in api._class("Box", "flbench.skew", node).walk()] == [
        "Box(size: int, notes: list[str] = list()) < Lid",
        'Box.kind: ClassVar[str] = "box"',
        "Box.made: ClassVar[list[str]]",
        "Box.area: int",
        "Box.of(name: str) -> Box",
        "Box.add(one: int, *more: int) -> int",
        "Box.open(*, wide: bool = True) -> None",
    ]
    assert api._class("Box", "flbench.skew", node).members[0].doc == "What it is."


def test_no_version_of_python_changes_what_is_read() -> None:
    """Annotations are written by `ast.unparse`: no line breaks, no quotes within quotes."""
    assert not [item.name for item in ITEMS if "\n" in item.signature or "'" in item.signature]


# --- documented -------------------------------------------------------------------------------

ARRAY = re.compile(r"\b(Tensor|NDArray|Floats|Labels|Counts|Indices)\b")
SHAPED = re.compile(r"\bshape\b|\bshapes\b|\bscalar\b|\(\w+(, \w+)*,?\)|see `", re.IGNORECASE)
PUBLIC = {item.name.rpartition(".")[2] for item in ITEMS if item.kind in ("class", "value")}
PLAIN = PUBLIC | {"None", "nn.Module"}
"""Types that explain themselves."""
KEYS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def told_of(item: Item, name: str) -> str:
    """What is said of a parameter: its entry, or the sentences that name it."""
    if item.name == "Result":
        return "".join(re.findall(rf"^\| `{name}` \|.+$", KEYS, re.MULTILINE))
    doc = reference.read(item.doc)
    entry = doc.entries("Args", "Attributes").get(name, "")
    sentences = re.split(r"(?<=[.;]) ", " ".join(item.doc.split()))
    return entry or " ".join(one for one in sentences if re.search(rf"`{name}\b", one))


def undocumented(item: Item) -> Iterator[str]:
    """What a docstring leaves open."""
    doc = reference.read(item.doc)
    if not item.doc:
        yield f"{item.name} has no docstring"
        return
    for one in item.parameters:
        told, array = told_of(item, one.name), ARRAY.search(one.type.partition("Callable")[0])
        if not told and not set(one.type.split(" | ")) <= PLAIN:
            yield f"{item.name}: '{one.name}' is not explained"
        elif array and not SHAPED.search(told):
            yield f"{item.name}: the shape of '{one.name}' is not told"
    gives = item.result if item.kind in ("def", "value") else ""
    if ARRAY.search(gives) and not SHAPED.search(doc.parts.get("Returns", "") + doc.text):
        yield f"{item.name}: the shape of what it returns is not told"


def raised(item: Item) -> set[str]:
    """The errors a function raises itself, or through a private function of its module."""
    if not isinstance(item.node, ast.FunctionDef):
        return set()
    private = {n.name: n for n in api._tree(item.home).body if isinstance(n, ast.FunctionDef)}
    calls = [n.func for n in ast.walk(item.node) if isinstance(n, ast.Call)]
    names = {name.id for name in calls if isinstance(name, ast.Name) and name.id[0] == "_"}
    bodies = [item.node, *(private[name] for name in names if name in private)]
    errors = [n.exc for body in bodies for n in ast.walk(body) if isinstance(n, ast.Raise)]
    return {ast.unparse(e.func if isinstance(e, ast.Call) else e) for e in errors if e is not None}


@pytest.mark.parametrize("item", named(ITEMS))
def test_every_public_name_is_documented(item: Item) -> None:
    assert list(undocumented(item)) == []


@pytest.mark.parametrize("item", named(CALLED))
def test_every_error_a_public_function_raises_is_documented(item: Item) -> None:
    assert raised(item) <= set(reference.read(item.doc).entries("Raises"))


def test_the_tools_teach_by_an_example() -> None:
    told_by_others = {
        "clustering.optics", "clustering.optics_groups", "clustering.adopt_noise",
        "clustering.better_half", "clustering.threshold_sets", "clustering.dendrogram",
        "clustering.by_appearance", "clustering.bipartition",
        "member_mean", "shared_mean", "own_rows", "newcomers",
    }  # fmt: skip
    tools = [one for one in CALLED if one.home.removeprefix("flbench.") in TOOLS]
    silent = {
        one.name
        for one in tools
        if one.kind == "def" and "Example" not in reference.read(one.doc).parts
    }
    assert silent == told_by_others


def item_of(code: str) -> Item:
    """What is read from a function's code."""
    (node,) = ast.parse(code).body
    assert isinstance(node, ast.FunctionDef)
    return api._function("def", node.name, "flbench.skew", node)


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ("def f(): ...", "f has no docstring"),
        ('def f(x: Tensor):\n    """Do.\n\n    Args:\n        x: rows."""', "the shape of 'x'"),
        ('def f(k: int):\n    """Do it k times."""', "'k' is not explained"),
        ('def f() -> Tensor:\n    """Give rows."""', "the shape of what it returns"),
    ],
)
def test_what_a_docstring_leaves_open_is_found(code: str, lacks: str) -> None:
    (found,) = undocumented(item_of(code))
    assert lacks in found


def test_what_is_raised_is_found() -> None:
    code = 'def f():\n    """Do."""\n    _shares(1)\n    raise errors.UserError("no") from None'
    assert raised(item_of(code)) == {"errors.UserError", "ValueError"}
    told = 'def f(k: int) -> Tensor:\n    """Draw `k` numbers, shape (k,)."""\n    raise'
    assert (list(undocumented(item_of(told))), raised(item_of(told))) == ([], set())


# --- the page ---------------------------------------------------------------------------------


def test_the_page_is_current(typed: Typed) -> None:
    code, out, errors = typed("show", "api")
    assert (code, errors) == (0, "")
    assert PAGE.read_text(encoding="utf-8") == out, "stale; type: flbench show api > docs/api.md"


def test_the_page_has_a_heading_for_every_public_name_and_every_hook() -> None:
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^###+ `(.+)`$", text, re.MULTILINE)
    assert sorted(headings) == sorted(
        item.name for item in ITEMS if item.kind not in ("hook", "module")
    )
    assert [h.name for h in api.hooks()] == [
        name for name in re.findall(r"^(\w+)\(", text, re.MULTILINE) if hasattr(hookspecs, name)
    ]
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert re.findall(r"(?<!\\)[<*]\w", outside) == [], "nothing markdown would swallow"


# --- promised ---------------------------------------------------------------------------------


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_a_change_of_what_is_promised_is_seen(typed: Typed) -> None:
    code, out, errors = typed("show", "api", "--signatures")
    assert (code, errors) == (0, "")
    told = "look at the difference, then type: flbench show api --signatures > tests/signatures.txt"
    assert lines(NOW) == out.splitlines(), told


def test_what_the_last_release_promised_still_holds() -> None:
    assert list(broken(lines(RELEASED), lines(NOW))) == []


def test_the_released_snapshot_is_of_this_minor_version_or_the_one_before() -> None:
    name, released = lines(RELEASED)[0].split()
    major, minor = version(flbench.__version__)
    assert name == "flbench"
    before = version(released)
    assert before in ((major, minor), (major, minor - 1)) or (
        minor == 0 and before[0] == major - 1
    ), "at a release: cp tests/signatures.txt tests/signatures_released.txt"


PROMISED = [
    "flbench 0.2.0",
    "class Stage(kind: Kind, epochs: int = 1) < Base",
    "class ClientModule(net: nn.Module)",
    "def ClientModule.predict(x: Tensor) -> Tensor",
    "command flbench run PLACE! FILE --plugin/-p! --seed --plot/--no-plot",
    "def mean(rows: Tensor, weights: Tensor | None = None, *, way: str = 'a, b') -> Tensor",
    "deprecated old since 0.2 and goes in 0.3; use mean",
    "deprecated score() since 0.1 and goes in 0.3; use cluster",
    "deprecated plan(state) since 0.1 and goes in 0.3; use ctx",
    "deprecated late since 0.2 and goes in 0.4; use mean",
    "entry-points flbench.methods",
    "hook plan(state: State, ctx: Context) -> Sequence[Stage] | None",
    "hook score(state: State) -> Scores | None",
    "hook setup(ctx: Context) -> Setup | None",
    'type state.Scope = Literal["run", "model"]',
    "value Context.everybody: Tensor",
    'value Kind = Literal["train", "probe"]',
]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("flbench 0.2.0", "flbench 0.3.0"),
        ("epochs: int = 1)", "epochs: float = 2.0, name: str = '')"),
        ("weights: Tensor | None = None", "weights: Tensor | None = None, third: int = 3"),
        ("way: str = 'a, b'", "first: int = 1, way: str, **more: int".replace("str,", "str = '',")),
        ("ctx: Context) -> Seq", "ctx: Context, more: Upload) -> Seq"),
        ("< Base", "< Other, Base"),
        ('"probe"]', '"probe", "other"]'),
        ("PLACE! FILE", "PLACE FILE MORE"),
        ("--plugin/-p!", "--all --plugin/-p/--method"),
        ("type state", "def more(x: int)"),
    ],
)
def test_what_may_be_added(old: str, new: str) -> None:
    now = [line.replace(old, new) for line in PROMISED]
    assert now != PROMISED
    assert list(broken(PROMISED, now)) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("value Context.everybody: Tensor", "", "value Context.everybody is there: deprecate it"),
        ("entry-points flbench.methods", "", "entry-points flbench.methods is there: deprecate it"),
        ("hook setup(ctx: Context)", "hook set_up(ctx: Context)", "hook setup is there: deprecate"),
        (
            "(state: State, ctx: Context)",
            "(ctx: Context, state: State)",
            "hook plan takes (state, ",
        ),
        (
            "(state: State, ctx: Context)",
            "(state: State, now: int, ctx: Context)",
            "hook plan takes",
        ),
        ("hook setup(ctx: Context)", "hook setup(run: Context)", "hook setup takes (ctx) first"),
        (
            "kind: Kind, epochs",
            "kind: Kind, name: str = '', epochs",
            "class Stage takes (kind, epo",
        ),
        (
            "int = 1)",
            "int = 1, *, name: str)",
            "class Stage works without 'name': give it a default",
        ),
        ("epochs: int = 1", "epochs: int", "class Stage needs no 'epochs': give it its default"),
        ("< Base", "", "class Stage inherits from Base"),
        (
            "predict(x: Tensor)",
            "predict(x: Tensor, y: int = 1)",
            "ClientModule.predict is overridden",
        ),
        (", *, way: str = 'a, b'", "", "def mean takes 'way'"),
        (", *, way: str = 'a, b'", ", *, way: str = 'a', key: int", "def mean works without 'key'"),
        ('"probe"', '"other"', 'value Kind allows "probe"'),
        ('"model"]', '"client"]', 'type state.Scope allows "model"'),
        (" FILE", "", "command flbench run takes FILE at place 2"),
        ("PLACE! FILE", "FILE PLACE!", "command flbench run takes PLACE at place 1"),
        ("--plugin/-p!", "--plugin!", "command flbench run takes -p"),
        (" FILE", " FILE!", "command flbench run takes FILE at place 2"),
        ("--seed", "--seed!", "command flbench run works without --seed"),
        ("--seed", "--dose! --seed", "command flbench run works without --dose"),
    ],
)
def test_what_may_not_be_changed(old: str, new: str, told: str) -> None:
    now = [line.replace(old, new) for line in PROMISED]
    (found,) = broken(PROMISED, list(filter(None, now)))
    assert found.startswith("promised in flbench 0.2.0: ")
    assert told in found


def test_what_was_deprecated_may_go_when_its_time_has_come() -> None:
    kept = ["def old(x: int) -> int", "def late() -> int", "def curves.bent() -> bool"]
    promised = [*PROMISED, *kept, "deprecated curves.bent since 0.2 and goes in 0.3; use turned"]
    now = [line.replace("flbench 0.2.0", "flbench 0.3.0") for line in promised]
    now = [line for line in now if "hook score" not in line and "def old" not in line]
    now = [line for line in now if "def curves.bent" not in line]
    now = [line.replace("plan(state: State, ctx", "plan(ctx") for line in now]
    assert list(broken(promised, now)) == []
    (found,) = broken(promised, [line for line in now if "def late" not in line])
    assert "def late is there" in found
    early = [line.replace("flbench 0.3.0", "flbench 0.2.9") for line in now]
    assert len(list(broken(promised, early))) == 4


# --- deprecated -------------------------------------------------------------------------------


def allowed(name: str, going: Going, now: str) -> str:
    """What is wrong with a deprecation; "" = nothing."""
    (major, minor), gone = version(going.since), version(going.gone)
    if (major, minor) > version(now):
        return f"{name} warns since {going.since}, which is not out yet: this is {now}"
    if gone < ((0, minor + 1) if major == 0 else (major + 1, 0)):
        return f"{name} goes in {going.gone}: it must warn longer (docs/stability.md)"
    if gone <= version(now):
        return f"{name} goes in {going.gone}, which this is: delete it and its entry"
    return ""


def test_deprecations_keep_their_time() -> None:
    wrong = [allowed(name, going, flbench.__version__) for name, going in DEPRECATED.items()]
    assert list(filter(None, wrong)) == []


@pytest.mark.parametrize(
    ("since", "gone", "now", "told"),
    [
        ("0.2", "0.3", "0.2.0", ""),
        ("0.2", "1.0", "0.9.3", ""),
        ("1.4", "2.0", "1.9.0", ""),
        ("0.2", "0.3", "0.3.0", "which this is"),
        ("0.2", "0.3", "1.0.0", "which this is"),
        ("0.2", "0.2", "0.2.0", "must warn longer"),
        ("1.4", "1.6", "1.5.0", "must warn longer"),
        ("0.4", "0.6", "0.3.9", "not out yet"),
    ],
)
def test_how_long_a_deprecation_takes(since: str, gone: str, now: str, told: str) -> None:
    found = allowed("old", Going("new", since, gone), now)
    assert told in found
    assert bool(told) == bool(found)


def test_an_old_name_leads_to_the_new_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from flbench.clustering import cut

    monkeypatch.setitem(DEPRECATED, "old", Going("member_mean", "0.2", "0.4"))
    monkeypatch.setitem(DEPRECATED, "sever", Going("clustering.cut", "0.2", "0.4"))
    monkeypatch.setitem(DEPRECATED, "take", Going("an index", "0.2", "0.4", home="flbench.bank"))
    told = "^flbench: old is deprecated since 0.2 and goes in 0.4; use member_mean$"
    with pytest.warns(DeprecationWarning, match=told) as caught:
        assert flbench.old is flbench.member_mean
    assert caught[0].filename == __file__, "the line that uses it is shown"
    with pytest.warns(DeprecationWarning, match="use clustering.cut"):
        assert flbench.sever is cut
    with pytest.warns(DeprecationWarning, match="use an index"):
        assert flbench.take.__module__ == "flbench.bank"
    assert not {"old", "sever", "take"} & {*dir(flbench), *flbench.__all__}


def test_deprecations_stand_in_the_snapshot(monkeypatch: pytest.MonkeyPatch, typed: Typed) -> None:
    monkeypatch.setitem(DEPRECATED, "old", Going("member_mean", "0.2", "0.4"))
    out = typed("show", "api", "--signatures")[1]
    assert "\ndeprecated old since 0.2 and goes in 0.4; use member_mean\n" in out


def marked(module: object) -> dict[str, Warning]:
    """The warnings that hooks carry: "hook()" and "hook(argument)"."""
    found: dict[str, Warning] = {}
    for name, function in vars(module).items():
        options = getattr(function, "flbench_spec", None)
        if options is not None:
            found |= {f"{name}()": options["warn_on_impl"]} if options["warn_on_impl"] else {}
            arguments = options["warn_on_impl_args"] or {}
            found |= {f"{name}({argument})": told for argument, told in arguments.items()}
    return found


def test_what_is_deprecated_within_a_module_warns_itself() -> None:
    inside = [name for name in DEPRECATED if "." in name and "(" not in name]
    sources = {name: inspect.getsource(getattr(flbench, name.split(".")[0])) for name in inside}
    silent = [name for name, text in sources.items() if f'DEPRECATED["{name}"]' not in text]
    assert silent == []


def test_every_deprecated_hook_is_marked_and_every_mark_stands_in_the_table() -> None:
    table = {name: str(going.warning(name)) for name, going in DEPRECATED.items() if "(" in name}
    assert {name: str(told) for name, told in marked(hookspecs).items()} == table


def test_whoever_implements_a_deprecated_hook_is_told() -> None:
    whole, part = Going("plan", "0.2", "0.4"), Going("ctx.round", "0.2", "0.4")

    class Specs:
        @hookspecs.hookspec(warn_on_impl=whole.warning("score()"))
        def score(self, state: object) -> None: ...

        @hookspecs.hookspec(warn_on_impl_args={"phase": part.warning("cluster(phase)")})
        def cluster(self, state: object, phase: str) -> None: ...

    class Old:
        @flbench.hookimpl
        def score(self, state: object) -> None: ...

        @flbench.hookimpl
        def cluster(self, phase: str) -> None: ...

    class New:
        @flbench.hookimpl
        def cluster(self, state: object) -> None: ...

    assert {*marked(Specs)} == {"score()", "cluster(phase)"}
    manager = pluggy.PluginManager("flbench")
    manager.add_hookspecs(Specs)
    manager.register(New())  # and is told nothing: warnings are errors here
    with pytest.warns(DeprecationWarning, match="goes in") as caught:
        manager.register(Old())
    assert sorted(str(one.message) for one in caught) == [
        "flbench: cluster(phase) is deprecated since 0.2 and goes in 0.4; use ctx.round",
        "flbench: score() is deprecated since 0.2 and goes in 0.4; use plan",
    ]


# --- imported ---------------------------------------------------------------------------------


def test_a_star_brings_every_public_name() -> None:
    module = ModuleType("star")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("from flbench import *", vars(module))
    assert set(flbench.__all__) <= set(vars(module))
    assert vars(module)["Membership"] is flbench.Membership


@pytest.mark.slow
@pytest.mark.parametrize("words", [("show", "api"), ("show", "api", "--signatures")])
def test_reading_the_public_names_imports_none_of_them(words: tuple[str, ...]) -> None:
    code = (
        "import sys; from flbench.cli import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        "print([n for n in ('torch', 'flbench.state') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
