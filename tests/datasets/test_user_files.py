"""Doors: anybody's arrays and images, and other data sets turned or relabelled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import typed
from mentions import mention, mentions
from PIL import Image

from flbench.core.dataset import Dataset
from flbench.datasets import derived
from flbench.datasets.status import facts
from flbench.errors import BadParameter, MissingData, UnknownName, UserError
from flbench.federation.loading import load_dataset

RNG = np.random.default_rng(11)


def stored(path: Path, **changed: object) -> Path:
    """An .npz file of 12 training and 6 test samples; None leaves an array out."""
    table = {
        "x_train": RNG.normal(size=(12, 3)).astype(np.float32),
        "y_train": np.arange(12) % 4,
        "x_test": RNG.normal(size=(6, 3)).astype(np.float32),
        "y_test": np.arange(6) % 4,
        **changed,
    }
    np.savez(path, **{key: np.asarray(value) for key, value in table.items() if value is not None})
    return path


def through(path: Path, door: str = "npz") -> Dataset:
    return load_dataset(f"{door}:{path}", Path("nowhere"))


# --- which door ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("npz", r"^data set 'npz' needs an argument, as in npz:\.\.\.$"),
        ("npz:", r"^data set 'npz' needs an argument, as in npz:\.\.\.$"),
        ("digits:8", r"^data set 'digits' takes no argument, got '8'$"),
        ("digits:", r"^data set 'digits' takes no argument, got ''$"),
        ("rotated:npz", r"^data set 'npz' needs an argument"),
        ("rotated:digits:8", r"^data set 'digits' takes no argument, got '8'$"),
    ],
)
def test_doors_take_an_argument_and_other_data_sets_none(
    tmp_path: Path, name: str, why: str
) -> None:
    with pytest.raises(BadParameter, match=why):
        load_dataset(name, tmp_path)


@pytest.mark.parametrize("name", ["nzp:file", "rotated:digit", "digit-6[mnist]"])
def test_an_unknown_door_or_data_set_lists_what_is_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown dataset '.*installed: .*cifar10, .*npz, "):
        load_dataset(name, tmp_path)


def test_only_the_first_colon_counts(tmp_path: Path) -> None:
    path = stored(tmp_path / "a:b.npz")
    assert through(path).name == f"npz:{path}"


# --- npz ----------------------------------------------------------------------------------------


def test_arrays_are_taken_as_they_are_and_the_test_part_is_marked(tmp_path: Path) -> None:
    x = RNG.normal(size=(12, 3))
    data = through(stored(tmp_path / "mine.npz", x_train=x, x_test=x[:6]))
    assert (data.classes, data.domains) == (4, None)
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
    assert torch.equal(data.x, torch.as_tensor(np.concatenate([x, x[:6]]), dtype=torch.float32))
    assert data.y.tolist() == [i % 4 for i in range(12)] + [0, 1, 2, 3, 0, 1]
    assert data.test is not None
    assert data.test.tolist() == [False] * 12 + [True] * 6


def test_a_path_is_relative_to_the_current_folder_and_knows_the_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "mine.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load_dataset("npz:mine.npz", Path("nowhere")).y) == 18
    assert len(load_dataset("npz:~/mine.npz", Path("nowhere")).y) == 18


def test_without_a_test_part_there_is_no_mask(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.ones((3, 2)), y=np.arange(3))
    data = through(path)
    assert (len(data.y), data.test) == (3, None)


@pytest.mark.parametrize(
    ("shape", "order"),
    [((5, 7), None), ((5, 7, 3), (0, 3, 1, 2)), ((5, 7, 1), (0, 3, 1, 2)), ((3, 5, 7), None)],
)
def test_bytes_are_images_between_0_and_1(
    tmp_path: Path, shape: tuple[int, ...], order: tuple[int, ...] | None
) -> None:
    x = RNG.integers(0, 256, (18, *shape), dtype=np.uint8)
    data = through(stored(tmp_path / "mine.npz", x_train=x[:12], x_test=x[12:]))
    expected = x.transpose(order) if order else x.reshape(18, -1, 5, 7)
    assert torch.equal(data.x, torch.as_tensor(expected.copy()).float() / 255)
    assert data.x.is_contiguous()


def test_other_whole_numbers_are_what_the_person_says(tmp_path: Path) -> None:
    x = RNG.integers(0, 50, (18, 9), dtype=np.int32)
    path = stored(tmp_path / "mine.npz", x_train=x[:12], x_test=x[12:])
    for kind, dtype in (("tokens", torch.int64), ("numbers", torch.float32)):
        data = load_dataset(f"npz:{path}?kind={kind}", Path("nowhere"))
        assert data.x.dtype == dtype
        assert data.x.tolist() == x.tolist()
    with pytest.raises(UserError, match=mention("x_train", 9, "?kind=tokens", "?kind=numbers")):
        through(path)
    for wrong, named in (("kind=text", ("kind=text", "tokens")), ("size=3", ("kind", "size"))):
        with pytest.raises(BadParameter, match=mention(*named)):
            load_dataset(f"npz:{path}?{wrong}", Path("nowhere"))


def test_integer_pixels_are_no_text(tmp_path: Path) -> None:
    """Digits of 64 pixels, saved as int64: they were tokens of a vocabulary of 17."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(tmp_path / "mine.npz", x=digits.data.astype(np.int64), y=digits.target)
    with pytest.raises(UserError, match=mention("64", "?kind=numbers", "pixels")):
        through(tmp_path / "mine.npz")
    found = load_dataset(f"npz:{tmp_path}/mine.npz?kind=numbers", Path("nowhere"))
    assert found.x.is_floating_point()


