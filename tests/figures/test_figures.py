"""Figures: the numbers behind them by hand, and what every SVG promises."""

from __future__ import annotations

import base64
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from drawn_results import (
    EVIL,
    FIGURES,
    SQUARE,
    SVG,
    USE,
    as_rows,
    desc,
    drawn,
    full,
    made,
    root_of,
    texts,
)
from mentions import mentioning, mentions

from flbench import figures
from flbench.figures import (
    accuracy_curves,
    client_accuracy,
    dendrograms,
    label_placement,
    score_matrix,
)
from flbench.figures.client_order import match_to_true_groups
from flbench.figures.clustering_gain import found_groups, scores_of_all
from flbench.figures.critical_difference import bar_rows, cliques
from flbench.figures.memberships import timeline
from flbench.figures.pareto import (
    RowPoint,
    named_rows,
    pareto_front,
    row_point,
    same_place,
)
from flbench.figures.style import (
    COLOURS,
    COLUMN,
    DASHES,
    INK,
    MARKERS,
    MAX_NAME_LENGTH,
    ON_PAGE,
    PIXELS,
    SMALLEST,
    new_figure,
    one_line,
    sharp,
    to_svg,
)
from flbench.results.files import read_results
from flbench.results.schema import Result
from flbench.tasks import TASKS

REAL = Path(__file__).resolve().parents[2] / "leaderboard" / "results"

# --- what every figure promises ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIGURES)
def test_it_has_a_title_and_says_in_words_what_it_shows(kind: str) -> None:
    svg = drawn(title="a < b & c")[kind]
    root = root_of(svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert [child.tag for child in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    title = "a < b & c" + (", seed 0" if kind == "partition" else "")
    assert root.findtext(f"{SVG}title") == title
    assert len(desc(svg)) > 40
    assert svg is not None
    assert b"<dc:date" not in svg
    assert b"Matplotlib" not in svg


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FIGURES if kind != "partition"])
def test_names_are_escaped_and_never_read_as_formulas(kind: str) -> None:
    svg = drawn(EVIL)[kind]
    assert any(EVIL in text for text in texts(svg)), "as it is, dollars included"
    assert EVIL in desc(svg)
    assert not list(root_of(svg).iter("b"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["_hidden\x1b[31m\x00b\ud800日本", "x" * 900, ""])
def test_no_name_breaks_a_figure(name: str) -> None:
    for svg in drawn(name, title=name).values():
        root_of(svg)
        assert not any(
            "x" * MAX_NAME_LENGTH in text for text in texts(svg) if text != one_line(name, 200)
        )


@pytest.mark.slow
@pytest.mark.long
def test_equal_results_give_equal_bytes_whatever_the_persons_settings() -> None:
    once, again = drawn(), drawn.__wrapped__
    with mpl.rc_context({"axes.grid": True, "svg.hashsalt": "other", "font.size": 30}):
        assert again() == once
        assert mpl.rcParams["svg.hashsalt"] == "other", "the person's settings are left alone"
    assert len(set(once.values())) == len(once)


def contrast(colour: str) -> tuple[float, float]:
    """Of a colour with white and with black."""
    parts = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    light = float(np.dot([0.2126, 0.7152, 0.0722], linear))
    return 1.05 / (light + 0.05), (light + 0.05) / 0.05


def test_the_last_digits_of_a_size_change_no_byte() -> None:
    """They depend on the processor; matplotlib hashes all of them. Ids are still found."""

    def drawing(more: float) -> str:
        with new_figure(2.0 + more) as figure:
            one, other = figure.subplots(1, 2)
            one.plot([0, 1], [0, 1], marker="o")
            other.imshow([[0, 1]])
            return to_svg(figure, "title", "words").decode()

    svg = drawing(0)
    assert drawing(1e-12) == svg
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(set(ids)) == len(ids)
    used = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)
    assert {one or other for one, other in used} <= set(ids)
    assert {"p", "m", "image"} <= {name.rstrip("0123456789") for name in ids}


@pytest.mark.parametrize("colour", [INK, *COLOURS])
def test_every_ink_reads_on_white_and_on_black(colour: str) -> None:
    assert min(contrast(colour)) > 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", FIGURES)
