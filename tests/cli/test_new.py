"""`flbench new`: what is written, said and refused, and that nothing is half-written."""

from __future__ import annotations

import ast
import errno
import re
import shutil
import tomllib
from datetime import date
from pathlib import Path

import pytest
from mentions import mentioning, mentions
from toy import Typed, install, python

import flbench
from flbench.cli import new
from flbench.cli.new import (
    KINDS,
    METHODS,
    class_of,
    filled,
    paper_words,
    template,
    words,
)
from flbench.locks import locked_folder

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "plugins" / "template"

COMMON = {
    ".github/workflows/test.yml",
    ".gitignore",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "tests/test_big_step.py",
}
FILES = {kind: COMMON | {"flbench_big_step.py"} for kind in KINDS} | {
    "suite": COMMON
    | {f"flbench_big_step/{name}" for name in ("__init__.py", "py.typed", "big-step.toml")}
}
OFFERED = {
    "method": "flbench_big_step:BigStep",
    "suite": "flbench_big_step:suite",
    "dataset": "flbench_big_step:load",
    "model": "flbench_big_step:build",
    "sink": "flbench_big_step:BigStep",
}
RUN = "    flbench run --plugin fedavg --suite"
NEXT = {
    "method": "    flbench check big-step\n"
    "    flbench run --plugin big-step,fedavg --suite iid --rounds 5\n",
    "suite": f"    flbench show suite big-step\n{RUN} big-step --rounds 5\n",
    "dataset": f"    flbench data big-step --check\n{RUN} iid --dataset big-step --rounds 5\n",
    "model": f"{RUN} iid --set model=big-step --set model.width=64 --rounds 5\n",
    "sink": f"{RUN} iid --sink big-step --rounds 5\n",
}