@pytest.mark.parametrize("shuffled", [False, True])
def test_windows_whose_label_is_the_next_number_are_known_to_be_tokens(
    tmp_path: Path, shuffled: bool
) -> None:
    text = RNG.integers(0, 10, 400)
    order = RNG.permutation(380) if shuffled else np.arange(380)
    x = np.stack([text[k : k + 12] for k in range(380)])[order]
    np.savez(tmp_path / "mine.npz", x=x, y=text[12:392][order])
    found = through(tmp_path / "mine.npz")
    assert (found.x.dtype, found.gap) == (torch.int64, 11)


def test_negative_whole_numbers_are_known_to_be_numbers(tmp_path: Path) -> None:
    x = RNG.integers(-9, 50, (18, 9))
    x[[0, 12]] = -1
    assert through(stored(tmp_path / "mine.npz", x_train=x[:12], x_test=x[12:])).x.dtype == (
        torch.float32
    )
    with pytest.raises(UserError, match=mention("x_train", "tokens", 0)):
        load_dataset(f"npz:{tmp_path}/mine.npz?kind=tokens", tmp_path)


@pytest.mark.parametrize(
    "domains",
    [
        {"domains": np.arange(18) % 3},
        {"domains_train": np.arange(12) % 3, "domains_test": np.arange(6) % 3},
    ],
)
def test_domains_are_one_array_or_one_for_each_part(
    tmp_path: Path, domains: dict[str, np.ndarray]
) -> None:
    data = through(stored(tmp_path / "mine.npz", **domains))
    assert data.domains is not None
    assert data.domains.tolist() == [i % 3 for i in range(18)]


