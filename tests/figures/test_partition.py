"""The picture of a partition, and `flbench show suite`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch
from mentions import mentioning, mentions

from flbench.cli.main import main
from flbench.cli.show import _counts
from flbench.federation.federation import Samples
from flbench.figures.partition import COLUMNS, _binned, description, draw_partition, ticks

SVG = "{http://www.w3.org/2000/svg}"


def some_counts(clients: int, labels: int = 10) -> np.ndarray:
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 90, (clients, labels)) * (rng.random((clients, labels)) < 0.3)
    counts[:, 0] += 1
    return counts


def dots(svg: bytes) -> list[tuple[float, float, float]]:
    """Centre and width of each dot, from left to right."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if group.get("id") == "PathCollection_1":
            for path in group.iter(f"{SVG}path"):
                points = re.findall(r"[-\d.]+ [-\d.]+", path.get("d", ""))
                corners = np.array([[float(part) for part in point.split()] for point in points])
                x, y = (corners.min(axis=0) + corners.max(axis=0)) / 2
                found.append((float(x), float(y), float(np.ptp(corners[:, 0]))))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, pytest.param(30, marks=pytest.mark.long), 51])
@pytest.mark.parametrize("known", [True, False])
def test_equal_counts_give_equal_bytes(clients: int, known: bool) -> None:
    counts = some_counts(clients)
    groups = np.arange(clients) % 3 if known else None
    once = draw_partition(counts, groups, "a title")
    with mpl.rc_context({"axes.grid": True, "svg.hashsalt": "other", "axes.edgecolor": "red"}):
        again = draw_partition(counts, groups, "a title")
        assert mpl.rcParams["svg.hashsalt"] == "other", "the person's settings are left alone"
    assert once == again, "whatever the person's settings are"
    assert once != draw_partition(counts + 1, groups, "a title")


@pytest.mark.slow
def test_it_is_an_svg_with_title_and_description_and_no_date() -> None:
    svg = draw_partition(some_counts(20), np.arange(20) % 4, "a < b & c")
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == "a < b & c"
    told = root.findtext(f"{SVG}desc")
    assert told is not None
    assert mentions(told, "20 clients", "10 labels", "4 true groups")
    assert b"<dc:date" not in svg
    assert b"Matplotlib" not in svg, "another version of it may give the same bytes"


@pytest.mark.slow
def test_no_ground_is_painted_and_every_ink_reads_on_white_and_on_black() -> None:
    svg = draw_partition(some_counts(20), np.arange(20) % 4, "title").decode()
    colours = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert colours
    for colour in colours:
        red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
        ]
        light = float(np.dot([0.2126, 0.7152, 0.0722], linear))
        assert 1.05 / (light + 0.05) > 3, f"{colour} on white"
        assert (light + 0.05) / 0.05 > 3, f"{colour} on black"


@pytest.mark.slow
def test_a_dot_stands_for_every_label_held_and_clients_for_their_groups() -> None:
    counts = np.array([[5, 0], [0, 5], [5, 0], [0, 20]])
    (_, a, _), (_, b, _), (_, c, _), (_, d, _) = dots(
        draw_partition(counts, np.array([0, 1, 0, 1]), "t")
    )
    assert a == pytest.approx(b)
    assert c == pytest.approx(d)
    assert a > c, "group 0 holds label 0, which stands below label 1"
    (_, a, _), (_, b, _), (_, c, _), (_, d, _) = dots(draw_partition(counts, None, "t"))
    assert a == pytest.approx(c)
    assert b == pytest.approx(d)
    assert a > b, "as they come where no group is known"


def test_the_area_of_a_dot_is_the_number_of_samples() -> None:
    widths = [width for *_, width in dots(draw_partition(np.array([[5], [20], [80]]), None, "t"))]
    assert widths[1] / widths[0] == pytest.approx(2, rel=1e-3)
    assert widths[2] / widths[0] == pytest.approx(4, rel=1e-3)


@pytest.mark.slow
def test_groups_known_or_not_change_the_bands_only_where_known() -> None:
    counts = some_counts(12)
    known, unknown = (draw_partition(counts, groups, "t") for groups in (np.arange(12) // 6, None))
    assert known.count(b"opacity: 0.18") == 1, "every other of two groups"
    assert unknown.count(b"opacity: 0.18") == 0


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "image"), [(50, False), (51, True)])
def test_more_than_fifty_clients_are_a_heat_map(clients: int, image: bool) -> None:
    svg = draw_partition(some_counts(clients), None, "t")
    assert (b"<image" in svg) == image
    assert (b"PathCollection" in svg) == (not image)


def test_a_heat_map_has_at_most_four_hundred_columns_and_keeps_the_mean() -> None:
    counts = some_counts(2 * COLUMNS)
    binned = _binned(counts)
    assert binned.shape == (COLUMNS, 10)
    assert binned[0] == pytest.approx(counts[:2].mean(axis=0))
    assert _binned(counts[:300]).tolist() == counts[:300].tolist()


@pytest.mark.parametrize(("count", "step"), [(1, 1), (40, 1), (41, 2), (100, 5), (100_000, 5000)])
def testticks_stand_at_round_distances(count: int, step: int) -> None:
    assert ticks(count, 40) == list(range(0, count, step))


def test_the_description_counts() -> None:
    assert description(np.array([[3, 0], [1, 4]]), None) == mentioning(
        "2 clients", "2 labels:", "3 to 5 samples", "1 to 2 labels"
    )