def texts_of(folder: Path) -> dict[str, str]:
    """Every file below a folder, by path."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in found}


def project(texts: dict[str, str]) -> dict[str, object]:
    return tomllib.loads(texts["pyproject.toml"])["project"]


# --- what is written --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_complete_and_nothing_of_the_template_is_left(
    kind: str, typed: Typed, tmp_path: Path
) -> None:
    code, out, err = typed("new", "big-step", "--kind", kind, "--author", "Ada Lovelace")
    assert (code, err) == (0, "")
    assert out == (
        f"wrote flbench-big-step (the {kind} big-step, licence MIT); type next:\n\n"
        f"    cd flbench-big-step\n    pip install -e '.[test]'\n    pytest\n{NEXT[kind]}"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["flbench-big-step"]
    texts = texts_of(tmp_path / "flbench-big-step")
    assert set(texts) == FILES[kind]
    for place, text in texts.items():
        assert not re.search(rf"(?i)my[-_]?{kind}|The authors", f"{place}\n{text}"), place
        assert text.endswith("\n") or place.endswith("py.typed")
    told = project(texts)
    assert (told["name"], told["license"]) == ("flbench-big-step", "MIT")
    assert told["authors"] == [{"name": "Ada Lovelace"}]
    assert told["entry-points"] == {f"flbench.{kind}s": {"big-step": OFFERED[kind]}}
    breaks = int(flbench.__version__.split(".")[1]) + 1
    assert f"flbench>={flbench.__version__},<0.{breaks}" in told["dependencies"]
    assert f"Copyright (c) {date.today().year} Ada Lovelace\n" in texts["LICENSE"]
    module, _, name = OFFERED[kind].partition(":")
    (code_of,) = (texts[one] for one in (f"{module}.py", f"{module}/__init__.py") if one in texts)
    assert re.search(rf"^(class |def )?{name}\b", code_of, re.MULTILINE)


@pytest.mark.parametrize("options", [(), ("--author", " ")], ids=["none", "blank"])
def test_without_an_author_the_package_has_authors(
    options: tuple[str, ...], typed: Typed, tmp_path: Path
) -> None:
    assert typed("new", "big-step", *options)[0] == 0
    texts = texts_of(tmp_path / "flbench-big-step")
    assert project(texts)["authors"] == [{"name": mentioning("flbench-big-step", "authors")}]
    assert mentions(texts["LICENSE"], date.today().year, "The", "flbench-big-step")


def test_the_paper_is_the_one_that_is_given_or_none(typed: Typed, tmp_path: Path) -> None:
    given = ("--paper", "Lovelace, ICML 2031", "--year", "2031")
    assert typed("new", "big-step", *given)[0] == 0
    texts = texts_of(tmp_path / "flbench-big-step")
    code = texts["flbench_big_step.py"]
    assert '    paper: ClassVar[str] = "Lovelace, ICML 2031"\n' in code
    assert "    year: ClassVar[int] = 2031\n" in code
    assert "\n\nLovelace, ICML 2031.\n\n" in code
    assert typed("new", "small-step")[0] == 0
    texts = texts_of(tmp_path / "flbench-small-step")
    assert not re.search(r"paper|year|20\d\d", texts["flbench_small_step.py"])


@pytest.mark.parametrize("kind", METHODS)
def test_a_method_of_each_kind_is_written(kind: str, typed: Typed, tmp_path: Path) -> None:
    code, out, _ = typed("new", "big-step", "--kind", kind)
    assert code == 0
    assert out.startswith(f"wrote flbench-big-step (the {kind} method big-step, licence MIT)")
    texts = texts_of(tmp_path / "flbench-big-step")
    assert set(texts) == FILES["method"]
    module = ast.parse(texts["flbench_big_step.py"])
    (summary,) = re.findall("big-step: (.*)", (ast.get_docstring(module) or "").splitlines()[0])
    assert f"for flbench: {summary}\n" in texts["README.md"]
    assert "class BigStep:" in texts["flbench_big_step.py"]
    kinds = {"server": "global", "client": "global"}
    assert f'kind: ClassVar[str] = "{kinds.get(kind, kind)}"' in texts["flbench_big_step.py"]


def test_classes_are_written_as_a_person_would(typed: Typed, tmp_path: Path) -> None:
    names = ("fedavg-x", "pfedhn", "fedbn", "dp-sgd", "fedim", "kld-groups", "cfl", "my-way")
    found = ["FedAvgX", "PFedHN", "FedBN", "DPSGD", "FedIm", "KLDGroups", "CFL", "MyWay"]
    assert list(map(class_of, names)) == found
    assert typed("new", "fedim")[0] == 0
    texts = texts_of(tmp_path / "flbench-fedim")
    assert "class FedIm:" in texts["flbench_fedim.py"]
    assert 'fedim = "flbench_fedim:FedIm"' in texts["pyproject.toml"]


def test_it_goes_where_it_is_told(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "my work").mkdir()
    code, out, _ = typed("new", "big-step", "--out", "my work")
    assert code == 0
    assert "    cd 'my work/flbench-big-step'\n" in out
    (folder,) = (tmp_path / "my work").iterdir()
    assert folder.stat().st_mode == (tmp_path / "my work").stat().st_mode, "others may read it"


def test_what_is_put_in_is_not_replaced_again() -> None:
    texts = template("method")
    swapped = words("my-method-2", "method", "my-method of my_method", 2031)
    assert mentions(filled(texts, swapped)["LICENSE"], "2031", "my-method", "my_method")
    assert 'name = "flbench-my-method-2"\n' in filled(texts, swapped)["pyproject.toml"]


# --- what is refused --------------------------------------------------------------------------

WORDS = "new: expected lower-case words joined by hyphens, such as my-method, got"
REFUSED = {
    ("Big-step",): f"{WORDS} 'Big-step'",
    ("big_step",): f"{WORDS} 'big_step'",
    ("2-steps",): f"{WORDS} '2-steps'",
    ("big--step",): f"{WORDS} 'big--step'",
    ("big-step-",): f"{WORDS} 'big-step-'",
    ("../big",): f"{WORDS} '../big'",
    ("big\nstep",): f"{WORDS} 'big\\nstep'",
    ("big-step\n",): f"{WORDS} 'big-step\\n'",
    ("",): f"{WORDS} ''",
    ("fedprox",): f"new: method 'fedprox' of flbench {flbench.__version__} is installed already:"
    " choose another name",
    ("iid", "--kind", "suite"): f"new: suite 'iid' of flbench {flbench.__version__} is installed"
    " already: choose another name",
    ("plugins",): "new: the module flbench_plugins is installed already, for method 'afl'"
    f" of flbench {flbench.__version__}: choose another name",
    ("none",): "new: None means something else in Python: add a word",
    ("path", "--kind", "sink"): "new: Path means something else in Python: add a word",
    ("big-step", "--kind", "method+"): "unknown kind 'method+'; did you mean 'method'?"
    " (there are: client, clustered, dataset, method, model, personalised, server, sink, suite)",
    ("big-step", "--author", 'Ada "Countess" Lovelace'): "--author: expected one line without"
    """ " and \\, got 'Ada "Countess" Lovelace'""",
    ("big-step", "--author", "a\\b"): "--author: expected one line without \" and \\, got 'a\\\\b'",
    ("big-step", "--author", "a\nb"): "--author: expected one line without \" and \\, got 'a\\nb'",
    ("big-step", "--kind", "suite", "--paper", "A"): "--paper and --year are of methods, not of a"
    " suite",
    ("tensor", "--kind", "client"): "new: Tensor means something else in Python: add a word",
    ("big-step", "--out", "nowhere"): "--out: expected a folder, there is no 'nowhere':"
    " create it first",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=lambda one: " ".join(one).encode())