def test_no_ground_is_painted_and_no_other_ink_is_used(kind: str) -> None:
    svg = drawn()[kind]
    assert svg is not None
    used = set(re.findall(rb"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert used <= {colour.encode() for colour in (INK, *COLOURS)}


@pytest.mark.parametrize("kind", FIGURES)
def test_text_is_text_and_files_are_small(kind: str) -> None:
    svg = drawn()[kind]
    assert svg is not None
    assert len(svg) < 60_000
    fonts = {
        font
        for text in root_of(svg).iter(f"{SVG}text")
        for font in re.findall(r"(?:px|family:) ('.*?serif)", text.get("style", ""))
    }
    assert fonts == {"'DejaVu Sans', Arial, sans-serif"}


def test_nothing_hangs_on_colour_alone() -> None:
    looks = {
        (accuracy_curves._line_style(k)["marker"], accuracy_curves._line_style(k)["linestyle"])
        for k in range(accuracy_curves.NAMED_ROWS)
    }
    assert len(looks) == accuracy_curves.NAMED_ROWS == 8 <= min(len(COLOURS), len(MARKERS))
    assert len(DASHES) > 1


@pytest.mark.slow
def test_importing_figures_imports_nothing_heavy() -> None:
    heavy = "torch", "matplotlib", "scipy", "sklearn"
    code = f"import sys, flbench.figures; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.long
def test_drawing_imports_no_torch() -> None:
    code = (
        "import sys; from drawn_results import drawn; assert all(drawn().values());"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1] / "support",
    )  # fmt: skip
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.curves([], "t"),
        lambda: figures.curves([("one", [made(accuracy=[None, None])])], "t"),
        lambda: figures.curves([("one", [])], "t"),
        lambda: figures.pareto([("one", [made(mb=None)])], "t"),
        lambda: figures.clients([("one", [])], "t"),
        lambda: figures.scores(as_rows(made(), made(matrix=np.ones((1, 3)))), "t"),
        lambda: figures.scores(as_rows(made(matrix=np.full((4, 4), np.nan))), "t"),
        lambda: figures.memberships(as_rows(made()), "t"),
        lambda: figures.memberships(as_rows(made(membership=[(1, [0, 1, 2, 3])])), "t"),
        lambda: figures.memberships(as_rows(made(membership=[])), "t"),
        lambda: figures.partition(as_rows(made()), "t"),
        lambda: figures.partition(as_rows(made(labels=[{}, {}, {}, {}])), "t"),
        lambda: figures.critical_difference({"one": 1.0}, 1.0, 5, "t"),
    ],
)
def test_where_there_is_nothing_to_draw_it_is_none(draw: Callable[[], bytes | None]) -> None:
    assert draw() is None


# --- style ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FIGURES)
def test_it_is_as_wide_as_a_column_and_larger_on_a_page(kind: str) -> None:
    root = root_of(drawn()[kind])
    wide, tall = map(float, root.get("viewBox", "").split()[2:])
    assert wide == pytest.approx(72 * COLUMN)
    assert float(root.get("width", "").removesuffix("pt")) == pytest.approx(ON_PAGE * wide, 1e-4)
    assert float(root.get("height", "").removesuffix("pt")) == pytest.approx(ON_PAGE * tall, 1e-4)


@pytest.mark.parametrize("kind", FIGURES)
def test_no_letter_is_smaller_than_six_points_in_print(kind: str) -> None:
    sizes = {
        float(size)
        for text in root_of(drawn()[kind]).iter(f"{SVG}text")
        for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text.get("style", ""))
    }
    assert sizes
    assert min(sizes) >= SMALLEST == 6


def test_entries_of_an_image_stay_squares_where_a_converter_smooths() -> None:
    image = np.arange(12.0).reshape(1, 3, 4)
    large = sharp(image)
    assert large.shape == (PIXELS, 3 * 134, 4)
    assert (large[:, :134] == image[0, 0]).all()
    assert (large[:, -134:] == image[0, 2]).all()
    many = np.zeros((401, 500, 4))
    assert sharp(many).shape == many.shape


@pytest.mark.parametrize("kind", ["clients", "memberships", "scores"])
def test_every_image_in_a_figure_has_pixels_enough(kind: str) -> None:
    images = list(root_of(drawn()[kind]).iter(f"{SVG}image"))
    assert images
    for image in images:
        (data,) = [value for name, value in image.items() if name.endswith("href")]
        png = base64.b64decode(data.partition(",")[2])
        assert min(struct.unpack(">II", png[16:24])) >= PIXELS / 2, "what is seen of it"