NAN = np.full((12, 3), np.nan)
INFINITE = np.where(np.arange(36).reshape(12, 3) == 8, np.inf, 0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"y_test": None}, r"it has no array y_test \(it has x_train, y_train, x_test\)"),
        ({"x_train": None}, r"it has no array x_train \("),
        ({"x_train": NAN}, "x_train holds numbers that are not finite"),
        ({"x_train": INFINITE}, "x_train holds numbers that are not finite"),
        ({"x_train": -INFINITE}, "x_train holds numbers that are not finite"),
        ({"x_train": np.full((12, 3), 1e300)}, "x_train holds .* not finite in float32"),
        ({"x_train": np.full((12, 3), -1e300)}, "x_train holds .* not finite in float32"),
        ({"x_test": np.zeros(6)}, r"x_test must be samples of one or more numbers, got \(6,\)"),
        ({"x_train": np.zeros((12, 0))}, "x_train must be samples of one or more numbers"),
        ({"x_train": np.zeros((12, 3), bool)}, "x_train must be numbers, got bool"),
        ({"x_train": np.zeros((12, 3), complex)}, "x_train must be numbers, got complex128"),
        ({"x_train": np.full((12, 3), "a")}, "x_train must be numbers, got <U1"),
        ({"x_train": np.full((12, 3), None, object)}, "allow_pickle=False"),
        ({"x_train": np.zeros((12, 3), np.uint8)}, "x_train is uint8, so images of 1 or 3"),
        ({"x_train": np.zeros((12, 2, 5, 5), np.uint8)}, "x_train is uint8, so images of 1 or 3"),
        ({"x_train": np.zeros((12, 4))}, r"differ: \(4,\) torch.float32 and \(3,\) torch.float32"),
        ({"y_train": np.arange(11) % 4}, r"y_train must be 12 whole numbers, got int64 \(11,\)"),
        ({"y_test": np.arange(7) % 4}, r"y_test must be 6 whole numbers, got int64 \(7,\)"),
        ({"y_train": np.arange(12) / 2}, "y_train must be 12 whole numbers, got float64"),
        (
            {"y_train": np.zeros((12, 1), int)},
            r"y_train must be 12 whole numbers, got int64 \(12, 1\)",
        ),
        ({"y_train": np.arange(12) % 4 - 1}, r"labels must be 0\.\.C-1, got -1\.\.3"),
        ({"y_train": np.full(12, 99)}, r"labels must be 0\.\.C-1, got 0\.\.99"),
        ({"y_train": np.arange(12) % 4 + 2}, None),
        ({"y_train": np.full(12, 5)}, r"labels are 0\.\.5, but 4 never occurs"),
        (
            {"domains_train": np.zeros(12, int)},
            "it needs domains, or domains_train and domains_test",
        ),
        ({"domains": np.zeros(12, int)}, r"domains must be 18 whole numbers, got int64 \(12,\)"),
        (
            {"domains_train": np.zeros(6, int), "domains_test": np.zeros(12, int)},
            r"domains_train must be 12 whole numbers, got int64 \(6,\)",
        ),
        ({"domains": np.full(18, 1)}, r"domains are 0\.\.1, but 0 never occurs"),
        ({"domains": np.zeros(18)}, "domains must be 18 whole numbers, got float64"),
    ],
)
def test_malformed_arrays_are_one_line_that_names_the_file(
    tmp_path: Path, changed: dict[str, object], why: str | None
) -> None:
    path = stored(tmp_path / "mine.npz", **changed)
    if why is None:
        assert through(path).classes == 6, "labels of either part count"
        return
    with pytest.raises(UserError, match=why) as caught:
        through(path)
    assert str(caught.value).startswith(f"{path} cannot be used: ")
    assert "\n" not in str(caught.value)


def test_no_file_and_no_npz_file_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=mention("mine.npz", "file")):
        through(tmp_path / "mine.npz")
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    text, cut = tmp_path / "text.npz", stored(tmp_path / "cut.npz")
    text.write_text("x_train,y_train\n")
    cut.write_bytes(cut.read_bytes()[:-30])
    empty = tmp_path / "empty.npz"
    empty.touch()
    for path in (single, text, cut, empty):
        with pytest.raises(UserError, match=f"^{path} cannot be used: ") as caught:
            through(path)
        assert "\n" not in str(caught.value)
        assert mentions(str(caught.value), "numpy.savez", "csv:FILE") == (path in (text, empty))


