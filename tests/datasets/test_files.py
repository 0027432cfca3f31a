"""Data sets read from files: each real format in small, real files where they are, what is said."""

from __future__ import annotations

import bz2
import hashlib
import logging
import os
import pickle
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from mentions import mention, mentioning, mentions
from PIL import Image
from scipy.io import savemat
from torchvision import datasets as theirs

from flbench.cli.main import main
from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets import cifar, digit5, office, status, torchvision_sets
from flbench.datasets.files import Found
from flbench.datasets.torchvision_sets import IDX, fashion_mnist
from flbench.errors import MissingData, PluginError, UnknownName, UserError
from flbench.federation.loading import load_dataset
from flbench.plugin.registry import Entry, entries, load_entry

RNG = np.random.default_rng(7)


def bytes_of(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def said(load: Callable[[Path], Dataset], root: Path, kind: type[UserError] = UserError) -> str:
    """The one line of a loader that refuses."""
    with pytest.raises(kind) as caught:
        load(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def by_hand(pixels: np.ndarray, scale: tuple[tuple[float, ...], tuple[float, ...]]) -> torch.Tensor:
    """(m, channels, height, width) bytes as a network gets them."""
    mean, std = (np.array(numbers).reshape(-1, 1, 1) for numbers in scale)
    return torch.as_tensor((pixels / 255 - mean) / std, dtype=torch.float32)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


# --- MNIST --------------------------------------------------------------------------------------


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist(root: Path, train: int, test: int, kind: str = "MNIST") -> np.ndarray:
    """Files of MNIST's form; labels count up."""
    pixels = bytes_of(train + test, 28, 28)
    labels = np.arange(train + test) % 10
    for file, array in zip(
        IDX, (pixels[:train], labels[:train], pixels[train:], labels[train:]), strict=True
    ):
        write_idx(root / kind / "raw" / file, array)
    return pixels


def test_mnist_pools_both_parts_and_marks_the_test_part(tmp_path: Path) -> None:
    pixels = write_mnist(tmp_path, 12, 5)
    data = load_dataset("mnist", tmp_path)
    assert (data.name, data.classes, data.domains) == ("mnist", 10, None)
    torch.testing.assert_close(data.x, by_hand(pixels[:, None], ((0.1307,), (0.3081,))))
    assert data.y.tolist() == [i % 10 for i in range(17)]
    assert data.test is not None
    assert data.test.tolist() == [False] * 12 + [True] * 5
    assert (data.x.dtype, data.y.dtype, data.x.is_contiguous()) == (
        torch.float32,
        torch.int64,
        True,
    )


def test_files_that_cannot_be_the_originals_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their number; where that fits, MNIST by md5, Fashion-MNIST by brightness and labels."""
    about = torchvision_sets.ABOUT
    for name, kind, told in (
        ("mnist", "MNIST", "not the original by md5: train-images-idx3-ubyte"),
        ("fashion-mnist", "FashionMNIST", "expected 0.2860: other images"),
    ):
        write_mnist(tmp_path, 12, 5, kind)
        caplog.clear()
        load_dataset(name, tmp_path)
        assert mentions(caplog.messages, name, "17 samples, the complete data set has 70,000")
        caplog.clear()
        monkeypatch.setitem(about, name, replace(about[name], samples=17))
        load_dataset(name, tmp_path)
        assert mentions(caplog.messages, name, told) and len(caplog.messages) == 1
    scale = ((0.5,), (0.3,))
    monkeypatch.setitem(torchvision_sets.SCALES, "fashion-mnist", scale)
    bright = np.full((17, 28, 28), 127, dtype=np.uint8)
    for train, told in ((np.arange(12) % 10, 1), (np.arange(10), 0)):
        parts = (bright[: len(train)], train, bright[len(train) :], np.arange(17 - len(train)))
        for file, array in zip(IDX, parts, strict=True):
            write_idx(tmp_path / "FashionMNIST" / "raw" / file, array)
        caplog.clear()
        load_dataset("fashion-mnist", tmp_path)
        assert sum("other labels" in one for one in caplog.messages) == told


def test_fashion_mnist_marks_its_test_part_too(tmp_path: Path) -> None:
    write_mnist(tmp_path, 12, 5, "FashionMNIST")
    data = fashion_mnist(tmp_path)
    assert data.test is not None
    assert data.test.tolist() == [False] * 12 + [True] * 5


def test_missing_mnist_names_its_files_and_the_command_that_fetches_them(tmp_path: Path) -> None:
    told = said(torchvision_sets.mnist, tmp_path, MissingData)
    assert told == mentioning(
        "mnist",
        f"{', '.join(IDX[:3])} and {IDX[3]}",
        f"{tmp_path}/MNIST/raw",
        "--data-root",
        "FLBENCH_DATA",
        f"flbench data mnist --fetch --data-root {tmp_path}",
    )
    assert list(tmp_path.iterdir()) == [], "nothing is downloaded"


@pytest.mark.parametrize(
    ("file", "array", "why"),
    [
        (IDX[1], np.arange(11) % 10, "12 images and 11 labels"),
        (IDX[3], np.array([0, 1, 2, 3, 10]), r"labels must be 0\.\.9, got 0\.\.10"),
    ],
)
def test_malformed_mnist_is_one_line(
    tmp_path: Path, file: str, array: np.ndarray, why: str
) -> None:
    write_mnist(tmp_path, 12, 5)
    write_idx(tmp_path / "MNIST" / "raw" / file, array)
    with pytest.raises(UserError, match=why):
        torchvision_sets.mnist(tmp_path)


# --- USPS and SVHN ------------------------------------------------------------------------------


def write_usps(root: Path, train: int = 6, test: int = 4) -> np.ndarray:
    """LIBSVM's text, labels 1..10, pixels -1..1."""
    pixels = bytes_of(train + test, 16, 16)
    (root / "USPS").mkdir(parents=True, exist_ok=True)
    for file, part in (("usps.bz2", range(train)), ("usps.t.bz2", range(train, train + test))):
        lines = []
        for i in part:
            values = (pixels[i].reshape(-1) + 0.25) / 127.5 - 1
            told = " ".join(f"{at}:{value:.6f}" for at, value in enumerate(values, start=1))
            lines.append(f"{i % 10 + 1} {told}\n")
        (root / "USPS" / file).write_bytes(bz2.compress("".join(lines).encode()))
    return pixels


def test_usps_is_read_from_libsvm_text(tmp_path: Path) -> None:
    pixels = write_usps(tmp_path)
    data = load_dataset("usps", tmp_path)
    torch.testing.assert_close(data.x, by_hand(pixels[:, None], ((0.2469,), (0.2989,))))
    assert data.y.tolist() == list(range(10))
    assert data.test is not None
    assert data.test.tolist() == [False] * 6 + [True] * 4


def test_a_damaged_usps_is_one_line(tmp_path: Path) -> None:
    write_usps(tmp_path)
    whole = (tmp_path / "USPS" / "usps.bz2").read_bytes()
    for content in (whole[: len(whole) // 2], b"no bz2", bz2.compress(b"1 1:0.5\n"), b""):
        (tmp_path / "USPS" / "usps.bz2").write_bytes(content)
        assert f"{tmp_path}/USPS cannot be used: " in said(torchvision_sets.usps, tmp_path)
    (tmp_path / "USPS" / "usps.bz2").write_bytes(bz2.compress(b"12 " + b"1:0.5 " * 256))
    assert "labels must be 0..9" in said(torchvision_sets.usps, tmp_path)
    (tmp_path / "USPS" / "usps.bz2").unlink()
    assert "usps.bz2 and usps.t.bz2" in said(torchvision_sets.usps, tmp_path, MissingData)


def write_svhn(root: Path, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int]) -> np.ndarray:
    """Both .mat files, and their md5 taken for the originals'."""
    pixels = bytes_of(32, 32, 3, sum(counts))
    labels = np.arange(sum(counts)) % 10
    (root / "SVHN").mkdir(parents=True, exist_ok=True)
    listed, start = {}, 0
    for part, count in zip(("train", "test"), counts, strict=True):
        path, chosen = root / "SVHN" / f"{part}_32x32.mat", slice(start, start + count)
        stored = np.where(labels[chosen] == 0, 10, labels[chosen])[:, None].astype(np.uint8)
        savemat(path, {"X": pixels[..., chosen], "y": stored})
        listed[part] = ["", path.name, md5(path)]
        start += count
    monkeypatch.setattr(theirs.SVHN, "split_list", listed)
    return pixels.transpose(3, 2, 0, 1)


def test_svhn_is_read_from_mat_files_whose_label_ten_is_the_digit_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = write_svhn(tmp_path, monkeypatch, (12, 8))
    data = load_dataset("svhn", tmp_path)
    torch.testing.assert_close(data.x, by_hand(pixels, torchvision_sets.SCALES["svhn"]))
    assert data.x.is_contiguous()
    assert data.y.tolist() == [i % 10 for i in range(20)]
    assert data.test is not None
    assert data.test.tolist() == [False] * 12 + [True] * 8


def test_svhn_s_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "SVHN").mkdir()
    assert "train_32x32.mat and test_32x32.mat" in said(
        torchvision_sets.svhn, tmp_path, MissingData
    )
    for part in ("train", "test"):
        (tmp_path / "SVHN" / f"{part}_32x32.mat").write_bytes(b"another")
    assert mentions(said(torchvision_sets.svhn, tmp_path), "original", "opened")


# --- CIFAR --------------------------------------------------------------------------------------


def write_batches(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str, classes: int
) -> tuple[np.ndarray, list[int]]:
    """torchvision's files, four images each, and their md5 taken for the originals'."""
    reader = getattr(theirs, kind)
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    pixels, labels = [], []
    for name in ("train_list", "test_list"):
        listed = []
        for file, _ in getattr(reader, name):
            pixels.append(bytes_of(4, 3, 32, 32))
            labels += (drawn := RNG.integers(0, classes, 4).tolist())
            key = "labels" if kind == "CIFAR10" else "fine_labels"
            with (folder / file).open("wb") as stream:
                pickle.dump({"data": pixels[-1].reshape(4, -1), key: drawn}, stream)
            listed.append([file, md5(folder / file)])
        monkeypatch.setattr(reader, name, listed)
    meta = folder / reader.meta["filename"]
    meta.write_bytes(pickle.dumps({reader.meta["key"]: [str(i) for i in range(classes)]}))
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": md5(meta)})
    return np.concatenate(pixels), labels


@pytest.mark.parametrize(("kind", "classes"), [("CIFAR10", 10), ("CIFAR100", 100)])
def test_cifar_is_read_from_torchvision_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, classes: int
) -> None:
    pixels, labels = write_batches(tmp_path, monkeypatch, kind, classes)
    data = load_dataset(kind.lower(), tmp_path)
    scale = cifar.CIFAR10_SCALE if classes == 10 else cifar.CIFAR100_SCALE
    torch.testing.assert_close(data.x, by_hand(pixels, scale))
    assert data.x.is_contiguous()
    assert (data.name, data.classes, data.y.tolist()) == (kind.lower(), classes, labels)
    assert data.test is not None
    assert data.test.tolist() == [False] * (len(labels) - 4) + [True] * 4
    if classes == 10:
        assert data.domains is None
    else:
        assert data.domains is not None
        assert torch.equal(data.domains, cifar.superclass_of(data.y))


class Payload:
    """What runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("file", ["data_batch_1", "test_batch", "batches.meta"])
def test_a_pickle_that_is_not_the_original_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    write_batches(tmp_path, monkeypatch, "CIFAR10", 10)
    path = tmp_path / "cifar-10-batches-py" / file
    path.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    told = said(cifar.cifar10, tmp_path)
    assert str(path.parent) in told
    assert mentions(told, "original", "opened")
    assert not (tmp_path / "ran").exists()
    with path.open("rb") as stream:
        pickle.load(stream)
    assert (tmp_path / "ran").exists(), "it would have run"


def write_cifar_npz(
    root: Path, name: str, classes: int, **changed: object
) -> dict[str, np.ndarray]:
    """One .npz file; `changed` replaces arrays, None leaves them out."""
    stored: dict[str, object] = {
        "x_train": bytes_of(8, 32, 32, 3),
        "y_train": (np.arange(8) * 13 % classes).astype(np.uint8),
        "x_test": bytes_of(4, 32, 32, 3),
        "y_test": (np.arange(4) * 29 % classes).astype(np.uint8),
        **changed,
    }
    (root / name).mkdir(parents=True, exist_ok=True)
    kept = {key: np.asarray(value) for key, value in stored.items() if value is not None}
    np.savez(root / name / "some.npz", **kept)
    return kept


def test_cifar_10_is_not_taken_for_cifar_100(tmp_path: Path) -> None:
    write_cifar_npz(tmp_path, "cifar100", 10)
    with pytest.raises(UserError, match=mention("labels 0..99", "another data set?")):
        load_dataset("cifar100", tmp_path)


def test_cifar_is_read_from_npz_where_torchvision_s_files_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = write_cifar_npz(tmp_path, "cifar10", 10)
    data = load_dataset("cifar10", tmp_path)
    assert data.name == "cifar10"
    both = np.concatenate([stored["x_train"], stored["x_test"]]).transpose(0, 3, 1, 2)
    torch.testing.assert_close(data.x, by_hand(both, cifar.CIFAR10_SCALE))
    assert data.y.tolist() == [*stored["y_train"], *stored["y_test"]]
    assert data.test is not None
    assert data.test.tolist() == [False] * 8 + [True] * 4
    write_batches(tmp_path, monkeypatch, "CIFAR10", 10)
    assert len(cifar.cifar10(tmp_path).y) == 24, "torchvision's files come first"


def test_cifar100_takes_superclasses_from_the_file_and_else_from_the_table(tmp_path: Path) -> None:
    coarse = {"y_train_coarse": np.arange(8), "y_test_coarse": np.arange(16, 20)}
    write_cifar_npz(tmp_path, "cifar100", 100, **coarse)
    data = cifar.cifar100(tmp_path)
    assert data.domains is not None
    assert data.domains.tolist() == [*range(8), *range(16, 20)], "the file's"
    write_cifar_npz(tmp_path, "cifar100", 100)
    data = cifar.cifar100(tmp_path)
    assert data.domains is not None
    for label, domain in zip(data.y.tolist(), data.domains.tolist(), strict=True):
        assert label in cifar.SUPERCLASSES[domain]


def test_the_table_of_superclasses_holds_every_class_once() -> None:
    assert sorted(label for group in cifar.SUPERCLASSES for label in group) == list(range(100))
    assert [len(group) for group in cifar.SUPERCLASSES] == [5] * 20


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"y_test": None}, r"it has no array y_test \(it has x_train, y_train, x_test\)"),
        (
            {"x_train": None, "x": np.zeros((8, 32, 32, 3), np.uint8), "y": np.arange(8)},
            "it needs arrays x_train, y_train, x_test and y_test",
        ),
        ({"x_train": np.zeros((8, 32, 32, 3))}, "x_train must be uint8"),
        ({"x_train": np.zeros((8, 3, 32, 32), np.uint8)}, "x_train must be uint8"),
        (
            {"x_train": np.zeros((8, 16, 16, 3), np.uint8)},
            r"x_train must be uint8 \(m, 32, 32, 3\), got uint8 \(8, 16, 16, 3\)",
        ),
        ({"y_train": np.arange(7)}, "y_train must be 8 whole numbers"),
        ({"y_train": np.zeros(8)}, "y_train must be 8 whole numbers"),
        ({"y_test": np.array([0, 1, 2, 100])}, r"labels must be 0\.\.99, got 0\.\.100"),
        ({"y_train": np.full(8, "cat", dtype=object)}, "allow_pickle=False"),
        (
            {"y_train_coarse": np.arange(8), "y_test_coarse": np.arange(3)},
            "coarse labels must be 12 whole numbers",
        ),
        (
            {"y_train_coarse": np.arange(8), "y_test_coarse": np.arange(17, 21)},
            r"coarse labels must be 0\.\.19",
        ),
    ],
)
def test_a_malformed_npz_is_one_line(
    tmp_path: Path, changed: dict[str, np.ndarray | None], why: str
) -> None:
    write_cifar_npz(tmp_path, "cifar100", 100, **changed)
    with pytest.raises(UserError, match=why) as caught:
        cifar.cifar100(tmp_path)
    assert str(tmp_path / "cifar100" / "some.npz") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_images_than_cifar_s_several_files_and_no_zip_are_one_line(tmp_path: Path) -> None:
    small = {
        part: np.zeros((count, 16, 16, 3), np.uint8)
        for part, count in (("x_train", 8), ("x_test", 4))
    }
    write_cifar_npz(tmp_path, "cifar10", 10, **small)
    assert "(m, 32, 32, 3), got uint8 (8, 16, 16, 3)" in said(cifar.cifar10, tmp_path)
    (tmp_path / "cifar10" / "some.npz").write_bytes(b"no zip")
    assert "some.npz cannot be used" in said(cifar.cifar10, tmp_path)
    (tmp_path / "cifar10" / "other.npz").touch()
    assert mentions(said(cifar.cifar10, tmp_path), "files", "other.npz", "some.npz")
    told = said(cifar.cifar100, tmp_path, MissingData)
    assert "train, test and meta in " in told
    assert f"or one .npz file in {tmp_path / 'cifar100'}" in told


# --- MNIST-M, SynthDigits, Digit-5 --------------------------------------------------------------


def write_mnist_m(root: Path, count: int = 20, **more: np.ndarray) -> np.ndarray:
    pixels = bytes_of(count, 32, 32, 3)
    (root / "mnist_m").mkdir(exist_ok=True)
    np.savez(root / "mnist_m" / "part.npz", x=pixels, y=np.arange(count) % 10, **more)
    return pixels


def test_mnist_m_trains_on_even_and_tests_on_odd_digits_of_mnist_s_test_part(
    tmp_path: Path,
) -> None:
    index = np.arange(20) * 7 % 23
    pixels = write_mnist_m(tmp_path, mnist_test_index=index)
    data = load_dataset("mnist-m", tmp_path)
    order = [*np.flatnonzero(index % 2 == 0), *np.flatnonzero(index % 2 == 1)]
    assert data.y.tolist() == [i % 10 for i in order]
    assert data.test is not None
    assert data.test.tolist() == [bool(index[i] % 2) for i in order]
    signed = torch.as_tensor(pixels[order].transpose(0, 3, 1, 2) / 127.5 - 1, dtype=torch.float32)
    torch.testing.assert_close(data.x, signed, rtol=0, atol=1e-6)
    _, shown = digit5.own_pixels("mnist-m", tmp_path)
    assert sorted(shown.tolist()) == sorted(i for i in index.tolist() if i % 2 == 0)


def test_mnist_m_without_an_index_takes_the_position(tmp_path: Path) -> None:
    write_mnist_m(tmp_path)
    pixels, shown = digit5.own_pixels("mnist-m", tmp_path)
    assert pixels.y.tolist() == [0, 2, 4, 6, 8] * 2 + [1, 3, 5, 7, 9] * 2
    assert shown.tolist() == [], "nobody knows of which digits it was made"


@pytest.mark.parametrize(
    ("index", "why"),
    [
        (np.arange(19), "mnist_test_index must be 20 whole numbers"),
        (np.arange(20) / 2, "mnist_test_index must be 20 whole numbers"),
        (np.arange(20) - 1, r"mnist_test_index must be 0\.\.9999, got -1\.\.18"),
        (np.arange(20) + 9_981, r"mnist_test_index must be 0\.\.9999, got 9981\.\.10000"),
    ],
)
def test_an_index_that_counts_no_test_digits_is_refused(
    tmp_path: Path, index: np.ndarray, why: str
) -> None:
    write_mnist_m(tmp_path, mnist_test_index=index)
    with pytest.raises(UserError, match=why):
        digit5.mnist_m(tmp_path)


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_synth_digits_are_read_from_folders_or_npz(tmp_path: Path) -> None:
    assert "one .npz file" in said(digit5.synth_digits, tmp_path, MissingData)
    for part, count in (("train", 3), ("test", 1)):
        for digit in range(10):
            for number in range(count):
                value = np.full((20, 20), 10 * digit + number, np.uint8)
                write_image(tmp_path / "synth_digits" / part / str(digit) / f"{number}.png", value)
    data = load_dataset("synth-digits", tmp_path)
    assert (data.name, data.x.shape) == ("synth-digits", (40, 3, 32, 32))
    assert data.test is not None
    assert data.test.tolist() == [False] * 30 + [True] * 10
    assert data.y.tolist() == [digit for digit in range(10) for _ in range(3)] + list(range(10))
    for at in range(30):
        torch.testing.assert_close(
            data.x[at], torch.full((3, 32, 32), (10 * (at // 3) + at % 3) / 127.5 - 1)
        )
    stored = write_cifar_npz(tmp_path, "synth_digits", 10)
    assert len(load_dataset("synth-digits", tmp_path).y) == 12, ".npz comes first"
    stored = {key: stored[key][:, :16, :16] for key in ("x_train", "x_test")}
    write_cifar_npz(tmp_path, "synth_digits", 10, **stored)
    assert "(m, 32, 32, 3)" in said(digit5.synth_digits, tmp_path)


def test_digit_5_with_three_domains_says_which_in_its_name_and_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grey = write_mnist(tmp_path, 30, 20)
    usps = write_usps(tmp_path)
    colour = write_mnist_m(tmp_path, mnist_test_index=np.arange(20) % 10)
    with caplog.at_level(logging.WARNING, logger="flbench"):
        data = load_dataset("digit-5", tmp_path)
    assert data.name == "digit-5[mnist,usps,mnist-m]"
    assert [record.getMessage() for record in caplog.records] == [
        mentioning("digit-5[mnist,usps,mnist-m]", "svhn", "synth-digits", tmp_path)
    ]
    for derived in ("rotated", "label-swap"):
        whole, part = f"{derived}:digit-5", f"{derived}:{data.name}"
        assert load_dataset(whole, tmp_path).name == load_dataset(part, tmp_path).name == part
    assert data.domains is not None
    assert data.test is not None
    assert torch.bincount(data.domains).tolist() == [45, 10, 20], "five test digits are left out"
    counts = [int(data.test[data.domains == domain].sum()) for domain in range(3)]
    assert counts == [15, 4, 10]
    assert data.test.tolist() == sorted(data.test.tolist()), "training part first"
    assert (data.x.shape, data.x.dtype) == ((75, 3, 32, 32), torch.float32)
    assert float(data.x.min()) >= -1
    assert float(data.x.max()) <= 1
    first = data.x[data.domains == 2]
    expected = torch.as_tensor(colour[0::2].transpose(0, 3, 1, 2) / 127.5 - 1, dtype=torch.float32)
    torch.testing.assert_close(first[:10], expected, rtol=0, atol=1e-6)
    kept = [*range(30), *(30 + i for i in range(20) if i not in (0, 2, 4, 6, 8))]
    small = torch.as_tensor(grey[kept][:, None] / 127.5 - 1, dtype=torch.float32)
    larger = torch.nn.functional.interpolate(small, (32, 32), mode="bilinear")
    torch.testing.assert_close(data.x[data.domains == 0], larger.expand(-1, 3, -1, -1))
    assert data.y[data.domains == 0].tolist() == [i % 10 for i in kept]
    usps_small = torch.as_tensor(usps[:, None] / 127.5 - 1, dtype=torch.float32)
    doubled = torch.nn.functional.interpolate(usps_small, (32, 32), mode="bilinear")
    torch.testing.assert_close(data.x[data.domains == 1], doubled.expand(-1, 3, -1, -1))


def test_digit_5_whole_is_called_so_and_keeps_a_bounded_part_of_each_domain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_mnist(tmp_path, 30, 20)
    write_svhn(tmp_path, monkeypatch, (12, 8))
    write_usps(tmp_path)
    write_mnist_m(tmp_path)
    write_cifar_npz(tmp_path, "synth_digits", 10)
    data = load_dataset("digit-5", tmp_path)
    assert (data.name, caplog.records) == ("digit-5", [])
    assert data.domains is not None
    assert torch.bincount(data.domains).tolist() == [50, 20, 10, 12, 20]
    monkeypatch.setattr(digit5, "KEPT", {False: 9, True: 5})
    one, other = digit5.digit5(tmp_path), digit5.digit5(tmp_path)
    assert one.domains is not None
    assert one.test is not None
    trained = torch.bincount(one.domains[~one.test], minlength=5)
    assert trained.tolist() == [9, 9, 6, 8, 9]
    assert torch.bincount(one.domains[one.test]).tolist() == [5, 5, 4, 4, 5]
    assert torch.equal(one.x, other.x)
    whole = {
        tuple(image.flatten().tolist()): int(y) for image, y in zip(data.x, data.y, strict=True)
    }
    for image, y in zip(one.x, one.y, strict=True):
        assert whole[tuple(image.flatten().tolist())] == int(y), "labels stay with their images"


def test_digit_5_needs_two_domains(tmp_path: Path) -> None:
    write_usps(tmp_path)
    told = said(digit5.digit5, tmp_path, MissingData)
    assert mentions(told, "mnist", "svhn", "usps", "synth-digits", "mnist-m")
    assert "flbench data digit-5" in told


# --- Office-Caltech-10 --------------------------------------------------------------------------


def write_office(root: Path, classes: int = 10) -> None:
    for number, domain in enumerate(office.DOMAINS):
        for label in range(classes):
            value = np.full((50, 40 + label, 3), 20 * label + number, np.uint8)
            write_image(root / office.FOLDER / domain / f"kind{label}" / "one.jpg", value)


def test_office_caltech_is_read_from_folders_and_resized(tmp_path: Path) -> None:
    write_office(tmp_path)
    data = load_dataset("office-caltech", tmp_path)
    assert (data.name, data.classes, data.test) == ("office-caltech", 10, None)
    assert data.x.shape == (40, 3, 64, 64)
    assert data.domains is not None
    assert data.domains.tolist() == [domain for domain in range(4) for _ in range(10)]
    assert data.y.tolist() == list(range(10)) * 4
    shades = (20 * data.y + data.domains) / 127.5 - 1
    torch.testing.assert_close(data.x.mean(dim=(1, 2, 3)), shades, rtol=0, atol=0.02)


def test_office_caltech_s_missing_and_wrong_folders_are_one_line(tmp_path: Path) -> None:
    told = said(office.images, tmp_path, MissingData)
    assert f"office_caltech_10/DOMAIN/CLASS/*.jpg, domains {', '.join(office.DOMAINS)}," in told
    write_office(tmp_path, classes=9)
    assert "ten classes" in said(office.images, tmp_path)
    write_office(tmp_path)
    write_image(tmp_path / office.FOLDER / "mars" / "kind0" / "one.png", bytes_of(8, 8))
    assert mentions(said(office.images, tmp_path), "got amazon, caltech, dslr, mars, webcam")


def write_surf(root: Path, **changed: np.ndarray) -> list[np.ndarray]:
    """A .mat of each domain, of 11, 12, 13 and 14 histograms."""
    counts = []
    (root / office.SURF).mkdir(exist_ok=True)
    for number, file in enumerate(office.MATS):
        fts = RNG.integers(0, 9, (11 + number, 800), dtype=np.uint8)
        fts[:, 5] = 0
        counts.append(fts)
        table = {"fts": fts, "labels": (np.arange(11 + number) % 10 + 1)[:, None], **changed}
        savemat(root / file, {key: value for key, value in table.items() if value is not None})
    return counts


def test_office_surf_standardises_shares_within_each_domain(tmp_path: Path) -> None:
    counts = write_surf(tmp_path)
    data = load_dataset("office-surf", tmp_path)
    assert (data.name, data.classes, data.x.shape) == ("office-surf", 10, (50, 800))
    assert data.x.is_contiguous()
    assert data.domains is not None
    assert torch.bincount(data.domains).tolist() == [11, 12, 13, 14]
    assert data.y[:11].tolist() == [*range(10), 0]
    for domain, fts in enumerate(counts):
        x = data.x[data.domains == domain]
        shares = fts / fts.sum(axis=1, keepdims=True)
        zscores = (shares[:, 7] - shares[:, 7].mean()) / shares[:, 7].std()
        torch.testing.assert_close(x[:, 7], torch.as_tensor(zscores, dtype=torch.float32))
        assert bool((x[:, 5] == 0).all()), "a bin that never varies"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"fts": None}, "it has no array 'fts'"),
        ({"fts": np.zeros((11, 700))}, "x 800 numbers, got"),
        ({"fts": np.full((11, 800), np.nan)}, "x 800 numbers, got"),
        ({"labels": np.zeros(11)}, r"labels are 1\.\.10"),
        ({"labels": np.full(11, 11)}, r"labels are 1\.\.10"),
    ],
)
def test_malformed_histograms_are_one_line(
    tmp_path: Path, changed: dict[str, np.ndarray], why: str
) -> None:
    write_surf(tmp_path, **changed)
    with pytest.raises(UserError, match=why):
        office.surf(tmp_path)


def test_histograms_that_are_missing_or_no_mat_are_one_line(tmp_path: Path) -> None:
    assert office.MATS[2] in said(office.surf, tmp_path, MissingData)
    write_surf(tmp_path)
    for content in (b"", b"no mat file at all"):
        (tmp_path / office.MATS[0]).write_bytes(content)
        assert f"{tmp_path / office.MATS[0]} cannot be used: " in said(office.surf, tmp_path)


# --- what `flbench data` says -------------------------------------------------------------------


def rows(root: Path) -> dict[str, tuple[str, str, str]]:
    found = (status.surveyed(name, root) for name in entries("datasets"))
    return {row.name: (row.state, row.where, row.samples) for row in found}


def test_the_inventory_tells_present_part_absent_and_doors(tmp_path: Path) -> None:
    before = rows(tmp_path)
    assert before["digits"] == ("present", "built in", "1,797")
    assert before["mnist"] == ("absent", "-", "0 of 70,000")
    assert before["npz"] == ("argument", "--dataset npz:FILE.npz", "-")
    assert before["digit-5"] == ("absent", "-", "-")
    write_mnist(tmp_path, 12, 5)
    write_usps(tmp_path)
    write_mnist_m(tmp_path)
    write_cifar_npz(tmp_path, "cifar100", 100)
    write_office(tmp_path)
    write_surf(tmp_path)
    after = rows(tmp_path)
    assert after["mnist"] == ("present", "MNIST/raw", "70,000")
    assert after["usps"] == ("present", "USPS", "9,298")
    assert after["cifar100"] == ("part", "cifar100/some.npz", "12 of 60,000")
    assert after["cifar10"] == ("absent", "-", "0 of 60,000")
    assert after["mnist-m"] == ("part", "mnist_m/part.npz", "20 of 68,002")
    assert after["digit-5"] == ("part", "mnist, usps, mnist-m", "-")
    assert after["office-caltech"] == ("part", "office_caltech_10", "40 of 2,533")
    assert after["office-surf"] == ("present", "office_caltech10_surf", "2,533")
    (tmp_path / "MNIST" / "raw" / IDX[2]).unlink()
    assert rows(tmp_path)["mnist"][0] == "absent"


def test_the_inventory_is_a_table_with_licence_and_source(tmp_path: Path) -> None:
    root, head, *lines = status.report(tmp_path)
    assert root == f"data root: {tmp_path}"
    assert head.split() == ["name", "state", "where", "samples", "licence", "source"]
    assert [line.split()[0] for line in lines] == list(entries("datasets"))
    (fashion,) = [line for line in lines if line.startswith("fashion-mnist ")]
    assert fashion.split("  ")[-1].strip() == "H. Xiao, K. Rasul, R. Vollgraf, arXiv 1708.07747"
    assert " MIT " in fashion


def test_every_built_in_data_set_says_where_it_is_from_and_how_it_may_be_used() -> None:
    for name, entry in entries("datasets").items():
        if entry.distribution == "flbench":
            about = status.surveyed(name, Path("nowhere")).about
            assert about.source not in ("", "not said"), name
            assert about.licence not in ("", "not said"), name
            assert about.fetch or not about.files, name


def test_one_data_set_s_page_says_what_to_type(tmp_path: Path) -> None:
    page = status.report(tmp_path, "svhn")
    assert page[0] == "svhn"
    assert mentions(page, f"flbench data svhn --fetch --data-root {tmp_path}")
    assert any(line.startswith("  files      SVHN/train_32x32.mat, ") for line in page)
    assert status.report(tmp_path, "npz:x.npz")[-1] == mentioning("--dataset", "npz:FILE.npz")
    assert mentions(status.report(tmp_path, "npz:x y"), "flbench data 'npz:x y' --check")
    (told,) = [line for line in status.report(tmp_path, "cifar10") if "--fetch" in line]
    assert mentions(told, f"--data-root {tmp_path}", "cifar10/")
    assert status.report(tmp_path, "digit-5[mnist,usps]")[0] == "digit-5"
    with pytest.raises(UserError, match=mention("npz", "--dataset")):
        status.report(tmp_path, "npz:x.npz", fetch=True)
    with pytest.raises(UnknownName, match=mention("minst", "mnist")):
        status.report(tmp_path, "minst")


def test_check_loads_a_data_set_and_compares_its_count(tmp_path: Path) -> None:
    assert status.report(tmp_path, "digits", check=True) == [
        mentioning("digits", "1,797 samples", "1x8x8", "10 labels"),
        "  labels    0 178, 1 182, 2 177, 3 183, 4 181, 5 182, 6 181, 7 179, 8 174, 9 180",
        "  tested    a part that suites draw",
    ]
    write_mnist(tmp_path, 12, 5)
    with pytest.raises(UserError, match=r"^mnist: expected 70,000 samples, got 17$"):
        status.report(tmp_path, "mnist", check=True)
    write_cifar_npz(tmp_path, "cifar100", 100)
    assert status.report(tmp_path, "cifar100", check=True)[:1] == [
        mentioning(
            "cifar100",
            "12 samples",
            "3x32x32",
            "100 labels",
            "8 domains",
            "4 of the test part",
            "12 of 60,000",
        )
    ]
    with pytest.raises(MissingData):
        status.report(tmp_path, "svhn", check=True)
    assert status.report(tmp_path, "rotated:digits", check=True)[:1] == [
        mentioning("rotated:digits", "1,797 samples", "1x8x8", "10 labels", "4 domains")
    ]


def test_check_says_whether_files_are_the_originals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_usps(tmp_path)
    with pytest.raises(UserError, match="expected 9,298 samples, got 10"):
        status.report(tmp_path, "usps", check=True)
    assert status.compare_md5("usps", tmp_path) == [mentioning("md5", "usps.bz2", "usps.t.bz2")]
    write_svhn(tmp_path, monkeypatch, (12, 8))
    assert status.compare_md5("svhn", tmp_path) == ["the originals by md5"]
    write_batches(tmp_path, monkeypatch, "CIFAR100", 100)
    assert status.compare_md5("cifar100", tmp_path) == ["the originals by md5"]
    assert cifar.found("cifar100", tmp_path) == Found("cifar-100-python", 60_000, True)
    assert status.compare_md5("cifar10", tmp_path) == []
    assert status.compare_md5("digits", tmp_path) == []


@pytest.mark.slow
def test_check_of_all_goes_over_what_is_there_and_fails_if_one_does(tmp_path: Path) -> None:
    write_mnist_m(tmp_path)
    everything = entries("datasets")
    some = ("digits", "mnist", "mnist-m", "npz", "svhn")
    with patch.object(status, "entries", lambda group: {one: everything[one] for one in some}):
        lines = status.report(tmp_path, check=True)
        write_mnist(tmp_path, 12, 5)
        with pytest.raises(UserError) as caught:
            status.report(tmp_path, check=True)
    assert mentions(lines, "digits", "1,797 samples", "1x8x8", "10 labels")
    assert "svhn: absent" in lines
    assert not any(line.startswith("npz") for line in lines)
    assert any(line.startswith("mnist-m: 20 samples") for line in lines)
    assert str(caught.value) == "mnist: expected 70,000 samples, got 17"


def test_fetch_downloads_where_there_is_a_command_and_says_so_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    def reader(root: str, **options: object) -> SimpleNamespace:
        asked.append((root, options))
        return SimpleNamespace()

    for name in ("MNIST", "FashionMNIST", "USPS", "SVHN", "CIFAR10", "CIFAR100"):
        monkeypatch.setattr(theirs, name, reader)
    for name in ("mnist", "fashion-mnist", "cifar10", "cifar100", "usps", "svhn"):
        status.download(name, tmp_path)
    roots = [Path(root).relative_to(tmp_path).as_posix() for root, _ in asked]
    assert roots == ["."] * 8 + ["USPS"] * 2 + ["SVHN"] * 2, "both parts of each"
    assert all(options["download"] is True for _, options in asked)
    for name, told in (("office-surf", "get the SURF"), ("digits", "it needs no files")):
        with pytest.raises(UserError, match=mention(name, told)):
            status.report(tmp_path, name, fetch=True)
    with pytest.raises(UserError, match="flbench data NAME --fetch"):
        status.report(tmp_path, fetch=True)


def test_a_fetch_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: str, **options: object) -> None:
        raise RuntimeError("Error downloading x:\nTried y, got:\nno route")

    monkeypatch.setattr(theirs, "MNIST", refuse)
    with pytest.raises(UserError) as caught:
        status.report(tmp_path, "mnist", fetch=True)
    assert str(caught.value) == mentioning(
        "mnist", tmp_path, "Error downloading x", "Tried y", "no route"
    )


def test_a_broken_stranger_is_a_row_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("datasets", "odd", "gone_module:load", "strangers", "1.0")
    monkeypatch.setattr(status, "find", lambda kind, name: entry)
    row = status.surveyed("odd", tmp_path)
    assert (row.state, row.samples) == ("broken", "-")
    assert "gone_module" in row.where
    with pytest.raises(PluginError):
        load_entry(entry)


def test_a_stranger_that_says_nothing_of_itself_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("datasets", "odd", f"{__name__}:load_nothing", "strangers", "1.0")
    monkeypatch.setattr(status, "find", lambda kind, name: entry)
    row = status.surveyed("odd", tmp_path)
    assert (row.state, row.where, row.about.licence) == ("present", "built in", "not said")


def load_nothing(root: Path) -> None:
    """A stranger's loader."""


def test_what_can_be_fetched_but_does_not_say_to_where_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry("datasets", "odd", f"{__name__}:load_nothing", "strangers", "1.0")
    monkeypatch.setattr(status, "find", lambda kind, name: entry)
    about = DatasetInfo("them", "theirs", fetch="write to them")
    monkeypatch.setattr(sys.modules[__name__], "ABOUT", about, raising=False)
    assert status.surveyed("odd", tmp_path).state == "unknown"


def test_damaged_files_do_not_keep_the_table_from_being_shown(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "x.npz").write_bytes(b"no zip")
    (tmp_path / "synth_digits" / "0").mkdir(parents=True)
    shown = rows(tmp_path)
    assert shown["cifar10"] == ("part", "cifar10/x.npz", "-")
    assert shown["synth-digits"][0] == "broken"
    assert shown["digits"][0] == "present"


def test_the_command_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code in ((["data", "--data-root", str(tmp_path)], 0), (["data", "minst"], 1)):
        monkeypatch.setattr(sys, "argv", ["flbench", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert (stop.value.code or 0) == code
        printed = capsys.readouterr()
        if code:
            assert printed.err.startswith("flbench: unknown dataset 'minst'")
        else:
            assert printed.out.splitlines()[0] == f"data root: {tmp_path}"
            assert "usps " in printed.out


# --- real files ---------------------------------------------------------------------------------


def real(*files: str) -> Path:
    """The data root, if these files are there."""
    given = os.environ.get("FLBENCH_DATA")
    if not given or not all((Path(given).expanduser() / file).is_file() for file in files):
        pytest.skip(f"FLBENCH_DATA names no folder with {', '.join(files)}")
    return Path(given).expanduser()


def scaled_well(data: Dataset) -> None:
    """The training part has mean 0 and standard deviation 1 in each channel, nearly."""
    assert data.test is not None
    train = data.x[~data.test]
    assert float(train.mean(dim=(0, 2, 3)).abs().max()) < 0.02
    assert float((train.std(dim=(0, 2, 3)) - 1).abs().max()) < 0.02


@pytest.mark.slow
def test_the_real_mnist_is_what_its_authors_say() -> None:
    data = load_dataset("mnist", real(*(f"MNIST/raw/{file}" for file in IDX)))
    assert data.x.shape == (70_000, 1, 28, 28)
    assert data.test is not None
    counted = torch.bincount(data.y[data.test]).tolist()
    assert counted == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    scaled_well(data)


@pytest.mark.slow
@pytest.mark.long
def test_the_real_usps_is_what_its_authors_say() -> None:
    data = load_dataset("usps", real("USPS/usps.bz2", "USPS/usps.t.bz2"))
    assert data.x.shape == (9_298, 1, 16, 16)
    assert data.test is not None
    train = torch.bincount(data.y[~data.test]).tolist()
    assert train == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    test = torch.bincount(data.y[data.test]).tolist()
    assert test == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    scaled_well(data)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "train", "test"),
    [
        ("cifar10/cifar10_20000_4000.npz", 20_000, 4_000),
        ("cifar100/cifar100_10000_2000.npz", 10_000, 2_000),
    ],
)
def test_the_real_cifar_parts_are_balanced_and_scaled(file: str, train: int, test: int) -> None:
    root = real(file)
    name = file.partition("/")[0]
    if (root / cifar.ABOUT[name].files[0]).is_file():
        pytest.skip("the whole is there, the part is not read")
    data = load_dataset(name, root)
    assert data.x.shape == (train + test, 3, 32, 32)
    assert data.test is not None
    assert torch.bincount(data.y[~data.test]).tolist() == [train // data.classes] * data.classes
    assert torch.bincount(data.y[data.test]).tolist() == [test // data.classes] * data.classes
    scaled_well(data)
    if name == "cifar100":
        assert data.domains is not None
        assert torch.equal(data.domains, cifar.superclass_of(data.y)), "the file's are the table's"


@pytest.mark.slow
@pytest.mark.long
def test_the_real_digit_5_tests_no_digit_that_it_trained_on() -> None:
    files = [f"MNIST/raw/{file}" for file in IDX]
    root = real(*files, "USPS/usps.bz2", "mnist_m/mnist_m_4500.npz")
    m, shown = digit5.own_pixels("mnist-m", root)
    assert (len(m.y), len(shown)) == (4_500, 2_260)
    mnist = torchvision_sets.known_pixels("mnist", root)
    assert mnist.test is not None
    assert torch.equal(mnist.y[mnist.test][shown], m.y[~m.test]), "the index counts test digits"
    data = load_dataset("digit-5", root)
    assert data.domains is not None
    assert data.test is not None
    first = [int(((data.domains == 0) & mask).sum()) for mask in (~data.test, data.test)]
    assert first == [5_000, 10_000 - 2_260]
    least = min(
        int(torch.bincount(data.y[~data.test & (data.domains == d)]).min()) for d in range(3)
    )
    assert least >= 100, "100 of each class and domain can be taken"


@pytest.mark.slow
def test_the_real_office_histograms_are_counted() -> None:
    data = load_dataset("office-surf", real(*office.MATS))
    assert data.domains is not None
    assert torch.bincount(data.domains).tolist() == [958, 1123, 157, 295]
    assert torch.bincount(data.y).min() > 100