LONG = "a-method+another-one (parameter=value, second=0.125, third=a-long-word)"


def words_inside(svg: bytes | None) -> list[str]:
    """The texts of a figure, each of which lies inside of it."""
    root = root_of(svg)
    wide, tall = map(float, root.get("viewBox", "").split()[2:])
    shown = []
    for text in root.iter(f"{SVG}text"):
        words = "".join(text.itertext())
        shown.append(words.strip())
        style = text.get("style", "")
        if "rotate(-90" in text.get("transform", ""):
            continue
        place = re.findall(r"translate\(([-\d.]+) ([-\d.]+)\)", text.get("transform", ""))
        x, y = map(float, place[0] if place else (text.get("x", ""), text.get("y", "")))
        (size,) = re.findall(r"font(?:-size)?: ([\d.]+)px", style)
        length = 0.5 * float(size) * len(words)  # letters of DejaVu Sans are wider
        left = x - length * ("middle" in style) / 2 - length * ("anchor: end" in style)
        assert left >= -1, words
        assert left + length <= wide + 1, words
        assert 0 <= y <= tall, words
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*FIGURES} - {"partition"}))
def test_long_names_are_whole_and_inside_the_figure(kind: str) -> None:
    shown = words_inside(drawn(LONG)[kind])
    assert not [words for words in shown if "…" in words]
    assert LONG.replace(" ", "") in "".join(shown).replace(" ", "")


@pytest.mark.slow
@pytest.mark.long
def test_of_82_rows_few_are_named_and_all_are_told() -> None:
    rows = [
        (f"row{k:02d}", [made(accuracy=[0.1, 0.5 + k / 200], mb=1 + k % 7, correct=[k % 5] * 4)])
        for k in range(82)
    ]
    for draw, most in ((figures.curves, 8), (figures.pareto, 12), (figures.clients, 24)):
        svg = draw(rows, "t")
        shown = [name for words in words_inside(svg) for name in re.findall(r"row\d\d", words)]
        assert len(shown) == len({*shown}) == most
        assert all(name in desc(svg) for name, _ in rows)
    svg = figures.critical_difference(
        {name: k + 1.0 for k, (name, _) in enumerate(rows)}, 5, 9, "t"
    )
    assert sum("row" in words for words in words_inside(svg)) == 82


def test_the_front_and_the_most_accurate_have_names() -> None:
    task = TASKS["classes"]
    points = [RowPoint("", task, k / 100, 100.0 - k, (0, 0), (0, 0)) for k in range(20)]
    assert named_rows(points, [19]) == [19, *range(8, 19)]
    assert named_rows(points, [0, 19]) == [0, 19, *range(9, 19)]
    assert named_rows(points, list(range(20))) == list(range(8, 20)), "a long front"


def test_points_that_cover_each_other_share_a_label() -> None:
    rows = [(name, [made(accuracy=[0.5 + k / 1e4])]) for k, name in enumerate("ab")]
    svg = figures.pareto([*rows, ("c", [made(accuracy=[0.9])])], "t")
    placed = {text: (t.get("x"), t.get("transform")) for t in root_of(svg).iter(f"{SVG}text")
              if (text := "".join(t.itertext())) in ("a", "b", "c")}  # fmt: skip
    assert len(placed) == 3
    assert same_place([(0.0, 0.0), (3.0, 3.0), (6.0, 0.0)]) == [[0, 1], [2]]


def test_scores_fall_into_blocks_where_groups_are_found() -> None:
    one = made(matrix=SQUARE, group=[1, 0, 1, 0], membership=[(1, [5, 6, 5, 6])])
    assert found_groups(one).tolist() == [1, 0, 1, 0]
    shuffled = made(matrix=SQUARE, row_ids=[1, 0, 2, 3], group=[1, 0, 1, 0])
    values = scores_of_all(shuffled)
    assert values is not None
    assert values[:2] == pytest.approx(SQUARE[[1, 0]], abs=0.1)
    assert scores_of_all(made(matrix=np.ones((4, 2)), columns="models")) is None
    assert scores_of_all(made(matrix=SQUARE[:2])) is None, "not of all clients"
    assert figures.clustering_gain(as_rows(made()), as_rows(made()), "t") is None
    svg = figures.clustering_gain(as_rows(made(), one), as_rows(made("other")), "t")
    assert mentions(desc(svg), "4 clients", "2 groups")
    lost = made(matrix=SQUARE, group=[1, 0, 1, 0], membership=[(1, [5, 6, 5, -1])])
    svg = figures.clustering_gain(as_rows(made(), lost), as_rows(made("other")), "t")
    assert mentions(desc(svg), "4 clients", "2 groups"), "-1 is no group"
    assert "clients by group found" in texts(svg)
    assert "other 62.5 % at 1 MB" in desc(svg)