# --- the command ------------------------------------------------------------------------------

Shown = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shown:
    """Type `flbench show suite ...` in an empty folder: exit code, output, errors."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["flbench", "show", "suite", *args])
        monkeypatch.setenv("FLBENCH_DATA", str(tmp_path / "empty"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


def test_show_suite_prints_how_its_data_are_divided(shown: Shown) -> None:
    code, out, _ = shown("pathological-noniid")
    assert code == 0
    tail = out[out.index("digits divided with seed 0") :].splitlines()
    assert tail[1] == "  clients: 100"
    assert re.fullmatch(r"  samples per client: min \d+, median [\d.]+, max \d+", tail[2])
    assert tail[3] == mentioning("labels", "min 2", "median 2", "max 2")
    assert re.fullmatch(r"  mean KL divergence of two clients: \d\.\d{3} nats", tail[4])
    assert tail[5] == mentioning("earth mover's distance", "0.800")


@pytest.mark.slow
def test_the_seed_changes_the_numbers_and_draws_nothing(shown: Shown, tmp_path: Path) -> None:
    outs = [shown("noisy-noniid", "--seed", seed)[1] for seed in ("1", "1", "2")]
    assert outs[0] == outs[1] != outs[2]
    assert "seed 2" in outs[2]
    assert list(tmp_path.glob("*.svg")) == []


@pytest.mark.slow
def test_plot_writes_the_same_picture_twice(shown: Shown, tmp_path: Path) -> None:
    assert shown("feature-shift", "--plot")[1].endswith("wrote feature-shift.svg\n")
    assert shown("feature-shift", "--plot", "sub/other.svg")[0] == 0
    one, two = (tmp_path / "feature-shift.svg", tmp_path / "sub" / "other.svg")
    assert one.read_bytes() == two.read_bytes()
    title = ElementTree.fromstring(one.read_bytes()).findtext(f"{SVG}title")
    assert title == mentioning("feature-shift", "digits-shift", "seed 0")


@pytest.mark.slow
def test_newcomers_are_shown_too(shown: Shown, tmp_path: Path) -> None:
    text = """version = 1
summary = "with newcomers"
dataset = "digits"
clients = 20
rounds = 1
unseen = 0.2
partition = "label-groups"
model = "mlp"
"""
    (tmp_path / "guests.toml").write_text(text)
    code, out, _ = shown("guests.toml", "--plot", "g.svg")
    assert code == 0
    assert "  clients: 20\n" in out
    assert b"20 clients and 10 labels in 5 true groups" in (tmp_path / "g.svg").read_bytes()


@pytest.mark.slow
def test_without_the_data_the_settings_are_still_shown(shown: Shown, tmp_path: Path) -> None:
    suite = ("noisy-noniid", "--dataset", "fashion-mnist")
    code, out, _ = shown(*suite)
    assert code == 0
    assert "lenet5" in out
    assert mentions(out, "fashion-mnist", "divided")
    code, _, err = shown(*suite, "--plot")
    assert code == 1
    assert mentions(err, "fashion-mnist", "expects")
    assert shown(*suite, "--data-root", str(tmp_path / "there"))[1].count("there") >= 1


def test_of_text_only_sizes_are_told(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(torch.arange(4 * k, 4 * k + 4) for k in range(20))
    text = Samples(
        x=torch.zeros(80, 6, dtype=torch.int64),
        y=torch.zeros(80, 6, dtype=torch.int64),
        splits={"train": tuple(r[:3] for r in rows), "validation": tuple(r[3:] for r in rows)},
    )
    assert _counts(text, 50_000).tolist() == [[4]] * 20
    monkeypatch.setattr("flbench.cli.show._divided", lambda *_: (_counts(text, 50_000), None))
    tail = shown("feature-shift")[1].splitlines()[-2:]
    assert tail == ["  clients: 20", mentioning("samples", "min 4", "median 4", "max 4")]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("x.svg",), "'x.svg' is where --plot would draw: add --plot"),
        (("--plot", "x.png"), "expected a file that ends in .svg, got 'x.png'"),
    ],
)
def test_where_to_draw_is_checked_first(shown: Shown, args: tuple[str, ...], says: str) -> None:
    code, out, err = shown("feature-shift", *args)
    assert (code, out) == (1, "")
    assert says in err


@pytest.mark.slow
def test_a_partition_that_cannot_be_made_says_why(shown: Shown, tmp_path: Path) -> None:
    text = """version = 1
summary = "too many clients"
dataset = "digits"
clients = 9999
rounds = 1
partition = "label-groups"
model = "mlp"
"""
    (tmp_path / "many.toml").write_text(text)
    code, out, err = shown("many.toml")
    assert code == 1
    assert "clients = 9999" in out
    assert "samples for 2000 clients" in err


@pytest.mark.slow
def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = "torch", "numpy", "matplotlib", "pydantic"
    code = f"import sys, flbench.cli.main; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "named"), [(5, "group 903"), (6, "903"), (16, "903"), (17, None)]
)
def test_groups_are_named_where_there_is_room(count: int, named: str | None) -> None:
    groups = 900 + np.repeat(np.arange(count), 2)
    svg = draw_partition(some_counts(2 * count, 3), groups, "title")
    found = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert [text for text in found if text.endswith("903")] == ([named] if named else [])
