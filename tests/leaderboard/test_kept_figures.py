"""A figure is drawn again if anything that it is drawn from has changed, and only then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_results import made, write
from mentions import mentioning
from toy import Typed

from flbench.leaderboard import kept_figures
from flbench.leaderboard.kept_figures import NOTES, KeptFigures
from flbench.leaderboard.table import tables
from flbench.leaderboard.table_figures import Drawing, drawings

NAME = "one--toy--rows.svg"


@pytest.fixture(autouse=True)
def code(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The code that draws: its hash, and the versions of libraries."""
    found = {"source": "a", "matplotlib": "1"}
    monkeypatch.setattr(kept_figures, "source_hash", lambda module: found["source"])
    monkeypatch.setattr(kept_figures, "version", lambda name: found["matplotlib"])
    return found


def drawing(picture: bytes | None = b"<svg/>", *shows: Any) -> Drawing:
    return Drawing(NAME, "alt", lambda: picture, shows or ("rows",))


def drawn(folder: Path, one: Drawing) -> bool:
    """Take a figure and put it in place, as the command does; whether it was drawn."""
    kept = KeptFigures(folder)
    found = kept.picture(one)
    if found is not None:
        folder.mkdir(exist_ok=True)
        (folder / one.name).write_bytes(found)
    kept.save()
    assert found == one.draw()
    return bool(kept.drawn)


def test_what_is_drawn_from_the_same_is_kept(tmp_path: Path) -> None:
    assert drawn(tmp_path, drawing())
    assert not drawn(tmp_path, drawing())
    assert drawn(tmp_path, drawing(None, "nothing")), "nothing can be drawn"
    assert not drawn(tmp_path, drawing(None, "nothing")), "which is kept too"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder, code: (folder / NAME).write_bytes(b"by hand"),
        lambda folder, code: (folder / NAME).unlink(),
        lambda folder, code: (folder / NOTES).unlink(),
        lambda folder, code: (folder / NOTES).write_text("{"),
        lambda folder, code: (folder / NOTES).write_text('{"one--toy--rows.svg": 3}'),
        lambda folder, code: code.update(source="b"),
        lambda folder, code: code.update(matplotlib="2"),
    ],
    ids=["edited", "gone", "no notes", "damaged notes", "odd notes", "code", "library"],
)
def test_what_has_changed_is_drawn(
    change: Callable[[Path, dict[str, str]], object], tmp_path: Path, code: dict[str, str]
) -> None:
    assert drawn(tmp_path, drawing())
    change(tmp_path, code)
    assert drawn(tmp_path, drawing())
    assert not drawn(tmp_path, drawing())


def test_every_text_number_and_result_counts(tmp_path: Path) -> None:
    one, other = made(0.5), made(0.5, seconds=2.0)
    ways = [
        ("rows", "x"), ("rows", [("fedavg", (one,))]), ("rows", [("fedavg", (other,))]),
        ("rows", [("cfl", (one,))]), ("rows", [("fedavg", (one, other))]),
        ("ranks", {"a": 1.0}), ("ranks", {"a": 1.5}), ("ranks", {"b": 1.0}),
    ]  # fmt: skip
    for shows in ways:
        assert drawn(tmp_path, drawing(b"<svg/>", *shows)), shows
        assert not drawn(tmp_path, drawing(b"<svg/>", *shows)), shows


def test_a_new_row_is_in_what_the_figures_of_its_table_show(tmp_path: Path) -> None:
    def shows(folder: Path) -> dict[str, Any]:
        return {one.name: one.shows for table in tables(folder) for one in drawings(table)}

    folder = write(tmp_path, *(made(mark=f"{n}{n}{n}", suite={"name": f"s{n}"}) for n in (1, 2)))
    before = shows(folder)
    after = shows(write(folder, made(0.9, method="new", mark="111", suite={"name": "s1"})))
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"s1--toy--rows.svg"}


def test_a_partition_is_drawn_again_if_it_is_another(tmp_path: Path) -> None:
    def shows(name: str, labels: list[dict[int, int]]) -> tuple[Any, ...]:
        one = made(0.5)
        counts = one.clients.model_copy(update={"labels": labels})
        (table,) = tables(write(tmp_path / name, one.model_copy(update={"clients": counts})))
        return drawings(table)[0].shows

    counts = [{0: 3}, {1: 7}, {0: 10}, {1: 10}]
    assert shows("a", counts) == shows("b", counts)
    assert shows("d", counts) != shows("c", [{0: 10}, {1: 10}, {0: 10}, {1: 10}])


@pytest.mark.slow
@pytest.mark.long
def test_the_command_draws_only_what_a_new_row_changes(tmp_path: Path, typed: Typed) -> None:
    both = [
        made(value, method=method, mark=f"{n}{n}{n}", suite={"name": f"s{n}"})
        for n in (1, 2)
        for method, value in (("a", 0.5), ("b", 0.6))
    ]
    write(tmp_path / "R", *both)
    words = ("leaderboard", "--results", "R", "--out", "board")
    _, out, _ = typed(*words)
    assert out == mentioning("6 of 6 files", "wrote")
    notes = Path("board/figures") / NOTES
    before = {path: path.read_bytes() for path in Path("board").rglob("*.svg")}
    write(tmp_path / "R", made(0.9, method="c", mark="111", suite={"name": "s1"}))
    noted = json.loads(notes.read_text())
    _, out, _ = typed(*words)
    assert out == mentioning("3 of 6 files", "wrote"), "a page, a figure, the overview"
    assert {path.name for path, data in before.items() if path.read_bytes() != data} == {
        "s1--toy--rows.svg"
    }
    told = json.loads(notes.read_text())
    assert [name for name in told if told[name] != noted[name]] == ["s1--toy--rows.svg"]
    kept = {path: path.read_bytes() for path in Path("board").rglob("*.svg")}
    assert typed(*words, "--check")[0] == 0, "all of it is drawn again for that"
    _, out, _ = typed(*words, "--redraw")
    assert out == mentioning("0 of 6 files", "wrote")
    assert {path: path.read_bytes() for path in Path("board").rglob("*.svg")} == kept
    Path("board/figures/s2--toy--rows.svg").write_bytes(b"by hand")
    assert typed(*words, "--check")[0] == 1
    assert typed(*words)[0] == 0
    assert typed(*words, "--check")[0] == 0