def test_names_lie_where_nothing_is() -> None:
    points = [(50.0, 50.0), (54.0, 50.0), (50.0, 54.0), (98.0, 50.0)]
    boxes = label_placement.place_labels(
        points, [(30.0, 8.0)] * 4, (0, 0, 100, 100), [(0, 60, 100, 62)]
    )
    for index, box in enumerate(boxes):
        assert box[0] >= 0
        assert box[2] <= 100
        assert label_placement.overlap_area(box, (0, 60, 100, 62)) == 0
        assert all(
            label_placement.overlap_area(box, (x - 3, y - 3, x + 3, y + 3)) == 0 for x, y in points
        )
        assert all(label_placement.overlap_area(box, other) == 0 for other in boxes[:index])


# --- curves -----------------------------------------------------------------------------------


def test_a_curve_is_the_mean_of_the_rounds_measured() -> None:
    curve = accuracy_curves.mean_over_seeds(
        [made(accuracy=[0.2, None, 0.5, None]), made(accuracy=[0.4, None, 0.7, 0.9])], "accuracy"
    )
    assert curve is not None
    assert curve.rounds.tolist() == [1, 3, 4]
    assert curve.mean == pytest.approx([0.3, 0.6, 0.9])
    assert curve.low == pytest.approx([0.2, 0.5, 0.9])
    assert curve.high == pytest.approx([0.4, 0.7, 0.9])


@pytest.mark.slow
def test_rows_are_named_with_where_they_end_the_best_first() -> None:
    rows = [("low", [made(accuracy=[0.1, 0.3])]), ("high", [made(accuracy=[0.1, 0.75])])]
    svg = figures.curves(rows, "t")
    assert [text for text in texts(svg) if text[:3] in ("low", "hig")] == [
        "high  75.0",
        "low  30.0",
    ]
    assert "high 75.0 %, low 30.0 %" in desc(svg)


@pytest.mark.slow
def test_of_many_rows_the_best_eight_have_names_and_colours() -> None:
    rows = [(f"r{k:02d}", [made(accuracy=[0.1, 0.5 + k / 50])]) for k in range(12)]
    svg = figures.curves(rows, "t")
    assert svg is not None
    shown = {
        "".join(text.itertext())[:3]: INK not in text.get("style", "")
        for text in root_of(svg).iter(f"{SVG}text")
    }
    assert [name for name in shown if name[0] == "r" and name[1:].isdigit()] == [
        f"r{k:02d}" for k in reversed(range(4, 12))
    ]
    assert all(shown[f"r{k:02d}"] for k in range(4, 12))
    lines = re.findall(rf'"fill: none; stroke: {INK}; [^"]*stroke-opacity: 0.55', svg.decode())
    assert len(lines) == 8, "four rows, accuracy and loss"
    assert "r00" in desc(svg), "in words all are there"


def test_one_round_and_no_loss_can_be_drawn() -> None:
    one = made(accuracy=[0.5])
    assert figures.curves([("a", [one.model_copy(update={"curves": {"accuracy": [0.5]}})])], "t")


# --- pareto -----------------------------------------------------------------------------------


def test_the_front_by_hand() -> None:
    points = [(3.0, 0.9), (1.0, 0.7), (1.0, 0.8), (2.0, 0.8), (0.0, 0.1), (4.0, 0.85)]
    assert pareto_front(points) == [4, 2, 0]
    assert pareto_front([(1.0, 0.5), (1.0, 0.5)]) == [0, 1], "equal points beat nobody"
    assert pareto_front([]) == []


def test_a_point_is_the_mean_of_the_seeds_that_tell_both_numbers() -> None:
    told = [made(accuracy=[0.4], mb=1.0), made(accuracy=[0.6], mb=3.0), made(mb=None)]
    point = row_point("one", told)
    assert point == RowPoint("one", TASKS["classes"], 0.5, 2.0, (0.4, 0.6), (1.0, 3.0))