def test_a_flipped_byte_of_compressed_arrays_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    x = np.random.default_rng(0).normal(size=(40, 8))
    np.savez_compressed(path, x=x, y=np.arange(40) % 2)
    found = bytearray(path.read_bytes())
    found[62] ^= 255  # at the beginning of what is compressed
    path.write_bytes(found)
    with pytest.raises(UserError, match=r"mine.npz cannot be used: "):
        load_dataset(f"npz:{path}", tmp_path)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"y_train": np.zeros(12, int), "y_test": np.zeros(6, int)}, "have the same label"),
        (
            {
                "x_train": np.zeros((99, 3), np.float32),
                "y_train": np.arange(99),
                "y_test": np.arange(99, 105),
            },
            "a label of its own",
        ),
        ({"x_train": np.zeros((12, 5, 5), int)}, "expected tokens or numbers of shape"),
        ({"x_train": np.ones((12, 1, 6, 6), np.uint8)}, "x_train is uint8 and x_test"),
        ({"x_train": np.ones((12, 5), int)}, "kind=tokens"),
        ({"x_train": np.zeros((12, 8, 8, 3), np.float32)}, "channels last"),
        ({"y_train": np.arange(12) % 4 > 1}, r"bool.*numpy.unique\(y_train"),
        ({"y_train": np.arange(12).astype(str)}, r"numpy.unique\(y_train"),
        ({"y_train": np.arange(12)[:, None] % 4}, r"y_train\[:, 0\]"),
    ],
)
def test_what_would_be_misread_is_refused(
    tmp_path: Path, changed: dict[str, np.ndarray], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        through(stored(tmp_path / "mine.npz", **changed))


@pytest.mark.parametrize("kind", ["tokens", "numbers"])
def test_a_kind_of_what_are_no_whole_numbers_is_refused(tmp_path: Path, kind: str) -> None:
    path = stored(tmp_path / "mine.npz")
    with pytest.raises(BadParameter, match=mention("kind", "whole numbers", "x_train", "float32")):
        load_dataset(f"npz:{path}?kind={kind}", tmp_path)


# --- images -------------------------------------------------------------------------------------


def write(path: Path, shade: int, size: tuple[int, int] = (6, 8), colour: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, 3) if colour else size
    Image.fromarray(np.full(shape, shade, np.uint8)).save(path)


def test_images_lie_in_a_folder_for_each_class(tmp_path: Path) -> None:
    for at, name in enumerate(("dog", "cat", "ant")):
        write(tmp_path / name / "b.png", 10 * at + 1)
        write(tmp_path / name / "a.PNG", 10 * at)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    data = through(tmp_path, "images")
    assert (data.name, data.classes) == (f"images:{tmp_path}", 3)
    assert (data.domains, data.test) == (None, None)
    assert data.x.shape == (6, 1, 6, 8)
    assert data.y.tolist() == [0, 0, 1, 1, 2, 2], "ant, cat, dog"
    shades = ((data.x[:, 0, 0, 0] + 1) * 127.5).round().tolist()
    assert shades == [20, 21, 10, 11, 0, 1]


def test_images_may_lie_in_domains_and_in_a_training_and_a_test_part(tmp_path: Path) -> None:
    for part, count in (("train", 2), ("test", 1)):
        for domain in ("photo", "drawing"):
            for label in range(11):
                for number in range(count):
                    write(tmp_path / part / domain / str(label) / f"{number}.png", label)
    data = through(tmp_path, "images")
    assert data.domains is not None
    assert data.test is not None
    assert data.test.tolist() == [False] * 44 + [True] * 22
    assert data.domains.tolist() == [0] * 22 + [1] * 22 + [0] * 11 + [1] * 11
    shades = ((data.x[:, 0, 0, 0] + 1) * 127.5).round().long()
    assert torch.equal(data.y, shades), "numbers are sorted as numbers"
    assert data.classes == 11
    two_parts = load_dataset(f"images:{tmp_path / 'train'}", tmp_path)
    assert two_parts.test is None


def test_one_image_in_colour_makes_all_of_them_so(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", 7)
    write(tmp_path / "b" / "1.png", 9, colour=True)
    data = through(tmp_path, "images")
    assert data.x.shape == (2, 3, 6, 8)
    assert data.x.is_contiguous()


def test_sixteen_bits_of_grey_are_scaled_and_more_are_refused(tmp_path: Path) -> None:
    levels = np.array([[0, 255, 256], [32768, 65279, 65535]], dtype=np.uint16)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(levels).save(tmp_path / name / "1.png")
    data = through(tmp_path, "images")
    assert data.x.shape == (2, 1, 2, 3)
    assert ((data.x[0] + 1) * 127.5).round().flatten().tolist() == [0, 0, 1, 128, 254, 255]
    Image.fromarray(np.ones((2, 3), dtype=np.float32)).save(tmp_path / "a" / "2.tiff")
    with pytest.raises(UserError, match=mention("32 bits", "8 or 16")):
        through(tmp_path, "images")


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("a/scan", ("scan", "first bytes", ".png")),
        ("a/scan.png.bak", ("scan.png.bak", "first bytes")),
        ("a/sub/1.png", ("a", "has folders", "mixes")),
        ("p/a/sub/1.png", ("sub/", "below a class")),
        ("a/notes.txt", ()),
    ],
)
def test_a_picture_that_would_be_left_out_is_refused(
    tmp_path: Path, name: str, facts: tuple[str, ...]
) -> None:
    for kind in ("p/a", "p/b") if name.startswith("p") else ("a", "b"):
        shown(tmp_path / kind / "1.png", 100)
        shown(tmp_path / kind / "2.png", 200)
    source = tmp_path / ("p/a" if name.startswith("p") else "a") / "1.png"
    (tmp_path / name).parent.mkdir(exist_ok=True)
    content = b"no picture" if name.endswith(".txt") else source.read_bytes()
    (tmp_path / name).write_bytes(content)
    if not facts:
        assert len(through(tmp_path, "images").y) == 4
        return
    with pytest.raises(UserError, match=mention(*facts)):
        through(tmp_path, "images")


