"""README and docs say what is there, and what they tell to type works."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer
from architecture_map import page as architecture
from arguments_page import page as arguments_page
from committed import committed_tables
from interval_coverage_page import page as interval_coverage_page
from made_results import made, write
from natural_page import FACTS, RATES, chosen_rate, natural_suites, table_of
from natural_page import page as natural_page
from planted_bugs_page import page as planted_bugs_page
from reference_pages import PAGES as REFERENCE_PAGES
from reference_pages import page as reference_page
from typer.core import TyperGroup as Group
from unreliable_clients_page import STUDY
from unreliable_clients_page import page as unreliable_clients_page
from which_method_page import by_newcomers, count_of, peers
from which_method_page import page as which_method_page

from flbench.cli.main import app, main
from flbench.leaderboard import build
from flbench.leaderboard.markdown import anchor
from flbench.plugin.registry import entries
from flbench.tasks import TASKS
from flbench_benchmarks.speed.tables import PARTS, read_part, section

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (flbench .+)$", README + REFERENCE, flags=re.MULTILINE)
COMMANDS = list(dict.fromkeys(COMMANDS))


def on_pages(*pages: str) -> set[str]:
    """The names in backticks on some pages; of `npz:FILE` what stands before the colon."""
    texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages]
    return set(re.findall(r"`([\w.-]+)[:`]", " ".join(texts)))


def in_a_row(kind: str) -> set[str]:
    """The backticked names of one row of the table of what is included."""
    (line,) = re.findall(rf"^\| {kind} \|(.+)\|$", REFERENCE, flags=re.MULTILINE)
    return set(re.findall(r"`([\w.-]+)`", line))


@pytest.mark.parametrize(
    ("group", "listed"),
    [
        ("methods", set(re.findall(r"^## (\S+)$", METHODS_PAGE, re.MULTILINE))),
        ("suites", on_pages("suites.md")),
        ("studies", on_pages("suites.md")),
        ("partitions", on_pages("suites.md")),
        ("datasets", on_pages("data.md", "natural.md")),
        ("models", in_a_row("networks")),
        ("metrics", on_pages("metrics.md")),
        ("papers", in_a_row("papers")),
        ("sinks", on_pages("sinks.md")),
    ],
)
def test_the_docs_list_what_is_installed(group: str, listed: set[str]) -> None:
    ours = {name for name, entry in entries(group).items() if entry.distribution == "flbench"}
    assert ours - listed == set()
    if group in ("methods", "models", "papers"):
        assert listed == ours


def test_the_two_commands_stand_at_the_top_one_line_each() -> None:
    commands = re.findall(r"^    (python3 .+)$", README, flags=re.MULTILINE)
    assert len(commands) == 2
    assert commands[0].endswith("flbench run --plugin pfedlia --suite noisy-noniid")
    assert commands[1].endswith("tox")
    assert README.index(commands[1]) < 700
    assert ".ci/run" in README


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small results of the first commands of the README."""
    folder = tmp_path_factory.mktemp("played")
    words = "flbench run -p pfedlia,fedavg -s noisy-noniid --rounds 2 --set suite.clients=20"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", words.split())
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code
    return folder