@pytest.mark.slow
@pytest.mark.long
def test_any_number_of_ranks_can_be_drawn() -> None:
    ranks = {str(at): float(at) for at in range(1, 602)}
    assert figures.critical_difference(ranks, 1.0, 2, "t")


@pytest.mark.slow
def test_a_bar_of_equal_seeds_has_no_length() -> None:
    assert np.mean([0.1] * 3) > 0.1, "a mean of equals may lie beyond them"
    assert figures.pareto([("one", [made(mb=0.1, seed=seed) for seed in range(3)])], "t")


@pytest.mark.slow
def test_rows_without_traffic_stand_apart_and_the_front_is_told() -> None:
    rows = [
        ("alone", [made(accuracy=[0.5], mb=0.0)]),
        ("good", [made(accuracy=[0.9], mb=2.0)]),
        ("dear", [made(accuracy=[0.8], mb=40.0)]),
    ]
    svg = figures.pareto(rows, "t")
    (tick,) = [t for t in root_of(svg).iter(f"{SVG}text") if t.text == "none"]
    x, y = float(tick.get("x", "")), float(tick.get("y", ""))
    marks = [(float(use.get("x", "")), float(use.get("y", ""))) for use in root_of(svg).iter(USE)]
    assert any(abs(left - x) < 0.02 and top < y - 15 for left, top in marks), "above its tick"
    assert mentions(desc(svg), "alone 50.0 % at 0 MB", "good 90.0 % at 2 MB", "Not on it: dear")
    assert "none" not in texts(figures.pareto(rows[1:], "t"))
    assert figures.pareto(rows[:1], "t") is not None, "nobody sends anything"


# --- clients ----------------------------------------------------------------------------------


def test_accuracies_are_those_of_all_seeds() -> None:
    assert client_accuracy.client_headlines([made(), made(correct=[0, 0, 4, 4])]).tolist() == [
        *(0.25, 0.5, 0.75, 1.0),
        *(0.0, 0.0, 1.0, 1.0),
    ]


def test_clients_without_test_samples_are_left_out() -> None:
    one = made()
    none = one.clients.model_copy(update={"test": [4, 0, 4, 4], "correct": [1, 0, 3, 4]})
    assert client_accuracy.client_headlines(
        [one.model_copy(update={"clients": none})]
    ).tolist() == [
        0.25,
        0.75,
        1,
    ]


def test_rows_are_sorted_by_median_then_mean_then_name() -> None:
    rows = [
        ("c", np.array([0.5, 0.5, 0.5])),
        ("b", np.array([0.5, 0.5, 0.5])),
        ("a", np.array([0.0, 0.6, 0.6])),
        ("d", np.array([0.3, 0.5, 1.0])),
    ]
    found = client_accuracy.sorted_by_median(rows, TASKS["classes"])
    assert [name for name, _ in found] == ["a", "d", "b", "c"]
    shown = [
        (name, [made(correct=[int(4 * v) for v in each], membership=[])]) for name, each in rows
    ]
    assert [t for t in texts(figures.clients(shown, "t")) if t in "abcd"] == ["d", "b", "c", "a"]


# --- groups -----------------------------------------------------------------------------------


def test_groups_get_the_names_of_the_true_groups_they_match() -> None:
    truth = np.array([0, 0, 0, 1, 1, 1])
    assert match_to_true_groups(np.array([9, 9, 4, 4, 4, 4]), truth).tolist() == [
        0,
        0,
        1,
        1,
        1,
        1,
    ]
    # All in all: giving 0 to group 4 (3 of it) would leave group 9 with nothing, 2 < 2 + 2.
    greedy = np.array([4, 4, 4, 9, 9, 4])
    assert match_to_true_groups(greedy, truth).tolist() == [0, 0, 0, 1, 1, 0]
    assert match_to_true_groups(np.array([5, 6, 7, 8, 8, 8]), truth)[3:].tolist() == [
        1,
        1,
        1,
    ]
    assert len(set(match_to_true_groups(np.array([5, 6, 7, 8, 8, 8]), truth).tolist())) == 4
    assert match_to_true_groups(np.array([-1, 2, 2, -1, 3, 3]), truth).tolist() == [
        -1,
        0,
        0,
        -1,
        1,
        1,
    ]