def test_a_file_of_several_pictures_is_refused(tmp_path: Path) -> None:
    shown(tmp_path / "b" / "1.png", 100)
    (tmp_path / "a").mkdir()
    pages = [Image.fromarray(np.full((4, 4), 50 * one, np.uint8)) for one in (1, 2)]
    pages[0].save(tmp_path / "a" / "1.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(UserError, match=mention("1.tif", "2 pictures")):
        through(tmp_path, "images")
    (tmp_path / "a" / "1.tif").unlink()
    phone = tmp_path / "a" / "1.jpg"
    pages[0].save(phone, format="MPO", save_all=True, append_images=pages[1:])
    assert len(through(tmp_path, "images").y) == 2, "a camera's second picture is a preview"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_pictures_with_transparent_pixels_are_refused(tmp_path: Path, mode: str) -> None:
    for at in range(4):
        (tmp_path / "ab"[at % 2]).mkdir(exist_ok=True)
        Image.new("L", (4, 4), 40 * at).save(tmp_path / "ab"[at % 2] / f"{at}.png")
    one = tmp_path / "a" / "0.png"
    clear = Image.new("RGBA", (4, 4), (200, 200, 200, 255))
    clear.convert(mode).save(one)
    assert through(tmp_path, "images").y.tolist() == [0, 0, 1, 1], "nothing is transparent"
    clear.putpixel((0, 0), (0, 0, 0, 0))
    if mode == "P":
        image = clear.convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE, colors=4)
        image.save(one, transparency=image.getpixel((0, 0)))
    else:
        clear.convert(mode).save(one)
    with pytest.raises(UserError, match=mention("0.png", "6.25% of its pixels", "background")):
        through(tmp_path, "images")


def test_pictures_that_differ_in_what_is_transparent_alone_are_refused(tmp_path: Path) -> None:
    for at in range(8):
        (tmp_path / "ab"[at % 2]).mkdir(exist_ok=True)
        levels = np.stack([np.zeros((4, 4))] * 3 + [np.eye(4) * 25 * at], axis=2)
        Image.fromarray(levels.astype(np.uint8)).save(tmp_path / "ab"[at % 2] / f"{at}.png")
    with pytest.raises(UserError, match=mention("transparent", "background")):
        through(tmp_path, "images")