# many runs each; small ones are in tests/sweeps and tests/testing
LONG = ("flbench tune", "flbench study", "flbench check")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=[pytest.mark.long] if one.startswith(LONG) else [], id=one)
        for one in COMMANDS
    ],
)
def test_the_documented_commands_work(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, played: Path
) -> None:
    words = shlex.split(command)
    if words[1] == "export":
        pytest.importorskip("pyarrow", reason="the extra `export` is not installed")
    if "--dataset" in words:
        pytest.skip("needs files that are not part of the project; see test_digits.py")
    if words[1] == "run":
        words += ["--rounds", "2", "--set", "suite.clients=20"]
        words = ["1" if word == "4" else word for word in words]
    else:
        shutil.copytree(played, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    found = [[str(p) for p in Path().glob(w)] if "*" in w else [w] for w in words]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(sys, "argv", [word for some in found for word in some])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code


def test_every_command_has_a_row() -> None:
    rows = re.findall(r"^\| (`[a-z`, ]+`) \|.+\|.+\|$", REFERENCE, re.MULTILINE)
    group = typer.main.get_command(app)
    assert isinstance(group, Group)
    assert sorted(re.findall(r"[a-z]+", " ".join(rows))) == sorted(group.commands)


def test_what_the_readme_counts_is_there() -> None:
    counts = re.findall(r"\b(\d+) (methods|suites) are included", README)
    assert [kind for _, kind in counts] == ["methods", "suites"]
    for number, kind in counts:
        ours = [one for one in entries(kind).values() if one.distribution == "flbench"]
        assert int(number) == len(ours), kind
    (word,) = re.findall(r"(\w+) suites have \[clients that nobody drew\]", README)
    assert len(natural_suites()) == {"Ten": 10, "Eleven": 11, "Twelve": 12}[word]
    (word,) = re.findall(r"tables of (\w+) papers", README)
    papers = [path for path in (ROOT / "docs" / "papers").glob("*.md")]
    assert len(papers) == len(entries("papers")) == {"four": 4, "five": 5}[word]
    (size,) = re.findall(r"files of the clone take (\d+) MB", README)
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if git.returncode == 0:  # an archive of the source is no clone
        paths = [ROOT / name for name in git.stdout.decode().split("\0") if name]
        tracked = sum(path.stat().st_size for path in paths if path.is_file())
        assert 0.75 < tracked / 1e6 / int(size) < 1.25
    figures = re.findall(r"!\[.+\]\((.+)\)", README)
    assert figures and all((ROOT / path).is_file() for path in figures)


def test_the_readme_and_the_long_pages_are_short() -> None:
    """Words as `wc -w` counts them; of the architecture without its map."""
    read = {name: (ROOT / "docs" / name).read_text() for name in ("architecture.md", "hooks.md")}
    _, _, after = read["architecture.md"].partition("```text\n")
    hooks = read["hooks.md"] + (ROOT / "docs" / "reference" / "hooks.md").read_text()
    assert len(README.split()) <= 700
    assert len(after.partition("```")[2].split()) <= 2600
    assert len(hooks.split()) <= 5000


def test_the_first_result_is_that_of_a_run() -> None:
    """The table in the README against a committed result of the same run."""
    cells = re.findall(
        r"^│ pfedlia │ +([\d.]+) │ +([\d.]+) │ +([\d.]+) │ +([\d.]+) │", README, re.M
    )
    found = []
    for path in (ROOT / "leaderboard/results/noisy-noniid/digits/pfedlia").glob("*/seed-0.json"):
        one = json.loads(path.read_text(encoding="utf-8"))["summary"]
        names = ("accuracy_mean", "accuracy_worst_decile", "ari", "mb_per_client")
        found.append(tuple(f"{one[name]:.4f}" for name in names))
    assert len(cells) == 1
    assert cells[0] in found


FRAGMENTS = ROOT / "docs" / "changelog"
PAGES_OF_DOCS = [page for page in (ROOT / "docs").rglob("*.md") if page.parent != FRAGMENTS]


def test_the_page_of_arguments_is_that_of_the_docstrings() -> None:
    """Every public field and function has a meaning, and those of tensors a shape."""
    found = (ROOT / "docs" / "reference" / "arguments.md").read_text(encoding="utf-8")
    assert found == arguments_page()
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| .* \| (.*) \|$", found, re.MULTILINE)
    assert [name for name, _, meaning in rows if not meaning.strip()] == []
    tensors = [(name, meaning) for name, kind, meaning in rows if re.match(r"Tensor\b", kind)]
    assert [name for name, meaning in tensors if not re.search(r"shape|scalar", meaning)] == []
    for name in ("send", "note", "warn", "sent", "rng"):
        assert f"\n`{name}(" in found


@pytest.mark.parametrize("name", REFERENCE_PAGES)
def test_the_reference_is_that_of_the_docstrings(name: str) -> None:
    found = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert found == reference_page(name), "type: python docs/tools/reference_pages.py"


def test_every_public_name_is_in_the_reference() -> None:
    import flbench

    pages = "".join((ROOT / "docs/reference" / one).read_text() for one in ("api.md", "toolbox.md"))
    names = [name for name in flbench.__all__ if not name.startswith("__")]
    assert [name for name in names if f"`fl.{name}`" not in pages] == []


def test_the_page_of_unreliable_clients_is_that_of_its_study() -> None:
    found = (ROOT / "docs" / "unreliable-clients.md").read_text(encoding="utf-8")
    assert found == unreliable_clients_page(json.loads(STUDY.read_text(encoding="utf-8"))["rows"])


@pytest.mark.long
@pytest.mark.slow
def test_the_page_of_coverage_is_that_of_its_simulation() -> None:
    found = (ROOT / "docs" / "interval-coverage.md").read_text(encoding="utf-8")
    assert found == interval_coverage_page()


def test_the_page_of_planted_bugs_is_that_of_their_tables() -> None:
    found = (ROOT / "docs" / "planted-bugs.md").read_text(encoding="utf-8")
    assert found == planted_bugs_page()


@pytest.mark.slow
def test_the_page_of_which_method_is_that_of_the_results() -> None:
    found = (ROOT / "docs" / "which-method.md").read_text(encoding="utf-8")
    known = committed_tables()
    told = re.search(r"It is made from ([\d,]+) result files", found)
    assert told is not None
    if int(told[1].replace(",", "")) < count_of(known):
        pytest.skip("docs/which-method.md is older than the results, as in a pull request of a row")
    assert found == which_method_page(known)


def test_newcomers_that_do_not_train_have_a_row(tmp_path: Path) -> None:
    """Settings lack what is at its default since it came later."""
    from flbench.leaderboard.table import tables

    found = tables(
        write(tmp_path, made(suite={"unseen": 0.2}), made(suite={"unseen": 0.2}, method="b"))
    )
    (row,) = [line for line in by_newcomers(found) if line.startswith("| `toy`")]
    assert [cell.strip() for cell in row.split("|")[6:-1]] == ["0", "-", "-", "-"]


def test_of_two_seeds_the_clients_say_who_cannot_be_separated(tmp_path: Path) -> None:
    """Letters need seeds: the worst seed of the best is below the best of the worst."""
    from flbench.leaderboard.table import tables

    correct = {
        "best": ([90, 91, 92, 93], [50, 51, 52, 53]),
        "near": ([89, 92, 91, 93], [51, 50, 53, 51]),  # 0.25 and 0.25 below, of one either way
        "far": ([60, 61, 62, 63], [40, 41, 42, 43]),  # 30 and 10 below, in every client
    }
    found = [
        made(0.5, method=method, seed=seed, correct=own, test=[100] * 4)
        for method, seeds in correct.items()
        for seed, own in enumerate(seeds)
    ]
    (table,) = tables(write(tmp_path, *found))
    assert {row.ties for row in table.rows} == {"a"}
    assert [row.method for row in table.rows] == ["best", "near", "far"]
    assert peers(table.rows) == "`near` (clients only)"
    other = [one.model_copy(update={"seed": one.seed + 5}) for one in found if one.seed == 1]
    (table,) = tables(write(tmp_path / "b", *found[:2], other[2]))
    assert peers(table.rows) == "`far` (clients only)", "no seed is common"


def test_natural_suites_have_the_rate_that_was_found() -> None:
    facts = json.loads(FACTS.read_text(encoding="utf-8"))["federations"]
    tried = json.loads(RATES.read_text(encoding="utf-8"))
    found = {name: chosen_rate(one, facts[name]["labels"] == 1) for name, one in tried.items()}
    assert found == {name: f"{table_of(name)['local']['lr']:g}" for name in tried}


def test_the_page_of_natural_federations_is_that_of_their_suites() -> None:
    found = (ROOT / "docs" / "natural.md").read_text(encoding="utf-8")
    assert found == natural_page(), "type: python docs/tools/natural_page.py > docs/natural.md"


def test_the_map_of_modules_is_that_of_the_tree() -> None:
    found = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert found == architecture(), "type: python docs/tools/architecture_map.py"
    assert "  federation/     build  feature_scale  federation  fixed_parts  holdings  " in found


def test_what_the_architecture_names_is_there() -> None:
    """Every package has a row, and every file that is named lies in the core or the repository."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = text.partition("```text\n")[2].partition("```")[2]
    rows = " ".join(line.split("|")[1] for line in told.splitlines() if line.startswith("| `"))
    packages = {path.parent.name for path in (ROOT / "flbench").glob("*/__init__.py")}
    assert packages - set(re.findall(r"`(\w+)`", rows)) == set()
    homes = (ROOT, ROOT / "flbench", ROOT / "flbench" / "engine")
    paths = set(re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+\w*)`", told))
    assert len(paths) > 30
    lost = {
        path
        for path in paths
        if not any((home / one).exists() for home in homes for one in (path, f"{path}.py"))
    }
    assert lost == set()


def test_links_lead_somewhere() -> None:
    """To files, and in pages to their headings."""

    named = [
        ROOT / name for name in ("README.md", "RELEASING.md", "CONTRIBUTING.md", "SECURITY.md")
    ]
    texts = {
        page: re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for page in (*named, ROOT / "plugins" / "README.md", *PAGES_OF_DOCS)
    }
    for page, text in texts.items():
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            path, _, part = target.partition("#")
            here = (page.parent / path).resolve() if path else page
            assert here.exists(), f"{page.name}: {target}"
            if part and here in texts:
                headings = re.findall(r"^#+ (.+)$", texts[here], re.MULTILINE)
                assert part in map(anchor, headings), f"{page.name}: {target}"


def test_the_numbers_of_the_page_of_performance_are_those_of_the_parts_that_it_names() -> None:
    """Of each row or paragraph that names a part of `flbench speed` in its code, every decimal."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    parts = {part: ROOT / "leaderboard" / "speed" / f"{part}.json" for part in PARTS}
    checked = 0
    for block in re.split(r"\n\n|\n(?=[|-] ?)", text):
        named = [part for part in parts if f"`{part}`" in block]
        known = " ".join(section(read_part(parts[part])) for part in named)
        numbers = re.findall(r"(?<![\w.])\d+\.\d+(?!\.)", re.sub(r"`[^`]*`", "", block))
        numbers = [one for one in numbers if f"BlazeFL {one}." not in block]
        for number in numbers:
            assert named, block
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", known), (number, named)
        checked += len(numbers)
    assert checked > 60


def test_every_fault_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    assert rows
    for _, fault, outcome, tests, _ in rows:
        if fault == " fault ":
            continue
        assert fault.strip() and outcome.strip()
        named = re.findall(r"`(tests/\S+\.py)`", tests)
        assert named and all((ROOT / name).is_file() for name in named), fault


@pytest.mark.slow
def test_the_leaderboard_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(build, "tables", lambda folder: [*committed_tables()])
    monkeypatch.setattr(sys, "argv", ["flbench", "leaderboard", "--check", "--no-figures"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code


@pytest.mark.slow
def test_the_figures_of_a_page_are_current() -> None:
    """Of one small page; `flbench leaderboard --check` draws all of them again."""
    from flbench.leaderboard.table import tables
    from flbench.leaderboard.table_figures import drawings

    (table,) = tables(ROOT / "leaderboard/results/office-10-surf")
    drawn = {one.name: one.draw() for one in drawings(table, True)}
    assert len(drawn) == 2
    for name, picture in drawn.items():
        committed = ROOT / "leaderboard/figures" / name
        assert picture == (committed.read_bytes() if committed.is_file() else None), name


FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
FLAT = " ".join(FINDINGS.split())
CLAIMS = {part.partition("\n")[0]: part for part in FINDINGS.split("\n## ")[1:]}
BOARD = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("leaderboard/*.md")}


PAGES = "".join(
    text for name, text in BOARD.items() if name not in ("README.md", "findings.md", "overview.md")
)


def test_what_is_quoted_stands_on_the_pages_of_suites() -> None:
    quoted = re.findall(r"\b\d\.\d{4} ± \d\.\d{4}", BOARD["findings.md"])
    assert quoted
    assert [number for number in quoted if number not in PAGES] == []


def numbers_of(value: object) -> set[str]:
    """Every number of a file of results, as prose may write it."""
    if isinstance(value, dict | list):
        return set().union(*map(numbers_of, value.values() if isinstance(value, dict) else value))
    if isinstance(value, float) and not math.isnan(value):
        return {f"{value:.{digits}f}" for digits in range(1, 5)}
    return set()


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_has_a_figure_a_source_a_doubt_and_no_number_of_its_own(claim: str) -> None:
    text = " ".join(CLAIMS[claim].split())
    assert "- Doubt: " in text
    assert len(re.findall(r"!\[[^]]+\]\([^)]+\.svg\)", text)) == 1
    pages, known = "", set[str]()
    for link in re.findall(r"(?<!!)\[[^]]+\]\(([^)#]+)", text):
        source = (ROOT / "docs" / link).read_text(encoding="utf-8")
        if link.endswith(".json"):
            known |= numbers_of(json.loads(source))
        else:
            pages += " ".join(source.split())
    known |= set(re.findall(r"(?<![\d.])-?\d+\.\d+", pages))
    prose = re.sub(r"\([^) ]+\.\w+\)|`[^`]*`", "", text)
    together = re.findall(r"\d\.\d{4} ± \d\.\d{4}|\d\.\d{4} to \d\.\d{4}", prose)
    ranges = [one for one in together if " ± " in one or f"({one}" in prose or f"; {one}" in prose]
    assert [one for one in ranges if one not in pages] == []
    numbers = re.findall(r"(?<![\w.-])-?\d+\.\d+", prose)
    assert [one for one in numbers if one not in known] == []
    assert numbers


def rows_of_methods() -> dict[str, set[str]]:
    """Method -> its means on the pages of suites."""
    rows: dict[str, set[str]] = {}
    found = re.findall(r"\[([\w+-]+)[^\]]*\]\(results/[^)]*\)[^|]*\| ([\d.]+(?: ± [\d.]+)?)", PAGES)
    for method, mean in found:
        rows.setdefault(method, set()).add(mean)
    return rows


def test_what_is_quoted_of_a_method_is_its_own() -> None:
    rows, text = rows_of_methods(), FLAT.replace("training alone", "local-only")
    quoted = re.findall(r"([\w-]+) (?:has )?\(?(\d\.\d{4} ± \d\.\d{4})", text)
    known = [(method, mean) for method, mean in quoted if method in rows]
    assert len(known) >= 40
    assert [(method, mean) for method, mean in known if mean not in rows[method]] == []


def test_ranks_at_equal_work_that_are_quoted_stand_in_the_overview() -> None:
    (text,) = re.findall(r"At equal work, of \d+ methods, .+?\(\[overview\]", FLAT)
    heading, rows = (
        BOARD["overview.md"].split("\n## At equal work")[1].split("\n## ")[0].split("\n", 1)
    )
    assert re.findall(r"\d+ methods", text) == re.findall(r"\d+ methods", heading)
    found = re.findall(r"^\| (\S+) \| (\d+\.\d\d) \| (\d+\.\d) \|", rows, re.MULTILINE)
    ranks = {method: rank for method, rank, _ in found}
    assert "{} leads (average rank {}, improvability {})".format(*found[0]) in text
    assert re.findall(r"\b\d+\.\d\d\b", text)[1:] == [ranks["fedavg"]]


@pytest.mark.slow
def test_links_of_the_leaderboard_lead_somewhere() -> None:
    for name, page in BOARD.items():
        links = re.findall(r"\]\(([^)]+)\)", page)
        assert links or name == "findings.md"
        for link in map(unquote, links):
            path, _, part = link.partition("#")
            if not path.startswith("http"):
                assert (ROOT / "leaderboard" / path).exists(), link
            if part:
                pages = BOARD | {
                    "../docs/methods.md": METHODS_PAGE,
                    "../docs/findings.md": FINDINGS,
                }
                text = pages[path or name]
                headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
                assert part in map(anchor, headings), link


def test_the_docs_explain_every_column_of_the_leaderboard() -> None:
    text = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
    headings = {
        cell.strip()
        for page in BOARD.values()
        for line in re.findall(r"^(\| rank .+\|)\n\|---", page, re.MULTILINE)
        for cell in line.split("|")[1:-1]
    }
    assert {"rank", "ties", "95 % interval", "paper"} <= headings
    metrics = [name for task in TASKS.values() for name in task.beside]
    for heading in sorted(headings):
        name, comma, more = heading.partition(",")
        explained = [f"| {heading} |", f"| {heading}: "] + ["| *metric* ("] * (heading in metrics)
        explained += [f"| *metric*{comma}{more} |"] * (bool(comma) and name in metrics)
        assert any(one in text for one in explained), heading


def test_what_is_concluded_from_studies_follows_from_their_rows() -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        text = (ROOT / "leaderboard" / "studies" / f"{name}.json").read_text(encoding="utf-8")
        found: list[dict[str, Any]] = json.loads(text)["rows"]
        return found

    def span(found: list[dict[str, Any]], name: str, digits: int) -> str:
        values = [row[name] for row in found]
        return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

    influence, discrepancy = rows("influence-cost"), rows("discrepancy")
    assert f"{span(influence, 'speedup', 0)} times less time" in FLAT
    for name in ("spearman", "sign_agreement"):
        assert span(influence, name, 2) in FLAT
    for scale in ("model", "tensor"):
        one = [row for row in discrepancy if row["scale"] == scale]
        assert f"{span(one, 'pearson', 2)} with one" in FLAT
    beta = rows("flis-beta")
    for epochs in {row["local.epochs"] for row in beta}:
        found = [row for row in beta if row["local.epochs"] == epochs]
        served = {row["flis-dc.beta"]: row["accuracy_mean"] for row in found}
        assert min(served[one] for one in (0.0, 0.1)) > max(served[one] for one in (0.9, 1.0))
        if epochs == 5:
            own = [row["accuracy_own_mean"] for row in found]
            assert max(own) - min(own) < 0.01, "own models hardly change"
    band = rows("heterogeneity")
    for method, growing in (("fedavg", False), ("local-only", True)):
        own = sorted((r for r in band if r["method"] == method), key=lambda row: row["kld"])
        assert (own[-1]["accuracy_mean"] > own[0]["accuracy_mean"]) is growing


@pytest.mark.slow
@pytest.mark.wheels
def test_a_wheel_holds_everything(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("flbench-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder, package in (("flbench", "flbench"), ("plugins", "flbench_plugins")):
        for path in (ROOT / folder).rglob("*.py"):
            assert f"{package}/{path.relative_to(ROOT / folder).as_posix()}" in names
        assert f"{package}/py.typed" in names
    for path in (ROOT / "benchmarks").glob("*.toml"):
        assert f"flbench_benchmarks/{path.name}" in names
    assert not [name for name in names if name.startswith(("tests/", "leaderboard/"))]


def test_there_are_not_ten_times_as_many_results_as_the_page_on_submitting_counts() -> None:
    """If this fails, do what docs/submitting.md says under this heading."""
    text = " ".join((ROOT / "docs" / "submitting.md").read_text(encoding="utf-8").split())
    told = re.search(r"there were ([\d,]+) result files of (\d+) MB", text)
    assert told is not None
    files, megabytes = int(told[1].replace(",", "")), int(told[2])
    sizes = [path.stat().st_size for path in (ROOT / "leaderboard/results").rglob("seed-*.json")]
    assert files / 2 < len(sizes) < 10 * files
    assert megabytes / 2 < sum(sizes) / 1e6 < 10 * megabytes
    assert f"{10 * files:,} files or {10 * megabytes} MB" in text