def test_the_hungarian_match_beats_the_greedy_one() -> None:
    truth = np.array([0] * 5 + [1] * 4)
    found = np.array([7] * 3 + [8] * 2 + [7] * 4)  # 7 overlaps 3 and 4, 8 overlaps 2 and 0
    assert match_to_true_groups(found, truth).tolist() == [1] * 3 + [0] * 2 + [1] * 4


def test_a_group_keeps_its_name_where_truth_does_not_decide() -> None:
    truth = np.zeros(4, dtype=np.int64)
    before = np.array([0, 0, 3, 3])
    assert match_to_true_groups(np.array([1, 1, 0, 0]), truth, before).tolist() == [
        0,
        0,
        3,
        3,
    ]
    assert match_to_true_groups(np.array([0, 0, 1, 1]), truth, before[::-1]).tolist() == [
        3,
        3,
        0,
        0,
    ]


def test_a_timeline_by_hand() -> None:
    one = made(accuracy=[0.1] * 4, group=[1, 0, 1, 0], membership=[(1, [0] * 4), (3, [5, 6, 5, 7])])
    names, sizes, truth = timeline(one)
    assert truth.tolist() == [1, 0, 1, 0]
    assert names.shape == (4, 4)
    assert names[0].tolist() == names[1].tolist()
    assert len(set(names[0].tolist())) == 1
    assert names[2].tolist() == names[3].tolist()
    assert names[2, [0, 2]].tolist() == [1, 1]
    assert sizes[0].tolist() == [4] * 4
    assert sizes[3].tolist() == [2, 1, 2, 1]
    late = made(accuracy=[0.1] * 4, group=[1, 0, 1, 0], membership=[(3, [5, 6, 5, 7])])
    names, sizes, _ = timeline(late)
    assert names[0].tolist() == names[3].tolist(), "before the first grouping it is that one"
    assert sizes[0].tolist() == [2, 1, 2, 1]