def test_what_cannot_be_is_refused_in_one_line(
    arguments: tuple[str, ...], typed: Typed, tmp_path: Path
) -> None:
    assert typed("new", *arguments) == (1, "", f"flbench: {REFUSED[arguments]}\n")
    assert list(tmp_path.iterdir()) == []


def test_names_of_other_kinds_are_free(typed: Typed) -> None:
    assert typed("new", "iid")[0] == 0
    assert typed("new", "fedprox", "--kind", "suite")[0] == 0


@pytest.mark.slow
def test_names_and_modules_of_other_packages_are_taken(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "other", "[flbench.methods]\nbig-step = flbench_other.core:Big\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    told = "is installed already"
    assert mentions(typed("new", "big-step")[2], "new", "big-step", "other 1.0", told)
    assert f"the module flbench_other {told}" in typed("new", "other", "--kind", "sink")[2]
    assert typed("new", "big-step", "--kind", "sink")[0] == 0


def test_what_is_there_is_left_alone(typed: Typed, tmp_path: Path) -> None:
    said = "flbench: 'flbench-big-step' is there already: move it away, or choose another name\n"
    (tmp_path / "flbench-big-step").mkdir()
    assert typed("new", "big-step") == (1, "", said)
    (tmp_path / "flbench-big-step").rmdir()
    (tmp_path / "flbench-big-step").symlink_to("nowhere")
    assert typed("new", "big-step") == (1, "", said)
    assert [path.name for path in tmp_path.iterdir()] == ["flbench-big-step"]


@pytest.mark.parametrize("step", ["mkdir", "write_text", "rename"])
def test_a_full_disk_leaves_nothing(
    step: str, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(Path, step)

    def fails(path: Path, *given: object, **named: object) -> object:
        if path.name in ("flbench-big-step", "tests", "test_big_step.py"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *given, **named)

    monkeypatch.setattr(Path, step, fails)
    said = "flbench: new: 'flbench-big-step' cannot be written: No space left on device\n"
    assert typed("new", "big-step") == (1, "", said)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_is_removed_and_what_a_live_one_writes_is_not(
    typed: Typed, tmp_path: Path
) -> None:
    left, other = tmp_path / ".flbench-new-killed_1", tmp_path / ".flbench-mine"
    (left / "flbench-big-step" / "tests").mkdir(parents=True)
    other.mkdir()
    with locked_folder(tmp_path, new.TEMPORARY) as alive:
        assert typed("new", "big-step")[0] == 0
        assert {path.name for path in tmp_path.iterdir()} == {
            "flbench-big-step", ".flbench-mine", alive.name
        }  # fmt: skip


# --- the template -----------------------------------------------------------------------------


def test_there_is_a_template_for_every_kind() -> None:
    assert {path.name for path in TEMPLATE.iterdir()} == {*KINDS, "README.md", "methods"}
    assert {path.name for path in (TEMPLATE / "methods").iterdir()} == {*METHODS} - {"server"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_kinds_share_is_the_same(kind: str) -> None:
    for name in (".gitignore", ".github/workflows/test.yml", "LICENSE"):
        assert (TEMPLATE / kind / name).read_bytes() == (TEMPLATE / "method" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_every_word_that_is_replaced_is_there(kind: str) -> None:
    texts = template(kind)
    everything = "\n".join([*texts, *texts.values()])
    named = words("big-step", kind, "Ada", 2031)
    named |= paper_words("", 0) if kind == "method" else {}
    if kind in ("suite", "dataset", "model"):
        del named[f"My{kind.capitalize()}"]  # they offer no class
    assert [word for word in named if word not in everything] == []


def test_what_tools_leave_in_a_template_is_not_copied(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(TEMPLATE, copy / "template")
    for name in ("__pycache__", "build/lib", "dist", "x.egg-info", "tests/.pytest_cache"):
        (copy / "template" / "method" / name).mkdir(parents=True, exist_ok=True)
        (copy / "template" / "method" / name / "left.bin").write_bytes(b"\xff\xfe")
    monkeypatch.setattr(new, "files", lambda package: copy)
    assert typed("new", "big-step")[0] == 0
    assert set(texts_of(tmp_path / "flbench-big-step")) == FILES["method"]


@pytest.mark.parametrize(
    "path", sorted(TEMPLATE.rglob("*.py")), ids=lambda path: path.relative_to(TEMPLATE).as_posix()
)
def test_templates_import_only_public_names(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flbench"):
            own = path.parent.parent if path.parent.name == "tests" else path.parent
            own = TEMPLATE / "method" if "methods" in path.parts else own
            assert node.module == "flbench.testing" or (own / f"{node.module}.py").is_file()
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "fl":
            assert node.attr in flbench.__all__


def test_the_method_is_a_screen() -> None:
    text = (TEMPLATE / "method" / "flbench_my_method.py").read_text("utf-8")
    assert len(text.partition("@dataclass")[2].splitlines()) <= 24
    assert len(text.splitlines()) <= 40


@pytest.mark.slow
def test_it_is_written_without_torch(tmp_path: Path) -> None:
    said = python(
        "import sys\n"
        "from flbench.cli.main import main\n"
        f"sys.argv = ['flbench', 'new', 'big-step', '--out', {str(tmp_path)!r}]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([one for one in ('torch', 'numpy', 'lightning') if one in sys.modules])"
    )
    assert said.endswith("\n[]\n")
    assert (tmp_path / "flbench-big-step").is_dir()


@pytest.mark.parametrize(
    ("variety", "kind", "hook"),
    [
        ("server", "global", "aggregate"),
        ("client", "global", "batch_loss"),
        ("clustered", "clustered", "cluster"),
        ("personalised", "personalised", "dispatch"),
    ],
)
def test_the_method_is_of_the_kind_that_was_asked_for(
    variety: str, kind: str, hook: str, typed: Typed, tmp_path: Path
) -> None:
    assert typed("new", "big-step", "--kind", variety)[0] == 0
    text = texts_of(tmp_path / "flbench-big-step")["flbench_big_step.py"]
    assert f'    kind: ClassVar[str] = "{kind}"' in text
    hooks = re.findall(r"@fl.hookimpl\n    def (\w+)", text)
    assert hook in hooks
    assert "client_module" not in hooks


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_does_not_assume_that_flbench_is_on_an_index(
    kind: str, typed: Typed, tmp_path: Path
) -> None:
    """Its workflow installs flbench first, from where a variable says."""
    assert typed("new", "big-step", "--kind", kind)[0] == 0
    texts = texts_of(tmp_path / "flbench-big-step")
    workflow = texts[".github/workflows/test.yml"]
    assert workflow.index("${FLBENCH:?") < workflow.index("pip install '.[test]'")
    assert "pip install flbench" not in texts["README.md"]