@pytest.mark.parametrize(("most", "shift"), [(200, 0), (4095, 4), (65535, 8)])
def test_sixteen_bits_of_which_fewer_are_used_are_not_black(
    tmp_path: Path, most: int, shift: int
) -> None:
    for name, levels in (("a", [[0, most]]), ("b", [[most // 2, most // 4]])):
        (tmp_path / name).mkdir()
        Image.fromarray(np.array(levels, np.uint16)).save(tmp_path / name / "1.png")
    found = ((through(tmp_path, "images").x + 1) * 127.5).round().flatten().tolist()
    assert found == [one >> shift for one in (0, most, most // 2, most // 4)]


def test_a_picture_is_turned_as_its_camera_was(tmp_path: Path) -> None:
    for at, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        picture = Image.fromarray(np.arange(8, dtype=np.uint8).reshape(2, 4) * 30 + at)
        exif = picture.getexif()
        exif[274] = 6
        picture.save(tmp_path / name / "1.png", exif=exif)
    assert through(tmp_path, "images").x.shape == (2, 1, 4, 2)


@pytest.mark.parametrize(
    "key", ["clients", "groups", "hospital", "site_ids", "domain", "x", "x_val", "opposite"]
)
def test_arrays_that_are_not_read_are_no_secret(tmp_path: Path, key: str) -> None:
    path = stored(tmp_path / "mine.npz", **{key: np.arange(12)})
    if key == "opposite":
        notes = load_dataset(f"npz:{path}", Path("nowhere")).notes
        assert notes == ("arrays left out: opposite",)
        return
    with pytest.raises(UserError, match=mention(key)):
        load_dataset(f"npz:{path}", Path("nowhere"))


@pytest.mark.parametrize("brightest", [1, 16, 63, 64, 255])
def test_images_that_are_dark_throughout_are_noted(tmp_path: Path, brightest: int) -> None:
    ink = np.tile(np.array([0, brightest], np.uint8), (12, 2, 1))
    path = stored(tmp_path / "mine.npz", x_train=ink, x_test=ink[:6] // 2)
    for name, picture in (("a", ink[0]), ("b", ink[0, :, ::-1])):
        (tmp_path / "folder" / name).mkdir(parents=True)
        Image.fromarray(picture).save(tmp_path / "folder" / name / "1.png")
    for found in (through(path), through(tmp_path / "folder", "images")):
        noted = [note for note in found.notes if f"bytes are 0..{brightest} " in note]
        assert len(noted) == len(found.notes) == (brightest < 64)


@pytest.mark.parametrize("shape", [(3,), (1, 4, 4)])
def test_parts_that_were_scaled_apart_are_noted(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = RNG.random((40, *shape)).astype(np.float32)
    y = np.arange(40) % 4
    for factor, count in ((1, 0), (5, 0), (255, 1), (1 / 255, 1)):
        path = stored(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x * factor, y_test=y)
        assert sum("scale them alike" in text for _, text in facts(through(path))) == count
    x[:, :1] = 0  # a number that says nothing is no other scale
    path = stored(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert not any("scale them alike" in text for _, text in facts(through(path)))


def shown(file: Path, level: int) -> None:
    """A grey picture in a file, and its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), level, np.uint8)).save(file)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "test"),
        ("Training", "Testing"),
        ("train", "valid", "test"),
        ("TRAIN", "val", "Test"),
        ("train_set", "dev", "test_set"),
        ("train_images", "test_images"),
        ("seg_train", "seg_test"),
    ],
)
def test_any_words_for_parts_are_parts(tmp_path: Path, words: tuple[str, ...]) -> None:
    for number, word in enumerate(words):
        for label in ("a", "b"):
            shown(tmp_path / word / label / "1.png", 100 * number)
    data = through(tmp_path, "images")
    assert data.label_names == ("a", "b")
    assert data.domains is None
    assert data.test is not None
    assert data.test.tolist() == [False, False] * (len(words) - 1) + [True, True]
    levels = [100 * number for number in range(len(words)) for _ in "ab"]
    assert data.x[:, 0, 0, 0].tolist() == pytest.approx([2 * level / 255 - 1 for level in levels])
    assert len(data.notes) == len(words) - 2


@pytest.mark.parametrize(
    "folders",
    [
        ("train/a", "north/a"),
        ("train/a", "val/b"),
        ("train", "cats"),
        ("north/train", "north/test", "south/train", "south/test"),
        ("train/a/test", "test/a/train"),
        ("a/train", "a/test", "b/train", "b/test"),
    ],
)
def test_a_word_for_a_part_is_no_class_and_no_domain(
    tmp_path: Path, folders: tuple[str, ...]
) -> None:
    for folder in folders:
        shown(tmp_path / folder / "1.png", 0)
    with pytest.raises(UserError, match=r"(train|val|test)/.*expected parts at the top"):
        through(tmp_path, "images")


@pytest.mark.parametrize("place", [".", "north"])
def test_a_picture_beside_the_classes_is_not_left_out(tmp_path: Path, place: str) -> None:
    for label in ("a", "b"):
        shown(tmp_path / "north" / label / "1.png", 0)
    shown(tmp_path / place / "stray.png", 0)
    with pytest.raises(UserError, match=r"stray.png lies beside folders"):
        through(tmp_path, "images")


def test_a_picture_that_is_not_read_is_not_left_out(tmp_path: Path) -> None:
    for label in ("a", "b"):
        shown(tmp_path / label / "1.png", 0)
    (tmp_path / "b" / "2.GIF").write_bytes(b"GIF89a")
    with pytest.raises(UserError, match=r"b cannot be used: 2.GIF is a picture .* not read"):
        through(tmp_path, "images")


@pytest.mark.parametrize(
    ("folders", "why"),
    [
        (("images", "masks"), "masks/ as a class"),
        (("cat", "Cat"), "are one class written in two ways"),
        (("north/cat", "north/dog", "North/cat"), "are one domain written in two ways"),
    ],
)
def test_masks_and_names_written_in_two_ways_are_no_classes(
    tmp_path: Path, folders: tuple[str, ...], why: str
) -> None:
    for folder in folders:
        write(tmp_path / folder / "1.png", 0)
    with pytest.raises(UserError, match=why):
        through(tmp_path, "images")


def test_images_are_resized_if_a_size_is_given_and_else_must_be_of_one(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", 7)
    write(tmp_path / "b" / "1.png", 9, (8, 6))
    with pytest.raises(UserError, match=mention("b/1.png", "6x8", "a/1.png", "8x6")):
        through(tmp_path, "images")
    data = load_dataset(f"images:{tmp_path}@16", tmp_path)
    assert data.x.shape == (2, 1, 16, 16)
    for size in ("0", "big", "1025", "-4", ""):
        with pytest.raises(BadParameter, match=mention("1..1024", f"'{size}'")):
            load_dataset(f"images:{tmp_path}@{size}", tmp_path)
    folder = tmp_path / "sized@8" / "mine"
    for name in ("a", "b"):
        write(folder / name / "1.png", 7)
    assert len(through(folder, "images").y) == 2, "an @ in a folder's name is no size"


def test_malformed_folders_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="there is no folder"):
        through(tmp_path / "gone", "images")
    with pytest.raises(MissingData, match=mention("folder", "images")):
        through(tmp_path, "images")
    write(tmp_path / "a" / "1.png", 7)
    with pytest.raises(UserError, match=mention("one class", "a")):
        through(tmp_path, "images")
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=mention("/b", "image")):
        through(tmp_path, "images")
    (tmp_path / "b" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"/b/1.png cannot be used: ") as caught:
        through(tmp_path, "images")
    assert "\n" not in str(caught.value)
    write(tmp_path / "b" / "c" / "1.png", 7)
    with pytest.raises(UserError, match=mention("<class>/", "<domain>/<class>/", "none")):
        through(tmp_path, "images")


# --- rotated ------------------------------------------------------------------------------------


def test_rotated_deals_evenly_and_turns_each_domain_by_its_quarter(tmp_path: Path) -> None:
    plain, turned = load_dataset("digits", tmp_path), load_dataset("rotated:digits", tmp_path)
    assert (turned.name, turned.classes) == ("rotated:digits", 10)
    assert turned.domains is not None
    assert torch.bincount(turned.domains).tolist() == [450, 449, 449, 449]
    assert torch.equal(turned.y, plain.y)
    for domain in range(4):
        mine = turned.domains == domain
        by_hand = torch.as_tensor(np.rot90(plain.x[mine].numpy(), domain, (2, 3)).copy())
        assert torch.equal(turned.x[mine], by_hand)
    assert not torch.equal(turned.x, plain.x)


@pytest.mark.parametrize("name", ["rotated:digits", "label-swap:digits"])
def test_a_wrapped_data_set_is_the_same_each_time(tmp_path: Path, name: str) -> None:
    one = load_dataset(name, tmp_path)
    torch.manual_seed(5)
    np.random.default_rng().random()
    other = load_dataset(name, tmp_path)
    assert one.domains is not None
    assert other.domains is not None
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert torch.equal(one.domains, other.domains)
    assert one.domains[:12].tolist() == [0, 1, 2, 0, 2, 0, 0, 2, 3, 0, 3, 1]


def test_rotated_keeps_the_test_part_and_refuses_what_is_no_square_image(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (18, 5, 5), dtype=np.uint8)
    path = stored(tmp_path / "mine.npz", x_train=x[:12], x_test=x[12:], domains=np.arange(18) % 2)
    data = load_dataset(f"rotated:npz:{path}", tmp_path)
    assert data.test is not None
    assert data.domains is not None
    assert data.test.tolist() == [False] * 12 + [True] * 6
    assert int(data.domains.max()) == 3, "its own domains are forgotten"
    for shape in ((4, 5), (25,)):
        wide = {part: np.zeros((n, *shape)) for part, n in (("x_train", 12), ("x_test", 6))}
        with pytest.raises(UserError, match=mention("square images", "got samples of shape")):
            load_dataset(f"rotated:npz:{stored(tmp_path / 'wide.npz', **wide)}", tmp_path)


# --- label-swap ---------------------------------------------------------------------------------


def test_label_swap_refuses_texts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=mention("label-swap:bigrams", "label")):
        load_dataset("label-swap:bigrams", tmp_path)


def test_labels_trade_places_in_pairs_as_far_apart_as_the_domain_s_number() -> None:
    assert derived.swapped(10, 0).tolist() == list(range(10))
    assert derived.swapped(10, 1).tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]
    assert derived.swapped(10, 2).tolist() == [2, 3, 0, 1, 6, 7, 4, 5, 8, 9]
    assert derived.swapped(10, 3).tolist() == [3, 4, 5, 0, 1, 2, 9, 7, 8, 6]
    for classes in (4, 5, 7, 10, 100):
        tables = [derived.swapped(classes, apart) for apart in range(4)]
        assert len({tuple(table.tolist()) for table in tables}) == 4, "no two domains agree"
        for table in tables:
            assert torch.equal(table[table], torch.arange(classes)), "a swap undoes itself"


def test_label_swap_changes_labels_by_domain_and_no_image(tmp_path: Path) -> None:
    plain, swapped = load_dataset("digits", tmp_path), load_dataset("label-swap:digits", tmp_path)
    assert (swapped.name, swapped.classes) == ("label-swap:digits", 10)
    assert torch.equal(swapped.x, plain.x)
    assert swapped.domains is not None
    assert torch.bincount(swapped.domains).tolist() == [450, 449, 449, 449]
    for domain in range(4):
        mine = swapped.domains == domain
        assert torch.equal(swapped.y[mine], derived.swapped(10, domain)[plain.y[mine]])
    assert bool((swapped.y != plain.y)[swapped.domains == 1].all())


def test_derived_data_have_domains_of_their_own(tmp_path: Path) -> None:
    """Names and true groups of the clients of a table are not those of the four new domains."""
    path = tmp_path / "mine.csv"
    rows = [f"{i % 4},c{i % 6},g{i % 2},{i * i % 7}" for i in range(48)]
    path.write_text("\n".join(["label,client,group,a", *rows]), encoding="utf-8")
    own, swapped = (load_dataset(f"{one}csv:{path}", tmp_path) for one in ("", "label-swap:"))
    assert own.domain_groups is not None and own.domain_groups.tolist() == [0, 1, 0, 1, 0, 1]
    assert (swapped.domain_groups, swapped.group_names, swapped.domain_names) == (None, (), ())


def test_label_swap_needs_four_labels(tmp_path: Path) -> None:
    three = {"y_train": np.arange(12) % 3, "y_test": np.arange(6) % 3}
    path = stored(tmp_path / "mine.npz", **three)
    with pytest.raises(UserError, match="expects at least 4 labels, got 3"):
        load_dataset(f"label-swap:npz:{path}", tmp_path)


# --- sizes, levels and order --------------------------------------------------------------------


@pytest.mark.parametrize("size", ["...", "x", "16x16", "0", "-1", "9999", "SIZE", ""])
@pytest.mark.parametrize("door", ["images", "leaf"])
def test_a_size_that_is_none_says_what_to_type(tmp_path: Path, door: str, size: str) -> None:
    with pytest.raises(BadParameter, match=mention("1..1024", f"'{size}'", f"{door}:mine@32")):
        load_dataset(f"{door}:mine@{size}", tmp_path)


def test_a_folder_may_have_the_sign_of_a_size_in_its_name(tmp_path: Path) -> None:
    for label in "ab":
        write(tmp_path / "me@home" / label / "one.png", 3)
    assert through(tmp_path / "me@home", "images").x.shape == (2, 1, 6, 8)
    assert load_dataset(f"images:{tmp_path}/me@home@4", tmp_path).x.shape == (2, 1, 4, 4)


@pytest.mark.parametrize("most", [255, 1023, 4095, 65535])
def test_the_largest_level_of_a_pgm_is_white(tmp_path: Path, most: int) -> None:
    for label, level in (("a", 0), ("b", most)):
        (tmp_path / label).mkdir()
        kind = ">u2" if most > 255 else "u1"
        head = f"P5\n3 2\n{most}\n".encode()
        (tmp_path / label / "one.pgm").write_bytes(head + np.full(6, level, kind).tobytes())
    assert through(tmp_path, "images").x.flatten(1).tolist() == [[-1.0] * 6, [1.0] * 6]


def test_arrays_that_are_windows_of_a_series_are_divided_by_time(tmp_path: Path) -> None:
    series = RNG.normal(size=60)
    x = np.stack([series[k : k + 8] for k in range(50)])
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(50) % 2)
    found = through(tmp_path / "mine.npz")
    assert found.gap == 7
    assert mentions(found.notes, "windows", 7)
    assert through(stored(tmp_path / "other.npz")).gap is None
    assert through(stored(tmp_path / "other.npz")).keeps_test


# --- whole runs ---------------------------------------------------------------------------------


def run(tmp_path: Path, *words: str) -> dict[str, object]:
    """Run the command in an empty folder; its result."""
    code, _, errors = typed(["run", "-p", "fedavg", "--rounds", "1", *words], tmp_path)
    assert code == 0, errors
    (path,) = (tmp_path / "flbench-results").rglob("seed-0.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


@pytest.mark.slow
def test_a_run_on_anybodys_arrays(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (500, 8, 8), dtype=np.uint8)
    y = np.arange(500) % 10
    stored(tmp_path / "mine.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    words = ("-s", "noisy-noniid", "--dataset", "npz:mine.npz", "--set", "clients=20")
    assert run(tmp_path, *words)["dataset"] == "npz:mine.npz"


@pytest.mark.slow
def test_a_run_on_rotated_digits_has_a_group_for_each_rotation(tmp_path: Path) -> None:
    words = ("-s", "feature-shift", "--dataset", "rotated:digits", "--set", "clients=8")
    result = run(tmp_path, *words)
    assert result["dataset"] == "rotated:digits"
    clients = result["clients"]
    assert isinstance(clients, dict)
    assert clients["group"] == [0, 0, 1, 1, 2, 2, 3, 3]