@pytest.mark.slow
def test_too_many_groups_have_no_names() -> None:
    pairs = [number // 2 for number in range(26)]
    many = made(correct=[2] * 26, membership=[(1, pairs)], matrix=np.eye(26))
    found = score_matrix.sorted_matrix(many)
    assert found is not None
    assert set(found.rows.tolist()) == {0}, "sorted by similarity alone"
    svg = figures.memberships(as_rows(many), "t")
    assert "client" in texts(svg)
    assert "final group" not in texts(svg)
    assert not [text for text in texts(svg) if text.endswith("%")]


@pytest.mark.slow
def test_without_true_groups_nothing_is_matched_with_them() -> None:
    svg = figures.memberships(as_rows(made(membership=[(1, [0, 0, 1, 1])])), "t")
    assert "final group" in texts(svg)
    assert not [text for text in texts(svg) if text.endswith("%")]
    assert "as in truth" not in desc(svg)


@pytest.mark.slow
def test_clients_in_no_group_are_no_group() -> None:
    lost = made(group=[0, 0, 1, 1], membership=[(1, [0, -1, 1, 1])])
    svg = figures.memberships(as_rows(lost), "t")
    assert mentions(desc(svg), "2 groups", "75 %")
    assert mentions(" ".join(texts(svg)), "none", "group")


@pytest.mark.slow
def test_a_partition_is_drawn_from_the_lowest_seed_that_kept_it() -> None:
    told = [made(seed=0), *(made(seed=seed, labels=[{0: 1}] * 4) for seed in (3, 2))]
    title = root_of(figures.partition([("one", told)], "toy")).findtext(f"{SVG}title")
    assert title == "toy, seed 2"


@pytest.mark.slow
def test_a_panel_is_of_a_rows_first_seed() -> None:
    rows = [("one", [full("one", 4), full("one", 5)])]
    for draw, beside in ((figures.memberships, ""), (figures.scores, "; dendrogram")):
        shown = [text for text in texts(draw(rows, "t")) if ", seed" in text]
        assert shown == [f"one, seed 4{beside}"]


@pytest.mark.slow
@pytest.mark.long
def test_few_panels_are_drawn_and_the_rest_is_told() -> None:
    many = as_rows(*(full(f"m{k}") for k in range(10)))
    for draw, most in ((figures.memberships, 8), (figures.scores, 4)):
        svg = draw(many, "t")
        assert sum(", seed 0" in text for text in texts(svg)) == most
        assert f"{10 - most} more are not drawn" in desc(svg)


@pytest.mark.slow
def test_matrices_of_clients_come_before_those_of_models() -> None:
    models = made("models", matrix=np.ones((4, 2)), columns="models")
    svg = figures.scores(as_rows(*[models] * 4, full("clients")), "t")
    shown = [text.partition(",")[0] for text in texts(svg) if ", seed" in text]
    assert shown == ["clients", "models", "models", "models"]


@pytest.mark.slow
def test_rows_of_one_method_have_their_own_names() -> None:
    rows = [("m (a=1)", [full("m")]), ("m (a=2)", [full("m")])]
    for svg in (figures.memberships(rows, "t"), figures.scores(rows, "t")):
        shown = [text.partition(",")[0] for text in texts(svg) if ", seed" in text]
        assert shown == ["m (a=1)", "m (a=2)"]


# --- score matrices ---------------------------------------------------------------------------


def test_rows_and_columns_stand_by_true_group() -> None:
    matrix = np.arange(16.0).reshape(4, 4)
    found = score_matrix.sorted_matrix(made(matrix=matrix, group=[1, 0, 1, 0]))
    assert found is not None
    assert found.rows.tolist() == [0, 0, 1, 1]
    assert found.columns is not None
    assert found.columns.tolist() == [0, 0, 1, 1]
    clients = (found.values[:, 0] // 4).round().astype(int)
    assert set(clients[:2].tolist()) == {1, 3}
    assert found.values.diagonal() == pytest.approx(5.0 * clients, abs=0.1), "both the same way"


def test_the_truth_comes_before_the_groups_found() -> None:
    matrix = np.arange(16.0).reshape(4, 4)
    found = score_matrix.sorted_matrix(
        made(matrix=matrix, group=[0, 1, 0, 1], membership=[(1, [5, 5, 4, 4])])
    )
    assert found is not None
    assert found.rows.tolist() == [0, 0, 1, 1]
    assert (found.values[:, 0] // 4).round().astype(int).tolist() == [2, 0, 3, 1]


def test_columns_follow_rows_where_their_ids_do_not() -> None:
    matrix = np.array([[0.0, 1.0], [2.0, 3.0]])  # rows 1, 0; columns 0, 1
    found = score_matrix.sorted_matrix(made(matrix=matrix, row_ids=[1, 0], group=[0, 1, 1, 1]))
    assert found is not None
    assert found.values == pytest.approx(np.array([[2.0, 3.0], [0.0, 1.0]]), abs=0.01)


def test_models_are_columns_as_they_are() -> None:
    matrix = np.array([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    found = score_matrix.sorted_matrix(made(matrix=matrix, columns="models", group=[1, 0, 1, 0]))
    assert found is not None
    assert found.columns is None
    assert found.tree is None
    assert found.values == pytest.approx(matrix[[1, 3, 0, 2]], abs=0.02)


def test_shades_are_centred_at_zero_where_signs_differ() -> None:
    image = score_matrix.score_colours(np.array([-2.0, -1.0, 0.0, 4.0, np.nan]), -2.0, 4.0)
    assert image[:4, 3].tolist() == [1.0, 0.5, 0.0, 1.0]
    assert (image[0, :3] != image[3, :3]).any()
    assert image[4].tolist() == list(score_matrix.MISSING_COLOUR)
    plain_ones = score_matrix.score_colours(np.array([1.0, 2.0, 3.0]), 1.0, 3.0)
    assert plain_ones[:, 3].tolist() == [0.0, 0.5, 1.0]
    assert (plain_ones[0, :3] == plain_ones[2, :3]).all()
    assert np.isfinite(score_matrix.score_colours(np.ones((2, 2)), 1.0, 1.0)).all()


def test_many_clients_are_binned_to_the_mean_of_what_was_asked() -> None:
    values = np.tile(np.arange(400.0)[:, None], (1, 3))
    values[0, 0] = np.nan
    small = score_matrix.downsampled(values)
    assert small.shape == (200, 3)
    assert small[0].tolist() == [1.0, 0.5, 0.5]
    assert score_matrix.downsampled(values[:5])[1:].tolist() == values[1:5].tolist()


def test_a_dendrogram_joins_the_likest_first() -> None:
    like = np.array([[0, 1, 9, 1.0], [1, 0, 1, 5], [9, 1, 0, 1], [1, 5, 1, 0]])
    tree = dendrograms.dendrogram(like)
    assert tree.merges is not None
    assert sorted(tree.merges[0, :2].tolist()) == [0, 2]
    assert tree.merges[:, 2].tolist() == [0.0, 0.5, 1.0]
    heights, places = dendrograms.dendrogram_lines(tree.merges, tree.order)
    assert np.nanmax(heights) == 1.0
    assert np.nanmax(places) == 3.0
    assert len(dendrograms.dendrogram_lines(tree.merges, tree.order, most=2)[0]) == 10


def test_nobody_asked_is_as_unlike_as_can_be() -> None:
    known = dendrograms.distances(np.array([[0, 3.0, np.nan], [1.0, 0, 7.0], [np.nan, np.nan, 0]]))
    assert known.tolist() == [[0, 1, 1], [1, 0, 0], [1, 0, 0]]


@pytest.mark.slow
def test_reachability_is_that_of_the_methods_own_features() -> None:
    from flbench.toolbox.clustering import optics_groups

    rng = np.random.default_rng(0)
    near = np.kron(np.eye(2), np.ones((10, 10))) + rng.normal(0, 0.05, (20, 20))
    params = {"features": "zrow", "min_samples": 4, "xi": 0.05}
    for features in ("zrow", "raw", "corr", "sym"):
        tree = dendrograms.reachability(near, {**params, "features": features})
        assert tree.reach is not None
        valleys = np.flatnonzero(tree.reach > 3 * np.median(tree.reach))
        assert valleys.tolist() == [0, 10], "two valleys"
        found = optics_groups(near, features, 4, 0.05, "nearest").labels  # type: ignore[arg-type]
        assert set(found[tree.order[:10]]) != set(found[tree.order[10:]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "density"),
    [({}, False), ({"features": "zrow"}, True), ({"features": "zrow", "mode": "peer"}, False)],
)
def test_the_method_decides_what_stands_beside(params: dict[str, Any], density: bool) -> None:
    matrix = np.arange(16.0).reshape(4, 4)
    drawn = figures.scores(as_rows(made(matrix=matrix, params=params)), "t")
    (shown,) = [text for text in texts(drawn) if ", seed" in text]
    assert shown == f"one, seed 0; {'OPTICS' if density else 'dendrogram'}"
    assert not dendrograms.groups_by_density(params, SQUARE), "never where somebody was not asked"


# --- partition and ranks ----------------------------------------------------------------------


def test_a_partition_counts_labels() -> None:
    assert desc(drawn()["partition"]) == mentioning(
        "4 clients", "2 labels", "2 true groups", "3 to 3 samples", "1 to 2 labels"
    )


def test_cliques_by_hand() -> None:
    assert cliques([1.0, 2.0, 3.0], 1.0) == [], "so far apart they differ"
    assert cliques([1.0, 1.5, 1.9, 3.0, 3.5], 1.0) == [(0, 2), (3, 4)]
    assert cliques([1.0, 1.5, 2.2, 2.9], 1.5) == [(0, 2), (1, 3)]
    assert cliques([1.0, 1.0], 0.1) == [(0, 1)]


def test_bars_on_one_line_never_touch() -> None:
    assert bar_rows([(1, 2), (2, 3), (2.5, 4), (3.5, 5)]) == [0, 1, 0, 1]


def test_ranks_are_drawn_with_who_cannot_be_told_apart() -> None:
    ranks = {"c": 3.0, "a": 1.0, "b": 1.4}
    svg = figures.critical_difference(ranks, 1.0, 7, "t")
    shown = texts(svg)
    assert {"a  1.00", "b  1.40", "c  3.00", "critical difference 1.00"} <= set(shown)
    assert mentions(desc(svg), "difference 1.00", "a, b")
    assert "over 7 blocks" in desc(svg)
    assert desc(figures.critical_difference(ranks, 0.1, 7, "t")).endswith("apart: none.")


# --- real results -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("folder", ["noisy-noniid/digits", "nordic-text/nordic"])
def test_committed_results_are_drawn_without_warnings(folder: str) -> None:
    found: dict[str, list[Result]] = {}
    for _, result in read_results(REAL / folder):
        found.setdefault(f"{result.method.name} {result.fingerprint.config}", []).append(result)
    table = list(found.items())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for draw in (figures.curves, figures.pareto, figures.clients):
            assert set(root_of(draw(table, folder)).itertext())
        for some in (figures.scores, figures.memberships, figures.partition):
            svg = some(table, folder)
            assert svg is None or root_of(svg) is not None
